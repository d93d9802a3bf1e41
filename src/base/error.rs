//! Everything that can go wrong, one variant per thing a caller might do about it.

use std::error::Error as StdError;
use std::time::Duration;

use crate::base::holder::Holder;

/// Why an operation on a lock did not do what was asked.
///
/// Three answers are never mixed up: the lock is *busy* ([`Error::Timeout`], or `Ok(None)` from the `try_`
/// methods), Redis is *unreachable* ([`Error::Unavailable`], [`Error::Refused`]), or a hold that was there is
/// *lost* ([`Error::Lost`]). Messages name the key and the server; no message holds a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The lock was not to be had before the wait was over: somebody else held it or, where there
    /// is a `source`, the limit was too short to find that out.
    ///
    /// Only where a wait has a limit: see [`Lock::wait`](crate::Lock::wait).
    #[error("{}", timed_out(key, *waited, holder.as_deref(), source.is_some()))]
    #[non_exhaustive]
    Timeout {
        /// The lock's key.
        key: String,
        /// How long the caller waited.
        waited: Duration,
        /// Who held the lock when Redis was last asked, where it was known.
        holder: Option<Box<Holder>>,
        /// What took the time, where Redis was not asked in time or had no time to answer.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },

    /// The hold can no longer be trusted: somebody else may have held the lock meanwhile.
    ///
    /// What was done under the lock since it was lost was done without it. Set a longer
    /// [`lease`](crate::Lock::lease), or make the work shorter.
    #[error("lock {key:?} was lost: {cause}")]
    #[non_exhaustive]
    Lost {
        /// The lock's key.
        key: String,
        /// What happened to it.
        cause: LostCause,
    },

    /// The release was sent, or could not be, and no answer came: the key may stand in Redis a while longer.
    ///
    /// The hold was valid until the release, so the work was done under the lock. Others may have
    /// to wait, but no longer than `at_most`. That is zero where the lease ran out while the
    /// release was on its way, and Redis says that the key is gone or another's by then.
    #[error("the release of lock {key:?} is not confirmed, {}", may_stand(*at_most))]
    #[non_exhaustive]
    Unconfirmed {
        /// The lock's key.
        key: String,
        /// How long the key can still stand in Redis.
        at_most: Duration,
        /// What kept the answer from coming, or from saying anything.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// Redis could not be reached, or did not answer in time.
    ///
    /// It was tried again, as long as the wait allowed or, for a wait without limit, for
    /// [`tolerate_outage`](crate::Builder::tolerate_outage).
    #[error("redis at {server} is unavailable ({action})")]
    #[non_exhaustive]
    Unavailable {
        /// Host and port, or the socket's path.
        server: String,
        /// What was being done.
        action: String,
        /// What happened on the wire.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// Redis answered, and said no in a way that waiting does not change: a wrong password, a missing
    /// right, no memory left, a wrong database.
    #[error("redis at {server} refused ({action}): {message}")]
    #[non_exhaustive]
    Refused {
        /// Host and port, or the socket's path.
        server: String,
        /// What was being done.
        action: String,
        /// The first word of the server's error, such as `NOPERM` or `OOM`.
        code: String,
        /// The server's whole error.
        message: String,
    },

    /// The Redis key holds something that no lock of this crate could have put there.
    ///
    /// A value that is not a string, or a string that never expires and would be waited for without end.
    /// Find out who wrote it; [`force_unlock`](crate::Lock::force_unlock) deletes it.
    #[error("lock {key:?} cannot be taken: redis key {redis_key:?} holds {found}")]
    #[non_exhaustive]
    NotALock {
        /// The lock's key.
        key: String,
        /// The key in Redis: prefix and key.
        redis_key: String,
        /// What stands there.
        found: String,
    },

    /// The key is not fit to be a lock's name. Nothing was sent.
    #[error("a key of {length} bytes cannot name a lock: {reason}")]
    #[non_exhaustive]
    InvalidKey {
        /// The key's length in bytes.
        length: usize,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// An option has a value that cannot work. Nothing was sent.
    #[error("option `{option}` cannot be {value}: {reason}")]
    #[non_exhaustive]
    InvalidOption {
        /// The setter's name.
        option: &'static str,
        /// The value it was given (never a password).
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },

    /// This thread holds the key through another manager, so waiting would be waiting for itself.
    #[error("this thread already holds {key:?} through another LockManager: waiting would never end")]
    #[non_exhaustive]
    WouldDeadlock {
        /// The lock's key.
        key: String,
    },

    /// The process was forked since the manager was made.
    ///
    /// A child holds nothing and must not touch its parent's connections. Nor is it safe for it to make a manager of
    /// its own, once its parent had one: threads that the copy does not have left their marks in it. Fork before the
    /// first manager is made, or `exec` after the fork.
    #[error("this manager is of process {parent}, and this is its child {child}: fork before one is made")]
    #[non_exhaustive]
    Forked {
        /// The process that made the manager.
        parent: u32,
        /// The process that is running.
        child: u32,
    },

    /// The thread holds more than a million guards of one lock: some are being leaked.
    #[error("lock {key:?} is held {depth} deep by this thread: its guards are not dropped")]
    #[non_exhaustive]
    DepthOverflow {
        /// The lock's key.
        key: String,
        /// How deep it is held.
        depth: u32,
    },

    /// The system would not start a thread, which a manager needs to be made, and a hold to be
    /// renewed or watched. A lock that was being taken was given back; a hold that was there is
    /// there still.
    #[error("a thread that the lock manager needs cannot be started")]
    #[non_exhaustive]
    NoThread {
        /// What the system said.
        source: std::io::Error,
    },

    /// The system had no random bits for a token. Nothing was sent.
    #[error("the system gives no random bits, and without them no lock can be told from another")]
    #[non_exhaustive]
    NoRandomness {
        /// What the system said.
        source: std::io::Error,
    },

    /// [`relatch::with_lock`](crate::with_lock) was called before [`relatch::install`](crate::install).
    #[error("no process-wide manager: call relatch::install(manager) first")]
    NotInstalled,

    /// [`relatch::install`](crate::install) was called twice.
    #[error("a process-wide manager is already installed")]
    AlreadyInstalled,
}

impl Error {
    /// True if the lock was busy for the whole wait.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Error::Timeout { .. })
    }

    /// True if a hold was lost.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }

    /// True if Redis could not be reached, did not answer, or refused.
    #[must_use]
    pub fn is_unavailable(&self) -> bool {
        matches!(self, Error::Unavailable { .. } | Error::Refused { .. })
    }
}

/// For programs whose errors are [`std::io::Error`]: a timeout is [`TimedOut`], all others are
/// [`Other`], and this error is inside.
///
/// [`TimedOut`]: std::io::ErrorKind::TimedOut
/// [`Other`]: std::io::ErrorKind::Other
impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        let kind = if error.is_timeout() { std::io::ErrorKind::TimedOut } else { std::io::ErrorKind::Other };
        std::io::Error::new(kind, error)
    }
}

/// How a hold was lost, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostCause {
    /// The lease ran out before the lock was released.
    #[error("its lease ran out")]
    Expired,
    /// The key was gone from Redis before the lease had run out: deleted, flushed or evicted, or Redis was
    /// restarted, or its clock stepped.
    #[error("its key was deleted")]
    Deleted,
    /// Somebody else's value stands at the key.
    #[error("it was taken by somebody else")]
    Taken,
}

fn may_stand(at_most: Duration) -> String {
    if at_most.is_zero() {
        return "its lease is over by now".to_owned();
    }
    format!("its key may stand for up to {at_most:.1?}")
}

fn timed_out(key: &str, waited: Duration, holder: Option<&Holder>, cut_short: bool) -> String {
    match holder {
        Some(holder) => format!("lock {key:?} was still busy after {waited:.1?}, held by {holder}"),
        None if cut_short => format!("lock {key:?} was not taken within {waited:.1?}"),
        None => format!("lock {key:?} was still busy after {waited:.1?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_small_and_can_be_sent() {
        fn sendable<T: StdError + Send + Sync + 'static>() {}
        sendable::<Error>();
        assert!(size_of::<Error>() <= 104, "{}", size_of::<Error>());
    }

    #[test]
    fn a_release_that_is_not_confirmed_says_for_how_long_the_key_may_stand() {
        let error = |at_most| {
            let source = "no answer".into();
            Error::Unconfirmed { key: "a".to_owned(), at_most, source }.to_string()
        };
        let begins = "the release of lock \"a\" is not confirmed, ";
        assert_eq!(error(Duration::from_secs(3)), format!("{begins}its key may stand for up to 3.0s"));
        assert_eq!(error(Duration::ZERO), format!("{begins}its lease is over by now"));
    }

    #[test]
    fn a_timeout_names_the_holder() {
        let token = format!("host-1-2-{}", "a".repeat(32));
        let holder = Holder::new(token.as_bytes(), Some(Duration::from_secs(12)));
        let error = Error::Timeout {
            key: "orders:42".to_owned(),
            waited: Duration::from_secs(5),
            holder: Some(Box::new(holder)),
            source: None,
        };
        assert_eq!(
            error.to_string(),
            r#"lock "orders:42" was still busy after 5.0s, held by host-1-2 (12.0s left)"#
        );
    }

    #[test]
    fn a_timeout_does_not_claim_to_know_what_was_not_found_out() {
        let (key, waited) = ("a".to_owned(), Duration::from_millis(5));
        let error =
            Error::Timeout { key, waited, holder: None, source: Some("no connection was free".into()) };
        assert_eq!(error.to_string(), r#"lock "a" was not taken within 5.0ms"#);
        assert_eq!(error.source().expect("a source").to_string(), "no connection was free");
        assert!(error.is_timeout() && !error.is_unavailable());
    }
}
