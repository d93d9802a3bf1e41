//! Waiting for a lock: behind other threads of this process, and for a change in Redis.
//!
//! [`queues`] lets one thread of the process at a time ask Redis for a key. That thread sleeps in
//! [`wakeups`] until [`listener`] receives an invalidation of the key. [`queue`] decides whose turn
//! is next, [`place`] what the others do meanwhile, `table` has all queues, and [`handoff`] for how
//! long a process may keep the lock to itself. [`contention`] estimates how many other processes
//! wait, [`patience`] says when a silent Redis is an outage, [`deadlocks`] when a wait would never
//! end, and [`waits`] lists who waits.
//! This room may use `hold`, `store` and `base`.

pub(crate) mod core;
pub(crate) mod queues;
pub(crate) mod place;
pub(crate) mod queue;
mod past;
pub(crate) mod waiter;
pub(crate) mod handoff;
mod contention;
mod table;
pub(crate) mod wait;
pub(crate) mod deadlocks;
pub(crate) mod waits;
pub(crate) mod patience;
