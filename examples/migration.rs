//! A migration stops between two batches, while it still has its lock, if Redis goes away.
//!
//! Run it: `bash examples/run.sh migration`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{scope, sleep};
use std::time::Duration;

use relatch::Builder;

const LEASE: Duration = Duration::from_secs(6);

/// While Redis answers, renewals keep two thirds of the lease in reserve. So less than a half says
/// that they fail. What is left has to be enough for the batch that runs, and for writing down how
/// far the migration has come.
const AT_RISK: Duration = Duration::from_secs(3);
const A_BATCH: Duration = Duration::from_millis(400);

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .lease(LEASE)
        .build()
        .map_err(|error| error.to_string())?;
    let guard = locks.lock("migration")?;
    let watch = guard.watch();
    let must_stop = AtomicBool::new(false);
    scope(|scope| {
        // The migration may be in the middle of a long statement, so another thread waits.
        scope.spawn(|| {
            if let Some(left) = watch.wait_at_risk(AT_RISK) {
                println!("the lock may be lost in {left:.1?}: stop");
                must_stop.store(true, Ordering::Relaxed);
            }
        });
        for batch in 1..=20 {
            if must_stop.load(Ordering::Relaxed) {
                // No other process has the lock yet, so none has begun with this batch.
                println!(
                    "to do: batch {batch} and later ones; left: {:.1?}",
                    guard.remaining()
                );
                return Ok(());
            }
            sleep(A_BATCH);
            println!(
                "batch {batch} of 20 is done; left: {:.1?}",
                guard.remaining()
            );
        }
        guard.confirm(Duration::from_secs(2))?; // Redis says: ours, for two more seconds.
        println!("the old column is dropped");
        drop(guard); // This also ends the thread that waits.
        Ok(())
    })
}
