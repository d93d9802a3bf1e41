//! Waiting for a lock behind other threads of this process, and what a manager's threads share.
//!
//! [`queues`] lets one thread of the process at a time ask Redis for a key. [`queue`] decides whose
//! turn is next, [`place`] what the others do in the meantime, `table` has all queues, `front` is
//! the thread that has the turn, [`waiter`] one that waits, and [`handoff`] says how long a process
//! may keep the lock to itself; `past` is the state that one turn leaves to the next, and
//! `contention` estimates how many other processes wait. [`wait`] is the wait of one thread:
//! [`patience`] says when a silent Redis is an outage, and [`deadlocks`] when a wait would never
//! end. [`core`] has what the threads of a manager share. This room may use `wakeups`, `hold`,
//! `store` and `base`.

pub(crate) mod core;
pub(crate) mod queues;
pub(crate) mod deadlocks;
mod table;
pub(crate) mod place;
pub(crate) mod queue;
mod front;
pub(crate) mod wait;
pub(crate) mod waiter;
mod past;
pub(crate) mod handoff;
mod contention;
pub(crate) mod patience;
