//! A lock is lost while its holder works: the holder stops before the step that cannot be undone.
//!
//! Run it: `bash examples/run.sh lost`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;
use std::thread::{scope, sleep};
use std::time::Duration;

use relatch::{Builder, LockGuard, LockManager};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .on_lost(|lost| println!("for the log: {lost}"))
        .build()
        .map_err(|error| error.to_string())?;
    scope(|scope| {
        let job = scope.spawn(|| locks.with_lock_result("payment", pay));
        sleep(Duration::from_millis(700));
        lose()?;
        match job.join().map_err(|_| "the job panicked")? {
            Err(error) if error.is_lost() => {
                println!("the call says: {error}");
                println!(
                    "the job had begun, so look at what it did: {}",
                    error.body_ran()
                );
                Ok(())
            }
            other => Ok(other?),
        }
    })
}

fn pay(guard: &LockGuard) -> Result<(), relatch::Error> {
    for step in 1..=10 {
        // By the clock, there is time for one more step. This sends nothing while renewals go
        // well, and nothing else interrupts the work.
        guard.ensure(Duration::from_secs(1))?;
        println!("step {step} of 10");
        sleep(Duration::from_millis(200));
    }
    // Redis says so, too.
    guard.confirm(Duration::from_secs(5))?;
    println!("the card is charged");
    Ok(())
}

/// Another process deletes the key. A failover can have the same effect, and so has a pause of the
/// holder's machine for longer than the lease.
fn lose() -> Result<(), Box<dyn Error>> {
    let operator: LockManager = Builder::from_env().build()?;
    let holder = operator.named("payment").force_unlock()?;
    println!(
        "an operator deletes the key of {}",
        holder.ok_or("nobody had it")?
    );
    Ok(())
}
