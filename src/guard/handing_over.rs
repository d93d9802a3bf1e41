//! The ways in which a hold leaves its thread.

use std::sync::Arc;

use crate::base::error::Error;
use crate::guard::{DetachedHold, LockGuard};
use crate::hold::LockParcel;
use crate::session::handing_over;

impl LockGuard {
    /// Takes the hold out of this thread, so that another thread of the process can go on with it.
    /// The lock stays taken, and its lease is renewed all along. Sends nothing and does not block,
    /// unless an error drops the guard.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let hold = locks.lock("orders:42")?.detach()?;
    /// let job = std::thread::spawn(move || hold.attach()?.unlock()); // It was never free in between.
    /// assert!(job.join().expect("no panic").is_ok());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// On error, the guard is dropped.
    ///
    /// - [`Error::OtherGuards`]: this thread has more guards of the lock, and keeps them: functions
    ///   that it called, or that called this one, rely on them. [`current`](crate::Lock::current)
    ///   makes another one.
    /// - [`Error::Lost`]: the hold can no longer be trusted.
    /// - [`Error::NotHeld`]: the thread is exiting, and its map of holds is gone.
    /// - [`Error::Forked`].
    pub fn detach(self) -> Result<DetachedHold, Error> {
        self.detach_or_keep().map_err(|(_, error)| error)
    }

    /// Like [`detach`](LockGuard::detach), but an error returns the guard.
    #[expect(clippy::result_large_err, reason = "it is matched where it comes back")]
    pub(crate) fn detach_or_keep(mut self) -> Result<DetachedHold, (LockGuard, Error)> {
        match handing_over::detach(&self.session, &self.held) {
            Ok(turn) => {
                self.left = true;
                Ok(DetachedHold::new(
                    Arc::clone(&self.session),
                    Arc::clone(&self.held.hold),
                    turn,
                ))
            }
            Err(error) => Err((self, error)),
        }
    }

    /// Hands the lock over to another process or another manager: whoever has the parcel can
    /// [`adopt`](crate::Lock::adopt) the lock.
    ///
    /// Renews the lease, and waits for the answer, for at most the response timeout (and as long
    /// again for the release, if an error drops the guard). From then on this process neither
    /// trusts nor renews the hold, and does not release it. Nobody else can take the lock while the
    /// lease lasts. If nobody has adopted it by the end of the lease, it is free. To take it back,
    /// adopt the parcel here. A hand-over is no loss, so nothing is reported to
    /// [`on_lost`](crate::Builder::on_lost).
    ///
    /// If this process ends before the lock is adopted, a waiter with
    /// [`reclaim_dead`](crate::Lock::reclaim_dead) on the same machine takes the lock. It does not
    /// if this manager is not [`reclaimable`](crate::Builder::reclaimable).
    /// [`keep_at_least`](crate::Lock::keep_at_least) does not travel with the lock: the adopter's
    /// setting counts.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let parcel = locks.lock("orders:42")?.hand_over()?;
    /// let line = parcel.to_string(); // Send it to the other process, for example over a pipe.
    ///
    /// // There:
    /// let guard = locks.adopt(&line.parse()?)?;
    /// assert_eq!(guard.key(), "orders:42");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// On error, the guard is dropped, so this thread gives the lock back.
    /// [`try_hand_over`](LockGuard::try_hand_over) lets the thread keep it.
    ///
    /// - [`Error::OtherGuards`]: this thread has more guards of the lock.
    /// - [`Error::Lost`]: the hold can no longer be trusted.
    /// - [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`]: Redis did not renew the lease.
    ///   The hold is as valid as before.
    /// - [`Error::InvalidOption`] for `max_hold`: time is up, as no lease extends the hold any more
    ///   ([`max_hold`](crate::Lock::max_hold)). Nothing was sent.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn hand_over(self) -> Result<LockParcel, Error> {
        self.try_hand_over().map_err(|(_, error)| error)
    }

    /// Like [`hand_over`](LockGuard::hand_over), with the same errors. If the thread keeps the
    /// hold, it keeps the guard, too.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// locks.memory().expect("it is in memory").go_away(Duration::from_secs(5));
    /// let (guard, error) = guard.try_hand_over().expect_err("nothing answers");
    /// assert!(guard.is_valid(), "this thread goes on: {error}");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[expect(
        clippy::missing_errors_doc,
        reason = "they are those of `hand_over`, which lists them"
    )]
    #[expect(clippy::result_large_err, reason = "it is matched where it comes back")]
    pub fn try_hand_over(mut self) -> Result<LockParcel, (LockGuard, Error)> {
        match handing_over::hand_over(&self.session, &self.held) {
            Ok(parcel) => {
                self.left = true;
                Ok(parcel)
            }
            Err(error) => Err((self, error)),
        }
    }
}
