//! The end of a manager: no new locks, and what is held is given back.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::stop::StopHandle;
use crate::base::sync::HashSet;
use crate::hold::{HeldLock, Hold};
use crate::session::Session;
use crate::session::release;
use crate::session::report;
use crate::session::thread_map;

impl Session {
    /// Has `stop` wake the waiters of this manager.
    pub(crate) fn woken_by(&self, stop: &StopHandle) {
        stop.wakes(self.id, &self.wake);
    }

    /// Refuses new locks, ends all waits, and waits for the holds of other threads, within `limit`.
    /// Returns what is held then.
    pub(crate) fn shutdown(&self, limit: Duration) -> Vec<HeldLock> {
        let end = Moment::now().after(limit);
        if self.core.own_process(Moment::now()).is_err() {
            return Vec::new();
        }
        self.end.stop();
        let held = thread_map::held().into_iter();
        let mine = held.filter(|(manager, _)| *manager == self.id);
        let mine: HashSet<_> = mine.map(|(_, hold)| Arc::clone(&hold.token)).collect();
        // An answer may be due at the end of the limit. It gives a lock, or says that one was given
        // back.
        let latest = Moment::now()
            .max(end)
            .after(self.core.settings.an_attempt());
        let is_mine = |token: &str| mine.contains(token);
        let left = self
            .keeper
            .shut_down(|tokens, now| tokens.awaited(is_mine, now, end, latest));
        report::listed(left, Moment::now())
    }

    /// [`shutdown`](Session::shutdown), and then gives back what is held, though its threads do not
    /// know yet. Returns what that was.
    pub(crate) fn shutdown_and_release(&self, limit: Duration) -> Vec<HeldLock> {
        let left = self.shutdown(limit);
        if self.core.own_process(Moment::now()).is_err() {
            return left;
        }
        // Each hold is lost before its key is deleted: the other way round, its thread would trust
        // a lock that another process may have.
        let holds = self.keeper.take_away();
        let deadline = self.core.settings.response_deadline();
        let latest = Moment::now().after(self.core.settings.an_attempt());
        for hold in &holds {
            self.keeper.report_loss(hold);
        }
        let is_kept = |hold: &Arc<Hold>| hold.keep_until() > Moment::now();
        let (kept, ended): (Vec<_>, Vec<_>) = holds.into_iter().partition(is_kept);
        for hold in kept {
            // Without an answer, the keeper deletes the key at its time.
            let _ = release::keep(&self.core.store, &hold, hold.keep_until(), deadline);
        }
        let _ = self.keeper.shut_down(|tokens, now| {
            let answers = tokens.awaited(|_| true, now, now, latest);
            let is_left = ended.iter().any(|it| tokens.has_orphan(&it.token));
            answers.or(Some(deadline).filter(|deadline| is_left && now < *deadline))
        });
        left
    }
}
