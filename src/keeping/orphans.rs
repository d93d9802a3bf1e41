//! Orphans: tokens that may be left in Redis even though nobody uses them, and when to delete them.
//! (Why a token becomes an orphan: `acquire/claim.rs` and `session/release.rs`.)

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::key::Key;
use crate::base::options::Lease;
use crate::hold::Hold;

/// The first pause after a renewal that failed, or before an orphan is deleted. The pause doubles
/// with each attempt.
pub(crate) const FIRST_RETRY: Duration = Duration::from_millis(20);

/// The longest pause after a renewal or a deletion without an answer.
pub(crate) const LAST_RETRY: Duration = Duration::from_millis(500);

/// A key that may hold a token in Redis even though nobody holds the lock. While it does, nobody
/// can take the lock.
#[derive(Clone, Debug)]
pub(crate) struct Orphan {
    pub(super) key: Key,
    /// By when the key has certainly expired.
    gone_by: Moment,
    /// Redis may still execute a `SET` of this token. So the keeper searches for the key again,
    /// even after it was deleted or absent.
    pub(super) may_reappear: bool,
    pub(super) due: Moment,
    /// The pause after an attempt without an answer.
    retry: Duration,
    /// The pause after an attempt that was answered.
    search: Duration,
}

impl Orphan {
    /// A token that was claimed. Its `SET` may be executed late, unless it was answered.
    pub(crate) fn of_claim(key: &Key, lease: Lease, may_reappear: bool) -> Orphan {
        Orphan::new(key, lease.gone_by(Moment::now()), may_reappear)
    }

    /// A token that was held. (A renewal that is executed late may add another lease.)
    pub(crate) fn of_hold(hold: &Hold) -> Orphan {
        Orphan::new(&hold.key, hold.lease().gone_by(hold.gone_by()), false)
    }

    fn new(key: &Key, gone_by: Moment, may_reappear: bool) -> Orphan {
        Orphan {
            key: key.clone(),
            gone_by,
            may_reappear,
            due: Moment::PAST,
            retry: FIRST_RETRY,
            search: FIRST_RETRY,
        }
    }

    /// The token was already an orphan. It stays one until the later of the two ends.
    pub(super) fn merge(&mut self, before: &Orphan) {
        self.gone_by = self.gone_by.max(before.gone_by);
        self.may_reappear |= before.may_reappear;
    }

    pub(super) fn is_over(&self, now: Moment) -> bool {
        self.gone_by <= now
    }

    /// The removal to send at `now`. The next one is due after a pause, unless an answer comes
    /// first.
    pub(super) fn remove(&mut self, token: &Arc<str>, now: Moment) -> Removal {
        self.due = now.after(self.retry);
        self.retry = (self.retry * 2).min(LAST_RETRY);
        Removal {
            key: self.key.clone(),
            token: Arc::clone(token),
            may_reappear: self.may_reappear,
            pause: self.due.since(now),
        }
    }

    /// The key was deleted, or was absent, but may reappear. The next search follows after a
    /// growing pause.
    pub(super) fn search_again(&mut self, now: Moment) {
        self.search *= 2;
        self.due = now.after(self.search);
        self.retry = FIRST_RETRY;
    }
}

/// An orphan that is to be deleted now.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) key: Key,
    pub(crate) token: Arc<str>,
    pub(crate) may_reappear: bool,
    /// When it is due again, if there is no answer.
    pub(super) pause: Duration,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Orphan {
        pub(crate) fn sample(may_reappear: bool, gone_by: Moment) -> Orphan {
            Orphan::new(&Key::new("lock:", "a").unwrap(), gone_by, may_reappear)
        }
    }
}
