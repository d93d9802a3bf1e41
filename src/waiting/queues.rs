//! The threads of this process that wait for a lock: one queue for each key, first come, first
//! served.
//!
//! One thread of a process talks to Redis about a key. The others wait behind it and send nothing.
//! A thread's turn ends when its [`Turn`] is dropped, after the release. If a hold ends without a
//! release, its turn is passed over. With its release, a thread may send the next thread's claim.
//! That is the hand-off.

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
/// thread gets it.
#[derive(Debug)]
pub(crate) struct Turn {
    queues: Arc<WaitQueues>,
    /// The lock's key.
    name: Arc<str>,
    /// Distinguishes turns.
    number: u64,
    /// The turn has ended, or was handed over.
    is_over: bool,
}

/// A turn that has just begun, and the state that its thread finds.
#[derive(Debug)]
pub(crate) struct Joined {
    pub(crate) turn: Turn,
    pub(crate) start: Start,
    /// Another thread had the turn first.
    pub(crate) waited: bool,
}

impl Joined {
    /// The turn of a thread that asks without one in the queue: see [`Turn::outside`].
    pub(crate) fn outside(queues: &Arc<WaitQueues>, name: &Arc<str>) -> Joined {
        Joined {
            turn: Turn::outside(queues, name),
            start: Start::outside(),
            waited: false,
        }
    }
}

/// The number of a [`Turn::outside`]. No other turn has this number.
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
                notify_first(table, name); // The next thread may have to stay awake.
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

    /// Wakes the first waiter, because the hold in front is lost.
    pub(crate) fn wake_first(&self, name: &str) {
        notify_first(self.table.lock(), name);
    }

    /// Wakes all waiters: those whose wait was stopped leave, and the others sleep again.
    pub(crate) fn wake_all(&self) {
        wake_each(self.table.lock().all().map(|(_, queue)| queue));
    }

    /// The waiting threads, longest wait first, and since when each has slept.
    pub(crate) fn waiting(&self, now: Moment) -> Vec<(WaitingThread, Moment)> {
        self.table.lock().waiting(now)
    }

    /// The names of the locks that threads wait for, one for each thread.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let table = self.table.lock();
        table.waiters().map(|(name, ..)| Arc::clone(name)).collect()
    }

    /// The holder that a thread waits for, as far as this process knows without asking.
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
    /// The turn of a thread that has a lock even though another thread of this process has the turn
    /// in the queue. Nothing waits for the end of this turn. It is like one that was passed over.
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

    /// Reports what the thread waits for: see [`Wait::announce`].
    pub(crate) fn announce(&self, wait: &Wait<'_>) -> Moment {
        self.begins_to_wait(wait);
        wait.announce(|now| self.queues.awaited(&self.name, now))
    }

    /// True if the thread has not waited before.
    fn begins_to_wait(&self, wait: &Wait<'_>) -> bool {
        self.note(|mut it| it.waits_as(Some(wait.waiter(None))))
    }

    /// The turn of this new hold. That is this turn, except for a slot: then the next thread may
    /// ask, since other slots may be free.
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

    /// The thread has the lock in Redis, so it no longer waits.
    pub(crate) fn ends(&self, wait: Wait<'_>) {
        if wait.has_slept() {
            self.note(|mut it| it.waits_as(None));
        }
        wait.ends();
    }

    /// How long to leave the lock to other processes before the next attempt.
    pub(crate) fn nap(&self) -> Duration {
        self.note(|mut it| it.nap())
    }

    /// The thread has skipped the sleep that its [`Start`] asks for.
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

    /// The thread exits with this turn, and does not give the lock back.
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

    /// Redis has named this holder; the answer took the time `took`. True if the holder is not the
    /// same as before.
    pub(crate) fn saw(
        &self,
        holder: &Holder,
        without_expiry: &WithoutExpiry,
        took: Duration,
    ) -> bool {
        self.note(|mut it| it.saw(holder, without_expiry, took, Moment::now()))
    }

    /// Notes that the release begins, so that the next thread gets ready. Returns that thread if
    /// the lock is to be handed off to it: then its claim has to be sent after the release.
    ///
    /// `None` if the next thread may give up before the answer comes (by `answer_by` at the
    /// latest), or if the process has had the lock for longer than `limit`.
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
    use super::*;
    use crate::base::options::Lease;
    use crate::waiting::patience::tests::until;
    use crate::waiting::table::REMEMBERED;
    use crate::waiting::wait::tests::WaitRig;

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

    pub(crate) fn claim() -> Claim {
        Claim {
            token: "host-1-2-00".into(),
            lease: Lease::new(Duration::from_secs(30)),
            counter: None,
        }
    }

    /// A key that no thread wants is remembered for a while, but not forever.
    #[test]
    fn the_queues_of_keys_that_no_thread_wants_do_not_pile_up() {
        let queues = Arc::new(WaitQueues::default());
        let turn_of = |name: &str| queues.free_turn(&name.into());
        drop(turn_of("wanted again"));
        let wanted = ["wanted", "wanted again"].map(turn_of);
        let mut last = 0;
        for n in 0..100 {
            let other = turn_of(&format!("other {n}"));
            assert!(other.number > last, "no two turns have one number");
            last = other.number;
            drop(other);
            drop(turn_of("one"));
        }
        let known = || queues.table.lock().all().count();
        assert_eq!(known(), 2 + REMEMBERED);
        drop(wanted);
        assert_eq!(known(), REMEMBERED);
    }
}
