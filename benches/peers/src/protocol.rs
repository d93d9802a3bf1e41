//! The protocol of the benchmark and its workers, line by line. It is the same for all languages.
//!
//! A worker is started with the URL of the server and the name of a peer. It connects, and says
//! `ready`. Then it obeys the lines of its standard input until the end of the input:
//!
//! - `turns KEY THREADS SECONDS`: starts threads, each of which takes a lock of its own once; says
//!   `ready`. At the next line the threads begin to take turns on the key. The answer is one line
//!   of JSON, a [`Tally`].
//! - `reentry KEY 1 SECONDS`: takes the lock; says `ready`. At the next line the thread begins to
//!   take and release the lock again and again, while it holds the lock. The answer is a [`Tally`].
//!   Only reentrant peers get this command.
//! - `take KEY`: takes the lock, says `held`; at the next line, unlocks it and says
//!   `gave <clock just before the unlock>`.
//! - `wait KEY`: says `waiting`, takes the lock, unlocks it, says
//!   `got <clock when the lock call returned>`.
//! - `cpu`: says `cpu <processor time of the worker so far>`.
//!
//! If a command fails, the answer is `failed <why>`. Times are nanoseconds; the clock is
//! `CLOCK_MONOTONIC`.

use serde::{Deserialize, Serialize};

/// What a worker did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// One per thread.
    pub(crate) threads: Vec<Turns>,
    /// How often a thread had the lock while another thread of the worker had it too.
    pub(crate) overlaps: u64,
    /// Processor time of the worker, user and system, from the beginning of the turns to their end.
    pub(crate) cpu: u64,
}

/// What one thread did.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// How many turns got the lock before the time was over.
    pub(crate) in_time: u64,
    /// How long each lock call took, even if it ended after the time was over.
    pub(crate) waits: Vec<u64>,
    /// How long each turn took, from before the lock call to after the unlock.
    pub(crate) cycles: Vec<u64>,
    /// How often the lock gave up after its last retry, and was tried again.
    pub(crate) gave_up: u64,
    /// Lock or unlock calls that failed.
    pub(crate) failures: u64,
}
