//! Every tick starts three short-lived processes with the same job, and one of them runs it.
//!
//! Run it with `bash examples/run.sh cron [ticks]`, or `cargo run --example cron [ticks]` if
//! redis-server is installed.

use std::env;
use std::error::Error;
use std::process;
use std::thread::sleep;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use relatch::Builder;

mod support;

/// Seconds from one tick to the next.
const PERIOD: u64 = 2;

/// How much later the second process starts than the first, and the third than the second: as if
/// each ran on a machine of its own, with a clock of its own.
const APART: Duration = Duration::from_millis(60);

/// Much shorter than the time from one start to the next.
const JOB: Duration = Duration::from_millis(5);

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(name) = support::role() {
        return one_shot(&name, &env::args().nth(1).ok_or("no tick")?);
    }
    let redis = support::Redis::start()?;
    let ticks: u64 = env::args()
        .nth(1)
        .map_or(Ok(3), |arg| arg.parse())
        .map_err(|_| "usage: cron [ticks]")?;
    println!(
        "Every {PERIOD} s: three processes, started 60 ms apart, with a job of 5 ms; ticks: {ticks}"
    );
    let first = UNIX_EPOCH.elapsed()?.as_secs() / PERIOD + 1;
    for tick in first..first + ticks {
        sleep_until(tick);
        println!("\n{} UTC, lock \"nightly:{tick}\"", time_of_day(tick));
        let mut runs = 0;
        let mut processes = Vec::new();
        for name in ["A", "B", "C"] {
            processes.push(support::Workers::start(
                redis.url(),
                &[name],
                &[tick.to_string()],
            )?);
            sleep(APART);
        }
        for mut started in processes {
            for line in &mut started.lines {
                let line = line?;
                println!("  {line}");
                runs += i32::from(line.ends_with("runs the job"));
            }
            started.finish()?;
        }
        if runs != 1 {
            return Err(format!("the job should have run once, but ran {runs} times").into());
        }
    }
    println!("\nIn each tick exactly one of them ran the job.");
    Ok(())
}

/// What cron would start. Every tick has a lock of its own, and the process that gets it runs the
/// job. The job is done before the next process starts. So the lock stays taken for half a tick:
/// that is more than the clocks of the machines may differ. Then the process exits, and nothing of
/// it is needed any more.
fn one_shot(name: &str, tick: &str) -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env().build()?;
    let me = format!("{name} (pid {})", process::id());
    let lock = locks
        .named(format!("nightly:{tick}"))
        .keep_at_least(Duration::from_secs(PERIOD) / 2);
    if let Some(guard) = lock.try_lock()? {
        match job() {
            Ok(()) => guard.unlock()?,     // Kept: nobody else runs this tick's job.
            Err(_) => guard.unlock_now()?, // Another process may try at once.
        };
        println!("{me}  runs the job");
    } else if let Some(holder) = lock.holder()? {
        println!("{me}  leaves it to {holder}");
    }
    Ok(())
}

fn job() -> Result<(), Box<dyn Error>> {
    sleep(JOB);
    env::current_dir()?; // Something that can fail.
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
    format!(
        "{:02}:{:02}:{:02}",
        seconds / 3600 % 24,
        seconds / 60 % 60,
        seconds % 60
    )
}
