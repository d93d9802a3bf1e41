//! The tools by which threads synchronize: `parking_lot` and `std`. In unit tests, the same tools
//! with a scheduler in between.

#[cfg(test)]
pub(crate) mod scheduler;
pub(crate) mod seeded_bugs;

#[cfg(not(test))]
pub(crate) use std::{
    process,
    sync::{atomic, mpsc},
    thread, thread_local as per_thread,
};

#[cfg(not(test))]
type Hash = std::hash::RandomState;
/// In unit tests, a map has the same order in each run with the same seed.
#[cfg(test)]
type Hash = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Hash>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, Hash>;

#[cfg(not(test))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

/// A static. In unit tests, each process of a run has its own.
#[cfg(not(test))]
#[derive(Debug)]
pub(crate) struct PerProcess<T>(T);

#[cfg(not(test))]
impl<T> PerProcess<T> {
    pub(crate) const fn new(value: T, _: fn() -> T) -> PerProcess<T> {
        PerProcess(value)
    }

    pub(crate) fn with<R>(&'static self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.0)
    }
}

#[cfg(test)]
pub(crate) use crate::base::sync::scheduler::{
    Condvar, Local, Mutex, MutexGuard, PerProcess, atomic, mpsc, per_thread,
    this_process as process, thread,
};
