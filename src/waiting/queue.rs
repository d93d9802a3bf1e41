//! The queue of one key in this process: who has the turn, who is next, what one turn hands off to
//! the next, and when the process leaves the lock free for others. It has no clock, threads or
//! Redis.

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
    /// The state that the last turn left to the next.
    pub(super) past: Past,
    /// The silence of Redis while the front has no answer. The next turn inherits it, so that an
    /// outage does not start afresh with each thread.
    pub(super) silence: Option<Silence>,
    /// The holder that Redis last named, in another process or through another manager, and when.
    /// `None` once a thread of this queue has had the lock.
    seen: Option<(Holder, Moment)>,
    /// The facts known about a key that never expires.
    without_expiry: WithoutExpiry,
}

/// The state that a thread finds when its turn starts.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    pub(crate) number: u64,
    pub(crate) handed: HandoffOutcome,
    /// How long to leave the lock to other processes before asking.
    pub(crate) nap: Duration,
    /// Other processes have been seen lately, so the lock is probably busy.
    pub(crate) crowded: bool,
    /// The findings of earlier turns' threads about Redis.
    pub(crate) attempts: Attempts,
    /// Their findings about the key.
    pub(crate) without_expiry: WithoutExpiry,
}

impl Start {
    /// The start of a thread that asks without a turn.
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
    /// Starts the turn of `waiter`, if it has come. (`None`: a thread that is not in the queue.)
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
            // The release and the claim after it got no answer, so the silence began when they were
            // sent.
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

    /// The actions that the thread with this turn may do. `None` if its turn was passed over.
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

    /// The turn that is about to end, if this waiter is next.
    pub(super) fn ending(&self, waiter: &Arc<Waiter>) -> Option<u64> {
        let front = self
            .front
            .as_ref()
            .filter(|front| front.ending && self.is_next(Some(waiter)));
        front.map(|front| front.number)
    }

    /// When a waiter that nothing wakes has to look again.
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

    /// The threads that wait, in front and behind. (A thread that tries once does not wait for the
    /// lock, unless it sleeps in front.)
    pub(super) fn waiters(&self) -> impl Iterator<Item = &Arc<Waiter>> {
        let in_front = self.front.iter().filter_map(|front| front.waiter.as_ref());
        in_front.chain(self.waiting.iter().filter(|waiter| !waiter.patience.once))
    }

    /// The holder that Redis named, in another process or through another manager.
    pub(super) fn seen(&self) -> Option<&Holder> {
        self.seen.as_ref().map(|(holder, _)| holder)
    }

    /// True if a thread of this process has the lock, or if Redis has named the holder at `since`
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

    /// True while the release by the thread in front is on its way, with the next thread's claim.
    pub(super) fn is_handing_off(&self) -> bool {
        self.front.as_ref().is_some_and(|front| front.handing_off)
    }

    /// No thread has the turn or waits for it.
    pub(super) fn is_idle(&self) -> bool {
        self.front.is_none() && self.waiting.is_empty()
    }

    /// No thread wants the key any more. Only the [`Past`] counts for the next thread that does.
    pub(super) fn end(&mut self) {
        self.last_was_short = false;
        self.silence = None;
        self.seen = None;
        self.without_expiry = WithoutExpiry::default();
    }

    /// Ends a turn. False if it was passed over, so that another thread may have the turn now.
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

    /// The front begins to release the lock. Returns the waiter to hand it to.
    fn releases(
        queue: &mut WaitQueue,
        number: u64,
        limit: Duration,
        now: u64,
    ) -> Option<Arc<Waiter>> {
        let mut front = queue.in_front(number).unwrap();
        front.begin_release(limit, at(now), at(now + 1))
    }

    fn starts(queue: &mut WaitQueue, number: u64, waiter: Option<&Arc<Waiter>>, now: u64) -> Start {
        let start = queue.start_turn(number, waiter, false, at(now));
        start.expect("it is its turn")
    }

    fn holds(queue: &mut WaitQueue, number: u64, now: u64) {
        queue.in_front(number).unwrap().holds(&hold(), at(now));
    }

    /// The front finds that these other processes have the lock, one after another.
    fn sees(queue: &mut WaitQueue, number: u64, others: &[u32]) {
        for other in others {
            let token = format!("host-{other}-1-{other:032x}");
            let holder = Holder::new(token.as_bytes(), None);
            let took = Duration::from_micros(50);
            let mut front = queue.in_front(number).unwrap();
            front.saw(&holder, &WithoutExpiry::default(), took, at(0));
        }
    }

    fn taken(sent: u64) -> HandoffOutcome {
        let (sent, answered) = (at(sent), at(sent));
        HandoffOutcome::Taken {
            sent,
            answered,
            fence: None,
        }
    }

    #[test]
    fn no_claim_is_sent_for_a_waiter_that_may_give_up_before_the_answer() {
        let (mut queue, [second]) = queue();
        let mut front = queue.in_front(1).unwrap();
        assert!(front.begin_release(LIMIT, at(0), SOON).is_none());
        assert!(releases(&mut queue, 1, LIMIT, 0).is_some_and(|it| Arc::ptr_eq(&it, &second)));
    }

    #[test]
    fn a_hold_that_is_lost_is_not_named_as_the_holder() {
        let (mut queue, [_]) = queue();
        let hold = hold();
        queue.in_front(1).unwrap().holds(&hold, at(0));
        assert_eq!(*queue.holder(at(1)).unwrap().raw, *hold.token);
        hold.lose(LostCause::Deleted);
        assert!(queue.holder(at(1)).is_none());
    }

    #[test]
    fn when_the_budget_is_spent_the_lock_is_left_to_known_rivals() {
        let (mut queue, waiters) = queue::<6>();
        sees(&mut queue, 1, &[1]);
        holds(&mut queue, 1, 0);
        for number in 1..3 {
            let now = 9 * number;
            let next = releases(&mut queue, number, LIMIT, now).unwrap();
            assert!(queue.pass_turn(number, &next, number + 1, taken(0), at(now)));
            assert!(starts(&mut queue, 9, Some(&next), now).nap.is_zero());
            holds(&mut queue, number + 1, now);
        }
        assert!(
            releases(&mut queue, 3, LIMIT, 20).is_none(),
            "20 ms with the lock"
        );
        assert!(queue.end_turn(3, at(20)));
        assert!(starts(&mut queue, 4, Some(&waiters[2]), 20).nap >= 3 * SHORTEST);
        assert!(
            releases(&mut queue, 4, LIMIT, 20).is_some(),
            "there is a new budget"
        );
    }

    #[test]
    fn turns_without_a_hand_off_share_a_budget_unless_others_had_the_lock_in_between() {
        for (others, failed_hand_off) in [(false, false), (true, false), (true, true)] {
            let (mut queue, [second, _]) = queue();
            holds(&mut queue, 1, 0);
            releases(&mut queue, 1, LIMIT, 12).unwrap();
            if failed_hand_off {
                assert!(queue.pass_turn(1, &second, 2, GONE, at(12)));
            } else {
                assert!(queue.end_turn(1, at(12)));
            }
            starts(&mut queue, 2, Some(&second), 12);
            sees(&mut queue, 2, if others { &[1] } else { &[] });
            holds(&mut queue, 2, 13);
            let is_handed_off = releases(&mut queue, 2, LIMIT, 21).is_some();
            assert_eq!(is_handed_off, others, "20 ms with the lock");
        }
    }

    #[test]
    fn a_turn_that_was_handed_off_says_nothing_about_rivals() {
        let (mut queue, [second, third]) = queue();
        // There are more sightings than are forgotten when the lock is found free at once, and one
        // process is seen again.
        sees(&mut queue, 1, &[1, 1, 1, 2, 3, 4, 5, 6]);
        assert!(
            queue.past.contention.contention() > 30.0,
            "six of six were different"
        );
        assert!(queue.end_turn(1, at(0)));
        starts(&mut queue, 2, Some(&second), 0);
        holds(&mut queue, 2, 0);
        releases(&mut queue, 2, LIMIT, 0).unwrap();
        assert!(queue.pass_turn(2, &third, 3, taken(0), at(0)));
        starts(&mut queue, 9, Some(&third), 0);
        let before = queue.past.contention.contention();
        holds(&mut queue, 3, 0);
        let after = queue.past.contention.contention();
        assert!(
            before > 0.0 && after >= before,
            "no other process could have had it"
        );
    }

    #[test]
    fn the_next_queue_of_a_key_goes_on_where_the_last_ended_but_forgets_whether_redis_answered() {
        let (mut queue, _) = queue::<0>();
        sees(&mut queue, 1, &[1]);
        holds(&mut queue, 1, 0);
        releases(&mut queue, 1, AT_ONCE, 1);
        queue
            .in_front(1)
            .unwrap()
            .failed(Some(&Silence::new(at(0))));
        assert!(queue.end_turn(1, at(1)) && queue.is_idle());
        queue.seen = Some((Holder::new(b"theirs", None), at(0)));
        queue.end();
        assert!(queue.seen().is_none());
        let start = starts(&mut queue, 2, None, 1);
        assert!(start.nap >= SHORTEST, "the budget was spent");
        assert!(start.attempts.silence.is_none() && !queue.front.as_ref().unwrap().ending);
    }

    #[test]
    fn only_the_first_waiter_stays_awake_for_the_end_of_a_turn() {
        let (mut queue, [second, third]) = queue();
        assert_eq!(queue.ending(&second), None);
        releases(&mut queue, 1, LIMIT, 0).unwrap();
        assert_eq!(
            (queue.ending(&second), queue.ending(&third)),
            (Some(1), None)
        );
        assert!(queue.end_turn(1, at(0)));
        starts(&mut queue, 2, Some(&second), 0);
        assert_eq!(queue.ending(&third), Some(2), "the last turn was short");
        assert!(queue.end_turn(2, at(1)));
        starts(&mut queue, 3, Some(&third), 1);
        assert!(
            !queue.front.as_ref().unwrap().ending,
            "the last turn was long"
        );
    }

    /// An action of the front.
    type Acts = fn(&mut InFront<'_>);

    #[test]
    fn the_next_turn_goes_on_with_a_silence_until_redis_answers() {
        let since = |queue: &WaitQueue| queue.silence.as_ref().map(|it| it.since);
        // The front's action, and when the silence began as the next thread sees it.
        let table: [(Acts, HandoffOutcome, Option<u64>); 6] = [
            (|_| (), HandoffOutcome::NotTaken, None),
            (
                |it| [20, 30].into_iter().for_each(|now| it.asks(at(now))),
                HandoffOutcome::NotTaken,
                Some(20),
            ),
            (
                |it| it.failed(Some(&Silence::new(at(10)))),
                HandoffOutcome::NotTaken,
                Some(10),
            ),
            // An attempt that was cut short says nothing about Redis.
            (|it| it.failed(None), HandoffOutcome::NotTaken, None),
            (
                |it| it.answered(),
                HandoffOutcome::Unanswered { sent: at(30) },
                Some(30),
            ),
            (|it| it.answered(), taken(30), None),
        ];
        for (number, (front, handed, silent)) in table.into_iter().enumerate() {
            let (mut queue, [second]) = queue();
            front(&mut queue.in_front(1).unwrap());
            if handed == HandoffOutcome::NotTaken {
                assert!(queue.end_turn(1, at(40)));
            } else {
                releases(&mut queue, 1, LIMIT, 40).unwrap();
                assert!(queue.pass_turn(1, &second, 2, handed, at(40)));
            }
            let start = starts(&mut queue, 2, Some(&second), 50);
            assert_eq!(since(&queue), silent.map(at), "row {number}");
            assert_eq!(
                start.attempts.silence.is_some(),
                silent.is_some(),
                "row {number}"
            );
            assert!(queue.in_front(1).is_none(), "that turn is over");
        }
    }

    /// A queue whose budget was spent after `millis` with the lock.
    fn after_turns_of(millis: u64) -> WaitQueue {
        let (mut queue, _) = queue::<0>();
        let (sent, answered) = (at(0), at(0));
        let hold = Arc::new(sample_of(AcquiredAt { sent, answered }));
        queue.in_front(1).unwrap().holds(&hold, answered);
        releases(&mut queue, 1, Duration::from_millis(5), millis);
        assert!(queue.end_turn(1, at(millis)));
        queue
    }

    #[test]
    fn a_pause_is_a_part_of_the_time_for_which_the_process_had_the_lock() {
        // How long it had the lock, how long the lock has been free since, and the least pause.
        for (held, free, micros) in [
            (6, 0, 250),
            (6, 1, 0),
            (48, 0, 2000),
            (60, 0, 2500),
            (9000, 0, 2500),
        ] {
            let least = Duration::from_micros(micros);
            let nap = starts(&mut after_turns_of(held), 2, None, held + free).nap;
            assert!(least <= nap && nap <= least * 4 / 3, "{held} ms: {nap:?}");
        }
    }

    #[test]
    fn a_thread_that_asks_once_leaves_the_pause_to_the_next() {
        for once in [false, true] {
            let mut queue = after_turns_of(6);
            queue.start_turn(2, None, once, at(6)).unwrap();
            assert!(queue.end_turn(2, at(6)));
            assert_eq!(!starts(&mut queue, 3, None, 6).nap.is_zero(), once);
        }
    }

    #[test]
    fn now_and_then_a_pause_is_long_enough_for_waiters_that_are_far_away() {
        let mut queue = after_turns_of(6);
        let naps = (2..=2 * u64::from(RARELY) + 1).map(|number| {
            let nap = starts(&mut queue, number, None, 4 + number).nap;
            holds(&mut queue, number, 4 + number);
            releases(&mut queue, number, AT_ONCE, 5 + number);
            assert!(queue.end_turn(number, at(5 + number)));
            nap
        });
        assert_eq!(naps.filter(|nap| *nap >= LONGEST).count(), 2);
    }

    #[test]
    fn the_time_of_a_release_is_not_free_time_if_its_turn_is_passed_over() {
        let (mut queue, [second, _]) = queue();
        let hold = hold();
        queue.in_front(1).unwrap().holds(&hold, at(0));
        releases(&mut queue, 1, AT_ONCE, 6);
        hold.mark_released();
        let nap = starts(&mut queue, 2, Some(&second), 50).nap;
        assert!(!nap.is_zero(), "the release took 44 ms");
    }
}
