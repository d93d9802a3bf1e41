//! The end of a manager: no new locks, and what is held is given back.

use std::collections::HashSet;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::LostCause;
use crate::base::stop::Stop;
use crate::hold::{HeldLock, Hold};
use crate::keeping::thread_map;
use crate::release;
use crate::session::Session;
use crate::waiting::queue::WaitQueue;

/// How often to look whether a hold without a turn has ended.
const WITHOUT_TURN: Duration = Duration::from_millis(5);

impl Session {
    /// Has `stop` wake the waiters of this manager.
    pub(crate) fn heed(&self, stop: &Stop) {
        let (keeper, pid) = (Arc::downgrade(&self.keeper), self.pid);
        stop.wakes(self.id, move || {
            // A forked child has no waiters, and its copies of the mutexes may stay locked.
            let keeper = keeper.upgrade().filter(|_| process::id() == pid);
            keeper.map(|keeper| keeper.wake_waiters()).is_some()
        });
    }

    /// True if the wait with this handle, or the whole manager, was stopped.
    pub(super) fn is_stopped(&self, stop: Option<&Stop>) -> bool {
        self.going.is_stopped() || stop.is_some_and(Stop::is_stopped)
    }

    /// Refuses new locks, ends all waits, and waits for the holds of other threads, within `limit`.
    /// Returns what is held then.
    pub(crate) fn shutdown(&self, limit: Duration) -> Vec<HeldLock> {
        let now = Moment::now();
        if self.own_process(now).is_err() {
            return Vec::new();
        }
        self.going.stop();
        let held = thread_map::held().into_iter().filter(|(manager, _)| *manager == self.id);
        let mine: HashSet<_> = held.map(|(_, hold)| self.queue_of(&hold)).collect();
        // A turn lasts from before the attempt to take a lock until after its release. So when the
        // last turn has ended, no thread has a lock, nor will an answer give it one.
        let is_free = |name: &str, _: &WaitQueue| mine.contains(name);
        if !self.queues.wait_until(is_free, now.after(limit)) {
            // The answer to a command may be due: a thread may have got a lock, or given it back.
            let is_known =
                |name: &str, queue: &WaitQueue| mine.contains(name) || queue.is_settled(Moment::now());
            self.queues.wait_until(is_known, self.one_answer(Moment::now()));
        }
        // A lock that is adopted while other threads queue for it has no turn. That is rare.
        let (end, latest) = (now.after(limit), self.one_answer(Moment::now().max(now.after(limit))));
        let is_for_others = |hold: &Arc<Hold>| hold.lost().is_none() && !mine.contains(&self.queue_of(hold));
        loop {
            // The adoptions are looked at before and after the holds. What is adopted becomes a
            // hold before its adoption is over, and a hold ends after its release is under way. So
            // neither can be missed in between.
            let answer_is_due = self.adoptions.are_under_way();
            let is_held = self.left().iter().any(is_for_others);
            let answer_is_due = answer_is_due || self.adoptions.are_under_way();
            let now = Moment::now();
            if !(answer_is_due && now < latest || is_held && now < end) {
                break;
            }
            thread::sleep(WITHOUT_TURN);
        }
        let now = Moment::now();
        self.left().iter().map(|hold| HeldLock::new(hold, now)).collect()
    }

    /// By which name the threads queue that want the key of this hold.
    fn queue_of(&self, hold: &Hold) -> Arc<str> {
        Arc::clone(self.name_in_queue(&hold.key, &mut None))
    }

    /// What is held, the oldest first. A thread that has just got its lock is known to the queue
    /// before it is known to the keeper.
    fn left(&self) -> Vec<Arc<Hold>> {
        let now = Moment::now();
        let mut holds = self.queues.holds(now);
        holds.extend(self.keeper.work.lock().leases.holds(now).map(Arc::clone));
        holds.sort_by_key(|hold| (hold.acquired.answered, hold.number));
        holds.dedup_by_key(|hold| hold.number);
        holds
    }

    /// [`shutdown`](Session::shutdown), and then gives back what is held, though its threads do not
    /// know yet. Returns what that was.
    pub(crate) fn shutdown_and_release(&self, limit: Duration) -> Vec<HeldLock> {
        let left = self.shutdown(limit);
        if self.own_process(Moment::now()).is_ok() {
            self.take_away();
        }
        left
    }

    /// Gives back all locks that threads still hold.
    ///
    /// Each hold is lost before its key is deleted: the other way round, its thread would trust a
    /// lock that another process may have.
    fn take_away(&self) {
        let mut work = self.keeper.work.lock();
        let holds: Vec<_> = work.leases.holds(Moment::now()).map(Arc::clone).collect();
        for hold in &holds {
            hold.lose(LostCause::ShutDown);
            work.leases.close(hold, Moment::now());
        }
        drop(work);
        for hold in &holds {
            self.keeper.report_loss(hold);
        }
        let deadline = Moment::now().after(self.settings.response_timeout);
        let (kept, mut rest): (Vec<_>, Vec<_>) =
            holds.into_iter().partition(|hold| hold.keep_until() > Moment::now());
        // If a connection was stale, the second try goes over another one.
        for _ in 0..2 {
            let removals: Vec<_> =
                rest.iter().map(|hold| (hold.key.in_redis(), hold.token.as_str())).collect();
            let mut removed = self.store.remove_all(&removals, deadline).into_iter();
            rest.retain(|_| removed.next().is_none_or(|it| it.is_err()));
        }
        for hold in &kept {
            let done = release::keep(&self.store, hold, deadline);
            rest.extend(done.is_err().then(|| Arc::clone(hold)));
        }
        for hold in rest {
            debug!(target: "relatch::release", "lock {:?} could not be given back yet", hold.key.name());
            release::delete_from(&self.keeper, &hold, hold.keep_until());
        }
    }
}
