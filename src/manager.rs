//! The handle that a program keeps.

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::stats::Stats;
use crate::guard::LockGuard;
use crate::hold::HeldLock;
use crate::lock::Lock;
use crate::request::Request;
use crate::session::Session;

/// Locks on one Redis: a pool of connections, and what this process holds there.
///
/// Make one by [`connect`](LockManager::connect) or [`builder`](LockManager::builder), then clone
/// and share it: a clone is the same manager. Within a process, a key is one lock only within one
/// manager. A thread that waits for a key which it holds through another manager gets
/// [`Error::WouldDeadlock`].
///
/// Dropping the last handle, guards included, ends the manager's threads. It waits for the keeper,
/// callback and listener threads, each at most 0.1 s longer than the response timeout (counted as
/// 0.1 s if it is shorter).
///
/// Call the methods that take a lock here, with a key, or on a [`Lock`], which also has options,
/// [`holder`](Lock::holder) and [`force_unlock`](Lock::force_unlock).
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

    /// [`Lock::lock`] on the named lock, its errors included.
    pub fn lock(&self, key: impl AsRef<str>) -> Result<LockGuard, Error> {
        self.request(key.as_ref()).lock()
    }

    /// [`Lock::try_lock`] on the named lock, its errors included.
    pub fn try_lock(&self, key: impl AsRef<str>) -> Result<Option<LockGuard>, Error> {
        self.request(key.as_ref()).try_lock_for(Duration::ZERO)
    }

    /// [`Lock::try_lock_for`] on the named lock, its errors included.
    pub fn try_lock_for(&self, key: impl AsRef<str>, limit: Duration) -> Result<Option<LockGuard>, Error> {
        self.request(key.as_ref()).try_lock_for(limit)
    }

    /// [`Lock::with_lock`] on the named lock, its errors included.
    pub fn with_lock<T>(&self, key: impl AsRef<str>, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.request(key.as_ref()).with_lock(body)
    }

    /// [`Lock::with_lock_result`] on the named lock, its errors included.
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

/// A panic under a lock leaves nothing half done here: the lock is released on the way out.
impl UnwindSafe for LockManager {}
impl RefUnwindSafe for LockManager {}
