//! How long threads of one process go on handing a lock to each other, before they leave it free
//! for other processes.

use std::time::Duration;

use crate::clock::Moment;
use crate::options::HandOn;

/// A lock that was left free for so long was there for others to take.
const LONG_FREE: Duration = Duration::from_millis(1);

/// Turns of one process that followed each other and left other processes no chance.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    turns: u32,
    /// When it began, moved on by the time for which the lock was free meanwhile.
    since: Moment,
    /// The process has the lock no more, or not yet.
    free_since: Option<Moment>,
}

impl Run {
    pub(crate) fn new(now: Moment) -> Run {
        Run { turns: 1, since: now, free_since: Some(now) }
    }

    /// The run that a turn belongs to which asks Redis at `now`: where the lock was free for a
    /// while, a new one.
    pub(crate) fn at(self, now: Moment) -> Run {
        let was_free = self.free_since.is_some_and(|since| now.since(since) >= LONG_FREE);
        if was_free { Run::new(now) } else { self }
    }

    /// The process has the lock: true where it was free, or another's, in between.
    pub(crate) fn holds(&mut self, now: Moment) -> bool {
        let free_since = self.free_since.take();
        let free = free_since.map_or(Duration::ZERO, |since| now.since(since));
        self.since = self.since.after(free);
        free_since.is_some()
    }

    /// A turn gives the lock back.
    pub(crate) fn gives_back(&mut self, now: Moment) {
        self.free_since.get_or_insert(now);
    }

    /// It was handed on, and not free at all.
    #[must_use]
    pub(crate) fn handed_on(self) -> Run {
        Run { turns: self.turns.saturating_add(1), free_since: None, ..self }
    }

    pub(crate) fn is_over(&self, limits: &HandOn) -> bool {
        let held = self.free_since.unwrap_or(self.since).since(self.since);
        self.turns >= limits.turns || held >= limits.time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HandOn = HandOn { turns: 3, time: Duration::from_millis(20) };

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
    fn a_run_is_over_after_so_many_turns_or_so_much_time_with_the_lock() {
        assert!(!held_until(20).is_over(&LIMITS));
        assert!(held_until(21).is_over(&LIMITS), "the time for which it asked does not count");
        let second = held_until(2).handed_on();
        assert!(!second.is_over(&LIMITS));
        assert!(second.handed_on().is_over(&LIMITS));
        assert!(!second.handed_on().is_over(&HandOn { turns: u32::MAX, time: Duration::MAX }));
    }

    #[test]
    fn what_is_handed_on_is_not_free_in_between() {
        let mut run = held_until(11).handed_on();
        run.gives_back(at(21));
        assert!(run.is_over(&LIMITS));
    }

    #[test]
    fn a_turn_that_asks_at_once_goes_on_with_the_run_and_the_time_between_does_not_count() {
        let asks = Moment::from_nanos(at(12).as_nanos() - 1);
        let mut run = held_until(11).at(asks);
        run.holds(at(15));
        run.gives_back(at(24));
        assert!(!run.is_over(&LIMITS), "19 ms");
        run.gives_back(at(30));
        assert!(!run.is_over(&LIMITS), "it was given back before");
        let mut run = held_until(11).at(asks);
        run.holds(at(15));
        run.gives_back(at(25));
        assert!(run.is_over(&LIMITS), "20 ms");
        assert!(!held_until(30).at(at(31)).is_over(&LIMITS), "others had time to take it");
    }
}
