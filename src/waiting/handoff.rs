//! The hand-off of a lock from one thread of the process to the next, and the time budget for which
//! a process may keep a lock to itself. (By this budget, `queue` decides when to hand off, and when
//! to leave the lock free.)

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::options::Lease;
use crate::store::{Goal, Wanted};

/// A request that Redis store a waiting thread's token for the duration of a lease. The thread in
/// front may send this claim after its own release. `counter` is the key of the lock's counter, if
/// the hold is to have a fencing token.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) token: Arc<str>,
    pub(crate) lease: Lease,
    pub(crate) counter: Option<Arc<str>>,
}

impl Claim {
    /// The claim, as it is sent for this key.
    pub(crate) fn wanted<'a>(&'a self, key: &'a str) -> Wanted<'a> {
        Wanted {
            key,
            goal: Goal::Key,
            token: &self.token,
            lease: self.lease.millis(),
            counter: self.counter.as_deref(),
        }
    }
}

/// The outcome of a claim that the thread in front was to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandoffOutcome {
    /// It was not sent, or another process had the lock: the token is not in Redis.
    NotTaken,
    /// Redis has stored the token.
    Taken {
        sent: Moment,
        answered: Moment,
        fence: Option<u64>,
    },
    /// It was sent at this moment, and there was no answer: Redis may have stored the token, or may
    /// still do so. The token must not be used again, and has to be deleted.
    Unanswered { sent: Moment },
}

/// If a lock was free for this long after a turn, other processes could have taken it.
const LONG_FREE: Duration = Duration::from_millis(1);

/// How long a process has had a lock, in consecutive turns that left other processes no chance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HandoffBudget {
    /// The moment from which the held time counts: when the first of these turns took the lock,
    /// moved forward by the time during which the lock was free or being released.
    since: Moment,
    /// When the process began to release the lock, or began to be without it. `None` while the
    /// process holds the lock.
    free_since: Option<Moment>,
}

impl HandoffBudget {
    pub(crate) fn new(now: Moment) -> HandoffBudget {
        HandoffBudget {
            since: now,
            free_since: Some(now),
        }
    }

    /// The budget of a turn that asks Redis at `now`. It is a new one if the lock was free for a
    /// while.
    pub(crate) fn at(self, now: Moment) -> HandoffBudget {
        if self.free_for(now) >= LONG_FREE {
            HandoffBudget::new(now)
        } else {
            self
        }
    }

    /// The process has the lock now. True if the lock was free before, or if another process had
    /// it.
    pub(crate) fn acquired(&mut self, now: Moment) -> bool {
        let was_free = self.free_since.is_some();
        self.since = self.since.after(self.free_for(now));
        self.free_since = None;
        was_free
    }

    /// A release begins. The time that it takes does not count.
    pub(crate) fn release_begins(&mut self, now: Moment) {
        self.free_since.get_or_insert(now);
    }

    /// Redis has answered the release. From here on, the lock is free for other processes.
    #[must_use]
    pub(crate) fn released(mut self, now: Moment) -> HandoffBudget {
        self.acquired(now);
        HandoffBudget {
            free_since: Some(now),
            ..self
        }
    }

    /// How long the lock has been free.
    pub(crate) fn free_for(&self, now: Moment) -> Duration {
        self.free_since
            .map_or(Duration::ZERO, |since| now.since(since))
    }

    /// The lock was handed off, so it was never free.
    #[must_use]
    pub(crate) fn handed_off(self) -> HandoffBudget {
        HandoffBudget {
            free_since: None,
            ..self
        }
    }

    /// How long the process had the lock until its last release began.
    pub(crate) fn held(&self) -> Duration {
        self.free_since.unwrap_or(self.since).since(self.since)
    }

    /// The process has had the lock for as long as it may.
    pub(crate) fn is_spent(&self, limit: Duration) -> bool {
        self.held() >= limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    /// The budget of a turn that asks at 0, has the lock at 1 and begins its release at `millis`.
    fn held_until(millis: u64) -> HandoffBudget {
        let mut budget = HandoffBudget::new(at(0));
        budget.acquired(at(1));
        budget.release_begins(at(millis));
        budget
    }

    #[test]
    fn a_budget_is_spent_after_its_limit_of_time_with_the_lock() {
        let asks = Moment::from_nanos(at(12).as_nanos() - 1);
        let slow = held_until(11).released(at(100));
        assert_eq!(slow.free_for(at(107)), Duration::from_millis(7));
        // A budget, when the lock is next taken, and when a release that begins finds the budget
        // spent.
        for (budget, acquired, spent) in [
            // The time it spent asking does not count.
            (HandoffBudget::new(at(0)), Some(1), 21),
            // It was not free in between.
            (held_until(11).handed_off(), None, 21),
            // The time of a release neither counts nor leaves the lock free.
            (slow.at(at(100)), Some(105), 115),
            // Nor does the time between two turns, unless others had time to take the lock.
            (held_until(11).at(asks), Some(15), 25),
            (held_until(30).at(at(31)), Some(31), 51),
        ] {
            for (releases, is_spent) in [(spent - 1, false), (spent, true)] {
                let mut budget = budget;
                if let Some(acquired) = acquired {
                    budget.acquired(at(acquired));
                }
                budget.release_begins(at(releases));
                budget.release_begins(at(1000)); // It has begun.
                assert_eq!(budget.is_spent(LIMIT), is_spent, "{budget:?}");
            }
        }
    }
}
