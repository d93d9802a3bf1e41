//! A busy lock: the work is skipped, or waits for a while and names the holder.
//!
//! Run it: `bash examples/run.sh busy`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;
use std::sync::mpsc::channel;
use std::thread::{scope, sleep};
use std::time::Duration;

use relatch::{Builder, LockManager};

fn main() -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    let (taken, is_taken) = channel();
    scope(|scope| {
        // Stands for another process.
        let other = scope.spawn(|| {
            let _guard = locks.lock("report")?;
            let _ = taken.send(());
            sleep(Duration::from_secs(2));
            Ok::<_, relatch::Error>(())
        });
        is_taken.recv()?;
        skip(&locks)?;
        wait(&locks)?;
        Ok(other.join().map_err(|_| "the other thread panicked")??)
    })
}

fn skip(locks: &LockManager) -> Result<(), relatch::Error> {
    match locks.try_with_lock("report", write)? {
        Some(pages) => println!("{pages} pages are written"),
        None => println!("somebody else writes the report, so this skips it"),
    }
    Ok(())
}

fn wait(locks: &LockManager) -> Result<(), relatch::Error> {
    for seconds in [1, 10] {
        match locks
            .named("report")
            .wait(Duration::from_secs(seconds))
            .with_lock(write)
        {
            Ok(pages) => println!("{pages} pages are written"),
            Err(busy @ relatch::Error::Timeout { source: None, .. }) => println!("{busy}"),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn write() -> u32 {
    12
}
