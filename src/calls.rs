//! Who is asleep until a key changes in Redis.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use crate::clock::Moment;
use crate::sync::{Condvar, Mutex};

/// The sleepers of one manager: one a key at most, since the others stand in line behind it.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// Locked before the state of a call, and never after: calls ring under it.
    by_key: Mutex<HashMap<Box<[u8]>, Arc<Call>>>,
}

/// What wakes one sleeper. A call that comes before the sleep is not lost.
#[derive(Debug, Default)]
struct Call {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    came: bool,
    /// The connection over which the sleeper looked last, if Redis tells of changes over it.
    looked_over: Option<u64>,
}

/// A place in the table, for as long as somebody waits.
#[derive(Debug)]
pub(crate) struct Expected<'a> {
    calls: &'a Calls,
    redis_key: &'a str,
    call: Arc<Call>,
}

impl Calls {
    /// From now on, calls for this key are heard.
    pub(crate) fn expect<'a>(&'a self, redis_key: &'a str) -> Expected<'a> {
        let call = Arc::<Call>::default();
        self.by_key.lock().insert(redis_key.as_bytes().into(), Arc::clone(&call));
        Expected { calls: self, redis_key, call }
    }

    /// Wakes the thread that waits for this key, if there is one.
    pub(crate) fn call(&self, redis_key: &[u8]) {
        if let Some(call) = self.by_key.lock().get(redis_key) {
            call.ring();
        }
    }

    pub(crate) fn call_all(&self) {
        self.by_key.lock().values().for_each(|call| call.ring());
    }

    /// The sleeper for this key has looked over this connection, which it still has.
    pub(crate) fn looked_over(&self, redis_key: &[u8], link: u64) {
        if let Some(call) = self.by_key.lock().get(redis_key) {
            call.state.lock().looked_over = Some(link);
        }
    }

    /// Wakes those that looked over this connection last: it is closed, and Redis tells of nothing
    /// that was looked at over it.
    pub(crate) fn call_over(&self, link: u64) {
        for call in self.by_key.lock().values().filter(|call| call.state.lock().looked_over == Some(link)) {
            call.ring();
        }
    }

    /// True where nobody waits for any key.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.lock().is_empty()
    }
}

impl Call {
    fn ring(&self) {
        self.state.lock().came = true;
        self.bell.notify_one();
    }
}

impl Expected<'_> {
    /// Forgets earlier calls: what is asked next is newer than what they were about. True where there
    /// was one.
    pub(crate) fn forget(&self) -> bool {
        mem::take(&mut self.call.state.lock().came)
    }

    /// Sleeps until the call comes, or the moment does: true where the call came.
    pub(crate) fn wait(&self, until: Moment) -> bool {
        let mut state = self.call.state.lock();
        loop {
            let now = Moment::now();
            if state.came || until <= now {
                return state.came;
            }
            self.call.bell.wait_for(&mut state, until.since(now));
        }
    }
}

impl Drop for Expected<'_> {
    fn drop(&mut self) {
        let mut by_key = self.calls.by_key.lock();
        let redis_key = self.redis_key.as_bytes();
        if by_key.get(redis_key).is_some_and(|call| Arc::ptr_eq(call, &self.call)) {
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
        let calls = Calls::default();
        thread::scope(|scope| {
            let one = calls.expect("one");
            let two = calls.expect("two");
            let asleep = scope.spawn(move || one.wait(soon()));
            calls.call(b"one");
            assert!(asleep.join().unwrap());
            assert!(!two.wait(at_once()));
        });
        assert!(calls.is_empty(), "nothing is kept of who has gone");
    }

    #[test]
    fn a_connection_that_is_closed_calls_those_that_looked_over_it_last() {
        let calls = Calls::default();
        let [one, two, three] = ["one", "two", "three"].map(|key| calls.expect(key));
        for (key, link) in [("one", 1), ("two", 1), ("two", 2), ("gone", 1)] {
            calls.looked_over(key.as_bytes(), link);
        }
        calls.call_over(1);
        assert!(one.wait(soon()));
        assert!(!two.wait(at_once()), "it has looked over another since");
        assert!(!three.wait(at_once()), "it has not looked");
        one.forget();
        calls.call_over(2);
        assert!(two.wait(soon()) && !one.wait(at_once()));
    }

    #[test]
    fn a_call_that_comes_first_is_kept_until_it_is_forgotten() {
        let calls = Calls::default();
        let expected = calls.expect("one");
        calls.call_all();
        assert!(expected.wait(soon()));
        assert!(expected.forget());
        assert!(!expected.forget(), "it is forgotten");
        assert!(!expected.wait(at_once()));
    }

    #[test]
    fn a_waiter_that_goes_late_does_not_take_the_next_ones_place() {
        let calls = Calls::default();
        let first = calls.expect("one");
        let second = calls.expect("one");
        drop(first);
        calls.call(b"one");
        assert!(second.wait(soon()));
        drop(second);
        assert!(calls.is_empty());
    }
}
