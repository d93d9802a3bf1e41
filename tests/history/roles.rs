//! A process that takes locks, and records the results.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use relatch::{Error, LockGuard, LockManager, Replicas};
use relatch_rig::{now, role};

use crate::record::Record;

/// How long the managers here wait for a connection, and for an answer.
pub(crate) const ANSWER: Duration = Duration::from_millis(100);

/// The longest wait for a lock.
const WAIT: Duration = Duration::from_millis(800);

/// How many locks there are.
pub(crate) const KEYS: u32 = 6;

/// How many threads of each process take locks.
const THREADS: u32 = 4;

/// How soon after the drop of a manager all that it has started has to be gone.
const SOON: Duration = Duration::from_secs(5);

/// Runs the role named `name`, on the main test thread of a child process.
pub(crate) fn run_role(name: &str) {
    match name {
        "worker" => worker(),
        other => panic!("no role is called {other:?}"),
    }
}

/// How many threads and open files (connections included) a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Has {
    threads: usize,
    files: usize,
}

impl Has {
    fn now() -> Has {
        let count = |dir| fs::read_dir(dir).expect("Linux").count();
        Has { threads: count("/proc/self/task"), files: count("/proc/self/fd") }
    }
}

/// The names of all threads.
fn names() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("Linux");
    let names = tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("comm")));
    names.filter_map(Result::ok).collect()
}

/// Takes locks until the parent sends a line. After the second line, drops the manager, and fails
/// if the manager leaves something behind.
fn worker() {
    let seed: u64 = role::arg("seed").parse().expect("a number");
    let [lease, long] =
        ["lease", "long"].map(|name| Duration::from_millis(role::arg(name).parse().expect("a number")));
    let dir = PathBuf::from(role::arg("dir"));
    let before = Has::now();
    let builder = LockManager::builder(&role::arg("url")).lease(lease).pool_size(THREADS + 1);
    let builder =
        builder.connect_timeout(ANSWER).response_timeout(ANSWER).reclaim_dead(seed.is_multiple_of(2));
    let (builder, seldom) = match role::arg("replicas").as_str() {
        // To connect is to ask a sentinel first. A hold that ends before the failover does shows
        // nothing, so more of them are long.
        "all" => (builder.replicas(Replicas::all(), ANSWER / 2).connect_timeout(2 * ANSWER), 40),
        "1" => (builder.replicas(Replicas::at_least(1), ANSWER / 2), 40),
        _ => (builder, 400),
    };
    #[cfg(feature = "tls")]
    let builder = match role::arg("roots").as_str() {
        "" => builder,
        // A handshake costs milliseconds of computing, and all threads may connect at a time. With
        // a shorter limit, a busy machine would end each handshake before it is done.
        roots => builder.tls(relatch::Tls::new().roots(roots)).connect_timeout(4 * ANSWER),
    };
    let locks = builder.build_unchecked().expect("a valid address");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for number in 0..THREADS {
            let (locks, dir, done) = (&locks, &dir, &done);
            scope.spawn(move || Worker::new(locks, [lease, long], seldom, dir, seed, number).work(done));
        }
        role::report("ready");
        role::next_line();
        done.store(true, Ordering::Relaxed);
    });
    let with = Has::now();
    // Room for the keeper, the threads of the pool and the one that reads a cluster's map. And for
    // each node a listener, a thread that renews, and all their connections: those of a master that
    // was replaced may end later, when there is something to renew.
    let nodes: usize = role::arg("nodes").parse().expect("a number");
    let bound = Has { threads: before.threads + 4 + 2 * nodes, files: before.files + 1 + 7 * nodes };
    assert!(with.threads <= bound.threads && with.files <= bound.files, "{before:?}, at rest {with:?}");
    assert!(locks.held().is_empty(), "{:?}", locks.held());
    role::report("stopped");
    role::next_line();
    drop(locks);
    let end = now() + SOON;
    while Has::now() != before && now() < end {
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(Has::now(), before, "left behind: {:?}", names());
    role::report("clean");
}

/// One thread of the process.
struct Worker<'a> {
    locks: &'a LockManager,
    lease: Duration,
    /// The lease of the first key.
    long: Duration,
    /// One in so many holds is about as long as the lease.
    seldom: u32,
    rng: StdRng,
    record: Record,
}

impl Worker<'_> {
    fn new<'a>(
        locks: &'a LockManager,
        [lease, long]: [Duration; 2],
        seldom: u32,
        dir: &Path,
        seed: u64,
        number: u32,
    ) -> Worker<'a> {
        let rng = StdRng::seed_from_u64(seed ^ u64::from(number) << 32);
        Worker { locks, lease, long, seldom, rng, record: Record::create(dir, std::process::id(), number) }
    }

    fn lease_of(&self, key: &str) -> Duration {
        if key == "k0" { self.long } else { self.lease }
    }

    fn work(&mut self, done: &AtomicBool) {
        while !done.load(Ordering::Relaxed) {
            let key = format!("k{}", self.rng.random_range(0..KEYS));
            let renewed = self.rng.random_ratio(3, 4);
            match self.take(&key, renewed) {
                Ok(Some(guard)) => {
                    self.record.has(guard.token(), renewed);
                    self.hold(&guard);
                    self.give_back(guard);
                }
                Ok(None) => self.record.refused("busy"),
                Err(error) => {
                    self.record.refused(name(&error));
                    // Without this sleep, the thread would spin during an outage.
                    thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Takes the lock in one of three ways.
    fn take(&mut self, key: &str, renewed: bool) -> Result<Option<LockGuard>, Error> {
        let lock = self.locks.named(key).renew(renewed).lease(self.lease_of(key));
        let wait = WAIT.mul_f64(self.rng.random_range(0.01..1.0));
        let way = self.rng.random_range(0..4);
        // A call without a wait may take as long as connecting and an answer.
        self.record.asks(key, if way == 0 { 2 * ANSWER } else { wait });
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
        let end = now() + self.how_long();
        loop {
            let at = now();
            if !guard.is_valid() {
                break;
            }
            self.record.valid((at, at + guard.remaining()));
            if now() >= end {
                break;
            }
            if self.rng.random_ratio(1, 8) {
                // The hold may be lost by now, or Redis may be away.
                let _ = guard.extend(self.lease_of(guard.key()));
            }
            if self.rng.random_ratio(1, 4) {
                // The hold may be lost by now. If not, this guard belongs to the same hold.
                if let Ok(inner) = self.locks.lock(guard.key()) {
                    assert_eq!((inner.token(), inner.depth()), (guard.token(), 2));
                }
            }
            thread::sleep(Duration::from_micros(self.rng.random_range(100..1000)));
        }
    }

    /// How long to hold a lock: mostly no time, sometimes a while, rarely longer than the lease.
    fn how_long(&mut self) -> Duration {
        if self.rng.random_ratio(1, self.seldom) {
            return self.lease.mul_f64(self.rng.random_range(0.5..1.5));
        }
        match self.rng.random_range(0..400) {
            0..60 => Duration::from_micros(self.rng.random_range(500..5000)),
            _ => Duration::ZERO,
        }
    }

    fn give_back(&mut self, guard: LockGuard) {
        self.record.releases();
        if self.rng.random_ratio(1, 16) {
            drop(guard);
            return self.record.ended("dropped");
        }
        match guard.unlock() {
            Ok(unlocked) => self.record.ended(&format!("{unlocked:?}")),
            Err(error) => self.record.ended(name(&error)),
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
