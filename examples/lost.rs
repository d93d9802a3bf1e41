//! A lease runs out before the work is done, another process takes the lock, and the holder is told.
//!
//! Run it with `bash examples/run.sh lost`, or `cargo run --example lost` if redis-server is installed.

use std::error::Error;
use std::io;
use std::process;
use std::thread::sleep;
use std::time::{Duration, Instant};

use relatch::LockManager;

mod support;

const LEASE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let redis = support::Redis::start()?;
    let locks = LockManager::connect(redis.url())?;
    if support::role().is_some() {
        return rival(&locks);
    }
    let start = Instant::now();
    let say = |what: &str| println!("{:>4} ms  {what}", start.elapsed().as_millis());

    let report = locks.get("report").lease(LEASE);
    let guard = report.lock()?;
    say(&format!("process {} has the lock for {LEASE:?}, and works too long", process::id()));
    let mut rivals = support::Workers::start(redis.url(), &["rival"], &[])?;
    while guard.is_valid() {
        sleep(guard.remaining());
    }
    say("is_valid() turned false: nothing was sent, the clock says so");

    let taken = rivals.lines.next().ok_or("the rival did not get the lock")??;
    say(&taken);

    match report.lock() {
        Err(error) if error.is_lost() => say(&format!("lock() again:   {error}")),
        other => return Err(format!("a lost lock was entered again: {other:?}").into()),
    }
    match guard.unlock() {
        Err(error) if error.is_lost() => say(&format!("guard.unlock(): {error}")),
        other => return Err(format!("a lost lock was released: {other:?}").into()),
    }

    let holder = report.holder()?.ok_or("the rival's lock is gone")?;
    say(&format!("none of that touched the rival's lock: it is held by {holder}"));
    rivals.finish()?;
    println!("\nAsk is_valid() before the point of no return, and choose a lease longer than the work.");
    Ok(())
}

/// Waits for the lock, and keeps it until its standard input is closed.
fn rival(locks: &LockManager) -> Result<(), Box<dyn Error>> {
    let guard = locks.get("report").wait(Duration::from_secs(10)).lock()?;
    println!("process {} has it now: {}", process::id(), guard.owner());
    io::stdin().read_line(&mut String::new())?;
    guard.unlock()?;
    Ok(())
}
