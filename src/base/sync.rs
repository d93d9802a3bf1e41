//! What threads meet at: `parking_lot` and `std`; and in unit tests the same, but seen by a scheduler that tries every
//! order of events where it is asked to.

#[cfg(not(test))]
pub(crate) use std::{sync::atomic, thread};

#[cfg(not(test))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use orders::{Condvar, Mutex, MutexGuard, atomic, thread};

/// Stand-ins that are the real ones, and inside of [`orders::in_many_orders`] take a step of shuttle's scheduler before each thing
/// that other threads can see.
///
/// Time stands still there, but for who waits: a wait with an end may be over at any step, and it is that late then.
#[cfg(test)]
pub(crate) mod orders {
    use std::cell::Cell;
    use std::ops::{Deref, DerefMut};
    use std::sync::atomic::{AtomicBool as Flag, Ordering};
    use std::sync::{Arc, PoisonError};
    use std::time::Duration;

    use shuttle::rand::{Rng, thread_rng};
    use shuttle::thread::Thread;

    /// A run: what time it is, and which waits may end by themselves.
    #[derive(Clone, Copy)]
    struct Run {
        nanos: u64,
        longest: Duration,
    }

    thread_local! {
        /// Shuttle runs all threads of a run on the thread that started it.
        static RUN: Cell<Option<Run>> = const { Cell::new(None) };
    }

    /// How late it is when a run begins.
    const START: u64 = 1_000_000_000_000;

    /// How long one look at the clock takes.
    const TICK: Duration = Duration::from_nanos(100);

    /// How long a thread that stays awake leaves the processor to others.
    const YIELD: Duration = Duration::from_micros(20);

    /// Runs `events` so many times, each time in another order: half of them at random, half with threads that are held up at a few
    /// places only.
    ///
    /// A wait that is meant to last longer than `longest` never ends by itself: so a call that was lost is found out as a deadlock,
    /// even where somebody would look by himself in the end.
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

    /// What time it is, in a run.
    pub(crate) fn time() -> Option<u64> {
        pass(TICK);
        RUN.get().map(|run| run.nanos)
    }

    /// Time goes by.
    pub(crate) fn pass(span: Duration) {
        if let Some(run) = RUN.get() {
            late(run.nanos + u64::try_from(span.as_nanos()).expect("a short time"));
        }
    }

    fn late(nanos: u64) {
        if let Some(run) = RUN.get() {
            RUN.set(Some(Run { nanos: run.nanos.max(nanos), ..run }));
        }
    }

    /// Others may come first.
    pub(crate) fn step() {
        if inside() {
            shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
        }
    }

    /// One time in `n`.
    pub(crate) fn by_chance(n: u32) -> bool {
        thread_rng().gen_ratio(1, n)
    }

    /// A number below `n`.
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
        /// Always there but inside of `unlocked`.
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
        called: Flag,
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
            step(); // Whoever calls without the lock may do so now.
            let me = Arc::new(Sleeper { thread: shuttle::thread::current(), called: Flag::new(false) });
            self.asleep.lock().push(Arc::clone(&me));
            let end =
                (span <= run.longest).then(|| run.nanos + u64::try_from(span.as_nanos()).expect("short"));
            MutexGuard::unlocked(guard, || me.sleep(end));
            self.asleep.lock().retain(|other| !Arc::ptr_eq(other, &me));
        }

        pub(crate) fn notify_one(&self) -> bool {
            if !inside() {
                return self.real.notify_one();
            }
            step();
            let called = {
                let mut asleep = self.asleep.lock();
                let count = u64::try_from(asleep.len()).expect("a few");
                (count > 0).then(|| asleep.swap_remove(usize::try_from(below(count)).expect("a few")))
            };
            called.inspect(|sleeper| sleeper.call()).is_some()
        }

        pub(crate) fn notify_all(&self) -> usize {
            if !inside() {
                return self.real.notify_all();
            }
            step();
            let called = std::mem::take(&mut *self.asleep.lock());
            for sleeper in &called {
                sleeper.call();
            }
            called.len()
        }
    }

    impl Sleeper {
        fn call(&self) {
            self.called.store(true, Ordering::Relaxed);
            self.thread.unpark();
        }

        fn sleep(&self, end: Option<u64>) {
            while !self.called.load(Ordering::Relaxed) {
                match end {
                    None => shuttle::thread::park(),
                    Some(end) if by_chance(8) => return late(end),
                    Some(_) => shuttle::thread::yield_now(),
                }
            }
        }
    }

    pub(crate) mod thread {
        pub(crate) fn sleep(span: std::time::Duration) {
            if super::inside() {
                super::pass(span);
                shuttle::thread::yield_now();
            } else {
                std::thread::sleep(span);
            }
        }

        pub(crate) fn yield_now() {
            if super::inside() {
                super::pass(super::YIELD);
                shuttle::thread::yield_now();
            } else {
                std::thread::yield_now();
            }
        }
    }

    pub(crate) mod atomic {
        pub(crate) use std::sync::atomic::Ordering;

        /// Each look at one of these is a step.
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
}
