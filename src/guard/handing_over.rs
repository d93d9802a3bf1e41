//! The ways in which a hold leaves its thread, and what comes back if it cannot.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::base::error::Error;
use crate::guard::{DetachedHold, LockGuard};
use crate::hold::Parcel;

impl LockGuard {
    /// Takes the hold out of this thread, so that another thread of the process can go on with it.
    /// The lock stays taken, and its lease is renewed all along. Sends nothing and does not block.
    ///
    /// # Errors
    ///
    /// Each error has the guard, and this thread still holds the lock; see [`HandOverError`].
    ///
    /// - [`Error::OtherGuards`]: this thread has more guards of the lock. Functions that it called,
    ///   or that called this one, rely on them.
    /// - [`Error::Lost`]: the hold can no longer be trusted.
    /// - [`Error::NotHeld`]: the thread is ending, and its map of holds is gone.
    /// - [`Error::Forked`].
    pub fn detach(mut self) -> Result<DetachedHold, HandOverError<LockGuard>> {
        match self.session.detach(&self.held) {
            Ok(turn) => {
                self.left = true;
                Ok(DetachedHold::new(Arc::clone(&self.session), Arc::clone(&self.held.hold), turn))
            }
            Err(error) => Err(HandOverError::new(self, error)),
        }
    }

    /// Hands the lock over to another process, or to another manager: the one that has the parcel
    /// can [`adopt`](crate::Lock::adopt) the lock.
    ///
    /// Renews the lease, and waits for the answer, at most for the response timeout. From then on
    /// this process neither trusts nor renews the hold, and does not release it. Nobody else can
    /// take the lock while the lease lasts. If nobody adopts it by then, it is free. To take it
    /// back, adopt the parcel here. A hand-over is no loss, so nothing is reported to
    /// [`on_lost`](crate::Builder::on_lost).
    ///
    /// If this process ends before the lock is adopted, a waiter with
    /// [`reclaim_dead`](crate::Lock::reclaim_dead) on the same machine takes the lock.
    /// [`keep_at_least`](crate::Lock::keep_at_least) does not follow the lock: the adopter's
    /// counts.
    ///
    /// ```no_run
    /// # use std::io::Write;
    /// # use std::process::{Command, Stdio};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
    /// let guard = locks.lock("orders:42")?;
    /// let mut child = Command::new("ship-order").stdin(Stdio::piped()).spawn()?;
    /// let parcel = guard.hand_over()?;
    /// writeln!(child.stdin.take().expect("a pipe"), "{parcel}")?;
    /// // In `ship-order`: let guard = locks.adopt(&line.parse()?)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Each error has the guard, and this thread still holds the lock, unless it is lost; see
    /// [`HandOverError`].
    ///
    /// - [`Error::OtherGuards`]: this thread has more guards of the lock.
    /// - [`Error::Lost`]: the hold can no longer be trusted.
    /// - [`Error::Unavailable`], [`Error::Refused`]: Redis did not renew the lease. The hold is as
    ///   valid as before.
    /// - [`Error::NoThread`], [`Error::Forked`].
    pub fn hand_over(mut self) -> Result<Parcel, HandOverError<LockGuard>> {
        match self.session.hand_over(&self.held) {
            Ok(parcel) => {
                self.left = true;
                Ok(parcel)
            }
            Err(error) => Err(HandOverError::new(self, error)),
        }
    }
}

/// Why a hold could not be handed over, and the hold itself: the [`LockGuard`] or [`DetachedHold`]
/// on which the method was called.
///
/// Dropping this error drops the hold, which releases the lock. So does `?` in a function that
/// returns [`Error`]. To keep the lock, take the hold out:
/// [`into_inner`](HandOverError::into_inner).
pub struct HandOverError<T>(Box<(T, Error)>);

impl<T> HandOverError<T> {
    pub(super) fn new(hold: T, error: Error) -> HandOverError<T> {
        HandOverError(Box::new((hold, error)))
    }

    /// Why the hold could not be handed over.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.0.1
    }

    /// The hold, as it was before the call.
    #[must_use]
    pub fn into_inner(self) -> T {
        self.0.0
    }

    /// Both.
    #[must_use]
    pub fn into_parts(self) -> (T, Error) {
        *self.0
    }
}

/// Drops the hold, which releases the lock.
impl<T> From<HandOverError<T>> for Error {
    fn from(error: HandOverError<T>) -> Error {
        error.into_parts().1
    }
}

impl<T> fmt::Display for HandOverError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl<T> fmt::Debug for HandOverError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HandOverError").field("error", self.error()).finish_non_exhaustive()
    }
}

impl<T> StdError for HandOverError<T> {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.error().source()
    }
}
