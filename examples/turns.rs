//! Three processes take turns with one lock, and a chart shows who had it when.
//!
//! Run it: `bash examples/run.sh turns [seconds]`; with `sentinel` or `cluster` in the place of
//! `turns`, the master is killed meanwhile
//! Copy it: `cargo add relatch --path ../relatch`

use std::env;
use std::error::Error;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTimeError, UNIX_EPOCH};

use relatch::{Builder, Replicas};

const NAMES: [&str; 3] = ["A", "B", "C"];
const A_TURN: Duration = Duration::from_millis(150);

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = env::args().skip(1);
    let seconds = args.next().unwrap_or_else(|| "2".to_owned());
    if args.next().is_some() {
        return take_turns(seconds.parse()?);
    }
    let mut processes = Vec::new();
    for name in NAMES {
        let mut process = Command::new(env::current_exe()?);
        process.args([&seconds, name]).stdout(Stdio::piped());
        processes.push(process.spawn()?);
    }
    let mut turns = Vec::new();
    for (name, process) in NAMES.into_iter().zip(processes) {
        let output = String::from_utf8(process.wait_with_output()?.stdout)?;
        for line in output.lines() {
            let (from, to) = line.split_once(' ').ok_or("no turn")?;
            turns.push((from.parse()?, to.parse()?, name));
        }
    }
    turns.sort_unstable();
    draw(&turns)
}

/// Prints from when to when it had the lock, in milliseconds on a clock that all processes share.
fn take_turns(seconds: u128) -> Result<(), Box<dyn Error>> {
    let mut builder = Builder::from_env();
    if let Ok(replicas) = env::var("REPLICAS") {
        // A failover loses what the new master has not got. So a lock is taken only when as many
        // replicas have it. With `Replicas::all()`, one that is down would stop all locks.
        let replicas = Replicas::at_least(replicas.parse()?);
        builder = builder.replicas(replicas, Duration::from_millis(500));
    }
    let locks = builder.build().map_err(|error| error.to_string())?;
    let end = now()? + 1000 * seconds;
    while now()? < end {
        let turn = locks.with_lock("till", || {
            let from = now()?;
            sleep(A_TURN);
            Ok::<_, SystemTimeError>((from, now()?))
        });
        match turn {
            Ok(turn) => turn.map(|(from, to)| println!("{from} {to}"))?,
            Err(error) => eprintln!("process {}: {error}", std::process::id()),
        }
        sleep(A_TURN / 3);
    }
    Ok(())
}

fn now() -> Result<u128, SystemTimeError> {
    Ok(UNIX_EPOCH.elapsed()?.as_millis())
}

fn draw(turns: &[(u128, u128, &str)]) -> Result<(), Box<dyn Error>> {
    let (first, _, _) = turns.first().ok_or("nobody had a turn")?;
    let (_, last, _) = turns.last().ok_or("nobody had a turn")?;
    for name in NAMES {
        let mut bar = String::new();
        for at in (*first..*last).step_by(100) {
            let mut own = turns.iter().filter(|turn| turn.2 == name);
            let has_it = own.any(|(from, to, _)| (*from..*to).contains(&at));
            bar.push(if has_it { '█' } else { '·' });
        }
        println!("{name} {bar}");
    }
    let mut longest = 0;
    for two in turns.windows(2) {
        let free = two[1].0.checked_sub(two[0].1).ok_or("two at a time!")?;
        longest = longest.max(free);
    }
    println!(
        "  {} turns in {} ms; a column is 100 ms",
        turns.len(),
        last - first
    );
    println!("  no two at a time, and nobody had it for {longest} ms at the longest");
    Ok(())
}
