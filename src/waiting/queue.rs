//! One key's line in this process: who has the turn, who is next, and what one hands on to the other.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::holder::Holder;
use crate::base::random::{between, fraction};
use crate::hold::Hold;
use crate::waiting::contention::Contention;
use crate::waiting::handoff::{HandoffBudget, HandoffOutcome};
use crate::waiting::patience::{Attempts, Silence};
use crate::waiting::waiter::{AWAKE, Waiter};

/// How often the first in line looks whether the hold in front of it is over.
///
/// Only for holds that end without a release: a guard that was forgotten, a thread that hangs. Being told of
/// every hold would cost a switch of threads per turn.
const GLANCE: Duration = Duration::from_secs(1);

/// After a run, a process leaves the lock free for this part of the time for which it had it, so that
/// others come to it though Redis tells them of it only then; within the two bounds below.
const PART: u32 = 24;

/// Long enough for a waiter that Redis wakes up to come first, however far away Redis is: the way there
/// and back is as long for the process that pauses. Three times as long where the process knows of
/// rivals, which may poll, or be woken up late.
const SHORTEST: Duration = Duration::from_micros(250);

/// Long enough for most waiters that are farther from Redis than this process is. With less, such a
/// waiter would come too late after each hold, and never have the lock: so one pause of `RARELY` is
/// as long in any case.
const LONGEST: Duration = Duration::from_micros(2500);
const RARELY: u32 = 64;

/// One key's line. It exists as long as a thread has the turn or waits for it.
#[derive(Debug, Default)]
pub(super) struct WaitQueue {
    pub(super) front: Option<Front>,
    pub(super) waiting: VecDeque<Arc<Waiter>>,
    /// The last turn was short, so the next may be.
    brisk: bool,
    /// What the last turn left to the next.
    pub(super) past: Past,
    /// The front gets no answer from Redis. Passes on with the turn: an outage does not begin anew
    /// with each thread.
    pub(super) silence: Option<Silence>,
    /// Redis has answered a thread of this line.
    answered: bool,
}

/// What one turn leaves to the next, also where the line ends in between.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// The run that the last turn was part of.
    budget: Option<HandoffBudget>,
    /// That turn was the last of its run.
    budget_is_spent: bool,
    /// How many runs had their pause.
    pauses: u32,
    /// The other processes that want the lock.
    contention: Contention,
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
    budget: HandoffBudget,
    /// The turn was handed on to this waiter, who has not taken it up yet.
    handed: Option<(Arc<Waiter>, HandoffOutcome)>,
}

/// A turn that starts.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) number: u64,
    pub(crate) handed: HandoffOutcome,
    /// How long to leave the lock to other processes before it asks.
    pub(crate) nap: Duration,
    /// Other processes were seen lately: the lock is hardly free.
    pub(crate) crowded: bool,
    /// What the threads before it had found out of Redis.
    pub(crate) attempts: Attempts,
}

impl WaitQueue {
    /// Gives the turn to `waiter`, or to a thread that comes from outside, if it is theirs. One that
    /// asks `once` does not pause, and leaves the pause after a run to the next.
    pub(super) fn start_turn(
        &mut self,
        number: u64,
        waiter: Option<&Arc<Waiter>>,
        once: bool,
        now: Moment,
    ) -> Option<Start> {
        let handed_on = self.front.as_mut().and_then(|front| {
            let (_, handed) = front.handed.take_if(|(to, _)| waiter.is_some_and(|me| Arc::ptr_eq(to, me)))?;
            Some((front.number, handed))
        });
        if let Some((number, handed)) = handed_on {
            // The release was not answered, nor what went out with it.
            match handed {
                HandoffOutcome::Spoilt { sent } => self.asks(number, sent),
                HandoffOutcome::Nothing | HandoffOutcome::Taken { .. } => {}
            }
            let attempts = Attempts::after(self.silence.clone(), true);
            return Some(Start { number, handed, nap: Duration::ZERO, crowded: false, attempts });
        }
        if !self.is_open(now) || !self.is_next(waiter) {
            return None;
        }
        self.waiting.pop_front();
        // Of a turn that is passed by in the moment before it ends, too.
        let last = self.past.budget.take().or(self.front.as_ref().map(|front| front.budget.released(now)));
        let is_over = !once && mem::take(&mut self.past.budget_is_spent);
        let run = last.filter(|_| !is_over).map_or(HandoffBudget::new(now), |last| last.at(now));
        self.front = Some(self.front(number, run, now));
        let attempts = Attempts::after(self.silence.clone(), self.answered);
        let nap = self.first_nap(last.filter(|_| is_over), now);
        let crowded = self.past.contention.contention() > 0.0;
        Some(Start { number, handed: HandoffOutcome::Nothing, nap, crowded, attempts })
    }

    /// How long a turn that begins leaves the lock to other processes: after a run, for as long as
    /// they need, but for what it has been free already.
    fn first_nap(&mut self, over: Option<HandoffBudget>, now: Moment) -> Duration {
        let contention = &mut self.past.contention;
        contention.begin(now);
        let let_in = over.map_or(Duration::ZERO, |run| {
            self.past.pauses = self.past.pauses.wrapping_add(1);
            let is_rare = self.past.pauses.is_multiple_of(RARELY);
            let shortest = if contention.is_alone(now) { SHORTEST } else { 3 * SHORTEST };
            let least = if is_rare { LONGEST } else { (run.held() / PART).clamp(shortest, LONGEST) };
            between(least, least * 4 / 3).saturating_sub(run.free_for(now))
        });
        contention.nap(fraction).max(let_in)
    }

    /// How long the front leaves the lock to other processes before it looks again.
    pub(super) fn nap(&mut self, number: u64) -> Duration {
        if self.has_turn(number) { self.past.contention.nap(fraction) } else { Duration::ZERO }
    }

    /// The front has looked, which took so long, and another process has the lock.
    pub(super) fn saw(&mut self, number: u64, holder: &Holder, took: Duration, now: Moment) {
        if let Some(front) = self.front.as_mut().filter(|front| front.number == number) {
            self.past.contention.took(took);
            // (A hold that is seen again, since it was renewed, says nothing of others.)
            let before = front.seen.replace(holder.clone());
            if before.is_none_or(|before| before.raw() != holder.raw()) {
                front.budget = HandoffBudget::new(now); // Of a hand-on that came to nothing, too.
                self.past.contention.saw(holder, now);
            }
        }
    }

    /// The front has the lock now.
    pub(super) fn holds(&mut self, number: u64, hold: &Arc<Hold>, now: Moment) {
        if let Some(front) = self.front.as_mut().filter(|front| front.number == number) {
            front.hold = Some(Arc::clone(hold));
            front.seen = None;
            // (What was handed on was won by the first turn of the run.)
            if front.budget.acquired(now) {
                self.past.contention.took(hold.acquired.answered.since(hold.acquired.sent));
                if self.past.contention.won(now) {
                    front.budget = HandoffBudget::new(now);
                    front.budget.acquired(now);
                }
            }
        }
        self.answered(number);
    }

    fn front(&self, number: u64, budget: HandoffBudget, now: Moment) -> Front {
        Front {
            number,
            started: now,
            hold: None,
            seen: None,
            ending: self.brisk,
            handing: false,
            budget,
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

    /// The hold in front of the first in line, where Redis was not asked about it since it was
    /// taken.
    pub(super) fn unseen_hold(&self, waiter: &Arc<Waiter>) -> Option<Arc<Hold>> {
        let hold = self.front.as_ref().filter(|_| self.is_next(Some(waiter)))?.hold.as_ref()?;
        (hold.renewals() == 0).then(|| Arc::clone(hold))
    }

    /// Leaves the line: true where the waiter was the first in it.
    pub(super) fn step_out(&mut self, waiter: &Arc<Waiter>) -> bool {
        let was_first = self.is_next(Some(waiter));
        self.waiting.retain(|other| !Arc::ptr_eq(other, waiter));
        was_first
    }

    /// The front asks Redis. Noted before it does, since it may never be answered.
    pub(super) fn asks(&mut self, number: u64, now: Moment) {
        if self.has_turn(number) {
            let answered = self.answered;
            self.silence.get_or_insert_with(|| Silence::new(now, answered));
        }
    }

    /// Redis has answered the front.
    pub(super) fn answered(&mut self, number: u64) {
        if self.has_turn(number) {
            (self.silence, self.answered) = (None, true);
        }
    }

    /// An attempt of the front failed, and Redis has been silent for so long, if it is known.
    pub(super) fn failed(&mut self, number: u64, silence: Option<&Silence>) {
        if self.has_turn(number) {
            self.silence = silence.cloned();
        }
    }

    fn has_turn(&self, number: u64) -> bool {
        self.front.as_ref().is_some_and(|front| front.number == number)
    }

    /// Who has the lock in another process, or through another manager.
    pub(super) fn seen(&self) -> Option<&Holder> {
        self.front.as_ref()?.seen.as_ref()
    }

    /// Who keeps the line waiting, as far as this process knows.
    pub(super) fn holder(&self, now: Moment) -> Option<Holder> {
        let front = self.front.as_ref()?;
        let hold = front.hold.as_ref().filter(|hold| !hold.is_over(now));
        hold.map(|hold| hold.as_holder(now)).or_else(|| front.seen.clone())
    }

    /// The release of a turn begins: whose wish goes out behind it, if anybody's.
    ///
    /// Not where the run has been long enough; and only to one who will still be there when the answer comes, at `answer_by`
    /// at the latest.
    pub(super) fn hand_on(
        &mut self,
        number: u64,
        limit: Duration,
        now: Moment,
        answer_by: Moment,
    ) -> Option<Arc<Waiter>> {
        let front = self.front.as_mut().filter(|front| front.number == number)?;
        front.ending = true;
        front.budget.release_begins(now);
        // Where nothing is handed off, the process need not pause for it either.
        self.past.budget_is_spent = !limit.is_zero() && front.budget.is_spent(limit);
        let next = self.waiting.front()?;
        if limit.is_zero() || self.past.budget_is_spent || next.deadline <= answer_by {
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
        handed: HandoffOutcome,
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
        let front = self.front(next, last.budget.handed_off(), now);
        self.front = Some(Front { handed: Some((Arc::clone(to), handed)), ..front });
        true
    }

    /// A line that goes on where the last one of this key ended.
    pub(super) fn after(past: Past) -> WaitQueue {
        WaitQueue { past, ..WaitQueue::default() }
    }

    /// A turn is over; false where it had been passed by, and the turn is another thread's.
    pub(super) fn end_turn(&mut self, number: u64, now: Moment) -> bool {
        let Some(last) = self.front.take_if(|front| front.number == number) else {
            return false;
        };
        self.brisk = now.since(last.started) < AWAKE;
        self.past.budget = Some(last.budget.released(now));
        self.past.contention.ended(now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::LostCause;
    use crate::base::options::Lease;
    use crate::hold::AcquiredAt;
    use crate::hold::tests::{sample, sample_of};
    use crate::waiting::handoff::Claim;

    const LIMIT: Duration = Duration::from_millis(20);

    /// Any time with the lock is over it.
    const AT_ONCE: Duration = Duration::from_nanos(1);
    const GONE: HandoffOutcome = HandoffOutcome::Spoilt { sent: Moment::PAST };
    const SOON: Moment = Moment::from_nanos(2_000_000_000);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    fn waiter() -> Arc<Waiter> {
        let lease = Lease::new(Duration::from_secs(30));
        Arc::new(Waiter::new(Claim { token: "host-1-2-00".into(), lease }, SOON))
    }

    fn hold() -> Arc<Hold> {
        Arc::new(sample("key", Duration::from_secs(30), at(0)))
    }

    /// The first turn is taken, and so many wait.
    fn queue<const N: usize>() -> (WaitQueue, [Arc<Waiter>; N]) {
        let mut queue = WaitQueue::default();
        queue.start_turn(1, None, false, at(0)).expect("it is free");
        let waiters = [(); N].map(|()| waiter());
        queue.waiting.extend(waiters.iter().cloned());
        (queue, waiters)
    }

    #[test]
    fn what_was_sent_for_the_next_in_line_is_handed_to_him() {
        let (mut queue, [second, third]) = queue();
        let next = queue.hand_on(1, LIMIT, at(0), at(1)).expect("somebody waits");
        assert!(Arc::ptr_eq(&next, &second));
        assert!(queue.pass_on(1, &second, 2, GONE, at(0)));
        assert!(queue.start_turn(3, Some(&third), false, at(0)).is_none(), "it is the second's turn");
        assert!(queue.start_turn(3, None, false, at(0)).is_none());
        let start = queue.start_turn(3, Some(&second), false, at(0)).unwrap();
        assert_eq!((start.number, start.handed), (2, GONE));
        assert!(queue.start_turn(3, Some(&second), false, at(0)).is_none(), "once");
        assert!(queue.end_turn(2, at(0)));
        let start = queue.start_turn(3, Some(&third), false, at(0)).unwrap();
        assert_eq!(start.handed, HandoffOutcome::Nothing, "a turn that ends alone hands nothing on");
    }

    #[test]
    fn nobody_takes_the_turn_while_it_is_handed_on() {
        let (mut queue, [second]) = queue();
        let hold = hold();
        queue.holds(1, &hold, at(0));
        queue.hand_on(1, LIMIT, at(0), at(1)).unwrap();
        hold.mark_released();
        assert!(queue.start_turn(2, Some(&second), false, at(0)).is_none(), "though the hold is over");
        assert!(queue.pass_on(1, &second, 2, GONE, at(0)));
        assert_eq!(queue.start_turn(2, Some(&second), false, at(0)).unwrap().handed, GONE);
    }

    #[test]
    fn a_hold_that_is_lost_is_not_named_as_what_keeps_the_line_waiting() {
        let (mut queue, [_]) = queue();
        let hold = hold();
        queue.holds(1, &hold, at(0));
        assert_eq!(queue.holder(at(1)).unwrap().raw(), hold.token);
        hold.lose(LostCause::Deleted);
        assert_eq!(queue.holder(at(1)).map(|holder| holder.raw().to_owned()), None);
    }

    #[test]
    fn nothing_is_sent_for_whoever_may_be_gone_before_the_answer_comes() {
        let (mut queue, [second, third]) = queue();
        assert!(queue.hand_on(1, LIMIT, at(0), SOON).is_none());
        queue.hand_on(1, LIMIT, at(0), at(1)).unwrap();
        queue.step_out(&second);
        assert!(!queue.pass_on(1, &second, 2, GONE, at(0)), "it has gone all the same");
        assert!(queue.end_turn(1, at(0)));
        assert!(queue.start_turn(2, Some(&third), false, at(0)).is_some());
    }

    /// A look of the front finds another process there.
    fn sees(queue: &mut WaitQueue, number: u64) {
        queue.saw(number, &Holder::new(b"theirs", None), Duration::from_micros(50), at(0));
    }

    #[test]
    fn a_run_ends_after_so_much_time_and_the_lock_is_left_to_known_rivals() {
        let (mut queue, waiters) = queue::<6>();
        sees(&mut queue, 1);
        queue.holds(1, &hold(), at(0));
        let taken = HandoffOutcome::Taken { sent: at(0), answered: at(0) };
        for number in 1..3 {
            let now = at(9 * number);
            let next = queue.hand_on(number, LIMIT, now, now).unwrap();
            assert!(queue.pass_on(number, &next, number + 1, taken, now));
            assert_eq!(queue.start_turn(9, Some(&next), false, now).unwrap().nap, Duration::ZERO);
            queue.holds(number + 1, &hold(), now);
        }
        assert!(queue.hand_on(3, LIMIT, at(20), at(21)).is_none(), "20 ms with the lock");
        assert!(queue.end_turn(3, at(20)));
        assert!(queue.start_turn(4, Some(&waiters[2]), false, at(20)).unwrap().nap >= 3 * SHORTEST);
        assert!(queue.hand_on(4, LIMIT, at(20), at(21)).is_some(), "a new run has begun");
    }

    #[test]
    fn a_process_that_knows_of_no_rival_leaves_the_lock_free_for_a_waiter_that_is_woken() {
        let (mut queue, _) = queue::<0>();
        queue.holds(1, &Arc::new(sample_of(AcquiredAt { sent: at(0), answered: at(2) })), at(2));
        queue.hand_on(1, AT_ONCE, at(8), at(8));
        assert!(queue.end_turn(1, at(8)));
        let nap = queue.start_turn(2, None, false, at(8)).unwrap().nap;
        assert!(SHORTEST <= nap && nap <= SHORTEST * 4 / 3, "{nap:?}");
    }

    #[test]
    fn turns_that_are_not_handed_on_are_part_of_a_run_unless_others_had_the_lock_in_between() {
        for others in [false, true] {
            let (mut queue, [second, _]) = queue();
            queue.holds(1, &hold(), at(0));
            queue.hand_on(1, LIMIT, at(12), SOON);
            assert!(queue.end_turn(1, at(12)));
            queue.start_turn(2, Some(&second), false, at(12)).unwrap();
            if others {
                sees(&mut queue, 2);
            }
            queue.holds(2, &hold(), at(13));
            assert_eq!(queue.hand_on(2, LIMIT, at(21), at(22)).is_some(), others, "20 ms with the lock");
        }
    }

    #[test]
    fn a_turn_that_is_handed_on_says_nothing_of_rivals() {
        let (mut queue, [second, third]) = queue();
        // More than are forgotten at one win.
        for number in 0..6 {
            let holder = Holder::new(format!("theirs {number}").as_bytes(), None);
            queue.saw(1, &holder, Duration::from_micros(50), at(0));
        }
        assert!(queue.end_turn(1, at(0)));
        queue.start_turn(2, Some(&second), false, at(0)).unwrap();
        queue.holds(2, &hold(), at(0));
        queue.hand_on(2, LIMIT, at(0), at(1)).unwrap();
        assert!(queue.pass_on(2, &third, 3, HandoffOutcome::Taken { sent: at(0), answered: at(0) }, at(0)));
        queue.start_turn(9, Some(&third), false, at(0)).unwrap();
        assert!(queue.past.contention.contention() > 0.0);
        queue.holds(3, &hold(), at(0));
        assert!(queue.past.contention.contention() > 0.0, "nobody else could have had it");
    }

    #[test]
    fn where_nothing_is_handed_on_no_run_ends_with_a_pause() {
        let (mut queue, [second]) = queue();
        queue.holds(1, &Arc::new(sample_of(AcquiredAt { sent: at(0), answered: at(2) })), at(2));
        assert!(queue.hand_on(1, Duration::ZERO, at(30), at(31)).is_none());
        assert!(queue.end_turn(1, at(30)));
        assert_eq!(queue.start_turn(2, Some(&second), false, at(30)).unwrap().nap, Duration::ZERO);
    }

    #[test]
    fn rivals_of_a_key_that_was_left_alone_for_long_are_forgotten() {
        for (millis, remembers) in [(1000, true), (1001, false)] {
            let (mut queue, [second]) = queue();
            for process in 1..=2 {
                let holder = Holder::new(format!("host-{process}-1-{process:032x}").as_bytes(), None);
                queue.saw(1, &holder, Duration::from_micros(50), at(0));
            }
            assert!(queue.end_turn(1, at(0)));
            let nap = queue.start_turn(2, Some(&second), false, at(millis)).unwrap().nap;
            assert_eq!(nap > Duration::ZERO, remembers, "after {millis} ms: {nap:?}");
        }
    }

    #[test]
    fn what_is_left_of_a_line_is_taken_up_by_the_next_of_its_key() {
        let (mut queue, _) = queue::<0>();
        sees(&mut queue, 1);
        queue.holds(1, &hold(), at(0));
        queue.hand_on(1, AT_ONCE, at(1), at(1));
        assert!(queue.end_turn(1, at(1)));
        let mut next = WaitQueue::after(queue.past);
        assert!(next.start_turn(2, None, false, at(1)).unwrap().nap >= SHORTEST, "the run was over");
    }

    #[test]
    fn only_the_first_in_line_stays_awake_for_the_end_of_a_turn() {
        let (mut queue, [second, third]) = queue();
        assert_eq!(queue.ending(&second), None);
        queue.hand_on(1, LIMIT, at(0), at(1)).unwrap();
        assert_eq!((queue.ending(&second), queue.ending(&third)), (Some(1), None));
        assert!(queue.end_turn(1, at(0)));
        queue.start_turn(2, Some(&second), false, at(0)).unwrap();
        assert_eq!(queue.ending(&third), Some(2), "the last turn was short");
        assert!(queue.end_turn(2, at(1)));
        queue.start_turn(3, Some(&third), false, at(1)).unwrap();
        assert!(!queue.front.as_ref().unwrap().ending, "the last turn was long");
    }

    /// When the front began to be silent, in milliseconds.
    fn silent_since(queue: &WaitQueue) -> Option<u64> {
        queue.silence.as_ref().map(|silence| silence.since.as_nanos() / 1_000_000)
    }

    #[test]
    fn a_silence_passes_on_with_the_turn_until_redis_answers() {
        let (mut queue, [second, third]) = queue();
        assert_eq!(silent_since(&queue), None);
        queue.asks(1, at(0));
        assert_eq!(silent_since(&queue), Some(0), "from before the first attempt");
        queue.failed(1, Some(&Silence { words: Some("no answer".into()), ..Silence::new(at(0), false) }));
        assert!(queue.end_turn(1, at(50)));
        let start = queue.start_turn(2, Some(&second), false, at(50)).unwrap();
        assert_eq!(silent_since(&queue), Some(0), "it is the same outage");
        assert!(start.attempts.silence.is_some());
        queue.answered(1);
        assert_eq!(silent_since(&queue), Some(0), "that turn is over");
        queue.answered(2);
        assert_eq!(silent_since(&queue), None);
        queue.asks(2, at(60));
        assert_eq!(silent_since(&queue), Some(60));
        queue.failed(2, None);
        assert!(queue.end_turn(2, at(70)));
        let start = queue.start_turn(3, Some(&third), false, at(80)).unwrap();
        assert!(start.attempts.silence.is_none(), "what was cut short is not held against Redis");
    }

    #[test]
    fn a_front_is_silent_from_when_it_asks_and_not_while_it_naps() {
        let (mut queue, [second]) = queue();
        sees(&mut queue, 1);
        queue.holds(1, &hold(), at(0));
        queue.hand_on(1, AT_ONCE, at(1), at(1));
        assert!(queue.end_turn(1, at(1)));
        assert!(queue.start_turn(2, Some(&second), false, at(1)).unwrap().nap >= SHORTEST);
        assert_eq!(silent_since(&queue), None);
        queue.asks(2, at(20));
        queue.asks(2, at(30));
        assert_eq!(silent_since(&queue), Some(20));
    }

    /// After a run of that length.
    fn after_a_run(millis: u64) -> WaitQueue {
        let (mut queue, _) = queue::<0>();
        queue.holds(1, &Arc::new(sample_of(AcquiredAt { sent: at(0), answered: at(0) })), at(0));
        queue.hand_on(1, Duration::from_millis(5), at(millis), at(millis));
        assert!(queue.end_turn(1, at(millis)));
        queue
    }

    #[test]
    fn a_pause_after_a_run_is_not_for_a_lock_that_was_free() {
        for (free, pauses) in [(0, true), (1, false)] {
            let nap = after_a_run(6).start_turn(2, None, false, at(6 + free)).unwrap().nap;
            assert_eq!(!nap.is_zero(), pauses, "{nap:?}");
        }
    }

    #[test]
    fn a_thread_that_asks_once_leaves_the_pause_to_the_next() {
        for once in [false, true] {
            let mut queue = after_a_run(6);
            queue.start_turn(2, None, once, at(6)).unwrap();
            assert!(queue.end_turn(2, at(6)));
            assert_eq!(!queue.start_turn(3, None, false, at(6)).unwrap().nap.is_zero(), once);
        }
    }

    #[test]
    fn now_and_then_a_pause_is_long_enough_for_waiters_that_are_far_away() {
        let mut queue = after_a_run(6);
        let naps = (2..=2 * u64::from(RARELY) + 1).map(|number| {
            let (begun, over) = (at(4 + number), at(5 + number));
            let nap = queue.start_turn(number, None, false, begun).unwrap().nap;
            queue.holds(number, &hold(), begun);
            queue.hand_on(number, AT_ONCE, over, over);
            assert!(queue.end_turn(number, over));
            nap
        });
        assert_eq!(naps.filter(|nap| *nap >= LONGEST).count(), 2);
    }

    #[test]
    fn a_hand_on_that_came_to_nothing_is_no_part_of_a_run_once_another_process_was_seen() {
        let (mut queue, [second, _]) = queue();
        queue.holds(1, &hold(), at(0));
        queue.hand_on(1, LIMIT, at(0), at(1)).unwrap();
        assert!(queue.pass_on(1, &second, 2, GONE, at(0)));
        queue.start_turn(2, Some(&second), false, at(0)).unwrap();
        sees(&mut queue, 2);
        queue.holds(2, &hold(), at(500));
        assert!(queue.hand_on(2, LIMIT, at(501), at(502)).is_some(), "another had it for half a second");
    }

    #[test]
    fn the_time_of_a_release_is_not_free_where_its_turn_is_passed_by() {
        let (mut queue, [second, _]) = queue();
        let hold = hold();
        queue.holds(1, &hold, at(0));
        queue.hand_on(1, AT_ONCE, at(6), at(7));
        hold.mark_released();
        assert!(!queue.start_turn(2, Some(&second), false, at(50)).unwrap().nap.is_zero(), "it took 44 ms");
    }

    #[test]
    fn a_pause_is_a_part_of_the_time_for_which_the_process_had_the_lock() {
        for (held, micros) in [(48, 2000), (60, 2500), (9000, 2500)] {
            let (least, nap) = (
                Duration::from_micros(micros),
                after_a_run(held).start_turn(2, None, false, at(held)).unwrap().nap,
            );
            assert!(least <= nap && nap <= least * 4 / 3, "{held} ms: {nap:?}");
        }
    }

    #[test]
    fn a_hold_that_is_seen_again_is_one_sighting() {
        let (mut queue, _) = queue::<0>();
        for number in [1, 1, 1, 2, 3, 4] {
            let token = format!("host-{number}-1-{number:032x}");
            queue.saw(1, &Holder::new(token.as_bytes(), None), Duration::from_micros(50), at(0));
        }
        assert!(queue.past.contention.contention() > 10.0, "four of four were different");
    }

    #[test]
    fn what_was_handed_on_without_an_answer_is_part_of_the_silence() {
        let spoilt = HandoffOutcome::Spoilt { sent: at(30) };
        let taken = HandoffOutcome::Taken { sent: at(30), answered: at(31) };
        for (handed, since) in [(spoilt, Some(30)), (taken, None)] {
            let (mut queue, [second]) = queue();
            queue.answered(1);
            queue.hand_on(1, LIMIT, at(10), at(11)).unwrap();
            assert!(queue.pass_on(1, &second, 2, handed, at(40)));
            let start = queue.start_turn(3, Some(&second), false, at(50)).unwrap();
            assert_eq!(silent_since(&queue), since, "{handed:?}");
            assert_eq!(start.attempts.silence.is_some(), since.is_some());
        }
    }
}
