//! The handle that a program keeps.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::error::Error;
use crate::base::stats::Stats;
use crate::guard::LockGuard;
use crate::hold::HeldLock;
use crate::lock::Lock;
use crate::request::Request;
use crate::session::Session;

/// Locks on one Redis: a pool of connections, and the holds of this process.
///
/// Make a manager with [`connect`](LockManager::connect) or [`builder`](LockManager::builder), then
/// clone and share it: all clones are the same manager. Two managers of one process do not share
/// their holds. A thread that waits for a key which it holds through another manager gets
/// [`Error::WouldDeadlock`].
///
/// Dropping the last handle or guard ends the manager's threads. The drop waits for the keeper,
/// callback, listener and sentinel threads, for each at most 0.1 s longer than the response timeout
/// (a timeout below 0.1 s counts as 0.1 s).
///
/// The methods that take a lock exist here, with a key, and on a [`Lock`]. A `Lock` also has
/// options, [`holder`](Lock::holder) and [`force_unlock`](Lock::force_unlock).
///
/// ```no_run
/// # fn charge_card() {}
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
/// locks.with_lock("orders:42", || charge_card())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockManager {
    session: Arc<Session>,
}

#[expect(clippy::missing_errors_doc, reason = "they are those of the methods of `Lock`, which lists them")]
impl LockManager {
    pub(crate) fn new(session: Arc<Session>) -> LockManager {
        LockManager { session }
    }

    /// A named lock, whose options can be set. Takes nothing and sends nothing.
    pub fn named(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.session), key.as_ref().into())
    }

    /// [`Lock::lock`] on the lock named `key`, with the same errors.
    pub fn lock(&self, key: impl AsRef<str>) -> Result<LockGuard, Error> {
        self.request(key.as_ref()).lock()
    }

    /// [`Lock::try_lock`] on the lock named `key`, with the same errors.
    pub fn try_lock(&self, key: impl AsRef<str>) -> Result<Option<LockGuard>, Error> {
        self.request(key.as_ref()).try_lock_for(Duration::ZERO)
    }

    /// [`Lock::try_lock_for`] on the lock named `key`, with the same errors.
    pub fn try_lock_for(&self, key: impl AsRef<str>, limit: Duration) -> Result<Option<LockGuard>, Error> {
        self.request(key.as_ref()).try_lock_for(limit)
    }

    /// [`Lock::try_lock_until`] on the lock named `key`, with the same errors.
    pub fn try_lock_until(
        &self,
        key: impl AsRef<str>,
        deadline: Instant,
    ) -> Result<Option<LockGuard>, Error> {
        self.request(key.as_ref()).try_lock_until(deadline)
    }

    /// [`Lock::current`] on the lock named `key`.
    #[must_use]
    pub fn current(&self, key: impl AsRef<str>) -> Option<LockGuard> {
        self.request(key.as_ref()).current()
    }

    /// [`Lock::assert_held`] on the lock named `key`, with the same errors.
    pub fn assert_held(&self, key: impl AsRef<str>) -> Result<(), Error> {
        self.request(key.as_ref()).assert_held()
    }

    /// [`Lock::with_lock`] on the lock named `key`, with the same errors.
    pub fn with_lock<T>(&self, key: impl AsRef<str>, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.request(key.as_ref()).with_lock(body)
    }

    /// [`Lock::with_lock_result`] on the lock named `key`, with the same errors.
    pub fn with_lock_result<T, E: From<Error>>(
        &self,
        key: impl AsRef<str>,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.request(key.as_ref()).with_lock_result(body)
    }

    /// What this process holds through this manager, the oldest first. Sends nothing.
    #[must_use]
    pub fn held(&self) -> Vec<HeldLock> {
        self.session.held()
    }

    /// What this manager has done since it was made. Sends nothing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.session.counters.read()
    }

    fn request<'a>(&'a self, key: &'a str) -> Request<'a> {
        Request { session: &self.session, name: key.into(), options: &self.session.settings.options }
    }
}

/// A panic under a lock leaves no manager half changed: unwinding drops the guard, which releases
/// the lock.
impl UnwindSafe for LockManager {}
impl RefUnwindSafe for LockManager {}
