//! The end of a manager: no new locks, and what is held is given back.

use std::collections::HashSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use log::debug;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::stop::Stop;
use crate::hold::{HeldLock, Hold};
use crate::keeping::thread_map;
use crate::release;
use crate::session::Session;
use crate::waiting::handoff::HandoffOutcome;
use crate::waiting::queue::WaitQueue;

/// How often to look whether a hold without a turn has ended.
const WITHOUT_TURN: Duration = Duration::from_millis(5);

impl Session {
    /// Has `stop` wake the waiters of this manager.
    pub(crate) fn heed(&self, stop: &Stop) {
        let keeper = Arc::downgrade(&self.keeper);
        stop.wakes(self.id, move || keeper.upgrade().map(|keeper| keeper.wake_waiters()).is_some());
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
        let mine: HashSet<_> = held.map(|(_, hold)| Arc::clone(hold.key.name())).collect();
        // A turn lasts from before the attempt to take a lock until after its release. So when the
        // last turn has ended, no thread has a lock, nor will an answer give it one.
        let is_free = |name: &str, _: &WaitQueue| mine.contains(name);
        if !self.queues.wait_until(is_free, now.after(limit)) {
            // The answer to a command may be due: a thread may have got a lock, or given it back.
            let is_known =
                |name: &str, queue: &WaitQueue| mine.contains(name) || queue.is_settled(Moment::now());
            self.queues.wait_until(is_known, self.one_answer(Moment::now()));
        }
        // A lock that was adopted while other threads queued for it has no turn. That is rare.
        let is_for_others = |hold: &Arc<Hold>| hold.lost().is_none() && !mine.contains(hold.key.name());
        while self.left().iter().any(is_for_others) && Moment::now() < now.after(limit) {
            thread::sleep(WITHOUT_TURN);
        }
        let now = Moment::now();
        self.left().iter().map(|hold| HeldLock::new(hold, now)).collect()
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
            let deadline = Moment::now().after(self.settings.response_timeout);
            for hold in self.left() {
                self.take_away(&hold, deadline);
            }
        }
        left
    }

    /// Gives a lock back that a thread still holds. The hold is lost before the key is deleted: the
    /// other way round, the thread would trust a lock that another process may have.
    fn take_away(&self, hold: &Hold, deadline: Moment) {
        let now = Moment::now();
        self.keeper.work.lock().leases.close(hold, now);
        hold.lose(LostCause::ShutDown);
        self.keeper.report_loss(hold);
        let given_back = if hold.keep_until() > now {
            release::keep(&self.store, hold, deadline)
        } else {
            release::remove(&self.store, hold, None, &mut HandoffOutcome::NotTaken, deadline)
        };
        if let Err(failure) = given_back {
            debug!(target: "relatch::release", "giving back lock {:?}: {failure:?}", hold.key.name());
            release::delete_from(&self.keeper, hold, now.max(hold.keep_until()));
        }
    }
}
