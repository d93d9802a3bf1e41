//! Runs: one for each seed, one after the other.

use std::cell::RefCell;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use std::{env, thread};

use parking_lot::{Condvar, Mutex};
use scheduled_thread_pool::ScheduledThreadPool;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::order::Next;
use super::{Order, WORLD, World, random, threads, world};

/// A thread's stack, in bytes.
const STACK: usize = 256 << 10;

/// What a run ended with.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) seed: u64,
    /// Why the run failed.
    pub(crate) failure: Option<String>,
    /// The same for two runs in which the same things happened.
    pub(crate) hash: u64,
    pub(crate) text: Option<String>,
    pub(crate) steps: u64,
    /// How much simulated time passed during the run.
    pub(crate) took: Duration,
}

/// How many orders a test plays out of this many: a sixth, and at least three. With the variable
/// `RELATCH_NIGHT`, all of them.
pub(crate) fn orders(times: u64) -> u64 {
    if env::var_os("RELATCH_NIGHT").is_some() {
        times
    } else {
        times.min(3).max(times / 6)
    }
}

/// As many runs at a time as the machine has cores: libtest starts more tests, since most of them
/// wait for a server.
static CORES: LazyLock<Cores> = LazyLock::new(|| Cores {
    free: Mutex::new(thread::available_parallelism().map_or(1, usize::from)),
    freed: Condvar::new(),
});

struct Cores {
    free: Mutex<usize>,
    freed: Condvar,
}

/// One core of [`CORES`], until this is dropped.
struct Core;

impl Core {
    fn wait() -> Core {
        let mut free = CORES.free.lock();
        CORES.freed.wait_while(&mut free, |free| *free == 0);
        *free -= 1;
        Core
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        *CORES.free.lock() += 1;
        CORES.freed.notify_one();
    }
}

/// Runs `events` once for each seed, and calls `ended` after each run. Ends after the first run
/// that fails.
pub(crate) fn run(
    seeds: Range<u64>,
    order: impl Fn(u64) -> Order + 'static,
    events: impl Fn(u64) + Send + Sync + 'static,
    ended: impl FnMut(Ended) + 'static,
) {
    let _core = Core::wait();
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::None; // The world counts its own.
    config.silence_warnings = true;
    let ended = Rc::new(RefCell::new(ended));
    let report = Rc::clone(&ended);
    let seeded = Seeded {
        seeds,
        order: Box::new(order),
        ended: Box::new(move |it| report.borrow_mut()(it)),
    };
    let main = move || {
        let seed = world(|world| world.seed).expect("inside");
        events(seed);
        threads::end_of_thread();
        world(|world| world.state(world.running).has_ended = true);
    };
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| {
        shuttle::Runner::new(seeded, config).run(main)
    }));
    let Err(payload) = panicked else { return };
    // Without a world, the run had ended, and `ended` itself has panicked.
    let Some(world) = WORLD.take() else {
        panic::resume_unwind(payload)
    };
    let text = payload.downcast_ref::<String>().cloned();
    let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
    ended.borrow_mut()(world.ended(text));
}

/// Runs `events` in `times` orders, in which a wait of up to `longest` may end at each step, and a
/// longer one never ends by itself.
pub(crate) fn in_many_orders(
    times: usize,
    longest: Duration,
    events: impl Fn() + Send + Sync + 'static,
) {
    in_orders(times, 8, longest, events);
}

/// The same, with a stall at one of `stalls` switches.
pub(crate) fn in_orders(
    times: usize,
    stalls: u32,
    longest: Duration,
    events: impl Fn() + Send + Sync + 'static,
) {
    let order = move |seed| Order {
        switches: if seed % 2 == 0 { 1 } else { 4 },
        stalls,
        longest,
    };
    run(
        0..orders(times as u64),
        order,
        move |_| events(),
        |ended| {
            assert!(
                ended.failure.is_none(),
                "seed {}: {}",
                ended.seed,
                ended.failure.unwrap_or_default()
            );
        },
    );
}

/// For managers in a run, whose pools use none of r2d2's threads.
pub(crate) static UNUSED: LazyLock<Arc<ScheduledThreadPool>> = LazyLock::new(|| {
    let name = "unused-{}";
    Arc::new(
        ScheduledThreadPool::builder()
            .num_threads(1)
            .thread_name_pattern(name)
            .build(),
    )
});

/// The task that runs next, of those that shuttle knows, if they are given. `None`: the run is
/// over.
pub(super) fn next(known: Option<&[&Task]>) -> Option<usize> {
    loop {
        // A call may be anything but a use of shuttle, so the world is not borrowed meanwhile.
        match world(|world| world.next(known))? {
            Next::Task(task) => return Some(task),
            Next::Call(call) => call(),
            Next::Nobody => return None,
        }
    }
}

struct Seeded {
    seeds: Range<u64>,
    order: Box<dyn Fn(u64) -> Order>,
    ended: Box<dyn FnMut(Ended)>,
}

impl Scheduler for Seeded {
    fn new_execution(&mut self) -> Option<Schedule> {
        if let Some(world) = WORLD.take() {
            let ended = world.ended(None);
            let failed = ended.failure.is_some();
            (self.ended)(ended);
            if failed {
                return None;
            }
        }
        let seed = self.seeds.next()?;
        WORLD.set(Some(World::new(seed, (self.order)(seed))));
        Some(Schedule::new(seed))
    }

    fn next_task(&mut self, can_run: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        let Some(chosen) = world(|world| world.chosen.take()) else {
            // The run is over. Its first thread returns, so that the next run has its stack.
            let first = can_run.first().map(|task| task.id())?;
            let fails = |world: &World| world.failure.is_some();
            let has_failed = WORLD.with_borrow(|world| world.as_ref().is_some_and(fails));
            return (!has_failed && usize::from(first) == 0).then_some(first);
        };
        chosen.or_else(|| next(Some(can_run))).map(TaskId::from)
    }

    fn next_u64(&mut self) -> u64 {
        random()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::scheduler::{fail, thread};
    use crate::base::sync::{Condvar, Mutex};

    #[test]
    #[should_panic(expected = "told")]
    fn a_run_that_is_told_to_fail_fails() {
        in_many_orders(1, Duration::MAX, || fail("told"));
    }

    #[test]
    #[should_panic(expected = "nothing happens any more")]
    fn a_run_in_which_a_thread_waits_for_ever_fails() {
        in_many_orders(1, Duration::MAX, || {
            let waits = || Condvar::new().wait(&mut Mutex::new(()).lock());
            thread::spawn(waits).join().expect("no panic");
        });
    }
}
