//! What a program asks about an error: what kind it is, and which lock it is about.

use crate::base::error::{Error, TIME_IS_UP};

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

    /// True if the same call may succeed later even if nothing is changed: the lock was busy, or
    /// Redis was not available.
    ///
    /// This says nothing about whether the *work* may be repeated: a closure under a lock may have
    /// begun before it asked for another lock, which was busy. [`body_ran`](Error::body_ran) says
    /// that.
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

    /// Whether work under a lock may be done, or half done: this thread held a lock when the error
    /// was made, or had just run a closure under it. If false, no closure under a lock led up to
    /// the error, and the call can be repeated.
    ///
    /// The answer belongs to the error: it is the same in another thread, and later. It is true for
    /// [`Lost`](Error::Lost), [`OuterLost`](Error::OuterLost) and
    /// [`Unconfirmed`](Error::Unconfirmed), and for the error of an inner lock that comes out of a
    /// closure or past a guard, through any type of the program. Code that itself runs under a lock
    /// therefore gets true for each call that fails.
    ///
    /// **`false` says nothing about work that had ended before the call began.** If a function
    /// takes two locks one after the other, and the second one is busy, the work under the first
    /// one is done. So ask about each call on its own. An error about an invalid value, such as
    /// [`InvalidKey`](Error::InvalidKey), is false wherever it was made, and so are
    /// [`System`](Error::System) and [`NothingToAdopt`](Error::NothingToAdopt). [The page on
    /// errors](crate::guide::errors) has the answer of each error.
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
        match self {
            Error::Timeout { held, .. }
            | Error::Unavailable { held, .. }
            | Error::Refused { held, .. }
            | Error::Tls { held, .. }
            | Error::NotALock { held, .. }
            | Error::Stopped { held, .. } => !held.is_empty(),
            // Only a thread that has, or had, a hold gets these.
            Error::Lost { .. }
            | Error::OuterLost { .. }
            | Error::Unconfirmed { .. }
            | Error::WouldDeadlock { .. }
            | Error::AlreadyHeld { .. }
            | Error::OtherGuards { .. }
            | Error::DepthOverflow { .. } => true,
            // A guard gave this reason.
            Error::InvalidOption { reason, .. } => *reason == TIME_IS_UP,
            Error::InvalidKey { .. }
            | Error::NoFence { .. }
            | Error::NothingToAdopt { .. }
            | Error::NotHeld { .. }
            | Error::Forked { .. }
            | Error::System { .. }
            | Error::Setup { .. } => false,
        }
    }

    /// The same error, made while this thread held these locks.
    pub(crate) fn while_holding(mut self, names: Vec<String>) -> Error {
        if let Error::Timeout { held, .. }
        | Error::Unavailable { held, .. }
        | Error::Refused { held, .. }
        | Error::Tls { held, .. }
        | Error::NotALock { held, .. }
        | Error::Stopped { held, .. } = &mut self
        {
            *held = names;
        }
        self
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
