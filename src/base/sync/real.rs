//! The tools with which a program's threads synchronize: `parking_lot` and `std`.

pub(crate) use std::{
    hash::RandomState as Hash,
    process,
    sync::{atomic, mpsc},
    thread, thread_local as per_thread,
};

pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

/// A static. In unit tests, each process of a run has its own.
#[derive(Debug)]
pub(crate) struct PerProcess<T>(T);

impl<T> PerProcess<T> {
    pub(crate) const fn new(value: T, _: fn() -> T) -> PerProcess<T> {
        PerProcess(value)
    }

    pub(crate) fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.0)
    }
}

/// The bugs that unit tests switch on.
pub(crate) mod seeded_bugs {
    /// True if the bug called `name` is switched on.
    pub(crate) fn is_in(_: &str) -> bool {
        false
    }
}
