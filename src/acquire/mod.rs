//! Taking a lock that this thread does not hold: asking, waiting, giving up.
//!
//! [`acquire`] is the loop: it asks, sleeps and looks at the clock. [`step`] decides what it does
//! next and for how long it sleeps. [`claim`] is one attempt over the wire, and what a lost answer
//! leaves behind. [`adopt`] takes over a lock that was handed over. This room may use `keeping`,
//! `waiting`, `hold`, `store` and `base`.

mod adopt;
mod claim;
mod step;

use std::time::Duration;

use crate::acquire::claim::PendingClaim;
use crate::acquire::step::{End, Progress, Step};
use crate::base::clock::Moment;
use crate::base::emit::{debug, info};
use crate::base::error::Error;
use crate::base::error::body::Made;
use crate::base::key::{Key, NOT_A_STRING};
use crate::base::owner::holder::Holder;
use crate::base::owner::machine;
use crate::hold::AcquiredAt;
use crate::store::{Cause, Compared, Failure};
use crate::waiting::handoff::{Claim, HandoffOutcome};
use crate::waiting::patience::{Kind, Patience};
use crate::waiting::queues::Joined;
use crate::wakeups::table::Registration;

pub(crate) use crate::acquire::adopt::Adoption;
pub(crate) use crate::acquire::claim::{AcquireContext, Answer, Attempt, Taken};
pub(crate) use crate::acquire::step::Ask;

/// How often a waiter with `reclaim_dead` checks whether the holder has died.
const DEAD_HOLDER_CHECK: Duration = Duration::from_millis(50);

/// How long after a change of the key its wake-up may come, on a busy machine.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// The error of a wait that ends while the lock is busy. `cause` says why the last attempt failed,
/// or why no holder is known.
pub(crate) fn busy(
    key: &Key,
    patience: &Patience,
    holder: Option<Holder>,
    cause: Option<Cause>,
) -> Error {
    let waited = Moment::now().since(patience.began);
    Error::Timeout {
        key: key.name().to_string(),
        waited,
        holder: holder.map(Box::new),
        held: Vec::new(),
        source: cause,
        made: Made::now(),
    }
}

/// Takes the lock for the thread that has the turn. If the lock was handed off to that thread, and
/// the lease still lasts, no command is needed.
pub(crate) fn acquire(
    context: &AcquireContext<'_>,
    patience: &Patience,
    joined: &Joined,
    claim: Claim,
) -> Result<Taken, Error> {
    let handed = joined.start.handed;
    if let HandoffOutcome::Taken {
        sent,
        answered,
        fence,
    } = handed
        && Moment::now() < claim.lease.valid_until(sent)
    {
        context.counters.handed_off.add(1);
        return Ok(Taken {
            token: claim.token,
            fence,
            at: AcquiredAt { sent, answered },
        });
    }
    let mut pending = PendingClaim::new(context, claim, handed, !patience.once, patience.deadline);
    let has_given_up = pending.has_given_up();
    ask_until_taken(context, patience, joined, has_given_up, |ask| {
        pending.ask(ask)
    })
}

/// Calls `attempt` until the lock is taken, or until the wait ends without it.
///
/// `has_given_up`: before the first attempt, this thread has given up a token that may keep the
/// lock busy.
pub(crate) fn ask_until_taken(
    context: &AcquireContext<'_>,
    patience: &Patience,
    joined: &Joined,
    has_given_up: bool,
    attempt: impl FnMut(Ask) -> Attempt,
) -> Result<Taken, Error> {
    let (lease, attempts) = (context.lease.time(), joined.start.attempts.clone());
    let progress = Progress::new(patience, lease, context.poll_every, attempts);
    let acquisition = Acquisition {
        context,
        patience,
        joined,
        progress,
        registration: None,
    };
    acquisition.run(has_given_up, attempt)
}

/// True if the lock is probably busy, so that the first attempt also asks who has it.
fn expects_busy(patience: &Patience, joined: &Joined, has_given_up: bool) -> bool {
    has_given_up || !patience.once && joined.start.crowded
}

/// One acquisition, over as many attempts as it takes.
struct Acquisition<'a> {
    context: &'a AcquireContext<'a>,
    patience: &'a Patience,
    joined: &'a Joined,
    progress: Progress<'a>,
    /// Where wake-ups arrive.
    registration: Option<Registration<'a>>,
}

impl Acquisition<'_> {
    fn run(
        mut self,
        mut has_given_up: bool,
        mut attempt: impl FnMut(Ask) -> Attempt,
    ) -> Result<Taken, Error> {
        let mut next = Err(self.first_step(has_given_up));
        loop {
            let step = match next {
                Ok(taken) => return Ok(taken),
                Err(step) => step,
            };
            if let Some(end) = self.take(step) {
                return Err(self.error(end));
            }
            self.joined.turn.asks(Moment::now());
            // The answer to this attempt is newer than the changes that caused earlier wake-ups.
            self.forget_wake_ups();
            // A wait that is stopped from here on leaves a wake-up, so the next sleep ends at once.
            if let Err(vain) = (self.context.is_vain)(None, false) {
                return Err(self.error(End::Vain(vain)));
            }
            let tried = attempt(self.progress.ask(has_given_up));
            has_given_up = tried.has_given_up;
            next = self.judge(tried);
        }
    }

    fn first_step(&mut self, has_given_up: bool) -> Step {
        if !self.patience.once {
            self.nap(self.joined.start.nap);
        }
        let is_busy = expects_busy(self.patience, self.joined, has_given_up);
        if is_busy {
            self.progress.expects_busy()
        } else {
            Step::Ask
        }
    }

    /// What an attempt has brought: the lock, or the next step.
    fn judge(&mut self, tried: Attempt) -> Result<Taken, Step> {
        Err(match tried.answer {
            Ok(Answer::Taken(taken)) => {
                // The lease runs meanwhile.
                self.report_missed_change(None, taken.at.sent.after(self.context.lease.time() / 3));
                return Ok(taken);
            }
            Ok(Answer::Busy { holder, tracked }) => self.busy(holder, tracked, tried.since),
            Ok(Answer::NotAString) => {
                self.joined.turn.answered();
                Step::GiveUp(End::NotALock {
                    found: NOT_A_STRING.to_owned(),
                })
            }
            Err(failure) => self.failed(failure, tried.since),
        })
    }

    /// Does what has to be done before the next attempt. Returns the end if there is no next
    /// attempt.
    fn take(&mut self, step: Step) -> Option<End> {
        match step {
            Step::Ask => return None,
            Step::Register => {
                // The waiter registers before it asks Redis for invalidations. The first
                // invalidation may come at once, and a waiter that registered later would sleep
                // through it.
                self.register();
                return None;
            }
            Step::Sleep { until } => {
                (self.context.sleeps)();
                self.sleep(until);
            }
            Step::Wait {
                until,
                tracked,
                long,
            } => self.wait(until, tracked, long),
            Step::GiveUp(end) => return Some(end),
        }
        self.progress.slept(Moment::now())
    }

    fn register(&mut self) {
        let AcquireContext { listeners, key, .. } = *self.context;
        self.registration
            .get_or_insert_with(|| listeners.wakeups.register(key.in_redis()));
    }

    /// Sleeps until `until`, whatever happens to the key. Only a stop ends this sleep.
    fn sleep(&mut self, until: Moment) {
        self.register();
        while (self.context.is_vain)(None, false).is_ok()
            && self
                .registration
                .as_ref()
                .is_some_and(|registration| registration.wait(until))
        {
            self.forget_wake_ups();
        }
    }

    fn forget_wake_ups(&mut self) {
        if self.registration.as_ref().is_some_and(Registration::forget) {
            self.progress.woken();
        }
    }

    /// Sleeps until a wake-up or until `until`. After that, if Redis tracks the key, leaves the
    /// lock to other processes for a while. Holds no connection meanwhile.
    fn wait(&mut self, until: Moment, tracked: bool, long: bool) {
        let woken = self.sleeps_until_woken(until);
        if long && !woken && until <= Moment::now() {
            let AcquireContext { listeners, key, .. } = *self.context;
            self.progress.not_woken(
                listeners
                    .of_key(key.in_redis())
                    .and_then(|it| it.client_id()),
            );
        }
        if tracked {
            self.nap(self.joined.turn.nap());
        }
    }

    /// Sleeps until a wake-up or until `until`. With `reclaim_dead`, also returns soon after the
    /// holder has died, which Redis does not report. True after a wake-up.
    fn sleeps_until_woken(&self, until: Moment) -> bool {
        loop {
            let speaks = (self.context.sleeps)();
            let check = if self.context.reclaim_dead {
                Moment::now().after(DEAD_HOLDER_CHECK)
            } else {
                Moment::NEVER
            };
            let registration = self.registration.as_ref();
            let woken = registration
                .is_some_and(|registration| registration.wait(until.min(check).min(speaks)));
            let is_dead = || {
                self.progress
                    .holder()
                    .is_some_and(|holder| self.is_dead(holder))
            };
            if woken || until <= Moment::now() || is_dead() {
                return woken;
            }
        }
    }

    /// Leaves the lock to other processes for the time `nap`.
    fn nap(&mut self, nap: Duration) {
        if !nap.is_zero() {
            self.sleep(self.progress.nap_until(nap, Moment::now()));
        }
    }

    /// Handles the answer that the lock is busy.
    fn busy(&mut self, holder: Option<Holder>, tracked: bool, since: Moment) -> Step {
        self.progress.answered();
        self.joined.turn.answered();
        if let Some(holder) = &holder {
            if let Some(end) = self.examine(holder, since) {
                return Step::GiveUp(end);
            }
            if self.is_dead(holder) && self.reclaim(holder) && self.progress.reclaimed() {
                return Step::Ask;
            }
        }
        self.report_missed_change(holder.as_ref(), self.patience.deadline);
        if !self.patience.once {
            let AcquireContext {
                store,
                listeners,
                counters,
                key,
                ..
            } = *self.context;
            if let Some(node) = store.node_of(key.in_redis()) {
                listeners.start(&node);
            }
            counters.waited.add(u64::from(
                self.progress.is_first_busy() && !self.joined.waited,
            ));
        }
        self.progress.busy(holder, tracked, Moment::now())
    }

    /// Notes who has the lock. Returns the end if a wait for this holder would last for ever.
    fn examine(&mut self, holder: &Holder, since: Moment) -> Option<End> {
        let (pid, now) = (self.context.owner.pid(), Moment::now());
        if let Err(vain) = (self.context.is_vain)(Some(holder), !self.patience.once) {
            return Some(End::Vain(vain));
        }
        let end = self.progress.examine(holder, now);
        if end.is_none() {
            let of_this_process = holder.owner().is_some_and(|owner| owner.pid() == pid);
            self.joined
                .turn
                .saw(holder, now.since(since), of_this_process);
        }
        end
    }

    /// True if the holder has certainly died, and the options allow this thread to take its lock
    /// over.
    fn is_dead(&self, holder: &Holder) -> bool {
        let AcquireContext {
            owner,
            machine,
            reclaim_dead,
            ..
        } = *self.context;
        reclaim_dead && machine::is_dead(holder.raw(), owner.host(), machine)
    }

    /// Deletes the key of a dead holder, if the key still holds that holder's token. True if Redis
    /// says that it has done so. A lost answer does no harm: the next attempt finds out whether the
    /// key is gone.
    fn reclaim(&self, holder: &Holder) -> bool {
        let AcquireContext {
            store,
            counters,
            key,
            ..
        } = *self.context;
        let deadline = self.patience.deadline;
        let removed = store
            .checkout(key.in_redis(), deadline)
            .and_then(|mut connection| connection.remove(key.in_redis(), holder.raw(), deadline));
        let reclaimed = matches!(removed, Ok(Compared::Done));
        if reclaimed {
            counters.reclaimed.add(1);
            info!(
                target: "relatch::acquire",
                "lock {:?} was taken over from {holder}, a process that is gone", key.name()
            );
        }
        reclaimed
    }

    /// Makes the listener reconnect if it has missed a change.
    ///
    /// Redis may have been asked just after the change, while the wake-up was on its way. Such a
    /// wake-up comes soon. Without this wait, a listener that misses nothing would be disconnected,
    /// and all holds would be renewed. If the caller has no time for it until `limit`, nothing is
    /// proven.
    fn report_missed_change(&mut self, holder: Option<&Holder>, limit: Moment) {
        let AcquireContext { listeners, key, .. } = *self.context;
        let comes_by = Moment::now().after(ON_ITS_WAY);
        if let Some(number) = self.progress.missed_change(holder)
            && comes_by <= limit.min(self.patience.deadline)
            && !self
                .registration
                .as_ref()
                .is_some_and(|registration| registration.wait(comes_by))
            && let Some(listener) = listeners.of_key(key.in_redis())
        {
            listener.give_up(number, &"Redis sent no invalidation of a key that changed");
        }
    }

    /// Records that an attempt failed, and decides what to do next.
    fn failed(&mut self, failure: Failure, since: Moment) -> Step {
        let AcquireContext { store, key, .. } = *self.context;
        let answered_since = |since| store.answered_since(key.in_redis(), since);
        let now = Moment::now();
        let kind = self.progress.failed(&failure, since, now, answered_since);
        if kind != Kind::OutOfTime {
            self.joined.turn.failed(self.progress.silence());
        }
        let step = self.progress.after_failure(failure, kind, now);
        if let Some(failure) = self.progress.failure() {
            debug!(target: "relatch::acquire", "taking lock {:?}: {failure:?}, trying again", key.name());
        }
        step
    }

    /// The error that the caller gets.
    fn error(&self, end: End) -> Error {
        let AcquireContext { store, key, .. } = *self.context;
        match end {
            End::Busy { holder, failure } => {
                if failure.is_some() {
                    self.joined.turn.failed(None); // The time was too short to say anything about Redis.
                }
                busy(key, self.patience, holder, failure.map(Failure::into_cause))
            }
            End::Unavailable {
                failure,
                final_answer,
            } => {
                if final_answer {
                    self.joined.turn.answered();
                }
                store.error(Some(key), "taking", failure)
            }
            End::Vain(vain) => vain.error(key),
            End::NotALock { found } => key.not_a_lock(&found),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::base::options::Lease;
    use crate::base::owner::Owner;
    use crate::keeping::keeper::tests::keeper_without_redis;
    use crate::keeping::shared::Keeper;
    use crate::waiting::deadlocks::Vain;
    use crate::waiting::patience::tests::until;
    use crate::waiting::place::NoTurn;
    use crate::waiting::queues::tests::{claim, is_mine};

    const LEASE: Duration = Duration::from_secs(30);

    /// A manager without a Redis. The test decides how each attempt ends.
    struct Rig {
        keeper: Keeper,
        key: Key,
        owner: Owner,
        reclaim_dead: bool,
    }

    impl Rig {
        fn new() -> Rig {
            let owner = Owner::new("host".into(), std::process::id(), 1);
            let key = Key::new("lock:", "a").unwrap();
            Rig {
                keeper: keeper_without_redis(),
                key,
                owner,
                reclaim_dead: false,
            }
        }

        fn context(&self) -> AcquireContext<'_> {
            AcquireContext {
                is_vain: &is_mine,
                sleeps: &|| Moment::NEVER,
                store: &self.keeper.store,
                listeners: &self.keeper.listeners,
                counters: &self.keeper.counters,
                keeper: &self.keeper,
                key: &self.key,
                owner: &self.owner,
                machine: "0123abcd",
                lease: Lease::new(LEASE),
                reclaim_dead: self.reclaim_dead,
                poll_every: Duration::from_millis(2),
            }
        }

        /// Takes the lock with these answers, one for each attempt. Also returns what the attempts
        /// asked.
        fn take(
            &self,
            patience: &Patience,
            answers: impl IntoIterator<Item = Result<Answer, Failure>>,
        ) -> (Result<Taken, Error>, Vec<Ask>) {
            let (mut asked, mut answers) = (Vec::new(), answers.into_iter());
            let no_claim = || unreachable!("nobody is in the queue");
            let turn = self.keeper.queues.join(
                self.key.name(),
                patience,
                |_, _| Ok(()),
                |_| true,
                || (),
                no_claim,
            );
            let turn = turn.expect("nobody is in the queue");
            let taken = ask_until_taken(&self.context(), patience, &turn, false, |ask| {
                asked.push(ask);
                let answer = answers
                    .next()
                    .expect("there are more attempts than answers");
                Attempt {
                    since: Moment::now(),
                    answer,
                    has_given_up: false,
                }
            });
            assert!(
                self.keeper.listeners.wakeups.is_empty(),
                "the thread is still registered"
            );
            (taken, asked)
        }
    }

    fn soon() -> Patience {
        until(Moment::now().after(Duration::from_secs(5)))
    }

    fn busy_by(value: &str, left: Option<Duration>, tracked: bool) -> Answer {
        Answer::Busy {
            holder: Some(Holder::new(value.as_bytes(), left)),
            tracked,
        }
    }

    fn busy_by_nobody() -> Answer {
        Answer::Busy {
            holder: None,
            tracked: false,
        }
    }

    fn taken() -> Answer {
        let now = Moment::now();
        let at = AcquiredAt {
            sent: now,
            answered: now,
        };
        Answer::Taken(Taken {
            token: "ours".to_owned(),
            fence: None,
            at,
        })
    }

    fn lost_answer() -> Failure {
        Failure::Unanswered {
            link_stands: true,
            cause: "no answer".into(),
        }
    }

    #[test]
    fn a_waiter_asks_who_has_the_lock_and_again_until_it_is_free() {
        let rig = Rig::new();
        let left = Some(Duration::from_millis(3));
        let answers = [
            Ok(busy_by_nobody()),
            Ok(busy_by("theirs", left, true)),
            Ok(busy_by("theirs", None, false)),
            Ok(taken()),
        ];
        let (taken, asked) = rig.take(&soon(), answers);
        assert_eq!(taken.unwrap().token, "ours");
        assert_eq!(
            asked,
            [
                Ask::Claim,
                Ask::ClaimOrLook,
                Ask::ClaimOrLook,
                Ask::ClaimOrLook
            ]
        );
        assert_eq!(rig.keeper.counters.read().waited, 1, "counted once");
    }

    #[test]
    fn a_single_try_ends_with_the_holder_and_has_not_waited() {
        let rig = Rig::new();
        let once = Patience {
            once: true,
            ..soon()
        };
        let (error, asked) = rig.take(
            &once,
            [
                Ok(busy_by_nobody()),
                Ok(busy_by("theirs", Some(LEASE), false)),
            ],
        );
        assert_eq!(asked, [Ask::Claim, Ask::Look]);
        match error.unwrap_err() {
            Error::Timeout {
                holder: Some(holder),
                source: None,
                ..
            } => assert_eq!(holder.raw(), "theirs"),
            other => panic!("{other:?}"),
        }
        assert_eq!(rig.keeper.counters.read().waited, 0);
    }

    #[test]
    fn a_wait_ends_at_its_deadline_with_the_holder_and_not_before() {
        let rig = Rig::new();
        let began = Moment::now();
        let deadline = began.after(Duration::from_millis(8));
        let answers = std::iter::repeat_with(|| Ok(busy_by("theirs", Some(LEASE), true)));
        let (error, asked) = rig.take(
            &Patience {
                began,
                ..until(deadline)
            },
            answers,
        );
        assert!(
            asked.len() <= 3,
            "one at first, one after registering, and one before the deadline"
        );
        assert!(deadline <= Moment::now());
        match error.unwrap_err() {
            Error::Timeout {
                waited,
                holder: Some(_),
                source: None,
                ..
            } => {
                assert!(waited >= Duration::from_millis(8));
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wake_up_ends_the_sleep() {
        let rig = Rig::new();
        let asleep = Instant::now();
        // The test wakes the waiter after its second attempt. An earlier wake-up would be
        // forgotten, since the answer to that attempt is newer.
        let (asks, asked) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            let rig = &rig;
            let waker = scope.spawn(move || {
                asked.recv().unwrap();
                asked.recv().unwrap();
                rig.keeper
                    .listeners
                    .wakeups
                    .wake(rig.key.in_redis().as_bytes());
            });
            let answers = [
                Ok(busy_by_nobody()),
                Ok(busy_by("theirs", Some(LEASE), true)),
                Ok(taken()),
            ];
            let answers = answers.into_iter().inspect(|_| _ = asks.send(()));
            rig.take(
                &until(Moment::now().after(Duration::from_secs(60))),
                answers,
            )
            .0
            .unwrap();
            waker.join().unwrap();
        });
        assert!(
            asleep.elapsed() < Duration::from_secs(10),
            "the wake-up did not end the sleep"
        );
    }

    #[test]
    fn lost_answers_are_asked_again_and_a_proper_one_ends_the_silence() {
        let rig = Rig::new();
        let (taken, asked) = rig.take(
            &soon(),
            [Err(lost_answer()), Err(lost_answer()), Ok(taken())],
        );
        assert_eq!(taken.unwrap().token, "ours");
        assert_eq!(asked, [Ask::Claim, Ask::ClaimOrLook, Ask::ClaimOrLook]);
    }

    #[test]
    fn each_end_without_the_lock_is_an_error_of_its_own() {
        let rig = Rig::new();
        let wrong_type = rig.take(&soon(), [Ok(Answer::NotAString)]).0;
        assert!(matches!(wrong_type, Err(Error::NotALock { found, .. }) if found == NOT_A_STRING));
        let refusal = || crate::store::Refusal {
            code: "NOPERM".into(),
            message: "NOPERM no".into(),
        };
        let refused = rig.take(&soon(), [Err(Failure::Refused(refusal()))]).0;
        assert!(matches!(refused, Err(Error::Refused { code, .. }) if code == "NOPERM"));
        let once = Patience {
            once: true,
            ..soon()
        };
        let silent = rig.take(&once, [Err(lost_answer()), Err(lost_answer())]).0;
        assert!(
            matches!(silent, Err(Error::Unavailable { .. })),
            "{silent:?}"
        );
    }

    /// Takes the lock with a start that is changed. Returns what the attempts asked at which
    /// moments.
    fn starts(
        rig: &Rig,
        patience: &Patience,
        given_up: bool,
        change: impl FnOnce(&mut Joined),
    ) -> Vec<(Ask, Moment)> {
        let queues = &rig.keeper.queues;
        let mut joined = queues
            .join(
                rig.key.name(),
                patience,
                |_, _| Ok(()),
                |_| true,
                || (),
                || unreachable!(),
            )
            .unwrap();
        change(&mut joined);
        let mut asked = Vec::new();
        let result = ask_until_taken(&rig.context(), patience, &joined, given_up, |ask| {
            let now = Moment::now();
            asked.push((ask, now));
            let answer = if asked.len() == 1 {
                busy_by_nobody()
            } else {
                taken()
            };
            Attempt {
                since: now,
                answer: Ok(answer),
                has_given_up: false,
            }
        });
        assert!(result.is_ok() || patience.once, "{result:?}");
        asked
    }

    #[test]
    fn a_wait_that_was_stopped_before_its_first_attempt_asks_nothing() {
        let rig = Rig::new();
        let joined = rig.keeper.queues.join_free(rig.key.name());
        let context = AcquireContext {
            is_vain: &|_, _| Err(Vain::Stopped),
            ..rig.context()
        };
        let taken = ask_until_taken(&context, &soon(), &joined, false, |_| {
            panic!("it was stopped")
        });
        assert!(matches!(taken, Err(Error::Stopped { .. })), "{taken:?}");
    }

    #[test]
    fn the_first_attempt_asks_who_has_a_lock_that_is_probably_busy() {
        let rig = Rig::new();
        let once = Patience {
            once: true,
            ..soon()
        };
        let first = |patience: &Patience, given_up, crowded| {
            starts(&rig, patience, given_up, |joined| {
                joined.start.crowded = crowded;
            })[0]
                .0
        };
        assert_eq!(first(&soon(), false, false), Ask::Claim);
        assert_eq!(first(&soon(), false, true), Ask::ClaimOrLook);
        assert_eq!(first(&soon(), true, false), Ask::ClaimOrLook);
        assert_eq!(first(&once, false, true), Ask::Claim);
        assert_eq!(first(&once, true, false), Ask::ClaimOrLook);
    }

    #[test]
    fn a_turn_that_starts_with_a_nap_asks_after_it_unless_it_asks_once() {
        let rig = Rig::new();
        let nap = Duration::from_millis(30);
        let asked_after = |patience: &Patience| {
            let began = Moment::now();
            starts(&rig, patience, false, |joined| joined.start.nap = nap)[0]
                .1
                .since(began)
        };
        assert!(asked_after(&soon()) >= nap);
        assert!(
            asked_after(&Patience {
                once: true,
                ..soon()
            }) < nap
        );
    }

    #[test]
    fn a_nap_ends_when_the_wait_is_stopped() {
        let rig = Rig::new();
        let mut joined = rig.keeper.queues.join_free(rig.key.name());
        joined.start.nap = Duration::from_secs(100);
        let stopped = std::sync::atomic::AtomicBool::new(false);
        let is_stopped = || stopped.load(std::sync::atomic::Ordering::Acquire);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                stopped.store(true, std::sync::atomic::Ordering::Release);
                while is_stopped() {
                    rig.keeper
                        .listeners
                        .wakeups
                        .wake(rig.key.in_redis().as_bytes());
                }
            });
            let is_vain = |_: Option<&Holder>, _| {
                if is_stopped() {
                    Err(Vain::Stopped)
                } else {
                    Ok(())
                }
            };
            let context = AcquireContext {
                is_vain: &is_vain,
                ..rig.context()
            };
            let long = until(Moment::now().after(Duration::from_secs(300)));
            let taken = ask_until_taken(&context, &long, &joined, false, |_| {
                panic!("it was stopped")
            });
            assert!(matches!(taken, Err(Error::Stopped { .. })), "{taken:?}");
            stopped.store(false, std::sync::atomic::Ordering::Release);
        });
    }

    #[test]
    fn each_attempt_is_known_to_the_queue_from_its_beginning() {
        let rig = Rig::new();
        let queues = &rig.keeper.queues;
        let joined = queues.join_free(rig.key.name());
        let mut attempts = 0;
        let result = ask_until_taken(&rig.context(), &soon(), &joined, false, |_| {
            attempts += 1;
            let (began, outage) = (Moment::now(), Duration::from_millis(20));
            let patience = Patience {
                began,
                tolerate_outage: outage,
                an_attempt: outage,
                ..until(Moment::NEVER)
            };
            let is_over = || Moment::now().since(began) > Duration::from_secs(5);
            let is_vain = |_: Option<&Holder>, _| {
                if is_over() {
                    Err(Vain::Stopped)
                } else {
                    Ok(())
                }
            };
            let told = queues.join(rig.key.name(), &patience, is_vain, |_| false, || (), claim);
            assert!(
                matches!(told, Err(NoTurn::Outage(None))),
                "attempt {attempts}: {told:?}"
            );
            let answer = if attempts == 1 {
                busy_by_nobody()
            } else {
                taken()
            };
            Attempt {
                since: began,
                answer: Ok(answer),
                has_given_up: false,
            }
        });
        assert!(result.is_ok() && attempts == 2, "{result:?}");
    }

    #[test]
    fn a_holder_for_which_a_wait_would_never_end_ends_it() {
        let rig = Rig::new();
        let (error, _) = rig.take(
            &soon(),
            [
                Ok(busy_by_nobody()),
                Ok(busy_by("mine", Some(LEASE), false)),
            ],
        );
        assert!(matches!(error, Err(Error::WouldDeadlock { key, .. }) if key == "a"));
    }

    #[test]
    fn a_lock_that_was_handed_off_is_taken_without_a_command_unless_its_lease_is_over() {
        let rig = Rig::new();
        let patience = Patience {
            once: true,
            ..until(Moment::now().after(Duration::from_millis(20)))
        };
        for (sent, is_taken) in [(Moment::now(), true), (Moment::PAST, false)] {
            let mut joined = rig
                .keeper
                .queues
                .join(
                    rig.key.name(),
                    &patience,
                    |_, _| Ok(()),
                    |_| true,
                    || (),
                    || unreachable!(),
                )
                .unwrap();
            joined.start.handed = HandoffOutcome::Taken {
                sent,
                answered: sent,
                fence: None,
            };
            let claim = Claim {
                token: "handed".to_owned(),
                lease: Lease::new(LEASE),
                counter: None,
            };
            let taken = acquire(&rig.context(), &patience, &joined, claim);
            assert_eq!(taken.is_ok(), is_taken, "{taken:?}");
            let orphan = rig.keeper.work.lock().leases.orphans.next() < Moment::NEVER;
            assert_eq!(
                orphan, !is_taken,
                "the keeper deletes a token whose lease is over"
            );
        }
        assert_eq!(rig.keeper.counters.read().handed_off, 1);
    }
}
