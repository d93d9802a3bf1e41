//! A pool of workers: the jobs of a customer never run at the same time, and SIGTERM ends it
//! cleanly.
//!
//! Run it: `bash examples/run.sh worker`
//! Copy it: `cargo add relatch --path ../relatch && cargo add signal-hook`

use std::error::Error;
use std::process::exit;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use relatch::{Builder, LockGuard, LockManager};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .wait(Duration::from_secs(30)) // For a busy lock. Without it, there is no limit.
        .max_hold(Duration::from_secs(600)) // A job that hangs does not keep its lock for ever.
        .build()
        .map_err(|error| error.to_string())?;
    let is_told = Arc::new(AtomicBool::new(false));
    for signal in [SIGTERM, SIGINT] {
        flag::register(signal, Arc::clone(&is_told))?;
    }
    let queue = AtomicU32::new(1);
    scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| work(&locks, &queue));
        }
        while !is_told.load(Ordering::Relaxed) {
            sleep(Duration::from_millis(50));
        }
        println!("told to end");
        // Waits end now, and nobody gets a lock any more. Jobs that run have ten seconds.
        let left = locks.shutdown(Duration::from_secs(10));
        if !left.is_empty() {
            println!("these jobs hang: {left:?}"); // Their locks end with their leases.
            exit(1);
        }
    });
    Ok(())
}

fn work(locks: &LockManager, queue: &AtomicU32) {
    loop {
        let number = queue.fetch_add(1, Ordering::Relaxed);
        let customer = format!("customer:{}", number % 3);
        match locks.with_lock_result(&customer, |guard| job(number, &customer, guard)) {
            Ok(()) => {}
            // The first question: a job that has begun may be half done.
            Err(error) if error.body_ran() => println!("job {number} needs a person: {error}"),
            Err(relatch::Error::Stopped { .. }) => {
                return println!("job {number} is left to another process");
            }
            // A real worker gives the job back to its queue.
            Err(error) if error.is_retryable() => println!("job {number}, later: {error}"),
            Err(error) => return println!("job {number} cannot run: {error}"),
        }
    }
}

fn job(number: u32, customer: &str, guard: &LockGuard) -> Result<(), relatch::Error> {
    sleep(Duration::from_millis(300));
    guard.confirm(Duration::from_secs(5))?; // Before what cannot be undone, ask Redis.
    println!("job {number} of {customer} is done");
    Ok(())
}
