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

/// What an attempt asks Redis for.
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
    /// The lock is busy. If there is a failure, time ran out before Redis could answer.
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
    /// The key is not a lock: it is not a string, or it will not expire and no holder is going to
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
    /// `start` says what the threads before this one in the queue have found out.
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
    /// needed: the lock may be free, or Redis gone, even though no wake-up came. After it, the
    /// sleep may last until the deadline.
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

    /// An attempt that began at `since` has failed at `now`. The node last answered any thread at
    /// `answered`. Returns what the failure says about Redis.
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
                // If Redis has said that the lock is busy, and only the question of who has it
                // failed, that failure is not part of the answer.
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

    /// Does what the loop does with a proper answer that names a holder.
    fn sees(progress: &mut Progress<'_>, holder: Holder, tracked: bool, now: Moment) -> Step {
        progress.answered();
        match progress.note_holder(&holder, now) {
            Some(end) => Step::GiveUp(end),
            None => progress.found_busy(Some(holder), tracked, now),
        }
    }

    /// Does what the loop does with an attempt without an answer.
    fn fails(progress: &mut Progress<'_>, now: Moment) -> Step {
        let kind = progress.note_failure(&lost_answer(), at(1000), now, Moment::PAST);
        progress.after_failure(lost_answer(), kind, now)
    }

    /// How long a waiter that has registered, and has seen who has the lock, sleeps from `now` on,
    /// and whether Redis should wake it earlier.
    fn sleeps(
        progress: &mut Progress<'_>,
        left: Option<u64>,
        tracked: bool,
        now: u64,
    ) -> (Duration, bool) {
        let seen = holder("theirs", Some(left.map_or(LEASE, millis)));
        match sees(progress, seen, tracked, at(now)) {
            Step::Wait { until, long, .. } => (until.since(at(now)), long),
            other => panic!("no wait: {other:?}"),
        }
    }

    fn waiter(patience: &Patience) -> Progress<'_> {
        let mut progress = progress(patience);
        let step = progress.found_busy(None, false, at(1000));
        assert!(matches!(step, Step::Register));
        progress
    }

    #[test]
    fn a_single_try_learns_who_has_the_lock_and_does_not_wait() {
        let patience = once();
        for seen in [Some(theirs()), None] {
            let mut progress = progress(&patience);
            assert_eq!(progress.next_ask(false), Ask::Claim);
            let step = progress.found_busy(None, false, at(1001));
            assert!(matches!(step, Step::AskAgain));
            // Its own lost token may be in the way.
            let asks = [false, true].map(|given_up| progress.next_ask(given_up));
            assert_eq!(asks, [Ask::Look, Ask::ClaimOrLook]);
            match progress.found_busy(seen.clone(), false, at(1002)) {
                Step::GiveUp(End::Busy {
                    holder,
                    failure: None,
                }) => assert_eq!(holder, seen),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_waiter_asks_by_itself_after_pauses_that_grow_unless_redis_wakes_it() {
        let patience = limit(1_000_000);
        let mut progress = waiter(&patience);
        let mut longest = millis(1);
        for _ in 0..10 {
            let (pause, long) = sleeps(&mut progress, None, true, 1001);
            assert!(
                (millis(10_000)..=millis(15_000)).contains(&pause) && long,
                "{pause:?}"
            );
        }
        let mut progress = waiter(&patience);
        for _ in 0..10 {
            let (pause, long) = sleeps(&mut progress, None, false, 1001);
            assert!(
                (longest / 2..=longest).contains(&pause) && !long,
                "{pause:?}"
            );
            longest = (longest * 2).min(POLL_EVERY);
        }
        // No wake-up is due when a lease ends.
        let ended = sleeps(&mut progress, Some(0), true, 1001);
        assert_eq!(ended, (SHORTEST_PAUSE, false));
        assert_eq!(
            sleeps(&mut progress, Some(3000), true, 1001),
            (millis(3000), false)
        );
    }

    #[test]
    fn a_waiter_looks_once_more_before_its_deadline_and_has_half_of_the_time_for_it() {
        for (length, [first, second]) in [(5000, [4500, 500]), (400, [200, 200])] {
            let patience = limit(length);
            assert_eq!(
                progress(&patience).nap_until(millis(50), at(1000)),
                at(1050)
            );
            let half = at(1000 + length / 2);
            assert_eq!(progress(&patience).nap_until(LEASE, at(1000)), half);
            let mut progress = waiter(&patience);
            assert_eq!(sleeps(&mut progress, None, true, 1000).0, millis(first));
            assert!(progress.slept(at(1000 + first)).is_none());
            assert_eq!(
                sleeps(&mut progress, None, true, 1000 + first).0,
                millis(second)
            );
            let end = progress.slept(at(1000 + length));
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
    }

    #[test]
    fn a_token_without_expiry_has_half_a_lease_to_be_repaired_but_not_for_a_single_try() {
        let token = holder(&format!("host-1-2-{}", "0".repeat(32)), None);
        for (patience, repaired_by) in [(limit(60_000), 16_000), (once(), 1250)] {
            let mut progress = progress(&patience);
            progress.found_busy(None, false, at(1000));
            match sees(&mut progress, token.clone(), false, at(1000)) {
                Step::Sleep { until } => assert_eq!(until, at(repaired_by)),
                // It asks as often as for any lock.
                step => assert!(matches!(step, Step::Wait { until, .. } if until <= at(1001))),
            }
            assert!(progress.note_holder(&token, at(repaired_by - 1)).is_none());
            let end = progress.note_holder(&token, at(repaired_by));
            assert!(matches!(end, Some(End::NotALock { .. })), "{end:?}");
        }
    }

    #[test]
    fn a_lock_of_a_dead_process_is_asked_for_at_once_but_only_the_first_time() {
        for patience in [limit(5000), once()] {
            let mut progress = progress(&patience);
            progress.found_busy(Some(theirs()), true, at(1000));
            assert!(progress.reclaimed());
            let begins_anew = progress.holder().is_none() && progress.is_first_busy();
            assert!(begins_anew && progress.next_ask(false) == Ask::ClaimOrLook);
            assert!(
                !progress.reclaimed(),
                "dead processes may follow each other forever"
            );
        }
    }

    #[test]
    fn the_first_failure_is_followed_by_an_attempt_at_once_and_the_next_by_pauses() {
        let patience = limit(5000);
        let mut progress = progress(&patience);
        for _ in 0..2 {
            assert!(matches!(fails(&mut progress, at(1001)), Step::AskAgain));
            assert_eq!(
                progress.next_ask(false),
                Ask::ClaimOrLook,
                "for its own lost token"
            );
            for shortest in [5, 10] {
                match fails(&mut progress, at(1002)) {
                    Step::Sleep { until } => {
                        let pause = until.since(at(1002));
                        assert!((millis(shortest)..=millis(2 * shortest)).contains(&pause));
                    }
                    other => panic!("no pause: {other:?}"),
                }
            }
            assert!(progress.failure().is_some());
            progress.answered(); // Everything starts over.
            assert!(progress.failure().is_none() && progress.silence().is_none());
        }
    }

    /// The answer that the lock is busy does not say who has it, and the question of who has it
    /// gets no answer.
    #[test]
    fn a_lock_that_was_busy_is_busy_although_nobody_says_who_has_it() {
        let patience = limit(30);
        let mut progress = progress(&patience);
        progress.answered();
        progress.found_busy(None, false, at(1002));
        let kind = progress.note_failure(&lost_answer(), at(1002), at(1030), at(1001));
        let step = progress.after_failure(lost_answer(), kind, at(1030));
        let nobody = Step::GiveUp(End::Busy {
            holder: None,
            failure: None,
        });
        assert_eq!(format!("{step:?}"), format!("{nobody:?}"));
    }
}
