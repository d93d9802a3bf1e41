//! One hold for an order whose steps run in different threads, and the last one in another process.
//!
//! Run it: `bash examples/run.sh moved`
//! Copy it: `cargo add relatch --path ../relatch`

use std::env;
use std::error::Error;
use std::io::{Write, stdin};
use std::process::{Command, Stdio};
use std::thread::{current, scope, sleep};
use std::time::Duration;

use relatch::{Builder, DetachedHold, LockManager, LockParcel};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    if env::args().nth(1).is_some() {
        return ship(&locks);
    }
    // The lock belongs to the order. Between two steps no thread has it, nobody else can take it,
    // and its lease is renewed.
    let mut hold = locks.lock("order:42")?.detach()?;
    for step in ["reserve", "charge"] {
        hold = scope(|scope| {
            let thread = scope.spawn(|| run(step, &locks, hold));
            thread.join().map_err(|_| "a step panicked")
        })??;
        println!(
            "between two steps, others get it: {}",
            locks.try_lock("order:42")?.is_some()
        );
    }
    // The other process gets the lock as a line of text. Who has that line can take the lock, so
    // it belongs into a pipe, and not into arguments or a log.
    let parcel = hold.attach()?.hand_over()?;
    let mut other = Command::new(env::current_exe()?)
        .arg("ship")
        .stdin(Stdio::piped())
        .spawn()?;
    let mut pipe = other.stdin.take().ok_or("no pipe")?;
    writeln!(pipe, "{parcel}")?;
    other.wait()?;
    println!("free again: {}", locks.try_lock("order:42")?.is_some());
    Ok(())
}

/// A thread of a pool: makes a guard of the hold, and a hold of the guard.
fn run(
    step: &str,
    locks: &LockManager,
    hold: DetachedHold,
) -> Result<DetachedHold, relatch::Error> {
    let guard = hold.attach()?;
    // Code that takes the lock by itself re-enters it, in whatever thread it runs.
    locks.with_lock("order:42", || println!("{step}, in {:?}", current().id()))?;
    guard.detach()
}

/// The other process.
fn ship(locks: &LockManager) -> Result<(), Box<dyn Error>> {
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    let parcel: LockParcel = line.trim().parse()?;
    let guard = locks.adopt(&parcel)?;
    sleep(Duration::from_millis(100));
    println!(
        "ship, in process {}: {}",
        std::process::id(),
        guard.unlock()?
    );
    Ok(())
}
