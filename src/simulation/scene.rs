//! Plays the scene of a seed.

use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::scheduler::{self, fail, later, now, thread, trace};
use crate::simulation::engine::{Engine, Servers};
use crate::simulation::judge;
use crate::simulation::plan::{End, How, Op, Plan, Program, Under};
use crate::{Error, LockGuard, LockManager};

/// A scene that takes longer than this hangs.
const LONGEST: Duration = Duration::from_secs(1_000);

/// A process that plays its part.
struct Player {
    process: usize,
    program: Program,
    locks: LockManager,
    plan: Arc<Plan>,
}

pub(super) fn play(plan: &Arc<Plan>) {
    judge::begin(plan.keys);
    let done: Arc<Mutex<Vec<usize>>> = Arc::default();
    let servers = Rc::new(Servers::start(plan.engine));
    let mut alive = Vec::new();
    for program in &plan.processes {
        let process = scheduler::process(program.drift);
        alive.push(process);
        let (program, plan, done) = (program.clone(), Arc::clone(plan), Arc::clone(&done));
        let main = move || {
            let locks = manager(&program, plan.engine);
            run(&Arc::new(Player { process, program, locks, plan }));
            done.lock().push(process);
        };
        let thread = thread::Builder::new().name(format!("main{process}")).process(process);
        thread.spawn(main).expect("a thread");
    }
    for (at, fault) in plan.faults.clone() {
        let (servers, alive, keys) = (Rc::clone(&servers), alive.clone(), plan.keys);
        later(millis(at), move || fault.happens(&servers, &alive, keys));
    }
    let began = now();
    let lives = |process: &&usize| !judge::is_dead(**process);
    while alive.iter().filter(lives).any(|process| !done.lock().contains(process)) {
        let elapsed = Duration::from_nanos(now() - began);
        thread::sleep(millis(1) + elapsed / 8);
        if elapsed > LONGEST {
            fail(format!("the scene hangs: {:?}", scheduler::threads_left()));
        }
    }
    until_no_thread_is_left();
    scheduler::end();
}

/// A thread that connects ends when that has taken its time.
fn until_no_thread_is_left() {
    for time in 0..150 {
        if scheduler::threads_left().is_empty() {
            return;
        }
        thread::sleep(millis(time));
    }
    fail(format!("threads are left: {:?}", scheduler::threads_left()));
}

fn manager(program: &Program, engine: Engine) -> LockManager {
    let builder = engine.builder().response_timeout(program.response).connect_timeout(program.response * 2);
    let builder = builder.client_tracking(program.tracks).pool_size(program.pool);
    let built = builder.lease(program.lease).renew(program.renews).build_unchecked();
    built.expect("options that can work")
}

/// What a call has returned, for the trace.
fn tells<T: std::fmt::Debug>(what: &str, result: &Result<T, Error>) {
    trace(|| format!("{what}: {result:?}"));
}

fn millis(count: u64) -> Duration {
    Duration::from_millis(count)
}

/// The threads of a process.
fn run(player: &Arc<Player>) {
    let threads: Vec<_> = player.program.threads.clone();
    let threads = threads.into_iter().enumerate().map(|(number, ops)| {
        let player = Arc::clone(player);
        let thread = thread::Builder::new().name(format!("{}.{number}", player.process));
        thread.spawn(move || ops.iter().for_each(|op| player.op(op))).expect("a thread")
    });
    for thread in threads.collect::<Vec<_>>() {
        let _ = thread.join();
    }
}

impl Player {
    fn op(&self, op: &Op) {
        trace(|| format!("{op:?}"));
        match op {
            Op::Sleep(time) => thread::sleep(millis(*time)),
            Op::Lock { key, how, under, end } => self.lock(*key, *how, under, *end),
            Op::Several { keys, how, millis } => self.several(keys, *how, *millis),
            Op::ForceUnlock(key) => self.force_unlock(*key),
            Op::Holder(key) => tells("holder", &self.locks.named(name(*key)).holder()),
        }
    }

    /// The command may arrive long after the call has returned.
    fn force_unlock(&self, key: usize) {
        judge::removed(key, u64::MAX);
        tells("force_unlock", &self.locks.named(name(key)).force_unlock());
    }

    fn lock(&self, key: usize, how: How, under: &[Under], end: End) {
        let began = now();
        let taken = match how {
            How::Lock => self.locks.lock(name(key)).map(Some),
            How::Try => self.locks.try_lock(name(key)),
            How::For(limit) => self.locks.try_lock_for(name(key), millis(limit)),
        };
        trace(|| format!("{how:?} {key}: {}", outcome(&taken)));
        if let How::For(limit) = how {
            judge::in_time(self.process, began, millis(limit), self.late(), "try_lock_for");
        }
        let Ok(Some(guard)) = taken else { return };
        let number = judge::taken(self.process, key, began, &guard);
        for under in under {
            self.under(key, &guard, under);
        }
        give_back(guard, number, end);
    }

    /// How much later than its limit a call may return.
    fn late(&self) -> Duration {
        match self.plan.engine {
            _ if self.plan.order.stalls > 0 => LONGEST,
            Engine::Memory => millis(2),
            Engine::Server => self.program.response * 3 + millis(2),
        }
    }

    fn under(&self, key: usize, guard: &LockGuard, under: &Under) {
        match under {
            Under::Work(time) => thread::sleep(millis(*time)),
            Under::Extend => tells("extend", &guard.extend()),
            Under::Confirm(span) => tells("confirm", &guard.confirm(millis(*span))),
            Under::Verify => tells("verify", &guard.verify()),
            Under::Inner(op) => self.op(op),
        }
        if guard.is_valid() {
            judge::nobody_else(key);
        }
    }

    fn several(&self, keys: &[usize], how: How, time: u64) {
        let names: Vec<_> = keys.iter().map(|key| name(*key)).collect();
        let began = now();
        let taken = match how {
            How::Lock => self.locks.lock_all(&names).map(Some),
            How::Try => self.locks.try_lock_all(&names),
            How::For(limit) => self.locks.try_lock_all_for(&names, millis(limit)),
        };
        trace(|| format!("{how:?} {keys:?}: {:?}", taken.as_ref().map(Option::is_some)));
        if let How::For(limit) = how {
            judge::in_time(self.process, began, millis(limit), self.late(), "try_lock_all_for");
        }
        let Ok(Some(guard)) = taken else { return };
        thread::sleep(millis(time));
        tells("unlock several", &guard.unlock());
    }
}

/// The thread's last act under the lock.
fn give_back(guard: LockGuard, number: u64, end: End) {
    match end {
        End::Unlock => tells("unlock", &guard.unlock()),
        End::Drop => drop(guard),
        End::Panic => {
            let _ = panic::catch_unwind(AssertUnwindSafe(|| {
                let _guard = guard;
                panic::resume_unwind(Box::new("a panic of the program"));
            }));
        }
        End::Detach => match guard.detach() {
            Err(error) => trace(|| format!("detach: {error}")),
            Ok(hold) => {
                let attaches = move || {
                    let given_back = hold.attach().and_then(LockGuard::unlock);
                    trace(|| format!("attached: {given_back:?}"));
                };
                let _ = thread::spawn(attaches).join();
            }
        },
    }
    judge::ends(number);
}

fn outcome(taken: &Result<Option<LockGuard>, Error>) -> String {
    match taken {
        Ok(Some(_)) => "taken".to_owned(),
        Ok(None) => "busy".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

/// The name of a lock.
pub(super) fn name(key: usize) -> String {
    format!("k{key}")
}
