//! Lets unit tests run threads in thousands of orders: `std` and `parking_lot`, with shuttle in
//! between.
//!
//! Inside of [`in_many_orders`], each of these types lets shuttle switch to another thread before
//! an operation that other threads can see. Outside, each behaves as the real type.
//!
//! Inside, the clock advances only when a thread reads it, sleeps, yields or calls [`advance`]. A
//! wait with a timeout may end by itself at any step. The clock then advances to the end of that
//! wait.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool as Flag, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::Thread;

/// One order of events.
#[derive(Clone, Copy)]
struct Run {
    /// The clock's time.
    nanos: u64,
    /// A wait with a longer timeout than this never ends by itself.
    longest: Duration,
}

thread_local! {
    /// Shuttle runs all threads of a run on the thread that started it, so they share this.
    static RUN: Cell<Option<Run>> = const { Cell::new(None) };
}

/// The clock's time when a run begins.
const START: u64 = 1_000_000_000_000;

/// How far the clock advances when it is read.
const TICK: Duration = Duration::from_nanos(100);

/// How far the clock advances when a thread yields.
const YIELD: Duration = Duration::from_micros(20);

/// Runs `events` in `times` orders. Half of the orders are random. In the other half, shuttle
/// delays threads at a few places only, which finds rare interleavings sooner.
///
/// A wait with a timeout of more than `longest` never ends by itself. So a lost wake-up shows as a
/// deadlock, even if outside of these tests the timeout would end the wait.
pub(crate) fn in_many_orders(
    times: usize,
    longest: Duration,
    events: impl Fn() + Clone + Send + Sync + 'static,
) {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            RUN.set(None);
        }
    }
    let _over = Over;
    let run = move || {
        RUN.set(Some(Run { nanos: START, longest }));
        events();
    };
    shuttle::check_random(run.clone(), times / 2);
    shuttle::check_pct(run, times / 2, 3);
}

fn inside() -> bool {
    RUN.get().is_some()
}

/// The clock's time inside of a run. `None` outside.
pub(crate) fn time() -> Option<u64> {
    advance(TICK);
    RUN.get().map(|run| run.nanos)
}

/// Advances the clock.
pub(crate) fn advance(span: Duration) {
    if let Some(run) = RUN.get() {
        advance_to(run.nanos + u64::try_from(span.as_nanos()).expect("a short time"));
    }
}

fn advance_to(nanos: u64) {
    if let Some(run) = RUN.get() {
        RUN.set(Some(Run { nanos: run.nanos.max(nanos), ..run }));
    }
}

/// Lets shuttle switch to another thread.
pub(crate) fn step() {
    if inside() {
        shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
    }
}

/// True one time in `n`.
pub(crate) fn one_in(n: u32) -> bool {
    thread_rng().gen_ratio(1, n)
}

/// A random number below `n`.
pub(crate) fn below(n: u64) -> u64 {
    thread_rng().gen_range(0..n)
}

#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    data: parking_lot::Mutex<T>,
    gate: shuttle::sync::Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only inside of `unlocked`.
    data: Option<parking_lot::MutexGuard<'a, T>>,
    gate: Option<shuttle::sync::MutexGuard<'a, ()>>,
}

impl<T> Mutex<T> {
    pub(crate) fn new(data: T) -> Mutex<T> {
        Mutex { data: parking_lot::Mutex::new(data), gate: shuttle::sync::Mutex::default() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let gate = inside().then(|| self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        MutexGuard { mutex: self, data: Some(self.data.lock()), gate }
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn unlocked<U>(guard: &mut Self, f: impl FnOnce() -> U) -> U {
        guard.data = None;
        guard.gate = None;
        let result = f();
        let again = guard.mutex.lock();
        (guard.data, guard.gate) = (again.data, again.gate);
        result
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.data.as_ref().expect("it is locked")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.data.as_mut().expect("it is locked")
    }
}

#[derive(Debug, Default)]
pub(crate) struct Condvar {
    real: parking_lot::Condvar,
    asleep: parking_lot::Mutex<Vec<Arc<Sleeper>>>,
}

#[derive(Debug)]
struct Sleeper {
    thread: Thread,
    woken: Flag,
}

impl Condvar {
    pub(crate) fn new() -> Condvar {
        Condvar::default()
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, span: Duration) {
        let Some(run) = RUN.get() else {
            self.real.wait_for(guard.data.as_mut().expect("it is locked"), span);
            return;
        };
        step(); // Another thread may notify now, without the mutex.
        let me = Arc::new(Sleeper { thread: shuttle::thread::current(), woken: Flag::new(false) });
        self.asleep.lock().push(Arc::clone(&me));
        let end = (span <= run.longest).then(|| run.nanos + u64::try_from(span.as_nanos()).expect("short"));
        MutexGuard::unlocked(guard, || me.sleep(end));
        self.asleep.lock().retain(|other| !Arc::ptr_eq(other, &me));
    }

    pub(crate) fn notify_one(&self) -> bool {
        if !inside() {
            return self.real.notify_one();
        }
        step();
        let woken = {
            let mut asleep = self.asleep.lock();
            let count = u64::try_from(asleep.len()).expect("a few");
            (count > 0).then(|| asleep.swap_remove(usize::try_from(below(count)).expect("a few")))
        };
        woken.inspect(|sleeper| sleeper.wake()).is_some()
    }

    pub(crate) fn notify_all(&self) -> usize {
        if !inside() {
            return self.real.notify_all();
        }
        step();
        let woken = std::mem::take(&mut *self.asleep.lock());
        for sleeper in &woken {
            sleeper.wake();
        }
        woken.len()
    }
}

impl Sleeper {
    fn wake(&self) {
        self.woken.store(true, Ordering::Relaxed);
        self.thread.unpark();
    }

    fn sleep(&self, end: Option<u64>) {
        while !self.woken.load(Ordering::Relaxed) {
            match end {
                None => shuttle::thread::park(),
                Some(end) if one_in(8) => return advance_to(end),
                Some(_) => shuttle::thread::yield_now(),
            }
        }
    }
}

pub(crate) mod thread {
    pub(crate) fn sleep(span: std::time::Duration) {
        if super::inside() {
            super::advance(span);
            shuttle::thread::yield_now();
        } else {
            std::thread::sleep(span);
        }
    }

    pub(crate) fn yield_now() {
        if super::inside() {
            super::advance(super::YIELD);
            shuttle::thread::yield_now();
        } else {
            std::thread::yield_now();
        }
    }
}

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    /// Each use of one of these is a step.
    macro_rules! stepped {
        ($($name:ident: $value:ty),*) => {$(
            #[derive(Debug)]
            pub(crate) struct $name(std::sync::atomic::$name);

            impl $name {
                pub(crate) const fn new(value: $value) -> $name {
                    $name(std::sync::atomic::$name::new(value))
                }
            }

            impl std::ops::Deref for $name {
                type Target = std::sync::atomic::$name;

                fn deref(&self) -> &Self::Target {
                    super::step();
                    &self.0
                }
            }
        )*};
    }

    stepped!(AtomicBool: bool, AtomicU32: u32, AtomicU64: u64);
}
