//! What worker processes do: the part of each scenario that is timed.

use std::hint::black_box;
use std::io::{BufRead, Write, stdin, stdout};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::time::{ClockId, clock_gettime};

use crate::locks::{self, Lock};
use crate::peer::Peer;
use crate::protocol::{Tally, Turns};

/// Reentries that are timed together: one alone is too short for the clock.
const BATCH: u32 = 100;

/// Obeys the lines of standard input until it ends.
pub(crate) fn work(url: &str, peer: Peer, lease: u32) -> Result<()> {
    let lock = locks::open(peer, url, lease)?;
    say("ready")?;
    while let Some(command) = hear()? {
        obey(&*lock, peer, &command).or_else(|error| say(&format!("failed {error:#}")))?;
    }
    Ok(())
}

fn obey(lock: &dyn Lock, peer: Peer, command: &str) -> Result<()> {
    match *command.split(' ').collect::<Vec<_>>() {
        ["turns", key, threads, seconds] => {
            let room = Room::of(peer.slots());
            turns(lock, key, threads.parse()?, time(seconds)?, room)
        }
        ["reentry", key, _, seconds] => reentry(lock, key, time(seconds)?),
        ["take", key] => take(lock, key),
        ["wait", key] => wait(lock, key),
        ["hold", key, wait, work, step] => hold(lock, key, [ms(wait)?, ms(work)?, ms(step)?]),
        ["cpu"] => say(&format!("cpu {}", cpu())),
        _ => bail!("unknown command: {command}"),
    }
}

/// Threads take turns on one key, and do nothing while they hold it.
fn turns(lock: &dyn Lock, key: &str, threads: usize, time: Duration, room: Room) -> Result<()> {
    let (ready, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let tally = thread::scope(|scope| {
        let (ready, go, room) = (&ready, &go, &room);
        let each = |number| {
            let mut turns = Turns::default();
            // This turn opens the connections before the clock starts.
            turns.failures += u64::from(lock.turn(&format!("{key}:{number}"), &mut || {}).is_err());
            ready.wait();
            go.wait();
            take_turns(lock, key, time, room, &mut turns);
            turns
        };
        let running: Vec<_> = (0..threads)
            .map(|number| scope.spawn(move || each(number)))
            .collect();
        ready.wait();
        let told = say("ready").and_then(|()| hear());
        let before = cpu();
        go.wait();
        let turns = running
            .into_iter()
            .map(|thread| thread.join().ok().context("a thread panicked"));
        let threads = turns.collect::<Result<Vec<_>>>()?;
        told?;
        anyhow::Ok(Tally {
            threads,
            overlaps: 0,
            cpu: cpu() - before,
        })
    })?;
    report(&Tally {
        overlaps: room.overlaps.into_inner(),
        ..tally
    })
}

/// Counts how often more threads than there are slots are inside at the same time.
struct Room {
    slots: u32,
    inside: AtomicU32,
    overlaps: AtomicU64,
}

impl Room {
    fn of(slots: u32) -> Room {
        Room {
            slots,
            inside: AtomicU32::new(0),
            overlaps: AtomicU64::new(0),
        }
    }

    fn visit(&self) {
        if self.inside.fetch_add(1, Ordering::AcqRel) >= self.slots {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        self.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

fn take_turns(lock: &dyn Lock, key: &str, time: Duration, room: &Room, turns: &mut Turns) {
    let end = Instant::now() + time;
    loop {
        let asked = Instant::now();
        if asked >= end {
            return;
        }
        let mut taken = None;
        let outcome = lock.turn(key, &mut || {
            taken = Some(Instant::now());
            room.visit();
        });
        if let Some(taken) = taken {
            turns.cycles.push(nanoseconds(asked.elapsed()));
            turns.waits.push(nanoseconds(taken - asked));
            turns.in_time += u64::from(taken <= end);
        }
        match outcome {
            Ok(gave_up) => turns.gave_up += gave_up,
            Err(_) => turns.failures += 1,
        }
    }
}

/// Takes a lock again that the thread has already.
fn reentry(lock: &dyn Lock, key: &str, time: Duration) -> Result<()> {
    let mut done = Ok(());
    lock.turn(key, &mut || done = again(lock, key, time))?;
    done
}

fn again(lock: &dyn Lock, key: &str, time: Duration) -> Result<()> {
    say("ready")?;
    hear()?;
    let (before, end) = (cpu(), Instant::now() + time);
    let mut turns = Turns::default();
    while Instant::now() < end {
        let began = Instant::now();
        for _ in 0..BATCH {
            black_box(lock.turn(key, &mut || {})?);
        }
        turns.cycles.push(nanoseconds(began.elapsed() / BATCH));
        turns.in_time += u64::from(BATCH);
    }
    report(&Tally {
        threads: vec![turns],
        overlaps: 0,
        cpu: cpu() - before,
    })
}

fn take(lock: &dyn Lock, key: &str) -> Result<()> {
    let mut gave = Ok(0);
    lock.turn(key, &mut || {
        let told = say("held").and_then(|()| hear());
        gave = told.map(|_| now());
    })?;
    say(&format!("gave {}", gave?))
}

fn wait(lock: &dyn Lock, key: &str) -> Result<()> {
    let mut got = 0;
    say("waiting")?;
    lock.turn(key, &mut || got = now())?;
    say(&format!("got {got}"))
}

/// Takes the lock, works, and asks now and then whether the lock is still held.
fn hold(lock: &dyn Lock, key: &str, [wait, work, step]: [Duration; 3]) -> Result<()> {
    say_at("asks", "")?;
    let held = match lock.take(key, wait) {
        Ok(Some(held)) => held,
        Ok(None) => return say_at("busy", ""),
        Err(error) => return say_at("failed", &format!("{error:#}")),
    };
    say_at("has", "")?;
    let end = Instant::now() + work;
    loop {
        let asked = now();
        match held.still() {
            Some(true) => say(&format!("yes {asked}"))?,
            Some(false) => break say_at("no", "")?,
            None => {}
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        thread::sleep(left.min(step));
    }
    say_at("gives", "")?;
    say_at("gave", held.release().word())
}

/// Says a word, the time, and a detail.
fn say_at(word: &str, detail: &str) -> Result<()> {
    let line = format!("{word} {} {detail}", now());
    say(line.trim_end())
}

fn report(tally: &Tally) -> Result<()> {
    say(&serde_json::to_string(tally)?)
}

fn say(line: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// The next line, or nothing at the end.
fn hear() -> Result<Option<String>> {
    let mut line = String::new();
    let read = stdin().lock().read_line(&mut line)?;
    Ok((read > 0).then(|| line.trim_end().to_owned()))
}

/// Processor time of this process, user and system.
fn cpu() -> u64 {
    clock(ClockId::ProcessCPUTime)
}

/// The clock of all records.
pub(crate) fn now() -> u64 {
    clock(ClockId::Monotonic)
}

fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or(0)
}

fn time(seconds: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(seconds.parse()?)?)
}

fn ms(number: &str) -> Result<Duration> {
    Ok(Duration::from_millis(number.parse()?))
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
