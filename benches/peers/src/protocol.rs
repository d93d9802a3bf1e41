//! What the benchmark and its workers say to each other, in lines. All languages speak the same.
//!
//! A worker is started with the URL of the server and the name of a peer. It connects, and says
//! `ready`. Then it obeys the lines of its standard input until that ends:
//!
//! - `turns KEY THREADS SECONDS`: starts threads, each of which takes a lock of its own once; says
//!   `ready`. At the next line the threads begin to take turns on the key. The answer is one line
//!   of JSON, a [`Tally`].
//! - `reentry KEY 1 SECONDS`: takes the lock; says `ready`. At the next line the thread begins to
//!   take the lock again and again, while it has it. The answer is a [`Tally`]. Asked only of peers
//!   that are reentrant.
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
    /// Processor time of the worker, user and system, from the begin of the turns to their end.
    pub(crate) cpu: u64,
}

/// What one thread did.
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
