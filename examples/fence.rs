//! A holder is paused past its lease, comes back and writes, and the store refuses its old fence.
//!
//! Run it: `bash examples/run.sh fence`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;
use std::sync::Mutex;
use std::thread::{scope, sleep};
use std::time::Duration;

use relatch::{Builder, LockManager};

const LEASE: Duration = Duration::from_millis(500);

/// Stands for a database: the newest fence that it has seen, and what was written with it.
#[derive(Default)]
struct Store(Mutex<(u64, String)>);

impl Store {
    /// Comparing and writing are one step of the store. In SQL: `UPDATE reports SET body = $1,
    /// fence = $2 WHERE id = $3 AND fence <= $2`, which must change a row.
    fn write(&self, fence: u64, text: &str) -> Result<(), Box<dyn Error>> {
        let mut row = self.0.lock().map_err(|_| "the store is broken")?;
        if fence < row.0 {
            return Err(format!("refused: the store has seen {}", row.0).into());
        }
        *row = (fence, text.to_owned());
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .fenced(true)
        .build()
        .map_err(|error| error.to_string())?;
    let store = Store::default();
    scope(|scope| {
        scope.spawn(|| report("the first", 3 * LEASE, &locks, &store));
        sleep(LEASE / 2);
        scope.spawn(|| report("the second", Duration::ZERO, &locks, &store));
    });
    println!(
        "the store has: {:?}",
        store.0.lock().map_err(|_| "the store is broken")?.1
    );
    Ok(())
}

fn report(who: &str, pause: Duration, locks: &LockManager, store: &Store) {
    // Without renewals, a thread that sleeps loses its lock, as a paused process would.
    let lock = locks.named("report").lease(LEASE).renew(false);
    let written = lock.lock().map_err(Box::from).and_then(|guard| {
        let fence = guard.fence().ok_or("a lock without a fence")?;
        println!("{who} has the lock, with the fence {fence}");
        sleep(pause);
        // A careless holder: it does not ask whether it still has the lock.
        store.write(fence, who)
    });
    match written {
        Ok(()) => println!("{who} has written"),
        Err(error) => println!("{who} comes too late; {error}"),
    }
}
