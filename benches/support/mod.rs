//! What the benchmarks share: the floor, pinning to cores, and times that are compared by their
//! medians.
#![allow(dead_code, reason = "each benchmark uses a part of it")]

pub(crate) mod children;
pub(crate) mod figures;
pub(crate) mod turns;
pub(crate) mod watch;

use std::num::NonZero;
use std::sync::{Barrier, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use relatch::LockManager;
use relatch_rig::Server;

/// Puts the server on one core, and this thread and the threads that it starts on another, as if a
/// network lay between them. Without this, the scheduler may put both sides of a floor on one core,
/// but spread eight threads over all cores. False if that is not possible.
pub(crate) fn pin_apart(server: &Server) -> bool {
    pin(server, 1)
}

/// Puts the server, this thread and the threads that it starts on one core. False if that is not
/// possible.
pub(crate) fn pin_together(server: &Server) -> bool {
    pin(server, 0)
}

/// How many cores this program may use. Counted before the first pin: a pinned thread counts one.
static CORES: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get));

fn pin(server: &Server, core: usize) -> bool {
    if core >= *CORES {
        return false;
    }
    #[cfg(target_os = "linux")]
    {
        use rustix::thread::{CpuSet, sched_setaffinity};

        let only = |core| {
            let mut set = CpuSet::new();
            set.set(core);
            set
        };
        let server = i32::try_from(server.pid())
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        sched_setaffinity(server, &only(core)).is_ok() && sched_setaffinity(None, &only(0)).is_ok()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (server, core);
        false
    }
}

/// The release script that locks in other programs usually have.
pub(crate) const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Loads a script into Redis, and returns its hash.
pub(crate) fn load(connection: &mut redis::Connection, script: &str) -> String {
    redis::cmd("SCRIPT")
        .arg("LOAD")
        .arg(script)
        .query(connection)
        .expect("loads")
}

pub(crate) const TOKEN: &str = "host-1-2-00112233445566778899aabbccddeeff";

/// The floor: the two commands of a lock on one plain connection, in two round trips.
pub(crate) struct Floor {
    connection: redis::Connection,
    hash: String,
}

impl Floor {
    pub(crate) fn new(server: &Server) -> Floor {
        Floor::open(&server.url())
    }

    pub(crate) fn open(url: &str) -> Floor {
        let mut connection = redis::Client::open(url)
            .and_then(|it| it.get_connection())
            .expect("connects");
        let hash = load(
            &mut connection,
            include_str!("../../src/client/commands/lua/release.lua"),
        );
        Floor { connection, hash }
    }

    pub(crate) fn cycle(&mut self, key: &str) {
        self.take(key);
        self.give_back(key);
    }

    pub(crate) fn take(&mut self, key: &str) {
        let set: redis::Value = redis::cmd("SET")
            .arg(key)
            .arg(TOKEN)
            .arg("NX")
            .arg("PX")
            .arg(30_000)
            .query(&mut self.connection)
            .expect("sets");
        assert_eq!(set, redis::Value::Okay);
    }

    pub(crate) fn give_back(&mut self, key: &str) {
        let removed: i64 = redis::cmd("EVALSHA")
            .arg(&self.hash)
            .arg(1)
            .arg(key)
            .arg(TOKEN)
            .query(&mut self.connection)
            .expect("removes");
        assert_eq!(removed, 1);
    }
}

/// Lets threads take turns on one key. Returns the longest wait of all.
pub(crate) fn contend(locks: &LockManager, key: &str, threads: usize, turns: u32) -> Duration {
    take_turns(locks, key, threads, turns)
        .into_iter()
        .max()
        .unwrap_or_default()
}

/// Lets threads take turns on one key. Returns the wait for each turn.
pub(crate) fn take_turns(
    locks: &LockManager,
    key: &str,
    threads: usize,
    turns: u32,
) -> Vec<Duration> {
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let waits: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    let wait = |_| {
                        let asked = Instant::now();
                        let guard = locks.lock(key).expect("locks");
                        let waited = asked.elapsed();
                        drop(guard);
                        waited
                    };
                    (0..turns).map(wait).collect::<Vec<_>>()
                })
            })
            .collect();
        waits
            .into_iter()
            .flat_map(|wait| wait.join().expect("no panic"))
            .collect()
    })
}

/// Times of several subjects, measured alternately.
pub(crate) struct Rounds {
    names: Vec<String>,
    times: Vec<Vec<Duration>>,
}

impl Rounds {
    pub(crate) fn new(names: &[&str]) -> Rounds {
        Rounds {
            names: names.iter().map(ToString::to_string).collect(),
            times: vec![Vec::new(); names.len()],
        }
    }

    /// Runs `work`, which does `count` operations. Notes and returns the time of one operation.
    pub(crate) fn time(&mut self, subject: usize, count: u32, work: impl FnOnce()) -> Duration {
        let started = Instant::now();
        work();
        let one = started.elapsed() / count;
        self.times[subject].push(one);
        one
    }

    /// The median of a subject's times.
    pub(crate) fn median(&self, subject: usize) -> Duration {
        Duration::from_secs_f64(median(
            self.times[subject]
                .iter()
                .map(Duration::as_secs_f64)
                .collect(),
        ))
    }

    /// The shortest of a subject's times.
    pub(crate) fn quietest(&self, subject: usize) -> Duration {
        self.times[subject]
            .iter()
            .copied()
            .min()
            .unwrap_or_default()
    }

    /// A subject's time, divided by the first subject's time in the same round: the median of all
    /// rounds.
    pub(crate) fn ratio(&self, subject: usize) -> f64 {
        let pairs = self.times[subject].iter().zip(&self.times[0]);
        median(
            pairs
                .map(|(time, floor)| time.as_secs_f64() / floor.as_secs_f64())
                .collect(),
        )
    }

    /// Prints a line per subject: its median time, and its ratio to the first subject.
    pub(crate) fn print(&self, title: &str) {
        println!(
            "\n{title:<36}{:>12}{:>14}{:>16}",
            "time", "x floor", "x throughput"
        );
        for (subject, name) in self.names.iter().enumerate() {
            let (time, ratio) = (self.median(subject), self.ratio(subject));
            println!(
                "{name:<36}{:>12}{ratio:>14.2}{:>16.2}",
                format!("{time:.2?}"),
                1.0 / ratio
            );
        }
    }
}

/// The memory that this process takes. `None` if the system does not tell.
pub(crate) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .trim_end_matches(" kB")
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
