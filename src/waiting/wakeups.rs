//! Who is asleep until a key changes in Redis.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::sync::{Condvar, Mutex};

/// The sleepers of one manager: one a key at most, since the others stand in line behind it.
#[derive(Debug, Default)]
pub(crate) struct Wakeups {
    /// Locked before the state of a parker, and never after: calls ring under it.
    by_key: Mutex<HashMap<Box<[u8]>, Arc<Parker>>>,
}

/// What wakes one sleeper. A call that comes before the sleep is not lost.
#[derive(Debug, Default)]
struct Parker {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    woken: bool,
    /// The connection over which the sleeper looked last, if Redis tells of changes over it.
    looked_over: Option<u64>,
}

/// A place in the table, for as long as somebody waits.
#[derive(Debug)]
pub(crate) struct Registration<'a> {
    wakeups: &'a Wakeups,
    redis_key: &'a str,
    parker: Arc<Parker>,
}

impl Wakeups {
    /// From now on, calls for this key are heard.
    pub(crate) fn register<'a>(&'a self, redis_key: &'a str) -> Registration<'a> {
        let parker = Arc::<Parker>::default();
        self.by_key.lock().insert(redis_key.as_bytes().into(), Arc::clone(&parker));
        Registration { wakeups: self, redis_key, parker }
    }

    /// Wakes the thread that waits for this key, if there is one.
    pub(crate) fn wake(&self, redis_key: &[u8]) {
        if let Some(parker) = self.by_key.lock().get(redis_key) {
            parker.unpark();
        }
    }

    pub(crate) fn wake_all(&self) {
        self.by_key.lock().values().for_each(|parker| parker.unpark());
    }

    /// The sleeper for this key has looked over this connection, which it still has.
    pub(crate) fn looked_over(&self, redis_key: &[u8], link: u64) {
        if let Some(parker) = self.by_key.lock().get(redis_key) {
            parker.state.lock().looked_over = Some(link);
        }
    }

    /// Wakes those that looked over this connection last: it is closed, and Redis tells of nothing
    /// that was looked at over it.
    pub(crate) fn wake_over(&self, link: u64) {
        for parker in
            self.by_key.lock().values().filter(|parker| parker.state.lock().looked_over == Some(link))
        {
            parker.unpark();
        }
    }

    /// True where nobody waits for any key.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().is_empty()
    }
}

impl Parker {
    fn unpark(&self) {
        self.state.lock().woken = true;
        self.bell.notify_one();
    }
}

impl Registration<'_> {
    /// Forgets earlier calls: what is asked next is newer than what they were about. True where there
    /// was one.
    pub(crate) fn forget(&self) -> bool {
        mem::take(&mut self.parker.state.lock().woken)
    }

    /// Sleeps until the call comes, or the moment does: true where the call came.
    pub(crate) fn wait(&self, until: Moment) -> bool {
        let mut state = self.parker.state.lock();
        loop {
            let now = Moment::now();
            if state.woken || until <= now {
                return state.woken;
            }
            self.parker.bell.wait_for(&mut state, until.since(now));
        }
    }
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let mut by_key = self.wakeups.by_key.lock();
        let redis_key = self.redis_key.as_bytes();
        if by_key.get(redis_key).is_some_and(|parker| Arc::ptr_eq(parker, &self.parker)) {
            by_key.remove(redis_key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn soon() -> Moment {
        Moment::now().after(Duration::from_secs(10))
    }

    fn at_once() -> Moment {
        Moment::now().after(Duration::from_millis(5))
    }

    #[test]
    fn a_call_wakes_the_thread_that_sleeps_for_that_key() {
        let wakeups = Wakeups::default();
        thread::scope(|scope| {
            let one = wakeups.register("one");
            let two = wakeups.register("two");
            let asleep = scope.spawn(move || one.wait(soon()));
            wakeups.wake(b"one");
            assert!(asleep.join().unwrap());
            assert!(!two.wait(at_once()));
        });
        assert!(wakeups.is_empty(), "nothing is kept of who has gone");
    }

    #[test]
    fn a_connection_that_is_closed_calls_those_that_looked_over_it_last() {
        let wakeups = Wakeups::default();
        let [one, two, three] = ["one", "two", "three"].map(|key| wakeups.register(key));
        for (key, link) in [("one", 1), ("two", 1), ("two", 2), ("gone", 1)] {
            wakeups.looked_over(key.as_bytes(), link);
        }
        wakeups.wake_over(1);
        assert!(one.wait(soon()));
        assert!(!two.wait(at_once()), "it has looked over another since");
        assert!(!three.wait(at_once()), "it has not looked");
        one.forget();
        wakeups.wake_over(2);
        assert!(two.wait(soon()) && !one.wait(at_once()));
    }

    #[test]
    fn a_call_that_comes_first_is_kept_until_it_is_forgotten() {
        let wakeups = Wakeups::default();
        let registration = wakeups.register("one");
        wakeups.wake_all();
        assert!(registration.wait(soon()));
        assert!(registration.forget());
        assert!(!registration.forget(), "it is forgotten");
        assert!(!registration.wait(at_once()));
    }

    #[test]
    fn a_waiter_that_goes_late_does_not_take_the_next_ones_place() {
        let wakeups = Wakeups::default();
        let first = wakeups.register("one");
        let second = wakeups.register("one");
        drop(first);
        wakeups.wake(b"one");
        assert!(second.wait(soon()));
        drop(second);
        assert!(wakeups.is_empty());
    }
}
