//! What worker processes do: the half of each scenario that is timed.

use std::hint::black_box;
use std::io::{BufRead, Write, stdin, stdout};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use relatch::LockManager;

use crate::clock;
use crate::locks::{self, Lock};
use crate::protocol::{Place, Tally, Together, Turns};

/// Reentries that are timed together: one alone is too short for the clock.
const BATCH: u32 = 1000;

/// Threads take turns on one key, and hold it for as long as nothing takes.
pub(crate) fn turns(order: &Together) -> Result<()> {
    let lock = locks::open(order.place.peer, &order.place.url)?;
    let (ready, go) = (Barrier::new(order.threads + 1), Barrier::new(order.threads + 1));
    let room = Room::default();
    let threads = thread::scope(|scope| {
        let lock = &*lock;
        let (ready, go, room) = (&ready, &go, &room);
        let each = |number| {
            let mut turns = Turns::default();
            // So that opening connections is no part of it.
            turns.failures +=
                u64::from(lock.turn(&format!("{}:{number}", order.place.key), &mut || {}).is_err());
            ready.wait();
            go.wait();
            take_turns(lock, order, room, &mut turns);
            turns
        };
        let threads: Vec<_> = (0..order.threads).map(|number| scope.spawn(move || each(number))).collect();
        ready.wait();
        let told = say("ready").and_then(|()| hear().map(drop));
        go.wait();
        told?;
        let turns = threads.into_iter().map(|thread| thread.join().ok().context("a thread panicked"));
        turns.collect::<Result<Vec<_>>>()
    })?;
    report(&Tally { threads, overlaps: room.overlaps.into_inner() })
}

/// What only one thread may be in.
#[derive(Default)]
struct Room {
    taken: AtomicBool,
    overlaps: AtomicU64,
}

impl Room {
    fn visit(&self) {
        if self.taken.swap(true, Ordering::AcqRel) {
            self.overlaps.fetch_add(1, Ordering::Relaxed);
        }
        self.taken.store(false, Ordering::Release);
    }
}

fn take_turns(lock: &dyn Lock, order: &Together, room: &Room, turns: &mut Turns) {
    let end = Instant::now() + order.time();
    loop {
        let asked = Instant::now();
        if asked >= end {
            return;
        }
        let mut taken = None;
        let outcome = lock.turn(&order.place.key, &mut || {
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

/// One thread that nobody disturbs, for as long as it is told `go`.
pub(crate) fn cycles(order: &Together) -> Result<()> {
    let lock = locks::open(order.place.peer, &order.place.url)?;
    lock.turn(&order.place.key, &mut || {})?;
    slices(|| {
        let mut turns = Turns::default();
        take_turns(&*lock, order, &Room::default(), &mut turns);
        Ok(turns)
    })
}

/// Takes a lock again that the thread has already. Only relatch can.
pub(crate) fn reentry(order: &Together) -> Result<()> {
    let locks = LockManager::connect(&order.place.url)?;
    let _outer = locks.lock(&order.place.key)?;
    slices(|| {
        let mut turns = Turns::default();
        let end = Instant::now() + order.time();
        while Instant::now() < end {
            let began = Instant::now();
            for _ in 0..BATCH {
                drop(black_box(locks.lock(&order.place.key)?));
            }
            turns.cycles.push(nanoseconds(began.elapsed() / BATCH));
        }
        Ok(turns)
    })
}

/// Does a slice of the work at each `go`, and says what came of it.
fn slices(mut slice: impl FnMut() -> Result<Turns>) -> Result<()> {
    say("ready")?;
    while hear()?.is_some() {
        report(&Tally { threads: vec![slice()?], overlaps: 0 })?;
    }
    Ok(())
}

/// Does what it is told, line by line, as one side of a hand-off.
pub(crate) fn pair(place: &Place) -> Result<()> {
    let lock = locks::open(place.peer, &place.url)?;
    lock.turn(&format!("{}:warm", place.key), &mut || {})?;
    say("ready")?;
    while let Some(command) = hear()? {
        let done = match command.as_str() {
            "take" => take(&*lock, &place.key),
            "wait" => wait(&*lock, &place.key),
            "time" => time(&*lock, &place.key),
            other => bail!("unknown command: {other}"),
        };
        say(&done.unwrap_or_else(|error| format!("failed {error:#}")))?;
    }
    Ok(())
}

fn take(lock: &dyn Lock, key: &str) -> Result<String> {
    let mut gave = Ok(0);
    lock.turn(key, &mut || {
        let told = say("held").and_then(|()| hear());
        gave = told.map(|_| clock::now());
    })?;
    Ok(format!("gave {}", gave?))
}

fn wait(lock: &dyn Lock, key: &str) -> Result<String> {
    let mut got = 0;
    say("waiting")?;
    lock.turn(key, &mut || got = clock::now())?;
    Ok(format!("got {got}"))
}

fn time(lock: &dyn Lock, key: &str) -> Result<String> {
    let began = clock::now();
    lock.turn(key, &mut || {})?;
    Ok(format!("took {}", clock::now() - began))
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

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
