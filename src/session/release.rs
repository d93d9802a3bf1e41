//! Giving a lock back: the order of the steps, compare and delete, and what the answer means.

use std::mem;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{debug, warn};
use crate::base::error::{Error, LostCause};
use crate::base::key::stem_of;
use crate::base::options::Lease;
use crate::base::sync::thread;
use crate::hold::{Hold, Unlocked};
use crate::keeping::orphans::Orphan;
use crate::keeping::work::Keeper;
use crate::store::{Cause, ClaimReply, Compared, Failure, Store};
use crate::waiting::handoff::{Claim, HandoffOutcome};
use crate::waiting::queues::Turn;
use crate::waiting::waiter::Waiter;

/// The release of one hold, over as many tries as it takes. From `begin` on, nobody trusts the
/// hold, although its key is still in Redis.
#[derive(Debug)]
pub(crate) struct Release<'a> {
    keeper: &'a Arc<Keeper>,
    pub(super) hold: &'a Hold,
    turn: Turn,
    /// The thread of this process to which the release hands the lock off.
    pub(super) next: Option<Arc<Waiter>>,
    /// When the validity of the hold would have ended. `None` if the hold was over when the release
    /// began.
    valid_until: Option<Moment>,
    pub(super) deadline: Moment,
    /// The time until which the lock stays taken, if that is not over yet: see
    /// `Lock::keep_at_least`. Before that, no thread gets it, and nothing deletes its key.
    pub(super) kept_until: Option<Moment>,
    /// The result of a first try that was sent together with those of other releases.
    pub(super) first: Option<Result<Compared, Failure>>,
    /// When that try was answered.
    pub(super) answered: Option<Moment>,
    /// A try got no answer, and may have been executed.
    maybe_done: bool,
    /// Why Redis has not said what became of the key.
    failed: Option<Failure>,
    /// What became of the next thread's claim.
    handed: HandoffOutcome,
}

impl<'a> Release<'a> {
    /// Begins a release, to be done by the deadline, or within the response timeout if there is
    /// none. `local_handoff` says how long threads of this process may hand the lock off among
    /// themselves.
    ///
    /// The caller has already taken the hold out of the thread's map. If it were still there, a
    /// destructor that took the lock in the meantime would re-enter a hold that is being released.
    pub(crate) fn begin(
        keeper: &'a Arc<Keeper>,
        hold: &'a Hold,
        turn: Turn,
        local_handoff: Duration,
        deadline: Option<Moment>,
    ) -> Result<Release<'a>, Error> {
        let began = Moment::now();
        if let Err(forked) = keeper.core.own_process(began) {
            // Dropping the turn would lock the queue. If the fork came while another thread had the
            // queue locked, the child's copy stays locked, and the child would wait forever.
            mem::forget(turn);
            return Err(forked);
        }
        let answer_by = || began.after(keeper.core.settings.response_timeout);
        let deadline = deadline.unwrap_or_else(answer_by);
        let kept_until = Some(hold.keep_until()).filter(|until| *until > began);
        // 1. Choose the thread to hand off to, and keep the turn for it. If this came later, the
        //    claim could not go out with the release, and each turn would cost one more round trip.
        let budget = kept_until.map_or(local_handoff, |_| Duration::ZERO);
        let next = turn.begin_release(budget, began, deadline);

        // 2. Close the hold, so that no thread trusts it any longer. If this came after step 3, the
        //    holder would trust a lock that another process may have by then. The keeper would find
        //    the key gone, and report our own release as a loss.
        let valid_until = keeper.close(hold, began);
        let counters = keeper.core.counters.of(hold.key.name());
        counters.given_back(began.since(hold.acquired.answered), hold.thread_has_ended());
        Ok(Release {
            keeper,
            hold,
            turn,
            next,
            valid_until,
            deadline,
            kept_until,
            first: None,
            answered: None,
            maybe_done: false,
            failed: None,
            handed: HandoffOutcome::NotTaken,
        })
    }

    /// Gives the lock back.
    pub(crate) fn finish(mut self) -> Result<Unlocked, Error> {
        let (store, hold, kept_until) = (&self.keeper.core.store, self.hold, self.kept_until);
        let mut first = self.first.take();
        self.finish_by(|claim, by| match (first.take(), kept_until) {
            (Some(answer), _) => (answer, HandoffOutcome::NotTaken),
            (None, None) => delete(store, hold, claim, by),
            (None, Some(until)) => (keep(store, hold, until, by), HandoffOutcome::NotTaken),
        })?;
        Ok(
            kept_until.map_or(Unlocked::Released, |until| Unlocked::Kept {
                until: Instant::now() + until.since(Moment::now()),
            }),
        )
    }

    /// The rest of the steps. `command` sends one try by a deadline, followed by the claim of the
    /// next thread of this process, so Redis executes the end of this hold first.
    pub(crate) fn finish_by(
        mut self,
        command: impl FnMut(Option<&Claim>, Moment) -> Tried,
    ) -> Result<(), Error> {
        // 3. Delete the key in Redis; the next thread's claim is sent after the deletion.
        let next = self.next.take();
        let claim = next.as_ref().and_then(|next| next.claim.as_ref());
        let claim = claim.filter(|it| self.keeper.claim(&it.token).is_ok());
        let result = self.run(claim, command);
        if let (Some(claim), HandoffOutcome::NotTaken) = (claim, self.handed) {
            self.keeper.gone(&claim.token);
        }

        // 4. to 6. What follows from the answer.
        self.conclude(&result);

        // 7. End the turn. If this came before step 3, the next thread would compete with this
        //    release. If it came before step 4, the next thread could hold the lock while this hold
        //    does not yet count as over.
        let (Some(next), Some(claim)) = (&next, claim) else {
            drop(self.turn);
            return result;
        };
        if self.turn.settle(next, self.handed) {
            // If there was no answer, Redis may still execute the `SET`.
            let may_reappear = matches!(self.handed, HandoffOutcome::Unanswered { .. });
            let orphan = Orphan::of_claim(&self.hold.key, claim.lease, may_reappear);
            self.keeper.give_up(&claim.token, orphan, Moment::now());
        }
        result
    }

    /// Repeats the release until Redis answers, another try would not help, or the next try would
    /// come after the deadline.
    fn run(
        &mut self,
        claim: Option<&Claim>,
        mut command: impl FnMut(Option<&Claim>, Moment) -> Tried,
    ) -> Result<(), Error> {
        let mut backoff = Backoff::after_failure();
        loop {
            // The claim is sent once. If a try gets no answer, Redis may still execute the claim
            // that was sent with it.
            let claim = claim.filter(|_| self.handed == HandoffOutcome::NotTaken);
            let (answer, handed) = command(claim, self.deadline);
            if claim.is_some() {
                self.handed = handed;
            }
            let now = self.answered.take().unwrap_or_else(Moment::now);
            match self.next(answer, &mut backoff, now) {
                ControlFlow::Break(result) => return result,
                ControlFlow::Continue(pause) => thread::sleep(pause),
            }
        }
    }

    /// The steps between the answer to a release and the end of its turn.
    fn conclude(&self, result: &Result<(), Error>) {
        // 4. Record how the hold ended. If this came before step 3, the first thread in the queue
        //    would see that the hold is over, and ask Redis for a key that still exists.
        if let Ok(()) | Err(Error::Unconfirmed { .. }) = result {
            self.hold.mark_released();
        }
        // This does nothing unless a loss is on record. There may be one even though Redis has
        // found the token: a call such as `ensure` may have told the thread that the lease had run
        // out, and the keeper, which would have reported that, has not had this hold since step 2.
        self.keeper.report_loss(self.hold);

        // 5. Give up the token if Redis may still store it: the keeper deletes it. If this came
        // before step 3, the keeper could delete the key first, and the answer to our own release
        // would look like a loss. This is done even if the lease has run out by our clock: a
        // renewal without an answer may have extended it. A key that was to be kept stays until its
        // time.
        let token = &self.hold.token;
        if let Some(failure) = &self.failed {
            let from = self.kept_until.unwrap_or(Moment::PAST);
            let orphan = Orphan::of_hold(self.hold);
            self.keeper.give_up(token, orphan, from);
            let it = [self.hold.key.in_redis(), &**token];
            self.keeper.report_refusal("releasing", it, failure);
        } else {
            self.keeper.gone(token);
        }

        // 6. If the hold was over before step 2, wake this process's waiter. The waiter may have
        //    taken the turn when the lease ran out, and have asked over the connection that has now
        //    deleted the key. Because of `NOLOOP`, Redis then sends no invalidation. The same is
        //    true if the waiter had the turn all along, because this hold was adopted outside the
        //    queue or its thread is exiting. If this came before step 3, the waiter would find the
        //    key and sleep again. Besides, threads that wait for slots are not in this key's queue.
        let redis_key = self.hold.key.in_redis().as_bytes();
        if self.valid_until.is_none() || self.turn.is_outside() || stem_of(redis_key).is_some() {
            self.keeper.core.listeners.wakeups.wake(redis_key);
        }
    }

    /// Handles the answer to a try, or its failure. Returns the end of the release, or the pause
    /// before the next try. After the first lost answer there is no pause: the next try uses
    /// another connection.
    fn next(
        &mut self,
        answer: Result<Compared, Failure>,
        backoff: &mut Backoff,
        now: Moment,
    ) -> ControlFlow<Result<(), Error>, Duration> {
        let failure = match answer {
            Ok(compared) => return ControlFlow::Break(self.judge(compared, now)),
            Err(failure) => failure,
        };
        debug!(target: "relatch::release", "releasing lock {:?}: {failure:?}", self.hold.key.name());
        let is_lost = matches!(failure, Failure::Unanswered { .. });
        let pause = if is_lost && !self.maybe_done {
            Duration::ZERO
        } else {
            backoff.pause()
        };
        self.maybe_done |= is_lost;
        if failure.can_pass() && now.after(pause) < self.deadline {
            return ControlFlow::Continue(pause);
        }
        self.failed = Some(failure.copy());
        ControlFlow::Break(Err(self.no_answer(failure, now)))
    }

    /// Redis decides how a release ends. [`Compared::Done`] means that the key held the token until
    /// Redis deleted it. So no other process held the lock in the meantime, even if the lease had
    /// run out by the local clock. But if Redis said earlier that the token was gone, another
    /// process may have had the lock in between, so the hold stays lost.
    ///
    /// A key that is absent or holds another token proves a loss if the hold was over when the
    /// release began, or if the answer came before the hold's validity would have ended. A later
    /// answer proves nothing: the lease may have run out while the release was on its way. If an
    /// earlier try got no answer (`maybe_done`), that try may have deleted the key, so a hold whose
    /// validity has not ended counts as released. But a key that was to be kept would still be
    /// there: if it is gone before its time, nothing is kept.
    fn judge(&self, compared: Compared, now: Moment) -> Result<(), Error> {
        if self.hold.token_was_gone() {
            return Err(self.hold.lose(LostCause::Expired)); // A recorded cause stays.
        }
        if compared == Compared::Done {
            return Ok(());
        }
        if self.valid_until.is_some_and(|until| until <= now) {
            let source = "the lease ran out while the release was on its way";
            return Err(self.unconfirmed(Duration::ZERO, source.into()));
        }
        let was_valid = self.valid_until.is_some();
        let is_kept = self.kept_until.is_some_and(|until| until > now);
        if was_valid && self.maybe_done && !is_kept {
            return Ok(());
        }
        let cause = match (compared, was_valid, self.maybe_done) {
            (Compared::Absent, true, _) => LostCause::Deleted,
            // The key may hold the next thread's token, which was sent with an earlier try.
            (Compared::Absent, false, _) | (_, false, true) => LostCause::Expired,
            _ => LostCause::Taken,
        };
        Err(self.hold.lose(cause))
    }

    /// Returns the error of a release without an answer. If the hold was over when the release
    /// began, or has since been found lost, it is lost. Otherwise, the caller had the lock until
    /// the release began.
    fn no_answer(&self, failure: Failure, now: Moment) -> Error {
        if self.valid_until.is_none() || self.hold.lost().is_some() {
            return self.hold.lose(LostCause::Expired);
        }
        let at_most = self
            .hold
            .gone_by()
            .max(self.kept_until.unwrap_or(now))
            .since(now);
        let name = self.hold.key.name();
        warn!(
            target: "relatch::release",
            "the release of lock {name:?} is not confirmed: its key may exist for up to {at_most:.1?}"
        );
        self.unconfirmed(at_most, failure.into_cause())
    }

    fn unconfirmed(&self, at_most: Duration, source: Cause) -> Error {
        Error::Unconfirmed {
            key: self.hold.key.name().to_string(),
            at_most,
            source,
        }
    }
}

/// The results of one try and of the claim after it.
pub(crate) type Tried = (Result<Compared, Failure>, HandoffOutcome);

/// Sends one try of a release that deletes the key, and after it the next thread's claim.
pub(crate) fn delete(store: &Store, hold: &Hold, claim: Option<&Claim>, deadline: Moment) -> Tried {
    let key = hold.key.in_redis();
    let token = &hold.token;
    let mut connection = match store.checkout(key, deadline) {
        Ok(connection) => connection,
        Err(failure) => return (Err(failure), HandoffOutcome::NotTaken),
    };
    let Some(claim) = claim else {
        return (
            connection.remove(&[key], token, deadline),
            HandoffOutcome::NotTaken,
        );
    };
    let sent = Moment::now();
    match connection.remove_and_claim(token, claim.wanted(key), deadline) {
        Ok((removed, ClaimReply::Taken { number: fence })) => {
            let answered = Moment::now();
            (
                removed,
                HandoffOutcome::Taken {
                    sent,
                    answered,
                    fence,
                },
            )
        }
        Ok((removed, _)) => (removed, HandoffOutcome::NotTaken),
        Err(failure) => {
            let Failure::Unanswered { link_stands, .. } = failure else {
                return (Err(failure), HandoffOutcome::NotTaken);
            };
            if link_stands {
                // Redis may still execute the claim. `abandon` writes a deletion after it to the
                // same connection, so that Redis executes the deletion later.
                connection.abandon(&[key], &claim.token);
            }
            (Err(failure), HandoffOutcome::Unanswered { sent })
        }
    }
}

/// Sends one try of the release of a lock that stays taken for a while.
pub(crate) fn keep(
    store: &Store,
    hold: &Hold,
    until: Moment,
    deadline: Moment,
) -> Result<Compared, Failure> {
    let key = hold.key.in_redis();
    let mut connection = store.checkout(key, deadline)?;
    // A lease is a whole number of milliseconds. If the fraction were cut off, the key would expire
    // too soon. If the time is over by now, the key has to go; Redis refuses an expiry of zero.
    let rest = until.since(Moment::now()).max(Duration::from_nanos(1));
    let rest = Lease::new(rest + Duration::from_nanos(999_999));
    connection.keep(key, &hold.token, rest.millis(), deadline)
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use super::*;
    use crate::base::options::Options;
    use crate::hold::tests::{sample, sample_with};
    use crate::keeping::keeper::tests::keeper_without_redis;
    use crate::keeping::renewal::on_renewal;
    use crate::store::Refusal;

    const LEASE: Duration = Duration::from_secs(1);

    /// The result that the caller gets.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum End {
        Released,
        Unconfirmed,
        Lost(LostCause),
    }
    use End::{Lost, Released, Unconfirmed};
    use LostCause::{Deleted, Expired, Taken};

    fn end(result: &Result<(), Error>) -> End {
        match result {
            Ok(()) => Released,
            Err(Error::Unconfirmed { at_most, .. }) => {
                assert_eq!(
                    *at_most,
                    Duration::ZERO,
                    "Redis has said that the token is gone"
                );
                Unconfirmed
            }
            Err(Error::Lost { cause, .. }) => Lost(*cause),
            Err(other) => panic!("{other}"),
        }
    }

    /// Whether the hold was valid when the release began, and whether the answer came before that
    /// validity would have ended.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Timing {
        InTime,
        ValidButAnsweredLate,
        Over,
    }
    use Timing::{InTime, Over, ValidButAnsweredLate};

    fn release_of(hold: &Hold, valid_until: Option<Moment>) -> Release<'_> {
        static KEEPER: LazyLock<Arc<Keeper>> = LazyLock::new(keeper_without_redis);
        Release {
            keeper: &KEEPER,
            hold,
            turn: Turn::outside(&KEEPER.core.queues, hold.key.name()),
            next: None,
            valid_until,
            deadline: Moment::NEVER,
            kept_until: None,
            first: None,
            answered: None,
            maybe_done: false,
            failed: None,
            handed: HandoffOutcome::NotTaken,
        }
    }

    /// How the release of a hold ends. `lost_before`: the hold was lost before the release, with
    /// this cause.
    fn release(
        compared: Compared,
        time: Timing,
        maybe_done: bool,
        lost_before: Option<LostCause>,
    ) -> End {
        let sent = Moment::from_nanos(1_000);
        let hold = sample("a", LEASE, sent);
        let end_of_hold = hold.valid_until();
        if let Some(cause) = lost_before {
            hold.lose(cause);
        }
        let valid_until = hold.close(if time == Over { end_of_hold } else { sent });
        // For a hold that was lost before, `close` returns `None`. Unless `time` is `Over`, the
        // test assumes that the loss became known just after `close`.
        let valid_until = valid_until.or((time != Over).then_some(end_of_hold));
        let late = u64::from(time != InTime);
        let answered = Moment::from_nanos(end_of_hold.as_nanos() - 1 + late);
        end(&Release {
            maybe_done,
            ..release_of(&hold, valid_until)
        }
        .judge(compared, answered))
    }

    #[test]
    fn each_answer_to_a_release_has_its_result() {
        let table = [
            // Columns: the answer; the timing; two results. The first result is for an answer to
            // the first try. The second is for an answer that comes after an earlier one was lost.
            (Compared::Done, InTime, [Released, Released]),
            (Compared::Done, ValidButAnsweredLate, [Released, Released]),
            (Compared::Done, Over, [Released, Released]),
            (Compared::Absent, InTime, [Lost(Deleted), Released]),
            (
                Compared::Absent,
                ValidButAnsweredLate,
                [Unconfirmed, Unconfirmed],
            ),
            (Compared::Absent, Over, [Lost(Expired), Lost(Expired)]),
            (Compared::NotOurs, InTime, [Lost(Taken), Released]),
            (
                Compared::NotOurs,
                ValidButAnsweredLate,
                [Unconfirmed, Unconfirmed],
            ),
            (Compared::NotOurs, Over, [Lost(Taken), Lost(Expired)]),
        ];
        for (compared, time, [first, later]) in table {
            let asked = (compared, time);
            assert_eq!(release(compared, time, false, None), first, "{asked:?}");
            assert_eq!(
                release(compared, time, true, None),
                later,
                "{asked:?}, after an answer was lost"
            );
            for maybe_done in [false, true] {
                for cause in [Deleted, Taken] {
                    let end = release(compared, time, maybe_done, Some(cause));
                    assert_eq!(end, Lost(cause), "{asked:?}: Redis has denied it before");
                }
                if time == Over {
                    let end = release(compared, time, maybe_done, Some(Expired));
                    let ended = if compared == Compared::Done {
                        Released
                    } else {
                        Lost(Expired)
                    };
                    assert_eq!(end, ended, "{asked:?}: the clock alone has ended it");
                }
            }
        }
    }

    /// A key that was to be kept is there until its time, or was never kept.
    #[test]
    fn a_key_that_is_gone_before_its_time_was_not_kept() {
        let sent = Moment::from_nanos(1_000);
        let options = Options {
            lease: LEASE,
            keep_at_least: LEASE / 2,
            ..Options::default()
        };
        let end_at = |compared, answered| {
            let hold = sample_with("a", &options, sent);
            let valid_until = Some(hold.valid_until());
            let keeping = Release {
                kept_until: Some(hold.keep_until()),
                maybe_done: true,
                ..release_of(&hold, valid_until)
            };
            end(&keeping.judge(compared, answered))
        };
        let until = sent.after(LEASE / 2);
        let before = Moment::from_nanos(until.as_nanos() - 1);
        assert_eq!(end_at(Compared::Done, before), Released);
        assert_eq!(end_at(Compared::Absent, until), Released);
        assert_eq!(end_at(Compared::Absent, before), Lost(Deleted));
        assert_eq!(end_at(Compared::NotOurs, before), Lost(Taken));
    }

    fn lost_answer() -> Failure {
        Failure::Unanswered {
            link_stands: true,
            cause: "no answer".into(),
        }
    }

    #[test]
    fn a_release_is_tried_again_at_once_after_the_first_lost_answer_and_then_with_pauses() {
        let hold = sample("a", LEASE, Moment::now());
        let mut release = release_of(&hold, Some(hold.valid_until()));
        let mut backoff = Backoff::after_failure();
        let mut pause = |failure| match release.next(Err(failure), &mut backoff, Moment::now()) {
            ControlFlow::Continue(pause) => pause,
            ControlFlow::Break(released) => panic!("{released:?}"),
        };
        let shortest = Duration::from_millis(5);
        assert!(
            pause(Failure::not_sent("refused")) >= shortest,
            "the server is not there"
        );
        assert_eq!(pause(lost_answer()), Duration::ZERO);
        assert!(pause(lost_answer()) >= shortest);
        let ControlFlow::Break(released) =
            release.next(Ok(Compared::Absent), &mut backoff, Moment::now())
        else {
            panic!("Redis has answered");
        };
        assert!(
            release.failed.is_none() && released.is_ok(),
            "an earlier try may have deleted it"
        );
    }

    #[test]
    fn a_release_ends_where_the_next_try_would_come_after_its_deadline_or_redis_refuses() {
        let deadline = Moment::now().after(Duration::from_millis(500));
        let before = Moment::from_nanos(deadline.as_nanos() - 1);
        let refused = || Failure::Refused(Refusal::found("NOPERM", "NOPERM no"));
        // Whether the hold was valid, the result of the try, and how the release ends.
        for (was_valid, failure, now, ends) in [
            (true, lost_answer(), before, ""),
            (true, lost_answer(), deadline, "unconfirmed"),
            (true, refused(), before, "unconfirmed"),
            (false, lost_answer(), deadline, "lost"),
        ] {
            let hold = sample("a", LEASE, Moment::now());
            let valid_until = was_valid.then(|| hold.valid_until());
            let mut release = Release {
                deadline,
                ..release_of(&hold, valid_until)
            };
            let next = release.next(Err(failure), &mut Backoff::after_failure(), now);
            let told = match &next {
                ControlFlow::Break(Err(Error::Unconfirmed { at_most, .. }))
                    if *at_most > LEASE / 4 =>
                {
                    "unconfirmed"
                }
                ControlFlow::Break(Err(Error::Lost { cause: Expired, .. })) => "lost",
                ControlFlow::Continue(_) => "",
                ControlFlow::Break(other) => panic!("{other:?}"),
            };
            assert_eq!((told, release.failed.is_some()), (ends, !ends.is_empty()));
        }
    }

    #[test]
    fn a_hold_that_a_renewal_has_denied_after_its_lease_stays_lost() {
        for compared in [Compared::Absent, Compared::NotOurs] {
            let (hold, now) = (sample("a", LEASE, Moment::from_nanos(1_000)), Moment::now());
            assert!(
                hold.check(now).is_err() && !on_renewal(&hold, hold.lease(), compared, now, now)
            );
            let result = release_of(&hold, None).judge(Compared::Done, now);
            assert_eq!(end(&result), Lost(Expired), "{compared:?}");
        }
    }
}
