//! The tools with which threads synchronize: `parking_lot` and `std`. In unit tests, the same tools
//! with a scheduler in between.

#[cfg(not(test))]
mod real;
#[cfg(test)]
pub(crate) mod scheduler;

#[cfg(not(test))]
pub(crate) use crate::base::sync::real::{
    Condvar, Hash, Mutex, MutexGuard, PerProcess, atomic, mpsc, per_thread, process, seeded_bugs,
    thread,
};
#[cfg(test)]
pub(crate) use crate::base::sync::scheduler::{
    Condvar, Hash, Local, Mutex, MutexGuard, PerProcess, atomic, mpsc, per_thread, seeded_bugs,
    this_process as process, thread,
};

pub(crate) type HashMap<K, V> = std::collections::HashMap<K, V, Hash>;
pub(crate) type HashSet<T> = std::collections::HashSet<T, Hash>;
