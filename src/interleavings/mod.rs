//! Shuttle runs the threads of the queue, the wake-ups and the renewal in thousands of orders.
//!
//! The steps of these threads are the real ones. Redis is a small stand-in: the one in
//! `expiring_key` for the queue, and the one in `wakeups` for the others. This room is only for
//! tests, and may use all rooms below `session`.

mod expiring_key;
mod losses;
mod queue;
mod renewal;
mod third_store;
mod wakeups;
