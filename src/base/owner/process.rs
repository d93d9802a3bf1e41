//! The ids of this process and this thread: for tokens, and to notice a fork (see
//! `Core::own_process`).

use std::cell::Cell;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::{per_thread, process};

/// How long a process id is reused after it was read.
///
/// Reading the id is a system call of about 100 ns, as much as a reentrant lock and unlock
/// together. A fork takes longer than this constant: before the child runs, the kernel copies the
/// page tables, which takes some 50 us even for a small program. So if a thread read the id within
/// this time, there was no fork in between.
const REUSED_FOR: Duration = Duration::from_micros(10);

per_thread! {
    static LAST_READ: Cell<(Moment, u32)> = const { Cell::new((Moment::PAST, 0)) };
    static THREAD: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// This process's id at `now`.
pub(crate) fn id(now: Moment) -> u32 {
    // `with` cannot panic: this thread-local has no destructor, so it lives as long as the thread.
    LAST_READ.with(|last| {
        let (at, pid) = last.get();
        if pid != 0 && at <= now && now.since(at) < REUSED_FOR {
            return pid;
        }
        let pid = process::id();
        last.set((now, pid));
        pid
    })
}

/// This thread's number: the system's on Linux, a counter elsewhere.
pub(crate) fn thread_id(pid: u32) -> u64 {
    THREAD.with(|cached| {
        let (of, thread) = cached.get();
        if of == pid {
            return thread;
        }
        let thread = read_thread_id();
        cached.set((pid, thread));
        thread
    })
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn read_thread_id() -> u64 {
    #[cfg(test)]
    if let Some(number) = crate::base::sync::scheduler::thread_number() {
        return number;
    }
    u64::from(
        rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .unsigned_abs(),
    )
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn read_thread_id() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_number() {
        let pid = process::id();
        let here = thread_id(pid);
        assert_eq!(here, thread_id(pid));
        let there = std::thread::spawn(move || thread_id(pid)).join().unwrap();
        assert_ne!(here, there);
    }

    #[test]
    fn the_process_id_is_reused_for_a_moment_only() {
        let now = Moment::now();
        LAST_READ.set((now, 77));
        assert_eq!(id(now.after(REUSED_FOR / 2)), 77);
        assert_eq!(id(now.after(REUSED_FOR)), process::id());
        // A forked child in another time namespace: its clock is behind its parent's.
        LAST_READ.set((now, 77));
        assert_eq!(id(now.before(REUSED_FOR)), process::id());
    }
}
