//! The jobs of a rayon pool take locks.
//!
//! Run it: `bash examples/run.sh rayon`
//! Copy it: `cargo add relatch --path ../relatch && cargo add rayon`

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rayon::prelude::*;
use relatch::{Builder, LockManager};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    let start = Instant::now();
    let orders: Vec<u32> = (1..=12).collect();
    orders
        .par_iter()
        .try_for_each(|order| pack(&locks, *order, start))?;
    println!("12 orders from 4 shelves, in {:.1?}", start.elapsed());
    Ok(())
}

/// A job that waits for other jobs (`join`, a parallel iterator) runs others in its thread
/// meanwhile. A job that took the same lock there would re-enter it: two jobs under one lock, and
/// neither notices. So nothing waits for jobs under a lock here, and if somebody writes that later,
/// `reentrant(false)` makes it an error.
fn pack(locks: &LockManager, order: u32, start: Instant) -> Result<(), relatch::Error> {
    let shelf = format!("shelf:{}", order % 4);
    let lock = locks
        .named(&shelf)
        .reentrant(false)
        .wait(Duration::from_secs(30));
    lock.with_lock(|| {
        sleep(Duration::from_millis(100));
        let thread = rayon::current_thread_index().unwrap_or_default();
        println!(
            "{:>4} ms  thread {thread}  order {order:>2}  {shelf}",
            start.elapsed().as_millis()
        );
    })
}
