//! A thread that stands in line: how it is called, and how long it stays awake for that.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::options::Lease;
use crate::base::sync::atomic::{AtomicBool, Ordering};
use crate::base::sync::{Condvar, thread};

/// How long a thread that is about to be called stays awake for it.
///
/// A sleeping thread takes tens of microseconds to wake up, as long as Redis takes for a command. So
/// the first in line gets up while the turn in front of it is about to end: when its release starts
/// or, where the turn before was over within this time, from its beginning. A lock that is held for
/// long costs a waiter no more than this, once.
pub(crate) const AWAKE: Duration = Duration::from_micros(200);

/// A thread that yields its core and gets it back this late has given it to other work.
const GIVEN_AWAY: Duration = Duration::from_millis(1);

/// For how long no thread stays awake then.
const ASLEEP: Duration = Duration::from_millis(20);

/// What a thread that waits wants Redis to hold for it: a token, and for how long. The thread in
/// front may ask for it with its release.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) token: String,
    pub(crate) lease: Lease,
}

/// What became of a wish that went out behind the release of the thread in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffOutcome {
    /// It did not go out, or somebody else had the lock by then: Redis does not hold it.
    Nothing,
    /// Redis holds it.
    Taken { sent: Moment, answered: Moment },
    /// It went out at this moment and had no answer: Redis may hold it, or may yet. The token is
    /// not to be used again, and has to be cleaned up.
    Spoilt { sent: Moment },
}

/// A thread in line. Known by its address.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) called: Condvar,
    /// The turn in front of it is over.
    up: AtomicBool,
    pub(crate) claim: Claim,
    pub(crate) deadline: Moment,
}

impl Waiter {
    pub(crate) fn new(claim: Claim, deadline: Moment) -> Waiter {
        Waiter { called: Condvar::new(), up: AtomicBool::new(false), claim, deadline }
    }

    pub(crate) fn call(&self) {
        self.up.store(true, Ordering::Release);
        self.called.notify_one();
    }
}

/// Whether the cores have other work: then a thread that stays awake loses more than it wins.
///
/// A thread that yields to other work has its core back after a whole slice of the scheduler, some
/// milliseconds; one that sleeps and is called has it back at once. So after a yield that took a
/// millisecond, all threads in line sleep for the next twenty.
#[derive(Debug, Default)]
pub(crate) struct Cores {
    busy_until: AtomicU64,
}

impl Cores {
    pub(crate) fn are_free(&self, now: Moment) -> bool {
        Moment::from_nanos(self.busy_until.load(Ordering::Relaxed)) <= now
    }

    /// Stays awake until a waiter is called, for a moment.
    pub(crate) fn await_call(&self, waiter: &Waiter) {
        let mut now = Moment::now();
        let end = now.after(AWAKE);
        while !waiter.up.load(Ordering::Acquire) && now < end {
            thread::yield_now();
            let back = Moment::now();
            if back.since(now) >= GIVEN_AWAY {
                self.busy_until.fetch_max(back.after(ASLEEP).as_nanos(), Ordering::Relaxed);
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
    fn nobody_stays_awake_for_a_while_after_a_core_was_given_away() {
        let at = |nanos| Moment::from_nanos(nanos);
        let cores = Cores::default();
        assert!(cores.are_free(at(1)));
        cores.busy_until.store(5, Ordering::Relaxed);
        assert!(!cores.are_free(at(4)));
        assert!(cores.are_free(at(5)));
    }
}
