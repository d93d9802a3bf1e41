//! Why a command has no result, and whether Redis executed it.

use std::error::Error as StdError;
use std::io;

use crate::base::error::TlsCause;
use crate::client::wire::io_error;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;

/// Why a command has no result, and whether Redis executed it. After
/// [`Unanswered`](Failure::Unanswered), Redis may have executed the command, or may still execute
/// it. After any other failure, it has not, and will not.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Redis did not get the command: there was no connection, or only a part of the command was
    /// written, and Redis executes no incomplete command.
    NotSent(Cause),
    /// The command was sent, and no answer came that says what became of it.
    Unanswered {
        /// Whether the connection is in order. If it is, Redis executes this command before any
        /// that is sent over the connection now.
        link_stands: bool,
        cause: Cause,
    },
    /// Redis answered with an error, and did nothing.
    Refused(Refusal),
    /// TLS failed in a way that another try does not change. Redis executed nothing.
    Tls { cause: TlsCause, source: Cause },
    /// The time ran out in this process, before the command was sent. It does not mean that Redis
    /// is slow or unreachable.
    OutOfTime(Cause),
}

pub(crate) type Cause = Box<dyn StdError + Send + Sync>;

impl Failure {
    pub(crate) fn not_sent(cause: impl Into<Cause>) -> Failure {
        let cause = cause.into();
        match cause.downcast_ref().and_then(io_error::tls_cause_of) {
            Some(of_tls) => Failure::Tls {
                cause: of_tls,
                source: cause,
            },
            None => Failure::NotSent(cause),
        }
    }

    /// The failure of a command that was sent. `error` says why there is no answer.
    pub(crate) fn unanswered(error: io::Error) -> Failure {
        match io_error::tls_cause_of(&error) {
            Some(cause) => Failure::Tls {
                cause,
                source: error.into(),
            },
            None => Failure::Unanswered {
                link_stands: io_error::leaves_link_standing(&error),
                cause: error.into(),
            },
        }
    }

    /// The failure of a command over a connection that has received something that nobody asked
    /// for, or has ended.
    pub(crate) fn out_of_step() -> Failure {
        Failure::unknown(
            "the server closed the connection, or sent something that was not asked for",
        )
    }

    /// The failure of a command whose fate is unknown, over a connection that is of no more use.
    pub(crate) fn unknown(cause: impl Into<Cause>) -> Failure {
        Failure::Unanswered {
            link_stands: false,
            cause: cause.into(),
        }
    }

    /// True for a failure after which a waiter should try again.
    pub(crate) fn can_pass(&self) -> bool {
        match self {
            Failure::NotSent(_) | Failure::Unanswered { .. } | Failure::OutOfTime(_) => true,
            Failure::Refused(refusal) => refusal.can_pass(),
            Failure::Tls { .. } => false,
        }
    }

    /// True if Redis has given the reason.
    pub(crate) fn is_answer(&self) -> bool {
        match self {
            Failure::Refused(_) => true,
            Failure::Unanswered { cause, .. } => cause.is::<Refusal>(),
            Failure::NotSent(_) | Failure::OutOfTime(_) | Failure::Tls { .. } => false,
        }
    }

    /// The failure of something that is tried again soon, whatever the reason was.
    pub(crate) fn of_an_attempt(self) -> Failure {
        match self {
            Failure::Refused(refusal) => Failure::NotSent(refusal.into()),
            other => other,
        }
    }

    /// Turns the failure of a listener's test, which changes a key of the manager's own, into that
    /// of an attempt that is repeated: a refusal may pass. But a missing right stays missing, so
    /// `NOPERM` stays a refusal. So does `MOVED`: the listener then looks for the node anew.
    pub(crate) fn of_a_trial(self) -> Failure {
        match self {
            Failure::Refused(it) if matches!(&*it.code, "NOPERM" | "MOVED") => Failure::Refused(it),
            other => other.of_an_attempt(),
        }
    }

    pub(crate) fn text(&self) -> String {
        match self {
            Failure::NotSent(cause)
            | Failure::Unanswered { cause, .. }
            | Failure::OutOfTime(cause) => cause.to_string(),
            Failure::Tls { cause, source } => format!("{cause}: {source}"),
            Failure::Refused(refusal) => refusal.to_string(),
        }
    }

    /// A copy for another thread that waited for the same answer. The copy has only the text of the
    /// cause.
    pub(crate) fn copy(&self) -> Failure {
        let text = |cause: &Cause| Cause::from(cause.to_string());
        match self {
            Failure::NotSent(cause) => Failure::NotSent(text(cause)),
            Failure::Unanswered { link_stands, cause } => Failure::Unanswered {
                link_stands: *link_stands,
                cause: text(cause),
            },
            Failure::Refused(refusal) => Failure::Refused(refusal.clone()),
            Failure::Tls { cause, source } => Failure::Tls {
                cause: *cause,
                source: text(source),
            },
            Failure::OutOfTime(cause) => Failure::OutOfTime(text(cause)),
        }
    }

    pub(crate) fn into_cause(self) -> Cause {
        match self {
            Failure::NotSent(cause)
            | Failure::Unanswered { cause, .. }
            | Failure::OutOfTime(cause) => cause,
            Failure::Tls { source, .. } => source,
            Failure::Refused(refusal) => refusal.into(),
        }
    }
}

/// Accepts the reply to a command that takes, extends or deletes a lock, unless it is an error.
///
/// Only an error that Redis is known to answer *instead of* executing the command is a refusal. A
/// proxy may answer with an error of its own after it has forwarded the command. Such an error
/// counts as no answer. The connection is then not used again: behind a proxy, the order of
/// commands on a connection proves nothing.
pub(crate) fn accept_change(reply: Reply) -> Result<Reply, Failure> {
    match accept(reply) {
        Err(Failure::Refused(refusal)) if !refusal.did_nothing() => Err(Failure::unknown(refusal)),
        other => other,
    }
}

/// Accepts the reply to a command that changes no lock, unless it is an error. Each error is a
/// refusal.
pub(crate) fn accept(reply: Reply) -> Result<Reply, Failure> {
    match reply {
        Reply::Error(refusal) => Err(Failure::Refused(*refusal)),
        other => Ok(other),
    }
}

/// Reads the reply to `AUTH` or `SELECT`.
pub(crate) fn expect_ok(reply: Reply) -> Result<(), Failure> {
    match accept(reply)? {
        Reply::Ok => Ok(()),
        other => Err(nonsense(&other)),
    }
}

/// Reads the reply to `PING`.
pub(crate) fn expect_pong(reply: Reply) -> Result<(), Failure> {
    match accept(reply)? {
        Reply::Line(pong) if pong == "PONG" => Ok(()),
        other => Err(nonsense(&other)),
    }
}

/// The failure for a reply that does not answer the command. The server is not Redis, or its
/// replies are out of step with the commands, so the fate of the command is unknown.
pub(crate) fn nonsense(reply: &Reply) -> Failure {
    Failure::unknown(Refusal::nonsense(reply.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a right missing, a listener would keep trying forever.
    #[test]
    fn a_trial_may_succeed_later_unless_a_right_is_missing_or_the_key_is_elsewhere() {
        let is_refused = |error: &str| {
            let failure = Failure::Refused(Refusal::new(error, "")).of_a_trial();
            matches!(failure, Failure::Refused(_))
        };
        assert!(is_refused("NOPERM this user has no permissions"));
        assert!(is_refused("MOVED 1 127.0.0.1:7000"));
        assert!(!is_refused("OOM command not allowed"));
    }
}
