//! What the threads of queue, wake-ups and renewal do, run in thousands of orders by shuttle.
//!
//! Each file has a small Redis of its own beside the real steps. Only for tests. May use all rooms
//! below `session`.

mod expiring_key;
mod queue;
mod renewal;
mod wakeups;
