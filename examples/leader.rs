//! One process of three leads until it is stopped, and steps down before it can lose the lead.
//!
//! Run it: `bash examples/run.sh leader`
//! Copy it: `cargo add relatch --path ../relatch`

use std::env;
use std::error::Error;
use std::io::{Read, stdin};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use relatch::{Builder, LockManager, StopHandle};

const LEASE: Duration = Duration::from_secs(3);
/// Less than the two thirds of the lease that renewals keep, and more than `lead` takes.
const RESERVE: Duration = Duration::from_secs(1);

static IS_STOPPED: AtomicBool = AtomicBool::new(false);
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Leads again and again, until it is stopped. `lead` does a little work, and returns.
fn campaign(locks: &LockManager, stop: &StopHandle, lead: impl Fn()) -> Result<(), relatch::Error> {
    while !IS_STOPPED.load(Ordering::Relaxed) {
        let guard = match locks.named("leader").stopped_by(stop).lock() {
            Ok(guard) => guard,
            Err(relatch::Error::Stopped { .. }) => return Ok(()),
            Err(error) if error.is_retryable() => continue, // Redis is away, or comes back.
            Err(error) => return Err(error),
        };
        say("leads");
        // When renewals fail, this ends while no other process can lead yet. If the key is deleted,
        // nothing is left at once.
        while guard.remaining() > RESERVE && !IS_STOPPED.load(Ordering::Relaxed) {
            lead();
        }
        say(&format!("steps down; left: {:.1?}", guard.remaining()));
    }
    Ok(())
}

fn candidate() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .lease(LEASE)
        .build()
        .map_err(|error| error.to_string())?;
    let stop = StopHandle::new();
    let stopper = stop.clone();
    thread::spawn(move || {
        let _ = stdin().read(&mut [0]); // Until the pipe is closed.
        IS_STOPPED.store(true, Ordering::Relaxed);
        stopper.stop(); // Ends the wait for the lock, if this does not lead.
    });
    say("is a candidate");
    campaign(&locks, &stop, || sleep(Duration::from_millis(100)))?;
    say("ends");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    if env::args().nth(1).is_some() {
        return candidate();
    }
    let mut candidates = Vec::new();
    for name in ["A", "B", "C"] {
        let mut process = Command::new(env::current_exe()?);
        candidates.push(process.arg(name).stdin(Stdio::piped()).spawn()?);
    }
    sleep(Duration::from_secs(9));
    for mut process in candidates {
        drop(process.stdin.take());
        process.wait()?;
        sleep(Duration::from_millis(500));
    }
    Ok(())
}

fn say(what: &str) {
    let name = env::args().nth(1).unwrap_or_default();
    println!("{:>5} ms  {name} {what}", START.elapsed().as_millis());
}
