//! The threads of this process that wait for a lock: one queue for each key, first come, first
//! served.
//!
//! One thread of a process talks to Redis about a key. The others wait behind it and send nothing.
//! A thread's turn ends when its [`Turn`] is dropped, after the release. If a hold ends without a
//! release, its turn is passed over. With its release, a thread may send the claim of the next
//! thread. That is the hand-off.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::owner::holder::Holder;
use crate::base::stats::counters::Counters;
use crate::base::sync::{Mutex, MutexGuard};
use crate::hold::Hold;
use crate::waiting::deadlocks::{self, end_cycles_of};
use crate::waiting::front::InFront;
use crate::waiting::handoff::{Claim, HandoffOutcome};
use crate::waiting::patience::{Silence, WithoutExpiry};
use crate::waiting::place::{NoTurn, QueuePlace, QueueStep};
use crate::waiting::queue::Start;
use crate::waiting::table::{Table, notify_first, sleep, wake_each};
use crate::waiting::wait::Wait;
use crate::waiting::waiter::{Awaited, Cores, Waiter, WaitingThread};

/// The queues of one manager.
#[derive(Debug, Default)]
pub(crate) struct WaitQueues {
    table: Arc<Mutex<Table>>,
    counters: Arc<Counters>,
    cores: Cores,
}

/// The right to talk to Redis about a key, and to hold its lock. When it is dropped, the next
/// thread has it.
#[derive(Debug)]
pub(crate) struct Turn {
    queues: Arc<WaitQueues>,
    /// The lock's key.
    name: Arc<str>,
    /// Tells turns apart.
    number: u64,
    /// The turn has ended, or was handed over.
    is_over: bool,
}

/// A turn that has just begun, and what its thread finds.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) turn: Turn,
    pub(crate) start: Start,
    /// Another thread had the turn first.
    pub(crate) waited: bool,
}

impl Joined {
    /// For a thread that asks without a turn: see [`Turn::outside`].
    pub(crate) fn outside(queues: &Arc<WaitQueues>, name: &Arc<str>) -> Joined {
        Joined {
            turn: Turn::outside(queues, name),
            start: Start::outside(),
            waited: false,
        }
    }
}

/// The number of a [`Turn::outside`]. No other turn has it.
const OUTSIDE: u64 = 0;

impl WaitQueues {
    pub(crate) fn new(counters: Arc<Counters>) -> WaitQueues {
        let queues = WaitQueues {
            counters,
            ..WaitQueues::default()
        };
        deadlocks::enroll(&queues.table);
        queues
    }

    /// Waits for the turn in the queue `name`. A caller that tries only once (`Patience::once`)
    /// waits only until it is known who has the lock. If the caller has to wait, a thread in front
    /// may send the claim for it.
    pub(crate) fn join(
        self: &Arc<WaitQueues>,
        name: &Arc<str>,
        wait: &Wait<'_>,
        claim: impl FnOnce() -> Claim,
    ) -> Result<Joined, NoTurn> {
        let patience = wait.patience;
        let mut table = self.table.lock();
        let number = table.next_number();
        let queue = table.queue(name);
        if let Some(start) = queue.start_turn(number, None, patience.once, Moment::now()) {
            return Ok(Joined {
                turn: self.turn(name, start.number),
                start,
                waited: false,
            });
        }
        let me = wait.waiter(wait.key.slots().is_empty().then(claim));
        queue.waiting.push_back(Arc::clone(me));
        if me.blocked.is_some() {
            MutexGuard::unlocked(&mut table, || end_cycles_of(me));
        }
        let mut place = QueuePlace::new(me, wait);
        loop {
            let now = Moment::now();
            let number = table.next_number();
            let queue = table.queue(name);
            if let Some(start) = queue.start_turn(number, Some(me), patience.once, now) {
                notify_first(table, name); // The thread behind may have to stay awake.
                return Ok(Joined {
                    turn: self.turn(name, start.number),
                    start,
                    waited: !patience.once,
                });
            }
            let cores_are_free = self.cores.are_free(now);
            match place.next_step(queue, cores_are_free, now) {
                QueueStep::GiveUp(no_turn) => {
                    queue.leave(me);
                    left(table, name); // The next one has to look at the front from now on.
                    return Err(no_turn);
                }
                QueueStep::StayAwake => {
                    MutexGuard::unlocked(&mut table, || self.cores.stay_awake(me));
                }
                QueueStep::Look => {
                    MutexGuard::unlocked(&mut table, || wait.ask_front_to_look());
                }
                QueueStep::Announce => MutexGuard::unlocked(&mut table, || {
                    wait.announce(|now| self.awaited(name, now));
                }),
                QueueStep::Sleep { until } => sleep(&mut table, name, me, until, now),
            }
        }
    }

    /// True if a thread waits for this lock.
    pub(crate) fn somebody_waits(&self, name: &str) -> bool {
        let table = self.table.lock();
        let queue = table.of(name);
        queue.is_some_and(|queue| queue.waiters().next().is_some())
    }

    /// Wakes the first waiter, since the hold in front is lost.
    pub(crate) fn wake_first(&self, name: &str) {
        notify_first(self.table.lock(), name);
    }

    /// Wakes all waiters: those whose wait was stopped leave, and the others sleep again.
    pub(crate) fn wake_all(&self) {
        wake_each(self.table.lock().all().map(|(_, queue)| queue));
    }

    /// The threads that wait, those that have waited longest first, and since when each has slept.
    pub(crate) fn waiting(&self, now: Moment) -> Vec<(WaitingThread, Moment)> {
        self.table.lock().waiting(now)
    }

    /// The names of the locks for which threads wait, one for each thread.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let table = self.table.lock();
        table.waiters().map(|(name, ..)| Arc::clone(name)).collect()
    }

    /// What a thread waits for, as far as this process knows without asking.
    fn awaited(&self, name: &str, now: Moment) -> Awaited {
        let table = self.table.lock();
        let queue = table.of(name);
        let silence = queue.and_then(|queue| queue.silence.clone());
        Awaited {
            holder: queue.and_then(|queue| queue.holder(now)),
            silence,
        }
    }

    fn turn(self: &Arc<WaitQueues>, name: &Arc<str>, number: u64) -> Turn {
        Turn {
            queues: Arc::clone(self),
            name: Arc::clone(name),
            number,
            is_over: false,
        }
    }
}

/// A thread has left the queue of this key: wakes the first waiter, if there is one.
fn left(mut table: MutexGuard<'_, Table>, name: &Arc<str>) {
    let Some(queue) = table.of_mut(name) else {
        return;
    };
    if let Some(next) = queue.waiting.front().cloned() {
        drop(table);
        next.wake_for_turn();
    } else if queue.is_idle() {
        queue.end();
        table.ended(name);
    }
}

impl Turn {
    /// For a thread that has a lock, though another thread of this process has the turn. Nothing
    /// waits for the end of this turn. It is like one that was passed over.
    pub(crate) fn outside(queues: &Arc<WaitQueues>, name: &Arc<str>) -> Turn {
        queues.turn(name, OUTSIDE)
    }

    pub(crate) fn is_outside(&self) -> bool {
        self.number == OUTSIDE
    }

    /// The thread is about to sleep until it may have the lock. Returns an error as
    /// [`Wait::may_go_on`] does. The caller holds no mutex.
    pub(crate) fn may_sleep(&self, wait: &Wait<'_>) -> Result<(), Error> {
        wait.may_go_on()?;
        if !wait.patience.once && self.begins_to_wait(wait) {
            end_cycles_of(wait.waiter(None));
        }
        wait.may_go_on()
    }

    /// Says what the thread waits for: see [`Wait::announce`].
    pub(crate) fn announce(&self, wait: &Wait<'_>) -> Moment {
        self.begins_to_wait(wait);
        wait.announce(|now| self.queues.awaited(&self.name, now))
    }

    /// True if the thread has not waited before.
    fn begins_to_wait(&self, wait: &Wait<'_>) -> bool {
        self.note(|mut it| it.waits_as(Some(wait.waiter(None))))
    }

    /// The turn of this new hold. That is this one, but for a slot: then the next thread may ask,
    /// since other slots may be free.
    pub(crate) fn of(self, hold: &Hold) -> Turn {
        if hold.key.slot().is_none() {
            return self;
        }
        let acquired = &hold.acquired;
        self.note(|mut it| {
            it.takes_slot(acquired.answered.since(acquired.sent), acquired.answered);
        });
        Turn::outside(&self.queues, hold.key.name())
    }

    /// The thread has the lock in Redis, so it waits no more.
    pub(crate) fn ends(&self, wait: Wait<'_>) {
        if wait.has_slept() {
            self.note(|mut it| it.waits_as(None));
        }
        wait.ends();
    }

    /// For how long to leave the lock to other processes before the next attempt.
    pub(crate) fn nap(&self) -> Duration {
        self.note(|mut it| it.nap())
    }

    /// The thread has not slept for the time that its [`Start`] says.
    pub(crate) fn skips_nap(&self) {
        self.note(|it| it.past.contention.skip());
    }

    /// The thread has the lock. The turn lasts as long as the hold.
    pub(crate) fn holds(&self, hold: &Arc<Hold>) {
        let mut table = self.queues.table.lock();
        if let Some(mut it) = self.in_front(&mut table) {
            it.holds(hold, hold.acquired.answered);
        }
    }

    /// The thread is about to ask Redis.
    pub(crate) fn asks(&self, now: Moment) {
        self.note(|mut it| it.asks(now));
    }

    /// Redis has answered the thread.
    pub(crate) fn answered(&self) {
        self.note(|mut it| it.answered());
    }

    /// An attempt has failed. The silence of Redis is `None` if the thread had too little time to
    /// know.
    pub(crate) fn failed(&self, silence: Option<&Silence>) {
        self.note(|mut it| it.failed(silence));
    }

    /// The thread ends with this turn, and gives the lock back to nobody.
    pub(crate) fn forgets(&self, hold: &Hold) {
        hold.mark_thread_ended();
        self.queues.counters.of(hold.key.name()).forgotten();
    }

    fn note<R: Default>(&self, note: impl FnOnce(InFront<'_>) -> R) -> R {
        let mut table = self.queues.table.lock();
        self.in_front(&mut table).map(note).unwrap_or_default()
    }

    /// `None` if the turn was passed over.
    fn in_front<'t>(&self, table: &'t mut Table) -> Option<InFront<'t>> {
        table.of_mut(&self.name)?.in_front(self.number)
    }

    /// Redis has named this holder; the answer took the time `took`. True if it is another one than
    /// before.
    pub(crate) fn saw(
        &self,
        holder: &Holder,
        without_expiry: &WithoutExpiry,
        took: Duration,
    ) -> bool {
        self.note(|mut it| it.saw(holder, without_expiry, took, Moment::now()))
    }

    /// Notes that the release begins, so that the next thread gets ready. Returns that thread if
    /// the lock is to be handed off to it: then its claim has to be sent behind the release.
    ///
    /// `None` if the thread may give up before the answer comes, which is at `answer_by` at the
    /// latest; or if the process has had the lock for longer than `limit`.
    pub(crate) fn begin_release(
        &self,
        limit: Duration,
        now: Moment,
        answer_by: Moment,
    ) -> Option<Arc<Waiter>> {
        let mut table = self.queues.table.lock();
        let to = self
            .in_front(&mut table)?
            .begin_release(limit, now, answer_by);
        notify_first(table, &self.name);
        to
    }

    /// Ends the turn, and tells the next thread what became of its claim. True if the claim's token
    /// may be in Redis and no thread will use it, so that it has to be deleted.
    #[must_use = "the key may exist until its lease is over"]
    pub(crate) fn settle(mut self, to: &Arc<Waiter>, handed: HandoffOutcome) -> bool {
        if handed == HandoffOutcome::NotTaken {
            return false; // The next thread asks for itself.
        }
        let mut table = self.queues.table.lock();
        let now = Moment::now();
        let next = table.next_number();
        let queue = table.of_mut(&self.name);
        self.is_over =
            queue.is_some_and(|queue| queue.pass_turn(self.number, to, next, handed, now));
        if self.is_over {
            drop(table);
            to.wake_for_turn();
        }
        !self.is_over || matches!(handed, HandoffOutcome::Unanswered { .. })
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let mut table = self.queues.table.lock();
        // If the turn was passed over, another thread has it.
        let queue = table.of_mut(&self.name);
        if queue.is_some_and(|queue| queue.end_turn(self.number, Moment::now())) {
            left(table, &self.name);
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::base::options::Lease;
    use crate::hold::tests::sample;
    use crate::waiting::patience::Patience;
    use crate::waiting::patience::tests::until;
    use crate::waiting::table::REMEMBERED;
    use crate::waiting::wait::tests::{WaitRig, mine};

    impl WaitQueues {
        /// Takes a turn that no thread has or waits for.
        pub(crate) fn free_turn(self: &Arc<WaitQueues>, name: &Arc<str>) -> Turn {
            self.join_free(name).turn
        }

        pub(crate) fn join_free(self: &Arc<WaitQueues>, name: &Arc<str>) -> Joined {
            let rig = WaitRig::new();
            let once = until(Moment::PAST);
            let joined = self.join(name, &rig.wait(&once), || unreachable!("it does not wait"));
            joined.expect("no other thread has the turn")
        }
    }

    fn name() -> Arc<str> {
        "key".into()
    }

    fn joined(queues: &Arc<WaitQueues>, name: &Arc<str>) -> Option<Joined> {
        let rig = WaitRig::new();
        queues
            .join(name, &rig.wait(&until(Moment::PAST)), claim)
            .ok()
    }

    fn at_once(queues: &Arc<WaitQueues>, name: &Arc<str>) -> Option<Turn> {
        joined(queues, name).map(|joined| joined.turn)
    }

    pub(crate) fn claim() -> Claim {
        Claim {
            token: "host-1-2-00".into(),
            lease: Lease::new(Duration::from_secs(30)),
            counter: None,
        }
    }

    fn soon() -> Moment {
        Moment::now().after(Duration::from_secs(10))
    }

    #[test]
    fn one_turn_at_a_time() {
        let queues = Arc::new(WaitQueues::default());
        let turn = at_once(&queues, &name()).unwrap();
        assert!(at_once(&queues, &name()).is_none());
        assert!(at_once(&queues, &"other".into()).is_some());
        assert!(at_once(&queues, &name()).is_none());
        drop(turn);
        drop(at_once(&queues, &name()).unwrap());
    }

    /// A key that no thread wants is remembered for a while, and not for ever.
    #[test]
    fn the_queues_of_keys_that_no_thread_wants_do_not_pile_up() {
        let queues = Arc::new(WaitQueues::default());
        let wanted = at_once(&queues, &name()).unwrap();
        for n in 0..100 {
            let other: Arc<str> = format!("other {n}").into();
            drop(at_once(&queues, &other).unwrap());
            drop(at_once(&queues, &"one".into()).unwrap());
        }
        let known = || queues.table.lock().known();
        assert_eq!(known(), 1 + REMEMBERED);
        drop(wanted);
        assert_eq!(known(), REMEMBERED);
    }

    #[test]
    fn a_key_that_is_wanted_again_keeps_its_queue() {
        let queues = Arc::new(WaitQueues::default());
        drop(at_once(&queues, &name()).unwrap());
        let turn = at_once(&queues, &name()).unwrap();
        for n in 0..=2 * REMEMBERED {
            drop(at_once(&queues, &n.to_string().into()).unwrap());
        }
        assert!(
            at_once(&queues, &name()).is_none(),
            "two threads have the turn"
        );
        drop(turn);
    }

    #[test]
    fn turns_go_in_the_order_of_arrival() {
        let queues = Arc::new(WaitQueues::default());
        let turn = at_once(&queues, &name()).unwrap();
        let (told, order) = mpsc::channel();
        let threads: Vec<_> = (0..8)
            .map(|n| {
                let (queue, told) = (Arc::clone(&queues), told.clone());
                let thread = thread::spawn(move || {
                    let turn = queue
                        .join(&name(), &WaitRig::new().wait(&until(soon())), claim)
                        .unwrap();
                    told.send(n).unwrap();
                    drop(turn);
                });
                while queues.table.lock().queue(&name()).waiting.len() <= n {
                    thread::yield_now();
                }
                thread
            })
            .collect();
        drop(turn);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(
            order.try_iter().collect::<Vec<_>>(),
            (0..8).collect::<Vec<_>>()
        );
        assert!(queues.table.lock().all().all(|(_, queue)| queue.is_idle()));
    }

    #[test]
    fn a_hold_that_ran_out_is_passed_over_and_its_turn_ends_no_other() {
        let queues = Arc::new(WaitQueues::default());
        let zombie = at_once(&queues, &name()).unwrap();
        let hold = Arc::new(sample("key", Duration::from_millis(20), Moment::now()));
        zombie.holds(&hold);
        let turn = queues
            .join(&name(), &WaitRig::new().wait(&until(soon())), claim)
            .unwrap();
        assert!(!hold.is_valid(Moment::now()));
        drop(zombie);
        assert!(
            at_once(&queues, &name()).is_none(),
            "the turn is still taken"
        );
        drop(turn);
        assert!(at_once(&queues, &name()).is_some());
    }

    #[test]
    fn no_two_turns_have_one_number() {
        let queues = Arc::new(WaitQueues::default());
        let mut last = 0;
        for n in 0..6 {
            let key: Arc<str> = format!("{}", n % 3).into();
            let turn = at_once(&queues, &key).unwrap();
            assert!(turn.number > last);
            last = turn.number;
        }
    }

    #[test]
    fn a_turn_that_was_passed_over_ends_no_silence() {
        let queues = Arc::new(WaitQueues::default());
        let zombie = at_once(&queues, &name()).unwrap();
        zombie.holds(&Arc::new(sample(
            "key",
            Duration::from_millis(20),
            Moment::now(),
        )));
        let turn = queues
            .join(&name(), &WaitRig::new().wait(&until(soon())), claim)
            .unwrap();
        turn.turn.asks(Moment::now());
        drop(zombie);
        assert!(
            queues.table.lock().queue(&name()).silence.is_some(),
            "the next thread asks"
        );
        drop(turn);
    }

    #[test]
    fn a_thread_that_gives_up_names_the_holder_in_front() {
        let queues = Arc::new(WaitQueues::default());
        let turn = at_once(&queues, &name()).unwrap();
        let hold = Arc::new(sample("key", Duration::from_secs(5), Moment::now()));
        turn.holds(&hold);
        let Err(NoTurn::Busy {
            holder: Some(holder),
            ..
        }) = queues.join(&name(), &WaitRig::new().wait(&until(Moment::now())), claim)
        else {
            panic!("it is busy, and the holder is known");
        };
        assert_eq!(*holder.raw, *hold.token);
        assert!(queues.table.lock().queue(&name()).waiting.is_empty());
    }

    #[test]
    fn a_thread_that_waits_for_itself_through_another_manager_learns_it() {
        let queues = Arc::new(WaitQueues::new(Arc::default()));
        let turn = at_once(&queues, &name()).unwrap();
        let queue = Arc::clone(&queues);
        let waiter = thread::spawn(move || {
            let (mut rig, woken) = (WaitRig::new(), Arc::clone(&queue));
            rig.wake = Arc::new(move || woken.wake_all());
            queue
                .join(&name(), &rig.wait_of_holder(&until(soon()), 2), claim)
                .map(drop)
        });
        while queues.table.lock().queue(&name()).waiting.is_empty() {
            thread::yield_now();
        }
        let holder = Holder::new(mine(2).as_bytes(), None);
        turn.saw(&holder, &WithoutExpiry::default(), Duration::ZERO);
        deadlocks::end_cycles(|it| it.seen.as_ref() == Some(&holder.raw));
        assert!(matches!(
            waiter.join().unwrap(),
            Err(NoTurn::MustNotWait(_))
        ));
        assert!(queues.table.lock().queue(&name()).waiting.is_empty());
    }

    #[test]
    fn a_key_goes_on_with_its_own_budget_and_not_with_that_of_another() {
        let over = Duration::from_nanos(1);
        let queues = Arc::new(WaitQueues::default());
        let turn = at_once(&queues, &name()).unwrap();
        turn.saw(
            &Holder::new(b"theirs", None),
            &WithoutExpiry::default(),
            Duration::from_micros(50),
        );
        assert!(
            turn.begin_release(over, Moment::now(), Moment::PAST)
                .is_none(),
            "no thread waits"
        );
        drop(turn);
        let other = joined(&queues, &"other".into()).unwrap();
        assert_eq!(other.start.nap, Duration::ZERO);
        drop(other);
        assert!(joined(&queues, &name()).unwrap().start.nap > Duration::ZERO);
    }

    #[test]
    fn a_thread_behind_a_silent_one_reports_the_outage_unless_redis_answers_others() {
        let queues = Arc::new(WaitQueues::default());
        let front = at_once(&queues, &name()).unwrap();
        let told = |answered: bool| {
            let now = Moment::now();
            let patience = Patience {
                began: now,
                ..until(now.after(Duration::from_millis(30)))
            };
            let rig = if answered {
                WaitRig::new()
            } else {
                WaitRig::silent()
            };
            queues
                .join(&name(), &rig.wait(&patience), claim)
                .unwrap_err()
        };
        assert!(
            matches!(told(false), NoTurn::Busy { holder: None, .. }),
            "the front has not asked yet"
        );
        front.asks(Moment::now());
        assert!(matches!(told(false), NoTurn::Outage(None)));
        assert!(
            matches!(told(true), NoTurn::Busy { holder: None, .. }),
            "the front waits for something else"
        );
        front.failed(Some(&Silence {
            cause: Some("no answer".into()),
            ..Silence::new(Moment::from_nanos(1))
        }));
        assert!(matches!(told(false), NoTurn::Outage(Some(cause)) if &*cause == "no answer"));
        assert!(
            matches!(told(true), NoTurn::Busy { holder: None, .. }),
            "others have answers"
        );
        let refused = Silence {
            cause: Some("refused".into()),
            outage_after: Duration::ZERO,
            ..Silence::new(Moment::from_nanos(1))
        };
        front.failed(Some(&refused));
        assert!(matches!(told(true), NoTurn::Outage(Some(cause)) if &*cause == "refused"));
        front.answered();
        assert!(matches!(told(false), NoTurn::Busy { holder: None, .. }));
        assert!(queues.table.lock().queue(&name()).waiting.is_empty());
    }

    #[test]
    fn a_thread_without_limit_gives_up_in_the_queue_when_the_outage_has_lasted_too_long() {
        let queues = Arc::new(WaitQueues::default());
        let front = at_once(&queues, &name()).unwrap();
        let tolerate_outage = Duration::from_millis(50);
        let began = Moment::now();
        let patience = Patience {
            began,
            tolerate_outage,
            ..until(Moment::NEVER)
        };
        let told = || {
            queues
                .join(&name(), &WaitRig::silent().wait(&patience), claim)
                .unwrap_err()
        };
        front.failed(Some(&Silence {
            cause: Some("no answer".into()),
            failed: 2,
            ..Silence::new(began)
        }));
        assert!(matches!(told(), NoTurn::Outage(Some(cause)) if &*cause == "no answer"));
        assert!(Moment::now().since(began) >= tolerate_outage);
        drop(front);
        assert!(queues.table.lock().all().all(|(_, queue)| queue.is_idle()));
    }

    #[test]
    fn a_claim_that_was_sent_and_is_not_used_has_to_be_deleted() {
        let sent = Moment::PAST;
        let limit = Duration::from_secs(10);
        let taken = HandoffOutcome::Taken {
            sent,
            answered: sent,
            fence: None,
        };
        // Columns: what became of the claim; whether it has to be deleted if the waiter has given
        // up; whether it has to be if it has not.
        let table = [
            (HandoffOutcome::NotTaken, false, false),
            (taken, true, false),
            (HandoffOutcome::Unanswered { sent }, true, true),
        ];
        for (handed, where_gone, where_there) in table {
            for (wait, cleaned_up) in [(10, where_gone), (10_000, where_there)] {
                let queues = Arc::new(WaitQueues::default());
                let turn = at_once(&queues, &name()).unwrap();
                let queue = Arc::clone(&queues);
                let deadline = Moment::now().after(Duration::from_millis(wait));
                let next = thread::spawn(move || {
                    queue
                        .join(&name(), &WaitRig::new().wait(&until(deadline)), claim)
                        .is_ok()
                });
                while queues.table.lock().queue(&name()).waiting.is_empty() && !next.is_finished() {
                    thread::yield_now();
                }
                let Some(to) = turn.begin_release(limit, Moment::now(), Moment::PAST) else {
                    continue; // The waiter had given up before that.
                };
                while wait == 10 && !next.is_finished() {
                    thread::yield_now();
                }
                let is_left = turn.settle(&to, handed);
                assert_eq!(is_left, cleaned_up, "{handed:?}, {wait} ms");
                assert_eq!(next.join().unwrap(), wait > 10);
            }
        }
    }
}
