//! Code that takes locks, and its tests, which need no Redis.
//!
//! Run it: `bash examples/run.sh testing`, which runs `cargo test`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;
use std::time::Duration;

use relatch::{Builder, LockManager};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    println!("order 42: {}", charge(&locks, 42)?);
    Ok(())
}

/// The manager comes from outside, so that a test can pass one without a server.
fn charge(locks: &LockManager, order: u32) -> Result<&'static str, relatch::Error> {
    let Some(guard) = locks.try_lock(format!("orders:{order}"))? else {
        return Ok("busy");
    };
    guard.confirm(Duration::from_secs(5))?;
    Ok("charged")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_free_order_is_charged() {
        let locks = LockManager::in_memory(); // A store of its own for each test.
        assert_eq!(charge(&locks, 42).unwrap(), "charged");
    }

    #[test]
    fn a_busy_order_is_left_alone() {
        let locks = LockManager::in_memory();
        let _guard = locks.lock("orders:42").unwrap();
        // In another thread, since this one would re-enter its lock.
        let charged = thread::scope(|scope| scope.spawn(|| charge(&locks, 42)).join());
        assert_eq!(charged.unwrap().unwrap(), "busy");
    }

    #[test]
    fn nothing_is_charged_while_redis_is_away() {
        let locks = LockManager::in_memory();
        let memory = locks.memory().expect("it is in memory");
        memory.go_away(Duration::from_secs(20));
        assert!(charge(&locks, 42).unwrap_err().is_redis_failure());
        memory.go_away(Duration::ZERO); // It is back, and nobody had to wait.
        assert_eq!(charge(&locks, 42).unwrap(), "charged");
    }
}
