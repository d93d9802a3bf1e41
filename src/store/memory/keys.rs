//! The keys of a store in memory: which are there, and until when.

use std::time::Duration;

use crate::base::clock::{Moment, since_1970};
use crate::base::owner::holder::Holder;
use crate::base::sync::HashMap;
use crate::client::{ClaimReply, Compared, Failure, Goal, Refusal, Wanted};

#[derive(Default)]
pub(super) struct Keys {
    /// Keys that have expired, or were removed, stay until the table would grow.
    pub(super) by_name: HashMap<String, StoredKey>,
    /// Until then, each command fails.
    pub(super) away_until: Moment,
    /// The last fencing token that was given, for any key.
    pub(super) fence: u64,
}

pub(super) struct StoredKey {
    pub(super) value: String,
    /// The fencing token of the hold, if it has one.
    pub(super) fence: Option<u64>,
    pub(super) expires: Moment,
}

impl StoredKey {
    pub(super) fn is_live(&self) -> bool {
        Moment::now() < self.expires
    }

    pub(super) fn holder(&self) -> Holder {
        Holder::new(
            self.value.as_bytes(),
            Some(self.expires.since(Moment::now())),
        )
    }
}

impl Keys {
    pub(super) fn live(&mut self, key: &str) -> Option<&mut StoredKey> {
        self.by_name.get_mut(key).filter(|entry| entry.is_live())
    }

    pub(super) fn is_away(&self) -> bool {
        Moment::now() < self.away_until
    }

    /// The entry of a key, if its value is the token. Otherwise, what it is instead.
    pub(super) fn of_token(&mut self, key: &str, token: &str) -> Result<&mut StoredKey, Compared> {
        match self.live(key) {
            Some(entry) if entry.value == token => Ok(entry),
            Some(_) => Err(Compared::NotOurs),
            None => Err(Compared::Absent),
        }
    }

    /// Does what the scripts that take a lock do.
    pub(super) fn claim(&mut self, wanted: Wanted<'_>) -> Result<ClaimReply, Failure> {
        let busy = |entry: Option<&mut StoredKey>| Some(ClaimReply::Busy(Some(entry?.holder())));
        let (slots, gate, mine) = match wanted.goal {
            Goal::Key => {
                let taken = |keys: &mut Keys| ClaimReply::Taken {
                    number: keys.take(wanted),
                };
                return Ok(busy(self.live(wanted.key)).unwrap_or_else(|| taken(self)));
            }
            Goal::Slot { slots, gate, mine } => (slots, gate, mine),
            Goal::NoSlot { gate, .. } if self.of_token(gate, wanted.token).is_err() => {
                let message = "NOGATE the gate is not held any more";
                return Err(Failure::Refused(Refusal::found("NOGATE", message)));
            }
            Goal::NoSlot { slots, .. } => (slots, None, ""),
        };
        let gate = gate.and_then(|gate| self.live(gate));
        if let Some(others) = busy(gate.filter(|gate| gate.value != mine)) {
            return Ok(others);
        }
        let live = slots.iter().filter_map(|slot| {
            let entry = self.by_name.get(slot.in_redis())?;
            entry.is_live().then_some(entry)
        });
        let holder = live
            .min_by_key(|entry| entry.expires)
            .map(StoredKey::holder);
        if let Goal::NoSlot { .. } = wanted.goal {
            let number = None;
            return Ok(holder.map_or(ClaimReply::Taken { number }, |it| {
                ClaimReply::Busy(Some(it))
            }));
        }
        let mut free = (1..).zip(slots);
        let free = free.find(|(_, slot)| self.live(slot.in_redis()).is_none());
        let Some((number, slot)) = free else {
            return Ok(ClaimReply::Busy(holder));
        };
        self.take(Wanted {
            key: slot.in_redis(),
            ..wanted
        });
        let number = Some(number);
        Ok(ClaimReply::Taken { number })
    }

    /// Takes a key that is free. Returns the fencing token, if one is wanted.
    pub(super) fn take(&mut self, wanted: Wanted<'_>) -> Option<u64> {
        if self.by_name.len() == self.by_name.capacity() {
            self.by_name.retain(|_, entry| entry.is_live());
            // So the keys are next looked through after as many new ones as there are now.
            self.by_name.reserve(self.by_name.len() + 1);
        }
        let value = wanted.token.to_owned();
        let fence = self.fence(wanted);
        let expires = Moment::now().after(Duration::from_millis(wanted.lease));
        let entry = StoredKey {
            value,
            fence,
            expires,
        };
        self.by_name.insert(wanted.key.to_owned(), entry);
        fence
    }

    /// The next fencing token, if one is wanted.
    fn fence(&mut self, wanted: Wanted<'_>) -> Option<u64> {
        wanted.counter?;
        self.fence = next_fence(self.fence);
        Some(self.fence)
    }
}

/// The fencing token after this one. As on Redis, it is never less than the time, so that a
/// resource accepts it after a restart.
pub(in crate::store) fn next_fence(last: u64) -> u64 {
    (last + 1).max(u64::try_from(since_1970().as_micros()).unwrap_or(0))
}
