//! Three processes schedule the same job every two seconds, and each time one of them runs it.
//!
//! Run it with `bash examples/run.sh cron [rounds]`, or `cargo run --example cron [rounds]` if
//! redis-server is installed.

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::process;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use relatch::LockManager;

mod support;

/// Seconds from one tick to the next.
const PERIOD: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let redis = support::Redis::start()?;
    let rounds: u64 =
        env::args().nth(1).map_or(Ok(3), |arg| arg.parse()).map_err(|_| "usage: cron [rounds]")?;
    if let Some(name) = support::role() {
        let first: u64 = env::args().nth(2).ok_or("no first tick")?.parse()?;
        return worker(&LockManager::connect(redis.url())?, &name, first..first + rounds);
    }
    println!("Three processes, one job, every {PERIOD} seconds; rounds: {rounds}");
    let first = UNIX_EPOCH.elapsed()?.as_secs() / PERIOD + 1;
    let args = [rounds.to_string(), first.to_string()];
    let mut workers = support::Workers::start(redis.url(), &["A", "B", "C"], &args)?;
    let mut runs = BTreeMap::new();
    for line in &mut workers.lines {
        let line = line?;
        let (tick, report) = line.split_once(' ').ok_or("a worker printed something else")?;
        if !runs.contains_key(tick) {
            println!("\n{} UTC, lock \"nightly:{tick}\"", time_of_day(tick.parse()?));
        }
        println!("  {report}");
        *runs.entry(tick.to_owned()).or_insert(0) += i32::from(report.ends_with("runs the job"));
    }
    workers.finish()?;
    if runs.len() as u64 != rounds || runs.values().any(|&times| times != 1) {
        return Err(format!("the job should have run once per tick, but ran {runs:?}").into());
    }
    println!("\nIn each round exactly one of them ran the job.");
    Ok(())
}

/// Every tick has a lock of its own, and the process that gets it runs the job. The process keeps
/// the guard until the tick is over, long after the job is done. So a process that is late by
/// nearly a whole tick, or whose clock is, still finds the lock held. The lease is longer than a
/// tick, so that the lock stays held if the process dies.
fn worker(locks: &LockManager, name: &str, ticks: std::ops::Range<u64>) -> Result<(), Box<dyn Error>> {
    let me = format!("{name} (pid {})", process::id());
    for tick in ticks {
        sleep_until(tick);
        let lock = locks.named(format!("nightly:{tick}")).lease(Duration::from_secs(2 * PERIOD));
        let guard = lock.try_lock()?;
        if guard.is_some() {
            println!("{tick} {me}  runs the job");
        } else if let Some(holder) = lock.holder()? {
            println!("{tick} {me}  leaves it to {holder}");
        }
        sleep_until(tick + 1);
    }
    Ok(())
}

fn sleep_until(tick: u64) {
    let due = UNIX_EPOCH + Duration::from_secs(tick * PERIOD);
    while let Ok(left) = due.duration_since(SystemTime::now()) {
        sleep(left);
    }
}

fn time_of_day(tick: u64) -> String {
    let seconds = tick * PERIOD;
    format!("{:02}:{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60, seconds % 60)
}
