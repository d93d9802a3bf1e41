//! The threads that sleep until a key changes in Redis, and those that wake them.
//!
//! A waiter registers in [`table`]. [`listener`] is the thread that receives the invalidations of
//! one node, and wakes the waiters of a key that has changed; [`listeners`] has one for each node.
//! This room may use `store` and `base`.

pub(crate) mod listeners;
pub(crate) mod listener;
pub(crate) mod table;
