//! What the planning process and its workers say to each other. `peers.py` speaks the same.
//!
//! A worker opens its connections, says `ready` and waits for a line on its standard input.
//!
//! - `turns`: the line is `go`; the answer is one line of JSON, a [`Tally`].
//! - `cycles`, `reentry`: as `turns`, but in one thread, and `go` may come again.
//! - `pair`: any number of commands, until the input ends.
//!   - `take`: takes the lock and says `held`; on `give`, says `gave <clock just before the unlock>`.
//!   - `wait`: says `waiting`, takes the lock, releases it, says `got <clock when the lock call returned>`.
//!   - `time`: says `took <nanoseconds of one turn>`.
//!
//! What fails in a pair is answered with `failed <why>`.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::peer::Peer;

/// Which lock, of whom.
#[derive(Debug, Args)]
pub(crate) struct Place {
    #[arg(long)]
    pub(crate) url: String,
    #[arg(long)]
    pub(crate) peer: Peer,
    #[arg(long)]
    pub(crate) key: String,
}

/// How to take turns.
#[derive(Debug, Args)]
pub(crate) struct Together {
    #[command(flatten)]
    pub(crate) place: Place,
    #[arg(long, default_value_t = 1)]
    pub(crate) threads: usize,
    /// No turn is begun after that.
    #[arg(long)]
    pub(crate) seconds: f64,
}

impl Together {
    pub(crate) fn time(&self) -> Duration {
        Duration::from_secs_f64(self.seconds)
    }
}

/// What a worker did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// One per thread.
    pub(crate) threads: Vec<Turns>,
    /// How often a thread had the lock while another thread of the worker had it too.
    pub(crate) overlaps: u64,
}

/// What one thread did. Times are nanoseconds.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// Turns that began to hold the lock within the time.
    pub(crate) in_time: u64,
    /// How long each lock call took, those that ended after the time included.
    pub(crate) waits: Vec<u64>,
    /// How long each turn took, from before the lock call to after the unlock.
    pub(crate) cycles: Vec<u64>,
    /// How often the lock said that its retries were exhausted, and was asked again.
    pub(crate) gave_up: u64,
    /// Lock or unlock calls that failed.
    pub(crate) failures: u64,
}
