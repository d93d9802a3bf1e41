//! The keys of a store in memory: which are there, and until when.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::base::clock::Moment;
use crate::base::holder::Holder;
use crate::store::reply::Compared;
use crate::store::wanted::Wanted;
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct Keys {
    /// Keys that have expired, or were removed, stay until the table would grow. The next one of
    /// the same name takes their place.
    pub(super) by_name: HashMap<String, Entry>,
    pub(super) outage: Option<Outage>,
    /// The fencing token that was given last, of all keys.
    pub(super) fence: u64,
}

#[derive(Default)]
pub(super) struct Entry {
    pub(super) value: String,
    /// The fencing token of the hold, if it has one.
    pub(super) fence: Option<u64>,
    pub(super) lease: Duration,
    pub(super) expires: Moment,
    /// The holder has the key renewed, so it lasts until `expires` or, during an outage, for a
    /// lease from the beginning of the outage.
    pub(super) renewed: bool,
    /// A waiter has asked about the key, and wants to be woken when it changes.
    pub(super) awaited: bool,
}

/// A time in which each command fails.
#[derive(Clone, Copy)]
pub(super) struct Outage {
    pub(super) since: Moment,
    pub(super) until: Moment,
}

impl Entry {
    /// Reads the clock only for a key that expires: most are renewed, and reading the clock takes
    /// as long as all the rest of a command.
    pub(super) fn is_live(&self) -> bool {
        match self.expires {
            Moment::NEVER => true,
            Moment::PAST => false,
            expires => Moment::now() < expires,
        }
    }

    /// Takes the key, which nobody has. Returns the fencing token.
    pub(super) fn take(&mut self, wanted: Wanted<'_>, fence: Option<u64>, now: Moment) -> Option<u64> {
        self.value.clear();
        self.value.push_str(wanted.token);
        self.lease = Duration::from_millis(wanted.lease);
        self.expires = now.after(self.lease);
        (self.fence, self.renewed, self.awaited) = (fence, false, false);
        fence
    }

    pub(super) fn holder(&self) -> Holder {
        // A renewed key has a whole lease left, however often it is looked at.
        let left = self.expires.since(Moment::now());
        let left = if self.renewed { left.min(self.lease) } else { left };
        Holder::new(self.value.as_bytes(), Some(left))
    }

    /// An outage that lasts longer than the lease ends a renewed key.
    pub(super) fn suffer(&mut self, outage: Outage) {
        let end = outage.since.after(self.lease);
        if self.renewed && end <= outage.until {
            self.expires = self.expires.min(end);
        }
    }
}

impl Keys {
    pub(super) fn live(&mut self, key: &str) -> Option<&mut Entry> {
        self.by_name.get_mut(key).filter(|entry| entry.is_live())
    }

    pub(super) fn is_away(&self) -> bool {
        self.outage.is_some_and(|outage| Moment::now() < outage.until)
    }

    /// The entry of a key, if its value is the token. Otherwise what it is instead.
    pub(super) fn of_token(&mut self, key: &str, token: &str) -> Result<&mut Entry, Compared> {
        match self.live(key) {
            Some(entry) if entry.value == token => Ok(entry),
            Some(_) => Err(Compared::NotOurs),
            None => Err(Compared::Absent),
        }
    }

    /// Takes a key that is free at `now`, and returns the fencing token of the hold, if one
    /// is wanted. If the key is not free, returns what `busy` makes of it.
    pub(super) fn take<T>(
        &mut self,
        wanted: Wanted<'_>,
        now: Moment,
        busy: impl FnOnce(&mut Entry) -> T,
    ) -> Result<Option<u64>, T> {
        let Keys { by_name, fence: last, .. } = self;
        let mut fence = || wanted.counter.map(|_| next_fence(last));
        if let Some(entry) = by_name.get_mut(wanted.key) {
            return if now < entry.expires { Err(busy(entry)) } else { Ok(entry.take(wanted, fence(), now)) };
        }
        if by_name.len() == by_name.capacity() {
            by_name.retain(|_, entry| now < entry.expires);
            // So the next time comes after as many new keys as there are now.
            by_name.reserve(by_name.len() + 1);
        }
        Ok(by_name.entry(wanted.key.to_owned()).or_default().take(wanted, fence(), now))
    }

    pub(super) fn remove(&mut self, key: &str, token: &str) -> (Compared, bool) {
        match self.of_token(key, token) {
            Ok(entry) => {
                entry.expires = Moment::PAST;
                (Compared::Done, entry.awaited)
            }
            Err(compared) => (compared, false),
        }
    }
}

/// As on Redis: never less than the time, so that a resource accepts it after a restart.
fn next_fence(last: &mut u64) -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    *last = (*last + 1).max(u64::try_from(time).unwrap_or(0));
    *last
}
