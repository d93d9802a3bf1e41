//! `--report`: what happened, as one JSON object.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use relatch::{Holder, Owner};
use serde_json::{Value, json};

use crate::json;
use crate::run::life::Ended;
use crate::span::millis;

/// How a run came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ended,
    Busy,
    Lost,
    MaxHold,
    Unavailable,
    Refused,
    Interrupted,
    NotStarted,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Ended => "ended",
            Outcome::Busy => "busy",
            Outcome::Lost => "lost",
            Outcome::MaxHold => "max_hold",
            Outcome::Unavailable => "unavailable",
            Outcome::Refused => "refused",
            Outcome::Interrupted => "interrupted",
            Outcome::NotStarted => "not_started",
        }
    }
}

/// What is known of a run when it is over.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) keys: Vec<String>,
    pub(crate) waited: Duration,
    pub(crate) held: Duration,
    pub(crate) fence: Option<u64>,
    /// Who had the lock, if it was busy.
    pub(crate) holder: Option<Holder>,
    /// How the lock was lost, or why it was not taken.
    pub(crate) cause: Option<String>,
    pub(crate) ended: Option<Ended>,
}

impl Report {
    /// The signal that has ended the job, or the wait.
    pub(crate) fn signal(&self) -> Option<i32> {
        match self.ended {
            Some(Ended::Signal(number)) => Some(number),
            _ => None,
        }
    }

    fn object(&self, outcome: Outcome, exit: u8) -> Value {
        let owner = Owner::current();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        json!({
            "v": 1,
            "keys": self.keys,
            "outcome": outcome.name(),
            "exit": exit,
            "signal": self.signal(),
            "waited_ms": millis(self.waited),
            "held_ms": millis(self.held),
            "fence": self.fence,
            "holder": self.holder.as_ref().map(json::holder),
            "cause": self.cause,
            "host": &*owner.host,
            "pid": owner.pid,
            "at_ms": since_1970.map_or(0, millis),
        })
    }

    /// Appends the report to a file, or writes it to a descriptor: `fd:3`.
    pub(crate) fn write(&self, to: &str, outcome: Outcome, exit: u8) -> io::Result<()> {
        let file = match to.strip_prefix("fd:") {
            Some(number) => format!("/dev/fd/{number}"),
            None => to.to_owned(),
        };
        let mut file = OpenOptions::new().append(true).create(true).open(file)?;
        file.write_all(format!("{}\n", self.object(outcome, exit)).as_bytes())
    }
}
