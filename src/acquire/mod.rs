//! Taking a lock in Redis for the thread that has the turn: asking, waiting, giving up.
//!
//! The loop is in `Session::enter`: an [`Acquisition`] asks, and waits until it asks again.
//! [`step`] decides what it does next, and for how long it sleeps. [`claim`] is one attempt over
//! the wire, and what a lost answer leaves behind. [`adopt`] takes over a lock that was handed
//! over, [`reclaim`] that of a dead process, and [`no_reader`] is the wait of a writer. This room
//! may use `keeping`, `waiting`, `wakeups`, `hold`, `store` and `base`.

mod adopt;
mod no_reader;
mod reclaim;
mod claim;
mod step;

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::claim::PendingClaim;
use crate::acquire::step::{End, Progress, Step};
use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::base::key::NOT_A_STRING;
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::store::Failure;
use crate::waiting::deadlocks::end_cycles;
use crate::waiting::handoff::Claim;
use crate::waiting::patience::Kind;
use crate::waiting::queues::Joined;
use crate::wakeups::listener::Listener;
use crate::wakeups::table::Registration;

pub(crate) use crate::acquire::adopt::Adoption;
pub(crate) use crate::acquire::claim::{AcquireContext, Answer, AskRedis, Taken};
pub(crate) use crate::acquire::no_reader::NoReader;
#[cfg(test)]
pub(crate) use crate::acquire::step::Ask;

/// How often a waiter with `reclaim_dead` checks whether the holder has died.
const DEAD_HOLDER_CHECK: Duration = Duration::from_millis(50);

/// How long after a change of the key its wake-up may come, on a busy machine.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// One acquisition, over as many attempts as it takes.
pub(crate) struct Acquisition<'a, A> {
    context: AcquireContext<'a>,
    joined: &'a Joined,
    attempts: A,
    progress: Progress<'a>,
    /// What to do before the next attempt.
    next: Step,
    /// Where wake-ups arrive.
    registration: Option<Registration<'a>>,
}

impl<'a> Acquisition<'a, PendingClaim<'a>> {
    /// Begins the acquisition of a thread whose turn has come.
    pub(crate) fn begin(
        context: AcquireContext<'a>,
        joined: &'a Joined,
        claim: Claim,
    ) -> Acquisition<'a, PendingClaim<'a>> {
        let attempts = PendingClaim::new(context, claim, joined.start.handed);
        Acquisition::with(context, joined, attempts)
    }
}

impl<'a, A: AskRedis> Acquisition<'a, A> {
    /// Begins an acquisition. If other processes are to have a chance first, sleeps for that long.
    pub(crate) fn with(
        context: AcquireContext<'a>,
        joined: &'a Joined,
        attempts: A,
    ) -> Acquisition<'a, A> {
        let mut new = Acquisition::new(context, joined, attempts);
        // Of several slots, one may be free though rivals are there, so the first question comes at
        // once.
        if !context.wait.patience.once && context.wait.key.slots().is_empty() {
            new.nap(joined.start.nap);
        } else {
            joined.turn.skips_nap();
        }
        if new.is_probably_busy() {
            new.progress.look_at_first_attempt();
            new.register();
        }
        new
    }

    fn new(context: AcquireContext<'a>, joined: &'a Joined, attempts: A) -> Acquisition<'a, A> {
        let patience = context.wait.patience;
        let poll_every = context.core.settings.poll_every;
        Acquisition {
            context,
            joined,
            attempts,
            progress: Progress::new(patience, context.lease.time(), poll_every, &joined.start),
            next: Step::AskAgain,
            registration: None,
        }
    }

    /// True if the lock is probably busy, so that the first attempt also asks who has it. (A token
    /// that this thread has given up may keep it busy.)
    fn is_probably_busy(&self) -> bool {
        let is_crowded = !self.context.wait.patience.once && self.joined.start.crowded;
        is_crowded || self.attempts.has_given_up()
    }

    /// Asks Redis once. `None` if this thread has not got the lock: then the caller
    /// [waits](Self::wait_for_next_attempt), and asks again.
    ///
    /// If the lock was handed off to this thread, and the lease still lasts, no command is needed.
    pub(crate) fn ask(&mut self) -> Result<Option<Taken>, Error> {
        if let Some(taken) = self.attempts.handed_off() {
            let AcquireContext { core, wait, .. } = self.context;
            core.counters.of(wait.key.name()).handed_off.add(1);
            return Ok(Some(taken));
        }
        let began = Moment::now();
        self.joined.turn.asks(began);
        // The answer to this attempt is newer than the changes that caused earlier wake-ups.
        self.forget_wake_ups();
        // A wait that is stopped from here on leaves a wake-up, so the next sleep ends at once.
        self.context.wait.may_go_on()?;
        let ask = self.progress.next_ask(self.attempts.has_given_up());
        self.next = match self.attempts.attempt(ask) {
            Ok(Answer::Taken(taken)) => {
                // The lease runs meanwhile.
                let limit = taken.at.sent.after(self.context.lease.time() / 3);
                self.report_missed_change(None, limit);
                return Ok(Some(taken));
            }
            Ok(Answer::Busy {
                holder,
                tracked,
                sent,
            }) => self.busy(holder, tracked, sent),
            Ok(Answer::NotAString) => {
                self.joined.turn.answered();
                Step::GiveUp(End::NotALock {
                    found: NOT_A_STRING.to_owned(),
                })
            }
            Err(failure) => self.failed(failure, began),
        };
        Ok(None)
    }

    /// True if Redis has said that others have the lock, and the caller would wait for them.
    pub(crate) fn would_wait(&self) -> bool {
        matches!(self.next, Step::Register | Step::Wait { .. })
    }

    /// Does what has to be done before the next attempt: sleeps until the key changes, or for a
    /// while. Returns the error that the caller gets if there is no next attempt.
    pub(crate) fn wait_for_next_attempt(&mut self) -> Result<(), Error> {
        match mem::replace(&mut self.next, Step::AskAgain) {
            Step::AskAgain => return Ok(()),
            Step::Register => {
                // The waiter registers before it asks Redis for invalidations. The first
                // invalidation may come at once, and a waiter that registered later would sleep
                // through it.
                self.register();
                return Ok(());
            }
            Step::Sleep { until } => {
                self.announce();
                self.sleep_until(until);
            }
            Step::Wait {
                until,
                tracked,
                long,
            } => self.wait(until, tracked, long),
            Step::GiveUp(end) => return Err(self.error(end)),
        }
        let end = self.progress.slept(Moment::now());
        end.map_or(Ok(()), |end| Err(self.error(end)))
    }

    /// Says in the log what the thread waits for. Returns when to say it again.
    fn announce(&self) -> Moment {
        let turn = &self.joined.turn;
        turn.announce(self.context.wait)
    }

    fn register(&mut self) {
        let AcquireContext { core, wait, .. } = self.context;
        self.registration
            .get_or_insert_with(|| core.listeners.wakeups.register(wait.key.in_redis()));
    }

    /// Sleeps until `until`, whatever happens to the key. Only a stop ends this sleep.
    fn sleep_until(&mut self, until: Moment) {
        self.register();
        while !self.context.wait.must_end()
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
        self.register();
        let woken = self.sleeps_until_woken(until);
        if long && !woken && until <= Moment::now() {
            let listener = self.listener();
            self.progress
                .not_woken(listener.and_then(|it| it.client_id()));
        }
        if tracked {
            // The first of the rivals that look finds a slot, and so does the next one.
            let slots = self.context.wait.key.slots().len().max(1);
            let nap = self.joined.turn.nap();
            self.nap(nap / u32::try_from(slots).unwrap_or(1));
        }
    }

    /// Sleeps until a wake-up or until `until`. With `reclaim_dead`, also returns soon after the
    /// holder has died, which Redis does not report. True after a wake-up.
    fn sleeps_until_woken(&self, until: Moment) -> bool {
        loop {
            let speaks = self.announce();
            let check = if self.context.reclaim_dead {
                Moment::now().after(DEAD_HOLDER_CHECK)
            } else {
                Moment::NEVER
            };
            let wait = self.context.wait;
            let next = until.min(check).min(speaks).min(wait.first_end());
            let registration = self.registration.as_ref();
            let woken = registration.is_some_and(|registration| registration.wait(next));
            let is_dead = || {
                self.progress
                    .holder()
                    .is_some_and(|holder| self.context.is_dead(holder))
            };
            if woken || until <= Moment::now() || is_dead() || wait.must_end() {
                return woken;
            }
        }
    }

    /// Leaves the lock to other processes for the time `nap`.
    fn nap(&mut self, nap: Duration) {
        if !nap.is_zero() {
            self.sleep_until(self.progress.nap_until(nap, Moment::now()));
        }
    }

    /// Handles the answer that the lock is busy.
    fn busy(&mut self, holder: Option<Holder>, tracked: bool, sent: Moment) -> Step {
        self.progress.answered();
        self.joined.turn.answered();
        if let Some(holder) = &holder {
            if let Some(end) = self.examine(holder, sent) {
                return Step::GiveUp(end);
            }
            if self.context.is_dead(holder)
                && self.context.reclaim(holder)
                && self.progress.reclaimed()
            {
                return Step::AskAgain;
            }
        }
        let AcquireContext { core, wait, .. } = self.context;
        self.report_missed_change(holder.as_ref(), wait.patience.deadline);
        if !wait.patience.once {
            if let Some(node) = core.store.node_of(wait.key.in_redis()) {
                core.listeners.start(&node);
            }
            let has_counted = self.joined.waited || self.joined.turn.is_outside();
            if self.progress.is_first_busy() && !has_counted {
                core.counters.of(wait.key.name()).waited.add(1);
            }
        }
        self.progress.found_busy(holder, tracked, Moment::now())
    }

    /// Notes who has the lock. Returns the end if a wait for this holder would last for ever.
    fn examine(&mut self, holder: &Holder, sent: Moment) -> Option<End> {
        let wait = self.context.wait;
        let now = Moment::now();
        let end = self.progress.note_holder(holder, now);
        let turn = &self.joined.turn;
        let without_expiry = &self.progress.without_expiry;
        let is_new = turn.saw(holder, without_expiry, now.since(sent));
        let of_this_process = |owner: Owner| owner.pid == wait.thread.pid;
        if is_new && holder.owner().is_some_and(of_this_process) {
            // The thread that has the lock, through another manager, may itself wait in this queue,
            // or for a thread that does.
            end_cycles(|it| it.seen.as_ref() == Some(&holder.raw));
        }
        let may_sleep = turn.may_sleep(wait).err();
        let may_not = may_sleep.or_else(|| wait.is_for_itself(holder));
        may_not.map(End::MustNotWait).or(end)
    }

    /// The listener of the node that has the key.
    fn listener(&self) -> Option<Arc<Listener>> {
        let AcquireContext { core, wait, .. } = self.context;
        core.listeners.of_key(wait.key.in_redis())
    }

    /// Makes the listener reconnect if it has missed a change.
    ///
    /// Redis may have been asked just after the change, while the wake-up was on its way. Such a
    /// wake-up comes soon. Without this wait, a listener that misses nothing would be disconnected,
    /// and all holds would be renewed. If the caller has no time for it until `limit`, nothing is
    /// proven.
    fn report_missed_change(&mut self, holder: Option<&Holder>, limit: Moment) {
        let deadline = self.context.wait.patience.deadline;
        let comes_by = Moment::now().after(ON_ITS_WAY);
        let missed = self.progress.missed_change(holder);
        let Some(number) = missed.filter(|_| comes_by <= limit.min(deadline)) else {
            return;
        };
        let registration = self.registration.as_ref();
        let has_come = registration.is_some_and(|it| it.wait(comes_by));
        if !has_come && let Some(listener) = self.listener() {
            listener.give_up(number, &"Redis sent no invalidation of a key that changed");
        }
    }

    /// Records that an attempt failed, and decides what to do next.
    fn failed(&mut self, failure: Failure, since: Moment) -> Step {
        let AcquireContext { core, wait, .. } = self.context;
        let key = wait.key;
        let answered = core.store.answered_at(key.in_redis());
        let now = Moment::now();
        let kind = self.progress.note_failure(&failure, since, now, answered);
        if kind != Kind::OutOfTime {
            self.joined.turn.failed(self.progress.silence());
        }
        let step = self.progress.after_failure(failure, kind, now);
        if let Step::Sleep { .. } = step
            && let Err(error) = self.joined.turn.may_sleep(wait)
        {
            return Step::GiveUp(End::MustNotWait(error));
        }
        if let Some(failure) = self.progress.failure() {
            debug!(target: "relatch::acquire", "taking lock {:?}: {failure:?}, trying again", key.name());
        }
        step
    }

    /// The error that the caller gets.
    fn error(&self, end: End) -> Error {
        let AcquireContext { core, wait, .. } = self.context;
        match end {
            End::Busy { holder, failure } => {
                if failure.is_some() {
                    // The time was too short to say anything about Redis.
                    self.joined.turn.failed(None);
                }
                wait.timed_out(holder, failure.map(Failure::into_cause))
            }
            End::Unavailable {
                failure,
                final_answer,
            } => {
                if final_answer {
                    self.joined.turn.answered();
                }
                core.store.error(Some(wait.key), "taking", failure)
            }
            End::MustNotWait(error) => error,
            End::NotALock { found } => wait.key.not_a_lock(&found),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::base::options::Lease;
    use crate::hold::AcquiredAt;
    use crate::keeping::keeper::tests::keeper_without_redis;
    use crate::keeping::work::Keeper;
    use crate::waiting::handoff::HandoffOutcome;
    use crate::waiting::patience::Patience;
    use crate::waiting::patience::tests::until;
    use crate::waiting::place::NoTurn;
    use crate::waiting::queues::tests::claim;
    use crate::waiting::wait::Wait;
    use crate::waiting::wait::tests::{WaitRig, mine};

    const LEASE: Duration = Duration::from_secs(30);

    /// A manager without a Redis. The test decides how each attempt ends.
    struct Rig {
        keeper: Arc<Keeper>,
        wait: WaitRig,
    }

    /// The attempts of a test.
    struct Told<F> {
        has_given_up: bool,
        tell: F,
    }

    impl<F: FnMut(Ask) -> Result<Answer, Failure>> AskRedis for Told<F> {
        fn attempt(&mut self, ask: Ask) -> Result<Answer, Failure> {
            self.has_given_up = false;
            (self.tell)(ask)
        }

        fn has_given_up(&self) -> bool {
            self.has_given_up
        }
    }

    /// The loop of `Session::enter`.
    fn run<A: AskRedis>(mut acquisition: Acquisition<'_, A>) -> Result<Taken, Error> {
        loop {
            if let Some(taken) = acquisition.ask()? {
                return Ok(taken);
            }
            acquisition.wait_for_next_attempt()?;
        }
    }

    impl Rig {
        fn new() -> Rig {
            Rig {
                keeper: keeper_without_redis(),
                wait: WaitRig::new(),
            }
        }

        fn context<'a>(&'a self, wait: &'a Wait<'a>) -> AcquireContext<'a> {
            AcquireContext {
                core: &self.keeper.core,
                keeper: &self.keeper,
                wait,
                lease: Lease::new(LEASE),
                reclaim_dead: false,
                gate: None,
            }
        }

        /// Takes the turn, which no thread has.
        fn joined(&self, wait: &Wait<'_>) -> Joined {
            let queues = &self.keeper.core.queues;
            let joined = queues.join(wait.key.name(), wait, || unreachable!("nobody is there"));
            joined.expect("nobody is in the queue")
        }

        /// Takes the lock from this start, with what `tell` answers to each attempt.
        fn tells(
            &self,
            wait: &Wait<'_>,
            joined: &Joined,
            has_given_up: bool,
            tell: impl FnMut(Ask) -> Result<Answer, Failure>,
        ) -> Result<Taken, Error> {
            let told = Told { has_given_up, tell };
            run(Acquisition::with(self.context(wait), joined, told))
        }

        /// Takes the lock with these answers, one for each attempt. Also returns what the attempts
        /// asked.
        fn take(
            &self,
            patience: &Patience,
            answers: impl IntoIterator<Item = Result<Answer, Failure>>,
        ) -> (Result<Taken, Error>, Vec<Ask>) {
            let mut asked = Vec::new();
            let mut answers = answers.into_iter();
            let wait = self.wait.wait(patience);
            let taken = self.tells(&wait, &self.joined(&wait), false, |ask| {
                asked.push(ask);
                answers
                    .next()
                    .expect("there are more attempts than answers")
            });
            assert!(
                self.keeper.core.listeners.wakeups.is_empty(),
                "the thread is still registered"
            );
            (taken, asked)
        }

        fn wake(&self) {
            let wakeups = &self.keeper.core.listeners.wakeups;
            wakeups.wake(b"lock:key");
        }
    }

    fn soon() -> Patience {
        until(Moment::now().after(Duration::from_secs(5)))
    }

    fn busy_by(value: &str, left: Option<Duration>, tracked: bool) -> Answer {
        Answer::Busy {
            holder: Some(Holder::new(value.as_bytes(), left)),
            tracked,
            sent: Moment::now(),
        }
    }

    fn busy_by_nobody() -> Answer {
        Answer::Busy {
            holder: None,
            tracked: false,
            sent: Moment::now(),
        }
    }

    fn taken() -> Answer {
        let now = Moment::now();
        let at = AcquiredAt {
            sent: now,
            answered: now,
        };
        Answer::Taken(Taken {
            token: "ours".into(),
            number: None,
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
        assert_eq!(&*taken.unwrap().token, "ours");
        assert_eq!(
            asked,
            [
                Ask::Claim,
                Ask::ClaimOrLook,
                Ask::ClaimOrLook,
                Ask::ClaimOrLook
            ]
        );
        assert_eq!(rig.keeper.core.counters.read().waited, 1, "counted once");
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
            } => assert_eq!(holder.raw, "theirs"),
            other => panic!("{other:?}"),
        }
        assert_eq!(rig.keeper.core.counters.read().waited, 0);
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
                rig.wake();
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
        assert_eq!(&*taken.unwrap().token, "ours");
        assert_eq!(asked, [Ask::Claim, Ask::ClaimOrLook, Ask::ClaimOrLook]);
    }

    #[test]
    fn each_end_without_the_lock_is_an_error_of_its_own() {
        let rig = Rig::new();
        let wrong_type = rig.take(&soon(), [Ok(Answer::NotAString)]).0;
        assert!(matches!(wrong_type, Err(Error::NotALock { found, .. }) if found == NOT_A_STRING));
        let refusal = || crate::store::Refusal::found("NOPERM", "NOPERM no");
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
        let wait = rig.wait.wait(patience);
        let mut joined = rig.joined(&wait);
        change(&mut joined);
        let mut asked = Vec::new();
        let result = rig.tells(&wait, &joined, given_up, |ask| {
            asked.push((ask, Moment::now()));
            Ok(if asked.len() == 1 {
                busy_by_nobody()
            } else {
                taken()
            })
        });
        assert!(result.is_ok() || patience.once, "{result:?}");
        asked
    }

    #[test]
    fn a_wait_that_was_stopped_before_its_first_attempt_asks_nothing() {
        let rig = Rig::new();
        let patience = soon();
        let wait = rig.wait.wait(&patience);
        let joined = rig.joined(&wait);
        rig.wait.end.stop();
        let taken = rig.tells(&wait, &joined, false, |_| panic!("it was stopped"));
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
        let long = until(Moment::now().after(Duration::from_secs(300)));
        let wait = rig.wait.wait(&long);
        let mut joined = rig.joined(&wait);
        joined.start.nap = Duration::from_secs(100);
        let has_ended = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                rig.wait.end.stop();
                while !has_ended.load(std::sync::atomic::Ordering::Acquire) {
                    rig.wake();
                }
            });
            let taken = rig.tells(&wait, &joined, false, |_| panic!("it was stopped"));
            assert!(matches!(taken, Err(Error::Stopped { .. })), "{taken:?}");
            has_ended.store(true, std::sync::atomic::Ordering::Release);
        });
    }

    #[test]
    fn each_attempt_is_known_to_the_queue_from_its_beginning() {
        let rig = Rig::new();
        let patience = soon();
        let wait = rig.wait.wait(&patience);
        let joined = rig.joined(&wait);
        let mut attempts = 0;
        let result = rig.tells(&wait, &joined, false, |_| {
            attempts += 1;
            let outage = Duration::from_millis(20);
            let behind = Patience {
                began: Moment::now(),
                tolerate_outage: outage,
                an_attempt: outage,
                ..until(Moment::now().after(Duration::from_secs(5)))
            };
            let silent = WaitRig::silent();
            let queues = &rig.keeper.core.queues;
            let told = queues.join(wait.key.name(), &silent.wait(&behind), claim);
            assert!(
                matches!(told, Err(NoTurn::Outage(None))),
                "attempt {attempts}: {told:?}"
            );
            Ok(if attempts == 1 {
                busy_by_nobody()
            } else {
                taken()
            })
        });
        assert!(result.is_ok() && attempts == 2, "{result:?}");
    }

    #[test]
    fn a_holder_for_which_a_wait_would_never_end_ends_it() {
        let rig = Rig::new();
        let patience = soon();
        let wait = rig.wait.wait_of_holder(&patience, 1);
        let mut answers = [busy_by_nobody(), busy_by(&mine(1), Some(LEASE), false)].into_iter();
        let error = rig.tells(&wait, &rig.joined(&wait), false, |_| {
            Ok(answers.next().expect("it ends the wait"))
        });
        assert!(matches!(error, Err(Error::WouldDeadlock { key, .. }) if key == "key"));
    }

    /// If it registered later, it would sleep through the first invalidation.
    #[test]
    fn a_thread_whose_lock_is_probably_busy_has_registered_when_it_asks_first() {
        let rig = Rig::new();
        let patience = soon();
        let wait = rig.wait.wait(&patience);
        let mut joined = rig.joined(&wait);
        joined.start.crowded = true;
        let result = rig.tells(&wait, &joined, false, |_| {
            assert!(!rig.keeper.core.listeners.wakeups.is_empty());
            Ok(taken())
        });
        assert!(result.is_ok(), "{result:?}");
    }

    #[test]
    fn a_lock_that_was_handed_off_is_taken_without_a_command_unless_its_lease_is_over() {
        let rig = Rig::new();
        let patience = Patience {
            once: true,
            ..until(Moment::now().after(Duration::from_millis(20)))
        };
        for (sent, is_taken) in [(Moment::now(), true), (Moment::PAST, false)] {
            let wait = rig.wait.wait(&patience);
            let mut joined = rig.joined(&wait);
            joined.start.handed = HandoffOutcome::Taken {
                sent,
                answered: sent,
                fence: None,
            };
            let claim = Claim {
                token: "handed".into(),
                lease: Lease::new(LEASE),
                counter: None,
            };
            let taken = run(Acquisition::begin(rig.context(&wait), &joined, claim));
            assert_eq!(taken.is_ok(), is_taken, "{taken:?}");
            let orphan = rig.keeper.work.lock().tokens.first_orphan() < Moment::NEVER;
            assert_eq!(
                orphan, !is_taken,
                "the keeper deletes a token whose lease is over"
            );
        }
        assert_eq!(rig.keeper.core.counters.read().handed_off, 1);
    }
}
