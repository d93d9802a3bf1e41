//! A process that takes locks, and records the results.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use relatch::{Error, LockGuard, LockManager, Replicas};
use relatch_rig::{now, role};

use crate::record::Record;

/// How long the managers here wait for a connection, and for an answer.
const ANSWER: Duration = Duration::from_millis(100);

/// The longest wait for a lock.
const WAIT: Duration = Duration::from_millis(800);

/// Begins a line from the parent. The locks that the line names are to be held for long, until the
/// next such line.
pub(crate) const HOLD: &str = "hold";

/// How many threads of each process take locks.
const THREADS: u32 = 4;

/// How soon after the last lock a manager has to be at rest, and after its drop all that it has
/// started has to be gone.
const SOON: Duration = Duration::from_secs(20);

/// How many threads and open files (connections included) this process has.
fn has() -> [usize; 2] {
    ["/proc/self/task", "/proc/self/fd"].map(|dir| fs::read_dir(dir).expect("Linux").count())
}

/// Waits until `is_enough` for what the process has, but not for long. Returns what it has.
fn until_soon(is_enough: impl Fn([usize; 2]) -> bool) -> [usize; 2] {
    let end = now() + SOON;
    while !is_enough(has()) && now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    has()
}

/// Which locks the threads of a process take, and for how long.
struct Habits {
    lease: Duration,
    /// The lease of the first key.
    long: Duration,
    /// How many locks there are.
    keys: u32,
    /// One in so many turns is at another lock. While one of several masters is away, threads that
    /// chose anew each time would soon all wait for its locks.
    roams: u32,
    /// One in so many holds is about as long as the lease.
    seldom: u32,
    /// The locks that the parent wants to be held for long.
    wanted: Mutex<Vec<String>>,
    done: AtomicBool,
}

fn number(name: &str) -> u64 {
    role::arg(name).parse().expect("a number")
}

fn manager() -> LockManager {
    let builder = LockManager::builder(&role::arg("url"))
        .lease(Duration::from_millis(number("lease")))
        .pool_size(THREADS + 1)
        .connect_timeout(ANSWER)
        .response_timeout(ANSWER)
        .reclaim_dead(number("seed").is_multiple_of(2));
    let builder = match number("replicas") {
        0 => builder,
        _ => builder.replicas(Replicas::at_least(1), ANSWER / 2),
    };
    #[cfg(feature = "tls")]
    let builder = match &*role::arg("roots") {
        "" => builder,
        // A handshake costs milliseconds of computing, and all threads may connect at a time. With
        // a shorter limit, a busy machine would end each handshake before it is done.
        roots => builder
            .tls(relatch::Tls::new().roots(roots))
            .connect_timeout(4 * ANSWER),
    };
    builder.build_lazily().expect("a valid address")
}

/// Takes locks until the parent sends "stop". After another line, drops the manager, and fails if
/// the manager leaves something behind.
pub(crate) fn worker() {
    let before = has();
    let locks = manager();
    let is_alone = number("replicas") == 0;
    let habits = &Habits {
        lease: Duration::from_millis(number("lease")),
        long: Duration::from_millis(number("long")),
        keys: u32::try_from(number("keys")).expect("a small number"),
        roams: if is_alone { 1 } else { 32 },
        seldom: if is_alone { 400 } else { 4000 },
        wanted: Mutex::default(),
        done: false.into(),
    };
    thread::scope(|scope| {
        for number in 0..THREADS {
            let locks = &locks;
            scope.spawn(move || Worker::new(locks, habits, number).work());
        }
        role::report("ready");
        while let Some(wanted) =
            role::next_line().and_then(|it| Some(it.strip_prefix(HOLD)?.to_owned()))
        {
            *habits.wanted.lock() = wanted.split_whitespace().map(str::to_owned).collect();
        }
        habits.done.store(true, Ordering::Relaxed);
    });
    // Room for the keeper, the threads of the pool and the one that reads a cluster's map. And for
    // each node a listener, a thread that renews, and all their connections: those of a master that
    // was replaced may end later, when there is something to renew. For a moment there may be more.
    let nodes = usize::try_from(number("nodes")).expect("a small number");
    let bound = [before[0] + 4 + 2 * nodes, before[1] + 1 + 7 * nodes];
    let is_within = |it: [usize; 2]| it[0] <= bound[0] && it[1] <= bound[1];
    let with = until_soon(is_within);
    assert!(is_within(with), "{before:?}, at rest {with:?}");
    assert!(locks.held().is_empty(), "{:?}", locks.held());
    role::report("stopped");
    role::next_line();
    drop(locks);
    assert_eq!(until_soon(|it| it == before), before, "left behind");
    role::report("clean");
}

/// One thread of the process.
struct Worker<'a> {
    locks: &'a LockManager,
    habits: &'a Habits,
    rng: StdRng,
    record: Record,
}

impl Worker<'_> {
    fn new<'a>(locks: &'a LockManager, habits: &'a Habits, thread: u32) -> Worker<'a> {
        Worker {
            locks,
            habits,
            rng: StdRng::seed_from_u64(number("seed") ^ u64::from(thread) << 32),
            record: Record::create(&PathBuf::from(role::arg("dir")), thread),
        }
    }

    fn lease_of(&self, key: &str) -> Duration {
        let Habits { lease, long, .. } = self.habits;
        if key == "k0" { *long } else { *lease }
    }

    fn work(&mut self) {
        let mut key = self.any_key();
        while !self.habits.done.load(Ordering::Relaxed) {
            let renewed = self.rng.random_ratio(3, 4);
            let mut roams = self.rng.random_ratio(1, self.habits.roams);
            match self.take(&key, renewed) {
                Ok(Some(guard)) => {
                    let has = format!("{} {renewed}", guard.token());
                    self.record.write("has", has);
                    self.hold(&guard);
                    self.give_back(guard);
                }
                Ok(None) => {
                    self.record.write("refused", "busy");
                    roams = true;
                }
                Err(error) => {
                    self.record.write("refused", name(&error));
                    roams = true;
                    // Without this sleep, the thread would spin during an outage.
                    thread::sleep(Duration::from_millis(1));
                }
            }
            if roams {
                key = self.any_key();
            }
        }
    }

    fn any_key(&mut self) -> String {
        format!("k{}", self.rng.random_range(0..self.habits.keys))
    }

    /// Takes the lock in one of three ways.
    fn take(&mut self, key: &str, renewed: bool) -> Result<Option<LockGuard>, Error> {
        let lock = self.locks.named(key).renew(renewed);
        let lock = lock.lease(self.lease_of(key));
        let wait = WAIT.mul_f64(self.rng.random_range(0.01..1.0));
        let way = self.rng.random_range(0..4);
        self.record.write("asks", key);
        match way {
            0 => lock.try_lock(),
            1 => lock.try_lock_for(wait),
            _ => match lock.wait(wait).lock() {
                Err(error) if error.is_timeout() => Ok(None),
                other => other.map(Some),
            },
        }
    }

    /// Checks for a while whether the hold is valid, and records when it was.
    fn hold(&mut self, guard: &LockGuard) {
        let start = now();
        let end = start + self.how_long();
        loop {
            let at = now();
            if !guard.is_valid() {
                break;
            }
            self.record.valid(at, at + guard.remaining());
            let is_wanted = self.habits.wanted.lock().iter().any(|it| it == guard.key())
                && now() < start + 2 * self.habits.lease;
            if now() >= end && !is_wanted {
                break;
            }
            if self.rng.random_ratio(1, 8) {
                // The hold may be lost by now, or Redis may be away.
                let _ = guard.set_lease(self.lease_of(guard.key()));
            }
            if self.rng.random_ratio(1, 4) {
                // The hold may be lost by now. If not, this guard belongs to the same hold.
                if let Ok(inner) = self.locks.lock(guard.key()) {
                    assert_eq!((inner.token(), inner.depth()), (guard.token(), 2));
                }
            }
            // The long holds leave most of the machine to those who take locks meanwhile.
            let most = if is_wanted { 10_000 } else { 1000 };
            thread::sleep(Duration::from_micros(self.rng.random_range(100..most)));
        }
    }

    /// How long to hold a lock: mostly no time, sometimes a while, rarely longer than the lease.
    fn how_long(&mut self) -> Duration {
        if self.rng.random_ratio(1, self.habits.seldom) {
            return self.habits.lease.mul_f64(self.rng.random_range(0.5..1.5));
        }
        match self.rng.random_range(0..400) {
            0..60 => Duration::from_micros(self.rng.random_range(500..5000)),
            _ => Duration::ZERO,
        }
    }

    fn give_back(&mut self, guard: LockGuard) {
        self.record.write("releases", "");
        if self.rng.random_ratio(1, 16) {
            drop(guard);
            return self.record.write("ended", "dropped");
        }
        match guard.unlock() {
            Ok(unlocked) => self.record.write("ended", format!("{unlocked:?}")),
            Err(error) => self.record.write("ended", name(&error)),
        }
    }
}

/// The kind of an error; panics at one that the faults here cannot cause.
fn name(error: &Error) -> &'static str {
    match error {
        Error::Timeout { .. } => "Timeout",
        Error::Lost { .. } => "Lost",
        Error::Unconfirmed { .. } => "Unconfirmed",
        Error::Unavailable { .. } => "Unavailable",
        Error::Refused { .. } => "Refused",
        other => panic!("{other}"),
    }
}
