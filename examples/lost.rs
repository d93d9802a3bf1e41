//! A process is stopped while it holds a lock, and a rival takes the lock.
//!
//! The first process learns of the loss before it charges the card a second time.
//!
//! Run it with `bash examples/run.sh lost`, or `cargo run --example lost` if redis-server is
//! installed (not on Windows).

use std::error::Error;
use std::io;
use std::process::{self, Command};
use std::time::{Duration, Instant};

use relatch::{LockGuard, LockManager};

mod support;

const LEASE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let redis = support::Redis::start()?;
    let locks = LockManager::builder(redis.url()).lease(LEASE).build()?;
    if let Some(role) = support::role() {
        return if role == "holder" {
            holder(&locks)
        } else {
            rival(&locks)
        };
    }
    let start = Instant::now();
    let say = |what: &str| println!("{:>5} ms  {what}", start.elapsed().as_millis());

    let mut holder = support::Workers::start(redis.url(), &["holder"], &[])?;
    let pid = holder
        .lines
        .next()
        .ok_or("the holder did not get the lock")??;
    say(&format!(
        "holder {pid} has the lock, its lease of {LEASE:?} is renewed, and it prepares a payment"
    ));
    signal("-STOP", &pid)?;
    say("the holder is stopped, as by a long pause of its machine: nobody renews");

    let mut rival = support::Workers::start(redis.url(), &["rival"], &[])?;
    say(&rival
        .lines
        .next()
        .ok_or("the rival did not get the lock")??);
    signal("-CONT", &pid)?;
    say("the holder goes on, and does not know yet:");
    for line in &mut holder.lines {
        say(&format!("  {}", line?));
    }
    holder.finish()?;
    let owner = locks
        .named("payment")
        .holder()?
        .ok_or("the rival's lock is gone")?;
    say(&format!("none of that touched the rival's lock: {owner}"));
    rival.finish()?;
    println!("\nWithout `confirm`, the card would have been charged twice.");
    Ok(())
}

fn holder(locks: &LockManager) -> Result<(), Box<dyn Error>> {
    let guard = locks.lock("payment")?;
    let watch = guard.watch();
    println!("{}", process::id());
    // The work would be here. The process is stopped in the middle of it, and cannot notice that.
    let cause = watch
        .wait_lost(Duration::from_secs(30))
        .ok_or("nothing happened")?;
    println!("is_valid() is {}: {cause}", guard.is_valid());
    println!(
        "confirm(100ms): {}",
        charge_card(&guard)
            .err()
            .ok_or("charged without the lock")?
    );
    println!(
        "lock() again:   {}",
        locks
            .lock("payment")
            .err()
            .ok_or("a lost lock was entered again")?
    );
    println!(
        "guard.unlock(): {}",
        guard.unlock().err().ok_or("a lost lock was released")?
    );
    Ok(())
}

fn charge_card(guard: &LockGuard) -> Result<(), relatch::Error> {
    guard.confirm(Duration::from_millis(100))
}

/// Waits for the lock, charges the card, and keeps the lock until its standard input is closed.
fn rival(locks: &LockManager) -> Result<(), Box<dyn Error>> {
    let guard = locks
        .named("payment")
        .wait(Duration::from_secs(10))
        .lock()?;
    charge_card(&guard)?;
    println!(
        "rival {} has the lock now, and charges the card: {}",
        process::id(),
        relatch::Owner::current()
    );
    io::stdin().read_line(&mut String::new())?;
    guard.unlock()?;
    Ok(())
}

fn signal(signal: &str, pid: &str) -> Result<(), Box<dyn Error>> {
    if Command::new("kill").args([signal, pid]).status()?.success() {
        Ok(())
    } else {
        Err("kill failed".into())
    }
}
