//! What happened in a run: what the workers said, and what was done to them. A line of JSON each.

use serde::Serialize;

use crate::locks::Said;

/// One attempt to take a lock, from the call to the result of the release. Times are nanoseconds of
/// `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Turn {
    pub(crate) worker: usize,
    pub(crate) key: String,
    /// Just before the lock call.
    pub(crate) asks: u64,
    /// When the call returned with the lock.
    pub(crate) has: Option<u64>,
    /// When it returned without.
    pub(crate) refused: Option<u64>,
    /// It returned with this error.
    pub(crate) failed: Option<String>,
    /// Just before the last question that the lock answered with "still held".
    pub(crate) yes: Option<u64>,
    /// When the lock had said "no longer held".
    pub(crate) no: Option<u64>,
    /// Just before the release.
    pub(crate) gives: Option<u64>,
    /// When the release returned, and what it said.
    pub(crate) gave: Option<u64>,
    pub(crate) said: Option<Said>,
    /// When its process was killed in the middle of it.
    pub(crate) died: Option<u64>,
    /// It did not end, and its process was killed for that.
    pub(crate) hung: bool,
}

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    /// A worker was stopped, and continued.
    Stop,
    /// A held key was deleted.
    Delete,
    /// The server was killed, and was there again, empty.
    Restart,
}

/// A fault that the judge has to know.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fault {
    pub(crate) what: What,
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) worker: Option<usize>,
    pub(crate) key: Option<String>,
}

/// All of one run.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) turns: Vec<Turn>,
    pub(crate) faults: Vec<Fault>,
    /// Keys that were there long after everything had ended.
    pub(crate) stuck: u64,
    pub(crate) end: u64,
}

impl Turn {
    /// Takes in a line of the worker. True if it ends the turn.
    pub(crate) fn hear(&mut self, line: &str) -> bool {
        let mut words = line.split(' ');
        let word = words.next().unwrap_or_default();
        let at = words.next().and_then(|it| it.parse().ok());
        match word {
            "asks" => self.asks = at.unwrap_or_default(),
            "has" => self.has = at,
            "yes" => self.yes = at,
            "no" => self.no = at,
            "gives" => self.gives = at,
            "gave" => {
                self.gave = at;
                self.said = words.next().and_then(Said::read);
            }
            "busy" => self.refused = at,
            "failed" => {
                self.refused = at.or(Some(self.asks));
                self.failed = Some(words.collect::<Vec<_>>().join(" "));
            }
            _ => {} // The rest of a line whose process was killed.
        }
        self.gave.is_some() || self.refused.is_some()
    }

    /// The last time at which the turn was under way.
    pub(crate) fn end(&self) -> u64 {
        let ends = [self.gave, self.refused, self.died];
        ends.into_iter().flatten().next().unwrap_or(u64::MAX)
    }
}
