//! Decides what a thread that wants a lock does next, from the time and what it has found out.
//!
//! Nothing here reads the clock, asks Redis or sleeps. The loop in [`acquire`](super) does that,
//! and passes on what came of it and when.

use std::mem;
use std::time::Duration;

use crate::base::backoff::{Backoff, safety_poll};
use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::owner::holder::Holder;
use crate::store::Failure;
use crate::waiting::patience::{
    AfterFailure, Attempts, Kind, LAST_LOOK, Patience, Silence, WithoutExpiry,
};
use crate::waiting::queue::Start;

/// The shortest sleep of a waiter: Redis may delete an expired key a moment late.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// What an attempt asks Redis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    /// For the lock. The answer does not say who has it.
    Claim,
    /// For the lock, and for who has it.
    ClaimOrLook,
    /// Who has the lock.
    Look,
}

/// What to do before the next attempt.
#[derive(Debug)]
pub(super) enum Step {
    /// Nothing: the thread asks again at once.
    AskAgain,
    /// Register for wake-ups.
    Register,
    /// Sleep, and let nothing wake the thread.
    Sleep { until: Moment },
    /// Sleep until a wake-up. `tracked`: Redis will report a change of the key. `long`: the sleep
    /// ends before the holder's lease. So if the key changes meanwhile and no wake-up comes, the
    /// listener has missed the change.
    Wait {
        until: Moment,
        tracked: bool,
        long: bool,
    },
    /// There is no next attempt.
    GiveUp(End),
}

/// How the wait for a lock ends without it.
#[derive(Debug)]
pub(super) enum End {
    /// The lock is busy. If there is a failure, the time was over before Redis could answer.
    Busy {
        holder: Option<Holder>,
        failure: Option<Failure>,
    },
    /// Redis does not answer as it should, and waiting does not help or has lasted too long.
    Unavailable {
        failure: Failure,
        final_answer: bool,
    },
    /// The thread must not go on waiting.
    MustNotWait(Error),
    /// The key is no lock: it is not a string, or it will not expire and no holder is going to
    /// change that.
    NotALock { found: String },
}

/// What a thread that wants a lock has found out so far.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct Progress<'a> {
    patience: &'a Patience,
    /// The lease with which the lock would be taken.
    lease: Duration,
    ask: Ask,
    /// An attempt has found the lock busy.
    was_busy: bool,
    /// The last holder that an answer named.
    holder: Option<Holder>,
    /// Says when a key without expiry stops counting as a lock.
    pub(super) without_expiry: WithoutExpiry,
    /// [`Step::Register`] was returned: by the next attempt, wake-ups reach the thread.
    registered: bool,
    /// The last look before the deadline is planned or done.
    looked_late: bool,
    /// This thread has deleted the key of a dead holder once.
    reclaimed: bool,
    while_busy: Backoff,
    failure_pauses: Backoff,
    attempts: Attempts,
    /// What went wrong in the last attempt, if anything did.
    failure: Option<(Failure, Kind)>,
    /// The `CLIENT ID` of the listener that was silent through a long sleep.
    silent_listener: Option<u64>,
}

impl<'a> Progress<'a> {
    /// `start` has what the threads before this one in the queue have found out.
    pub(super) fn new(
        patience: &'a Patience,
        lease: Duration,
        poll_every: Duration,
        start: &Start,
    ) -> Progress<'a> {
        Progress {
            patience,
            lease,
            ask: Ask::Claim,
            was_busy: false,
            holder: None,
            without_expiry: start.without_expiry.clone(),
            registered: false,
            looked_late: false,
            reclaimed: false,
            while_busy: Backoff::for_busy(poll_every),
            failure_pauses: Backoff::after_failure(),
            attempts: start.attempts.clone(),
            failure: None,
            silent_listener: None,
        }
    }

    /// The lock is probably busy, so the thread has registered, and the first attempt also asks
    /// who has it.
    pub(super) fn look_at_first_attempt(&mut self) {
        self.registered = true;
        self.ask = Ask::ClaimOrLook;
    }

    /// What the next attempt asks.
    ///
    /// `try_lock` asks a second time only to name the holder. But a token that was given up may
    /// keep the lock busy, and only a claim removes that token.
    pub(super) fn next_ask(&self, has_given_up: bool) -> Ask {
        let enough = self.patience.once && self.was_busy && !has_given_up;
        if enough { Ask::Look } else { self.ask }
    }

    pub(super) fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// What went wrong in the last attempt.
    pub(super) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref().map(|(failure, _)| failure)
    }

    pub(super) fn silence(&self) -> Option<&Silence> {
        self.attempts.silence.as_ref()
    }

    /// Redis has given a proper answer.
    pub(super) fn answered(&mut self) {
        self.attempts.hear();
        self.failure_pauses.reset();
        self.failure = None;
    }

    /// The answer at `now` names a holder. Returns the end if a wait for this holder would never
    /// end.
    pub(super) fn note_holder(&mut self, holder: &Holder, now: Moment) -> Option<End> {
        let lease = if self.patience.once {
            Duration::ZERO
        } else {
            self.lease
        };
        self.without_expiry.saw(holder, lease, now);
        let no_lock = self.without_expiry.left(now) == Some(Duration::ZERO);
        no_lock.then(|| End::NotALock {
            found: holder.to_string(),
        })
    }

    /// Notes that the key of a dead holder was deleted. True the first time: the thread asks again
    /// at once. For a later dead holder, it waits as for any other.
    pub(super) fn reclaimed(&mut self) -> bool {
        if mem::replace(&mut self.reclaimed, true) {
            return false;
        }
        self.holder = None;
        self.ask = Ask::ClaimOrLook;
        self.was_busy = false;
        true
    }

    /// The `CLIENT ID` of a listener that sent no wake-up through a long sleep, if the holder has
    /// changed meanwhile: the listener has missed the change, or its wake-up is still on the way.
    /// `holder` is `None` if this thread has taken the lock.
    pub(super) fn missed_change(&mut self, holder: Option<&Holder>) -> Option<u64> {
        let changed = holder.map(|it| &it.raw) != self.holder.as_ref().map(|it| &it.raw);
        self.silent_listener.take().filter(|_| changed)
    }

    /// True for the first answer that finds the lock busy.
    pub(super) fn is_first_busy(&self) -> bool {
        !self.was_busy
    }

    /// The lock is busy at `now`. `tracked` says whether Redis will report a change.
    pub(super) fn found_busy(
        &mut self,
        holder: Option<Holder>,
        tracked: bool,
        now: Moment,
    ) -> Step {
        let asked = mem::replace(&mut self.ask, Ask::ClaimOrLook);
        self.was_busy = true;
        let lease_left = holder
            .as_ref()
            .map(|holder| holder.remaining.or(self.without_expiry.left(now)));
        self.holder = holder.or_else(|| self.holder.take());
        if self.patience.once {
            if asked == Ask::Claim && self.holder.is_none() {
                return Step::AskAgain;
            }
            return match self.without_expiry.left(now) {
                // The key has no expiry. Its holder has the time `left` to give it one. Then the
                // thread looks again.
                Some(left) => Step::Sleep {
                    until: now.after(left).min(self.patience.deadline),
                },
                None => Step::GiveUp(self.end_busy()),
            };
        }
        let was_registered = mem::replace(&mut self.registered, true);
        let lease_left = lease_left.filter(|_| was_registered);
        // `None`: the thread had not registered, or the answer names no holder and Redis will
        // report no change.
        lease_left.map_or(Step::Register, |left| self.plan_sleep(left, tracked, now))
    }

    /// Plans a sleep that a wake-up ends. Without a wake-up, it lasts for 10 to 15 s if Redis
    /// tracks the key, and otherwise for one pause of the backoff. It ends earlier with the
    /// holder's lease, or for the last look before the deadline.
    fn plan_sleep(&mut self, lease_left: Option<Duration>, tracked: bool, now: Moment) -> Step {
        let poll = self.while_busy.pause();
        let pause = if tracked { safety_poll() } else { poll }.min(self.until_last_look(now));
        let lease_left = lease_left.unwrap_or(Duration::MAX);
        let long = tracked && pause < lease_left;
        let pause = pause.min(lease_left).max(SHORTEST_PAUSE);
        Step::Wait {
            until: now.after(pause).min(self.patience.deadline),
            tracked,
            long,
        }
    }

    /// The longest sleep that leaves time for one look shortly before the deadline. That look is
    /// needed: the lock may be free, or Redis gone, though no wake-up came. After it, the sleep may
    /// last until the deadline.
    fn until_last_look(&mut self, now: Moment) -> Duration {
        let left = self.patience.deadline.since(now);
        let looked = mem::replace(&mut self.looked_late, true);
        if left > LAST_LOOK {
            left.saturating_sub(LAST_LOOK)
        } else if looked {
            left
        } else {
            left / 2
        }
    }

    /// A long sleep has ended without a wake-up. `listener` is the `CLIENT ID` of the listener at
    /// the end of the sleep, if one is connected.
    pub(super) fn not_woken(&mut self, listener: Option<u64>) {
        self.silent_listener = listener;
    }

    /// A wake-up has come after all, so the listener receives invalidations.
    pub(super) fn woken(&mut self) {
        self.silent_listener = None;
    }

    /// The end of a nap: after `nap`, but at most half of the time left, so that one look fits in
    /// before the deadline.
    pub(super) fn nap_until(&self, nap: Duration, now: Moment) -> Moment {
        now.after(nap.min(self.patience.deadline.since(now) / 2))
    }

    /// A sleep has ended at `now`. Returns the end if the deadline has come.
    pub(super) fn slept(&mut self, now: Moment) -> Option<End> {
        if now < self.patience.deadline {
            return None;
        }
        match self.failure.take() {
            Some((failure, kind)) => self.judge(failure, kind, now).err(),
            None => Some(self.end_busy()),
        }
    }

    /// An attempt that began at `since` has failed at `now`. The node has last answered any thread
    /// at `answered`. Returns what the failure says about Redis.
    pub(super) fn note_failure(
        &mut self,
        failure: &Failure,
        since: Moment,
        now: Moment,
        answered: Moment,
    ) -> Kind {
        self.ask = Ask::ClaimOrLook;
        self.failure = None;
        self.attempts
            .fail(failure, since, now, answered, self.patience.began)
    }

    /// What to do at `now` after a failure of this kind.
    pub(super) fn after_failure(&mut self, failure: Failure, kind: Kind, now: Moment) -> Step {
        let failure = match self.judge(failure, kind, now) {
            Ok(failure) => failure,
            Err(end) => return Step::GiveUp(end),
        };
        self.failure = Some((failure, kind));
        // The first failure may be due to a stale connection. The next attempt goes over
        // another one.
        if self.attempts.failed == 1 {
            return Step::AskAgain;
        }
        Step::Sleep {
            until: now
                .after(self.failure_pauses.pause())
                .min(self.patience.deadline),
        }
    }

    /// Gives the failure back if another attempt may help. Otherwise returns the end.
    #[expect(clippy::result_large_err, reason = "it is matched where it comes back")]
    fn judge(&mut self, failure: Failure, kind: Kind, now: Moment) -> Result<Failure, End> {
        let Attempts {
            silence, failed, ..
        } = &self.attempts;
        match self.patience.judge(now, kind, silence.as_ref(), *failed) {
            AfterFailure::TryAgain => Ok(failure),
            AfterFailure::Busy => {
                let holder = self.holder.take();
                // If Redis has said that the lock is busy, and only the question who has it has
                // failed, that failure is no part of the answer.
                let only_name_is_missing = self.was_busy && holder.is_none();
                Err(End::Busy {
                    holder,
                    failure: Some(failure).filter(|_| !only_name_is_missing),
                })
            }
            AfterFailure::GiveUp => Err(End::Unavailable {
                failure: self.attempts.cause(failure),
                final_answer: kind == Kind::Final,
            }),
        }
    }

    fn end_busy(&mut self) -> End {
        End::Busy {
            holder: self.holder.take(),
            failure: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Refusal;
    use crate::waiting::handoff::HandoffOutcome;

    const LEASE: Duration = Duration::from_secs(30);
    const POLL_EVERY: Duration = Duration::from_millis(64);

    fn millis(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    /// The patience of a caller that asks at 1000 ms and waits for `limit` milliseconds.
    fn limit(limit: u64) -> Patience {
        Patience {
            began: at(1000),
            deadline: at(1000 + limit),
            once: false,
            tolerate_outage: Duration::from_secs(10),
            an_attempt: millis(100),
        }
    }

    fn no_limit() -> Patience {
        Patience {
            deadline: Moment::NEVER,
            ..limit(0)
        }
    }

    fn once() -> Patience {
        Patience {
            once: true,
            ..limit(2000)
        }
    }

    fn progress(patience: &Patience) -> Progress<'_> {
        let start = Start {
            number: 1,
            handed: HandoffOutcome::NotTaken,
            nap: Duration::ZERO,
            crowded: false,
            attempts: Attempts::after(None),
            without_expiry: WithoutExpiry::default(),
        };
        Progress::new(patience, LEASE, POLL_EVERY, &start)
    }

    fn holder(value: &str, time_left: Option<Duration>) -> Holder {
        Holder::new(value.as_bytes(), time_left)
    }

    fn theirs() -> Holder {
        holder("theirs", Some(LEASE))
    }

    fn lost_answer() -> Failure {
        Failure::Unanswered {
            link_stands: true,
            cause: "no answer".into(),
        }
    }

    fn refused(code: &str) -> Failure {
        Failure::Refused(Refusal::found(code, code))
    }

    /// Does what the loop does with a proper answer that names a holder.
    fn sees(progress: &mut Progress<'_>, holder: Holder, tracked: bool, now: Moment) -> Step {
        progress.answered();
        match progress.note_holder(&holder, now) {
            Some(end) => Step::GiveUp(end),
            None => progress.found_busy(Some(holder), tracked, now),
        }
    }

    /// Does what the loop does with an attempt that began at `since` and failed at `now`.
    fn fails(progress: &mut Progress<'_>, failure: Failure, since: Moment, now: Moment) -> Step {
        let kind = progress.note_failure(&failure, since, now, Moment::PAST);
        progress.after_failure(failure, kind, now)
    }

    /// A waiter that has registered, and whose next answer names the holder.
    fn waiter(patience: &Patience) -> Progress<'_> {
        let mut progress = progress(patience);
        assert!(matches!(
            progress.found_busy(None, false, at(1000)),
            Step::Register
        ));
        progress
    }

    #[track_caller]
    fn assert_busy_without_a_name(step: &Step) {
        let is_so = matches!(
            step,
            Step::GiveUp(End::Busy {
                holder: None,
                failure: None
            })
        );
        assert!(is_so, "{step:?}");
    }

    #[track_caller]
    fn wait_of(step: &Step, now: Moment) -> (Duration, bool) {
        match step {
            Step::Wait { until, long, .. } => (until.since(now), *long),
            other => panic!("no wait: {other:?}"),
        }
    }

    #[test]
    fn a_single_try_learns_who_has_the_lock_and_does_not_wait() {
        let patience = once();
        let mut progress = progress(&patience);
        assert_eq!(progress.next_ask(false), Ask::Claim);
        assert!(matches!(
            progress.found_busy(None, false, at(1001)),
            Step::AskAgain
        ));
        assert_eq!(
            progress.next_ask(false),
            Ask::Look,
            "it does not ask for the lock again"
        );
        assert_eq!(
            progress.next_ask(true),
            Ask::ClaimOrLook,
            "its own lost token may be in the way"
        );
        match sees(&mut progress, theirs(), false, at(1002)) {
            Step::GiveUp(End::Busy {
                holder: Some(holder),
                failure: None,
            }) => assert_eq!(holder, theirs()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_single_try_that_finds_nobody_any_more_reports_nobody() {
        let patience = once();
        let mut progress = progress(&patience);
        progress.found_busy(None, false, at(1001));
        let step = progress.found_busy(None, false, at(1002));
        assert_busy_without_a_name(&step);
    }

    #[test]
    fn a_waiter_registers_before_it_sleeps_and_asks_who_has_the_lock() {
        let patience = limit(5000);
        let mut progress = progress(&patience);
        assert_eq!(progress.next_ask(false), Ask::Claim);
        assert!(progress.is_first_busy());
        assert!(matches!(
            progress.found_busy(None, false, at(1001)),
            Step::Register
        ));
        assert!(!progress.is_first_busy());
        assert_eq!(progress.next_ask(false), Ask::ClaimOrLook);
        // After a failure, the first busy answer names a holder, and the thread has not registered
        // yet.
        let mut after_failure = self::progress(&patience);
        fails(&mut after_failure, lost_answer(), at(1000), at(1001));
        assert!(matches!(
            sees(&mut after_failure, theirs(), false, at(1002)),
            Step::Register
        ));
        assert!(matches!(
            sees(&mut after_failure, theirs(), false, at(1003)),
            Step::Wait { .. }
        ));
    }

    #[test]
    fn where_the_lock_is_hardly_free_the_first_attempt_asks_who_has_it() {
        let patience = limit(5000);
        let mut progress = progress(&patience);
        progress.look_at_first_attempt();
        assert_eq!(progress.next_ask(false), Ask::ClaimOrLook);
        assert!(matches!(
            sees(&mut progress, theirs(), true, at(1001)),
            Step::Wait { .. }
        ));
    }

    #[test]
    fn a_waiter_that_redis_wakes_asks_by_itself_after_10_to_15_seconds() {
        let patience = no_limit();
        let mut progress = waiter(&patience);
        for _ in 0..20 {
            let step = sees(&mut progress, theirs(), true, at(1001));
            let (pause, long) = wait_of(&step, at(1001));
            assert!(
                (millis(10_000)..=millis(15_000)).contains(&pause) && long,
                "{pause:?}"
            );
        }
    }

    #[test]
    fn a_waiter_that_redis_does_not_wake_asks_after_growing_pauses() {
        let patience = no_limit();
        let mut progress = waiter(&patience);
        let mut longest = millis(1);
        for _ in 0..10 {
            let step = sees(&mut progress, theirs(), false, at(1001));
            let (pause, long) = wait_of(&step, at(1001));
            assert!(
                (longest / 2..=longest).contains(&pause) && !long,
                "{pause:?} of {longest:?}"
            );
            longest = (longest * 2).min(POLL_EVERY);
        }
    }

    #[test]
    fn no_sleep_outlasts_the_lease_of_the_holder() {
        let patience = no_limit();
        let mut progress = waiter(&patience);
        for (left, sleep) in [
            (millis(3000), millis(3000)),
            (Duration::ZERO, SHORTEST_PAUSE),
        ] {
            let step = sees(&mut progress, holder("theirs", Some(left)), true, at(1001));
            assert_eq!(
                wait_of(&step, at(1001)),
                (sleep, false),
                "no wake-up is due when a lease ends"
            );
        }
    }

    #[test]
    fn a_waiter_looks_once_more_before_its_deadline() {
        let patience = limit(5000);
        let mut progress = waiter(&patience);
        let step = sees(&mut progress, theirs(), true, at(1000));
        assert_eq!(wait_of(&step, at(1000)).0, millis(4500));
        assert!(progress.slept(at(5500)).is_none());
        let step = sees(&mut progress, theirs(), true, at(5500));
        assert_eq!(
            wait_of(&step, at(5500)).0,
            millis(500),
            "the last sleep ends at the deadline"
        );
        assert!(progress.slept(at(5999)).is_none());
        let end = progress.slept(at(6000));
        assert!(
            matches!(
                end,
                Some(End::Busy {
                    holder: Some(_),
                    failure: None
                })
            ),
            "{end:?}"
        );
    }

    #[test]
    fn a_waiter_with_little_time_looks_once_more_after_half_of_it() {
        let patience = limit(400);
        let mut progress = waiter(&patience);
        let step = sees(&mut progress, theirs(), true, at(1000));
        assert_eq!(wait_of(&step, at(1000)).0, millis(200));
        let step = sees(&mut progress, theirs(), true, at(1200));
        assert_eq!(wait_of(&step, at(1200)).0, millis(200));
    }

    #[test]
    fn leaving_the_lock_to_others_takes_half_of_the_time_left_at_most() {
        let patience = limit(400);
        let progress = progress(&patience);
        assert_eq!(progress.nap_until(millis(50), at(1000)), at(1050));
        assert_eq!(progress.nap_until(millis(300), at(1000)), at(1200));
    }

    #[test]
    fn a_key_without_expiry_is_no_lock_where_it_stays_for_a_quarter_of_a_second() {
        let patience = no_limit();
        let mut progress = waiter(&patience);
        let step = sees(&mut progress, holder("job", None), true, at(1000));
        assert_eq!(wait_of(&step, at(1000)), (millis(250), false));
        let step = sees(&mut progress, holder("job", None), true, at(1249));
        assert_eq!(wait_of(&step, at(1249)), (millis(1), false));
        match sees(&mut progress, holder("job", None), true, at(1250)) {
            Step::GiveUp(End::NotALock { found }) => assert_eq!(found, r#""job" (never expires)"#),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_token_without_expiry_has_half_a_lease_to_be_repaired_but_not_for_a_single_try() {
        let token = format!("host-1-2-{}", "0".repeat(32));
        let patience = no_limit();
        let mut progress = waiter(&patience);
        let step = sees(&mut progress, holder(&token, None), false, at(1000));
        assert!(
            wait_of(&step, at(1000)).0 <= millis(1),
            "a waiter asks for it as often as for any lock"
        );
        assert!(
            progress
                .note_holder(&holder(&token, None), at(15_999))
                .is_none()
        );
        let end = progress.note_holder(&holder(&token, None), at(16_000));
        assert!(matches!(end, Some(End::NotALock { .. })), "{end:?}");

        let patience = once();
        let mut progress = self::progress(&patience);
        progress.found_busy(None, false, at(1000));
        match sees(&mut progress, holder(&token, None), false, at(1000)) {
            Step::Sleep { until } => assert_eq!(until, at(1250)),
            other => panic!("{other:?}"),
        }
        let step = sees(&mut progress, holder(&token, None), false, at(1250));
        assert!(
            matches!(step, Step::GiveUp(End::NotALock { .. })),
            "{step:?}"
        );
    }

    #[test]
    fn a_lock_of_a_dead_process_is_asked_for_at_once_but_only_the_first_time() {
        let patience = no_limit();
        let mut progress = waiter(&patience);
        sees(&mut progress, theirs(), true, at(1000));
        assert!(progress.reclaimed());
        assert!(
            progress.holder().is_none() && progress.is_first_busy(),
            "the wait begins anew"
        );
        assert_eq!(progress.next_ask(false), Ask::ClaimOrLook);
        assert!(
            !progress.reclaimed(),
            "dead processes may follow each other for ever"
        );
    }

    #[test]
    fn a_single_try_that_took_over_from_a_dead_process_asks_for_the_lock_again() {
        let patience = once();
        let mut progress = progress(&patience);
        progress.found_busy(None, false, at(1001));
        assert!(progress.reclaimed());
        assert_eq!(progress.next_ask(false), Ask::ClaimOrLook);
    }

    #[test]
    fn a_listener_that_slept_through_a_change_is_found_out() {
        let patience = no_limit();
        let another = holder("another", Some(LEASE));
        // Who has the lock after a long sleep, and whether the listener missed a change.
        for (holder, missed) in [
            (Some(&another), true),
            (None, true),
            (Some(&theirs()), false),
        ] {
            let mut progress = waiter(&patience);
            sees(&mut progress, theirs(), true, at(1000));
            progress.not_woken(Some(7));
            let number = progress.missed_change(holder);
            assert_eq!(number, missed.then_some(7), "{holder:?}");
            assert_eq!(
                progress.missed_change(Some(&another)),
                None,
                "reported once"
            );
        }
        let mut progress = waiter(&patience);
        sees(&mut progress, theirs(), true, at(1000));
        progress.not_woken(Some(7));
        progress.woken();
        assert_eq!(progress.missed_change(None), None, "the wake-up came late");
        progress.not_woken(None);
        assert_eq!(
            progress.missed_change(None),
            None,
            "there is no listener any more"
        );
    }

    #[test]
    fn the_first_failure_is_followed_by_an_attempt_at_once_and_the_next_by_pauses() {
        let patience = limit(5000);
        let mut progress = progress(&patience);
        let shortest = millis(5);
        assert!(matches!(
            fails(&mut progress, lost_answer(), at(1000), at(1001)),
            Step::AskAgain
        ));
        assert_eq!(
            progress.next_ask(false),
            Ask::ClaimOrLook,
            "it may find its own lost token"
        );
        let pause = |step| match step {
            Step::Sleep { until } => until.since(at(1002)),
            other => panic!("no pause: {other:?}"),
        };
        let first = pause(fails(&mut progress, lost_answer(), at(1001), at(1002)));
        assert!((shortest..=2 * shortest).contains(&first), "{first:?}");
        let second = pause(fails(&mut progress, lost_answer(), at(1001), at(1002)));
        assert!(
            (2 * shortest..=4 * shortest).contains(&second),
            "{second:?}"
        );
        progress.answered();
        assert!(matches!(
            fails(&mut progress, lost_answer(), at(1003), at(1004)),
            Step::AskAgain
        ));
        let again = pause(fails(&mut progress, lost_answer(), at(1001), at(1002)));
        assert!(
            again <= 2 * shortest,
            "the pauses begin anew after an answer: {again:?}"
        );
    }

    #[test]
    fn a_limit_that_ends_in_a_short_silence_means_busy_and_in_a_long_one_an_outage() {
        for (length, is_outage) in [(19, false), (20, true)] {
            let patience = limit(length);
            let mut progress = progress(&patience);
            let step = fails(&mut progress, lost_answer(), at(1000), at(1000 + length));
            let outage = match step {
                Step::GiveUp(End::Busy {
                    failure: Some(_), ..
                }) => false,
                Step::GiveUp(End::Unavailable {
                    final_answer: false,
                    ..
                }) => true,
                other => panic!("{other:?}"),
            };
            assert_eq!(outage, is_outage, "{length} ms");
        }
    }

    /// The answer that the lock is busy does not say who has it, and the question who has it gets
    /// no answer.
    #[test]
    fn a_lock_that_was_busy_is_busy_although_nobody_says_who_has_it() {
        let patience = limit(30);
        let mut progress = progress(&patience);
        progress.answered();
        progress.found_busy(None, false, at(1002));
        let kind = progress.note_failure(&lost_answer(), at(1002), at(1030), at(1001));
        let step = progress.after_failure(lost_answer(), kind, at(1030));
        assert_busy_without_a_name(&step);
    }

    #[test]
    fn a_pause_after_a_failure_ends_at_the_deadline_and_the_wait_with_it() {
        let patience = limit(12);
        let mut progress = progress(&patience);
        sees(&mut progress, theirs(), false, at(1000));
        fails(&mut progress, lost_answer(), at(1000), at(1001));
        let step = fails(&mut progress, lost_answer(), at(1001), at(1011));
        assert!(
            matches!(step, Step::Sleep { until } if until == at(1012)),
            "{step:?}"
        );
        assert!(progress.slept(at(1011)).is_none());
        let end = progress.slept(at(1012));
        assert!(
            matches!(
                end,
                Some(End::Busy {
                    holder: Some(_),
                    failure: Some(_)
                })
            ),
            "{end:?}"
        );
    }

    #[test]
    fn without_a_limit_an_outage_is_tolerated_for_as_long_as_is_set() {
        let patience = no_limit();
        let mut progress = progress(&patience);
        fails(&mut progress, lost_answer(), at(1000), at(1001));
        let step = fails(&mut progress, lost_answer(), at(10_000), at(10_999));
        assert!(matches!(step, Step::Sleep { .. }), "{step:?}");
        assert!(
            progress.slept(at(11_500)).is_none(),
            "one more attempt is made"
        );
        let step = fails(&mut progress, lost_answer(), at(10_999), at(11_000));
        assert!(
            matches!(step, Step::GiveUp(End::Unavailable { .. })),
            "{step:?}"
        );
    }

    #[test]
    fn a_single_try_is_repeated_once_after_a_failure() {
        let patience = once();
        let mut progress = progress(&patience);
        assert!(matches!(
            fails(&mut progress, lost_answer(), at(1000), at(1001)),
            Step::AskAgain
        ));
        let step = fails(&mut progress, lost_answer(), at(1001), at(1002));
        assert!(
            matches!(step, Step::GiveUp(End::Unavailable { .. })),
            "{step:?}"
        );
    }

    #[test]
    fn a_refusal_that_waiting_does_not_change_ends_the_wait_at_once() {
        let patience = no_limit();
        let mut progress = progress(&patience);
        let step = fails(&mut progress, refused("NOPERM"), at(1000), at(1001));
        assert!(
            matches!(
                step,
                Step::GiveUp(End::Unavailable {
                    final_answer: true,
                    ..
                })
            ),
            "{step:?}"
        );
        let mut loading = self::progress(&patience);
        assert!(matches!(
            fails(&mut loading, refused("LOADING"), at(1000), at(1001)),
            Step::AskAgain
        ));
    }

    #[test]
    fn the_last_refusal_is_the_cause_where_the_last_attempt_was_cut_short() {
        let patience = limit(50);
        let mut progress = progress(&patience);
        fails(&mut progress, refused("LOADING"), at(1000), at(1001));
        match fails(&mut progress, lost_answer(), at(1002), at(1050)) {
            Step::GiveUp(End::Unavailable {
                failure: Failure::Refused(refusal),
                ..
            }) => {
                assert_eq!(refusal.code, "LOADING");
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_silence_is_forgotten_where_redis_answers_others_and_this_thread_has_no_connection() {
        let patience = limit(5000);
        let mut progress = progress(&patience);
        fails(&mut progress, lost_answer(), at(1000), at(1001));
        assert!(progress.silence().is_some());
        let no_connection = Failure::OutOfTime("no connection was free".into());
        let kind = progress.note_failure(&no_connection, at(1002), at(1002), at(1001));
        assert_eq!(kind, Kind::OutOfTime);
        assert!(progress.silence().is_none());
    }

    #[test]
    fn only_the_last_attempt_says_what_went_wrong() {
        let patience = limit(5000);
        let mut progress = progress(&patience);
        fails(&mut progress, lost_answer(), at(1000), at(1001));
        assert!(progress.failure().is_some());
        progress.answered();
        assert!(progress.failure().is_none());
    }
}
