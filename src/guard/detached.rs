//! A hold that belongs to no thread, on its way from one to another.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;

use crate::base::emit::debug;
use crate::base::error::Error;
use crate::guard::{LockGuard, LockWatch};
use crate::hold::{Hold, Unlocked};
use crate::session::{Session, handing_over};
use crate::waiting::queues::Turn;

/// A lock that this process holds, but none of its threads: on its way from one thread to another.
/// [`LockGuard::detach`] makes one.
///
/// The hold goes on all the while: it has the same token and fence, and its lease is renewed. It is
/// `Send`, so a channel or a field of a job can carry it. [`attach`](DetachedHold::attach) turns it
/// into a guard again, in whichever thread calls it. Dropping the detached hold releases the lock,
/// as dropping the guard does: it never panics, waits for the answer for at most the response
/// timeout, and logs errors.
///
/// While a hold is detached, no thread re-enters it. A thread that wants the lock waits, and the
/// thread that detached it waits like any other. Nobody knows which thread will attach the hold, so
/// no [`Error::WouldDeadlock`] reports that they wait for each other.
///
/// A detached hold that is forgotten ([`std::mem::forget`]) keeps the lock until the process ends,
/// for at most [`max_hold`](crate::Lock::max_hold): there is no thread whose exit would show that
/// nobody needs it.
///
/// ```
/// # use std::thread;
/// # fn main() -> Result<(), relatch::Error> {
/// # let locks = relatch::LockManager::in_memory();
/// let guard = locks.lock("orders:42")?;
/// let hold = guard.detach()?;
/// thread::spawn(move || {
///     let guard = hold.attach()?; // The lock was never free in between.
///     locks.with_lock("orders:42", || println!("re-entered"))?;
///     guard.unlock()
/// });
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released as soon as the detached hold is dropped"]
#[clippy::has_significant_drop]
pub struct DetachedHold {
    session: Arc<Session>,
    hold: Arc<Hold>,
    /// The hold's turn in this process's queue. `None` once the hold has been released or attached.
    turn: Option<Turn>,
}

impl DetachedHold {
    pub(super) fn new(session: Arc<Session>, hold: Arc<Hold>, turn: Turn) -> DetachedHold {
        DetachedHold {
            session,
            hold,
            turn: Some(turn),
        }
    }

    /// Gives the hold to this thread. Sends nothing and does not block, unless an error drops the
    /// hold.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let hold = locks.lock("orders:42")?.detach()?;
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| {
    ///         let guard = hold.attach().expect("nobody took it away");
    ///         println!("thread {:?} goes on with {}", std::thread::current().id(), guard.key());
    ///     });
    /// });
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// On error, the hold is dropped, which releases the lock.
    /// [`try_attach`](DetachedHold::try_attach) returns the hold instead.
    ///
    /// - [`Error::Lost`]: the hold can no longer be trusted.
    /// - [`Error::AlreadyHeld`]: this thread holds the lock, through another hold. (Then at least
    ///   one of the two is lost, or soon will be.)
    /// - [`Error::Forked`].
    pub fn attach(self) -> Result<LockGuard, Error> {
        self.try_attach().map_err(|(_, error)| error)
    }

    /// Like [`attach`](DetachedHold::attach), with the same errors. If the thread does not get the
    /// hold, the caller keeps it.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// use relatch::LostCause;
    ///
    /// let hold = locks.lock("orders:42")?.detach()?;
    /// locks.memory().expect("it is in memory").lose("orders:42", LostCause::Expired);
    /// let (hold, error) = hold.try_attach().expect_err("it was lost");
    /// assert!(error.is_lost() && !hold.watch().is_valid());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[expect(
        clippy::missing_errors_doc,
        reason = "they are those of `attach`, which lists them"
    )]
    #[expect(clippy::result_large_err, reason = "it is matched where it comes back")]
    pub fn try_attach(mut self) -> Result<LockGuard, (DetachedHold, Error)> {
        match handing_over::attach(&self.session, &self.hold, &mut self.turn) {
            Ok(held) => Ok(LockGuard::new(Arc::clone(&self.session), held)),
            Err(error) => Err((self, error)),
        }
    }

    /// Releases the lock, and returns the result, as [`LockGuard::unlock`] does.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let hold = locks.lock("orders:42")?.detach()?;
    /// assert_eq!(hold.unlock()?, relatch::Unlocked::Released);
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], [`Error::Unconfirmed`], [`Error::Forked`]: as for [`LockGuard::unlock`].
    pub fn unlock(mut self) -> Result<Unlocked, Error> {
        self.release()
    }

    /// Like [`LockGuard::watch`].
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let hold = locks.lock("orders:42")?.detach()?;
    /// assert!(hold.watch().is_valid(), "it is renewed on its way");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch::new(Arc::clone(&self.hold), self.session.core.identity.pid)
    }

    fn release(&mut self) -> Result<Unlocked, Error> {
        match self.turn.take() {
            Some(turn) => self.session.release(&self.hold, turn, None),
            None => Ok(Unlocked::Released), // It was attached or unlocked, and this is its drop.
        }
    }
}

impl Drop for DetachedHold {
    fn drop(&mut self) {
        if let Err(error) = self.release() {
            debug!(target: "relatch::release", "dropping the detached hold of lock {:?}: {error}", self.hold.key.name());
        }
    }
}

/// As for [`LockManager`](crate::LockManager).
impl UnwindSafe for DetachedHold {}
impl RefUnwindSafe for DetachedHold {}

impl fmt::Debug for DetachedHold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DetachedHold")
            .field("key", &self.hold.key.name())
            .field("owner", &self.hold.owner)
            .field("is_valid", &self.session.trusts(&self.hold))
            .finish_non_exhaustive()
    }
}
