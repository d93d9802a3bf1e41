//! Several holds in the caller's hands.

use std::fmt;
use std::mem;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::hold::Unlocked;
use crate::session::Session;
use crate::session::several;
use crate::session::thread_map::Held;
use crate::session::upkeep::Upkeep;

/// Several locks that this thread holds, until the guard is dropped or
/// [unlocked](MultiLockGuard::unlock). [`MultiLock::lock`](crate::MultiLock::lock) returns one.
///
/// It counts as one guard of each of the locks. If one of them is lost, the set is lost, and
/// [`remaining`](MultiLockGuard::remaining) is zero. It lacks some methods, such as `watch` and
/// `verify`: for these, [`Lock::current`](crate::Lock::current) makes a guard of one lock. A set
/// cannot be detached.
///
/// Dropping the guard releases the locks that have no other guard, as
/// [`unlock`](MultiLockGuard::unlock) does. Dropping a guard never panics, and logs errors. A guard
/// stays in the thread that took it: it is neither `Send` nor `Sync`.
#[must_use = "the locks are released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct MultiLockGuard {
    session: Arc<Session>,
    /// In the order of the keys. Empty once the guard has been unlocked.
    held: Vec<Rc<Held>>,
}

impl MultiLockGuard {
    pub(crate) fn new(session: Arc<Session>, held: Vec<Rc<Held>>) -> MultiLockGuard {
        MultiLockGuard { session, held }
    }

    /// The locks' keys, sorted, each once.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let both = locks.several(["b", "a"]).lock()?;
    /// assert_eq!(both.keys().collect::<Vec<_>>(), ["a", "b"]);
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn keys(&self) -> impl Iterator<Item = &str> + '_ {
        self.held.iter().map(|held| &**held.hold.key.name())
    }

    /// The fencing token of one of these locks: see [`LockGuard::fence`](crate::LockGuard::fence).
    /// `None` if it is not fenced, or if the guard does not have this lock.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let both = locks.several(["a", "b"]).options(|lock| lock.fenced(true)).lock()?;
    /// assert!(both.fence("a").is_some() && both.fence("c").is_none());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn fence(&self, key: impl AsRef<str>) -> Option<u64> {
        let held = self
            .held
            .iter()
            .find(|held| &**held.hold.key.name() == key.as_ref())?;
        held.hold.fence
    }

    /// Whether this process may still trust all of the holds: see
    /// [`LockGuard::is_valid`](crate::LockGuard::is_valid). Sends nothing.
    fn is_valid(&self) -> bool {
        self.held.iter().all(|held| self.session.trusts(&held.hold))
    }

    /// How long all of the holds may still be trusted; zero if one is lost. Sends nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let both = locks.several(["a", "b"]).lock()?;
    /// assert!(both.remaining() > Duration::from_secs(20));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if !self.is_valid() {
            return Duration::ZERO;
        }
        let now = Moment::now();
        self.held
            .iter()
            .map(|held| held.hold.remaining(now))
            .min()
            .unwrap_or_default()
    }

    /// Returns `Ok` only if Redis has just said that all of the locks are held, and at least `span`
    /// of each lease is left. Call it before a step that cannot be undone: see
    /// [`LockGuard::confirm`](crate::LockGuard::confirm).
    ///
    /// Renews all leases together and waits for the answers, for at most the response timeout.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # fn transfer() {}
    /// let both = locks.several(["a", "b"]).lock()?;
    /// both.confirm(Duration::from_secs(5))?; // Redis says: all are ours, for 5 s at least
    /// transfer();
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::confirm`](crate::LockGuard::confirm); an error names the key.
    pub fn confirm(&self, span: Duration) -> Result<(), Error> {
        self.upkeep().confirm(span)
    }

    /// Returns `Ok` only if at least `span` of each lease is left, by this machine's clock. Renews
    /// all of them if less is left of one: see [`LockGuard::ensure`](crate::LockGuard::ensure).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let both = locks.several(["a", "b"]).lock()?;
    /// both.ensure(Duration::from_secs(5))?; // by the clock
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`LockGuard::ensure`](crate::LockGuard::ensure); an error names the key.
    pub fn ensure(&self, span: Duration) -> Result<(), Error> {
        self.upkeep().ensure(span)
    }

    /// Drops the guard, and returns the result. All locks are given back, even if one of them was
    /// lost.
    ///
    /// Blocks for one round trip to each node, and for one more for each lock that a thread of this
    /// process waits for or that is to be kept, but for the response timeout at most.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let both = locks.several(["a", "b"]).lock()?;
    /// both.unlock()?;
    /// assert!(locks.held().is_empty());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: one of the locks was lost; the error names the first by key. Or
    ///   [`Error::OuterLost`], for a lock outside the set.
    /// - [`Error::Unconfirmed`]: no answer came for one of them, and none was lost.
    /// - [`Error::Forked`].
    pub fn unlock(mut self) -> Result<(), Error> {
        self.leave_()
    }

    fn upkeep(&self) -> Upkeep<'_> {
        Upkeep {
            session: &self.session,
            held: &self.held,
        }
    }

    fn leave_(&mut self) -> Result<(), Error> {
        let held = mem::take(&mut self.held);
        let results = several::leave_all(&self.session, &held, None);
        let mut errors = Vec::new();
        for (held, result) in held.iter().zip(results) {
            match result {
                // Other guards rely on it.
                Ok(Unlocked::StillHeld { .. }) => {
                    errors.extend(self.session.trust(&held.hold).err());
                }
                Ok(_) => {}
                Err(error) => errors.push(error),
            }
        }
        // The loss of one of these locks says more than the loss of an outer lock, or than a
        // release without an answer.
        let rank = |error: &Error| (!matches!(error, Error::Lost { .. }), !error.is_lost());
        errors.into_iter().min_by_key(rank).map_or(Ok(()), Err)
    }
}

impl Drop for MultiLockGuard {
    fn drop(&mut self) {
        if !self.held.is_empty()
            && let Err(error) = self.leave_()
        {
            // The code that finds a loss or a release without an answer logs it at a higher level.
            debug!(target: "relatch::release", "dropping the guard of several locks: {error}");
        }
    }
}

/// As for [`LockManager`](crate::LockManager).
impl UnwindSafe for MultiLockGuard {}
impl RefUnwindSafe for MultiLockGuard {}

impl fmt::Debug for MultiLockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MultiLockGuard")
            .field("keys", &self.keys().collect::<Vec<_>>())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
