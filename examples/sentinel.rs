//! Two processes take turns while their master is killed, and a chart shows who held the lock when.
//!
//! Run it with `bash examples/run.sh sentinel`, or `cargo run --example sentinel` if redis-server
//! is installed. It takes ten seconds.

use std::env;
use std::error::Error;
use std::ops::Range;
use std::process;
use std::thread::{scope, sleep};
use std::time::{Duration, UNIX_EPOCH};

use relatch::{LockManager, Replicas};
use relatch_rig::Sentinels;

mod support;

const USAGE: &str = "usage: sentinel

Starts a master with two replicas and three sentinels, and two processes that take turns with one
lock. Kills the master. The sentinels promote a replica, and the processes go on. All that was
started ends with this program.";

/// How often each process takes the lock.
const TURNS: usize = 12;
const WORK: Duration = Duration::from_millis(120);
/// How long a column of the chart is, in microseconds.
const COLUMN: usize = 80_000;

/// From when to when, in microseconds, and what was there.
type Span = (u128, u128, String);

fn main() -> Result<(), Box<dyn Error>> {
    if env::args().nth(1).is_some() {
        println!("{USAGE}");
        return Ok(());
    }
    if let Some(name) = support::role() {
        return worker(&name);
    }
    support::check_installed()?;
    println!("Starting a master, two replicas and three sentinels");
    let sentinels = Sentinels::start();
    let start = now();
    let say = |what: &str| println!("{:>6} ms  {what}", (now() - start) / 1000);
    let url = sentinels.url();
    say(&format!("the processes A and B use {url}"));
    let mut workers = support::Workers::start(&url, &["A", "B"], &[])?;
    let mut spans = Vec::new();
    let masters = scope(|scope| {
        let mut failover = None;
        for line in &mut workers.lines {
            let line = line?;
            match parse(&line) {
                Some(span) => spans.push(span),
                None => say(&line),
            }
            if spans.len() >= TURNS / 2 && failover.is_none() {
                failover = Some(scope.spawn(|| fail_over(&sentinels, start, &say)));
            }
        }
        let failover = failover.ok_or("the processes ended too early")?;
        failover
            .join()
            .map_err(|_| Box::<dyn Error>::from("the failover went wrong"))
    })?;
    workers.finish()?;
    spans.sort();
    let end = spans.last().map_or(start, |span| span.1);
    println!(
        "\nWho held the lock, and who was the master; a column is {} ms:\n",
        COLUMN / 1000
    );
    for (who, what) in [
        ("A", &spans),
        ("B", &spans),
        (&*masters[0].2, &masters),
        (&*masters[1].2, &masters),
    ] {
        draw(start..end, who, what);
    }
    if spans.windows(2).any(|pair| pair[1].0 < pair[0].1) {
        return Err("two processes held the lock at the same time".into());
    }
    println!(
        "\n{} turns of two processes, and no two at the same time.",
        spans.len()
    );
    Ok(())
}

fn worker(name: &str) -> Result<(), Box<dyn Error>> {
    let redis = support::Redis::start()?;
    // One replica of two has to acknowledge a lock, so that a server may be down. With
    // `Replicas::all()` a failover could lose no lock, but each lock would need every server.
    let replicas = Replicas::at_least(1);
    let locks = LockManager::builder(redis.url())
        .replicas(replicas, Duration::from_millis(200))
        .build()?;
    let mut turns = 0;
    while turns < TURNS {
        let guard = match locks.lock("till") {
            Ok(guard) => guard,
            Err(error) => {
                println!("{name} (pid {}): {error}", process::id());
                continue;
            }
        };
        turns += 1;
        let from = now();
        sleep(WORK);
        guard.ensure(Duration::from_millis(1))?;
        println!("{from} {} {name}", now());
        if let Err(error) = guard.unlock() {
            println!("{name} (pid {}): {error}", process::id());
        }
        sleep(WORK / 4);
    }
    Ok(())
}

/// Kills the master, and has it come back as a replica. Returns which server was the master, and
/// when.
fn fail_over(sentinels: &Sentinels, start: u128, say: &impl Fn(&str)) -> Vec<Span> {
    let old = sentinels.master();
    let name = |place: usize| sentinels.server(place).address();
    say(&format!("the master {} is killed", name(old)));
    let killed = now();
    sentinels.server(old).kill();
    let new = sentinels.until_replaced(old);
    let replaced = now();
    say(&format!("the sentinels have made {} the master", name(new)));
    sentinels.restart(old);
    sentinels.until_in_sync();
    say(&format!("{} is back, as a replica", name(old)));
    vec![(start, killed, name(old)), (replaced, u128::MAX, name(new))]
}

fn now() -> u128 {
    UNIX_EPOCH.elapsed().map_or(0, |time| time.as_micros())
}

fn parse(line: &str) -> Option<Span> {
    let mut words = line.split(' ');
    Some((
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
        words.next()?.to_owned(),
    ))
}

/// Draws the line of `who` in the chart.
fn draw(time: Range<u128>, who: &str, spans: &[Span]) {
    let is_there = |at| {
        spans
            .iter()
            .any(|(from, to, it)| it == who && (*from..*to).contains(&at))
    };
    let columns = time.step_by(COLUMN);
    let bar: String = columns
        .map(|at| if is_there(at) { '█' } else { '·' })
        .collect();
    println!("{who:<16} {bar}");
}
