//! The error type: one variant for each thing that a caller can react to.

mod questions;
mod wording;
pub(crate) mod cause;

use std::error::Error as StdError;
use std::time::Duration;

use crate::base::error::wording::{around, doing, invalid, may_exist, timed_out, would_deadlock};
use crate::base::owner::holder::Holder;

/// The reason in the error of a guard whose `max_hold` is over. Its thread holds the lock, so
/// [`Error::body_ran`] is true.
pub(crate) const TIME_IS_UP: &str =
    "the hold has lasted for nearly as long as it may, and no lease extends it";

pub use crate::base::error::cause::{BlockedThread, LostCause, SetupCause, SystemCause, TlsCause};

/// Why an operation on a lock failed.
///
/// A program can tell three situations apart:
///
/// - The lock is *busy*: [`Error::Timeout`] without a source. The `try_` methods return `Ok(None)`
///   instead.
/// - Redis *failed*: [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`].
/// - A hold was *lost*: [`Error::Lost`]. The work under the lock may have run at the same time as
///   other work.
///
/// [`Error::Unconfirmed`] means that the work was protected and only the release is in doubt. The
/// other variants report a mistake in the program or its setup, or a limit of the system. [The page
/// on errors](crate::guide::errors) has a table: what to do about each, and what to tell the user.
/// No message contains a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The wait ended before this thread got the lock.
    ///
    /// This happens if [`Lock::wait`](crate::Lock::wait) or [`Builder::wait`](crate::Builder::wait)
    /// sets a limit. A `try_` method returns `Ok(None)` instead, unless there is a `source` and no
    /// `holder`.
    ///
    /// If there is a `source`, it is not known whether the lock was busy in the end: the time ran
    /// out before an answer came, and the source says what took so long. If that was the wait for a
    /// connection, raise [`pool_size`](crate::Builder::pool_size).
    #[error("{}", timed_out(key, *waited, holder.as_deref(), held, source.is_some()))]
    Timeout {
        /// The lock's key.
        key: String,
        /// How long the caller waited.
        waited: Duration,
        /// Who held the lock when Redis was last asked, if that is known.
        holder: Option<Box<Holder>>,
        /// The keys of the locks that this thread held while it waited. If another process waits
        /// for one of them and holds this one, both wait in vain.
        held: Vec<String>,
        /// What took the time, if Redis was not asked or did not answer at the end.
        source: Option<Box<dyn StdError + Send + Sync>>,
    },

    /// The hold can no longer be trusted: somebody else may have held the lock in the meantime.
    ///
    /// What this thread did since the loss was not protected by the lock. To go on, drop *all*
    /// guards of the lost lock in this thread, and begin again. Until then, the thread takes no new
    /// lock, through any manager: it gets this error, or [`Error::OuterLost`].
    ///
    /// With a longer [`lease`](crate::Lock::lease), a hold survives longer outages and pauses.
    #[error("lock {key:?} was lost: {cause}")]
    Lost {
        /// The lock's key.
        key: String,
        /// How the hold was lost.
        cause: LostCause,
    },

    /// This thread has lost another lock, which it holds around this one. What it did since then
    /// was not protected by that other lock.
    ///
    /// A thread that has lost a lock gets this error when it takes another one: nothing was sent. A
    /// loss while it waits for this lock ends the wait. If the loss came while it adopted this
    /// lock, the lock was given back, and the parcel is used up. The thread also gets this error
    /// when it releases a lock that it took inside the lost one: the release is done, and what this
    /// lock protects is safe. To go on, do as after [`Error::Lost`].
    #[error("{}, was lost: {cause}", around(outer, key))]
    OuterLost {
        /// The key of the lock that was taken or released.
        key: String,
        /// The key of the lock that was lost.
        outer: String,
        /// How it was lost.
        cause: LostCause,
    },

    /// It is not known whether Redis executed the release. The work itself was protected.
    ///
    /// No answer came within the [`response_timeout`](crate::Builder::response_timeout), or the
    /// lease ran out on the way. The hold was valid when the release began. If the key may still
    /// exist, the manager deletes it in the background.
    #[error("the release of lock {key:?} is not confirmed: {}", may_exist(*at_most))]
    Unconfirmed {
        /// The lock's key.
        key: String,
        /// How long the key can still exist in Redis, and keep others waiting. Zero if Redis
        /// answered that the token is gone.
        at_most: Duration,
        /// Why there is no answer, or why the answer leaves the result in doubt.
        source: Box<dyn StdError + Send + Sync>,
    },

    /// Redis could not be reached, did not answer in time, or cannot serve clients for now: [it
    /// answered](crate::guide::errors#which-redis-errors-are-transient) `LOADING` or the like.
    ///
    /// A thread that waits for a lock tries again until its [`wait`](crate::Lock::wait) is over,
    /// for [`tolerate_outage`](crate::Builder::tolerate_outage) at most. With this error, it does
    /// not have the lock, and may try again at any time. A key that may be left over from a lost
    /// answer is deleted in the background; until then, the lock may seem busy.
    ///
    /// The text of this error ends with its cause. So it has no `source`: code that prints both
    /// would print the cause twice.
    #[error("redis at {server} is unavailable ({}): {cause}", doing(action, key.as_deref()))]
    Unavailable {
        /// Host and port, or the socket's path.
        server: String,
        /// What the manager was doing.
        action: &'static str,
        /// The lock's key, if this was about a lock.
        key: Option<Box<str>>,
        /// What went wrong.
        cause: Box<dyn StdError + Send + Sync>,
        /// The keys of the locks that this thread held when the call failed.
        held: Vec<String>,
    },

    /// Redis answered with an error that somebody has to fix: a wrong password or database, a
    /// missing right, no memory (`OOM`), no disk (`MISCONF`), and all others that are not
    /// [`Error::Unavailable`]. The call ends at once, even in the middle of a wait.
    #[error("redis at {server} refused ({}): {message}", doing(action, key.as_deref()))]
    Refused {
        /// Host and port, or the socket's path.
        server: String,
        /// What the manager was doing.
        action: &'static str,
        /// The lock's key, if this was about a lock.
        key: Option<Box<str>>,
        /// The code of the server's error, such as `NOPERM` or `OOM`.
        code: String,
        /// The server's error, code included. Very long ones are cut.
        message: Box<str>,
        /// The keys of the locks that this thread held when the call failed.
        held: Vec<String>,
    },

    /// No TLS connection could be made, for a reason that waiting does not change.
    ///
    /// A timeout, or a connection that ends in the handshake, is [`Error::Unavailable`].
    #[error("no TLS connection to redis at {server}: {cause}")]
    Tls {
        /// Host and port.
        server: String,
        /// What is wrong.
        cause: TlsCause,
        /// The error in detail.
        source: Box<dyn StdError + Send + Sync>,
        /// The keys of the locks that this thread held when the call failed.
        held: Vec<String>,
    },

    /// The Redis key exists, but its value cannot be a lock of this crate.
    ///
    /// Either the value is not a string, or the key never expires. Find out which program wrote the
    /// key. [`force_unlock`](crate::Lock::force_unlock) deletes it. A
    /// [`prefix`](crate::Builder::prefix) that no other program uses keeps locks apart.
    #[error("lock {key:?} cannot be taken: redis key {redis_key:?} holds {found}")]
    NotALock {
        /// The lock's key.
        key: String,
        /// The key in Redis: prefix and key.
        redis_key: String,
        /// The value that was found.
        found: String,
        /// The keys of the locks that this thread held when the call failed.
        held: Vec<String>,
    },

    /// The key is empty, or longer than 64 KiB. Nothing was sent.
    #[error("a key of {length} bytes cannot name a lock: {reason}")]
    InvalidKey {
        /// The key's length in bytes.
        length: usize,
        /// What is wrong with the key.
        reason: &'static str,
    },

    /// The lock cannot have a [fencing token](crate::LockGuard::fence). Nothing was sent.
    ///
    /// Either its key has braces (`}`, or `{}`) that leave no name for its counter, or this thread
    /// holds the lock already and took it without a fence.
    #[error("lock {key:?} cannot be fenced: {reason}")]
    NoFence {
        /// The lock's key.
        key: String,
        /// Why not.
        reason: &'static str,
    },

    /// An option, or the argument of a method, has an invalid value. Nothing was sent.
    ///
    /// If the option is `max_hold`, and a method of a guard returned this, time is up: nothing
    /// extends the hold any more. Finish now, or stop. [`verify`](crate::LockGuard::verify) still
    /// answers.
    #[error("{}", invalid(option, value.as_deref(), reason))]
    InvalidOption {
        /// The name of the setter or method.
        option: &'static str,
        /// The value that was set. `None` if it may contain a password, or is not text.
        value: Option<String>,
        /// What is wrong with the value.
        reason: &'static str,
    },

    /// This thread would wait for itself: it wants a lock whose holder waits, directly or through
    /// others, for a lock that this thread holds. Every thread in the cycle belongs to this
    /// process.
    ///
    /// One thread in the cycle gets this error at once, and keeps what it holds. The others go on
    /// once it releases that. It is the thread whose wait would end first, since that wait would
    /// fail in any case; if none has a limit, it is the one that closes the cycle. Let all code
    /// take locks in the same order, or take them together.
    ///
    /// ```
    /// # use relatch::{Error, LockManager};
    /// # fn main() -> Result<(), Error> {
    /// # let locks = LockManager::in_memory();
    /// let first = locks.lock("a")?;
    /// match locks.lock("b") {
    ///     Err(error @ Error::WouldDeadlock { .. }) => {
    ///         drop(first); // The other thread goes on. This one begins again.
    ///         println!("{error}");
    ///     }
    ///     second => drop((second?, first)),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// If the cycle has one thread, this thread itself holds the lock, through another
    /// [`LockManager`](crate::LockManager), or it reads and wants to [write](crate::ReadWriteLock).
    /// Reentry works within one manager: clone it instead of making a second one.
    #[error("{}", would_deadlock(cycle))]
    WouldDeadlock {
        /// The lock's key.
        key: String,
        /// The threads, each with the lock that it waits for. This thread comes first. The next one
        /// holds that lock, and so on; this thread holds the lock that the last one waits for.
        cycle: Vec<BlockedThread>,
    },

    /// A [`StopHandle`](crate::StopHandle) has ended this wait, or the manager was [shut
    /// down](crate::LockManager::shutdown). The thread does not have the lock. (After a shutdown,
    /// waits without a handle are `Stopped`, too.)
    #[error("lock {key:?} was not taken: this wait, or the whole manager, was stopped")]
    Stopped {
        /// The lock's key.
        key: String,
        /// The keys of the locks that this thread held when the call failed.
        held: Vec<String>,
    },

    /// The manager was used in a child process that was forked after the manager was made.
    ///
    /// The child holds none of its parent's locks, and cannot safely make a manager of its own:
    /// `fork` does not copy threads, so a mutex that a thread of the parent's manager held stays
    /// locked forever. Fork before the first manager is made, or call `exec` after the fork.
    #[error(
        "this manager belongs to process {parent}, not to its child {child}: fork before making one"
    )]
    Forked {
        /// The process that made the manager.
        parent: u32,
        /// The process that used the manager.
        child: u32,
    },

    /// No key in Redis has anything to do with this parcel.
    ///
    /// The lease ran out, or the key was deleted; or the lock was already adopted, and has been
    /// released since; or this manager has another prefix or server than the one that handed it
    /// over.
    #[error(
        "lock {key:?} cannot be adopted: redis key {redis_key:?} does not exist (its lease ran out, it was \
         adopted and released, or the sender uses another prefix or server)"
    )]
    NothingToAdopt {
        /// The lock's key.
        key: String,
        /// The key in Redis that was looked for: prefix and key.
        redis_key: String,
    },

    /// This thread does not hold the lock. Nothing was sent.
    #[error("this thread does not hold lock {key:?}")]
    NotHeld {
        /// The lock's key.
        key: String,
    },

    /// This thread holds the lock already. Either the lock is not
    /// [`reentrant`](crate::Lock::reentrant), or the thread would have got a second hold of it,
    /// through [`attach`](crate::DetachedHold::attach) or [`adopt`](crate::Lock::adopt). Nothing
    /// was sent.
    #[error("this thread holds lock {key:?} already, and cannot have it twice")]
    AlreadyHeld {
        /// The lock's key.
        key: String,
    },

    /// This thread has several guards of the lock, and its hold can leave the thread only with one.
    #[error(
        "this thread has {depth} guards of lock {key:?}, and the hold can leave the thread only when one is left"
    )]
    OtherGuards {
        /// The lock's key.
        key: String,
        /// How many guards there are.
        depth: u32,
    },

    /// This thread has about a million guards of one lock, so the program is leaking guards.
    #[error("this thread holds {depth} guards of lock {key:?}: they are not being dropped")]
    DepthOverflow {
        /// The lock's key.
        key: String,
        /// How many guards there are.
        depth: u32,
    },

    /// The system did not provide what the manager needs: a thread, or random bits.
    #[error("{cause}")]
    System {
        /// What it did not provide.
        cause: SystemCause,
        /// The system's error.
        source: std::io::Error,
    },

    /// The program is not set up: there is no manager for the whole process, or two, or no address.
    #[error("{cause}")]
    Setup {
        /// What is missing, or set up twice.
        cause: SetupCause,
    },
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn errors_are_small_and_can_be_sent_to_other_threads() {
        fn sendable<T: StdError + Send + Sync + 'static>() {}
        sendable::<Error>();
        assert!(size_of::<Error>() <= 120, "{}", size_of::<Error>());
    }

    /// One of each variant.
    fn each_variant() -> Vec<Error> {
        let source = || io::Error::other(io::Error::other("the cause"));
        let (key, held, waited) = (|| "a".to_owned(), Vec::new, Duration::from_secs(5));
        let (server, action, cause) = (|| "host:1".to_owned(), "taking", LostCause::Expired);
        let of_key = || Some(Box::from("a"));
        let code = || "OOM".to_owned();
        let (cycle, reason) = (Vec::new(), "so");
        let [no_thread, no_randomness] = [SystemCause::NoThread, SystemCause::NoRandomness];
        vec![
            Error::Timeout {
                key: key(),
                waited,
                holder: None,
                held: held(),
                source: Some(source().into()),
            },
            Error::Lost { key: key(), cause },
            Error::OuterLost {
                key: key(),
                outer: key(),
                cause,
            },
            Error::Unconfirmed {
                key: key(),
                at_most: waited,
                source: source().into(),
            },
            Error::Unavailable {
                server: server(),
                action,
                key: of_key(),
                cause: source().into(),
                held: held(),
            },
            Error::Refused {
                server: server(),
                action,
                key: of_key(),
                code: code(),
                message: code().into(),
                held: held(),
            },
            Error::Tls {
                server: server(),
                cause: TlsCause::Other,
                source: source().into(),
                held: held(),
            },
            Error::WouldDeadlock { key: key(), cycle },
            Error::Stopped {
                key: key(),
                held: held(),
            },
            Error::NotALock {
                key: key(),
                redis_key: key(),
                found: key(),
                held: held(),
            },
            Error::InvalidKey { length: 0, reason },
            Error::NoFence { key: key(), reason },
            Error::InvalidOption {
                option: "lease",
                value: None,
                reason,
            },
            Error::Forked {
                parent: 1,
                child: 2,
            },
            Error::NothingToAdopt {
                key: key(),
                redis_key: key(),
            },
            Error::NotHeld { key: key() },
            Error::AlreadyHeld { key: key() },
            Error::OtherGuards {
                key: key(),
                depth: 2,
            },
            Error::DepthOverflow {
                key: key(),
                depth: 2,
            },
            Error::System {
                cause: no_thread,
                source: source(),
            },
            Error::System {
                cause: no_randomness,
                source: source(),
            },
            Error::Setup {
                cause: SetupCause::NotInstalled,
            },
        ]
    }

    fn variant(error: &Error) -> String {
        let shown = format!("{error:?}");
        let end = shown.find(' ').expect("a name and fields");
        shown[..end].to_owned()
    }

    #[test]
    fn the_page_on_errors_has_every_variant_and_says_what_the_code_says() {
        let page = include_str!("../../../docs/errors.md");
        let rows = || page.lines().filter(|line| line.starts_with("| `"));
        for error in each_variant() {
            let name = variant(&error);
            let named = |row: &&str| {
                row.split(" | ")
                    .next()
                    .is_some_and(|it| it.contains(&format!("`{name}`")))
            };
            let mut ran: Vec<_> = Vec::new();
            for row in rows().filter(named) {
                let cells: Vec<_> = row.split(" | ").collect();
                ran.push(cells[2] == "yes");
                assert_eq!(cells[3] == "yes", error.is_retryable(), "{row}");
            }
            ran.sort_unstable();
            ran.dedup();
            assert_eq!(ran, [error.body_ran()], "`body_ran` of {name}");
            let held = error.body_ran() || error.while_holding(vec!["b".to_owned()]).body_ran();
            let mistakes =
                "InvalidKey NoFence InvalidOption Forked NothingToAdopt NotHeld System Setup";
            assert_eq!(
                held,
                !mistakes.contains(&name),
                "{name}: the thread held a lock"
            );
        }
    }

    /// `anyhow` and others print an error and then its sources.
    #[test]
    fn no_text_repeats_the_text_of_its_source() {
        let mut with_a_source = 0;
        for error in each_variant() {
            let mut shown: &dyn StdError = &error;
            while let Some(source) = shown.source() {
                assert!(
                    !shown.to_string().contains(&source.to_string()),
                    "{shown}: {source}"
                );
                shown = source;
                with_a_source += 1;
            }
        }
        assert_eq!(
            with_a_source, 5,
            "timeout, unconfirmed, TLS, thread, random bits"
        );
    }

    #[test]
    fn the_words_of_an_error() {
        let token = format!("host-1-2-{}", "a".repeat(32));
        let left = Some(Duration::from_secs(12));
        let by = |value: &str, left| Some(Box::new(Holder::new(value.as_bytes(), left)));
        let timeout = |holder, source: Option<&'static str>| Error::Timeout {
            key: "a".to_owned(),
            waited: Duration::from_secs(5),
            holder,
            held: Vec::new(),
            source: source.map(Into::into),
        };
        let unconfirmed = |at_most| Error::Unconfirmed {
            key: "a".to_owned(),
            at_most,
            source: "no answer".into(),
        };
        for (error, words) in [
            (
                timeout(by(&token, left), None),
                r#"lock "a" was still busy after 5.0s, held by host-1-2 (12.0s left)"#,
            ),
            // It may have been free.
            (
                timeout(by("somebody", None), Some("no connection was free")),
                r#"lock "a" was not taken within 5.0s, and was last seen held by "somebody" (never expires)"#,
            ),
            (
                timeout(None, Some("no connection was free")),
                r#"lock "a" was not taken within 5.0s"#,
            ),
            (
                unconfirmed(Duration::from_secs(3)),
                r#"the release of lock "a" is not confirmed: its key may exist for up to 3.0s"#,
            ),
            (
                unconfirmed(Duration::ZERO),
                r#"the release of lock "a" is not confirmed: its lease is over by now"#,
            ),
        ] {
            assert_eq!(error.to_string(), words);
            assert!(!error.is_timeout() || !error.is_redis_failure());
        }
    }
}
