//! Whether a closure under a lock has run since an error was made.
//!
//! An error may come out of the closure of `with_lock_result` in a type of the program, where
//! nobody can mark it. So it is not marked: it knows when it was made, and the thread knows whether
//! a closure has ended since.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::sync::per_thread;

per_thread! {
    /// Grows as each closure under a lock ends. No two threads have the same number; zero if this
    /// thread has none yet.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// When an error was made, for [`Error::body_ran`](crate::Error::body_ran).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made(u64);

impl Made {
    pub(crate) fn now() -> Made {
        // A thread may run a billion closures before it reaches the numbers of another one.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NOW.with(|now| {
            if now.get() == 0 {
                now.set(NEXT.fetch_add(1, Ordering::Relaxed) << 30);
            }
            Made(now.get())
        })
    }
}

/// A closure under a lock runs, or the release behind it, until this is dropped.
pub(crate) struct Body;

impl Drop for Body {
    fn drop(&mut self) {
        let Made(now) = Made::now();
        NOW.set(now + 1);
    }
}
