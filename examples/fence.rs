//! A holder is stopped past its lease, comes back and writes, and the store refuses its old fence.
//!
//! The store is a folder. A real one is a database or an object store: see docs/fencing.md.
//!
//! Run it with `bash examples/run.sh fence`, or `cargo run --example fence` if redis-server is
//! installed (not on Windows).

use std::error::Error;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::thread::sleep;
use std::time::{Duration, Instant};

use relatch::LockManager;

mod support;

const LEASE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let redis = support::Redis::start()?;
    let locks = LockManager::builder(redis.url())
        .lease(LEASE)
        .fenced(true)
        .build()?;
    if let Some(role) = support::role() {
        let store = Store {
            folder: std::env::args().nth(1).ok_or("no folder")?.into(),
        };
        return if role == "holder" {
            holder(&locks, &store)
        } else {
            rival(&locks, &store)
        };
    }
    let start = Instant::now();
    let say = |what: &str| println!("{:>5} ms  {what}", start.elapsed().as_millis());
    let folder = tempfile::tempdir()?;
    let args = [folder.path().display().to_string()];

    let mut holder = support::Workers::start(redis.url(), &["holder"], &args)?;
    let pid = holder
        .lines
        .next()
        .ok_or("the holder did not get the lock")??;
    say(&holder.lines.next().ok_or("the holder has no fence")??);
    signal("-STOP", &pid)?;
    say("the holder is stopped, as by a long pause of its machine: nobody renews");

    let mut rival = support::Workers::start(redis.url(), &["rival"], &args)?;
    say(&rival.lines.next().ok_or("the rival did not write")??);
    rival.finish()?;
    signal("-CONT", &pid)?;
    say("the holder goes on, does not look at its lock, and writes what it had prepared:");
    for line in &mut holder.lines {
        say(&format!("  {}", line?));
    }
    holder.finish()?;
    let (fence, text) = Store {
        folder: folder.path().into(),
    }
    .read()?;
    say(&format!(
        "the store has {text:?}, written with the fence {fence}"
    ));
    println!("\nWithout the fence, the late write would have replaced the rival's.");
    if text == "the rival's report" {
        Ok(())
    } else {
        Err("the late write was accepted".into())
    }
}

fn holder(locks: &LockManager, store: &Store) -> Result<(), Box<dyn Error>> {
    let guard = locks.lock("report")?;
    let fence = guard.fence().ok_or("not fenced")?;
    println!(
        "{}\nholder {} has the lock with the fence {fence}",
        process::id(),
        process::id()
    );
    sleep(2 * LEASE); // The process is stopped here, and cannot notice that.
    match store.write(fence, "the holder's report") {
        Ok(()) => println!("accepted"),
        Err(refused) => println!("{refused}"),
    }
    Ok(())
}

/// Waits for the lock, and writes.
fn rival(locks: &LockManager, store: &Store) -> Result<(), Box<dyn Error>> {
    let guard = locks.named("report").wait(Duration::from_secs(10)).lock()?;
    let fence = guard.fence().ok_or("not fenced")?;
    store.write(fence, "the rival's report")?;
    println!(
        "rival {} has the lock, and writes with the fence {fence}",
        process::id()
    );
    Ok(())
}

/// A store that refuses a write whose fence is older than one that it has seen.
///
/// Each fence has a file of its own, and the largest one is what the store has. So the comparison
/// and the write need not be one step: whatever comes in between, an old fence replaces nothing.
struct Store {
    folder: PathBuf,
}

impl Store {
    fn write(&self, fence: u64, text: &str) -> io::Result<()> {
        let newest = newest(&self.folder)?;
        if newest > fence {
            return Err(io::Error::other(format!(
                "refused: {fence} is older than {newest}"
            )));
        }
        fs::write(self.folder.join(fence.to_string()), text)
    }

    fn read(&self) -> io::Result<(u64, String)> {
        let newest = newest(&self.folder)?;
        Ok((
            newest,
            fs::read_to_string(self.folder.join(newest.to_string()))?,
        ))
    }
}

fn newest(folder: &Path) -> io::Result<u64> {
    let mut newest = 0;
    for file in fs::read_dir(folder)? {
        newest = newest.max(
            file?
                .file_name()
                .to_string_lossy()
                .parse()
                .map_err(io::Error::other)?,
        );
    }
    Ok(newest)
}

fn signal(signal: &str, pid: &str) -> Result<(), Box<dyn Error>> {
    if Command::new("kill").args([signal, pid]).status()?.success() {
        Ok(())
    } else {
        Err("kill failed".into())
    }
}
