//! `--report`: what happened, as one JSON object.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use filedescriptor::FileDescriptor;
use relatch::{Holder, Owner};
use serde_json::{Value, json};

use crate::exit::{Failure, code};
use crate::json;
use crate::run::life::Ended;
use crate::span::millis;

/// How a run ended.
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

/// What is known about a run when it is over.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) keys: Vec<String>,
    pub(crate) waited: Duration,
    pub(crate) held: Duration,
    pub(crate) fence: Option<u64>,
    /// The slot, with `--slots`.
    pub(crate) slot: Option<u32>,
    /// Who held the lock, if it was busy.
    pub(crate) holder: Option<Holder>,
    /// How the lock was lost, or why it was not taken.
    pub(crate) cause: Option<String>,
    pub(crate) ended: Option<Ended>,
}

impl Report {
    /// The signal that ended the job or the wait.
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
            "slot": self.slot,
            "holder": self.holder.as_ref().map(json::holder),
            "cause": self.cause,
            "host": &*owner.host,
            "pid": owner.pid,
            "at_ms": since_1970.map_or(0, millis),
        })
    }

    /// Writes the report. Gives up if that takes too long.
    pub(crate) fn write(&self, to: To, outcome: Outcome, exit: u8) -> io::Result<()> {
        let line = format!("{}\n", self.object(outcome, exit));
        let (done, is_done) = sync_channel(1);
        thread::Builder::new()
            .name("report".to_owned())
            .spawn(move || {
                let _ = done.send(to.append(&line));
            })?;
        is_done.recv_timeout(LONGEST_WRITE).unwrap_or_else(|_| {
            let limit = LONGEST_WRITE.as_secs();
            let message = format!("nobody has read it for {limit} s");
            Err(io::Error::new(ErrorKind::TimedOut, message))
        })
    }
}

/// How long the end of a run waits for the reader of a pipe.
const LONGEST_WRITE: Duration = Duration::from_secs(1);

/// Where a report goes.
pub(crate) enum To {
    File(PathBuf),
    /// A descriptor that the caller has opened. It may be a socket, or a file that this user cannot
    /// open.
    Descriptor(FileDescriptor),
}

impl To {
    /// Finds the descriptor before this process opens any others.
    pub(crate) fn read(text: &str) -> Result<To, Failure> {
        let Some(number) = text.strip_prefix("fd:") else {
            return Ok(To::File(text.into()));
        };
        let usage = |why: &str| Failure::new(code::USAGE, format!("--report {text}: {why}"));
        let number = number.parse::<i32>();
        let number = number.map_err(|_| usage("not a descriptor number"))?;
        let copy = FileDescriptor::dup(&number);
        copy.map(To::Descriptor)
            .map_err(|_| usage("this descriptor is not open"))
    }

    fn append(self, line: &str) -> io::Result<()> {
        match self {
            To::File(path) => {
                let begin = if ends_in_a_line(&path) { "\n" } else { "" };
                let mut options = OpenOptions::new();
                let mut file = options.append(true).create(true).open(path)?;
                file.write_all(format!("{begin}{line}").as_bytes())
            }
            To::Descriptor(mut descriptor) => descriptor.write_all(line.as_bytes()),
        }
    }
}

/// True if a file ends in the middle of a line, because its disk was full.
fn ends_in_a_line(path: &Path) -> bool {
    let is_file = path.metadata().is_ok_and(|it| it.is_file());
    let last = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last).map(|()| last)
    };
    is_file && last().is_ok_and(|last: [u8; 1]| last != *b"\n")
}
