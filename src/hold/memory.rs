//! A hold whose key is in the memory of this process. No keeper renews it: if it is one to renew,
//! it is valid for as long as its key exists, and the store says how long that is.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::sync::atomic::{AtomicU64, Ordering};
use crate::hold::{Hold, RUN_OUT};
use crate::store::MemoryStore;

#[derive(Debug)]
pub(super) struct InMemory {
    store: Arc<MemoryStore>,
    /// By how much a control for tests has made the hold older, in nanoseconds.
    older: AtomicU64,
}

impl InMemory {
    pub(super) fn new(store: Arc<MemoryStore>) -> InMemory {
        InMemory { store, older: AtomicU64::new(0) }
    }
}

impl Hold {
    /// Until when the lock stays taken, even if the hold ends sooner.
    pub(crate) fn keep_until(&self) -> Moment {
        let until = Moment::from_nanos(self.keep_until.load(Ordering::Acquire));
        match &self.memory {
            Some(memory) => until.before(Duration::from_nanos(memory.older.load(Ordering::Relaxed))),
            None => until,
        }
    }

    /// True if the hold is one to renew, and its key is in memory.
    pub(crate) fn lasts_in_memory(&self) -> bool {
        self.memory.is_some() && self.renewal.on
    }

    /// The keeper's table has the hold: from now on, the hold ends with its key.
    ///
    /// A control for tests changes the key first, and then the holds of the table. If this came
    /// before the hold is in the table, a control in between would end the key and not the hold.
    pub(crate) fn settle_in_memory(&self) {
        let Some(memory) = &self.memory else { return };
        let last = match self.renewal.max_hold {
            Some(limit) => self.acquired.answered.after(limit).after(self.lease().time()),
            None => Moment::NEVER,
        };
        let renewed = self.renewal.on.then_some(last);
        memory.store.settle(self.key.in_redis(), &self.token, self.acquired.answered, renewed, |end| {
            if renewed.is_none() {
                self.shorten_to(end.max(RUN_OUT));
            } else if !self.lasts_until(end.max(RUN_OUT)) {
                return Moment::PAST;
            }
            end
        });
    }

    /// The hold is valid until `end` now. False if a thread has found already that it has run out.
    ///
    /// The keeper may have reported its loss, and another thread of the queue may have passed its
    /// turn over. If the hold became valid again, that thread could not have the lock until a
    /// program gives back what it was told to be lost.
    fn lasts_until(&self, end: Moment) -> bool {
        loop {
            let until = self.valid_until();
            if until <= RUN_OUT || self.end.get().is_some() {
                return false;
            }
            let (old, new) = (until.as_nanos(), end.as_nanos());
            if self.valid_until.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                return true;
            }
        }
    }

    /// The end of a hold that lasts as long as its key in memory. `None` for any other hold.
    pub(super) fn end_in_memory(&self) -> Option<Moment> {
        let memory = self.memory.as_ref().filter(|_| self.renewal.on)?;
        memory.store.end_of(self.key.in_redis(), &self.token)
    }

    /// Nobody has the key renewed any more, and nobody deletes it: it ends with its lease, and so
    /// does the hold. Does nothing for a key on a server, which ends by itself.
    pub(crate) fn stop_in_memory(&self, now: Moment) {
        if let Some(memory) = self.memory.as_ref().filter(|_| self.renewal.on) {
            let gone_by = self.lease().gone_by(now);
            self.gone_by.fetch_max(gone_by.as_nanos(), Ordering::AcqRel);
            self.shorten_to(gone_by);
            memory.store.lets_expire(self.key.in_redis(), &self.token, gone_by, false);
        }
    }

    /// A control for tests has changed the keys: each lease is older by `span` now, and an outage
    /// may end the key. True if the hold has run out by that.
    pub(crate) fn age(&self, span: Duration, now: Moment) -> bool {
        let Some(memory) = &self.memory else { return false };
        memory.older.fetch_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        let until = self.valid_until();
        if until == Moment::PAST {
            return false; // Its release has begun.
        }
        let end_of_key = if self.renewal.on { self.end_in_memory().unwrap_or(RUN_OUT) } else { until };
        self.shorten_to(until.before(span).min(end_of_key));
        !self.is_valid(now)
    }
}
