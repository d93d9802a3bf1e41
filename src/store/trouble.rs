//! What can come back instead of an answer, told apart by what it says about the command's fate.

use std::error::Error as StdError;
use std::io;
use std::sync::Arc;

use redis::{RedisError, ServerError, Value};

/// How much of an error is kept that Redis answered, in characters: its own are shorter.
const LONGEST_MESSAGE: usize = 500;

/// Why a command has no result.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// Redis did not get the command: no connection, or it could not be written whole.
    NotSent(Cause),
    /// The command was sent and no answer came: Redis may have executed it, or may yet.
    Unanswered {
        /// The connection still stands, so a command sent on it now is executed after the lost one.
        link_stands: bool,
        cause: Cause,
    },
    /// Redis answered with an error, and did nothing.
    Refused(Refusal),
}

pub(super) type Cause = Box<dyn StdError + Send + Sync>;

/// An error that Redis answered.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) code: String,
    pub(crate) message: String,
}

impl Refusal {
    pub(super) fn new(error: &ServerError) -> Refusal {
        let code = legible(error.code());
        let message = match error.details() {
            Some(details) => legible(&format!("{} {details}", error.code())),
            None => code.clone(),
        };
        Refusal { code, message }
    }

    /// For what is no answer to the question.
    pub(super) fn nonsense(kind: &str) -> Refusal {
        Refusal { code: String::new(), message: format!("the reply made no sense: {kind}") }
    }

    /// True for what the server gets over by itself: loading, failing over, running a long script.
    pub(crate) fn can_pass(&self) -> bool {
        matches!(
            self.code.as_str(),
            "LOADING" | "READONLY" | "MASTERDOWN" | "CLUSTERDOWN" | "TRYAGAIN" | "BUSY" | "NOREPLICAS"
        ) || self.message.contains("max number of clients")
    }
}

impl Trouble {
    /// Nothing of the command reached Redis, as far as executing it goes: a command whose bytes were not
    /// all written is not a command yet.
    pub(super) fn not_sent(cause: impl Into<Cause>) -> Trouble {
        Trouble::NotSent(cause.into())
    }

    /// True for what is worth another try within the wait.
    pub(crate) fn can_pass(&self) -> bool {
        match self {
            Trouble::NotSent(_) | Trouble::Unanswered { .. } => true,
            Trouble::Refused(refusal) => refusal.can_pass(),
        }
    }

    pub(crate) fn into_cause(self) -> Cause {
        match self {
            Trouble::NotSent(cause) | Trouble::Unanswered { cause, .. } => cause,
            Trouble::Refused(refusal) => refusal.into(),
        }
    }
}

/// A server's words, as they may stand in a message and in a log: on one line, and no longer than anybody reads.
fn legible(text: &str) -> String {
    let mut rest = text.chars();
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let mut shown: String = rest.by_ref().take(LONGEST_MESSAGE).map(plain).collect();
    if rest.next().is_some() {
        shown.push_str("...");
    }
    shown
}

/// True where the error leaves the connection in order: the answer may still come, and will be skipped then.
///
/// A read that was interrupted by a signal is like one that timed out: the client does not repeat it. (It
/// has no name for that case, and its source is the shared box that the error lives in.)
pub(super) fn leaves_link_standing(error: &RedisError) -> bool {
    let interrupted = || {
        let shared = StdError::source(error)?.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
        Some(shared.downcast_ref::<io::Error>()?.kind() == io::ErrorKind::Interrupted)
    };
    error.is_timeout() || interrupted().unwrap_or(false)
}

/// True where the server is not, or no longer, the one that takes writes: the next command had better look
/// for it on a new connection.
pub(super) fn comes_from_wrong_server(reply: &Value) -> bool {
    matches!(reply, Value::ServerError(error) if matches!(error.code(), "READONLY" | "MASTERDOWN" | "MOVED"))
}
