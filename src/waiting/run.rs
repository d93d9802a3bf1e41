//! How long threads of one process go on handing a lock to each other, before they leave it free
//! for other processes.

use std::time::Duration;

use crate::base::clock::Moment;

/// A lock that was free for so long after a turn was there for others to take.
const LONG_FREE: Duration = Duration::from_millis(1);

/// Turns of one process that followed each other and left other processes no chance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// When it began, moved on by the time for which the lock was free meanwhile.
    since: Moment,
    /// The process does not have the lock, or is giving it back.
    free_since: Option<Moment>,
}

impl Run {
    pub(crate) fn new(now: Moment) -> Run {
        Run { since: now, free_since: Some(now) }
    }

    /// The run that a turn belongs to which asks Redis at `now`: where the lock was free for a
    /// while, a new one.
    pub(crate) fn at(self, now: Moment) -> Run {
        if self.free_for(now) >= LONG_FREE { Run::new(now) } else { self }
    }

    /// The process has the lock: true where it was free, or another's, in between.
    pub(crate) fn holds(&mut self, now: Moment) -> bool {
        let was_free = self.free_since.is_some();
        self.since = self.since.after(self.free_for(now));
        self.free_since = None;
        was_free
    }

    /// A turn gives the lock back: from here on, the run is no longer.
    pub(crate) fn gives_back(&mut self, now: Moment) {
        self.free_since.get_or_insert(now);
    }

    /// Redis has answered that: from here on, the lock is free for others to take.
    #[must_use]
    pub(crate) fn gave_back(mut self, now: Moment) -> Run {
        self.holds(now);
        Run { free_since: Some(now), ..self }
    }

    /// For how long the lock has been free.
    pub(crate) fn free_for(&self, now: Moment) -> Duration {
        self.free_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// It was handed on, and not free at all.
    #[must_use]
    pub(crate) fn handed_on(self) -> Run {
        Run { free_since: None, ..self }
    }

    /// For how long the process had the lock, where it has given it back or is about to.
    pub(crate) fn held(&self) -> Duration {
        self.free_since.unwrap_or(self.since).since(self.since)
    }

    /// The process has had the lock for as long as it may.
    pub(crate) fn is_over(&self, limit: Duration) -> bool {
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

    /// A run whose first turn asks at 0, has the lock at 1 and gives it back then.
    fn held_until(millis: u64) -> Run {
        let mut run = Run::new(at(0));
        run.holds(at(1));
        run.gives_back(at(millis));
        run
    }

    #[test]
    fn a_run_is_over_after_so_much_time_with_the_lock() {
        assert!(!held_until(20).is_over(LIMIT));
        assert!(held_until(21).is_over(LIMIT), "the time for which it asked does not count");
        assert!(!held_until(2).handed_on().is_over(LIMIT));
    }

    #[test]
    fn the_time_that_a_release_takes_neither_counts_nor_leaves_the_lock_free() {
        let slow = held_until(11).gave_back(at(100));
        assert_eq!(slow.free_for(at(100)), Duration::ZERO);
        let mut run = slow.at(at(100));
        run.holds(at(105));
        run.gives_back(at(114));
        assert!(!run.is_over(LIMIT), "10 ms and 9");
        let mut run = slow.at(at(100));
        run.holds(at(105));
        run.gives_back(at(115));
        assert!(run.is_over(LIMIT));
        assert_eq!(slow.free_for(at(107)), Duration::from_millis(7));
    }

    #[test]
    fn what_is_handed_on_is_not_free_in_between() {
        let mut run = held_until(11).handed_on();
        run.gives_back(at(21));
        assert!(run.is_over(LIMIT));
    }

    #[test]
    fn a_turn_that_asks_at_once_goes_on_with_the_run_and_the_time_between_does_not_count() {
        let asks = Moment::from_nanos(at(12).as_nanos() - 1);
        let mut run = held_until(11).at(asks);
        run.holds(at(15));
        run.gives_back(at(24));
        assert!(!run.is_over(LIMIT), "19 ms");
        run.gives_back(at(30));
        assert!(!run.is_over(LIMIT), "it was given back before");
        let mut run = held_until(11).at(asks);
        run.holds(at(15));
        run.gives_back(at(25));
        assert!(run.is_over(LIMIT), "20 ms");
        assert!(!held_until(30).at(at(31)).is_over(LIMIT), "others had time to take it");
    }
}
