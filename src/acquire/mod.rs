//! Taking a lock in Redis for the thread whose turn it is: asking, waiting, giving up.
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
pub(crate) mod step;

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
    /// Begins an acquisition. First naps if other processes should have a chance before this
    /// thread.
    pub(crate) fn with(
        context: AcquireContext<'a>,
        joined: &'a Joined,
        attempts: A,
    ) -> Acquisition<'a, A> {
        let mut new = Acquisition::new(context, joined, attempts);
        // Of several slots, one may be free even though there are rivals, so the first question is
        // asked at once.
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

    /// Asks Redis once. `None` if this thread did not get the lock: then the caller
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
        // (For slots, the answer names the holder whose lease ends first. That one changes with
        // each renewal, of which nobody tells the threads of the same process.)
        let is_plain = self.context.wait.key.slots().is_empty();
        if long && !woken && is_plain && until <= Moment::now() {
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

    /// Notes who has the lock. Returns the end if a wait for this holder would last forever.
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
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::acquire::step::Ask;
    use crate::base::options::Lease;
    use crate::hold::AcquiredAt;
    use crate::keeping::keeper::tests::keeper_without_redis;
    use crate::keeping::work::Keeper;
    use crate::waiting::handoff::HandoffOutcome;
    use crate::waiting::patience::Patience;
    use crate::waiting::patience::tests::until;
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
    }

    fn soon() -> Patience {
        until(Moment::now().after(Duration::from_secs(60)))
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

    fn once() -> Patience {
        Patience {
            once: true,
            ..soon()
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "an answer like any other")]
    fn busy(value: Option<&str>) -> Result<Answer, Failure> {
        Ok(Answer::Busy {
            holder: value.map(|it| Holder::new(it.as_bytes(), Some(Duration::from_millis(3)))),
            tracked: false,
            sent: Moment::now(),
        })
    }

    /// How the thread that has the turn takes the lock, with an answer to each attempt. Also
    /// returns what was asked, and whether the thread was registered by then.
    fn takes(
        rig: &Rig,
        wait: &Wait<'_>,
        joined: &Joined,
        answers: &mut [Option<Result<Answer, Failure>>],
    ) -> (Result<Taken, Error>, Vec<(Ask, bool)>) {
        let mut asked = Vec::new();
        let taken = rig.tells(wait, joined, false, |ask| {
            asked.push((ask, !rig.keeper.core.listeners.wakeups.is_empty()));
            answers[asked.len() - 1].take().expect("it asks once")
        });
        assert!(
            rig.keeper.core.listeners.wakeups.is_empty(),
            "it is still registered"
        );
        (taken, asked)
    }

    /// The patience, the answers, how many attempts are made, how they end, and whether that
    /// counts as a wait.
    type Row = (
        Patience,
        Vec<Result<Answer, Failure>>,
        usize,
        fn(Result<Taken, Error>) -> bool,
        u64,
    );

    #[test]
    fn each_end_is_told_and_each_wait_is_counted_once() {
        let refusal = || crate::store::Refusal::found("NOPERM", "NOPERM no");
        let (first, theirs) = ((Ask::Claim, false), Some("theirs"));
        let again = |ask| [(ask, true); 3];
        let mine = mine(1);
        let is_timeout = |it: Result<_, _>| {
            matches!(
                it,
                Err(Error::Timeout {
                    holder: Some(_),
                    source: None,
                    ..
                })
            )
        };
        let table: [Row; 6] = [
            (
                soon(),
                vec![busy(None), busy(theirs), busy(theirs), Ok(taken())],
                4,
                |it| it.is_ok(),
                1,
            ),
            (once(), vec![busy(None), busy(theirs)], 2, is_timeout, 0),
            (
                soon(),
                vec![Ok(Answer::NotAString)],
                1,
                |it| matches!(it, Err(Error::NotALock { .. })),
                0,
            ),
            (
                soon(),
                vec![Err(Failure::Refused(refusal()))],
                1,
                |it| matches!(it, Err(Error::Refused { .. })),
                0,
            ),
            (
                once(),
                vec![Err(lost_answer()), Err(lost_answer())],
                2,
                |it| matches!(it, Err(Error::Unavailable { .. })),
                0,
            ),
            // It would wait for its own thread.
            (
                soon(),
                vec![busy(None), busy(Some(&mine))],
                2,
                |it| matches!(it, Err(Error::WouldDeadlock { .. })),
                1,
            ),
        ];
        for (patience, answers, attempts, is_end, waited) in table {
            let rig = Rig::new();
            let wait = rig.wait.wait_of_holder(&patience, 1);
            let mut answers: Vec<_> = answers.into_iter().map(Some).collect();
            let (taken, asked) = takes(&rig, &wait, &rig.joined(&wait), &mut answers);
            let told = format!("{taken:?}");
            assert!(is_end(taken), "{told}");
            assert_eq!((asked[0], asked.len()), (first, attempts), "{told}");
            if !patience.once {
                assert_eq!(
                    asked[1..],
                    again(Ask::ClaimOrLook)[..attempts - 1],
                    "{told}"
                );
            }
            assert_eq!(rig.keeper.core.counters.read().waited, waited, "{told}");
        }
    }

    /// If it registered later, it would sleep through the first invalidation.
    #[test]
    fn the_first_attempt_asks_who_has_a_lock_that_is_probably_busy_and_has_registered() {
        for (patience, given_up, crowded, looks) in [
            (soon(), false, false, false),
            (soon(), false, true, true),
            (soon(), true, false, true),
            (once(), false, true, false),
            (once(), true, false, true),
        ] {
            let rig = Rig::new();
            let wait = rig.wait.wait(&patience);
            let mut joined = rig.joined(&wait);
            joined.start.crowded = crowded;
            let result = rig.tells(&wait, &joined, given_up, |ask| {
                assert_eq!(ask == Ask::ClaimOrLook, looks);
                assert_eq!(rig.keeper.core.listeners.wakeups.is_empty(), !looks);
                Ok(taken())
            });
            assert!(result.is_ok(), "{result:?}");
        }
    }

    /// Even without a nap, a wait that was stopped asks nothing.
    #[test]
    fn a_turn_asks_after_its_nap_unless_it_asks_once_or_is_stopped() {
        let nap = Duration::from_millis(30);
        for (patience, stops) in [(soon(), false), (once(), false), (soon(), true)] {
            let (rig, began) = (Rig::new(), Moment::now());
            let wait = rig.wait.wait(&patience);
            let mut joined = rig.joined(&wait);
            // A nap that should not happen is so long that it shows on any machine.
            let sleeps = !stops && !patience.once;
            joined.start.nap = if sleeps { nap } else { 1000 * nap };
            let has_ended = AtomicBool::new(false);
            let result = std::thread::scope(|scope| {
                scope.spawn(|| {
                    while stops && !has_ended.load(Ordering::Acquire) {
                        rig.wait.end.stop();
                        rig.keeper.core.listeners.wakeups.wake(b"lock:key");
                    }
                });
                let result = rig.tells(&wait, &joined, false, |_| Ok(taken()));
                has_ended.store(true, Ordering::Release);
                result
            });
            let slept = Moment::now().since(began);
            assert_eq!(
                matches!(result, Err(Error::Stopped { .. })),
                stops,
                "{result:?}"
            );
            let expected = if sleeps {
                nap..1000 * nap
            } else {
                Duration::ZERO..300 * nap
            };
            assert!(expected.contains(&slept), "{slept:?}");
        }
    }

    /// The claim that the thread in front was to send.
    fn handed() -> Claim {
        Claim {
            token: "handed".into(),
            lease: Lease::new(LEASE),
            counter: None,
        }
    }

    /// Redis may store it at any later moment, and the keeper deletes it.
    #[test]
    fn a_token_that_was_sent_for_a_waiter_without_an_answer_is_given_up() {
        let (rig, patience) = (Rig::new(), once());
        let wait = rig.wait.wait(&patience);
        let unanswered = HandoffOutcome::Unanswered {
            sent: Moment::now(),
        };
        for (outcome, is_given_up) in [(HandoffOutcome::NotTaken, false), (unanswered, true)] {
            let pending = PendingClaim::new(rig.context(&wait), handed(), outcome);
            assert_eq!(pending.has_given_up(), is_given_up, "{outcome:?}");
        }
    }

    #[test]
    fn a_lock_that_was_handed_off_is_taken_without_a_command_unless_its_lease_is_over() {
        let patience = Patience {
            once: true,
            ..until(Moment::now().after(Duration::from_millis(20)))
        };
        for (sent, is_taken) in [(Moment::now(), true), (Moment::PAST, false)] {
            let rig = Rig::new();
            let wait = rig.wait.wait(&patience);
            let mut joined = rig.joined(&wait);
            joined.start.handed = HandoffOutcome::Taken {
                sent,
                answered: sent,
                fence: None,
            };
            let taken = run(Acquisition::begin(rig.context(&wait), &joined, handed()));
            assert_eq!(taken.is_ok(), is_taken, "{taken:?}");
            // The keeper deletes a token whose lease is over.
            let orphan = rig.keeper.work.lock().tokens.first_orphan() < Moment::NEVER;
            assert_eq!(orphan, !is_taken);
            assert_eq!(
                rig.keeper.core.counters.read().handed_off,
                u64::from(is_taken)
            );
        }
    }
}
