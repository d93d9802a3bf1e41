//! Runs threads in thousands of orders, in virtual time, all by a seed: for unit tests.
//!
//! Inside of a run, the tools of [`sync`](crate::base::sync) are those of this module. Each of them
//! lets another thread run before an operation that other threads can see. All threads of a run are
//! tasks of shuttle on one system thread, so one world is the state of a run. Outside of a run, the
//! tools behave as the real ones.
//!
//! The clock advances by a little at each step, and to the next timer when no thread can run. Now
//! and then it advances to the next timer though threads can run: they were slow. Since a thread
//! that waits is known here, and not to shuttle, the order is decided here alone.

mod link;
pub(crate) mod mpsc;
mod network;
mod process;
mod slots;
mod threads;
mod tools;

/// Thread-locals. Inside of a run, each thread of the run has its own.
macro_rules! per_thread {
    ($($(#[$attribute:meta])* static $name:ident: $type:ty = $new:expr;)*) => {$(
        $(#[$attribute])*
        static $name: $crate::base::sync::Local<$type> = {
            std::thread_local! { static REAL: $type = $new; }
            $crate::base::sync::Local::new(&REAL, || $new)
        };
    )*};
}
pub(crate) use per_thread;

use std::cell::RefCell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::rc::Rc;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use scheduled_thread_pool::ScheduledThreadPool;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

pub(crate) use link::{add_address, change_link, lose_all, readdress, reset_all};
use network::Network;
pub(crate) use network::{Answerer, Socket, close, connect, listen, open_connections, resolve, send};
use process::Process;
pub(crate) use process::{PerProcess, id, is_dead, kill, pause, power_off, process};
pub(crate) use slots::{Slot, SlotPool};
pub(crate) use threads::{Local, thread};
pub(crate) use tools::{Condvar, Mutex, MutexGuard, atomic};

/// The clock's time when a run begins, in nanoseconds.
pub(crate) const START: u64 = 1_000_000_000_000;

/// How far a step advances the clock at most.
const STEP: u64 = 200;

/// How far the clock advances when a thread yields.
const YIELD: u64 = 20_000;

/// Whoever takes more steps than this runs for ever.
const MOST_STEPS: usize = 2_000_000;

/// Nobody wakes from a longer wait. (A stall must not get to its end.)
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

/// A thread's stack, in bytes.
const STACK: usize = 256 << 10;

/// How the threads of a run are ordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// Another thread may run at one of so many steps.
    pub(crate) switches: u32,
    /// All threads are slow, so that a timer comes first, at one of so many switches. Zero: never.
    pub(crate) stalls: u32,
    /// A wait with a longer timeout than this never ends by itself. So a lost wake-up shows as a
    /// deadlock, even if outside of these tests the timeout would end the wait.
    pub(crate) longest: Duration,
}

/// The state of a run.
struct World {
    seed: u64,
    order: Order,
    now: u64,
    chance: SmallRng,
    tasks: Vec<State>,
    /// Those that can run now.
    awake: Vec<usize>,
    running: usize,
    timers: BinaryHeap<Reverse<Timer>>,
    timers_set: u64,
    processes: Vec<Process>,
    network: Network,
    steps: u64,
    /// No other thread runs meanwhile.
    is_alone: bool,
    is_over: bool,
    failure: Option<String>,
    trace: Trace,
    /// As whom [`as_process`] acts, one for each process.
    ghosts: Vec<State>,
}

/// From this number on, a task is a ghost.
const GHOST: usize = usize::MAX / 2;

/// A thread, as the scheduler sees it.
#[derive(Default)]
struct State {
    /// What it waits for.
    waits: Option<&'static str>,
    has_ended: bool,
    /// Grows with each wait, so that a timer of an earlier wait wakes nobody.
    wait: u64,
    process: usize,
    name: String,
    locals: threads::Locals,
}

struct Timer {
    due: u64,
    number: u64,
    what: Due,
}

enum Due {
    Wake { task: usize, wait: u64 },
    Call(Box<dyn FnOnce()>),
}

impl PartialEq for Timer {
    fn eq(&self, other: &Timer) -> bool {
        self.number == other.number
    }
}

impl Eq for Timer {}

impl PartialOrd for Timer {
    fn partial_cmp(&self, other: &Timer) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Timer {
    fn cmp(&self, other: &Timer) -> std::cmp::Ordering {
        (self.due, self.number).cmp(&(other.due, other.number))
    }
}

/// What happened in a run: a hash of it in each run, the text if somebody will read it.
#[derive(Default)]
struct Trace {
    hash: DefaultHasher,
    text: Option<String>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Whether runs of this system thread keep their text.
    static KEEPS_TEXT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Calls `f` with the world. `None` outside of a run.
fn world<T>(f: impl FnOnce(&mut World) -> T) -> Option<T> {
    // After a run, its leftovers see the real tools again. (A call within `f` panics.)
    WORLD.try_with(|it| it.borrow_mut().as_mut().filter(|it| !it.is_over).map(f)).ok().flatten()
}

/// True inside of a run.
pub(crate) fn inside() -> bool {
    world(|_| ()).is_some()
}

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
    /// How much time passed inside.
    pub(crate) took: Duration,
}

/// Runs `events` once for each seed, and calls `ended` after each run. Ends after the first run that
/// fails.
pub(crate) fn run(
    seeds: Range<u64>,
    order: impl Fn(u64) -> Order + 'static,
    events: impl Fn(u64) + Send + Sync + 'static,
    ended: impl FnMut(Ended) + 'static,
) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK;
    config.failure_persistence = shuttle::FailurePersistence::None;
    config.max_steps = shuttle::MaxSteps::FailAfter(MOST_STEPS);
    config.silence_warnings = true;
    let ended = Rc::new(RefCell::new(ended));
    let report = Rc::clone(&ended);
    let seeded = Seeded { seeds, order: Box::new(order), ended: Box::new(move |it| report.borrow_mut()(it)) };
    let main = move || {
        let seed = world(|world| world.seed).expect("inside");
        events(seed);
        threads::end_of_thread();
    };
    let panicked = panic::catch_unwind(AssertUnwindSafe(|| shuttle::Runner::new(seeded, config).run(main)));
    if let Err(payload) = panicked
        && let Some(world) = WORLD.take()
    {
        let text = payload.downcast_ref::<String>().cloned();
        let text = text.or_else(|| payload.downcast_ref::<&str>().map(ToString::to_string));
        ended.borrow_mut()(world.ended(text));
    }
}

/// Runs `events` in `times` orders, in which a wait of up to `longest` may end at each step, and a
/// longer one never ends by itself.
pub(crate) fn in_many_orders(times: usize, longest: Duration, events: impl Fn() + Send + Sync + 'static) {
    in_orders(times, 8, longest, events);
}

/// The same, with a stall at one of `stalls` switches.
pub(crate) fn in_orders(
    times: usize,
    stalls: u32,
    longest: Duration,
    events: impl Fn() + Send + Sync + 'static,
) {
    let order = move |seed| Order { switches: if seed % 2 == 0 { 1 } else { 4 }, stalls, longest };
    run(
        0..times as u64,
        order,
        move |_| events(),
        |ended| {
            assert!(ended.failure.is_none(), "seed {}: {}", ended.seed, ended.failure.unwrap_or_default());
        },
    );
}

/// For managers of a run, whose pools use no threads of r2d2.
pub(crate) static UNUSED: LazyLock<Arc<ScheduledThreadPool>> = LazyLock::new(|| {
    let name = "unused-{}";
    Arc::new(ScheduledThreadPool::builder().num_threads(1).thread_name_pattern(name).build())
});

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
        loop {
            // A call may be anything but a use of shuttle, so the world is not borrowed meanwhile.
            match world(|world| world.next(can_run))? {
                Next::Task(task) => return Some(TaskId::from(task)),
                Next::Call(call) => call(),
                Next::Nobody => return None,
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        random()
    }
}

enum Next {
    Task(usize),
    Call(Box<dyn FnOnce()>),
    Nobody,
}

impl World {
    fn new(seed: u64, order: Order) -> World {
        World {
            seed,
            order,
            now: START,
            chance: SmallRng::seed_from_u64(seed),
            tasks: Vec::new(),
            awake: Vec::new(),
            running: 0,
            timers: BinaryHeap::new(),
            timers_set: 0,
            processes: vec![Process::first()],
            network: Network::default(),
            steps: 0,
            is_alone: false,
            ghosts: Vec::new(),
            is_over: false,
            failure: None,
            trace: Trace { hash: DefaultHasher::new(), text: KEEPS_TEXT.get().then(String::new) },
        }
    }

    fn ended(mut self, panic: Option<String>) -> Ended {
        // What killed threads leave must not be dropped: a guard's drop would release its lock.
        self.tasks.drain(..).for_each(std::mem::forget);
        Ended {
            seed: self.seed,
            failure: panic.or(self.failure),
            hash: self.trace.hash.finish(),
            text: self.trace.text,
            steps: self.steps,
            took: Duration::from_nanos(self.now - START),
        }
    }

    /// What happens next. Time passes only here, and in steps.
    fn next(&mut self, can_run: &[&Task]) -> Next {
        let mut stall = self.order.stalls > 0 && self.chance.random_ratio(1, self.order.stalls);
        loop {
            while self.timers.peek().is_some_and(|Reverse(timer)| timer.due <= self.now) {
                let Some(Reverse(timer)) = self.timers.pop() else { unreachable!("it was seen") };
                match timer.what {
                    Due::Call(call) => return Next::Call(call),
                    Due::Wake { task, wait } => self.wake(task, wait),
                }
            }
            self.awake.clear();
            for task in can_run {
                let task = usize::from(task.id());
                if self.can_run(task) {
                    self.awake.push(task);
                }
            }
            if !self.awake.is_empty() && !std::mem::take(&mut stall) {
                let task = self.awake[self.chance.random_range(0..self.awake.len())];
                self.running = task;
                self.trace.hash.write_usize(task);
                return Next::Task(task);
            }
            match self.timers.peek() {
                Some(Reverse(timer)) => self.now = timer.due,
                None if self.awake.is_empty() => {
                    self.failure = Some(self.describe_deadlock());
                    self.is_over = true;
                    return Next::Nobody;
                }
                None => {}
            }
        }
    }

    /// True if there is more to do now than what the running thread does. (To switch costs more than
    /// this.)
    fn has_more_to_do(&self) -> bool {
        let (running, now) = (self.running, self.now);
        let is_due = self.timers.peek().is_some_and(|Reverse(timer)| timer.due <= now);
        is_due
            || self.order.stalls > 0
            || (0..self.tasks.len())
                .any(|task| task != running && !self.tasks[task].has_ended && self.can_run(task))
    }

    fn can_run(&self, task: usize) -> bool {
        // What shuttle has begun without a call of [`thread`] is of the first process.
        self.tasks
            .get(task)
            .is_none_or(|state| state.waits.is_none() && self.processes[state.process].can_run(self.now))
    }

    /// The state of a task, which shuttle may have begun without a call of [`thread`].
    fn state(&mut self, task: usize) -> &mut State {
        if let Some(process) = task.checked_sub(GHOST) {
            while self.ghosts.len() <= process {
                self.ghosts.push(State { process: self.ghosts.len(), ..State::default() });
            }
            return &mut self.ghosts[process];
        }
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, State::default);
        }
        &mut self.tasks[task]
    }

    fn wake(&mut self, task: usize, wait: u64) {
        let state = self.state(task);
        if state.wait == wait {
            state.waits = None;
        }
    }

    fn set_timer(&mut self, due: u64, what: Due) {
        self.timers_set += 1;
        self.timers.push(Reverse(Timer { due, number: self.timers_set, what }));
    }

    fn describe_deadlock(&self) -> String {
        let mut text = "nothing happens any more".to_owned();
        for (number, task) in self.tasks.iter().enumerate() {
            if let Some(waits) = task.waits {
                let _ = write!(text, "; thread {number} {:?} waits for {waits}", task.name);
            }
        }
        text
    }
}

/// Fails the run, and ends it. Returns only if this is not the thread of a run.
pub(crate) fn fail(why: impl Into<String>) {
    has_failed(why);
    shuttle::thread::yield_now();
}

/// Fails the run, also out of a call that no thread makes. The run ends at the next step.
pub(crate) fn has_failed(why: impl Into<String>) {
    world(|world| {
        world.failure = Some(why.into());
        world.is_over = true;
    });
}

/// Ends the run, whatever threads are left.
pub(crate) fn end() {
    world(|world| world.is_over = true);
    shuttle::thread::yield_now();
}

/// Writes what happens into the run's trace.
pub(crate) fn trace(what: impl FnOnce() -> String) {
    world(|world| {
        if let Some(text) = &mut world.trace.text {
            let now = world.now - START;
            let task = &world.tasks.get(world.running);
            let name = task.map_or("", |task| &task.name);
            let _ = writeln!(
                text,
                "{:>5}.{:06} s  {:>2} {name:<18} {}",
                now / 1_000_000_000,
                now / 1_000 % 1_000_000,
                world.running,
                what()
            );
        }
    });
}

/// Whether the runs that this system thread begins keep the text of their traces.
pub(crate) fn keep_text(keeps: bool) {
    KEEPS_TEXT.set(keeps);
}

/// The clock's time inside of a run, as the process of the thread reads it. `None` outside.
pub(crate) fn time() -> Option<u64> {
    world(|world| {
        world.now += world.chance.random_range(1..STEP);
        let process = world.state(world.running).process;
        world.processes[process].clock(world.now)
    })
}

/// The true time of a run. Zero outside.
pub(crate) fn now() -> u64 {
    world(|world| world.now).unwrap_or_default()
}

/// How many steps the run has taken.
pub(crate) fn steps() -> u64 {
    world(|world| world.steps).unwrap_or_default()
}

/// Advances the clock: the thread works.
pub(crate) fn advance(span: Duration) {
    world(|world| world.now += u64::try_from(span.as_nanos()).expect("a short time"));
}

/// Lets another thread run, perhaps.
pub(crate) fn step() {
    let switches = world(|world| {
        world.steps += 1;
        world.now += world.chance.random_range(1..STEP);
        !world.is_alone && world.chance.random_ratio(1, world.order.switches) && world.has_more_to_do()
    });
    if switches == Some(true) {
        shuttle::thread::yield_now();
    }
}

/// The thread waits until another one calls [`wake`], or for `span`, as its process counts time.
fn wait(what: &'static str, span: Option<Duration>) {
    world(|world| {
        let (now, running) = (world.now, world.running);
        let state = world.state(running);
        state.wait += 1;
        state.waits = Some(what);
        let (wait, process) = (state.wait, state.process);
        if let Some(span) = span.filter(|span| *span <= world.order.longest.min(FOR_EVER)) {
            let span = world.processes[process].true_span(span);
            world.set_timer(now.saturating_add(span), Due::Wake { task: running, wait });
        }
    });
    shuttle::thread::yield_now();
}

/// Wakes a thread that waits.
fn wake(task: usize) {
    world(|world| {
        let wait = world.state(task).wait;
        world.wake(task, wait);
    });
}

/// Calls `f` as if a thread of that process did, while no other thread runs: to judge.
pub(crate) fn as_process<T>(process: usize, f: impl FnOnce() -> T) -> T {
    let before = world(|world| {
        world.is_alone = true;
        std::mem::replace(&mut world.running, GHOST + process)
    });
    let result = f();
    world(|world| {
        world.is_alone = false;
        world.running = before.expect("inside");
    });
    result
}

/// The names of the threads that have not ended, but for this one and those of dead processes.
pub(crate) fn threads_left() -> Vec<String> {
    world(|world| {
        let is_left = |(number, task): &(usize, &State)| {
            *number != world.running && !task.has_ended && !world.processes[task.process].is_dead()
        };
        let left = world.tasks.iter().enumerate().filter(is_left);
        left.map(|(number, task)| format!("{number} {}, {}", task.name, task.waits.unwrap_or("runs")))
            .collect()
    })
    .unwrap_or_default()
}

/// The number of the thread that runs. `None` outside.
fn running() -> Option<usize> {
    world(|world| world.running)
}

/// Calls `call` later, outside of any thread: it must not use the tools of threads.
pub(crate) fn later(span: Duration, call: impl FnOnce() + 'static) {
    world(|world| {
        let due = world.now.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        world.set_timer(due, Due::Call(Box::new(call)));
    });
}

/// A random number of the run.
pub(crate) fn random() -> u64 {
    world(|world| world.chance.random()).expect("inside of a run")
}

/// A random number below `n`.
pub(crate) fn below(n: u64) -> u64 {
    world(|world| world.chance.random_range(0..n)).expect("inside of a run")
}

/// True one time in `n`.
pub(crate) fn one_in(n: u32) -> bool {
    below(u64::from(n)) == 0
}

/// The number of the thread that runs, as a token has it. `None` outside.
pub(crate) fn thread_number() -> Option<u64> {
    running().map(|task| task as u64 + 1)
}

pub(crate) mod this_process {
    pub(crate) fn id() -> u32 {
        super::id().map_or_else(std::process::id, |(pid, _)| pid)
    }
}
