//! The life of a run, from the start of the guard to the release: how the run reacts to each event.
//!
//! Nothing here knows a process or a clock: each event comes with its time, and the reaction is a
//! list of actions. The rules, in this order:
//!
//! | what | when | what is done |
//! |---|---|---|
//! | lost | Redis says so, or the lease is over | the job gets the signal at once, and is killed at most a second later; at once if it is stopped |
//! | at risk | so little of the lease is left that the job has to be asked to end now | the signal, and the kill before the lease ends |
//! | too long | `--max-hold` | the signal, and the kill after `--kill-after` |
//! | orphaned | the guard process has ended, and the job has not | the same |
//! | a signal | somebody sends one to the wrapper, and not to a whole service | the job gets it |
//! | killed | until no process is left | the kill, repeatedly |
//!
//! The lock is released when the guard has ended and no process of the job is left, and not before.
//! There is no other end, even if the job cannot be started, or if the guard ends before it can say
//! whether it has started the job.

use std::time::Duration;

use rustix::process::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGWINCH};

use crate::run::doubt::Doubt;
pub(crate) use crate::run::doubt::Sender;
use crate::run::family::{Pause, Scope};

/// How late a kill may be on a busy machine.
const LONGEST_LAG: Duration = Duration::from_millis(500);

/// How long a job may continue after its lock was lost.
const LONGEST_FAREWELL: Duration = Duration::from_secs(1);

/// Signals that ask a run to end.
pub(crate) const ENDS: [i32; 4] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM];

/// What the options of a run say about its life.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) lease: Duration,
    /// From the signal to the kill.
    pub(crate) kill_after: Duration,
    pub(crate) max_hold: Option<Duration>,
    /// A job whose lock is lost may continue.
    pub(crate) only_warn: bool,
    /// The job is in the group of this process: a terminal sends its signals to both.
    pub(crate) shares_group: bool,
    /// If this process stopped itself, something could continue it.
    pub(crate) can_stop: bool,
}

impl Plan {
    /// How long before the end of the lease the kill comes.
    pub(crate) fn margin(&self) -> Duration {
        (self.lease / 10).min(LONGEST_LAG)
    }
}

/// An event in the life of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Nothing but the passage of time.
    Time,
    /// A signal for the job.
    Signal(i32, Sender),
    /// The guard has received that signal too.
    Got(i32),
    /// The terminal or somebody else stops the run.
    Stop(Sender),
    /// Somebody continues the run.
    Continue,
    /// Redis says that somebody else, or nobody, holds the lock.
    Lost,
    /// The first process of the job, the leader, runs.
    Started(Pid),
    NotStarted(NotStarted),
    /// The leader has ended.
    LeaderEnded(Ended),
    /// This process has waited for a child: the guard, or one that it adopted.
    Reaped(Pid, Ended),
    /// The guard process has ended. It has said all that it had to say.
    GuardEnded,
    /// No process descends from this one.
    Childless,
    /// There is no guard, and no process of the job is left.
    Empty,
    /// There is no guard, but a process of the job is left.
    Orphaned,
}

/// How a process has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Code(i32),
    Signal(i32),
}

/// Why the guard has not started the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotStarted {
    /// The system's error.
    Failed(i32),
    /// The lock was no longer valid.
    Late,
    /// A signal ended the guard before it could handle signals.
    Interrupted(i32),
    /// The guard ended by itself, with this code, before it started the job.
    Guard(i32),
}

/// When an event happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At {
    /// Since the lock was taken.
    pub(crate) held_for: Duration,
    /// How long the lock is still ours.
    pub(crate) left: Duration,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Forwards a signal to these processes of the job.
    Forward(i32, Scope),
    /// Asks every process in the scope to end: `--signal`.
    Ask,
    /// Kills every process in the scope, and the guard.
    Kill,
    /// Stops these processes of the job, and then this process.
    StopAll(Scope),
    /// Continues the job.
    Resume,
    /// Continues everything that the terminal has stopped. (That may include a shell around this
    /// run.)
    ResumeGroup,
}

/// Why a job was ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Lost,
    AtRisk,
    TooLong,
    Orphaned,
}

#[derive(Clone, Copy, Debug)]
enum Stage {
    Runs,
    /// The job was asked to end.
    Asked {
        kill_at: Duration,
    },
    Killed {
        again_at: Duration,
        pause: Pause,
    },
    /// No process is left.
    Over,
}

#[derive(Debug)]
pub(crate) struct Life {
    plan: Plan,
    stage: Stage,
    /// Events to pass on to the job once it starts. `None` once it has started.
    early: Option<Vec<Event>>,
    doubt: Doubt,
    is_stopped: bool,
    is_lost: bool,
    scope: Scope,
    reason: Option<Reason>,
    not_started: Option<NotStarted>,
    ended: Option<Ended>,
}

impl Life {
    pub(crate) fn new(plan: Plan) -> Life {
        Life {
            plan,
            stage: Stage::Runs,
            early: Some(Vec::new()),
            doubt: Doubt::default(),
            is_stopped: false,
            is_lost: false,
            scope: Scope::Job,
            reason: None,
            not_started: None,
            ended: None,
        }
    }

    /// Processes an event, and returns what to do.
    pub(crate) fn on(&mut self, event: Event, at: At) -> Vec<Action> {
        let mut actions = Vec::new();
        self.is_lost |= event == Event::Lost || at.left.is_zero();
        match event {
            // The job was asked to end before it had started.
            Event::Started(_) if matches!(self.stage, Stage::Asked { .. }) => {
                actions.push(Action::Ask);
            }
            Event::NotStarted(why) => self.not_started = Some(why),
            Event::LeaderEnded(ended) => self.ended = Some(ended),
            Event::Empty => self.stage = Stage::Over,
            _ => {}
        }
        if self.is_over() {
            return actions;
        }
        self.look(event, at, &mut actions);
        match event {
            Event::Started(_) => {
                // The job had no processes yet when the terminal sent its signals.
                for early in self.early.take().into_iter().flatten() {
                    self.pass_on(early, Some(Scope::Job), &mut actions);
                }
            }
            Event::Signal(..) | Event::Stop(_) | Event::Continue => match &mut self.early {
                None => self.take(event, at, &mut actions),
                Some(early) if event == Event::Continue => {
                    early.retain(|it| !matches!(it, Event::Stop(_)));
                }
                Some(early) => early.push(event),
            },
            Event::Got(number) => self.doubt.got(number, at.held_for),
            _ => {}
        }
        for number in self.doubt.resolved(at.held_for) {
            self.pass_on(Event::Signal(number, Sender::Other), None, &mut actions);
        }
        actions
    }

    /// Takes a signal from outside. A service manager may have sent it to the job too.
    fn take(&mut self, event: Event, at: At, actions: &mut Vec<Action>) {
        match event {
            Event::Signal(number, Sender::Manager) => self.doubt.sent(number, at.held_for),
            _ => self.pass_on(event, None, actions),
        }
    }

    /// Passes on a signal to the processes of the job that have not received it.
    fn pass_on(&mut self, event: Event, to: Option<Scope>, actions: &mut Vec<Action>) {
        match event {
            Event::Signal(number, from) => {
                let to = match number {
                    SIGINT | SIGQUIT | SIGWINCH => to.unwrap_or(from.misses()),
                    _ => Scope::Job,
                };
                actions.push(Action::Forward(number, to));
                // A job that is stopped would not end.
                if ENDS.contains(&number) {
                    actions.push(Action::Resume);
                }
            }
            Event::Stop(from) if matches!(self.stage, Stage::Runs) && self.plan.can_stop => {
                self.is_stopped = true;
                actions.push(Action::StopAll(to.unwrap_or(from.misses())));
            }
            // Nothing stops or continues a job that is being killed. A job that was asked to end,
            // or that nobody would continue, is continued instead of stopped: a terminal may have
            // stopped it already.
            _ if matches!(self.stage, Stage::Killed { .. }) => {}
            Event::Stop(_) if self.plan.shares_group => actions.push(Action::ResumeGroup),
            _ => {
                self.is_stopped = false;
                actions.push(Action::Resume);
            }
        }
    }

    /// Acts on the time and the state of the lock.
    fn look(&mut self, event: Event, at: At, actions: &mut Vec<Action>) {
        let now = at.held_for;
        if let Some((reason, kill_at)) = self.end_of_job(event, at) {
            // Daemons are not part of the job. They may outlive `--max-hold`, but not the lock.
            if reason != Reason::TooLong {
                self.scope = Scope::All;
            }
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
        let mut pause = match self.stage {
            Stage::Asked { kill_at } if kill_at <= now => Pause::SHORTEST,
            Stage::Killed { again_at, pause } if again_at <= now => pause,
            _ => return,
        };
        actions.push(Action::Kill);
        let again_at = now + pause.next();
        self.stage = Stage::Killed { again_at, pause };
    }

    /// Why the job has to end and when to kill it, if it has to end.
    fn end_of_job(&self, event: Event, at: At) -> Option<(Reason, Duration)> {
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
        } else if event == Event::Orphaned {
            Some((Reason::Orphaned, now + kill_after))
        } else {
            None
        }
    }

    /// The latest time for the next look, as an age of the hold.
    pub(crate) fn next_look(&self, at: At) -> Duration {
        let now = at.held_for;
        // A renewal may come at any time, and extends the lease.
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
            Stage::Killed { again_at, .. } => next = next.min(again_at),
            Stage::Over => {}
        }
        next = next.min(self.doubt.until().unwrap_or(next));
        next.max(now + Duration::from_millis(1))
    }

    /// True once the lock can be released.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Over)
    }

    /// True if the lock was lost at any time.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Which processes have to be gone before the lock is released.
    pub(crate) fn scope(&self) -> Scope {
        self.scope
    }

    pub(crate) fn reason(&self) -> Option<Reason> {
        self.reason
    }

    pub(crate) fn not_started(&self) -> Option<NotStarted> {
        self.not_started
    }

    pub(crate) fn ended(&self) -> Option<Ended> {
        self.ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::doubt::LONGEST_ROUND;

    const TERM: i32 = 15;

    fn plan() -> Plan {
        Plan {
            lease: Duration::from_secs(30),
            kill_after: Duration::from_secs(5),
            max_hold: None,
            only_warn: false,
            shares_group: false,
            can_stop: true,
        }
    }

    /// The life of a job that runs.
    fn life(plan: Plan) -> Life {
        let mut life = Life::new(plan);
        let started = Event::Started(rustix::process::getpid());
        assert_eq!(life.on(started, at(0, 29)), []);
        life
    }

    fn at(held_for: u64, left: u64) -> At {
        At {
            held_for: Duration::from_secs(held_for),
            left: Duration::from_secs(left),
        }
    }

    /// An event, its time (how long the lock has been held, and how long its lease still lasts),
    /// and the resulting actions.
    type Row<'a> = (Event, At, &'a [Action]);

    #[track_caller]
    fn plays(mut life: Life, rows: &[Row<'_>]) -> Life {
        for (event, at, follows) in rows {
            assert_eq!(life.on(*event, *at), *follows, "{event:?} at {at:?}");
        }
        life
    }

    const ENDED: Ended = Ended::Code(3);
    const STOP: Event = Event::Stop(Sender::Other);
    const LATER: At = At {
        held_for: Duration::from_secs(1).saturating_add(LONGEST_ROUND),
        left: Duration::from_secs(29),
    };
    const PASSED_ON: [Action; 2] = [Action::Forward(TERM, Scope::Job), Action::Resume];

    fn with_max_hold(seconds: u64) -> Plan {
        let max_hold = Some(Duration::from_secs(seconds));
        Plan { max_hold, ..plan() }
    }

    /// The events of a run, the reason for its end, and whether the lock is lost.
    #[test]
    fn a_job_is_asked_to_end_and_killed_before_its_lock_is_somebody_elses() {
        let half = At {
            held_for: Duration::from_millis(15_500),
            left: Duration::from_millis(500),
        };
        let warns = Plan {
            only_warn: true,
            ..plan()
        };
        let table: [(Plan, Option<Reason>, bool, &[Row<'_>]); 6] = [
            // The lease nears its end: the lock is ours until the job is gone.
            (
                plan(),
                Some(Reason::AtRisk),
                false,
                &[
                    (Event::Time, at(10, 6), &[]),
                    (Event::Time, at(11, 5), &[Action::Ask]),
                    (Event::Time, at(15, 1), &[]),
                    (Event::Time, half, &[Action::Kill]),
                ],
            ),
            // After a loss, the job has a second.
            (
                plan(),
                Some(Reason::Lost),
                true,
                &[
                    (Event::Lost, at(10, 20), &[Action::Ask]),
                    (Event::Time, at(10, 20), &[]),
                    (Event::Time, at(11, 0), &[Action::Kill]),
                    (Event::Time, at(12, 0), &[Action::Kill]),
                ],
            ),
            // Even if it was asked before.
            (
                with_max_hold(60),
                Some(Reason::TooLong),
                true,
                &[
                    (Event::Time, at(60, 20), &[Action::Ask]),
                    (Event::Lost, at(61, 20), &[]),
                    (Event::Time, at(62, 20), &[Action::Kill]),
                ],
            ),
            (
                warns,
                None,
                true,
                &[
                    (Event::Time, at(1, 1), &[]),
                    (Event::Lost, at(2, 0), &[]),
                    (Event::Signal(TERM, Sender::Other), at(3, 0), &PASSED_ON),
                ],
            ),
            // Without its guard, the job ends.
            (
                plan(),
                Some(Reason::Orphaned),
                false,
                &[
                    (Event::GuardEnded, at(1, 29), &[]),
                    (Event::Orphaned, at(1, 29), &[Action::Ask]),
                    (Event::Time, at(6, 29), &[Action::Kill]),
                    (Event::Time, at(7, 29), &[Action::Kill]),
                ],
            ),
            // The job ended by itself; a process of its group lives for another second.
            (
                plan(),
                None,
                false,
                &[
                    (Event::Time, at(0, 29), &[]),
                    (Event::LeaderEnded(ENDED), at(100, 20), &[]),
                ],
            ),
        ];
        for (plan, reason, is_lost, rows) in table {
            let mut life = plays(life(plan), rows);
            assert_eq!(
                (life.reason(), life.is_lost(), life.is_over()),
                (reason, is_lost, false)
            );
            if life.ended().is_some() {
                assert_eq!(life.on(Event::Empty, at(101, 20)), []);
                assert!(life.is_over() && life.ended() == Some(ENDED));
            }
            assert!(!is_lost || reason.is_none() || life.scope() == Scope::All);
        }
    }

    /// As long as the job is not known to run, there is nothing to stop. This process would stop
    /// itself, and the job would start.
    #[test]
    fn what_comes_before_the_job_has_started_waits_for_it() {
        let started = Event::Started(rustix::process::getpid());
        let signal = |number| Event::Signal(number, Sender::Terminal);
        let shares = Plan {
            shares_group: true,
            ..plan()
        };
        // The job may have stopped itself before it is known to run.
        let interrupted = [Action::Forward(SIGINT, Scope::Job), Action::Resume];
        let to_others = [Action::Forward(SIGINT, Scope::OtherGroups), Action::Resume];
        let table: [(Plan, &[Row<'_>]); 4] = [
            (
                shares,
                &[
                    (signal(TERM), at(0, 29), &[]),
                    (signal(SIGINT), at(0, 29), &[]),
                    (started, at(0, 29), &[PASSED_ON, interrupted].concat()),
                    (signal(SIGINT), at(1, 29), &to_others),
                ],
            ),
            (
                plan(),
                &[
                    (STOP, at(0, 29), &[]),
                    (started, at(0, 29), &[Action::StopAll(Scope::Job)]),
                ],
            ),
            // The job is to continue.
            (
                plan(),
                &[
                    (STOP, at(0, 29), &[]),
                    (Event::Continue, at(0, 29), &[]),
                    (started, at(0, 29), &[]),
                ],
            ),
            (
                with_max_hold(1),
                &[
                    (Event::Time, at(1, 29), &[Action::Ask]),
                    (started, at(2, 28), &[Action::Ask]),
                ],
            ),
        ];
        for (plan, rows) in table {
            plays(Life::new(plan), rows);
        }
    }

    #[test]
    fn what_a_manager_sends_to_all_of_a_service_is_not_passed_on() {
        let (got, now) = (Event::Got(TERM), at(1, 29));
        let signal = Event::Signal(TERM, Sender::Manager);
        for events in [[signal, got], [got, signal]] {
            let [one, other] = events.map(|event| (event, now, &[][..]));
            plays(life(plan()), &[one, other, (Event::Time, LATER, &[])]);
        }
        let alone = plays(life(plan()), &[(signal, now, &[])]);
        assert_eq!(alone.next_look(now), LATER.held_for);
        plays(alone, &[(Event::Time, LATER, &PASSED_ON)]);
        // A sender that signals the run and its guard by name does not mean a service.
        let by_name = Event::Signal(TERM, Sender::Other);
        plays(life(plan()), &[(got, now, &[]), (by_name, now, &PASSED_ON)]);
    }

    /// The terminal has stopped the job's group itself, and nothing else would continue it.
    #[test]
    fn a_job_is_stopped_and_continued_unless_it_is_about_to_end() {
        let stops = &[Action::StopAll(Scope::Job)];
        plays(
            life(plan()),
            &[
                (STOP, at(1, 29), stops),
                (Event::Continue, at(2, 28), &[Action::Resume]),
                (STOP, at(3, 27), stops),
                (Event::Continue, at(60, 0), &[Action::Kill]),
            ],
        );
        let cannot = Plan {
            shares_group: true,
            can_stop: false,
            ..plan()
        };
        let stop = Event::Stop(Sender::Terminal);
        plays(life(cannot), &[(stop, at(1, 29), &[Action::ResumeGroup])]);
        plays(
            life(with_max_hold(60)),
            &[
                (Event::Time, at(60, 20), &[Action::Ask]),
                (STOP, at(61, 20), &[Action::Resume]),
            ],
        );
    }

    /// In any state, whatever happens, there is no second kill at the same moment, and there is a
    /// next look.
    #[test]
    fn there_is_always_a_next_look_and_it_is_later() {
        let events = [
            Event::Time,
            Event::Lost,
            Event::Orphaned,
            Event::Stop(Sender::Other),
            Event::Continue,
            Event::Signal(TERM, Sender::Other),
        ];
        for first in events {
            for second in events {
                for left in [0, 1, 5, 6, 29] {
                    let mut life = life(plan());
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
