//! Warnings about long waits and holds, for [`Builder::warn_after`](crate::Builder::warn_after).
//!
//! The keeper's thread looks at all waits and holds. It sleeps no longer from one look to the next
//! than the shorter of the two limits. So no thread has to wake it: a wait or hold that begins
//! while the keeper sleeps does not pass its limit before the next look. A wait is listed from its
//! first sleep on. If Redis gives no answer, that may be long after its limit, and the next look
//! warns about it.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::warn;
use crate::base::options::WarnAfter;
use crate::hold::HeldLock;
use crate::keeping::work::Keeper;

#[derive(Debug)]
pub(super) struct Slow {
    limits: WarnAfter,
    /// When the keeper last looked.
    looked: Moment,
    /// When it has to look again.
    next: Moment,
}

impl Slow {
    pub(super) fn new(limits: WarnAfter) -> Slow {
        Slow {
            limits,
            looked: Moment::now(),
            next: Moment::PAST,
        }
    }

    pub(super) fn next(&self) -> Moment {
        self.next
    }

    /// Logs each wait and hold that has reached its limit, or a doubling of it, since the last
    /// look.
    pub(super) fn warn(&mut self, keeper: &Keeper) {
        let now = Moment::now();
        if now < self.next {
            return;
        }
        let WarnAfter { wait, held } = self.limits;
        self.next = now.after(wait.min(held));
        let mut holds: Vec<HeldLock> = keeper
            .work
            .lock()
            .tokens
            .holds(now)
            .map(|hold| HeldLock::new(hold, now))
            .collect();
        holds.retain(|hold| self.reaches(hold.held_for, held, Moment::PAST, now));
        let mut waits = keeper.core.queues.waiting(now);
        // A wait that was listed in the meantime is new at the next look.
        waits.retain(|(it, listed)| *listed <= now && self.reaches(it.waited, wait, *listed, now));
        self.looked = now;
        for hold in holds {
            warn!(target: "relatch::slow", "a lock has been held for a long time: {hold}");
        }
        for (wait, _) in waits {
            warn!(target: "relatch::slow", "a thread has waited for a long time: {wait}");
        }
    }

    /// Whether a wait or hold, which has `lasted` so long at `now`, has reached `limit` or a
    /// doubling of it since the last look; or at all, if it was not yet `listed` at the last look.
    /// Notes when it reaches the next doubling.
    fn reaches(&mut self, lasted: Duration, limit: Duration, listed: Moment, now: Moment) -> bool {
        let reached = |limit: &Duration| *limit <= lasted;
        let doublings = std::iter::successors(Some(limit), |limit| limit.checked_mul(2));
        let last = doublings.clone().take_while(reached).last();
        if let Some(next) = doublings.into_iter().find(|limit| lasted < *limit) {
            self.next = self.next.min(now.after(next.saturating_sub(lasted)));
        }
        let since = now.since(self.looked);
        last.is_some_and(|limit| listed > self.looked || lasted.saturating_sub(limit) < since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    /// After a look.
    fn looked(looked: Moment) -> Slow {
        let limits = WarnAfter {
            wait: LIMIT,
            held: LIMIT,
        };
        Slow {
            limits,
            looked,
            next: Moment::NEVER,
        }
    }

    #[test]
    fn what_lasts_is_due_at_its_limit_and_at_each_doubling_of_it() {
        let at = |millis: u64| Moment::from_nanos(1_000_000 * millis);
        // This began at 1000 ms. There is a look every 10 ms, and then two looks that come late.
        let looks = (1000..2000).step_by(10).chain([4500, 4510]);
        let (mut due, mut since) = (Vec::new(), at(0));
        for now in looks {
            let mut look = looked(since);
            if look.reaches(at(now).since(at(1000)), LIMIT, at(1000), at(now)) {
                due.push(now - 1000);
            }
            assert!(look.next > at(now));
            since = at(now);
        }
        assert_eq!(due, [100, 200, 400, 800, 3500]);
        let is_due = |lasted, listed| {
            let lasted = Duration::from_millis(lasted);
            looked(at(4510)).reaches(lasted, LIMIT, at(listed), at(4520))
        };
        assert!(
            is_due(300, 4515) && !is_due(300, 4500),
            "it is new in the list, or it is not"
        );
        assert!(!is_due(90, 4515), "it has not lasted for its limit");
    }

    #[test]
    fn the_next_look_is_when_the_next_limit_is_reached() {
        let now = Moment::from_nanos(1_000_000_000);
        let mut look = looked(now);
        let millis = Duration::from_millis;
        look.reaches(millis(30), LIMIT, Moment::PAST, now);
        assert_eq!(look.next.since(now), millis(70));
        look.reaches(millis(150), LIMIT, Moment::PAST, now);
        assert_eq!(look.next.since(now), millis(50));
        look.reaches(Duration::MAX, Duration::MAX, Moment::PAST, now);
        assert_eq!(look.next.since(now), millis(50));
    }
}
