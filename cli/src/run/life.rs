//! The life of a run, from the start of the job to the release: what is done when something
//! happens.
//!
//! Nothing here knows a process or a clock: an event comes with the time, and actions come back.
//! The rules, in this order:
//!
//! | what | when | what is done |
//! |---|---|---|
//! | lost | Redis says so, or the lease is over | the job gets the signal at once, and is killed a second later at most; at once if it is stopped |
//! | at risk | so little of the lease is left that the job has to be asked now | the signal, and the kill before the lease ends |
//! | too long | `--max-hold` | the signal, and the kill after `--kill-after` |
//! | no guard | somebody has killed the guard process | the same |
//! | a signal | somebody sends one to the wrapper | the job gets it |
//! | killed | every second until the group is empty | the kill again |
//!
//! The lock is given back when no process of the group is left, and not before.

use std::time::Duration;

/// How much later than it should be a kill may be on a busy machine.
const LONGEST_LAG: Duration = Duration::from_millis(500);

/// How long a job may go on after its lock was lost.
const LONGEST_FAREWELL: Duration = Duration::from_secs(1);

/// What the options of a run say about its life.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) lease: Duration,
    /// From the signal to the kill.
    pub(crate) kill_after: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// A job that has lost its lock goes on.
    pub(crate) only_warn: bool,
}

impl Plan {
    /// The kill comes so long before the lease ends.
    pub(crate) fn margin(&self) -> Duration {
        (self.lease / 20).min(LONGEST_LAG)
    }
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing, but time has passed.
    Time,
    /// A signal for the job.
    Signal(i32),
    /// The terminal or somebody else stops the run.
    Stop,
    /// And lets it go on.
    Continue,
    /// Redis says that the lock is not ours any more.
    Lost,
    /// The first process of the job has ended.
    JobEnded(Ended),
    /// No process of the group is left.
    Empty,
    /// The guard process has ended.
    GuardEnded,
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

/// When it has happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    /// Since the lock was taken.
    pub(crate) held_for: Duration,
    /// For how long the lock is still ours.
    pub(crate) left: Duration,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Passes a signal on to the job.
    Forward(i32),
    /// Asks the job to end: `--signal`.
    Ask,
    /// Kills the group and, where that is possible, all that has left it.
    Kill,
    /// Kills the guard, too: it does not do its part.
    KillGuard,
    /// Stops the job, and then this process.
    StopAll,
    /// Lets the job go on.
    Resume,
}

/// Why a job does not run to its own end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Lost,
    AtRisk,
    TooLong,
    NoGuard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Runs,
    /// It was asked to end.
    Asked {
        kill_at: Duration,
    },
    Killed {
        again_at: Duration,
    },
    /// No process is left.
    Over,
}

#[derive(Debug)]
pub(crate) struct Life {
    plan: Plan,
    stage: Stage,
    is_stopped: bool,
    is_lost: bool,
    has_guard: bool,
    reason: Option<Reason>,
    ended: Option<Ended>,
}

impl Life {
    pub(crate) fn new(plan: Plan) -> Life {
        Life {
            plan,
            stage: Stage::Runs,
            is_stopped: false,
            is_lost: false,
            has_guard: true,
            reason: None,
            ended: None,
        }
    }

    /// Takes in what has happened, and says what to do.
    pub(crate) fn on(&mut self, event: Event, at: At) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Lost => self.is_lost = true,
            Event::JobEnded(ended) => self.ended = Some(ended),
            Event::Empty => self.stage = Stage::Over,
            Event::GuardEnded => self.has_guard = false,
            Event::Time | Event::Signal(_) | Event::Stop | Event::Continue => {}
        }
        if self.is_over() {
            return actions;
        }
        self.is_lost |= at.left.is_zero();
        self.look(at, &mut actions);
        match event {
            Event::Signal(number) => actions.push(Action::Forward(number)),
            // A job that is about to end is not held up.
            Event::Stop if self.stage == Stage::Runs => {
                self.is_stopped = true;
                actions.push(Action::StopAll);
            }
            Event::Continue => {
                self.is_stopped = false;
                if !matches!(self.stage, Stage::Killed { .. }) {
                    actions.push(Action::Resume);
                }
            }
            _ => {}
        }
        actions
    }

    /// What the time and the lock ask for.
    fn look(&mut self, at: At, actions: &mut Vec<Action>) {
        let now = at.held_for;
        if let Some((reason, kill_at)) = self.end_of_job(at) {
            match &mut self.stage {
                Stage::Runs => {
                    self.reason = Some(reason);
                    self.stage = Stage::Asked { kill_at };
                    if kill_at > now {
                        actions.push(Action::Ask);
                    }
                }
                Stage::Asked { kill_at: before } => *before = kill_at.min(*before),
                Stage::Killed { .. } | Stage::Over => {}
            }
        }
        match self.stage {
            Stage::Asked { kill_at } if kill_at <= now => {
                actions.push(Action::Kill);
                self.stage = Stage::Killed {
                    again_at: now + LONGEST_FAREWELL,
                };
            }
            Stage::Killed { again_at } if again_at <= now => {
                if self.has_guard {
                    actions.push(Action::KillGuard);
                }
                actions.push(Action::Kill);
                self.stage = Stage::Killed {
                    again_at: now + LONGEST_FAREWELL,
                };
            }
            _ => {}
        }
    }

    /// Why the job has to end, if it has to, and when it is killed.
    fn end_of_job(&self, at: At) -> Option<(Reason, Duration)> {
        let Plan {
            kill_after,
            max_hold,
            only_warn,
            ..
        } = self.plan;
        let now = at.held_for;
        let margin = self.plan.margin();
        if self.is_lost && !only_warn {
            let farewell = if self.is_stopped {
                Duration::ZERO
            } else {
                kill_after.min(LONGEST_FAREWELL)
            };
            Some((Reason::Lost, now + farewell))
        } else if at.left <= kill_after + margin && !only_warn {
            let until_then = at.left.saturating_sub(margin).min(kill_after);
            Some((Reason::AtRisk, now + until_then))
        } else if max_hold.is_some_and(|most| most <= now) {
            Some((Reason::TooLong, now + kill_after))
        } else if !self.has_guard {
            Some((Reason::NoGuard, now + kill_after))
        } else {
            None
        }
    }

    /// When to look again at the latest, as an age of the hold.
    pub(crate) fn next_look(&self, at: At) -> Duration {
        let now = at.held_for;
        // A renewal may come at any time, and makes the end of the lease later.
        let mut next = now + LONGEST_FAREWELL.min(self.plan.lease / 10);
        match self.stage {
            Stage::Runs => {
                let risk = at
                    .left
                    .saturating_sub(self.plan.kill_after + self.plan.margin());
                if !self.plan.only_warn {
                    next = next.min(now + risk);
                }
                if let Some(most) = self.plan.max_hold {
                    next = next.min(most);
                }
            }
            Stage::Asked { kill_at } => next = next.min(kill_at),
            Stage::Killed { again_at } => next = next.min(again_at),
            Stage::Over => {}
        }
        next.max(now + Duration::from_millis(1))
    }

    /// True once the lock can be given back.
    pub(crate) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// True if the lock was lost at any time.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERM: i32 = 15;

    fn plan() -> Plan {
        Plan {
            lease: Duration::from_secs(30),
            kill_after: Duration::from_secs(5),
            max_hold: None,
            only_warn: false,
        }
    }

    fn at(held_for: u64, left: u64) -> At {
        At {
            held_for: Duration::from_secs(held_for),
            left: Duration::from_secs(left),
        }
    }

    #[test]
    fn a_job_that_ends_by_itself_is_left_alone() {
        let mut life = Life::new(plan());
        assert_eq!(life.on(Event::Time, at(0, 29)), []);
        let ended = Ended::Code(3);
        assert_eq!(life.on(Event::JobEnded(ended), at(100, 20)), []);
        assert!(!life.is_over(), "a process of the group lives");
        assert_eq!(life.on(Event::Empty, at(101, 20)), []);
        assert!(life.is_over() && !life.is_lost());
        assert_eq!((life.ended(), life.reason()), (Some(ended), None));
    }

    #[test]
    fn a_job_whose_lease_nears_its_end_is_killed_before_that() {
        let mut life = Life::new(plan());
        assert_eq!(life.on(Event::Time, at(10, 6)), []);
        assert_eq!(life.on(Event::Time, at(11, 5)), [Action::Ask]);
        assert_eq!(life.on(Event::Time, at(15, 1)), []);
        let half = At {
            held_for: Duration::from_millis(15_500),
            left: Duration::from_millis(500),
        };
        assert_eq!(life.on(Event::Time, half), [Action::Kill]);
        assert_eq!(life.reason(), Some(Reason::AtRisk));
        assert!(!life.is_lost(), "it was ours until the job was gone");
    }

    #[test]
    fn a_job_whose_lock_is_lost_has_a_second() {
        let mut life = Life::new(plan());
        assert_eq!(life.on(Event::Lost, at(10, 20)), [Action::Ask]);
        assert_eq!(life.on(Event::Time, at(10, 20)), []);
        assert_eq!(life.on(Event::Time, at(11, 0)), [Action::Kill]);
        assert_eq!(
            life.on(Event::Time, at(12, 0)),
            [Action::KillGuard, Action::Kill]
        );
        assert!(life.is_lost() && !life.is_over());
    }

    #[test]
    fn a_loss_shortens_the_farewell_of_a_job_that_was_asked() {
        let max_hold = Some(Duration::from_secs(60));
        let mut life = Life::new(Plan { max_hold, ..plan() });
        assert_eq!(life.on(Event::Time, at(60, 20)), [Action::Ask]);
        assert_eq!(life.on(Event::Lost, at(61, 20)), []);
        assert_eq!(life.on(Event::Time, at(62, 20)), [Action::Kill]);
        assert_eq!(life.reason(), Some(Reason::TooLong));
    }

    #[test]
    fn a_job_that_was_stopped_for_too_long_is_not_continued() {
        let mut life = Life::new(plan());
        assert_eq!(life.on(Event::Stop, at(1, 29)), [Action::StopAll]);
        assert_eq!(life.on(Event::Continue, at(2, 28)), [Action::Resume]);
        assert_eq!(life.on(Event::Stop, at(3, 27)), [Action::StopAll]);
        assert_eq!(life.on(Event::Continue, at(60, 0)), [Action::Kill]);
    }

    #[test]
    fn with_warn_a_job_goes_on_after_a_loss() {
        let mut life = Life::new(Plan {
            only_warn: true,
            ..plan()
        });
        assert_eq!(life.on(Event::Time, at(1, 1)), []);
        assert_eq!(life.on(Event::Lost, at(2, 0)), []);
        assert_eq!(
            life.on(Event::Signal(TERM), at(3, 0)),
            [Action::Forward(TERM)]
        );
        assert!(life.is_lost());
    }

    #[test]
    fn without_its_guard_a_job_ends() {
        let mut life = Life::new(plan());
        assert_eq!(life.on(Event::GuardEnded, at(1, 29)), [Action::Ask]);
        assert_eq!(life.on(Event::Time, at(6, 29)), [Action::Kill]);
        assert_eq!(life.on(Event::Time, at(7, 29)), [Action::Kill]);
        assert_eq!(life.reason(), Some(Reason::NoGuard));
    }

    /// From any state, whatever happens: nothing is killed twice in a moment, and a look comes.
    #[test]
    fn there_is_always_a_next_look_and_it_is_later() {
        let events = [
            Event::Time,
            Event::Lost,
            Event::GuardEnded,
            Event::Stop,
            Event::Continue,
            Event::Signal(TERM),
        ];
        for first in events {
            for second in events {
                for left in [0, 1, 5, 6, 29] {
                    let mut life = Life::new(plan());
                    life.on(first, at(1, 29));
                    let now = at(2, left);
                    life.on(second, now);
                    let again = life.on(Event::Time, now);
                    assert_eq!(again, [], "{first:?}, then {second:?}");
                    assert!(life.next_look(now) > now.held_for);
                }
            }
        }
    }
}
