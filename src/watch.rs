//! An eye on a hold, for other threads.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::LostCause;
use crate::hold::Hold;
use crate::process;

/// Watches a hold from any thread: by [`LockGuard::watch`](crate::LockGuard::watch).
///
/// For handing to a helper thread that has to stop when the lock is lost. It keeps nothing locked: when the guards are
/// gone, so is the hold, and the watch says so.
#[derive(Clone, Debug)]
pub struct LockWatch {
    hold: Arc<Hold>,
    born: u32,
}

impl LockWatch {
    pub(crate) fn new(hold: Arc<Hold>, born: u32) -> LockWatch {
        LockWatch { hold, born }
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.key().name()
    }

    /// As [`LockGuard::is_valid`](crate::LockGuard::is_valid): false too once the lock is being released.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let now = Moment::now();
        self.hold.is_valid(now) && process::id(now) == self.born
    }

    /// Blocks until the hold is lost, at most for so long: how it was lost.
    ///
    /// `None` if it was not lost within that time, and at once if it was given back. Sends nothing; wakes up when the
    /// lease runs out, or as soon as a renewal finds that the key is gone.
    #[must_use = "`None` means that it was not lost"]
    pub fn wait_lost(&self, limit: Duration) -> Option<LostCause> {
        let now = Moment::now();
        if process::id(now) != self.born {
            return None; // A forked child's copy: nobody would ever wake it up.
        }
        self.hold.wait_lost(now.after(limit))
    }
}
