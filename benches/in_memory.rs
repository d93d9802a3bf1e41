//! How often a second one thread takes and releases a lock in memory, re-enters one, and does the
//! former while other threads do the same with locks of their own.
//!
//! `cargo bench --bench in_memory`
//!
//! The figures count the processor's time of the thread, so that other programs on the machine do
//! not change them much.

use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager};
use rustix::time::{ClockId, clock_gettime};

const FOR: Duration = Duration::from_secs(2);

fn main() {
    if !std::env::args().any(|arg| arg == "--bench") {
        return; // `cargo test --all-targets` only checks that it compiles.
    }
    let locks = LockManager::in_memory();
    let lock = locks.named("orders:42");
    let cycles = per_second(|| lock.lock()?.unlock().map(drop));
    println!("lock and unlock:                        {:.2} million a second", cycles / 1e6);
    let guard = lock.lock().expect("nobody has it");
    let reentries = per_second(|| lock.lock()?.unlock().map(drop));
    println!("reentry:                                {:.2} million a second", reentries / 1e6);
    drop(guard);
    let disabled = LockManager::disabled().named("orders:42");
    let cycles = per_second(|| disabled.lock()?.unlock().map(drop));
    println!("lock and unlock, disabled:              {:.2} million a second", cycles / 1e6);
    let run = &|key: &str| per_second(|| locks.lock(key)?.unlock().map(drop));
    let both = thread::scope(|scope| {
        let threads = ["a", "b"].map(|key| scope.spawn(move || run(key)));
        threads.map(|thread| thread.join().expect("no panic"))
    });
    println!("each of two threads, on its own lock:   {:.2} million a second", both[0].min(both[1]) / 1e6);
    println!("threads that relatch has started:       {}", threads() - 1);
}

/// Cycles in a second of the thread's own time.
fn per_second(cycle: impl Fn() -> Result<(), Error>) -> f64 {
    let (begun, mut cycles) = (own_time(), 0_u32);
    while own_time().saturating_sub(begun) < FOR {
        for _ in 0..1000 {
            cycle().expect("nothing is in the way");
        }
        cycles += 1000;
    }
    f64::from(cycles) / own_time().saturating_sub(begun).as_secs_f64()
}

fn own_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec), u32::try_from(time.tv_nsec));
    Duration::new(seconds.unwrap_or(0), nanos.unwrap_or(0))
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").map_or(1, Iterator::count)
}
