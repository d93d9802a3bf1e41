//! The entry of one hold, how its renewal is brought forward, and the work that is due now.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::hold::Hold;
use crate::keeping::orphans::{FIRST_RETRY, Removal};
use crate::store::Failure;

/// The shortest time from one renewal of a hold to the next that an invalidation causes, however
/// often others change the key.
const LEAST_INTERVAL: Duration = Duration::from_millis(10);

/// The greatest age at which a hold is first renewed. That command also makes Redis track the key
/// (see `client_tracking`), so that its deletion is noticed from then on. Before it, nothing is
/// sent for the hold: a short hold costs nothing beyond its lock and unlock.
const FIRST_RENEWAL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct LeaseEntry {
    pub(super) hold: Arc<Hold>,
    /// When to renew the hold next. `NEVER` if it is not renewed.
    pub(super) due: Moment,
    /// The keeper has to find the end of the hold, and has not found it yet.
    pub(super) is_watched: bool,
    /// The pause after a renewal without an answer.
    pub(super) retry: Duration,
    /// When the last renewal of the hold was sent.
    pub(super) sent: Moment,
    /// Redis will report the next change of the key.
    pub(super) is_tracked: bool,
    /// The key of the hold was invalidated after `sent`.
    pub(super) invalidated: bool,
    /// The holder's call that waits for a renewal.
    pub(super) asked: Option<Asked>,
}

/// A call waits for the answer to a renewal that is sent after it.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) at: Moment,
    pub(super) until: Moment,
    /// The result of the last such renewal.
    pub(super) answer: Option<Result<(), Failure>>,
}

impl Asked {
    /// True if Redis has answered. (A renewal that failed for another reason is tried again.)
    pub(super) fn has_answer(&self) -> bool {
        match &self.answer {
            Some(Err(failure)) => failure.is_answer(),
            answer => answer.is_some(),
        }
    }
}

impl LeaseEntry {
    pub(super) fn has_key(&self, redis_key: &[u8]) -> bool {
        self.hold.key.in_redis().as_bytes() == redis_key
    }

    /// When the hold is due next, for whatever reason.
    pub(super) fn next(&self) -> Moment {
        self.due.min(self.end())
    }

    /// When the keeper has to find that the hold has ended.
    pub(super) fn end(&self) -> Moment {
        if self.is_watched {
            self.hold.valid_until()
        } else {
            Moment::NEVER
        }
    }

    /// Gives the waiting call the result of a renewal that was sent at `sent`.
    pub(super) fn answer(&mut self, sent: Moment, answer: Result<(), Failure>) {
        let asked = self.asked.as_mut();
        if let Some(asked) = asked.filter(|it| it.at <= sent && !it.has_answer()) {
            asked.answer = Some(answer);
        }
    }

    /// Makes a hold due again after a pause: the nearer its end, the shorter. So if Redis is back
    /// in time, the hold is kept.
    pub(super) fn renew_after(&mut self, pause: Duration, now: Moment) {
        let pause = pause.min(self.hold.remaining(now) / 4).max(FIRST_RETRY);
        self.due = now.after(pause);
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

/// The work of one round.
#[derive(Debug, Default)]
pub(crate) struct WorkDue {
    /// Holds to renew.
    pub(crate) renew: Vec<Arc<Hold>>,
    /// When the last of the calls that wait for these renewals gives up.
    pub(crate) until: Option<Moment>,
    /// Holds that have run out by the clock.
    pub(crate) over: Vec<Arc<Hold>>,
    /// Orphans to delete.
    pub(crate) remove: Vec<Removal>,
}

impl WorkDue {
    pub(crate) fn is_empty(&self) -> bool {
        self.renew.is_empty() && self.over.is_empty() && self.remove.is_empty()
    }
}

/// The time until the next renewal of a hold that is taken or renewed now. `None` if it is not
/// renewed.
pub(super) fn period(hold: &Hold) -> Option<Duration> {
    let every = hold.renews_every()?;
    Some(if hold.renewals() == 0 {
        every.min(FIRST_RENEWAL)
    } else {
        every
    })
}
