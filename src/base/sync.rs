//! The tools by which threads synchronize: `parking_lot` and `std`. In unit tests, the same tools
//! with a scheduler in between.

#[cfg(not(test))]
pub(crate) use std::{sync::atomic, thread};

#[cfg(not(test))]
pub(crate) use parking_lot::{Condvar, Mutex, MutexGuard};

#[cfg(test)]
pub(crate) use crate::base::scheduler::{Condvar, Mutex, MutexGuard, atomic, thread};
