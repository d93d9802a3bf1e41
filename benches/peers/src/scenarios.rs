//! The scenarios, round by round, over all peers: what is planned, and what workers' answers come to.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::book::{Book, CROWDS, Contended, Crowd};
use crate::numbers::Spread;
use crate::peer::{LOCKS, Peer};
use crate::plan::Plan;
use crate::protocol::{Tally, Turns};
use crate::stage::{Stage, Worker};

/// For a worker that should be done: a lease and a bit, since some may wait for one.
const PATIENCE: Duration = Duration::from_secs(40);

/// The whole plan. What fails is noted, and the rest goes on.
pub(crate) fn run(stage: &mut Stage, plan: &Plan) -> Book {
    let mut book = Book::default();
    for round in 0..plan.rounds {
        let mut locks: Vec<Peer> = LOCKS.into_iter().filter(|peer| stage.has(*peer)).collect();
        // So that nobody always comes after the same one.
        let first = round % locks.len();
        locks.rotate_left(first);
        let say = |what: &str, peer: Peer| {
            eprintln!("round {}/{}  {what:<28}  {}", round + 1, plan.rounds, peer.title());
        };
        eprintln!("round {}/{}  lock and unlock, alone        all in turns", round + 1, plan.rounds);
        let peers: Vec<Peer> = [Peer::Ping, Peer::Floor].into_iter().chain(locks.iter().copied()).collect();
        for (peer, outcome) in cycles(stage, plan, &peers) {
            note(&mut book, None, peer, outcome, |book, slices| {
                book.cycles.entry(peer).or_default().extend(slices);
            });
        }
        say("reentry", Peer::Relatch);
        let outcome = reentry(stage, plan);
        note(&mut book, None, Peer::Relatch, outcome, |book, slices| book.reentry.extend(slices));
        for (crowd, &peer) in CROWDS.into_iter().flat_map(|crowd| locks.iter().map(move |peer| (crowd, peer)))
        {
            say(crowd.title(), peer);
            let outcome = contended(stage, plan, &mut book, crowd, peer);
            note(&mut book, Some(crowd), peer, outcome, |book, round| {
                book.contended.entry((crowd, peer)).or_default().push(round);
            });
        }
        for &peer in [Peer::Ping].iter().chain(&locks) {
            say("hand-off between processes", peer);
            let outcome = hand_offs(stage, plan, peer);
            note(&mut book, None, peer, outcome, |book, times| {
                book.hand_offs.entry(peer).or_default().extend(times);
            });
        }
        for &peer in &locks {
            say("commands while waiting", peer);
            let outcome = waiting(stage, plan, peer);
            note(&mut book, None, peer, outcome, |book, commands| {
                book.waiting.entry(peer).or_default().push(commands);
            });
        }
    }
    book
}

/// Enters an outcome into the book, or that there is none.
fn note<T>(
    book: &mut Book,
    crowd: Option<Crowd>,
    peer: Peer,
    outcome: Result<T>,
    enter: impl FnOnce(&mut Book, T),
) {
    match outcome {
        Ok(outcome) => enter(book, outcome),
        Err(why) => {
            eprintln!("FAILED: {}: {why:#}", peer.title());
            book.trouble(crowd, peer).failures += 1;
        }
    }
}

/// One thread that nobody disturbs: all peers in turns, in short slices, since the scheduler's luck changes by the moment.
fn cycles(stage: &mut Stage, plan: &Plan, peers: &[Peer]) -> Vec<(Peer, Result<Vec<Spread>>)> {
    let start = |peer: &Peer| {
        let key = stage.key();
        stage.worker("cycles", *peer, &key, &seconds(plan.slice))
    };
    let mut workers: Vec<Result<Worker>> = peers.iter().map(start).collect();
    let mut slices = vec![Vec::new(); peers.len()];
    for _ in 0..plan.slices {
        for (worker, slices) in workers.iter_mut().zip(&mut slices) {
            let spread = worker.as_mut().ok().map(|worker| slice(worker, plan));
            match spread {
                Some(Ok(spread)) => slices.push(spread),
                Some(Err(why)) => *worker = Err(why),
                None => {}
            }
        }
    }
    let outcomes = workers.into_iter().zip(slices).map(|(worker, slices)| worker.map(|_| slices));
    peers.iter().copied().zip(outcomes).collect()
}

fn reentry(stage: &mut Stage, plan: &Plan) -> Result<Vec<Spread>> {
    let key = stage.key();
    let mut worker = stage.worker("reentry", Peer::Relatch, &key, &seconds(plan.slice))?;
    (0..plan.slices).map(|_| slice(&mut worker, plan)).collect()
}

fn slice(worker: &mut Worker, plan: &Plan) -> Result<Spread> {
    worker.tell("go")?;
    let tally = hear(worker, plan.slice)?;
    ensure!(tally.threads.iter().all(|turns| turns.failures == 0), "a call failed");
    let times = tally.threads.into_iter().flat_map(|turns| turns.cycles).collect();
    Spread::of(times).context("not a single turn")
}

/// Threads or processes that take turns on one key.
fn contended(stage: &mut Stage, plan: &Plan, book: &mut Book, crowd: Crowd, peer: Peer) -> Result<Contended> {
    let key = stage.key();
    let mut more = seconds(plan.turns);
    more.extend(["--threads".to_owned(), crowd.threads().to_string()]);
    let workers = (0..crowd.processes()).map(|_| stage.worker("turns", peer, &key, &more));
    let mut workers = workers.collect::<Result<Vec<_>>>()?;
    let cpu = stage.info.cpu()?;
    for worker in &mut workers {
        worker.tell("go")?;
    }
    let tallies = workers.iter_mut().map(|worker| hear(worker, plan.turns)).collect::<Result<Vec<_>>>()?;
    let cpu = stage.info.cpu()? - cpu;

    let trouble = book.trouble(Some(crowd), peer);
    trouble.overlaps += tallies.iter().map(|tally| tally.overlaps).sum::<u64>();
    let threads: Vec<Turns> = tallies.into_iter().flat_map(|tally| tally.threads).collect();
    trouble.gave_up += threads.iter().map(|turns| turns.gave_up).sum::<u64>();
    trouble.failures += threads.iter().map(|turns| turns.failures).sum::<u64>();
    sum_up(threads, plan.turns, cpu)
}

#[allow(clippy::cast_precision_loss, reason = "counts of turns")]
fn sum_up(threads: Vec<Turns>, time: Duration, cpu: f64) -> Result<Contended> {
    let in_time: u64 = threads.iter().map(|turns| turns.in_time).sum();
    ensure!(in_time > 0, "not a single turn");
    let share = |turns: Option<u64>| turns.unwrap_or(0) as f64 / in_time as f64;
    let smallest = share(threads.iter().map(|turns| turns.in_time).min());
    let largest = share(threads.iter().map(|turns| turns.in_time).max());
    let waits: Vec<u64> = threads.into_iter().flat_map(|turns| turns.waits).collect();
    let cpu = cpu * 1e9 / waits.len() as f64;
    let wait = Spread::of(waits).context("nobody waited")?;
    Ok(Contended { per_second: in_time as f64 / time.as_secs_f64(), wait, smallest, largest, cpu })
}

/// From just before the unlock in one process to the return of the lock call in another, again and again.
fn hand_offs(stage: &mut Stage, plan: &Plan, peer: Peer) -> Result<Vec<u64>> {
    let key = stage.key();
    let mut holder = stage.worker("pair", peer, &key, &[])?;
    let mut waiter = stage.worker("pair", peer, &key, &[])?;
    let end = Instant::now() + plan.hand_off;
    let mut times = Vec::new();
    while Instant::now() < end {
        let idle = Duration::from_micros(rand::random_range(20_000..=40_000));
        if peer == Peer::Ping {
            thread::sleep(idle);
            holder.tell("time")?;
            times.push(holder.hear("took", PATIENCE)?.parse()?);
            continue;
        }
        let (gave, got) = hand_off(&mut holder, &mut waiter, || {
            thread::sleep(idle);
            Ok(())
        })?;
        ensure!(got > gave, "the lock was taken before it was given back");
        times.push(got - gave);
    }
    Ok(times)
}

/// One hand-off; `meanwhile` goes on while one has the lock and the other waits. The clock at the unlock, and at the lock.
fn hand_off(
    holder: &mut Worker,
    waiter: &mut Worker,
    meanwhile: impl FnOnce() -> Result<()>,
) -> Result<(u64, u64)> {
    holder.tell("take")?;
    holder.hear("held", PATIENCE)?;
    waiter.tell("wait")?;
    waiter.hear("waiting", PATIENCE)?;
    meanwhile()?;
    holder.tell("give")?;
    let gave = holder.hear("gave", PATIENCE)?.parse()?;
    let got = waiter.hear("got", PATIENCE)?.parse()?;
    Ok((gave, got))
}

/// How many commands a second reach the server while one process has the lock and another waits for it.
#[allow(clippy::cast_precision_loss, reason = "a count of commands")]
fn waiting(stage: &mut Stage, plan: &Plan, peer: Peer) -> Result<f64> {
    let key = stage.key();
    let mut holder = stage.worker("pair", peer, &key, &[])?;
    let mut waiter = stage.worker("pair", peer, &key, &[])?;
    let mut commands = 0;
    hand_off(&mut holder, &mut waiter, || {
        // The first tries are over by then.
        thread::sleep(Duration::from_millis(300));
        let before = stage.info.commands()?;
        thread::sleep(plan.waiting);
        // The first question was a command, too.
        commands = stage.info.commands()?.saturating_sub(before + 1);
        Ok(())
    })?;
    Ok(commands as f64 / plan.waiting.as_secs_f64())
}

fn seconds(time: Duration) -> Vec<String> {
    vec!["--seconds".to_owned(), time.as_secs_f64().to_string()]
}

fn hear(worker: &mut Worker, time: Duration) -> Result<Tally> {
    Ok(serde_json::from_str(&worker.hear("", time + PATIENCE)?)?)
}
