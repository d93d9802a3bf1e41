//! A key changes in Redis, in many orders of what the listener and a thread that waits for it do.
//!
//! The place of the waiter is the real one. Beside it: a Redis of one key, and what claimant and
//! listener do with it, in brief.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread;

use crate::base::clock::Moment;
use crate::base::scheduler::{in_many_orders, one_in, step};
use crate::base::sync::{Condvar, Mutex};
use crate::store::Compared;
use crate::waiting::wakeups::Wakeups;

pub(crate) const KEY: &str = "lock:a";

const OURS: &str = "ours";
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

/// A thread that waits for the key, the listener, and others that have the lock meanwhile.
#[derive(Default)]
struct Scene {
    wakeups: Wakeups,
    redis: Redis,
}

impl Scene {
    /// As `Claimant::run` does it: whether it has the lock in the end.
    fn wait(&self, deadline: Moment) -> bool {
        let registration = self.wakeups.register(KEY);
        loop {
            registration.forget();
            if self.redis.claim(OURS) {
                return true;
            }
            let wakes_itself = deadline < Moment::NEVER && one_in(3);
            let soon = Moment::now().after(Duration::from_millis(2));
            let until = if wakes_itself { soon.min(deadline) } else { deadline };
            if !registration.wait(until) && deadline <= Moment::now() {
                return false;
            }
        }
    }

    /// As `Listener::spread` does it.
    fn hear(&self) {
        if one_in(8) {
            self.wakeups.wake_all();
        } else {
            self.wakeups.wake(KEY.as_bytes());
        }
    }

    /// The lock is another process's, once more, and then nobody's.
    fn others(&self) {
        self.redis.remove(Some(THEIRS));
        if one_in(2) {
            self.wakeups.wake(KEY.as_bytes()); // As `force_unlock` does.
        }
        if self.redis.claim(THEIRS) {
            step();
            self.redis.remove(Some(THEIRS));
        }
    }
}

fn one_waits_while_others_come_and_go(times: usize, longest: Duration, patience: Option<Duration>) {
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
        let has_it = scene.wait(deadline);
        assert!(has_it || patience.is_some());
        if has_it {
            assert_eq!(scene.redis.remove(Some(OURS)), Compared::Done, "it was not there");
        }
        others.join().expect("it ends");
        scene.redis.no_more_words();
        listener.join().expect("it ends");
        assert_eq!(scene.redis.state.lock().token, None, "a token was left behind");
        assert!(scene.wakeups.is_empty());
    });
}

/// No sleep ends by itself here: if a call is lost between the look and the sleep, the waiter never
/// wakes up.
#[test]
fn a_call_that_comes_between_the_look_and_the_sleep_is_not_lost() {
    one_waits_while_others_come_and_go(1_500, Duration::ZERO, None);
}

#[test]
fn a_waiter_that_is_called_as_its_time_ends_has_the_lock_or_leaves_nothing() {
    one_waits_while_others_come_and_go(1_500, Duration::from_millis(10), Some(Duration::from_millis(5)));
}
