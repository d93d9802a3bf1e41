//! The queue of one key in this process: who has the turn, who is next, what one turn hands off to
//! the next, and when the process leaves the lock free for others. Without clock, threads or Redis.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;
use crate::waiting::front::{Front, InFront};
use crate::waiting::handoff::{HandoffBudget, HandoffOutcome};
use crate::waiting::past::Past;
use crate::waiting::patience::{Attempts, GLANCE, Silence, WithoutExpiry};
use crate::waiting::waiter::{AWAKE, Waiter};

/// The queue of one key.
#[derive(Debug, Default)]
pub(crate) struct WaitQueue {
    pub(super) front: Option<Front>,
    pub(super) waiting: VecDeque<Arc<Waiter>>,
    /// The last turn was short, so the next may be short, too.
    last_was_short: bool,
    /// What the last turn left to the next.
    pub(super) past: Past,
    /// The silence of Redis while the front has no answer. The next turn inherits it, so that an
    /// outage does not begin anew with each thread.
    pub(super) silence: Option<Silence>,
    /// The holder that Redis named last, in another process or through another manager, and when.
    /// `None` once a thread of this queue has had the lock.
    seen: Option<(Holder, Moment)>,
    /// What is known of a key that never expires.
    without_expiry: WithoutExpiry,
}

/// What a thread finds when its turn starts.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) number: u64,
    pub(crate) handed: HandoffOutcome,
    /// For how long to leave the lock to other processes before asking.
    pub(crate) nap: Duration,
    /// Other processes were seen lately, so the lock is probably busy.
    pub(crate) crowded: bool,
    /// What the threads of earlier turns have found out about Redis.
    pub(crate) attempts: Attempts,
    /// What they have found out about the key.
    pub(crate) without_expiry: WithoutExpiry,
}

impl Start {
    /// For a thread that asks without a turn.
    pub(super) fn outside() -> Start {
        Start {
            number: 0,
            handed: HandoffOutcome::NotTaken,
            nap: Duration::ZERO,
            crowded: false,
            attempts: Attempts::after(None),
            without_expiry: WithoutExpiry::default(),
        }
    }
}

impl WaitQueue {
    /// Starts the turn of `waiter`, if its turn has come. (`None`: a thread that is not in the
    /// queue.)
    ///
    /// After a spent budget, a thread that asks only `once` does not pause. It leaves the pause to
    /// the next thread.
    pub(super) fn start_turn(
        &mut self,
        number: u64,
        waiter: Option<&Arc<Waiter>>,
        once: bool,
        now: Moment,
    ) -> Option<Start> {
        let handed_off = self.front.as_mut().and_then(|front| {
            let to = front.waiter.as_ref()?;
            let is_mine = waiter.is_some_and(|me| Arc::ptr_eq(to, me));
            Some((front.number, front.handed.take_if(|_| is_mine)?))
        });
        if let Some((number, handed)) = handed_off {
            // The release and the claim behind it had no answer, so the silence began when they
            // were sent.
            if let HandoffOutcome::Unanswered { sent } = handed
                && let Some(mut front) = self.in_front(number)
            {
                front.asks(sent);
            }
            return Some(Start {
                number,
                handed,
                nap: Duration::ZERO,
                crowded: false,
                attempts: Attempts::after(self.silence.clone()),
                without_expiry: WithoutExpiry::default(),
            });
        }
        if !self.is_open(now) || !self.is_next(waiter) {
            return None;
        }
        let waiter = self
            .waiting
            .pop_front()
            .filter(|waiter| !waiter.patience.once);
        // If there is still a front, its hold is over, and the next thread does not wait for it.
        let last = self
            .past
            .budget
            .take()
            .or(self.front.as_ref().map(|front| front.budget.released(now)));
        let is_over = !once && mem::take(&mut self.past.budget_is_spent);
        let budget = last
            .filter(|_| !is_over)
            .map_or(HandoffBudget::new(now), |last| last.at(now));
        self.front = Some(self.new_front(number, waiter, budget, now));
        let attempts = Attempts::after(self.silence.clone());
        let nap = self.past.first_nap(last.filter(|_| is_over), now);
        let crowded = self.past.contention.contention() > 0.0;
        Some(Start {
            number,
            handed: HandoffOutcome::NotTaken,
            nap,
            crowded,
            attempts,
            without_expiry: self.without_expiry.clone(),
        })
    }

    /// What the thread with this turn may do. `None` if its turn was passed over.
    pub(super) fn in_front(&mut self, number: u64) -> Option<InFront<'_>> {
        let front = self.front.as_mut().filter(|front| front.number == number)?;
        Some(InFront {
            front,
            waiting: &self.waiting,
            past: &mut self.past,
            silence: &mut self.silence,
            seen: &mut self.seen,
            without_expiry: &mut self.without_expiry,
        })
    }

    fn new_front(
        &self,
        number: u64,
        waiter: Option<Arc<Waiter>>,
        budget: HandoffBudget,
        now: Moment,
    ) -> Front {
        Front {
            number,
            started: now,
            waiter,
            hold: None,
            ending: self.last_was_short,
            handing_off: false,
            budget,
            handed: None,
        }
    }

    /// True if no thread has the turn. Also true if the hold of the thread that has it is over,
    /// unless that thread is handing off.
    fn is_open(&self, now: Moment) -> bool {
        self.front.as_ref().is_none_or(|front| {
            !front.handing_off && front.hold.as_ref().is_some_and(|hold| hold.is_over(now))
        })
    }

    /// True if this is the first waiter, or if no thread waits.
    pub(super) fn is_next(&self, waiter: Option<&Arc<Waiter>>) -> bool {
        match (self.waiting.front(), waiter) {
            (Some(first), Some(waiter)) => Arc::ptr_eq(first, waiter),
            (None, _) => true,
            (Some(_), None) => false,
        }
    }

    /// The turn that is about to end, if this waiter is the next.
    pub(super) fn ending(&self, waiter: &Arc<Waiter>) -> Option<u64> {
        let front = self
            .front
            .as_ref()
            .filter(|front| front.ending && self.is_next(Some(waiter)));
        front.map(|front| front.number)
    }

    /// When a waiter that is not woken has to look again.
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

    /// Removes a waiter.
    pub(super) fn leave(&mut self, waiter: &Arc<Waiter>) {
        self.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
    }

    /// The threads that wait: in front, and behind it. (A thread that tries once does not wait for
    /// the lock, unless it sleeps in front.)
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let in_front = self.front.iter().filter_map(|front| front.waiter.as_ref());
        in_front.chain(self.waiting.iter().filter(|waiter| !waiter.patience.once))
    }

    /// The holder that Redis named, in another process or through another manager.
    pub(super) fn seen(&self) -> Option<&Holder> {
        self.seen.as_ref().map(|(holder, _)| holder)
    }

    /// True if a thread of this process has the lock, or Redis has named the holder at this moment
    /// or later.
    pub(super) fn knows_holder(&self, since: Moment, now: Moment) -> bool {
        let hold = self.front.as_ref().and_then(|front| front.hold.as_ref());
        hold.is_some_and(|hold| !hold.is_over(now))
            || self.seen.as_ref().is_some_and(|(_, at)| since <= *at)
    }

    /// The holder that the queue waits for, as far as this process knows.
    pub(super) fn holder(&self, now: Moment) -> Option<Holder> {
        let front = self.front.as_ref()?;
        let hold = front.hold.as_ref().filter(|hold| !hold.is_over(now));
        hold.map(|hold| hold.as_holder(now)).or_else(|| {
            let (seen, at) = self.seen.as_ref()?;
            Some(seen.after(now.since(*at)))
        })
    }

    /// Ends a turn and gives the next one to the waiter to which it was handed off. False if that
    /// waiter has given up.
    pub(super) fn pass_turn(
        &mut self,
        number: u64,
        to: &Arc<Waiter>,
        next: u64,
        handed: HandoffOutcome,
        now: Moment,
    ) -> bool {
        if !self.is_next(Some(to)) || self.waiting.is_empty() {
            return false;
        }
        let Some(last) = self.front.take_if(|front| front.number == number) else {
            return false;
        };
        let to = self.waiting.pop_front();
        self.last_was_short = now.since(last.started) < AWAKE;
        let front = self.new_front(next, to, last.budget.handed_off(), now);
        self.front = Some(Front {
            handed: Some(handed),
            ..front
        });
        true
    }

    /// True while the release of the thread in front is on its way, with the claim of the next one.
    pub(super) fn is_handing_off(&self) -> bool {
        self.front.as_ref().is_some_and(|front| front.handing_off)
    }

    /// No thread has the turn or waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.front.is_none() && self.waiting.is_empty()
    }

    /// No thread wants the key any more. Only the [`Past`] counts for the next one that does.
    pub(super) fn end(&mut self) {
        self.last_was_short = false;
        self.silence = None;
        self.seen = None;
        self.without_expiry = WithoutExpiry::default();
    }

    /// Ends a turn. False if it was passed over, so that another thread has the turn now.
    pub(super) fn end_turn(&mut self, number: u64, now: Moment) -> bool {
        let Some(last) = self.front.as_ref().filter(|front| front.number == number) else {
            return false;
        };
        self.last_was_short = now.since(last.started) < AWAKE;
        self.past.budget = Some(last.budget.released(now));
        self.past.contention.ended(now);
        self.front = None;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::LostCause;
    use crate::base::owner::Owner;
    use crate::hold::AcquiredAt;
    use crate::hold::Hold;
    use crate::hold::tests::{sample, sample_of};
    use crate::waiting::past::{LONGEST, RARELY, SHORTEST};
    use crate::waiting::patience::tests::until;
    use crate::waiting::queues::tests::claim;

    const LIMIT: Duration = Duration::from_millis(20);

    /// A limit so short that any hold reaches it.
    const AT_ONCE: Duration = Duration::from_nanos(1);
    const GONE: HandoffOutcome = HandoffOutcome::Unanswered { sent: Moment::PAST };
    const SOON: Moment = Moment::from_nanos(2_000_000_000);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    fn waiter() -> Arc<Waiter> {
        let thread = Owner::new("host".into(), 1, 2);
        Arc::new(Waiter::new(&thread, &until(SOON), Some(claim()), None))
    }

    fn hold() -> Arc<Hold> {
        Arc::new(sample("key", Duration::from_secs(30), at(0)))
    }

    /// A queue in which the first turn has started, and `N` threads wait.
    fn queue<const N: usize>() -> (WaitQueue, [Arc<Waiter>; N]) {
        let mut queue = WaitQueue::default();
        queue.start_turn(1, None, false, at(0)).expect("it is free");
        let waiters = [(); N].map(|()| waiter());
        queue.waiting.extend(waiters.iter().cloned());
        (queue, waiters)
    }

    #[test]
    fn a_claim_that_was_sent_for_a_waiter_is_handed_off_to_it() {
        let (mut queue, [second, third]) = queue();
        let next = queue
            .in_front(1)
            .unwrap()
            .begin_release(LIMIT, at(0), at(1))
            .expect("a thread waits");
        assert!(Arc::ptr_eq(&next, &second));
        assert!(queue.pass_turn(1, &second, 2, GONE, at(0)));
        assert!(
            queue.start_turn(3, Some(&third), false, at(0)).is_none(),
            "it is the second's turn"
        );
        assert!(queue.start_turn(3, None, false, at(0)).is_none());
        let start = queue.start_turn(3, Some(&second), false, at(0)).unwrap();
        assert_eq!((start.number, start.handed), (2, GONE));
        assert!(
            queue.start_turn(3, Some(&second), false, at(0)).is_none(),
            "once"
        );
        assert!(queue.end_turn(2, at(0)));
        let start = queue.start_turn(3, Some(&third), false, at(0)).unwrap();
        assert_eq!(
            start.handed,
            HandoffOutcome::NotTaken,
            "no claim was sent, so none is handed off"
        );
    }

    #[test]
    fn no_thread_takes_the_turn_while_it_is_handed_off() {
        let (mut queue, [second]) = queue();
        let hold = hold();
        queue.in_front(1).unwrap().holds(&hold, at(0));
        queue
            .in_front(1)
            .unwrap()
            .begin_release(LIMIT, at(0), at(1))
            .unwrap();
        hold.mark_released();
        assert!(
            queue.start_turn(2, Some(&second), false, at(0)).is_none(),
            "though the hold is over"
        );
        assert!(queue.pass_turn(1, &second, 2, GONE, at(0)));
        assert_eq!(
            queue
                .start_turn(2, Some(&second), false, at(0))
                .unwrap()
                .handed,
            GONE
        );
    }

    #[test]
    fn a_hold_that_is_lost_is_not_named_as_the_holder() {
        let (mut queue, [_]) = queue();
        let hold = hold();
        queue.in_front(1).unwrap().holds(&hold, at(0));
        assert_eq!(*queue.holder(at(1)).unwrap().raw, *hold.token);
        hold.lose(LostCause::Deleted);
        assert_eq!(queue.holder(at(1)).map(|holder| holder.raw.clone()), None);
    }

    #[test]
    fn no_claim_is_sent_for_a_waiter_that_may_give_up_before_the_answer() {
        let (mut queue, [second, third]) = queue();
        assert!(
            queue
                .in_front(1)
                .unwrap()
                .begin_release(LIMIT, at(0), SOON)
                .is_none()
        );
        queue
            .in_front(1)
            .unwrap()
            .begin_release(LIMIT, at(0), at(1))
            .unwrap();
        queue.leave(&second);
        assert!(
            !queue.pass_turn(1, &second, 2, GONE, at(0)),
            "the waiter has gone since"
        );
        assert!(queue.end_turn(1, at(0)));
        assert!(queue.start_turn(2, Some(&third), false, at(0)).is_some());
    }

    /// The front finds that another process has the lock.
    fn sees(queue: &mut WaitQueue, number: u64) {
        queue.in_front(number).unwrap().saw(
            &Holder::new(b"theirs", None),
            &WithoutExpiry::default(),
            Duration::from_micros(50),
            at(0),
        );
    }

    #[test]
    fn when_the_budget_is_spent_the_lock_is_left_to_known_rivals() {
        let (mut queue, waiters) = queue::<6>();
        sees(&mut queue, 1);
        queue.in_front(1).unwrap().holds(&hold(), at(0));
        let taken = HandoffOutcome::Taken {
            sent: at(0),
            answered: at(0),
            fence: None,
        };
        for number in 1..3 {
            let now = at(9 * number);
            let next = queue
                .in_front(number)
                .unwrap()
                .begin_release(LIMIT, now, now)
                .unwrap();
            assert!(queue.pass_turn(number, &next, number + 1, taken, now));
            assert_eq!(
                queue.start_turn(9, Some(&next), false, now).unwrap().nap,
                Duration::ZERO
            );
            queue.in_front(number + 1).unwrap().holds(&hold(), now);
        }
        assert!(
            queue
                .in_front(3)
                .unwrap()
                .begin_release(LIMIT, at(20), at(21))
                .is_none(),
            "20 ms with the lock"
        );
        assert!(queue.end_turn(3, at(20)));
        assert!(
            queue
                .start_turn(4, Some(&waiters[2]), false, at(20))
                .unwrap()
                .nap
                >= 3 * SHORTEST
        );
        assert!(
            queue
                .in_front(4)
                .unwrap()
                .begin_release(LIMIT, at(20), at(21))
                .is_some(),
            "there is a new budget"
        );
    }

    #[test]
    fn a_process_without_known_rivals_leaves_the_lock_free_for_a_waiter_that_is_woken() {
        let (mut queue, _) = queue::<0>();
        queue.in_front(1).unwrap().holds(
            &Arc::new(sample_of(AcquiredAt {
                sent: at(0),
                answered: at(2),
            })),
            at(2),
        );
        queue
            .in_front(1)
            .unwrap()
            .begin_release(AT_ONCE, at(8), at(8));
        assert!(queue.end_turn(1, at(8)));
        let nap = queue.start_turn(2, None, false, at(8)).unwrap().nap;
        assert!(SHORTEST <= nap && nap <= SHORTEST * 4 / 3, "{nap:?}");
    }

    #[test]
    fn turns_without_a_hand_off_share_a_budget_unless_others_had_the_lock_in_between() {
        for others in [false, true] {
            let (mut queue, [second, _]) = queue();
            queue.in_front(1).unwrap().holds(&hold(), at(0));
            queue
                .in_front(1)
                .unwrap()
                .begin_release(LIMIT, at(12), SOON);
            assert!(queue.end_turn(1, at(12)));
            queue.start_turn(2, Some(&second), false, at(12)).unwrap();
            if others {
                sees(&mut queue, 2);
            }
            queue.in_front(2).unwrap().holds(&hold(), at(13));
            assert_eq!(
                queue
                    .in_front(2)
                    .unwrap()
                    .begin_release(LIMIT, at(21), at(22))
                    .is_some(),
                others,
                "20 ms with the lock"
            );
        }
    }

    #[test]
    fn a_turn_that_was_handed_off_says_nothing_about_rivals() {
        let (mut queue, [second, third]) = queue();
        // More sightings than are forgotten when the lock is found free at once.
        for number in 0..6 {
            let holder = Holder::new(format!("theirs {number}").as_bytes(), None);
            queue.in_front(1).unwrap().saw(
                &holder,
                &WithoutExpiry::default(),
                Duration::from_micros(50),
                at(0),
            );
        }
        assert!(queue.end_turn(1, at(0)));
        queue.start_turn(2, Some(&second), false, at(0)).unwrap();
        queue.in_front(2).unwrap().holds(&hold(), at(0));
        queue
            .in_front(2)
            .unwrap()
            .begin_release(LIMIT, at(0), at(1))
            .unwrap();
        assert!(queue.pass_turn(
            2,
            &third,
            3,
            HandoffOutcome::Taken {
                sent: at(0),
                answered: at(0),
                fence: None
            },
            at(0)
        ));
        queue.start_turn(9, Some(&third), false, at(0)).unwrap();
        assert!(queue.past.contention.contention() > 0.0);
        queue.in_front(3).unwrap().holds(&hold(), at(0));
        assert!(
            queue.past.contention.contention() > 0.0,
            "no other process could have had it"
        );
    }

    #[test]
    fn a_process_that_hands_nothing_off_pauses_after_each_turn() {
        let (mut queue, [second]) = queue();
        queue.in_front(1).unwrap().holds(
            &Arc::new(sample_of(AcquiredAt {
                sent: at(0),
                answered: at(2),
            })),
            at(2),
        );
        assert!(
            queue
                .in_front(1)
                .unwrap()
                .begin_release(Duration::ZERO, at(30), at(31))
                .is_none()
        );
        assert!(queue.end_turn(1, at(30)));
        let start = queue.start_turn(2, Some(&second), false, at(30)).unwrap();
        assert!(start.nap >= SHORTEST, "{:?}", start.nap);
    }

    #[test]
    fn rivals_are_forgotten_when_the_key_was_left_alone_for_long() {
        for (millis, remembers) in [(1000, true), (1001, false)] {
            let (mut queue, [second]) = queue();
            for process in 1..=2 {
                let holder =
                    Holder::new(format!("host-{process}-1-{process:032x}").as_bytes(), None);
                queue.in_front(1).unwrap().saw(
                    &holder,
                    &WithoutExpiry::default(),
                    Duration::from_micros(50),
                    at(0),
                );
            }
            assert!(queue.end_turn(1, at(0)));
            let nap = queue
                .start_turn(2, Some(&second), false, at(millis))
                .unwrap()
                .nap;
            assert_eq!(
                nap > Duration::ZERO,
                remembers,
                "after {millis} ms: {nap:?}"
            );
        }
    }

    #[test]
    fn the_next_queue_of_a_key_goes_on_where_the_last_ended() {
        let (mut queue, _) = queue::<0>();
        sees(&mut queue, 1);
        queue.in_front(1).unwrap().holds(&hold(), at(0));
        queue
            .in_front(1)
            .unwrap()
            .begin_release(AT_ONCE, at(1), at(1));
        assert!(queue.end_turn(1, at(1)));
        queue.end();
        assert!(
            queue.start_turn(2, None, false, at(1)).unwrap().nap >= SHORTEST,
            "the budget was spent"
        );
    }

    /// What was found out about Redis may be old by the time that a thread wants the key again.
    #[test]
    fn a_queue_that_has_ended_forgets_whether_redis_answered() {
        let (mut queue, _) = queue::<0>();
        queue.in_front(1).unwrap().asks(at(0));
        queue.in_front(1).unwrap().failed(Some(&Silence {
            cause: Some("no answer".into()),
            ..Silence::new(at(0))
        }));
        assert!(queue.end_turn(1, at(1)) && queue.is_idle());
        queue.end();
        let start = queue.start_turn(2, None, false, at(5000)).unwrap();
        assert!(start.attempts.silence.is_none() && !queue.front.as_ref().unwrap().ending);
    }

    #[test]
    fn only_the_first_waiter_stays_awake_for_the_end_of_a_turn() {
        let (mut queue, [second, third]) = queue();
        assert_eq!(queue.ending(&second), None);
        queue
            .in_front(1)
            .unwrap()
            .begin_release(LIMIT, at(0), at(1))
            .unwrap();
        assert_eq!(
            (queue.ending(&second), queue.ending(&third)),
            (Some(1), None)
        );
        assert!(queue.end_turn(1, at(0)));
        queue.start_turn(2, Some(&second), false, at(0)).unwrap();
        assert_eq!(queue.ending(&third), Some(2), "the last turn was short");
        assert!(queue.end_turn(2, at(1)));
        queue.start_turn(3, Some(&third), false, at(1)).unwrap();
        assert!(
            !queue.front.as_ref().unwrap().ending,
            "the last turn was long"
        );
    }

    /// When the silence began, in milliseconds.
    fn silent_since(queue: &WaitQueue) -> Option<u64> {
        queue
            .silence
            .as_ref()
            .map(|silence| silence.since.as_nanos() / 1_000_000)
    }

    #[test]
    fn the_next_turn_goes_on_with_a_silence_until_redis_answers() {
        let (mut queue, [second, third]) = queue();
        assert_eq!(silent_since(&queue), None);
        queue.in_front(1).unwrap().asks(at(0));
        assert_eq!(
            silent_since(&queue),
            Some(0),
            "from before the first attempt"
        );
        queue.in_front(1).unwrap().failed(Some(&Silence {
            cause: Some("no answer".into()),
            ..Silence::new(at(0))
        }));
        assert!(queue.end_turn(1, at(50)));
        let start = queue.start_turn(2, Some(&second), false, at(50)).unwrap();
        assert_eq!(silent_since(&queue), Some(0), "it is the same outage");
        assert!(start.attempts.silence.is_some());
        assert!(queue.in_front(1).is_none(), "that turn is over");
        queue.in_front(2).unwrap().answered();
        assert_eq!(silent_since(&queue), None);
        queue.in_front(2).unwrap().asks(at(60));
        assert_eq!(silent_since(&queue), Some(60));
        queue.in_front(2).unwrap().failed(None);
        assert!(queue.end_turn(2, at(70)));
        let start = queue.start_turn(3, Some(&third), false, at(80)).unwrap();
        assert!(
            start.attempts.silence.is_none(),
            "an attempt that was cut short says nothing about Redis"
        );
    }

    #[test]
    fn a_silence_begins_when_the_front_asks_and_not_while_it_pauses() {
        let (mut queue, [second]) = queue();
        sees(&mut queue, 1);
        queue.in_front(1).unwrap().holds(&hold(), at(0));
        queue
            .in_front(1)
            .unwrap()
            .begin_release(AT_ONCE, at(1), at(1));
        assert!(queue.end_turn(1, at(1)));
        assert!(
            queue
                .start_turn(2, Some(&second), false, at(1))
                .unwrap()
                .nap
                >= SHORTEST
        );
        assert_eq!(silent_since(&queue), None);
        queue.in_front(2).unwrap().asks(at(20));
        queue.in_front(2).unwrap().asks(at(30));
        assert_eq!(silent_since(&queue), Some(20));
    }

    /// A queue whose budget was spent after `millis` with the lock.
    fn after_turns_of(millis: u64) -> WaitQueue {
        let (mut queue, _) = queue::<0>();
        queue.in_front(1).unwrap().holds(
            &Arc::new(sample_of(AcquiredAt {
                sent: at(0),
                answered: at(0),
            })),
            at(0),
        );
        queue
            .in_front(1)
            .unwrap()
            .begin_release(Duration::from_millis(5), at(millis), at(millis));
        assert!(queue.end_turn(1, at(millis)));
        queue
    }

    #[test]
    fn there_is_no_pause_for_a_lock_that_was_free_already() {
        for (free, pauses) in [(0, true), (1, false)] {
            let nap = after_turns_of(6)
                .start_turn(2, None, false, at(6 + free))
                .unwrap()
                .nap;
            assert_eq!(!nap.is_zero(), pauses, "{nap:?}");
        }
    }

    #[test]
    fn a_thread_that_asks_once_leaves_the_pause_to_the_next() {
        for once in [false, true] {
            let mut queue = after_turns_of(6);
            queue.start_turn(2, None, once, at(6)).unwrap();
            assert!(queue.end_turn(2, at(6)));
            assert_eq!(
                !queue
                    .start_turn(3, None, false, at(6))
                    .unwrap()
                    .nap
                    .is_zero(),
                once
            );
        }
    }

    #[test]
    fn now_and_then_a_pause_is_long_enough_for_waiters_that_are_far_away() {
        let mut queue = after_turns_of(6);
        let naps = (2..=2 * u64::from(RARELY) + 1).map(|number| {
            let (begun, over) = (at(4 + number), at(5 + number));
            let nap = queue.start_turn(number, None, false, begun).unwrap().nap;
            queue.in_front(number).unwrap().holds(&hold(), begun);
            queue
                .in_front(number)
                .unwrap()
                .begin_release(AT_ONCE, over, over);
            assert!(queue.end_turn(number, over));
            nap
        });
        assert_eq!(naps.filter(|nap| *nap >= LONGEST).count(), 2);
    }

    #[test]
    fn a_failed_hand_off_does_not_count_once_another_process_was_seen() {
        let (mut queue, [second, _]) = queue();
        queue.in_front(1).unwrap().holds(&hold(), at(0));
        queue
            .in_front(1)
            .unwrap()
            .begin_release(LIMIT, at(0), at(1))
            .unwrap();
        assert!(queue.pass_turn(1, &second, 2, GONE, at(0)));
        queue.start_turn(2, Some(&second), false, at(0)).unwrap();
        sees(&mut queue, 2);
        queue.in_front(2).unwrap().holds(&hold(), at(500));
        assert!(
            queue
                .in_front(2)
                .unwrap()
                .begin_release(LIMIT, at(501), at(502))
                .is_some(),
            "another process had the lock"
        );
    }

    #[test]
    fn the_time_of_a_release_is_not_free_time_if_its_turn_is_passed_over() {
        let (mut queue, [second, _]) = queue();
        let hold = hold();
        queue.in_front(1).unwrap().holds(&hold, at(0));
        queue
            .in_front(1)
            .unwrap()
            .begin_release(AT_ONCE, at(6), at(7));
        hold.mark_released();
        assert!(
            !queue
                .start_turn(2, Some(&second), false, at(50))
                .unwrap()
                .nap
                .is_zero(),
            "the release took 44 ms"
        );
    }

    #[test]
    fn a_pause_is_a_part_of_the_time_for_which_the_process_had_the_lock() {
        for (held, micros) in [(48, 2000), (60, 2500), (9000, 2500)] {
            let (least, nap) = (
                Duration::from_micros(micros),
                after_turns_of(held)
                    .start_turn(2, None, false, at(held))
                    .unwrap()
                    .nap,
            );
            assert!(least <= nap && nap <= least * 4 / 3, "{held} ms: {nap:?}");
        }
    }

    #[test]
    fn a_hold_that_is_seen_again_is_one_sighting() {
        let (mut queue, _) = queue::<0>();
        for number in [1, 1, 1, 2, 3, 4] {
            let token = format!("host-{number}-1-{number:032x}");
            queue.in_front(1).unwrap().saw(
                &Holder::new(token.as_bytes(), None),
                &WithoutExpiry::default(),
                Duration::from_micros(50),
                at(0),
            );
        }
        assert!(
            queue.past.contention.contention() > 10.0,
            "four of four were different"
        );
    }

    #[test]
    fn a_hand_off_without_an_answer_is_part_of_the_silence() {
        let spoilt = HandoffOutcome::Unanswered { sent: at(30) };
        let taken = HandoffOutcome::Taken {
            sent: at(30),
            answered: at(31),
            fence: None,
        };
        for (handed, since) in [(spoilt, Some(30)), (taken, None)] {
            let (mut queue, [second]) = queue();
            queue.in_front(1).unwrap().answered();
            queue
                .in_front(1)
                .unwrap()
                .begin_release(LIMIT, at(10), at(11))
                .unwrap();
            assert!(queue.pass_turn(1, &second, 2, handed, at(40)));
            let start = queue.start_turn(3, Some(&second), false, at(50)).unwrap();
            assert_eq!(silent_since(&queue), since, "{handed:?}");
            assert_eq!(start.attempts.silence.is_some(), since.is_some());
        }
    }
}
