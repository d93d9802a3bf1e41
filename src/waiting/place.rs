//! A thread's place in a queue: what the thread does until its turn comes, or until it gives up.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::owner::holder::Holder;
use crate::waiting::patience::{SLOW_ANSWER, Silence};
use crate::waiting::queue::WaitQueue;
use crate::waiting::wait::Wait;
use crate::waiting::waiter::Waiter;

/// A thread's place in a queue, and what it remembers from one look at the queue to the next.
pub(super) struct QueuePlace<'a> {
    me: &'a Arc<Waiter>,
    wait: &'a Wait<'a>,
    /// When the thread next reports that it is waiting.
    speaks: Moment,
    /// The last turn for whose end the thread stayed awake. It does so once per turn.
    stayed_awake_for: Option<u64>,
    /// When the thread planned to look again, if nothing wakes it earlier.
    look_again: Moment,
    /// The thread in front was asked to look, or does not need to.
    has_looked: bool,
}

/// A step of a thread in a queue, until its next look.
pub(super) enum QueueStep {
    GiveUp(NoTurn),
    /// The turn in front is about to end.
    StayAwake,
    /// The thread in front is to ask Redis who has the lock.
    Look,
    /// The wait begins, or has lasted for a long time.
    Announce,
    Sleep {
        until: Moment,
    },
}

/// Why there was no turn.
#[derive(Debug)]
pub(crate) enum NoTurn {
    /// The lock is busy, and the caller's deadline has come, or the caller tries only once. The
    /// holder is named if it is known. If the thread in front asked but got no answer, nobody knows
    /// whether the lock is busy.
    Busy {
        holder: Option<Holder>,
        unknown: bool,
    },
    /// The caller must not go on waiting.
    MustNotWait(Error),
    /// The thread in front has no answer from Redis, and the caller waits no longer: its deadline
    /// has come, or the outage has lasted for `tolerate_outage`. The cause of the outage is named
    /// if it is known.
    Outage(Option<Arc<str>>),
}

impl<'a> QueuePlace<'a> {
    pub(super) fn new(me: &'a Arc<Waiter>, wait: &'a Wait<'a>) -> QueuePlace<'a> {
        QueuePlace {
            me,
            wait,
            speaks: wait.first_word(),
            stayed_awake_for: None,
            look_again: Moment::NEVER,
            has_looked: false,
        }
    }

    /// The thread's next step if its turn has not come by `now`.
    pub(super) fn next_step(
        &mut self,
        queue: &WaitQueue,
        cores_are_free: bool,
        now: Moment,
    ) -> QueueStep {
        let silence = queue.silence.clone();
        let silence =
            silence.and_then(|it| it.unless(self.wait.answered_at(), self.wait.patience.began));
        let silence = silence.as_ref();
        let overslept = now.since(self.look_again) > SLOW_ANSWER;
        if let Some(no_turn) = self.give_up(queue, silence, overslept, now) {
            return QueueStep::GiveUp(no_turn);
        }
        let ending = queue.ending(self.me);
        if ending.is_some() && ending != self.stayed_awake_for && cores_are_free {
            self.stayed_awake_for = ending;
            return QueueStep::StayAwake;
        }
        let look = self.wait.patience.last_look();
        if !self.has_looked && look <= now {
            self.has_looked = true;
            if silence.is_none() && !queue.knows_holder(look, now) {
                return QueueStep::Look;
            }
        }
        if self.speaks <= now {
            self.speaks = self.wait.patience.next_report(now);
            return QueueStep::Announce;
        }
        let look = Some(look).filter(|_| !self.has_looked);
        let plans = [
            queue.look_again(self.me, now),
            self.wait.patience.look_again(silence, now),
            self.wait.first_end(),
            look.unwrap_or(Moment::NEVER),
            self.speaks,
        ];
        self.look_again = plans.into_iter().min().unwrap_or(Moment::NEVER);
        if overslept {
            self.look_again = self
                .look_again
                .max(now.after(SLOW_ANSWER))
                .min(self.wait.patience.deadline);
        }
        QueueStep::Sleep {
            until: self.look_again,
        }
    }

    /// Why the thread leaves the queue at `now`, if it does.
    fn give_up(
        &self,
        queue: &WaitQueue,
        silence: Option<&Silence>,
        overslept: bool,
        now: Moment,
    ) -> Option<NoTurn> {
        let patience = self.wait.patience;
        // If the process was suspended for a while, the thread in front may not have read its
        // answer yet. That is not an outage.
        let outage = silence
            .filter(|silence| patience.is_outage(silence, now))
            .filter(|silence| silence.cause.is_some() || !overslept);
        // The answer to a hand-off may give the lock to this thread, if it is the first. A stopped
        // program may exit before the keeper can delete the key of an unused claim, so the thread
        // waits for that answer. (At its deadline, a thread leaves the key to the keeper.)
        let may_get_it = queue.is_handing_off() && queue.is_next(Some(self.me));
        let is_known = queue.knows_holder(patience.last_look(), now);
        let ends = if let Some(silence) = outage {
            Some(NoTurn::Outage(silence.cause.clone()))
        } else {
            let is_over = patience.deadline <= now || patience.once && is_known;
            is_over.then(|| NoTurn::Busy {
                holder: queue.holder(now),
                unknown: silence.is_some() && !is_known,
            })
        };
        match self.wait.may_go_on() {
            Err(Error::Stopped { .. }) if may_get_it => ends,
            Err(error) => Some(NoTurn::MustNotWait(error)),
            Ok(()) => ends,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::hold::tests::sample;
    use crate::waiting::patience::tests::until;
    use crate::waiting::queues::tests::claim;
    use crate::waiting::wait::tests::WaitRig;

    #[test]
    fn a_waiting_thread_sleeps_and_stays_awake_for_the_end_of_the_hold_in_front() {
        let at = |millis: u64| Moment::from_nanos(1_000_000 * millis);
        let mut queue = WaitQueue::default();
        queue.start_turn(1, None, false, at(0)).expect("it is free");
        let hold = Arc::new(sample("key", Duration::from_secs(30), at(0)));
        queue.in_front(1).unwrap().holds(&hold, at(0));
        let patience = until(at(5000));
        let rig = WaitRig::silent();
        let wait = rig.wait(&patience);
        let me = wait.waiter(Some(claim()));
        queue.waiting.push_back(Arc::clone(me));
        let place = |look_again| QueuePlace {
            look_again,
            speaks: Moment::NEVER,
            ..QueuePlace::new(me, &wait)
        };
        let step = |place: &mut QueuePlace<'_>, queue: &WaitQueue, cores_are_free, now| match place
            .next_step(queue, cores_are_free, at(now))
        {
            QueueStep::Sleep { until } => format!("sleeps for {:?}", until.since(at(now))),
            QueueStep::GiveUp(NoTurn::Busy {
                holder: Some(it), ..
            }) if *it.raw == *hold.token => "busy".to_owned(),
            QueueStep::GiveUp(NoTurn::Outage(None)) => "outage".to_owned(),
            QueueStep::Announce => "announces".to_owned(),
            QueueStep::StayAwake => "stays awake".to_owned(),
            _ => "does something else".to_owned(),
        };
        let sleeps = "sleeps for 1s";
        let mut waits = place(Moment::NEVER);
        waits.speaks = Moment::PAST;
        // It announces itself once.
        for (now, does) in [
            (100, "announces"),
            (100, sleeps),
            (600, sleeps),
            (1601, sleeps),
        ] {
            assert_eq!(step(&mut waits, &queue, true, now), does);
        }
        let mut front = queue.in_front(1).unwrap();
        let _ = front.begin_release(Duration::ZERO, at(2000), at(2001));
        // It does not stay awake while the cores are busy, and only once for each turn.
        for (cores_are_free, does) in [(false, sleeps), (true, "stays awake"), (true, sleeps)] {
            assert_eq!(step(&mut waits, &queue, cores_are_free, 2000), does);
        }
        assert_eq!(step(&mut place(at(5000)), &queue, false, 5000), "busy");
        queue.in_front(1).unwrap().asks(at(4000));
        let silent = step(&mut place(at(5000)), &queue, false, 5000);
        assert_eq!(silent, "outage", "a second without an answer");
        // This waiter woke a second late, so the process was probably suspended. The thread in
        // front may have an answer that it has not read yet.
        assert_eq!(step(&mut place(at(4000)), &queue, false, 5000), "busy");
    }
}
