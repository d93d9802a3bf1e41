//! How often a second one thread takes and releases a lock in memory, re-enters one, and does the
//! former while other threads do the same with locks of their own.
//!
//! `cargo bench --bench in_memory`
//!
//! The figures count the processor's time of the thread, so that other programs on the machine do
//! not change them much. Each is the median of 20 rounds, with the best one beside it: a virtual
//! core that shares its caches and units with a stranger's takes up to twice as long.

use std::fmt;
use std::iter;
use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager};
use rustix::time::{ClockId, clock_gettime};

const ROUNDS: usize = 20;
const ROUND: Duration = Duration::from_millis(100);

fn main() {
    if !std::env::args().any(|arg| arg == "--bench") {
        return; // `cargo test --all-targets` only checks that it compiles.
    }
    let locks = LockManager::in_memory();
    let lock = locks.named("orders:42");
    let cycles = per_second(|| lock.lock()?.unlock().map(drop));
    println!("lock and unlock:                        {cycles}");
    let guard = lock.lock().expect("nobody has it");
    let reentries = per_second(|| lock.lock()?.unlock().map(drop));
    println!("reentry:                                {reentries}");
    drop(guard);
    let disabled = LockManager::disabled().named("orders:42");
    let cycles = per_second(|| disabled.lock()?.unlock().map(drop));
    println!("lock and unlock, disabled:              {cycles}");
    let run = &|key: &str| per_second(|| locks.lock(key)?.unlock().map(drop));
    let both = thread::scope(|scope| {
        let threads = ["a", "b"].map(|key| scope.spawn(move || run(key)));
        threads.map(|thread| thread.join().expect("no panic"))
    });
    for rate in both {
        println!("one of two threads, on its own lock:    {rate}");
    }
    println!("threads that relatch has started:       {}", threads() - 1);
}

/// Cycles in a second of the thread's own time.
struct Rate {
    median: f64,
    best: f64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.2} million a second, at best {:.2}", self.median / 1e6, self.best / 1e6)
    }
}

fn per_second(cycle: impl Fn() -> Result<(), Error>) -> Rate {
    let round = || {
        let (begun, mut cycles) = (own_time(), 0_u32);
        while own_time().saturating_sub(begun) < ROUND {
            for _ in 0..1000 {
                cycle().expect("nothing is in the way");
            }
            cycles += 1000;
        }
        f64::from(cycles) / own_time().saturating_sub(begun).as_secs_f64()
    };
    let mut rounds: Vec<f64> = iter::repeat_with(round).take(ROUNDS).collect();
    rounds.sort_by(f64::total_cmp);
    Rate { median: rounds[ROUNDS / 2], best: rounds[ROUNDS - 1] }
}

fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
