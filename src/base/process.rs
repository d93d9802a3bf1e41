//! Which process and which thread is running: half of a token, and how a forked child is told apart.

use std::cell::Cell;
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::clock::Moment;

/// A process id that was read this recently still holds.
///
/// Reading it is a system call (about 100 ns), as much as a whole reentrant lock and unlock may cost.
/// But a fork takes longer than this: the kernel has to copy the page tables before the child runs
/// its first instruction, some 50 us even for a small program. So a thread that asked less than this
/// ago cannot have been forked since.
const FRESH: Duration = Duration::from_micros(5);

thread_local! {
    static LAST_READ: Cell<(Moment, u32)> = const { Cell::new((Moment::PAST, 0)) };
    static THREAD: Cell<(u32, u64)> = const { Cell::new((0, 0)) };
}

/// Knows the thread that has entered it: so that no thread waits for its own end. (As
/// `std::thread::current` would, but that panics in a destructor of a thread's locals.)
#[derive(Debug, Default)]
pub(crate) struct Inside(AtomicU64);

impl Inside {
    /// Called by the thread itself, as the first thing that it does.
    pub(crate) fn enter(&self) {
        self.0.store(thread_id(process::id()), Ordering::Release);
    }

    pub(crate) fn is_here(&self) -> bool {
        self.0.load(Ordering::Acquire) == thread_id(process::id())
    }
}

/// This process's id, as of `now`.
pub(crate) fn id(now: Moment) -> u32 {
    // A thread-local without a destructor: there as long as the thread is.
    LAST_READ.with(|last| {
        let (at, pid) = last.get();
        if pid != 0 && now.since(at) < FRESH {
            return pid;
        }
        let pid = process::id();
        last.set((now, pid));
        pid
    })
}

/// This thread's number: the system's own (`ps -L`, `top -H`, gdb) on Linux, a counter elsewhere.
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
    u64::from(rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs())
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn read_thread_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_have_numbers_of_their_own() {
        let pid = process::id();
        let here = thread_id(pid);
        assert_eq!(here, thread_id(pid));
        let there = std::thread::spawn(move || thread_id(pid)).join().unwrap();
        assert_ne!(here, there);
    }

    #[test]
    fn a_thread_knows_where_it_is() {
        let inside = Inside::default();
        assert!(!inside.is_here());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                inside.enter();
                assert!(inside.is_here());
            });
        });
        assert!(!inside.is_here());
        inside.enter();
        assert!(inside.is_here());
    }

    #[test]
    fn the_process_id_is_the_systems() {
        assert_eq!(id(Moment::now()), process::id());
        assert_eq!(id(Moment::now()), process::id());
    }
}
