//! Runs threads in thousands of orders, in virtual time, all by a seed: for unit tests.
//!
//! Inside a run, the tools of [`sync`](crate::base::sync) are those of this module. Each of them
//! lets another thread run before an operation that other threads can see. All threads of a run are
//! shuttle's tasks on one system thread, so a run's state is a single world. Outside a run, the
//! tools behave like the real ones.
//!
//! The clock advances by a little at each step, and to the next timer when no thread can run. Now
//! and then it advances to the next timer even though threads can run, as if they were slow. Since
//! only this module, and not shuttle, knows which threads wait, it alone decides the order.

mod carrying;
mod link;
pub(crate) mod mpsc;
mod network;
mod order;
mod process;
mod runs;
pub(crate) mod seeded_bugs;
mod slots;
mod threads;
mod tools;

/// Thread-locals. Inside a run, each thread of the run has its own.
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
use std::time::Duration;

use rand::RngExt;
use rand::distr::{Bernoulli, Distribution};
use rand::rngs::SmallRng;

pub(crate) use link::{add_address, change_link, lose_all, readdress, reset_all};
use network::Network;
pub(crate) use network::{
    Answerer, Socket, close, connect, listen, open_connections, resolve, send,
};
use order::Due;
use process::Process;
pub(crate) use process::{PerProcess, id, is_dead, kill, pause, process};
pub(crate) use runs::{Ended, UNUSED, in_many_orders, in_orders, orders, run};
pub(crate) use slots::{Slot, SlotPool};
pub(crate) use threads::{Local, thread};
pub(crate) use tools::{Condvar, Mutex, MutexGuard, atomic};

/// A map has the same order in each run with the same seed.
pub(crate) type Hash = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

/// The clock's time when a run begins, in nanoseconds.
pub(crate) const START: u64 = 1_000_000_000_000;

/// How far the clock advances when a thread yields.
const YIELD: u64 = 20_000;

/// Nobody wakes from a longer wait. (A stall must not reach its end.)
const FOR_EVER: Duration = Duration::from_secs(1_000_000);

/// How the threads of a run are ordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// Another thread may run at one in this many steps.
    pub(crate) switches: u32,
    /// All threads are slow, so that a timer comes first, at one in this many switches. Zero:
    /// never.
    pub(crate) stalls: u32,
    /// A wait with a longer timeout than this never ends by itself. So a lost wake-up shows up as a
    /// deadlock, even if the timeout would end the wait outside these tests.
    pub(crate) longest: Duration,
}

/// The state of a run.
struct World {
    seed: u64,
    order: Order,
    now: u64,
    chance: SmallRng,
    /// Whether another thread may run: see [`Order`].
    switches: Bernoulli,
    tasks: Vec<State>,
    /// The tasks that wait for nothing. Their process may be paused.
    awake: Vec<usize>,
    running: usize,
    /// The task that shuttle has to run next.
    chosen: Option<usize>,
    /// When each timer is due, and its place in `dues`.
    timers: BinaryHeap<Reverse<(u64, usize)>>,
    /// `None`: it was done.
    dues: Vec<Option<Due>>,
    processes: Vec<Process>,
    network: Network,
    steps: u64,
    /// No other thread runs meanwhile.
    is_alone: bool,
    is_over: bool,
    failure: Option<String>,
    trace: Trace,
    /// The tasks as which [`as_process`] acts, one for each process.
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

/// What happened in a run: always its hash, and the text if somebody will read it.
#[derive(Default)]
struct Trace {
    hash: u64,
    text: Option<String>,
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
    /// Whether runs on this system thread keep their text.
    static KEEPS_TEXT: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Calls `f` with the world. `None` outside a run.
fn world<T>(f: impl FnOnce(&mut World) -> T) -> Option<T> {
    // After a run, its leftovers see the real tools again. (A call within `f` panics.)
    WORLD
        .try_with(|it| it.borrow_mut().as_mut().filter(|it| !it.is_over).map(f))
        .ok()
        .flatten()
}

/// True inside a run.
pub(crate) fn inside() -> bool {
    world(|_| ()).is_some()
}

/// Fails the run, and ends it. Returns only if this is not the thread of a run.
pub(crate) fn fail(why: impl Into<String>) {
    has_failed(why);
    shuttle::thread::yield_now();
}

/// Fails the run, even from a call that no thread makes. The run ends at the next step.
pub(crate) fn has_failed(why: impl Into<String>) {
    world(|world| {
        world.failure = Some(why.into());
        world.is_over = true;
    });
}

/// Ends the run when the first thread returns, even if other threads are still running.
pub(crate) fn end() {
    world(|world| world.is_over = true);
}

/// Records what happens in the run's trace.
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

/// Sets whether runs that this system thread begins keep the text of their traces.
pub(crate) fn keep_text(keeps: bool) {
    KEEPS_TEXT.set(keeps);
}

/// The clock's time inside a run, as the process of the thread reads it. `None` outside.
pub(crate) fn time() -> Option<u64> {
    world(|world| {
        world.tick();
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

/// May let another thread run. True inside a run.
pub(crate) fn step() -> bool {
    let switches = world(|world| {
        world.steps += 1;
        world.tick();
        !world.is_alone && world.switches.sample(&mut world.chance) && world.has_more_to_do()
    });
    if switches == Some(true) {
        switch();
    }
    switches.is_some()
}

/// Lets the next thing happen: this thread goes on only if it is next. (Shuttle is not asked
/// about that: asking it would cost more than everything else in a switch.)
fn switch() {
    let (me, next) = (running(), runs::next(None));
    if next != me {
        world(|world| world.chosen = next);
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
        world.awake.retain(|task| *task != running);
        if let Some(span) = span.filter(|span| *span <= world.order.longest.min(FOR_EVER)) {
            let span = world.processes[process].true_span(span);
            world.set_timer(
                now.saturating_add(span),
                Due::Wake {
                    task: running,
                    wait,
                },
            );
        }
    });
    switch();
}

/// Wakes a thread that waits.
fn wake(task: usize) {
    world(|world| {
        let wait = world.state(task).wait;
        world.wake(task, wait);
    });
}

/// Calls `f` as if from a thread of that process, while no other thread runs: for judging.
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

/// The names of the threads that have not ended, except this one and those of dead processes.
pub(crate) fn threads_left() -> Vec<String> {
    world(|world| {
        let is_left = |(number, task): &(usize, &State)| {
            *number != world.running && !task.has_ended && !world.processes[task.process].is_dead()
        };
        let left = world.tasks.iter().enumerate().filter(is_left);
        left.map(|(number, task)| {
            format!("{number} {}, {}", task.name, task.waits.unwrap_or("runs"))
        })
        .collect()
    })
    .unwrap_or_default()
}

/// The number of the thread that runs. `None` outside.
fn running() -> Option<usize> {
    world(|world| world.running)
}

/// Calls `call` later, outside any thread: it must not use a thread's tools.
pub(crate) fn later(span: Duration, call: impl FnOnce() + 'static) {
    world(|world| {
        let due = world
            .now
            .saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX));
        world.set_timer(due, Due::Call(Box::new(call)));
    });
}

/// A random number of the run.
fn random() -> u64 {
    world(|world| world.chance.random()).expect("inside a run")
}

/// 128 random bits. `None` outside a run.
pub(crate) fn random_bits() -> Option<u128> {
    inside().then(|| u128::from(random()) << 64 | u128::from(random()))
}

/// A random number from zero to below one. `None` outside a run.
pub(crate) fn random_fraction() -> Option<f64> {
    inside().then(|| f64::from((random() >> 40) as u32) / f64::from(1 << 24))
}

/// A random number below `n`.
pub(crate) fn below(n: u64) -> u64 {
    world(|world| world.chance.random_range(0..n)).expect("inside a run")
}

/// True one time in `n`.
pub(crate) fn one_in(n: u32) -> bool {
    below(u64::from(n)) == 0
}

/// The number of the thread that runs, as it appears in a token. `None` outside.
pub(crate) fn thread_number() -> Option<u64> {
    running().map(|task| task as u64 + 1)
}

pub(crate) mod this_process {
    pub(crate) fn id() -> u32 {
        super::id().map_or_else(std::process::id, |(pid, _)| pid)
    }
}
