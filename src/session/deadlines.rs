//! By when a call of this manager ends.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::session::Session;
use crate::waiting::patience::{Patience, SLOW_ANSWER};

impl Session {
    /// How long a caller waits that asks now. Without a limit, while the lock is busy. With a limit
    /// of zero, for one answer.
    pub(crate) fn patience(&self, limit: Option<Duration>) -> Patience {
        let began = Moment::now();
        let an_attempt = self.an_attempt();
        let tolerate_outage = self.core.settings.tolerate_outage;
        let once = limit == Some(Duration::ZERO);
        let limit = if once { Some(an_attempt) } else { limit };
        let deadline = limit.map_or(Moment::NEVER, |limit| began.after(limit));
        Patience {
            began,
            deadline,
            once,
            tolerate_outage,
            an_attempt,
        }
    }

    /// How long an attempt may take: connecting, and the answer.
    fn an_attempt(&self) -> Duration {
        self.core
            .settings
            .connect_timeout
            .saturating_add(self.core.settings.response_timeout)
    }

    /// The deadline of an attempt that begins at `now`.
    pub(super) fn one_answer(&self, now: Moment) -> Moment {
        now.after(self.an_attempt())
    }

    /// By when a release that begins now ends.
    pub(crate) fn one_release(&self) -> Moment {
        Moment::now().after(self.core.settings.response_timeout)
    }

    /// By when a lock is given back that this caller must not have. Its limit counts for this, too.
    /// What is not answered by then, the keeper goes on with.
    pub(super) fn undone_by(&self, patience: &Patience) -> Moment {
        patience
            .deadline
            .max(Moment::now().after(SLOW_ANSWER))
            .min(self.one_release())
    }
}
