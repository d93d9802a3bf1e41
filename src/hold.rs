//! One thread's possession of one lock: what it may be trusted for, and until when.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::holder::Holder;
use crate::key::Key;
use crate::options::Lease;
use crate::owner::Owner;

/// When a lock was taken, as far as this side can tell: Redis did it in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Since {
    pub(crate) sent: Moment,
    pub(crate) answered: Moment,
}

/// A hold, from the outermost lock to the outermost unlock.
///
/// Validity is a comparison of the clock with `valid_until`, never a flag that somebody has to set in time:
/// a process that was stopped and goes on finds the truth at its first look. Only the loss itself is a fact
/// that is written down, once, by whoever learns of it first.
#[derive(Debug)]
pub(crate) struct Hold {
    key: Key,
    owner: Owner,
    token: String,
    valid_until: AtomicU64,
    gone_by: AtomicU64,
    lost: OnceLock<LostCause>,
}

impl Hold {
    pub(crate) fn new(key: Key, owner: Owner, token: String, lease: Lease, since: Since) -> Hold {
        let Since { sent, answered } = since;
        Hold {
            key,
            owner,
            token,
            valid_until: AtomicU64::new(lease.valid_until(sent).as_nanos()),
            gone_by: AtomicU64::new(lease.gone_by(answered).as_nanos()),
            lost: OnceLock::new(),
        }
    }

    pub(crate) fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.owner
    }

    pub(crate) fn token(&self) -> &str {
        &self.token
    }

    /// Until when the hold may be trusted, unless it is lost earlier.
    pub(crate) fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }

    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        now < self.valid_until() && self.lost.get().is_none()
    }

    pub(crate) fn remaining(&self, now: Moment) -> Duration {
        if self.lost.get().is_some() { Duration::ZERO } else { self.valid_until().since(now) }
    }

    /// How long the key can still stand in Redis if it is not deleted.
    pub(crate) fn gone_in(&self, now: Moment) -> Duration {
        Moment::from_nanos(self.gone_by.load(Ordering::Acquire)).since(now)
    }

    /// Writes down how the hold was lost; the first cause stays.
    pub(crate) fn lose(&self, cause: LostCause) -> Error {
        let cause = *self.lost.get_or_init(|| cause);
        Error::Lost { key: self.key.name().to_string(), cause }
    }

    /// `Err(Lost)` with the first cause, where the hold can no longer be trusted.
    pub(crate) fn check(&self, now: Moment) -> Result<(), Error> {
        if self.is_valid(now) { Ok(()) } else { Err(self.lose(LostCause::Expired)) }
    }

    /// The hold as others would see it in Redis, for a message.
    pub(crate) fn as_holder(&self, now: Moment) -> Holder {
        Holder::new(self.token.as_bytes(), Some(self.gone_in(now)))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn sample(name: &str, lease: Duration, sent: Moment) -> Hold {
        let key = Key::new("lock:", name).unwrap();
        let owner = Owner::new("host".into(), 1, 2);
        let token = format!("{owner}-{}", "0".repeat(32));
        Hold::new(key, owner, token, Lease::new(lease), Since { sent, answered: sent })
    }

    #[test]
    fn the_clock_alone_ends_a_hold() {
        let sent = Moment::from_nanos(1_000);
        let hold = sample("a", Duration::from_secs(1), sent);
        assert!(hold.is_valid(sent));
        assert_eq!(hold.remaining(sent), Duration::from_millis(988));
        let end = sent.after(Duration::from_millis(988));
        assert!(!hold.is_valid(end));
        assert_eq!(hold.remaining(end), Duration::ZERO);
        assert!(matches!(hold.check(end), Err(Error::Lost { cause: LostCause::Expired, .. })));
    }

    #[test]
    fn the_first_cause_stays() {
        let sent = Moment::from_nanos(0);
        let hold = sample("a", Duration::from_secs(1), sent);
        let _ = hold.lose(LostCause::Taken);
        assert!(!hold.is_valid(sent));
        assert!(matches!(hold.check(sent), Err(Error::Lost { cause: LostCause::Taken, .. })));
        assert!(matches!(hold.lose(LostCause::Deleted), Error::Lost { cause: LostCause::Taken, .. }));
    }
}
