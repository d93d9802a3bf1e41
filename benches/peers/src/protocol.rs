//! The protocol of the benchmark and its workers, line by line. It is the same for all languages.
//!
//! A worker is started with the URL of the server, the name of a peer, and its lease in
//! milliseconds. It connects, and says `ready`. Then it obeys the lines of its standard input until
//! the end of the input:
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
//! - `hold KEY WAIT WORK STEP`, in milliseconds: takes the lock, works, gives it back, and says a
//!   line at each moment: `asks`; then `has`, or `busy` after the wait, or `failed` with a reason,
//!   which end the turn. At the beginning of the work and after each step of it, asks the lock
//!   whether it is still held: `yes <clock before the question>`; `no <clock after it>`, which ends
//!   the work; no line if the lock cannot say, or not now. Then `gives`, and `gave` with what the
//!   release said: `ok`, `lost`, `unknown` or `nothing`. (The clock comes first in each line.)
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
    /// How often a thread had the lock while as many other threads of the worker had it as there
    /// are slots.
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
