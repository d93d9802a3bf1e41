//! A key changes in Redis, with the steps of the listener and of a waiter for the key in many
//! orders.
//!
//! The waiter's loop and the listener's steps are the real ones. Redis has one key here.

use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::thread;

use crate::acquire::step::Ask;
use crate::acquire::{AcquireContext, Acquisition, Answer, AskRedis, Taken};
use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Lease;
use crate::base::owner::holder::Holder;
use crate::base::sync::scheduler::{in_many_orders, one_in, step};
use crate::base::sync::{Condvar, Mutex};
use crate::hold::AcquiredAt;
use crate::keeping::keeper::tests::keeper_without_redis;
use crate::keeping::work::Keeper;
use crate::store::{Compared, Failure, Heard, Tracking};
use crate::waiting::patience::tests::until;
use crate::waiting::wait::tests::WaitRig;
use crate::wakeups::listener::Listener;

pub(crate) const KEY: &str = "lock:key";

const LEASE: Duration = Duration::from_secs(30);

/// The longest pause of a waiter that no invalidation will wake.
const POLL: Duration = Duration::from_millis(2);

const OURS: &str = "ours";
const THEIRS: &str = "theirs";

/// A Redis with one key.
#[derive(Default)]
pub(crate) struct Redis {
    state: Mutex<State>,
    /// Signals that the listener has something to read, or that nothing more will come.
    sent: Condvar,
}

#[derive(Default)]
struct State {
    token: Option<String>,
    /// The client to send the next invalidation to.
    tracked_for: Option<u64>,
    /// The client id of the listener's connection. `None` while the listener is not connected.
    client: Option<u64>,
    /// Invalidations that the listener has not read yet.
    unread: u32,
    silent: bool,
    renewals: u32,
}

impl State {
    /// The key changes. True if Redis sends the listener an invalidation.
    fn invalidate(&mut self) -> bool {
        let is_sent = self
            .tracked_for
            .take()
            .is_some_and(|client| self.client == Some(client));
        self.unread += u32::from(is_sent);
        is_sent
    }

    fn track(&mut self, client: Option<u64>) -> Tracking {
        self.tracked_for = client.or(self.tracked_for);
        if client.is_some() {
            Tracking::On { link: 1 }
        } else {
            Tracking::Off
        }
    }
}

impl Redis {
    /// `CLIENT TRACKING` for the listener, `SET NX`, `GET`: whether the lock was free, and whether
    /// an invalidation will come.
    pub(crate) fn claim(&self, token: &str, listener: Option<u64>) -> (bool, Tracking) {
        let mut state = self.state.lock();
        assert_ne!(
            state.token.as_deref(),
            Some(token),
            "two attempts claimed with the same token"
        );
        if state.token.is_none() {
            state.token = Some(token.to_owned());
            return (true, Tracking::Off);
        }
        (false, state.track(listener))
    }

    /// Compare and delete, or just delete.
    pub(crate) fn remove(&self, token: Option<&str>) -> Compared {
        let mut state = self.state.lock();
        match &state.token {
            None => return Compared::Absent,
            Some(stored) if token.is_some_and(|token| token != stored) => return Compared::NotOurs,
            Some(_) => state.token = None,
        }
        let is_sent = state.invalidate();
        drop(state);
        if is_sent {
            self.sent.notify_one();
        }
        Compared::Done
    }

    /// Changes the key without deleting it.
    pub(crate) fn touch(&self) {
        let is_sent = self.state.lock().invalidate();
        if is_sent {
            self.sent.notify_one();
        }
    }

    /// Compare and extend, with `CLIENT TRACKING` for the listener.
    pub(crate) fn extend(&self, token: &str, listener: Option<u64>) -> (Compared, Tracking) {
        let mut state = self.state.lock();
        let tracking = state.track(listener);
        let compared = match &state.token {
            None => Compared::Absent,
            Some(stored) if stored != token => Compared::NotOurs,
            Some(_) => {
                state.renewals += 1;
                Compared::Done
            }
        };
        (compared, tracking)
    }

    /// How often a lease was extended.
    pub(crate) fn renewals(&self) -> u32 {
        self.state.lock().renewals
    }

    /// The listener connects, as a client with this id.
    fn connect(&self, client: u64) {
        let mut state = self.state.lock();
        (state.client, state.unread) = (Some(client), 0);
    }

    /// Reads the next invalidation. False if none will come.
    fn read(&self) -> bool {
        let mut state = self.state.lock();
        while state.unread == 0 && !state.silent {
            self.sent.wait_for(&mut state, Duration::MAX);
        }
        let came = state.unread > 0;
        state.unread -= u32::from(came);
        came
    }

    /// Runs the listener's thread, over connections that break now and then. Calls `heard` after
    /// each change that was passed on, and after each reconnect.
    pub(crate) fn listen(&self, listener: &Listener, heard: impl Fn()) {
        let mut client = 1;
        self.connect(client);
        listener.connected(client);
        while self.read() {
            if one_in(2) {
                // The connection breaks, and everything that was read is lost with it.
                self.state.lock().client = None;
                step();
                listener.disconnected();
                if one_in(2) {
                    return; // No other connection follows.
                }
                client += 1;
                self.connect(client);
                listener.connected(client);
            } else {
                listener.dispatch(a_change());
            }
            heard();
        }
    }

    /// Lets the listener's thread end.
    pub(crate) fn end(&self) {
        self.state.lock().silent = true;
        self.sent.notify_one();
    }
}

/// The message that the listener gets when the key changes: a change of the key or, after a
/// `FLUSHALL`, of all keys.
pub(crate) fn a_change() -> Heard {
    if one_in(8) {
        Heard::Everything
    } else {
        Heard::Keys(vec![KEY.into()])
    }
}

/// The listener, a thread that waits for the key, and others that have the lock in the meantime.
struct Scene {
    keeper: Arc<Keeper>,
    redis: Redis,
}

impl Scene {
    fn new() -> Scene {
        Scene {
            keeper: keeper_without_redis(),
            redis: Redis::default(),
        }
    }

    /// Waits for the lock. True if the thread has it in the end.
    fn wait(&self, deadline: Moment) -> bool {
        let keeper = &self.keeper;
        let rig = WaitRig::new();
        let patience = until(deadline);
        let wait = rig.wait(&patience);
        let context = AcquireContext {
            core: &keeper.core,
            keeper,
            wait: &wait,
            lease: Lease::new(LEASE),
            reclaim_dead: false,
            gate: None,
        };
        let joined = keeper.core.queues.join_free(wait.key.name());
        let mut acquisition = Acquisition::with(context, &joined, self);
        loop {
            let end = match acquisition.ask() {
                Ok(Some(_)) => return true,
                Ok(None) => acquisition.wait_for_next_attempt().err(),
                Err(end) => Some(end),
            };
            match end {
                None => {}
                Some(Error::Timeout { .. }) => return false,
                Some(other) => panic!("{other}, and Redis answers"),
            }
        }
    }

    /// The holder releases the lock. Other processes then try three times to take the lock. If they
    /// get it, they release it.
    fn others(&self) {
        self.redis.remove(Some(THEIRS));
        if one_in(2) {
            self.keeper.core.listeners.wakeups.wake(KEY.as_bytes()); // As `force_unlock` does.
        }
        for _ in 0..3 {
            if self.redis.claim(THEIRS, None).0 {
                step();
                self.redis.remove(Some(THEIRS));
            }
        }
    }
}

/// The attempts of the waiter.
impl AskRedis for &Scene {
    fn attempt(&mut self, ask: Ask) -> Result<Answer, Failure> {
        let sent = Moment::now();
        let listener = self.keeper.core.listeners.only();
        let looks = ask != Ask::Claim;
        let client = if looks { listener.client_id() } else { None };
        let (is_taken, tracking) = self.redis.claim(OURS, client);
        if is_taken {
            let at = AcquiredAt {
                sent,
                answered: Moment::now(),
            };
            return Ok(Answer::Taken(Taken {
                token: OURS.into(),
                number: None,
                at,
            }));
        }
        let holder = looks.then(|| Holder::new(THEIRS.as_bytes(), Some(LEASE)));
        let tracked = client.is_some_and(|client| listener.will_wake(KEY, client, tracking));
        Ok(Answer::Busy {
            holder,
            tracked,
            sent,
        })
    }
}

fn one_waits_while_others_come_and_go(times: usize, longest: Duration, patience: Option<Duration>) {
    in_many_orders(times, longest, move || {
        let scene = Arc::new(Scene::new());
        assert!(scene.redis.claim(THEIRS, None).0);
        let spawn = |part: fn(&Scene)| {
            let scene = Arc::clone(&scene);
            thread::spawn(move || part(&scene))
        };
        let others = spawn(Scene::others);
        let listener = spawn(|scene| {
            scene
                .redis
                .listen(&scene.keeper.core.listeners.only(), || ());
        });
        let deadline = patience.map_or(Moment::NEVER, |patience| Moment::now().after(patience));
        let has_it = scene.wait(deadline);
        assert!(has_it || patience.is_some());
        if has_it {
            assert_eq!(
                scene.redis.remove(Some(OURS)),
                Compared::Done,
                "the key did not hold the token"
            );
        }
        others.join().expect("the thread does not panic");
        scene.redis.end();
        listener.join().expect("the thread does not panic");
        assert_eq!(
            scene.redis.state.lock().token,
            None,
            "a token was left behind"
        );
        assert!(scene.keeper.core.listeners.wakeups.is_empty());
    });
}

/// Only the sleep of a waiter that polls ends by itself here. If a wake-up is lost between the look
/// and the sleep, the waiter never wakes up, and the run fails.
#[test]
fn a_wake_up_that_comes_between_the_look_and_the_sleep_is_not_lost() {
    one_waits_while_others_come_and_go(1_500, POLL, None);
}

#[test]
fn a_waiter_that_is_woken_as_its_time_ends_has_the_lock_or_leaves_nothing() {
    one_waits_while_others_come_and_go(
        1_500,
        Duration::from_millis(10),
        Some(Duration::from_millis(5)),
    );
}

/// The listener ends, and the waiter asks at any moment around that. The changes that it asks about
/// are reported to nobody, so it has to poll.
#[test]
fn a_waiter_does_not_rely_on_a_listener_that_is_just_disconnecting() {
    in_many_orders(3_000, POLL, || {
        let scene = Arc::new(Scene::new());
        assert!(scene.redis.claim(THEIRS, None).0);
        let its_scene = Arc::clone(&scene);
        let others = thread::spawn(move || {
            let listener = its_scene.keeper.core.listeners.only();
            its_scene.redis.connect(1);
            listener.connected(1);
            step();
            its_scene.redis.state.lock().client = None;
            listener.disconnected();
            its_scene.redis.remove(Some(THEIRS));
        });
        assert!(scene.wait(Moment::NEVER));
        others.join().expect("the thread does not panic");
    });
}
