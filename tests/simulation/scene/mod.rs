//! Plays the scene of a seed: `plan` and `taste` draw what happens in it, `player`, `several` and
//! `operator` are the programs, and `shrinking` makes a scene smaller that fails.

mod flaws;
mod moving;
mod operator;
pub(crate) mod plan;
pub(crate) mod player;
mod several;
pub(crate) mod shrinking;
mod taste;

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::panic;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::sync::scheduler::{self, fail, later, mpsc, now, thread, trace};
use crate::simulation::judge::{self, Who};
use crate::simulation::judge::{ledger, routes, verdict};
use crate::simulation::scene::plan::{OnLost, Plan, Program};
use crate::simulation::scene::player::Player;
use crate::simulation::world::engine::Servers;
use crate::{DetachedHold, LockManager, LockParcel, LockWatch, StopHandle};

/// A scene that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(1_000);

thread_local! {
    /// What was handed over.
    static PARCELS: RefCell<Vec<Sent>> = RefCell::default();
    /// What threads have left to others of their process.
    static LEFT: RefCell<Vec<(usize, Left)>> = RefCell::default();
    /// The tokens that were handed over.
    static SENT: RefCell<Vec<String>> = RefCell::default();
    /// The processes that have forgotten a guard.
    static FORGOT: RefCell<Vec<usize>> = RefCell::default();
}

/// What was handed over, for which key, and when.
#[derive(Clone)]
pub(crate) struct Sent {
    pub(crate) parcel: LockParcel,
    key: usize,
    pub(crate) at: u64,
    /// When its hold began.
    pub(crate) began: u64,
    /// Another process has got the parcel as well.
    pub(crate) is_copied: bool,
}

/// A hold that no thread has. (Those of a killed process are never dropped.)
pub(crate) struct Left {
    pub(crate) hold: ManuallyDrop<DetachedHold>,
    pub(crate) number: usize,
    pub(crate) key: usize,
    pub(crate) who: Who,
}

pub(crate) fn forgets(process: usize) {
    FORGOT.with_borrow_mut(|all| all.push(process));
}

pub(crate) fn leave(process: usize, left: Left) {
    LEFT.with_borrow_mut(|all| all.push((process, left)));
}

/// What a thread of a process tells the one that began it.
pub(crate) enum News {
    Left,
    Ended,
}

pub(crate) fn take_left(process: usize) -> Option<Left> {
    LEFT.with_borrow_mut(|all| {
        let at = all.iter().position(|it| it.0 == process)?;
        Some(all.remove(at).1)
    })
}

pub(crate) fn send(key: usize, parcel: &LockParcel, began: u64) {
    SENT.with_borrow_mut(|all| all.push(parcel.token.clone()));
    let parcel = parcel.to_string().parse().expect("a parcel");
    PARCELS.with_borrow_mut(|all| {
        all.push(Sent {
            parcel,
            key,
            at: now(),
            began,
            is_copied: false,
        });
    });
}

/// The oldest parcel for this key. If it `stays`, somebody else gets it as well.
pub(crate) fn received(key: usize, stays: bool) -> Option<Sent> {
    PARCELS.with_borrow_mut(|all| {
        let at = all.iter().position(|it| it.key == key)?;
        all[at].is_copied |= stays;
        Some(if stays {
            all[at].clone()
        } else {
            all.remove(at)
        })
    })
}

/// The servers start, and all judges are told.
fn begin(plan: &Plan) -> Rc<Servers> {
    ledger::rest();
    let servers = Rc::new(Servers::start(plan.engine));
    judge::begin(plan);
    verdict::begin();
    ledger::begin(plan, servers.nodes.len());
    let may_change = if servers.nodes.len() > 1 {
        plan.keys
    } else {
        0
    };
    routes::begin((0..may_change).map(|key| servers.master_of_key(key)));
    PARCELS.take();
    LEFT.take();
    FORGOT.take();
    SENT.take();
    servers
}

pub(crate) fn play(plan: &Arc<Plan>) {
    let servers = begin(plan);
    let done: Arc<Mutex<Vec<usize>>> = Arc::default();
    let mut alive = Vec::new();
    for program in &plan.processes {
        let process = scheduler::process(program.drift);
        alive.push(process);
        let (program, plan, done) = (program.clone(), Arc::clone(plan), Arc::clone(&done));
        let main = move || {
            live(process, program, plan);
            done.lock().push(process);
        };
        let thread = thread::Builder::new()
            .name(format!("main{process}"))
            .process(process);
        thread.spawn(main).expect("a thread");
    }
    for (at, fault) in plan.faults.clone() {
        let (servers, alive, keys) = (Rc::clone(&servers), alive.clone(), plan.keys);
        later(millis(at), move || fault.happens(&servers, &alive, keys));
    }
    let lives = |process: &&usize| !judge::is_dead(**process);
    let are_done = || {
        alive
            .iter()
            .filter(lives)
            .all(|process| done.lock().contains(process))
    };
    if !comes_true(LONGEST, are_done) {
        fail(format!("the scene hangs: {:?}", scheduler::threads_left()));
    }
    // A forgotten guard keeps its manager until the process exits.
    let forgot = FORGOT.take();
    for process in &forgot {
        scheduler::kill(*process, true);
    }
    until_nothing_is_left();
    let sent: Vec<_> = SENT.take();
    let may_stay = |token: &str| {
        let of = |process: &usize| token.contains(&format!("-{}-", 1000 + process));
        sent.iter().any(|it| it == token)
            || alive
                .iter()
                .any(|it| of(it) && (judge::is_dead(*it) || forgot.contains(it)))
    };
    for key in 0..plan.keys {
        ledger::is_clean(key, may_stay).unwrap_or_else(fail);
    }
    scheduler::end();
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
    let is_all_gone =
        || scheduler::threads_left().is_empty() && scheduler::open_connections().is_empty();
    if comes_true(millis(12_000), is_all_gone) {
        return;
    }
    let (threads, connections) = (scheduler::threads_left(), scheduler::open_connections());
    fail(format!(
        "threads are left: {threads:?}, and connections: {connections:?}"
    ));
}

fn manager(process: usize, number: usize, program: &Program, plan: &Plan) -> LockManager {
    let (response, lost) = (millis(program.response), program.on_lost);
    let builder = plan
        .engine
        .builder()
        .response_timeout(response)
        .connect_timeout(response * 2);
    let builder = builder
        .client_tracking(program.tracks)
        .pool_size(program.pool)
        .fenced(plan.fenced);
    let builder = builder
        .reclaim_dead(program.reclaims)
        .tolerate_outage(millis(program.outage));
    let builder = builder
        .local_handoff(millis(program.handoff))
        .poll_every(millis(program.polls));
    let mut builder = builder.lease(millis(program.lease)).renew(program.renews);
    if let Some(limit) = program.waits {
        builder = builder.wait(millis(limit));
    }
    if let Some(limit) = program.warns {
        builder = builder.warn_after(millis(limit), millis(limit * 2));
    }
    let on_lost = move |it: &crate::LostLock| {
        trace(|| format!("on_lost: {it:?}"));
        judge::told(process, number, it.key[1..].parse().expect("a key"));
        match lost {
            OnLost::Returns => {}
            OnLost::Blocks => thread::sleep(millis(300)),
            OnLost::Panics => panic::resume_unwind(Box::new("a panic of the program")),
        }
    };
    builder
        .on_lost(on_lost)
        .build_lazily()
        .expect("options that can work")
}

pub(crate) fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The life of a process.
fn live(process: usize, program: Program, plan: Arc<Plan>) {
    let managers = (0..program.managers)
        .map(|number| manager(process, number, &program, &plan))
        .collect();
    let threads = program.threads.clone();
    let (tells, news) = mpsc::channel();
    let player = Arc::new(Player {
        process,
        program,
        managers,
        stop: StopHandle::new(),
        plan,
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
        thread::Builder::new()
            .name(format!("{process}.{number}"))
            .spawn(run)
            .expect("a thread");
    }
    while running > 0 {
        match news.recv().expect("a sender is here") {
            News::Left => thread::sleep(millis(20)), // Another thread may take it meanwhile.
            News::Ended => running -= 1,
        }
        while let Some(left) = take_left(process) {
            player.attach(left);
        }
    }
    judge::is_at_its_end(process);
    ends(&player);
}

/// All threads of the process have ended, but for those that watch a hold.
fn ends(player: &Player) {
    let Player {
        process,
        program,
        managers,
        plan,
        ..
    } = player;
    for (number, manager) in managers.iter().enumerate() {
        let none_left = || manager.held().iter().all(|held| held.lost.is_some());
        let began = now();
        let is_it_free = || comes_true(millis(program.lease * 2 + 2_000), none_left);
        // A pause may take all of that time.
        let is_free = is_it_free() || judge::was_paused(*process, began) && is_it_free();
        // A thread of which only the end is left may give up meanwhile what it has lost.
        let (held, stats, then) = (manager.held(), manager.stats(), manager.held());
        let is_counted = stats.held == held.len() as u64 || held.len() != then.len();
        let waiting = manager.waiting();
        if !is_free || !is_counted || stats.waiting != 0 || !waiting.is_empty() {
            fail(format!("at the end: {held:?}, {waiting:?}, {stats:?}"));
        }
        let told = || (0..plan.keys).try_for_each(|key| judge::all_told(*process, number, key));
        comes_true(millis(10_000), || told().is_ok());
        told().unwrap_or_else(fail);
    }
}

/// A thread waits until little is left of a hold.
pub(crate) fn watch_risk(process: usize, number: usize, watch: LockWatch, left: Duration) {
    let run = move || {
        let began = now();
        let was = watch.remaining();
        let told = watch.wait_at_risk(left);
        trace(|| format!("wait_at_risk: {told:?}"));
        let lost = watch.wait_lost(Duration::ZERO).is_some();
        let hold = judge::hold(number);
        let is_excused = ledger::stalls()
            || judge::was_paused(process, began)
            || hold.deal.shortened
            // The server's clock has stepped, and `verify` may have told (seed 930185670).
            || judge::was_removed(hold.key, hold.began);
        match told {
            None if lost => fail("wait_at_risk says that a lost hold was released"),
            Some(told) if told > left => fail(format!("{told:?} are left, more than {left:?}")),
            Some(Duration::ZERO) if !lost => fail("wait_at_risk says that a hold is lost"),
            // It may have been at risk before.
            Some(told) if !told.is_zero() && told + millis(50) < left.min(was) && !is_excused => {
                fail(format!("{told:?} are left, and {left:?} were asked for"));
            }
            _ => {}
        }
    };
    let _ = thread::Builder::new().name("at risk".to_owned()).spawn(run);
}

/// A thread waits for the loss of a hold.
pub(crate) fn watch_loss(process: usize, number: usize, watch: LockWatch, limit: Duration) {
    let run = move || {
        let began = now();
        let cause = watch.wait_lost(limit);
        trace(|| format!("wait_lost: {cause:?}"));
        let took = Duration::from_nanos(now() - began);
        let is_excused = ledger::stalls() || judge::was_paused(process, began);
        if took > limit + limit / 100 + millis(2) && !is_excused {
            fail(format!(
                "wait_lost took {took:?}, with a limit of {limit:?}"
            ));
        }
        if cause.is_some() && !judge::may_be_lost(number) {
            fail(format!(
                "no reason for the loss of hold {number}: {cause:?}"
            ));
        }
    };
    let _ = thread::Builder::new().name("loss".to_owned()).spawn(run);
}

/// The keys of locks at the server. (No scene has more.)
static PATHS: LazyLock<Vec<String>> =
    LazyLock::new(|| (0..40).map(|key| format!("lock:k{key}")).collect());

/// The name of a lock.
pub(crate) fn name(key: usize) -> &'static str {
    &PATHS[key]["lock:".len()..]
}

/// The key of a lock at the server.
pub(crate) fn path(key: usize) -> &'static [u8] {
    PATHS[key].as_bytes()
}
