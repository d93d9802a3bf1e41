//! Waiting for a lock behind other threads of this process, and what a manager's threads share.
//!
//! [`queues`] lets one thread of the process at a time ask Redis for a key. [`queue`] decides whose
//! turn is next, [`place`] what the others do meanwhile, `table` has all queues, [`waiter`] is one
//! thread in a queue, and [`handoff`] says for how long a process may keep the lock to itself;
//! `past` is what one turn leaves to the next, and `contention` estimates how many other processes
//! wait. [`wait`] is what one thread waits for: [`patience`] says when a silent Redis is an outage,
//! [`deadlocks`] when a wait would never end, and [`waits`] lists who waits. [`core`] has what the
//! threads of a manager share. This room may use `wakeups`, `hold`, `store` and `base`.

pub(crate) mod core;
pub(crate) mod queues;
pub(crate) mod place;
mod table;
pub(crate) mod queue;
mod past;
pub(crate) mod waiter;
pub(crate) mod handoff;
mod contention;
pub(crate) mod wait;
pub(crate) mod deadlocks;
pub(crate) mod waits;
pub(crate) mod patience;
