//! Threads that take turns on one key for a while, with relatch or with a lock by hand.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Lock, LockManager};

use super::figures::{cpu_time, ratio};
use super::{COMPARE_AND_DELETE, load};

/// Takes a lock, does something, and releases the lock.
pub(crate) trait Taker: Send {
    fn turn(&mut self, inside: &mut dyn FnMut()) -> Result<(), String>;
}

pub(crate) struct Relatch<'a> {
    pub(crate) locks: &'a LockManager,
    pub(crate) key: &'a str,
}

impl Taker for Relatch<'_> {
    fn turn(&mut self, inside: &mut dyn FnMut()) -> Result<(), String> {
        let guard = self
            .locks
            .lock(self.key)
            .map_err(|error| error.to_string())?;
        inside();
        guard.unlock().map(drop).map_err(|error| error.to_string())
    }
}

/// A lock with options, or with slots.
impl Taker for Lock {
    fn turn(&mut self, inside: &mut dyn FnMut()) -> Result<(), String> {
        let taken = self.with_lock(inside);
        taken.map_err(|error| error.to_string())
    }
}

/// The hand-written lock of many programs: `SET NX PX`, a pause if the lock is busy, compare and
/// delete. Each thread has its own connection, and never waits for one.
pub(crate) struct Polling {
    connection: redis::Connection,
    kind: Kind,
    release: String,
    key: String,
    token: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// As with `r2d2`, which sends a `PING` whenever it lends a connection: once to take the lock
    /// and once to release it.
    Pooled,
    /// Only the commands of the lock.
    Bare,
}

impl Polling {
    const PAUSE: Duration = Duration::from_millis(50);
    /// Long enough for hundreds of processes to start while the lock is held.
    const LEASE_MS: u32 = 120_000;

    pub(crate) fn open(url: &str, key: &str, kind: Kind) -> Polling {
        let client = redis::Client::open(url).expect("a URL");
        let mut connection = client.get_connection().expect("connects");
        let release = load(&mut connection, COMPARE_AND_DELETE);
        let token = format!("{:032x}", rand::random::<u128>());
        Polling {
            connection,
            kind,
            release,
            key: key.to_owned(),
            token,
        }
    }

    fn lend(&mut self) -> redis::RedisResult<&mut redis::Connection> {
        if self.kind == Kind::Pooled {
            let () = redis::cmd("PING").query(&mut self.connection)?;
        }
        Ok(&mut self.connection)
    }

    fn take(&mut self) -> redis::RedisResult<()> {
        let mut set = redis::cmd("SET");
        set.arg(&self.key)
            .arg(&self.token)
            .arg("NX")
            .arg("PX")
            .arg(Self::LEASE_MS);
        let connection = self.lend()?;
        while set.query::<Option<String>>(connection)?.is_none() {
            thread::sleep(Self::PAUSE);
        }
        Ok(())
    }

    fn give_back(&mut self) -> redis::RedisResult<u64> {
        let mut release = redis::cmd("EVALSHA");
        release
            .arg(&self.release)
            .arg(1)
            .arg(&self.key)
            .arg(&self.token);
        release.query(self.lend()?)
    }
}

impl Taker for Polling {
    fn turn(&mut self, inside: &mut dyn FnMut()) -> Result<(), String> {
        self.take().map_err(|error| error.to_string())?;
        inside();
        match self.give_back() {
            Ok(1) => Ok(()),
            Ok(other) => Err(format!("the release answered {other}")),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The result of taking turns.
#[derive(Clone, Copy, Default)]
pub(crate) struct Tally {
    /// Turns whose wait ended within the span.
    pub(crate) turns: u64,
    pub(crate) span: Duration,
    /// The sum of all waits.
    pub(crate) waited: Duration,
    /// The longest wait.
    pub(crate) longest: Duration,
    /// The CPU time that the process used.
    pub(crate) cpu: Duration,
    /// Turns that ended in an error.
    pub(crate) failed: u64,
    /// Turns in which another thread of the process held the lock, too.
    pub(crate) overlapped: u64,
}

impl Tally {
    pub(crate) fn per_second(&self) -> f64 {
        ratio(self.turns, 1) / self.span.as_secs_f64()
    }

    pub(crate) fn mean_wait(&self) -> Duration {
        self.each(self.waited)
    }

    /// Divides a sum by the number of turns.
    pub(crate) fn each(&self, all: Duration) -> Duration {
        Duration::from_secs_f64(all.as_secs_f64() / ratio(self.turns.max(1), 1))
    }

    /// Adds the result of another stretch.
    pub(crate) fn then(&mut self, other: Tally) {
        self.span += other.span;
        self.beside(other);
    }

    /// Adds what others did in the same time.
    pub(crate) fn beside(&mut self, other: Tally) {
        self.turns += other.turns;
        self.span = self.span.max(other.span);
        self.waited += other.waited;
        self.longest = self.longest.max(other.longest);
        self.cpu += other.cpu;
        self.failed += other.failed;
        self.overlapped += other.overlapped;
    }
}

/// Each taker gets a thread, takes turns for `span`, and holds the lock for `hold` each time. A
/// wait that lasts beyond the span counts as a wait, but not as a turn.
pub(crate) fn take_turns_for<T: Taker>(takers: &mut [T], span: Duration, hold: Duration) -> Tally {
    let (start, inside) = (&Barrier::new(takers.len()), &AtomicBool::new(false));
    let cpu_before = cpu_time();
    let mut tally = thread::scope(|scope| {
        let threads: Vec<_> = takers
            .iter_mut()
            .map(|taker| scope.spawn(move || turns(taker, span, hold, start, inside)))
            .collect();
        let mut all = Tally::default();
        for thread in threads {
            all.beside(thread.join().expect("no panic"));
        }
        all
    });
    tally.span = span;
    tally.cpu = cpu_time().saturating_sub(cpu_before);
    tally
}

fn turns(
    taker: &mut impl Taker,
    span: Duration,
    hold: Duration,
    start: &Barrier,
    inside: &AtomicBool,
) -> Tally {
    let mut tally = Tally::default();
    start.wait();
    let started = Instant::now();
    while started.elapsed() < span {
        let asked = Instant::now();
        let turn = taker.turn(&mut || {
            let waited = asked.elapsed();
            tally.waited += waited;
            tally.longest = tally.longest.max(waited);
            tally.turns += u64::from(started.elapsed() < span);
            tally.overlapped += u64::from(inside.swap(true, Ordering::SeqCst));
            if !hold.is_zero() {
                thread::sleep(hold);
            }
            inside.store(false, Ordering::SeqCst);
        });
        if let Err(error) = turn {
            if tally.failed == 0 {
                eprintln!("waiting: process {}: {error}", std::process::id());
            }
            tally.failed += 1;
            thread::sleep(Duration::from_millis(10));
        }
    }
    tally
}
