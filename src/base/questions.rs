//! What a program asks of an error: what kind it is, and which lock it is about.

use crate::base::error::Error;

impl Error {
    /// True for [`Error::Timeout`]: the wait ended before this thread got the lock.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Timeout { .. })
    }

    /// True for [`Error::Lost`] and [`Error::OuterLost`]: a hold can no longer be trusted. (With
    /// `OuterLost`, that is not the hold of the lock that [`key`](Error::key) names.)
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. } | Error::OuterLost { .. })
    }

    /// True for [`Error::Unavailable`], [`Error::Refused`] and [`Error::Tls`]: Redis did not do
    /// what was asked.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::Refused { .. } | Error::Tls { .. })
    }

    /// True if the same call may succeed later though nothing is changed: the lock was busy, or
    /// Redis was not available.
    ///
    /// Says nothing about whether the *work* may be repeated: after [`Error::Lost`] and
    /// [`Error::Unconfirmed`], the work was done.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Error::Timeout { .. } | Error::Unavailable { .. })
    }

    /// The key of the lock that the error is about, if the error names one.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Error::Timeout { key, .. }
            | Error::Lost { key, .. }
            | Error::Unconfirmed { key, .. }
            | Error::NotALock { key, .. }
            | Error::NoFence { key, .. }
            | Error::NotHeld { key }
            | Error::NothingToAdopt { key, .. }
            | Error::OuterLost { key, .. }
            | Error::Stopped { key }
            | Error::AlreadyHeld { key }
            | Error::OtherGuards { key, .. }
            | Error::WouldDeadlock { key, .. }
            | Error::DepthOverflow { key, .. } => Some(key),
            Error::Unavailable { key, .. } | Error::Refused { key, .. } => key.as_deref(),
            _ => None,
        }
    }
}

/// For programs whose errors are [`std::io::Error`]. The kind is [`TimedOut`] for
/// [`Error::Timeout`] and [`Other`] for all other variants, and this error is the inner error.
///
/// [`TimedOut`]: std::io::ErrorKind::TimedOut
/// [`Other`]: std::io::ErrorKind::Other
impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        let kind = if error.is_timeout() { std::io::ErrorKind::TimedOut } else { std::io::ErrorKind::Other };
        std::io::Error::new(kind, error)
    }
}
