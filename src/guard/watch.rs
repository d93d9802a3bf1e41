//! The watch, by which other threads observe a hold.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::process;
use crate::hold::Hold;

/// Observes a hold from any thread. [`LockGuard::watch`](crate::LockGuard::watch) returns one.
///
/// For a helper thread that has to stop when the lock is lost. A watch does not keep the lock: when
/// the guards are gone, the watch is no longer valid.
#[derive(Clone, Debug)]
pub struct LockWatch {
    hold: Arc<Hold>,
    pid: u32,
}

impl LockWatch {
    pub(crate) fn new(hold: Arc<Hold>, pid: u32) -> LockWatch {
        LockWatch { hold, pid }
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.key.name()
    }

    /// As [`LockGuard::is_valid`](crate::LockGuard::is_valid), and `false` once the release begins.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let now = Moment::now();
        self.hold.is_valid(now) && process::id(now) == self.pid
    }

    /// Blocks until the hold is lost, at most for `limit`, and returns how it was lost.
    ///
    /// Returns the cause as soon as the lease runs out or the manager finds that the key is gone.
    /// Returns `None` when the hold was released, or was not lost within `limit`. Sends nothing.
    #[must_use = "`None` means that it was not lost"]
    pub fn wait_lost(&self, limit: Duration) -> Option<LostCause> {
        let now = Moment::now();
        if process::id(now) != self.pid {
            return None; // In a forked child, no thread would ever end this wait.
        }
        self.hold.wait_lost(now.after(limit))
    }
}

/// As for [`LockManager`](crate::LockManager).
impl UnwindSafe for LockWatch {}
impl RefUnwindSafe for LockWatch {}
