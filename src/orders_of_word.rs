//! Word of a key that has changed, in many orders of what the listener and one who sleeps for it do.
//!
//! The place of the sleeper is the real one. Beside it: a Redis of one key, and what claimant and listener do with it, as briefly
//! as that goes.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread;

use crate::calls::{Asked, Calls, Expected, Woken};
use crate::clock::Moment;
use crate::options::Lease;
use crate::store::{Claim, Compared, Trouble, Watch};
use crate::sync::orders::{by_chance, in_many_orders, step};
use crate::sync::{Condvar, Mutex};
use crate::wish::Wish;

pub(crate) const KEY: &str = "lock:a";

/// A token that is not ours.
const THEIRS: &str = "theirs";

/// A Redis of one key: the token that stands there, and whom it tells of changes.
#[derive(Default)]
pub(crate) struct Redis {
    state: Mutex<State>,
    /// There is word, or nobody is left to cause any.
    bell: Condvar,
}

#[derive(Default)]
struct State {
    token: Option<String>,
    /// Word of the next change is wanted.
    tracked: bool,
    /// Word that nobody has read yet.
    words: u32,
    silent: bool,
    claimed: Vec<String>,
    pushes: u32,
}

impl Redis {
    /// `CLIENT TRACKING`, `SET NX`, `GET`.
    pub(crate) fn claim(&self, token: &str) -> bool {
        let mut state = self.state.lock();
        assert_ne!(state.token.as_deref(), Some(token), "it was claimed by two");
        let free = state.token.is_none();
        if free {
            state.token = Some(token.to_owned());
            state.claimed.push(token.to_owned());
        }
        state.tracked |= !free;
        free
    }

    /// Compare and delete, or just delete; whoever wants to know is told.
    pub(crate) fn remove(&self, token: Option<&str>) -> Compared {
        let mut state = self.state.lock();
        match &state.token {
            None => return Compared::Absent,
            Some(stands) if token.is_some_and(|token| token != stands) => return Compared::NotOurs,
            Some(_) => state.token = None,
        }
        let told = std::mem::take(&mut state.tracked);
        state.words += u32::from(told);
        drop(state);
        if told {
            self.bell.notify_one();
        }
        Compared::Done
    }

    /// Something else about the key is changed.
    pub(crate) fn touch(&self) {
        let told = {
            let mut state = self.state.lock();
            let told = std::mem::take(&mut state.tracked);
            state.words += u32::from(told);
            told
        };
        if told {
            self.bell.notify_one();
        }
    }

    /// Compare and extend, and be told of changes from then on.
    pub(crate) fn extend(&self, token: &str) -> Compared {
        let mut state = self.state.lock();
        state.tracked = true;
        match &state.token {
            None => Compared::Absent,
            Some(stands) if stands != token => Compared::NotOurs,
            Some(_) => {
                state.pushes += 1;
                Compared::Done
            }
        }
    }

    /// Reads the next word: false where there will be none.
    pub(crate) fn word(&self) -> bool {
        let mut state = self.state.lock();
        while state.words == 0 && !state.silent {
            self.bell.wait_for(&mut state, Duration::MAX);
        }
        let came = state.words > 0;
        state.words -= u32::from(came);
        came
    }

    /// How often a lease was pushed out.
    pub(crate) fn pushes(&self) -> u32 {
        self.state.lock().pushes
    }

    pub(crate) fn no_more_words(&self) {
        self.state.lock().silent = true;
        self.bell.notify_one();
    }
}

/// One who sleeps for a key, and the listener.
#[derive(Default)]
struct Scene {
    calls: Calls,
    redis: Redis,
    log: parking_lot::Mutex<Log>,
}

/// How the questions ended, for whoever asked and for the sleeper.
#[derive(Debug, Default)]
struct Log {
    stayed: u32,
    had_left: u32,
    dropped: u32,
    answered: u32,
    left: u32,
}

impl Scene {
    /// As `Claimant::run` does it: the token by which it has the lock in the end.
    fn wait(&self, deadline: Moment) -> Option<String> {
        let expected = self.calls.expect(KEY);
        let mut fresh = (0..).map(|n| format!("ours-{n}"));
        let mut token = fresh.next()?;
        let mut asked = None;
        loop {
            let answer = asked.take().unwrap_or_else(|| {
                expected.forget();
                Ok(self.redis.claim(&token))
            });
            match answer {
                Ok(true) => return Some(token),
                Ok(false) => asked = self.sleep(&expected, &token, deadline),
                Err(()) => token = fresh.next()?, // Whoever asked has cleaned up behind.
            }
            if asked.is_none() && deadline <= Moment::now() {
                return None;
            }
        }
    }

    /// What came of the wish, if anything did.
    fn sleep(&self, expected: &Expected<'_>, token: &str, deadline: Moment) -> Option<Result<bool, ()>> {
        let until = if by_chance(3) { Moment::now().after(Duration::from_millis(2)) } else { Moment::NEVER };
        let until = if deadline == Moment::NEVER { Moment::NEVER } else { until };
        let wish = Wish { token: token.to_owned(), lease: Lease::new(Duration::from_secs(30)) };
        let wish = (!by_chance(4)).then_some(wish);
        let asked = match expected.wait(until, deadline, wish) {
            Woken::InTime | Woken::Called => return None,
            Woken::Left => {
                self.log.lock().left += 1;
                return None;
            }
            Woken::Answered(asked) => asked,
        };
        self.log.lock().answered += 1;
        Some(match asked.answer {
            Ok((Claim::Taken, _)) => Ok(true),
            Ok(_) => Ok(false),
            Err(_) => Err(()),
        })
    }

    /// As `Shared::spread` does it.
    fn hear(&self) {
        if by_chance(8) {
            return self.calls.call_all();
        }
        let Some(call) = self.calls.find(KEY.as_bytes()) else {
            return;
        };
        if by_chance(4) {
            return call.ring(); // There is no connection to ask over.
        }
        let Some(question) = call.take_wish() else {
            return call.ring();
        };
        let token = question.wish.token.clone();
        if by_chance(8) {
            self.log.lock().dropped += 1;
            return drop(question); // Whatever became of the listener.
        }
        let taken = self.redis.claim(&token);
        let lost = by_chance(4);
        let answer = match taken {
            _ if lost => Err(Trouble::Unanswered { link_stands: true, cause: "no answer".into() }),
            true => Ok((Claim::Taken, Watch::On)),
            false => Ok((Claim::Busy(None), Watch::On)),
        };
        if lost {
            self.redis.remove(Some(&token)); // Behind it, on the same connection.
        }
        let stays = question.answer(Asked { sent: Moment::now(), listener: 1, answer });
        if !stays && taken && !lost {
            assert_eq!(self.redis.remove(Some(&token)), Compared::Done, "it was cleaned up twice");
        }
        let mut log = self.log.lock();
        *(if stays { &mut log.stayed } else { &mut log.had_left }) += 1;
    }

    /// The lock is another process's, once more, and then nobody's.
    fn others(&self) {
        self.redis.remove(Some(THEIRS));
        if by_chance(2) {
            self.calls.call(KEY.as_bytes()); // As `force_unlock` does.
        }
        if self.redis.claim(THEIRS) {
            step();
            self.redis.remove(Some(THEIRS));
        }
    }
}

fn one_sleeps_while_others_come_and_go(times: usize, longest: Duration, patience: Option<Duration>) {
    in_many_orders(times, longest, move || {
        let scene = Arc::new(Scene::default());
        assert!(scene.redis.claim(THEIRS));
        let spawn = |part: fn(&Scene)| {
            let scene = Arc::clone(&scene);
            thread::spawn(move || part(&scene))
        };
        let others = spawn(Scene::others);
        let listener = spawn(|scene| {
            while scene.redis.word() {
                scene.hear();
            }
        });
        let deadline = patience.map_or(Moment::NEVER, |patience| Moment::now().after(patience));
        let token = scene.wait(deadline);
        assert!(token.is_some() || patience.is_some());
        if let Some(token) = token {
            assert_eq!(scene.redis.remove(Some(&token)), Compared::Done, "it was not there");
        }
        others.join().expect("it ends");
        scene.redis.no_more_words();
        listener.join().expect("it ends");
        assert_eq!(scene.redis.state.lock().token, None, "a token was left behind");
        assert!(scene.calls.find(KEY.as_bytes()).is_none());
        let log = scene.log.lock();
        assert!(log.stayed <= log.answered && log.had_left <= log.left, "{log:?}");
        assert_eq!(log.answered + log.left, log.stayed + log.had_left + log.dropped, "{log:?}");
    });
}

/// No sleep ends by itself here: if word is lost between the look and the sleep, the sleeper never wakes up.
#[test]
fn word_that_comes_between_the_look_and_the_sleep_is_not_lost() {
    one_sleeps_while_others_come_and_go(1_500, Duration::ZERO, None);
}

#[test]
fn a_question_is_answered_or_left_and_what_was_taken_for_one_who_left_is_cleaned_up() {
    one_sleeps_while_others_come_and_go(1_500, Duration::from_millis(10), Some(Duration::from_millis(5)));
}
