//! Who is asleep until a key changes in Redis, and what is to be asked for them then.

use std::collections::HashMap;
use std::sync::Arc;

use crate::clock::Moment;
use crate::store::{Claim, Trouble, Watch};
use crate::sync::{Condvar, Mutex};
use crate::wish::Wish;

/// The sleepers of one manager: one a key at most, since the others stand in line behind it.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    by_key: Mutex<HashMap<Box<[u8]>, Arc<Call>>>,
}

/// What wakes one sleeper. A call that comes before the sleep is not lost.
#[derive(Debug, Default)]
pub(crate) struct Call {
    state: Mutex<State>,
    bell: Condvar,
}

#[derive(Debug, Default)]
struct State {
    came: bool,
    /// What to ask Redis for before the sleeper is woken: that is a switch of threads sooner.
    wish: Option<Wish>,
    /// That is being asked.
    asking: bool,
    /// The sleeper could not stay for the answer.
    left: bool,
    asked: Option<Asked>,
}

/// What Redis said to a wish.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) sent: Moment,
    /// The listener that is told when that changes.
    pub(crate) listener: u64,
    pub(crate) answer: Result<(Claim, Watch), Trouble>,
}

/// Why a sleep was over.
#[derive(Debug)]
pub(crate) enum Woken {
    /// The moment came.
    InTime,
    /// The key changed.
    Called,
    /// The key changed, and this is what Redis said to the wish.
    Answered(Asked),
    /// The deadline came while Redis was being asked: what was wished for is for whoever asks to clean up.
    Left,
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

    /// Wakes whoever waits for this key.
    pub(crate) fn call(&self, redis_key: &[u8]) {
        if let Some(call) = self.find(redis_key) {
            call.ring();
        }
    }

    /// Whoever waits for this key.
    pub(crate) fn find(&self, redis_key: &[u8]) -> Option<Arc<Call>> {
        self.by_key.lock().get(redis_key).cloned()
    }

    /// Wakes everybody.
    pub(crate) fn call_all(&self) {
        let calls: Vec<_> = self.by_key.lock().values().cloned().collect();
        for call in calls {
            call.ring();
        }
    }
}

impl Call {
    pub(crate) fn ring(&self) {
        self.state.lock().came = true;
        self.bell.notify_one();
    }

    /// What the sleeper wants asked, if anything: it is not woken until the answer is there.
    pub(crate) fn take_wish(self: &Arc<Call>) -> Option<Question> {
        let mut state = self.state.lock();
        let wish = state.wish.take()?;
        state.asking = true;
        Some(Question { call: Some(Arc::clone(self)), wish })
    }

    /// Wakes the sleeper with an answer: false where it is gone.
    fn settle(&self, asked: Asked) -> bool {
        let mut state = self.state.lock();
        state.asking = false;
        state.asked = Some(asked);
        let stays = !state.left;
        drop(state);
        self.bell.notify_one();
        stays
    }
}

/// What a sleeper wants asked. It waits for the answer.
#[derive(Debug)]
pub(crate) struct Question {
    /// Until it is answered.
    call: Option<Arc<Call>>,
    pub(crate) wish: Wish,
}

impl Question {
    /// Wakes the sleeper with an answer: false where it is gone.
    pub(crate) fn answer(mut self, asked: Asked) -> bool {
        self.call.take().is_some_and(|call| call.settle(asked))
    }
}

impl Drop for Question {
    /// Nobody waits for an answer that does not come, whatever became of whoever asked.
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            let cause = "the listener ended while it asked".into();
            let answer = Err(Trouble::Unanswered { link_stands: false, cause });
            call.settle(Asked { sent: Moment::now(), listener: 0, answer });
        }
    }
}

impl Expected<'_> {
    /// Forgets earlier calls: what is asked next is newer than what they were about.
    pub(crate) fn forget(&self) {
        self.call.state.lock().came = false;
    }

    /// Sleeps until the call comes, or the moment does. A wish may be asked for in between: then until the answer comes, but
    /// not past the deadline.
    pub(crate) fn wait(&self, until: Moment, deadline: Moment, wish: Option<Wish>) -> Woken {
        let mut state = self.call.state.lock();
        state.wish = wish;
        loop {
            if let Some(asked) = state.asked.take() {
                return Woken::Answered(asked);
            }
            let now = Moment::now();
            let until = if state.asking { deadline } else { until.min(deadline) };
            if until <= now && state.asking {
                state.left = true;
                return Woken::Left;
            }
            if !state.asking && (state.came || until <= now) {
                state.wish = None;
                return if state.came { Woken::Called } else { Woken::InTime };
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
    use crate::options::Lease;

    fn soon() -> Moment {
        Moment::now().after(Duration::from_secs(10))
    }

    fn at_once() -> Moment {
        Moment::now().after(Duration::from_millis(5))
    }

    fn wish() -> Wish {
        Wish { token: "host-1-2-00".into(), lease: Lease::new(Duration::from_secs(30)) }
    }

    fn busy() -> Asked {
        Asked { sent: Moment::PAST, listener: 1, answer: Ok((Claim::Busy(None), Watch::On)) }
    }

    #[test]
    fn a_call_wakes_whoever_sleeps_for_that_key() {
        let calls = Calls::default();
        thread::scope(|scope| {
            let one = calls.expect("one");
            let two = calls.expect("two");
            let asleep = scope.spawn(move || one.wait(soon(), soon(), None));
            calls.call(b"one");
            assert!(matches!(asleep.join().unwrap(), Woken::Called));
            assert!(matches!(two.wait(at_once(), soon(), None), Woken::InTime));
        });
        assert!(calls.by_key.lock().is_empty(), "nothing is kept of who has gone");
    }

    #[test]
    fn a_call_that_comes_first_is_kept_until_it_is_forgotten() {
        let calls = Calls::default();
        let expected = calls.expect("one");
        calls.call_all();
        assert!(matches!(expected.wait(soon(), soon(), None), Woken::Called));
        expected.forget();
        assert!(matches!(expected.wait(at_once(), soon(), None), Woken::InTime));
    }

    #[test]
    fn whoever_goes_late_does_not_take_the_next_ones_place() {
        let calls = Calls::default();
        let first = calls.expect("one");
        let second = calls.expect("one");
        drop(first);
        calls.call(b"one");
        assert!(matches!(second.wait(soon(), soon(), None), Woken::Called));
        drop(second);
        assert!(calls.by_key.lock().is_empty());
    }

    #[test]
    fn a_wish_is_asked_once_and_its_answer_wakes_the_sleeper() {
        let calls = Calls::default();
        thread::scope(|scope| {
            let expected = calls.expect("one");
            let call = calls.find(b"one").unwrap();
            // It waits for the answer even past the moment that it wanted to wake up at.
            let asleep = scope.spawn(move || {
                expected.wait(Moment::now().after(Duration::from_millis(100)), soon(), Some(wish()))
            });
            let question = loop {
                if let Some(question) = call.take_wish() {
                    break question;
                }
                assert!(!asleep.is_finished());
            };
            assert_eq!(question.wish.token, wish().token);
            assert!(call.take_wish().is_none());
            call.ring();
            thread::sleep(Duration::from_millis(150));
            assert!(!asleep.is_finished(), "the answer is on its way");
            assert!(question.answer(busy()));
            assert!(matches!(asleep.join().unwrap(), Woken::Answered(_)));
        });
    }

    #[test]
    fn a_wish_is_not_asked_for_whoever_sleeps_no_more() {
        let calls = Calls::default();
        let expected = calls.expect("one");
        assert!(matches!(expected.wait(at_once(), soon(), Some(wish())), Woken::InTime));
        assert!(calls.find(b"one").unwrap().take_wish().is_none());
    }

    #[test]
    fn a_question_that_is_dropped_keeps_nobody_waiting() {
        let calls = Calls::default();
        let expected = calls.expect("one");
        let call = calls.find(b"one").unwrap();
        thread::scope(|scope| {
            let end = soon();
            let asleep = scope.spawn(move || expected.wait(end, end, Some(wish())));
            while call.take_wish().map(drop).is_none() {}
            assert!(matches!(asleep.join().unwrap(), Woken::Answered(Asked { answer: Err(_), .. })));
            assert!(Moment::now() < end, "woken too late: a wake-up was lost?");
        });
    }

    #[test]
    fn whoever_asks_for_a_sleeper_is_told_that_it_left() {
        let calls = Calls::default();
        let expected = calls.expect("one");
        let call = calls.find(b"one").unwrap();
        thread::scope(|scope| {
            let deadline = Moment::now().after(Duration::from_millis(100));
            let asleep = scope.spawn(move || expected.wait(Moment::NEVER, deadline, Some(wish())));
            let question = loop {
                if let Some(question) = call.take_wish() {
                    break question;
                }
                assert!(!asleep.is_finished());
            };
            assert!(matches!(asleep.join().unwrap(), Woken::Left));
            assert!(!question.answer(busy()));
        });
    }
}
