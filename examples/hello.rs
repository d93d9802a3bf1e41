//! The smallest program: a lock, and a function that takes the same lock again.
//!
//! Run it with `bash examples/run.sh hello`, or with a Redis of yours: `cargo run --example hello`.

use relatch::{Error, LockManager};

fn main() -> Result<(), Error> {
    let url = std::env::var("REDIS_URL").unwrap_or_else(|_| "redis://127.0.0.1/".to_owned());
    let locks = LockManager::connect(&url)?;
    locks.with_lock("orders:42", || {
        println!("order 42 is locked: no other thread or process ships it");
        ship(&locks)
    })?
}

/// Also takes the lock. This thread has the lock already, so nothing is sent to Redis.
fn ship(locks: &LockManager) -> Result<(), Error> {
    locks.with_lock("orders:42", || println!("order 42 is shipped"))
}
