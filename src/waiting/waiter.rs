//! A thread in a queue: how it is woken, and how long it stays awake for that.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{Condvar, thread};
use crate::waiting::handoff::Claim;

/// How long a thread stays awake when the turn in front of it is about to end.
///
/// A sleeping thread takes tens of microseconds to wake up, as long as Redis takes for a command.
/// So the first waiter stays awake when the release in front of it begins. If the last turn was
/// over within this time, the first waiter stays awake when the next turn begins, since that turn
/// may be as short. If it is long, the waiter was awake for no more than this time.
pub(crate) const AWAKE: Duration = Duration::from_micros(200);

/// A yield that takes this long has given the core to other work.
const GIVEN_AWAY: Duration = Duration::from_millis(1);

/// For how long no thread stays awake after such a yield.
const ASLEEP: Duration = Duration::from_millis(20);

/// A thread in a queue. The queue tells waiters apart by their addresses.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) woken: Condvar,
    /// The turn in front is over, so it is this thread's turn.
    has_turn: AtomicBool,
    pub(crate) claim: Claim,
    pub(crate) deadline: Moment,
    /// The thread tries once: it waits only until it is known who has the lock.
    pub(super) once: bool,
}

impl Waiter {
    pub(crate) fn new(claim: Claim, deadline: Moment, once: bool) -> Waiter {
        Waiter {
            woken: Condvar::new(),
            has_turn: AtomicBool::new(false),
            claim,
            deadline,
            once,
        }
    }

    /// Wakes the thread, since it is its turn now.
    pub(crate) fn wake_for_turn(&self) {
        self.has_turn.store(true, Ordering::Release);
        self.woken.notify_one();
    }
}

/// Whether the cores have other work. If they have, staying awake costs a thread time.
///
/// A thread that yields to other work has its core back after a whole slice of the scheduler, some
/// milliseconds. A thread that sleeps and is woken has it back at once. So after a yield that took
/// a millisecond, all waiters sleep for the next twenty.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    busy_until: AtomicU64,
}

impl Cores {
    pub(crate) fn are_free(&self, now: Moment) -> bool {
        Moment::from_nanos(self.busy_until.load(Ordering::Relaxed)) <= now
    }

    /// Stays awake until it is the waiter's turn, but for [`AWAKE`] at most, and only until a yield
    /// gives the core to other work.
    pub(crate) fn stay_awake(&self, waiter: &Waiter) {
        let mut now = Moment::now();
        let end = now.after(AWAKE);
        while !waiter.has_turn.load(Ordering::Acquire) && now < end {
            thread::yield_now();
            let back = Moment::now();
            if back.since(now) >= GIVEN_AWAY {
                self.busy_until
                    .fetch_max(back.after(ASLEEP).as_nanos(), Ordering::Relaxed);
                return;
            }
            now = back;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_stays_awake_for_a_while_after_a_core_was_given_away() {
        let at = |nanos| Moment::from_nanos(nanos);
        let cores = Cores::default();
        assert!(cores.are_free(at(1)));
        cores.busy_until.store(5, Ordering::Relaxed);
        assert!(!cores.are_free(at(4)));
        assert!(cores.are_free(at(5)));
    }
}
