//! What a program asks of an error: what kind it is, and which lock it is about.

use crate::base::error::Error;
use crate::base::error::body::Made;

impl Error {
    /// True for [`Error::Timeout`]: the wait ended before this thread got the lock.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # let busy = locks.lock("orders:42")?.detach()?;
    /// let error = locks.named("orders:42").wait(Duration::ZERO).lock().expect_err("it is busy");
    /// assert!(error.is_timeout());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Timeout { .. })
    }

    /// True for [`Error::Lost`] and [`Error::OuterLost`]: a hold can no longer be trusted. (With
    /// `OuterLost`, that is not the hold of the lock that [`key`](Error::key) names.)
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let lost = locks.with_lock("orders:42", || {
    ///     // Somebody deletes the key.
    ///     locks.memory().expect("it is in memory").lose("orders:42", relatch::LostCause::Deleted);
    /// });
    /// assert!(lost.is_err_and(|error| error.is_lost()));
    /// ```
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. } | Error::OuterLost { .. })
    }

    /// True for [`Error::Unavailable`], [`Error::Refused`] and [`Error::Tls`]: Redis could not be
    /// reached, or did not do what was asked.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.memory().expect("it is in memory").go_away(Duration::from_secs(60));
    /// assert!(locks.try_lock("orders:42").is_err_and(|error| error.is_redis_failure()));
    /// ```
    #[must_use]
    pub fn is_redis_failure(&self) -> bool {
        matches!(
            self,
            Error::Unavailable { .. } | Error::Refused { .. } | Error::Tls { .. }
        )
    }

    /// True if the same call may succeed later though nothing is changed: the lock was busy, or
    /// Redis was not available.
    ///
    /// Says nothing about whether the *work* may be repeated: a closure under a lock may have begun
    /// before it called for another lock, which was busy. [`body_ran`](Error::body_ran) says that.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # let busy = locks.lock("orders:42")?.detach()?;
    /// let error = locks.named("orders:42").wait(Duration::ZERO).lock().expect_err("it is busy");
    /// assert!(error.is_retryable(), "it may be free later");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Unavailable { .. })
    }

    /// Whether work under a lock may have been done in the call that returned this error. `false`
    /// only if that is certain: no closure had begun under a lock, and no guard was dropped. Then
    /// the call can be repeated.
    ///
    /// If it is true, some of the work may be done, or all of it ([`Error::Lost`] after the
    /// closure), or none: the lock was busy for which the closure itself has called, and it gave up
    /// with that [`Timeout`](Error::Timeout). The error may have come through any type of the
    /// program, and past several closures and guards. Where a guard is alive or a closure runs, the
    /// question is about the locks taken since.
    ///
    /// **`false` says nothing of work that had ended before the call began.** If a function takes
    /// two locks one after the other, and the second one is busy, the work under the first one is
    /// done. So ask of each call by itself.
    ///
    /// Ask in the thread that made the call, and before it drops another guard or runs another
    /// closure under a lock; later or elsewhere, the answer is true. For [`Error::Unconfirmed`] it
    /// is always true. [The page on errors](crate::guide::errors) has the answer of each error.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use relatch::{Error, LockManager};
    /// # fn transfer() {}
    /// fn book(locks: &LockManager) -> Result<(), Error> {
    ///     let inner = locks.named("account:3").wait(Duration::from_millis(1));
    ///     locks.with_lock_result("account:7", |_| inner.with_lock(transfer))
    /// }
    ///
    /// # let locks = LockManager::in_memory();
    /// # let stays = locks.lock("account:3")?.detach()?;
    /// let error = book(&locks).expect_err("somebody has account:3");
    /// assert!(error.is_timeout() && error.body_ran(), "the outer closure may have worked");
    /// # Ok::<(), Error>(())
    /// ```
    #[must_use]
    pub fn body_ran(&self) -> bool {
        let made = match self {
            Error::Unconfirmed { .. } => return true,
            Error::Timeout { made, .. }
            | Error::Lost { made, .. }
            | Error::OuterLost { made, .. }
            | Error::Unavailable { made, .. }
            | Error::Refused { made, .. }
            | Error::Tls { made, .. }
            | Error::NotALock { made, .. }
            | Error::InvalidKey { made, .. }
            | Error::NoFence { made, .. }
            | Error::InvalidOption { made, .. }
            | Error::WouldDeadlock { made, .. }
            | Error::Stopped { made, .. }
            | Error::Forked { made, .. }
            | Error::NothingToAdopt { made, .. }
            | Error::NotHeld { made, .. }
            | Error::AlreadyHeld { made, .. }
            | Error::OtherGuards { made, .. }
            | Error::DepthOverflow { made, .. }
            | Error::System { made, .. }
            | Error::Setup { made, .. } => made,
        };
        *made != Made::now()
    }

    /// The key of the lock that the error is about, if the error names one.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # let busy = locks.lock("orders:42")?.detach()?;
    /// let error = locks.named("orders:42").wait(Duration::ZERO).lock().expect_err("it is busy");
    /// assert_eq!(error.key(), Some("orders:42"));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Error::Timeout { key, .. }
            | Error::Lost { key, .. }
            | Error::Unconfirmed { key, .. }
            | Error::NotALock { key, .. }
            | Error::NoFence { key, .. }
            | Error::NotHeld { key, .. }
            | Error::NothingToAdopt { key, .. }
            | Error::OuterLost { key, .. }
            | Error::Stopped { key, .. }
            | Error::AlreadyHeld { key, .. }
            | Error::OtherGuards { key, .. }
            | Error::WouldDeadlock { key, .. }
            | Error::DepthOverflow { key, .. } => Some(key),
            Error::Unavailable { key, .. } | Error::Refused { key, .. } => key.as_deref(),
            _ => None,
        }
    }
}

/// For programs whose errors are [`std::io::Error`]. The kind is [`TimedOut`] for
/// [`Error::Timeout`], [`Deadlock`] for [`Error::WouldDeadlock`] and [`Other`] for all other
/// variants, and this error is the inner error.
///
/// [`TimedOut`]: std::io::ErrorKind::TimedOut
/// [`Deadlock`]: std::io::ErrorKind::Deadlock
/// [`Other`]: std::io::ErrorKind::Other
impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        let kind = match error {
            Error::Timeout { .. } => std::io::ErrorKind::TimedOut,
            Error::WouldDeadlock { .. } => std::io::ErrorKind::Deadlock,
            _ => std::io::ErrorKind::Other,
        };
        std::io::Error::new(kind, error)
    }
}
