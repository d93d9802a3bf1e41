//! The thread in front of a queue, which has the turn, and what it may do there.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;
use crate::base::random::fraction;
use crate::hold::Hold;
use crate::waiting::handoff::{HandoffBudget, HandoffOutcome};
use crate::waiting::past::Past;
use crate::waiting::patience::{Silence, WithoutExpiry};
use crate::waiting::waiter::Waiter;

/// The thread that has the turn: it talks to Redis, or holds the lock.
#[derive(Debug)]
pub(super) struct Front {
    /// Distinguishes turns. A turn that was passed over must not end the turn that replaced it.
    pub(super) number: u64,
    pub(super) started: Moment,
    /// The thread, while it waits: its turn has come, or it sleeps, and it has no hold yet.
    pub(super) waiter: Option<Arc<Waiter>>,
    pub(super) hold: Option<Arc<Hold>>,
    /// The turn is about to end, so the next thread may stay awake for it.
    pub(super) ending: bool,
    /// The release is in progress, with the next thread's claim. No thread may take the turn in the
    /// meantime.
    pub(super) handing_off: bool,
    pub(super) budget: HandoffBudget,
    /// The turn was handed off to the waiter, which has not started it yet.
    pub(super) handed: Option<HandoffOutcome>,
}

/// The actions of the thread in front, which a thread whose turn was passed over must not do.
pub(super) struct InFront<'a> {
    pub(super) front: &'a mut Front,
    pub(super) waiting: &'a VecDeque<Arc<Waiter>>,
    pub(super) past: &'a mut Past,
    pub(super) silence: &'a mut Option<Silence>,
    pub(super) seen: &'a mut Option<(Holder, Moment)>,
    pub(super) without_expiry: &'a mut WithoutExpiry,
}

impl InFront<'_> {
    /// How long the front leaves the lock to other processes before it asks again.
    pub(super) fn nap(&mut self) -> Duration {
        self.past.contention.nap(fraction)
    }

    /// The front is about to sleep, as this waiter, or (`None`) no longer waits. True if it has not
    /// waited before.
    pub(super) fn waits_as(&mut self, waiter: Option<&Arc<Waiter>>) -> bool {
        mem::replace(&mut self.front.waiter, waiter.cloned()).is_none()
    }

    /// The front has learned from Redis who has the lock. Asking took the time `took`. True if the
    /// holder is not the same as before.
    pub(super) fn saw(
        &mut self,
        holder: &Holder,
        without_expiry: &WithoutExpiry,
        took: Duration,
        now: Moment,
    ) -> bool {
        self.past.contention.took(took);
        // Seeing the same hold once more says nothing about other processes.
        let before = self.seen.replace((holder.clone(), now));
        let is_new = before.is_none_or(|(before, _)| before.raw != holder.raw);
        if is_new {
            self.front.budget = HandoffBudget::new(now); // Even after a failed hand-off.
            self.past.contention.saw(holder, now);
        }
        *self.without_expiry = without_expiry.clone();
        self.tell_tries();
        is_new
    }

    /// Wakes the threads that try once, since they wait for an answer and not for the lock.
    fn tell_tries(&self) {
        let tries = self.waiting.iter().filter(|waiter| waiter.patience.once);
        tries.for_each(|waiter| _ = waiter.woken.notify_one());
    }

    /// The front has the lock now.
    pub(super) fn holds(&mut self, hold: &Arc<Hold>, now: Moment) {
        self.front.hold = Some(Arc::clone(hold));
        self.front.waiter = None;
        *self.seen = None;
        // A lock that was handed off says nothing about other processes: they had no chance.
        if self.front.budget.acquired(now) {
            let asked = hold.acquired.answered.since(hold.acquired.sent);
            self.past.contention.took(asked);
            self.past.contention.won(now);
        }
        self.answered();
        self.tell_tries();
    }

    /// The front has one of several slots now. Asking took the time `took`.
    pub(super) fn takes_slot(&mut self, took: Duration, now: Moment) {
        self.past.contention.took(took);
        self.past.contention.won(now);
        self.answered();
    }

    /// The front is about to ask Redis. This is noted first, because an answer may never come.
    pub(super) fn asks(&mut self, now: Moment) {
        self.silence.get_or_insert_with(|| Silence::new(now));
    }

    /// Redis has answered the front.
    pub(super) fn answered(&mut self) {
        *self.silence = None;
    }

    /// An attempt of the front has failed. `silence` is `None` if the failure says nothing about
    /// Redis.
    pub(super) fn failed(&mut self, silence: Option<&Silence>) {
        *self.silence = silence.cloned();
        self.tell_tries();
    }

    /// The release of the turn begins. Returns the waiter whose claim is to be sent after the
    /// release, if any.
    ///
    /// No claim is sent if the budget is spent, as it always is with a `limit` of zero, or if the
    /// waiter tries only once, or if it may have given up by `answer_by`, the latest time for the
    /// answer.
    pub(super) fn begin_release(
        &mut self,
        limit: Duration,
        now: Moment,
        answer_by: Moment,
    ) -> Option<Arc<Waiter>> {
        self.front.ending = true;
        self.front.budget.release_begins(now);
        self.past.budget_is_spent = self.front.budget.is_spent(limit);
        let next = self.waiting.front()?;
        if self.past.budget_is_spent || next.patience.deadline <= answer_by || next.patience.once {
            return None;
        }
        self.front.handing_off = true;
        Some(Arc::clone(next))
    }
}
