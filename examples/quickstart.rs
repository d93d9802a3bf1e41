//! Three processes compete for one lock, and a chart shows that no two held it at the same time.
//!
//! Run it with `bash examples/run.sh`, or `cargo run --example quickstart` if redis-server is
//! installed.

use std::error::Error;
use std::thread::sleep;
use std::time::{Duration, UNIX_EPOCH};

use relatch::LockManager;

mod support;

const ROUNDS: u64 = 4;
const WIDTH: u64 = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let redis = support::Redis::start()?;
    let locks = LockManager::connect(redis.url())?;
    if let Some(name) = support::role() {
        return worker(&locks, &name);
    }
    show_token(&locks)?;
    println!("\nNow three processes take it {ROUNDS} times each, one line per hold:\n");
    let mut workers = support::Workers::start(redis.url(), &["A", "B", "C"], &[])?;
    let mut holds = Vec::new();
    for line in &mut workers.lines {
        holds.push(parse(&line?).ok_or("a worker printed something else")?);
    }
    workers.finish()?;
    holds.sort();
    draw(&holds);
    if holds.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err("two processes held the lock at the same time".into());
    }
    println!(
        "\n{} holds by three processes, and no two of them at the same time.",
        holds.len()
    );
    Ok(())
}

fn worker(locks: &LockManager, name: &str) -> Result<(), Box<dyn Error>> {
    for round in 0..ROUNDS {
        let (from, to) = locks.with_lock_result("till", |_| -> Result<_, Box<dyn Error>> {
            let from = UNIX_EPOCH.elapsed()?.as_micros();
            sleep(Duration::from_millis(50 + 40 * round));
            count(locks)?;
            Ok((from, UNIX_EPOCH.elapsed()?.as_micros()))
        })?;
        println!("{from} {to} {name} (pid {})", std::process::id());
        sleep(Duration::from_millis(40));
    }
    Ok(())
}

/// The caller holds the lock, and this function takes it again: a thread never waits for itself.
fn count(locks: &LockManager) -> Result<(), relatch::Error> {
    locks.with_lock("till", || sleep(Duration::from_millis(40)))
}

fn show_token(locks: &LockManager) -> Result<(), Box<dyn Error>> {
    let _guard = locks.lock("till")?;
    let holder = locks.named("till").holder()?.ok_or("the lock is gone")?;
    let owner = holder.owner().ok_or("not a token of this crate")?;
    println!(
        "A lock that is held is one string in Redis:\n\n  lock:till = {}\n",
        holder.raw
    );
    println!(
        "Host {}, process {}, thread {}, and a nonce.",
        owner.host, owner.pid, owner.thread
    );
    Ok(())
}

fn parse(line: &str) -> Option<(u64, u64, String)> {
    let mut words = line.splitn(3, ' ');
    Some((
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.to_owned(),
    ))
}

fn draw(holds: &[(u64, u64, String)]) {
    let (Some((start, ..)), Some((_, end, _))) = (holds.first(), holds.last()) else {
        return;
    };
    for (from, to, who) in holds {
        let held = |column| (*from..*to).contains(&(start + column * (end - start) / WIDTH));
        let bar: String = (0..WIDTH)
            .map(|column| if held(column) { '█' } else { '·' })
            .collect();
        println!(
            "{:>5} - {:>4} ms  {who:<14} {bar}",
            (from - start) / 1000,
            (to - start) / 1000
        );
    }
}
