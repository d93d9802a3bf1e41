//! How long threads of one process go on handing a lock to each other, before other processes are let in.

use std::time::Duration;

use crate::clock::Moment;
use crate::options::HandOn;

/// As far as a run is stretched: whoever comes to wait then has to wait that much longer, once.
const MOST_STRETCHED: u32 = 16;

/// Turns that followed each other without letting other processes in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) turns: u32,
    pub(crate) since: Moment,
    /// How many times longer than the limits say it may be: others were let in before, and nobody came.
    stretch: u32,
}

impl Run {
    pub(crate) fn new(now: Moment) -> Run {
        Run { turns: 1, since: now, stretch: 1 }
    }

    /// The run that follows when others were let in, unless it turns out that they came.
    pub(crate) fn next(self, now: Moment) -> Run {
        Run { stretch: (self.stretch * 2).min(MOST_STRETCHED), ..Run::new(now) }
    }

    pub(crate) fn is_over(&self, limits: &HandOn, now: Moment) -> bool {
        self.turns >= limits.turns.saturating_mul(self.stretch)
            || now.since(self.since) >= limits.time.saturating_mul(self.stretch)
    }

    pub(crate) fn longer(self) -> Run {
        Run { turns: self.turns.saturating_add(1), ..self }
    }
}

/// A lock that was held for longer than this, and is wanted again within it, goes on with its run: a thread that takes it again and
/// again would leave no time for others. (Shorter turns leave chances enough, and are not to cost more.)
const AT_ONCE: Duration = Duration::from_millis(1);

/// What is left of the last run when nobody stands in line any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trace {
    run: Run,
    is_over: bool,
    ended: Moment,
}

impl Trace {
    /// Of a turn that began and ended then.
    pub(crate) fn new(run: Run, is_over: bool, began: Moment, ended: Moment) -> Option<Trace> {
        (ended.since(began) > AT_ONCE).then_some(Trace { run, is_over, ended })
    }

    /// The run that a turn which starts now goes on with, and whether it is over.
    pub(crate) fn followed_at(&self, now: Moment) -> Option<(Run, bool)> {
        (now.since(self.ended) < AT_ONCE).then_some((self.run, self.is_over))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Line;

    const LIMITS: HandOn = HandOn { turns: 3, time: Duration::from_millis(20) };

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    #[test]
    fn a_run_is_over_after_so_many_turns_or_so_much_time() {
        let run = Run::new(at(0));
        assert!(!run.is_over(&LIMITS, at(19)));
        assert!(run.is_over(&LIMITS, at(20)));
        let third = run.longer().longer();
        assert!(third.is_over(&LIMITS, at(0)));
        assert!(!third.is_over(&HandOn { turns: u32::MAX, time: Duration::MAX }, at(0)));
    }

    #[test]
    fn a_run_is_stretched_so_far_and_no_further() {
        let mut run = Run::new(at(0));
        let mut seen = Vec::new();
        for _ in 0..6 {
            seen.push(run.stretch);
            run = run.next(at(0));
        }
        assert_eq!(seen, [1, 2, 4, 8, 16, 16]);
        assert!(!run.is_over(&LIMITS, at(319)) && run.is_over(&LIMITS, at(320)));
    }

    #[test]
    fn a_run_goes_on_for_whoever_comes_back_at_once() {
        let run = Run::new(at(0)).longer();
        assert!(Trace::new(run, true, at(4), at(5)).is_none(), "not after a short turn");
        let trace = Trace::new(run, true, at(3), at(5)).unwrap();
        let (run, is_over) = trace.followed_at(at(5)).unwrap();
        assert_eq!((run.turns, is_over), (2, true));
        assert!(trace.followed_at(at(6)).is_none());
    }

    #[test]
    fn whoever_comes_back_at_once_after_the_last_turn_of_a_run_lets_others_in() {
        let trace = |is_over| Trace::new(Run::new(at(3)), is_over, at(3), at(5)).unwrap();
        let lets_in = |is_over, now| {
            let start = Line::after(&trace(is_over), now).start_turn(1, None, now);
            start.expect("nobody has the turn").last_of_run
        };
        assert!(lets_in(true, at(5)));
        assert!(!lets_in(true, at(7)), "others had time enough");
        assert!(!lets_in(false, at(5)), "the run goes on");
    }
}
