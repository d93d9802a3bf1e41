//! Whether work under a lock may have been done since an error was made.
//!
//! An error may come out of the closure of `with_lock_result`, or past a guard, in a type of the
//! program, where nobody can mark it. So it is not marked: it knows when it was made, and the
//! thread knows whether a guard has ended since. (A closure under a lock runs under a guard, too.)

use std::cell::Cell;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::sync::per_thread;

per_thread! {
    /// Grows as each guard ends. No two threads have the same number; zero if this thread has none
    /// yet.
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// When an error was made, for [`Error::body_ran`](crate::Error::body_ran).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Made(u64);

/// Programs that return an error from `main` show this, and the number says nothing to a reader.
impl fmt::Debug for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("..")
    }
}

impl Made {
    pub(crate) fn now() -> Made {
        // A thread may drop 2^36 guards before it reaches the numbers of another one. (Re-entering
        // is so fast that 2^30 would take minutes.) After 2^28 threads, numbers come again: an
        // error that was sent to such a thread could say that nothing was done.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NOW.with(|now| {
            if now.get() == 0 {
                now.set(NEXT.fetch_add(1, Ordering::Relaxed) << 36);
            }
            Made(now.get())
        })
    }
}

/// A guard of this thread ends. What it protected may be done, so the errors that were made before
/// no longer say that nothing is.
pub(crate) fn guard_ends() {
    let Made(now) = Made::now();
    NOW.set(now + 1);
}
