//! Workers get SIGTERM: one shuts its manager down and leaves no lock, the other just exits.
//!
//! Run it with `bash examples/run.sh shutdown`, or `cargo run --example shutdown` if redis-server
//! is installed (not on Windows).

use std::error::Error;
use std::process;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use relatch::LockManager;
use relatch_rig::{Sig, signal};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

mod support;

const LEASE: Duration = Duration::from_secs(3);

/// What is left to do of a job when the signal comes.
const REST_OF_THE_JOB: Duration = Duration::from_millis(300);

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(role) = support::role() {
        return worker(role == "tidy worker");
    }
    let redis = support::Redis::start()?;
    let mut waits = Vec::new();
    for role in ["tidy worker", "hasty worker"] {
        println!("\nA {role}:");
        let mut worker = support::Workers::start(redis.url(), &[role], &[])?;
        let pid = worker
            .lines
            .next()
            .ok_or("the worker does not hold the lock")??;
        let start = Instant::now();
        let say = |what: &str| println!("{:>5} ms  {what}", start.elapsed().as_millis());
        say(&format!(
            "process {pid} has a lock with a lease of {LEASE:?}; another of its threads waits"
        ));
        signal(pid.parse()?, Sig::Term);
        say("it gets SIGTERM");
        let url = redis.url().to_owned();
        let next = thread::spawn(move || -> Result<Instant, relatch::Error> {
            let _guard = LockManager::connect(&url)?.lock("nightly")?;
            Ok(Instant::now())
        });
        for line in &mut worker.lines {
            say(&format!("  {}", line?));
        }
        worker.finish()?;
        say("it is gone");
        let waited = next.join().expect("no panic")? - start;
        say("the next process has the lock");
        waits.push(waited);
    }
    if waits[0] + LEASE / 2 > waits[1] {
        return Err(format!("the tidy worker should have left the lock free: {waits:?}").into());
    }
    println!("\nWithout `shutdown`, others wait until the lease ends.");
    Ok(())
}

fn worker(is_tidy: bool) -> Result<(), Box<dyn Error>> {
    let locks = LockManager::builder(&std::env::var("REDIS_URL")?)
        .lease(LEASE)
        .build()?;
    // From here on, the signals do not end the process. A thread of its own receives them.
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    thread::spawn({
        let locks = locks.clone();
        move || job(&locks)
    });
    signals.forever().next();
    if is_tidy {
        // No new locks, and waits end now. Jobs that run get the time that they need.
        let left = locks.shutdown(Duration::from_secs(10));
        println!("shutdown: {} locks are left", left.len());
    }
    process::exit(0)
}

fn job(locks: &LockManager) {
    let done = locks.with_lock("nightly", || {
        thread::spawn({
            let locks = locks.clone();
            move || {
                let stopped = locks
                    .lock("nightly")
                    .map(drop)
                    .expect_err("it is shut down");
                println!("the thread that waits: {stopped}");
            }
        });
        println!("{}", process::id());
        sleep(REST_OF_THE_JOB);
        println!("the job is done");
    });
    done.expect("the lock was held all the time");
}
