//! Cron starts a job on three machines at about the same time, and one of them runs it.
//!
//! Run it: `bash examples/run.sh cron`
//! Copy it: `cargo add relatch --path ../relatch`

use std::error::Error;
use std::io;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use std::{env, fs};

use relatch::Builder;

/// More than the clocks of the machines may differ, and less than the time between two ticks.
const AT_LEAST: Duration = Duration::from_secs(2);

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(machine) = env::args().nth(1) {
        return run_once(&machine);
    }
    for tick in 1..=2 {
        println!("tick {tick}");
        let mut started = Vec::new();
        for machine in ["web-1", "web-2", "web-3"] {
            started.push(Command::new(env::current_exe()?).arg(machine).spawn()?);
            sleep(Duration::from_millis(200)); // As if its clock were late.
        }
        for mut process in started {
            process.wait()?;
        }
        sleep(AT_LEAST);
    }
    Ok(())
}

/// What cron starts on each machine.
fn run_once(machine: &str) -> Result<(), Box<dyn Error>> {
    let locks = Builder::from_env()
        .build()
        .map_err(|error| error.to_string())?;
    // The job is done before the next machine asks. If the lock were free by then, that machine
    // would run the job again. So Redis keeps it, though this process ends.
    let lock = locks.named("nightly").keep_at_least(AT_LEAST);
    let Some(guard) = lock.try_lock()? else {
        println!("  {machine} leaves it to another machine");
        return Ok(());
    };
    match backup() {
        Ok(()) => {
            println!(
                "  {machine} has made the backup; the lock is {}",
                guard.unlock()?
            );
            Ok(())
        }
        Err(error) => {
            guard.unlock_now()?; // Keeps nothing: another machine may try.
            Err(error.into())
        }
    }
}

/// Something that can fail.
fn backup() -> io::Result<()> {
    fs::read_dir(".").map(drop)
}
