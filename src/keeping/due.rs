//! The entry of one hold, how its renewal is brought forward, and what is due now.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::mpsc::Sender;
use crate::hold::Hold;
use crate::keeping::orphans::{FIRST_RETRY, OrphanKey};
use crate::store::Failure;

/// The shortest time from one renewal of a hold to the next that an invalidation causes, however
/// often others change the key.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct LeaseEntry {
    pub(super) hold: Arc<Hold>,
    /// When to renew the hold next, or to find that it has run out. `NEVER` if the keeper need not
    /// find its end, or has found it already.
    pub(super) due: Moment,
    /// It was handed out to be renewed, and nothing has come of that yet.
    pub(super) asked: bool,
    /// The pause after a renewal without an answer.
    pub(super) retry: Duration,
    /// When the last renewal of the hold was sent.
    pub(super) sent: Moment,
    /// The key of the hold was invalidated after `sent`.
    pub(super) invalidated: bool,
}

impl LeaseEntry {
    /// Makes a hold due again after a pause: the nearer its end, the sooner. So if Redis is back in
    /// time, the hold is kept.
    pub(super) fn renew_after(&mut self, pause: Duration, now: Moment) -> Moment {
        let pause = pause.min(self.hold.remaining(now) / 4).max(FIRST_RETRY);
        self.due = self.due.min(now.after(pause).min(self.hold.valid_until()));
        self.due
    }

    /// Makes a hold due now, but not within [`LEAST_INTERVAL`] of its last renewal. A hold that is
    /// never due stays so.
    pub(super) fn renew_soon(&mut self, now: Moment) -> Moment {
        self.invalidated = true;
        if self.due < Moment::NEVER {
            self.due = self.due.min(now.max(self.sent.after(LEAST_INTERVAL)));
        }
        self.due
    }
}

/// A request to renew a hold now. The thread that made it waits for the answer.
#[derive(Debug)]
pub(crate) struct RenewalRequest {
    pub(crate) hold: Arc<Hold>,
    pub(crate) deadline: Moment,
    pub(crate) answer: Sender<Result<(), Failure>>,
}

/// What the keeper does in one round.
#[derive(Debug, Default)]
pub(crate) struct WorkDue {
    /// Holds to renew.
    pub(crate) renew: Vec<Arc<Hold>>,
    /// Holds that have run out by the clock.
    pub(crate) over: Vec<Arc<Hold>>,
    /// Keys to delete, if they still hold the orphans' tokens.
    pub(crate) remove: Vec<OrphanKey>,
    pub(crate) requests: Vec<RenewalRequest>,
}

impl WorkDue {
    pub(crate) fn add(&mut self, more: WorkDue) {
        self.renew.extend(more.renew);
        self.over.extend(more.over);
        self.remove.extend(more.remove);
        self.requests.extend(more.requests);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.renew.is_empty()
            && self.over.is_empty()
            && self.remove.is_empty()
            && self.requests.is_empty()
    }
}
