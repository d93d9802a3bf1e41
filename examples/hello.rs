//! The first lock, and a function that takes the same lock again.
//!
//! Run it: `bash examples/run.sh hello`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;

use relatch::{Builder, LockManager};

fn main() -> Result<(), Box<dyn Error>> {
    // The server at RELATCH_URL or REDIS_URL. If there is none, the text says what to do.
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    locks.with_lock("orders:42", || println!("nobody else has order 42"))?;

    // For a closure that can fail.
    locks.with_lock_result("orders:42", |_guard| refund(&locks))?;
    Ok(())
}

fn refund(locks: &LockManager) -> Result<(), relatch::Error> {
    // This thread has the lock already, so nothing is sent to Redis.
    locks.with_lock("orders:42", || println!("order 42 is refunded"))
}
