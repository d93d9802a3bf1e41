//! The threads that sleep until a key changes in Redis.

use std::mem;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::key::stem_of;
use crate::base::sync::HashMap;
use crate::base::sync::{Condvar, Mutex};

/// The sleeping threads of one manager: one for each key, since the others queue behind it, but
/// several for the stem of a set of slots.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    /// The parkers of the sleeping threads. This mutex is locked before those of a parker: parkers
    /// are unparked under it, so the other order could deadlock.
    by_key: Mutex<HashMap<Box<[u8]>, Parkers>>,
}

type Parkers = Vec<Arc<Parker>>;

/// Wakes one thread. A wake-up that comes before the thread sleeps is not lost.
#[derive(Debug, Default)]
struct Parker {
    woken: Mutex<bool>,
    unparked: Condvar,
    /// The connections over which any thread has asked about the key since this one asked, if Redis
    /// tracks what is read over them.
    asked_over: Mutex<Vec<u64>>,
}

/// A thread's place in the table while it waits.
#[derive(Debug)]
pub(crate) struct Registration<'a> {
    wakeups: &'a Wakeups,
    redis_key: &'a str,
    parker: Arc<Parker>,
}

impl Wakeups {
    /// From now on, invalidations of this key wake the thread.
    pub(crate) fn register<'a>(&'a self, redis_key: &'a str) -> Registration<'a> {
        let parker = Arc::<Parker>::default();
        let mut by_key = self.by_key.lock();
        let same = by_key.entry(redis_key.as_bytes().into()).or_default();
        same.push(Arc::clone(&parker));
        Registration {
            wakeups: self,
            redis_key,
            parker,
        }
    }

    /// Wakes the thread that waits for this key and, if it is the key of a slot or a gate, those
    /// that wait for slots of the set.
    pub(crate) fn wake(&self, redis_key: &[u8]) {
        let by_key = self.by_key.lock();
        let keys = [Some(redis_key), stem_of(redis_key)].into_iter().flatten();
        let parkers = keys.filter_map(|key| by_key.get(key)).flatten();
        parkers.for_each(|parker| parker.unpark());
    }

    /// Wakes the threads that wait for keys for which `is_meant` is true.
    pub(crate) fn wake_those(&self, is_meant: impl Fn(&[u8]) -> bool) {
        let by_key = self.by_key.lock();
        let meant = by_key.iter().filter(|(key, _)| is_meant(key));
        let parkers = meant.flat_map(|(_, parkers)| parkers);
        parkers.for_each(|parker| parker.unpark());
    }

    /// A thread that waits for this key has asked over this connection, which it still has.
    pub(crate) fn asked_over(&self, redis_key: &[u8], link: u64) {
        let by_key = self.by_key.lock();
        let parkers = by_key.get(redis_key).into_iter().flatten();
        for parker in parkers {
            let mut links = parker.asked_over.lock();
            if !links.contains(&link) {
                links.push(link);
            }
        }
    }

    /// Wakes the threads that last asked over this connection. The connection is closed, so Redis
    /// sends no invalidations of the keys that were read over it.
    pub(crate) fn wake_over(&self, link: u64) {
        let by_key = self.by_key.lock();
        let parkers = by_key.values().flatten();
        let asked = parkers.filter(|parker| parker.asked_over.lock().contains(&link));
        asked.for_each(|parker| parker.unpark());
    }
}

impl Parker {
    fn unpark(&self) {
        *self.woken.lock() = true;
        self.unparked.notify_one();
    }
}

impl Registration<'_> {
    /// Forgets earlier wake-ups. Call this before asking Redis: the answer is newer than the
    /// changes that caused them. True if there was a wake-up.
    pub(crate) fn forget(&self) -> bool {
        self.parker.asked_over.lock().clear();
        mem::take(&mut self.parker.woken.lock())
    }

    /// Sleeps until the thread is woken, but not past `until`. True if it was woken.
    pub(crate) fn wait(&self, until: Moment) -> bool {
        let mut woken = self.parker.woken.lock();
        loop {
            let now = Moment::now();
            if *woken || until <= now {
                return *woken;
            }
            self.parker
                .unparked
                .wait_for(&mut woken, until.one_wait_from(now));
        }
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut by_key = self.wakeups.by_key.lock();
        let redis_key = self.redis_key.as_bytes();
        if let Some(same) = by_key.get_mut(redis_key) {
            // The next thread in the queue may have registered already.
            same.retain(|parker| !Arc::ptr_eq(parker, &self.parker));
            if same.is_empty() {
                by_key.remove(redis_key);
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Wakeups {
        /// True if no thread waits.
        pub(crate) fn is_empty(&self) -> bool {
            self.by_key.lock().is_empty()
        }
    }

    #[test]
    fn a_wake_up_is_for_those_that_wait_for_that_key_or_asked_over_that_link_last() {
        let wakeups = Wakeups::default();
        let early = wakeups.register("one");
        let all = ["one", "two", "three"].map(|key| wakeups.register(key));
        drop(early); // It does not remove the next one.
        let woken = || {
            all.each_ref()
                .map(|it| it.wait(Moment::PAST) && it.forget())
        };
        for (key, link) in [("one", 1), ("two", 1), ("gone", 1)] {
            wakeups.asked_over(key.as_bytes(), link);
        }
        all[1].forget();
        wakeups.asked_over(b"two", 2);
        wakeups.wake_over(1);
        assert_eq!(
            woken(),
            [true, false, false],
            "the second has asked over another since"
        );
        wakeups.wake_over(2);
        assert_eq!(
            woken(),
            [false, true, false],
            "a forgotten entry wakes nobody"
        );
        wakeups.wake(b"one");
        assert_eq!(woken(), [true, false, false]);
        wakeups.wake_those(|key| key != b"one");
        assert_eq!(woken(), [false, true, true]);
        drop(all);
        assert!(
            wakeups.is_empty(),
            "nothing is kept of a thread that has gone"
        );
    }
}
