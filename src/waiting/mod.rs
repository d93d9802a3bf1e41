//! Waiting for a lock: behind other threads of this process, and for a change in Redis.
//!
//! [`queues`] lets one thread of the process at a time ask Redis for a key. That thread sleeps in
//! [`wakeups`] until [`listener`] reads an invalidation of the key. May use `hold`, `store` and
//! `base`.

pub(crate) mod listener;
pub(crate) mod wakeups;
pub(crate) mod queues;
mod queue;
pub(crate) mod waiter;
pub(crate) mod handoff;
mod contention;
pub(crate) mod patience;
