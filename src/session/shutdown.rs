//! The end of a manager: no new locks, and what is held is given back.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::stop::StopHandle;
use crate::base::sync::HashSet;
use crate::base::sync::thread;
use crate::hold::{HeldLock, Hold};
use crate::session::Session;
use crate::session::release;
use crate::session::thread_map;
use crate::waiting::queue::WaitQueue;

/// How often to look whether a hold without a turn has ended, and whether the keeper has deleted
/// the keys.
const LOOKS_EVERY: Duration = Duration::from_millis(5);

impl Session {
    /// Has `stop` wake the waiters of this manager.
    pub(crate) fn heed(&self, stop: &StopHandle) {
        stop.wakes(self.id, &self.wake);
    }

    /// True if the wait with this handle, or the whole manager, was stopped.
    pub(super) fn is_stopped(&self, stop: Option<&StopHandle>) -> bool {
        self.going.is_stopped() || stop.is_some_and(StopHandle::is_stopped)
    }

    /// Refuses new locks, ends all waits, and waits for the holds of other threads, within `limit`.
    /// Returns what is held then.
    pub(crate) fn shutdown(&self, limit: Duration) -> Vec<HeldLock> {
        let end = Moment::now().after(limit);
        if self.own_process(Moment::now()).is_err() {
            return Vec::new();
        }
        self.going.stop();
        let held = thread_map::held()
            .into_iter()
            .filter(|(manager, _)| *manager == self.id);
        let mine: HashSet<_> = held.map(|(_, hold)| hold.number).collect();
        let is_for_others =
            |hold: &Arc<Hold>| !hold.is_over(Moment::now()) && !mine.contains(&hold.number);
        // A turn lasts from before the attempt to take a lock until after its release. So when each
        // turn that is left has a hold that nobody waits for, no other thread has a lock, nor will
        // an answer give it one.
        let is_free = |queue: &WaitQueue| queue.hold().is_some_and(|hold| !is_for_others(hold));
        let is_done = self.core.queues.wait_until(is_free, end);
        let latest = self.one_answer(Moment::now().max(end));
        if !is_done {
            self.wait_for_answers(latest);
        }
        // A lock that is adopted while another thread has the turn is held outside of the queue, so
        // the wait above does not see it. That is rare: so this just looks every few milliseconds.
        loop {
            // The adoptions are looked at before and after the holds. What is adopted becomes a
            // hold before its adoption is over, and a hold ends after its release is under way. So
            // neither can be missed in between.
            let answer_is_due = *self.under_way.lock() > 0;
            let is_held = self.holds().iter().any(is_for_others);
            let answer_is_due = answer_is_due || *self.under_way.lock() > 0;
            let now = Moment::now();
            if !(answer_is_due && now < latest || is_held && now < end) {
                break;
            }
            thread::sleep(LOOKS_EVERY);
        }
        // A redirect or a forgotten script may have kept a thread from its answer until now. It
        // enters no hold after this, and gives its lock back itself.
        self.keeper.refuse_new();
        self.held()
    }

    /// Waits until no answer of Redis is due to a thread that has a turn: the thread may have got a
    /// lock, or given it back.
    fn wait_for_answers(&self, latest: Moment) {
        let is_settled = |queue: &WaitQueue| queue.is_settled(Moment::now());
        self.core.queues.wait_until(is_settled, latest);
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
        let holds = self.keeper.take_away();
        let (deadline, latest) = (self.one_release(), self.one_answer(Moment::now()));
        for hold in &holds {
            self.keeper.report_loss(hold);
            let until = hold.keep_until();
            let is_kept = until > Moment::now();
            if !is_kept || release::keep(&self.core.store, hold, until, deadline).is_err() {
                release::delete_not_before(&self.keeper, hold, until);
            }
        }
        self.wait_for_answers(latest);
        let is_left = |hold: &Arc<Hold>| self.keeper.has_orphan(&hold.token);
        while Moment::now() < deadline
            && holds
                .iter()
                .any(|hold| hold.keep_until() <= Moment::now() && is_left(hold))
        {
            thread::sleep(LOOKS_EVERY);
        }
    }
}
