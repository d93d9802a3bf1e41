//! The watch, by which other threads observe a hold.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::owner::process;
use crate::hold::Hold;

/// Observes a hold from any thread. [`LockGuard::watch`](crate::LockGuard::watch) returns one.
///
/// It is for a helper thread that has to stop when the lock is lost, or before. A watch does not
/// keep the lock: when the guards are gone, the watch is no longer valid.
#[derive(Clone, Debug)]
pub struct LockWatch {
    pub(crate) hold: Arc<Hold>,
    pid: u32,
}

impl LockWatch {
    pub(crate) fn new(hold: Arc<Hold>, pid: u32) -> LockWatch {
        LockWatch { hold, pid }
    }

    /// Like [`LockGuard::is_valid`](crate::LockGuard::is_valid), and `false` once the release
    /// begins.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// let watch = guard.watch();
    /// assert!(watch.is_valid());
    /// drop(guard);
    /// assert!(!watch.is_valid());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let now = Moment::now();
        self.hold.is_valid(now) && process::id(now) == self.pid
    }

    /// How long the hold may still be trusted; zero if it is lost, and once the release begins.
    /// Each renewal brings it back up to nearly the full lease. Sends nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// assert!(guard.watch().remaining() > Duration::from_secs(20));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        let now = Moment::now();
        if process::id(now) == self.pid {
            self.hold.remaining(now)
        } else {
            Duration::ZERO
        }
    }

    /// Blocks until the hold may be trusted for `left` at most, and returns how long it may be
    /// trusted: zero if it is lost already. Returns `None` once the hold has been released. Sends
    /// nothing.
    ///
    /// This is for a job that has to stop cleanly before another process can begin. While Redis
    /// answers, renewals keep nearly two thirds of the lease in reserve, or with
    /// [`renew_every`](crate::Lock::renew_every) at least nearly half: less 1 % of the lease and a
    /// round trip. When renewals fail, this returns before the lock is lost, which
    /// [`wait_lost`](Self::wait_lost) cannot do. But if the key is deleted or Redis loses it, there
    /// is no warning.
    ///
    /// If `left` is more than that reserve, this also returns while all is well.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # use std::{thread, time::Duration};
    /// # use relatch::LockManager;
    /// # fn main() -> Result<(), relatch::Error> {
    /// let locks = LockManager::in_memory();
    /// // In this example, nobody renews the lease.
    /// let lock = locks.named("report").lease(Duration::from_secs(1)).renew(false);
    /// let guard = lock.lock()?;
    /// let (watch, stop) = (guard.watch(), AtomicBool::new(false));
    /// thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         if watch.wait_at_risk(Duration::from_millis(800)).is_some() {
    ///             stop.store(true, Ordering::Relaxed);
    ///         }
    ///     });
    ///     while !stop.load(Ordering::Relaxed) {
    ///         thread::sleep(Duration::from_millis(10)); // A step of the job.
    ///     }
    ///     // Here the job writes down how far it has come. The lock is still held.
    ///     drop(guard); // This also ends the helper, if the job is done earlier.
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "`None` means that it was released"]
    pub fn wait_at_risk(&self, left: Duration) -> Option<Duration> {
        // In a forked child, no thread would ever end this wait.
        if process::id(Moment::now()) == self.pid {
            self.hold.wait_at_risk(left)
        } else {
            None
        }
    }

    /// Blocks until the hold is lost, for at most `limit`, and returns how it was lost.
    ///
    /// Returns the cause as soon as the lease runs out or the manager finds that the key is gone.
    /// Returns `None` if the hold was released, or was not lost within `limit`. Sends nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// use relatch::LostCause;
    ///
    /// let guard = locks.lock("orders:42")?;
    /// let watch = guard.watch();
    /// locks.memory().expect("it is in memory").lose("orders:42", LostCause::Deleted);
    /// assert_eq!(watch.wait_lost(Duration::from_secs(5)), Some(LostCause::Deleted));
    /// # Ok::<(), relatch::Error>(())
    /// ```
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
