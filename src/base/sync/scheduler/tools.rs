//! Mutex, condition variable and atomics.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::{below, inside, running, step, wait, wake};
use crate::base::clock::Moment;

#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    data: parking_lot::Mutex<T>,
    /// A thread of a run has the mutex. (In a run, the real one is never contended.)
    is_locked: AtomicBool,
    /// Another one has waited for it.
    was_wanted: AtomicBool,
    waiting: parking_lot::Mutex<Vec<usize>>,
}

#[derive(Debug)]
pub(crate) struct MutexGuard<'a, T> {
    mutex: &'a Mutex<T>,
    /// `None` only inside `unlocked`.
    data: Option<parking_lot::MutexGuard<'a, T>>,
    is_simulated: bool,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(data: T) -> Mutex<T> {
        Mutex {
            data: parking_lot::Mutex::new(data),
            is_locked: AtomicBool::new(false),
            was_wanted: AtomicBool::new(false),
            waiting: parking_lot::Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let is_simulated = step();
        while is_simulated && !self.enters() {
            wait("a mutex", None);
        }
        MutexGuard {
            mutex: self,
            data: Some(self.data.lock()),
            is_simulated,
        }
    }

    /// True if the thread may lock the mutex now. If not, it is woken when the mutex is free.
    fn enters(&self) -> bool {
        let is_free = !self.is_locked.load(Relaxed);
        if is_free {
            self.is_locked.store(true, Relaxed);
        } else {
            self.was_wanted.store(true, Relaxed);
            self.waiting.lock().extend(running());
        }
        is_free
    }

    fn leave(&self) {
        self.is_locked.store(false, Relaxed);
        if self.was_wanted.load(Relaxed) {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            waiting.into_iter().for_each(wake);
        }
    }
}

impl<T> MutexGuard<'_, T> {
    pub(crate) fn unlocked<U>(guard: &mut Self, f: impl FnOnce() -> U) -> U {
        guard.unlock();
        let result = f();
        let mut again = guard.mutex.lock();
        (guard.data, guard.is_simulated) = (again.data.take(), again.is_simulated);
        again.is_simulated = false;
        result
    }

    fn unlock(&mut self) {
        self.data = None;
        if self.is_simulated {
            self.mutex.leave();
            self.is_simulated = false;
        }
    }
}

impl<T> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.unlock();
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
    asleep: parking_lot::Mutex<Vec<usize>>,
}

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar {
            real: parking_lot::Condvar::new(),
            asleep: parking_lot::Mutex::new(Vec::new()),
        }
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        if inside() {
            self.sleep(guard, None);
        } else {
            self.real.wait(guard.data.as_mut().expect("it is locked"));
        }
    }

    pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, span: Duration) {
        if inside() {
            self.sleep(guard, Some(span));
        } else {
            self.real
                .wait_for(guard.data.as_mut().expect("it is locked"), span);
        }
    }

    pub(crate) fn wait_while_for<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        mut waits: impl FnMut(&mut T) -> bool,
        span: Duration,
    ) {
        let until = Moment::now().after(span);
        while waits(guard) && Moment::now() < until {
            self.wait_for(guard, until.since(Moment::now()));
        }
    }

    fn sleep<T>(&self, guard: &mut MutexGuard<'_, T>, span: Option<Duration>) {
        step(); // Another thread may notify now, without the mutex.
        let me = running().expect("inside");
        self.asleep.lock().push(me);
        MutexGuard::unlocked(guard, || {
            wait("a notification", span);
            self.asleep.lock().retain(|other| *other != me);
        });
    }

    pub(crate) fn notify_one(&self) -> bool {
        if !step() {
            return self.real.notify_one();
        }
        let woken = {
            let mut asleep = self.asleep.lock();
            let count = asleep.len() as u64;
            (count > 0).then(|| asleep.swap_remove(usize::try_from(below(count)).expect("a few")))
        };
        woken.inspect(|task| wake(*task)).is_some()
    }

    pub(crate) fn notify_all(&self) -> usize {
        if !step() {
            return self.real.notify_all();
        }
        let woken = std::mem::take(&mut *self.asleep.lock());
        woken.iter().copied().for_each(wake);
        woken.len()
    }
}

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    /// Each use of one of these is a step.
    macro_rules! stepped {
        ($($name:ident: $value:ty),*) => {$(
            #[derive(Debug, Default)]
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
