//! How many times a second one thread takes and releases a lock in memory, and re-enters one.
//!
//! `cargo run --release --example in_memory`

use std::time::{Duration, Instant};

use relatch::{Error, LockManager};

const FOR: Duration = Duration::from_secs(2);

fn main() -> Result<(), Error> {
    let locks = LockManager::in_memory();
    let lock = locks.named("orders:42");
    let cycles = per_second(|| lock.lock()?.unlock().map(drop))?;
    let guard = lock.lock()?;
    let reentries = per_second(|| lock.lock()?.unlock().map(drop))?;
    guard.unlock()?;
    println!("lock and unlock: {:.2} million a second", cycles / 1e6);
    println!("reentry:         {:.2} million a second", reentries / 1e6);
    println!("threads of the process: {}", threads());
    Ok(())
}

fn per_second(cycle: impl Fn() -> Result<(), Error>) -> Result<f64, Error> {
    let (begun, mut cycles) = (Instant::now(), 0_u32);
    while begun.elapsed() < FOR {
        for _ in 0..1000 {
            cycle()?;
        }
        cycles += 1000;
    }
    Ok(f64::from(cycles) / begun.elapsed().as_secs_f64())
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
