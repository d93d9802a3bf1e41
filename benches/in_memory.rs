//! How often a second one thread takes and releases a lock in memory, re-enters one, and does the
//! former while other threads do the same with locks of their own.
//!
//! `cargo bench --bench in_memory`
//!
//! Locks in memory are for tests. 300,000 cycles a second are enough.
//!
//! The figures count the processor's time of the thread, so that other programs on the machine do
//! not change them much. Each is the median of rounds of a thousand. On a virtual core that shares
//! its units with a stranger's, that can be half of what an undisturbed round has, which is beside
//! it.

use std::fmt;
use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager};
use rustix::time::{ClockId, clock_gettime};

const FOR: Duration = Duration::from_secs(2);
const ROUND: u32 = 1000;

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
    /// In the median of the rounds.
    median: f64,
    /// In the round that is slower than a twentieth of them.
    undisturbed: f64,
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.2} million a second, undisturbed {:.2}",
            self.median / 1e6,
            self.undisturbed / 1e6
        )
    }
}

fn per_second(cycle: impl Fn() -> Result<(), Error>) -> Rate {
    let (mut took, begun) = (Vec::new(), own_time());
    while own_time().saturating_sub(begun) < FOR {
        let round = own_time();
        for _ in 0..ROUND {
            cycle().expect("nothing is in the way");
        }
        took.push(own_time().saturating_sub(round));
    }
    took.sort_unstable();
    let rate = |round: usize| f64::from(ROUND) / took[round].as_secs_f64();
    Rate {
        median: rate(took.len() / 2),
        undisturbed: rate(took.len() / 20),
    }
}

fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
