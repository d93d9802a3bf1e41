//! Plays a plan: `player`, `several`, `moving` and `operator` are the programs, and `shrinking`
//! makes a plan smaller whose scene fails.

mod flaws;
mod moving;
mod operator;
mod player;
mod several;
pub(crate) mod shrinking;

use std::mem::ManuallyDrop;
use std::panic;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::scheduler::{self, fail, later, mpsc, now, thread, trace};
use crate::simulation::judge::calls::Sent;
use crate::simulation::judge::excuses::{Excuse, Excuses};
use crate::simulation::judge::{Judge, Shared, Who};
use crate::simulation::plan::{OnLost, Plan, Program, key_of};
use crate::simulation::scene::player::Player;
use crate::simulation::world::engine::Servers;
use crate::{DetachedHold, LockManager, LockParcel, StopHandle};

/// A scene that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(1_000);

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// What the threads of a scene share.
pub(crate) struct Scene {
    plan: Arc<Plan>,
    judge: Arc<Judge>,
    /// What was handed over, for which key.
    parcels: Shared<Vec<(usize, LockParcel, Sent)>>,
    /// What threads have left to others of their process.
    left: Shared<Vec<Left>>,
    /// The processes that have forgotten a guard.
    forgot: Shared<Vec<usize>>,
    /// The processes that have ended.
    done: Shared<Vec<usize>>,
}

/// A hold that no thread has. (Those of a killed process are never dropped.)
pub(crate) struct Left {
    hold: ManuallyDrop<DetachedHold>,
    number: usize,
    key: usize,
    who: Who,
}

/// What a thread of a process tells the one that began it.
enum News {
    Left,
    Ended,
}

impl Scene {
    fn take_left(&self, process: usize) -> Option<Left> {
        self.left.with(|all| {
            let at = all.iter().position(|it| it.who.process == process)?;
            Some(all.remove(at))
        })
    }

    /// What may be left of a lock that nobody gives back.
    fn may_stay(&self, token: &str) -> Excuses {
        let is_of = |process: &usize| token.contains(&format!("-{}-", 1000 + process));
        let is_of_dead = |it: &usize| is_of(it) && self.judge.is_dead(*it);
        let forgot = self.forgot.with(|all| all.iter().any(is_of));
        Excuse::Forgotten.when(forgot)
            | Excuse::Killed
                .when(!forgot && (1..=self.plan.processes.len()).any(|it| is_of_dead(&it)))
            | self.judge.parcel_of(token)
    }
}

/// What a scene came to.
pub(crate) struct Played {
    pub(crate) locks: u64,
    /// The excuses without which it would have failed.
    pub(crate) needed: Excuses,
}

/// Plays a scene in which one excuse does not count, or all do.
pub(crate) fn play(plan: &Arc<Plan>, off: Option<Excuse>) -> Played {
    let judge = Judge::of(plan, off);
    let servers = Rc::new(Servers::start(plan.engine, &judge));
    let scene = Arc::new(Scene {
        plan: Arc::clone(plan),
        judge,
        parcels: Shared::default(),
        left: Shared::default(),
        forgot: Shared::default(),
        done: Shared::default(),
    });
    let mut processes = Vec::new();
    for program in &plan.processes {
        let process = scheduler::process(program.drift);
        processes.push(process);
        let (program, scene) = (program.clone(), Arc::clone(&scene));
        let main = move || {
            live(process, program, &scene);
            scene.done.with(|done| done.push(process));
        };
        let thread = thread::Builder::new().name(format!("main{process}"));
        thread.process(process).spawn(main).expect("a thread");
    }
    for (at, fault) in plan.faults.clone() {
        let (servers, processes) = (Rc::clone(&servers), processes.clone());
        later(millis(at), move || fault.happens(&servers, &processes));
    }
    let judge = &scene.judge;
    let has_ended = |it: &usize| judge.is_dead(*it) || scene.done.with(|done| done.contains(it));
    if !comes_true(LONGEST, || processes.iter().all(has_ended)) {
        fail(format!("the scene hangs: {:?}", scheduler::threads_left()));
    }
    // A forgotten guard keeps its manager until the process exits.
    for process in scene.forgot.with(|all| all.clone()) {
        scheduler::kill(process, true);
    }
    until_nothing_is_left();
    for key in 0..plan.keys {
        let may_stay = |token: &str| scene.may_stay(token);
        judge.is_clean(key, may_stay).unwrap_or_else(fail);
    }
    let played = Played {
        locks: judge.locks_taken(),
        needed: judge.needed(),
    };
    judge.rests();
    scheduler::end();
    played
}

/// Asks, ever more rarely, whether it `is` so, up to a limit.
fn comes_true(limit: Duration, is: impl Fn() -> bool) -> bool {
    let began = now();
    while !is() {
        let elapsed = Duration::from_nanos(now() - began);
        if elapsed > limit {
            return false;
        }
        thread::sleep(millis(1) + elapsed / 8);
    }
    true
}

/// A thread that connects ends when that has taken its time.
fn until_nothing_is_left() {
    let left = || (scheduler::threads_left(), scheduler::open_connections());
    let is_all_gone = || left().0.is_empty() && left().1.is_empty();
    if !comes_true(millis(12_000), is_all_gone) {
        let (threads, connections) = left();
        fail(format!(
            "threads are left: {threads:?}, and connections: {connections:?}"
        ));
    }
}

fn manager(process: usize, number: usize, program: &Program, scene: &Arc<Scene>) -> LockManager {
    let (response, lost, judge) = (
        millis(program.response),
        program.on_lost,
        Arc::clone(&scene.judge),
    );
    let on_lost = move |it: &crate::LostLock| {
        trace(|| format!("on_lost: {it:?}"));
        judge.told(process, number, key_of(&it.key));
        match lost {
            OnLost::Returns => {}
            OnLost::Blocks => thread::sleep(millis(300)),
            OnLost::Panics => panic::resume_unwind(Box::new("a panic of the program")),
        }
    };
    let engine = scene.plan.engine;
    let builder = engine
        .builder()
        .response_timeout(response)
        .connect_timeout(response * 2)
        .client_tracking(program.tracks)
        .pool_size(program.pool)
        .fenced(scene.plan.fenced)
        .reclaim_dead(program.reclaims)
        .tolerate_outage(millis(program.outage))
        .local_handoff(millis(program.handoff))
        .poll_every(millis(program.polls))
        .lease(millis(program.lease))
        .renew(program.renews)
        .on_lost(on_lost);
    let builder = match program.waits {
        Some(limit) => builder.wait(millis(limit)),
        None => builder,
    };
    builder.build_lazily().expect("options that can work")
}

/// The life of a process.
fn live(process: usize, program: Program, scene: &Arc<Scene>) {
    let managers = (0..program.managers)
        .map(|number| manager(process, number, &program, scene))
        .collect();
    let threads = program.threads.clone();
    let (tells, news) = mpsc::channel();
    let player = Arc::new(Player {
        process,
        program,
        managers,
        stop: StopHandle::new(),
        scene: Arc::clone(scene),
        tells,
    });
    let mut running = threads.len();
    for (number, ops) in threads.into_iter().enumerate() {
        let player = Arc::clone(&player);
        let run = move || {
            for op in &ops {
                player.op(op);
            }
            let _ = player.tells.send(News::Ended);
        };
        let thread = thread::Builder::new().name(format!("{process}.{number}"));
        thread.spawn(run).expect("a thread");
    }
    while running > 0 {
        match news.recv().expect("a sender is here") {
            News::Left => thread::sleep(millis(20)), // Another thread may take it meanwhile.
            News::Ended => running -= 1,
        }
        while let Some(left) = scene.take_left(process) {
            player.attach(left);
        }
    }
    scene.judge.is_at_its_end(process);
    ends(&player);
}

/// All threads of the process have ended, but for those that watch a hold.
fn ends(player: &Player) {
    let (process, judge) = (player.process, &player.scene.judge);
    for (number, manager) in player.managers.iter().enumerate() {
        let none_left = || manager.held().iter().all(|held| held.lost.is_some());
        let began = now();
        let is_it_free = || comes_true(millis(player.program.lease * 2 + 2_000), none_left);
        // A pause may take all of that time.
        let is_free =
            is_it_free() || judge.forgives(judge.pause_of(process, began)) && is_it_free();
        // A thread of which only the end is left may give up meanwhile what it has lost.
        let (held, stats, then) = (manager.held(), manager.stats(), manager.held());
        let is_counted = stats.held == held.len() as u64 || held.len() != then.len();
        let waiting = manager.waiting();
        if !is_free || !is_counted || stats.waiting != 0 || !waiting.is_empty() {
            fail(format!("at the end: {held:?}, {waiting:?}, {stats:?}"));
        }
        let keys = 0..judge.keys();
        let told = || {
            keys.clone()
                .try_for_each(|key| judge.all_told(process, number, key))
        };
        comes_true(millis(10_000), || told().is_ok());
        told().unwrap_or_else(fail);
    }
}
