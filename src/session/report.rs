//! What goes on now: what is held, who waits, and the statistics.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::stats::Stats;
use crate::hold::{HeldLock, Hold};
use crate::session::Session;
use crate::waiting::waiter::WaitingThread;

/// These holds, oldest first.
pub(super) fn listed(mut holds: Vec<Arc<Hold>>, now: Moment) -> Vec<HeldLock> {
    holds.sort_by_key(|hold| (hold.acquired.answered, hold.number));
    holds.iter().map(|hold| HeldLock::new(hold, now)).collect()
}

impl Session {
    /// The locks that this process holds through this manager, oldest first.
    pub(crate) fn held(&self) -> Vec<HeldLock> {
        let now = Moment::now();
        if self.core.own_process(now).is_err() {
            return Vec::new();
        }
        let holds = {
            let work = self.keeper.work.lock();
            work.tokens.holds(now).map(Arc::clone).collect()
        };
        listed(holds, now)
    }

    /// The threads of this process that wait for a lock of this manager, those that have waited
    /// longest first.
    pub(crate) fn waiting(&self) -> Vec<WaitingThread> {
        let now = Moment::now();
        if self.core.own_process(now).is_err() {
            return Vec::new();
        }
        self.core
            .queues
            .waiting(now)
            .into_iter()
            .map(|(it, _)| it)
            .collect()
    }

    pub(crate) fn stats(&self) -> Stats {
        let now = Moment::now();
        if self.core.own_process(now).is_err() {
            // A forked child holds nothing, and its copies of the locks may stay locked for ever.
            return self.core.counters.read();
        }
        let held = self.keeper.names(now);
        let waiting = self.core.queues.names();
        self.core.counters.stats(&held, &waiting)
    }
}
