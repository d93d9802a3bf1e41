//! Several named locks that are taken together.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::options::{Options, invalid_option};
use crate::guard::MultiLockGuard;
use crate::lock::Lock;
use crate::lock::request::{none_if_busy, run};
use crate::session::{Session, several};

/// The most locks that one call takes.
const MOST_AT_ONCE: usize = 64;

/// Several named locks that are taken together: all of them, or none.
///
/// [`LockManager::several`](crate::LockManager::several) returns one. It is cheap to clone and
/// holds nothing by itself.
///
/// The locks are taken in the order of their keys' bytes, however they are given; a key that is
/// given twice counts once. So two callers with `[a, b]` and `[b, a]` do not wait for each other.
/// All have the same options, and one deadline. While the caller waits for one of them, it keeps
/// those before it, and holds none of those after it.
///
/// Locks that this thread holds already are re-entered first. If the thread holds a lock whose key
/// comes *after* one that is still to be taken, the order is broken: then only a limited
/// [`wait`](Lock::wait), or [`Error::WouldDeadlock`] within a process, ends a deadlock.
///
/// The locks are taken one after another, as by [`Lock::lock`], and released together: n free locks
/// cost n + 1 round trips.
///
/// ```
/// # use std::time::Duration;
/// # fn transfer() {}
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::in_memory();
/// let accounts = locks.several(["account:7", "account:3"]);
/// let both = accounts.lock()?;
/// both.confirm(Duration::from_secs(5))?;
/// transfer();
/// both.unlock()
/// # }
/// ```
#[derive(Clone)]
#[must_use = "the locks do nothing until they are locked"]
pub struct MultiLock {
    /// Sorted, each once.
    names: Vec<String>,
    /// A lock with the options that each of them has.
    each: Lock,
}

impl MultiLock {
    pub(crate) fn new(session: Arc<Session>, mut names: Vec<String>) -> MultiLock {
        names.sort_unstable();
        names.dedup();
        let each = Lock::new(session, &names.join(", "));
        MultiLock { names, each }
    }

    /// Sets options of the locks, with the setters of [`Lock`]. The closure gets a lock and returns
    /// it: its options apply to each of the locks, except [`wait`](Lock::wait) and
    /// [`stopped_by`](Lock::stopped_by), which apply to the wait for all of them together. When
    /// such a wait ends, the locks taken so far are given back.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// # let taken = locks.lock("b")?.detach()?;
    /// let stop = relatch::StopHandle::new();
    /// let both = locks
    ///     .several(["a", "b"])
    ///     .options(|lock| lock.fenced(true).wait(Duration::from_millis(5)).stopped_by(&stop));
    /// assert!(both.lock().is_err_and(|error| error.is_timeout()), "`b` is busy");
    /// assert!(locks.try_lock("a")?.is_some(), "all, or none");
    /// # Ok(())
    /// # }
    /// ```
    pub fn options(mut self, set: impl FnOnce(Lock) -> Lock) -> MultiLock {
        let Lock { options, stop, .. } = set(self.each.clone());
        self.each.options = options;
        self.each.stop = stop;
        self
    }

    /// Takes the locks, and blocks while one of them is busy, for their [`wait`](Lock::wait) at
    /// most.
    ///
    /// If one of them is lost before all are taken, the call gives them all back and ends with a
    /// [`Timeout`](Error::Timeout) whose source says so: no work was done, so call again.
    ///
    /// Giving back the locks taken before an error may make the call up to 200 ms longer than its
    /// limit or, without a limit, up to twice the response timeout longer. If a release has no
    /// answer by then, it goes on in the background.
    ///
    /// ```
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.several(["b", "a", "b"]).lock()?;
    /// assert_eq!(guard.keys().collect::<Vec<_>>(), ["a", "b"]);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Lock::lock`] for one of the locks, which the error names, and which is not
    /// necessarily the first; the others are given back. [`Error::InvalidOption`] for no key, or
    /// more than 64.
    pub fn lock(&self) -> Result<MultiLockGuard, Error> {
        self.enter(self.each.options.wait)
    }

    /// Takes the locks if all of them are free now. `Ok(None)` means that one is busy, and that
    /// none is held. Keep the guard in a variable with a name: a block after `.is_some()` runs
    /// without the locks.
    ///
    /// Blocks for one answer for each lock, or for one attempt without an answer.
    ///
    /// ```
    /// # fn transfer() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// if let Some(_guard) = locks.several(["a", "b"]).try_lock()? {
    ///     transfer();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock`](MultiLock::lock), with `Timeout` as for [`Lock::try_lock`].
    pub fn try_lock(&self) -> Result<Option<MultiLockGuard>, Error> {
        self.try_lock_for(Duration::ZERO)
    }

    /// [`lock`](MultiLock::lock), waiting for `limit` at most. `Ok(None)` means that one of the
    /// locks was busy until then. Keep the guard in a variable with a name.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// # let taken = locks.lock("b")?.detach()?;
    /// let guard = locks.several(["a", "b"]).try_lock_for(Duration::from_millis(5))?;
    /// assert!(guard.is_none(), "`b` was busy");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock`](MultiLock::lock), with `Timeout` as for [`Lock::try_lock_for`].
    /// [`Error::WouldDeadlock`] stays an error.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<MultiLockGuard>, Error> {
        none_if_busy(self.enter(Some(limit)))
    }

    /// Runs a closure under the locks and returns its result, as [`Lock::with_lock`] does for one.
    ///
    /// ```
    /// # fn transfer() -> u32 { 5 }
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let moved = locks.several(["account:7", "account:3"]).with_lock(|| transfer())?;
    /// assert_eq!(moved, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Before the closure, those of [`lock`](MultiLock::lock); after it, as for
    /// [`Lock::with_lock`].
    pub fn with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.with_lock_result(|_| Ok(body()))
    }

    /// Runs a fallible closure under the locks: see [`Lock::with_lock_result`].
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn transfer() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.several(["account:7", "account:3"]).with_lock_result(|both| {
    ///     both.confirm(Duration::from_secs(5))?;
    ///     transfer();
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the closure fails, its own error. Otherwise as for [`with_lock`](MultiLock::with_lock).
    pub fn with_lock_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&MultiLockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.run(self.lock()?, body)
    }

    /// Runs a closure under the locks if all of them are free now: see [`Lock::try_with_lock`].
    ///
    /// ```
    /// # fn transfer() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// # let taken = locks.lock("b")?.detach()?;
    /// assert!(locks.several(["a", "b"]).try_with_lock(|| transfer())?.is_none(), "`b` is busy");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`with_lock`](MultiLock::with_lock), with `Timeout` as for [`Lock::try_lock`].
    pub fn try_with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<Option<T>, Error> {
        let guard = self.try_lock()?;
        guard
            .map(|guard| self.run(guard, |_| Ok(body())))
            .transpose()
    }

    fn run<T, E: From<Error>>(
        &self,
        guard: MultiLockGuard,
        body: impl FnOnce(&MultiLockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        run(guard, body, MultiLockGuard::unlock, || {
            self.names.join(", ")
        })
    }

    fn enter(&self, limit: Option<Duration>) -> Result<MultiLockGuard, Error> {
        let reason = match self.names.len() {
            0 => "there is no key",
            1..=MOST_AT_ONCE => {
                let Lock { session, stop, .. } = &self.each;
                let options = Options {
                    wait: limit,
                    ..self.each.options
                };
                let names: Vec<_> = self.names.iter().map(String::as_str).collect();
                let held = several::enter(session, &names, &options, stop.as_ref())?;
                return Ok(MultiLockGuard::new(Arc::clone(session), held));
            }
            _ => "one call takes 64 locks at most",
        };
        Err(invalid_option("several", self.names.len(), reason))
    }
}

impl fmt::Debug for MultiLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLock")
            .field("keys", &self.names)
            .field("options", &self.each.options)
            .finish_non_exhaustive()
    }
}
