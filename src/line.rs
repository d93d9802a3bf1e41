//! One key's line in this process: who has the turn, who is next, and what one hands on to the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use parking_lot::Condvar;

use crate::clock::Moment;
use crate::hold::Hold;
use crate::holder::Holder;
use crate::options::{HandOn, Lease};

/// How often the first in line looks whether the hold in front of it is over.
///
/// Only for holds that end without a release: a guard that was forgotten, a thread that hangs. Being told of
/// every hold would cost a switch of threads per turn.
const GLANCE: Duration = Duration::from_secs(1);

/// How long a thread that is about to be called stays awake for it.
///
/// A sleeping thread takes tens of microseconds to wake up, as long as Redis takes for a command. So the first in
/// line is told to get up while the turn in front of it is about to end: when its release starts or, where the turn
/// before was over within this time, from its beginning. A lock that is held for long costs no waiter more than this,
/// once.
const AWAKE: Duration = Duration::from_micros(200);

/// What a thread in line wants Redis to hold for it.
#[derive(Clone, Debug)]
pub(crate) struct Wish {
    pub(crate) token: String,
    pub(crate) lease: Lease,
}

/// What became of a wish that went out behind the release of whoever was in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// It did not go out, or somebody else had the lock by then: Redis does not hold it.
    Nothing,
    /// Redis holds it.
    Taken { sent: Moment, answered: Moment },
    /// It went out and no answer came: Redis may hold it, or may yet.
    Astray { sent: Moment },
}

/// One key's line. It exists as long as somebody has the turn or waits for it.
#[derive(Debug, Default)]
pub(super) struct Line {
    pub(super) front: Option<Front>,
    pub(super) waiting: VecDeque<Arc<Waiter>>,
    /// The last turn was short, so the next may be.
    brisk: bool,
    /// The run that the last turn was part of.
    run: Option<Run>,
    /// The last turn was the last of its run: other processes are let in first.
    last_of_run: bool,
}

impl Front {
    /// The turn is used for a hold now. Where others had the lock in between, a new run begins.
    pub(super) fn holds(&mut self, hold: &Arc<Hold>, now: Moment) {
        self.hold = Some(Arc::clone(hold));
        if self.seen.take().is_some() {
            self.run = Run::new(now);
        } else if self.run.turns == 1 {
            self.run.since = now; // Not counting the pause.
        }
    }
}

/// Who has the turn: a thread that talks to Redis, or one that holds the lock.
#[derive(Debug)]
pub(super) struct Front {
    /// Tells the turns apart, so that one that was passed by does not end its successor's.
    pub(super) number: u64,
    started: Moment,
    pub(super) hold: Option<Arc<Hold>>,
    pub(super) seen: Option<Holder>,
    /// It will be over in a moment: whoever is next may stay awake for it.
    pub(super) ending: bool,
    /// The release is under way, and the next one's wish with it: nobody else may take the turn meanwhile.
    handing: bool,
    run: Run,
    /// The turn was handed on to this waiter, who has not taken it up yet.
    handed: Option<(Arc<Waiter>, Handed)>,
}

/// Turns that followed each other without letting other processes in.
#[derive(Clone, Copy, Debug)]
struct Run {
    turns: u32,
    since: Moment,
    /// How many times longer than the limits say it may be: others were let in before, and nobody came.
    stretch: u32,
}

/// As far as a run is stretched: whoever comes to wait then has to wait that much longer, once.
const MOST_STRETCHED: u32 = 8;

impl Run {
    fn new(now: Moment) -> Run {
        Run { turns: 1, since: now, stretch: 1 }
    }

    /// The run that follows when others were let in, unless it turns out that they came.
    fn next(self, now: Moment) -> Run {
        Run { stretch: (self.stretch * 2).min(MOST_STRETCHED), ..Run::new(now) }
    }

    fn is_over(&self, limits: &HandOn, now: Moment) -> bool {
        self.turns >= limits.turns.saturating_mul(self.stretch)
            || now.since(self.since) >= limits.time.saturating_mul(self.stretch)
    }

    fn longer(self) -> Run {
        Run { turns: self.turns + 1, ..self }
    }
}

/// A thread in line. Known by its address.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) called: Condvar,
    /// The turn in front of it is over.
    up: AtomicBool,
    pub(super) wish: Wish,
    deadline: Moment,
}

/// A turn that starts.
#[derive(Debug)]
pub(super) struct Start {
    pub(super) number: u64,
    pub(super) handed: Handed,
    pub(super) last_of_run: bool,
}

impl Waiter {
    pub(super) fn new(wish: Wish, deadline: Moment) -> Waiter {
        Waiter { called: Condvar::new(), up: AtomicBool::new(false), wish, deadline }
    }

    pub(super) fn call(&self) {
        self.up.store(true, Ordering::Release);
        self.called.notify_one();
    }

    /// Stays awake until it is called, for a moment.
    pub(super) fn await_call(&self) {
        let end = Moment::now().after(AWAKE);
        while !self.up.load(Ordering::Acquire) && Moment::now() < end {
            thread::yield_now();
        }
    }
}

impl Line {
    /// Gives the turn to `waiter`, or to one who comes from outside, if it is theirs.
    pub(super) fn start_turn(
        &mut self,
        number: u64,
        waiter: Option<&Arc<Waiter>>,
        now: Moment,
    ) -> Option<Start> {
        let handed_on = self.front.as_mut().and_then(|front| {
            let (_, handed) = front.handed.take_if(|(to, _)| waiter.is_some_and(|me| Arc::ptr_eq(to, me)))?;
            Some(Start { number: front.number, handed, last_of_run: false })
        });
        if handed_on.is_some() {
            return handed_on;
        }
        if !self.is_open(now) || !self.is_next(waiter) {
            return None;
        }
        self.waiting.pop_front();
        let last_of_run = std::mem::take(&mut self.last_of_run);
        let run = match self.run.take() {
            None => Run::new(now),
            Some(last) if last_of_run => last.next(now),
            Some(last) => last.longer(),
        };
        self.front = Some(self.front(number, run, now));
        Some(Start { number, handed: Handed::Nothing, last_of_run })
    }

    fn front(&self, number: u64, run: Run, now: Moment) -> Front {
        Front {
            number,
            started: now,
            hold: None,
            seen: None,
            ending: self.brisk,
            handing: false,
            run,
            handed: None,
        }
    }

    /// True where the turn may be taken: nobody has it, or the one who has it lost what he held.
    fn is_open(&self, now: Moment) -> bool {
        self.front
            .as_ref()
            .is_none_or(|front| !front.handing && front.hold.as_ref().is_some_and(|hold| hold.is_over(now)))
    }

    /// True for the first in line; with nobody in line, for anybody.
    fn is_next(&self, waiter: Option<&Arc<Waiter>>) -> bool {
        match (self.waiting.front(), waiter) {
            (Some(first), Some(waiter)) => Arc::ptr_eq(first, waiter),
            (None, _) => true,
            (Some(_), None) => false,
        }
    }

    /// The number of the turn whose end the waiter is about to see.
    pub(super) fn ending(&self, waiter: &Arc<Waiter>) -> Option<u64> {
        let front = self.front.as_ref().filter(|front| front.ending && self.is_next(Some(waiter)));
        front.map(|front| front.number)
    }

    /// When a waiter that nobody calls has to look again by himself.
    pub(super) fn look_again(&self, waiter: &Arc<Waiter>, now: Moment) -> Moment {
        if !self.is_next(Some(waiter)) {
            return Moment::NEVER;
        }
        let hold = self.front.as_ref().and_then(|front| front.hold.as_ref());
        hold.map(|hold| hold.valid_until())
            .filter(|end| *end > now)
            .unwrap_or(Moment::NEVER)
            .min(now.after(GLANCE))
    }

    /// Leaves the line; returns whom it was waiting for, and who is first in line instead.
    pub(super) fn step_out(
        &mut self,
        waiter: &Arc<Waiter>,
        now: Moment,
    ) -> (Option<Holder>, Option<Arc<Waiter>>) {
        let was_first = self.is_next(Some(waiter));
        self.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
        let next = self.waiting.front().filter(|_| was_first).cloned();
        (self.holder(now), next)
    }

    /// Who has the lock in another process, or through another manager.
    pub(super) fn seen(&self) -> Option<&Holder> {
        self.front.as_ref()?.seen.as_ref()
    }

    /// Who keeps the line waiting, as far as this process knows.
    pub(super) fn holder(&self, now: Moment) -> Option<Holder> {
        let front = self.front.as_ref()?;
        front.hold.as_ref().map(|hold| hold.as_holder(now)).or_else(|| front.seen.clone())
    }

    /// The release of a turn begins: whose wish goes out behind it, if anybody's.
    ///
    /// Not where the run has been long enough; and only to one who will still be there when the answer comes, at `answer_by`
    /// at the latest.
    pub(super) fn hand_on(
        &mut self,
        number: u64,
        limits: &HandOn,
        now: Moment,
        answer_by: Moment,
    ) -> Option<Arc<Waiter>> {
        let front = self.front.as_mut().filter(|front| front.number == number)?;
        front.ending = true;
        let next = self.waiting.front()?;
        self.last_of_run = front.run.is_over(limits, now);
        if self.last_of_run || next.deadline <= answer_by {
            return None;
        }
        front.handing = true;
        Some(Arc::clone(next))
    }

    /// A turn is over, and what it handed on belongs to the next: false where he has gone meanwhile.
    pub(super) fn pass_on(
        &mut self,
        number: u64,
        to: &Arc<Waiter>,
        next: u64,
        handed: Handed,
        now: Moment,
    ) -> bool {
        if !self.is_next(Some(to)) || self.waiting.is_empty() {
            return false;
        }
        let Some(last) = self.front.take_if(|front| front.number == number) else {
            return false;
        };
        self.waiting.pop_front();
        self.brisk = now.since(last.started) < AWAKE;
        let front = self.front(next, last.run.longer(), now);
        self.front = Some(Front { handed: Some((Arc::clone(to), handed)), ..front });
        true
    }

    /// A turn is over: false where it had been passed by, and the turn is somebody else's.
    pub(super) fn end_turn(&mut self, number: u64, now: Moment) -> bool {
        let Some(last) = self.front.take_if(|front| front.number == number) else {
            return false;
        };
        self.brisk = now.since(last.started) < AWAKE;
        self.run = Some(last.run);
        true
    }
}
