//! The thread that receives the invalidations of a node, and wakes the threads that wait for the
//! changed keys.
//!
//! Each manager has one for each node ([`listeners`](crate::wakeups::listeners)). An invalidation
//! is only a hint: a thread that it wakes asks Redis, and no thread sleeps without a limit of its
//! own. While no listener is connected (the node is away, or sends no invalidations), waiters poll.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::background::Background;
use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{info, warn};
use crate::base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::store::{Failure, Heard, Node, Store, Tracking};
use crate::wakeups::table::Wakeups;

/// The shortest and the longest time for which the thread reads before it checks whether it has to
/// stop, and whether pooled connections have ended. Within these bounds, it reads for the response
/// timeout.
const SILENCE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// Called for each invalidation, with its key and its node. `None`: any key of the node may have
/// changed, because of a flush or because invalidations were missed. Returns whether a renewal will
/// show what became of the key.
pub(crate) type OnInvalidation = OnceLock<Box<dyn Fn(Option<&[u8]>, &Node) -> bool + Send + Sync>>;

/// The listener: the state that its thread shares with the waiters and the keeper.
pub(crate) struct Listener {
    store: Arc<Store>,
    /// The node whose invalidations it receives.
    node: Arc<Node>,
    response_timeout: Duration,
    on_invalidation: Arc<OnInvalidation>,
    wakeups: Arc<Wakeups>,
    /// The `CLIENT ID` of the connection that receives invalidations. Zero while there is none.
    client_id: AtomicU64,
    /// A failure has been logged, and the listener has not connected since.
    has_warned: AtomicBool,
    /// The connection is of no use, so the thread opens another.
    given_up: AtomicBool,
    thread: Background,
}

impl Listener {
    pub(crate) fn new(
        store: Arc<Store>,
        node: Arc<Node>,
        response_timeout: Duration,
        on_invalidation: Arc<OnInvalidation>,
        wakeups: Arc<Wakeups>,
    ) -> Listener {
        Listener {
            store,
            node,
            response_timeout,
            on_invalidation,
            wakeups,
            client_id: AtomicU64::new(0),
            has_warned: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            thread: Background::default(),
        }
    }

    /// Starts the thread, once. It connects on its own, and no thread waits for that. `probe` is a
    /// key that nobody else knows, to test whether invalidations arrive.
    pub(crate) fn start(self: &Arc<Listener>, probe: &str) {
        if self.thread.was_started() {
            return;
        }
        let listener = Arc::clone(self);
        let probe = probe.to_owned();
        if let Err(error) = self
            .thread
            .start("relatch-listen", move || listener.run(&probe))
        {
            self.warn_once(&error);
        }
    }

    /// The `CLIENT ID` to which Redis can be asked to send invalidations.
    pub(crate) fn client_id(&self) -> Option<u64> {
        Some(self.client_id.load(Ordering::Acquire)).filter(|id| *id != 0)
    }

    /// Handles Redis's answer to the request that it send invalidations to the client `client_id`.
    /// True if the listener will receive them.
    pub(crate) fn will_hear(&self, client_id: u64, tracking: Tracking) -> bool {
        match tracking {
            Tracking::Off | Tracking::Direct => false,
            // False if that client's connection has been lost in the meantime.
            Tracking::On { .. } => self.client_id() == Some(client_id),
            Tracking::Refused(refusal) => {
                self.give_up(client_id, &refusal);
                false
            }
        }
    }

    /// Does the same as [`Listener::will_hear`] for a waiter. If the connection over which the
    /// waiter asked is closed later, the waiter is woken, too.
    ///
    /// The waiter still has that connection, so the pool cannot have closed it yet.
    pub(crate) fn will_wake(&self, redis_key: &str, client_id: u64, tracking: Tracking) -> bool {
        if let Tracking::On { link } = tracking {
            self.wakeups.asked_over(redis_key.as_bytes(), link);
        }
        self.will_hear(client_id, tracking)
    }

    /// Makes the thread reconnect, unless the connection of this client has ended already. Logs
    /// `reason`.
    pub(crate) fn give_up(&self, client_id: u64, reason: &dyn fmt::Display) {
        if self.client_id() == Some(client_id) {
            self.given_up.store(true, Ordering::Relaxed);
            self.disconnected();
            self.warn_once(reason);
        }
    }

    /// Tells the thread to stop, but does not wait.
    pub(crate) fn tell_to_stop(&self) {
        self.thread.tell_to_stop();
    }

    /// Ends the thread, by ending its connection.
    ///
    /// Nothing wakes the thread while it connects and tests whether invalidations arrive. That may
    /// take three connect timeouts and two response timeouts. This function waits for about one
    /// response timeout. If the thread needs longer, it is left behind and ends by itself.
    pub(crate) fn stop(&self) {
        if let Err(what) = self.thread.stop(self.response_timeout.max(SILENCE[0])) {
            warn!(target: "relatch::listener", "the listener {what}");
        }
    }

    fn run(&self, probe: &str) {
        let mut pauses = Pauses::new();
        while !self.is_stopping() {
            let ended = self.listen(probe, &mut pauses);
            self.disconnected();
            if self.is_stopping() {
                return;
            }
            let pause = pauses.after(&ended);
            if let Err(failure) = ended {
                self.warn_once(&failure.into_cause());
            }
            self.given_up.store(false, Ordering::Relaxed);
            self.pause(pause);
        }
    }

    /// Sleeps, but only as long as the thread is needed. A node that sends no invalidations is
    /// asked again after ten minutes at most, and may leave the cluster sooner.
    fn pause(&self, pause: Duration) {
        let until = Moment::now().after(pause);
        while Moment::now() < until && !self.is_stopping() {
            self.thread
                .pause(until.since(Moment::now()).min(SILENCE[1]));
        }
    }

    /// Connects, and receives invalidations until the connection ends or is given up.
    fn listen(&self, probe: &str, pauses: &mut Pauses) -> Result<(), Failure> {
        let connection = self.store.listen(&self.node, probe)?;
        let ender = connection.ender();
        if !self.thread.ends_by(move || ender.end()) {
            return Ok(());
        }
        pauses.after_refusal.reset();
        self.connected(connection.id);
        let silence = self.response_timeout.clamp(SILENCE[0], SILENCE[1]);
        let mut sweep_at = Moment::now().after(silence);
        connection.listen((silence, self.response_timeout), |heard| {
            if sweep_at <= Moment::now() {
                self.node.sweep();
                sweep_at = Moment::now().after(silence);
            }
            if matches!(heard, Heard::Keys(_)) {
                pauses.after_end.reset();
            }
            self.dispatch(heard);
            let ends = self.is_stopping() || self.given_up.load(Ordering::Relaxed);
            if ends {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        })
    }

    /// From now on, invalidations come to this client. Earlier changes were not reported, so all
    /// waiters ask once. After that, they can sleep instead of polling.
    ///
    /// The id is set first. If waiters were woken first, they could ask without the id, and go on
    /// polling.
    pub(crate) fn connected(&self, client_id: u64) {
        if self.has_warned.load(Ordering::Relaxed) && self.has_warned.swap(false, Ordering::Relaxed)
        {
            info!(target: "relatch::listener", "Redis wakes waiters again");
        }
        self.client_id.store(client_id, Ordering::Release);
        self.dispatch(Heard::Everything);
    }

    fn pass_on(&self, redis_key: Option<&[u8]>) -> bool {
        let call = self.on_invalidation.get();
        call.is_some_and(|call| call(redis_key, &self.node))
    }

    /// Makes the keeper renew the holds of the keys that have changed, and wakes the threads that
    /// wait for the other keys.
    ///
    /// A writer that waits for readers has read its gate, and a thread that waits for a slot may
    /// hold another one. If each renewal of such a key woke the thread, it would ask, Redis would
    /// track the key again and report the next renewal, and the keeper would renew at once:
    /// hundreds of times a second.
    pub(crate) fn dispatch(&self, heard: Heard) {
        match heard {
            Heard::Keys(keys) => {
                for key in &keys {
                    if !self.pass_on(Some(key)) {
                        self.wakeups.wake(key);
                    }
                }
            }
            Heard::Everything => {
                self.wake_all();
                self.pass_on(None);
            }
            Heard::Silence => {}
        }
    }

    /// Invalidations have stopped, so the waiters that rely on them have to poll.
    ///
    /// The id is cleared first. A waiter that asked Redis to track its key for this client may be
    /// about to sleep until an invalidation that nobody receives. Either it finds the id gone
    /// ([`Listener::will_hear`]), or it has registered before this function wakes all waiters.
    pub(crate) fn disconnected(&self) {
        if self.client_id.swap(0, Ordering::AcqRel) != 0 {
            self.wake_all();
        }
    }

    /// Wakes the threads that wait for keys of this node. (The threads whose keys have gone to
    /// another node were woken when the map changed.)
    fn wake_all(&self) {
        self.wakeups
            .wake_those(|redis_key| self.store.may_be_at(&self.node, redis_key));
    }

    /// True if the manager is dropped, or the node has left the cluster.
    fn is_stopping(&self) -> bool {
        self.thread.is_stopping() || self.node.is_retired()
    }

    /// True if the node has left the cluster, and no thread is running.
    pub(crate) fn is_over(&self) -> bool {
        self.node.is_retired() && self.thread.has_ended()
    }

    fn warn_once(&self, failure: &dyn fmt::Display) {
        if !self.has_warned.swap(true, Ordering::Relaxed) {
            warn!(target: "relatch::listener",
                "Redis sends no invalidations, so waiters poll: {failure}");
        }
    }
}

/// How long to pause before the next connection.
struct Pauses {
    /// The pauses while Redis answers, but sends no invalidations.
    after_refusal: Backoff,
    /// The pauses after Redis could not be reached, or the connection ended.
    after_end: Backoff,
}

impl Pauses {
    fn new() -> Pauses {
        Pauses {
            after_refusal: Backoff::without_invalidations(),
            after_end: Backoff::for_listener(),
        }
    }

    fn after(&mut self, ended: &Result<(), Failure>) -> Duration {
        if is_refused(ended) {
            self.after_refusal.pause()
        } else {
            self.after_end.pause()
        }
    }
}

/// True if Redis refuses to send invalidations, or accepts `CLIENT TRACKING` but sends none.
/// Neither changes often. (A login that is refused may soon be accepted again.)
fn is_refused(ended: &Result<(), Failure>) -> bool {
    matches!(ended, Err(Failure::Refused(refusal))
        if !refusal.can_pass() && !["NOAUTH", "WRONGPASS"].contains(&&*refusal.code))
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("client_id", &self.client_id)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::mpsc::{self, Receiver};

    use super::*;
    use crate::base::options::Settings;
    use crate::store::{Refusal, Target};

    /// A listener without a thread and without a Redis, and the keys that it passes on.
    fn listener() -> (Listener, Receiver<Option<String>>) {
        let address = Target::nowhere();
        let store = Arc::new(Store::new(address, &Settings::default()).unwrap());
        let (passed, passes) = mpsc::channel();
        let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
        let pass = OnInvalidation::new();
        let call = move |key: Option<&[u8]>, _: &Node| passed.send(key.map(text)).is_err();
        let _ = pass.set(Box::new(call));
        let node = store.node_of("a").unwrap();
        let timeout = Duration::from_millis(50);
        (
            Listener::new(store, node, timeout, Arc::new(pass), Arc::default()),
            passes,
        )
    }

    fn refused(code: &str) -> Refusal {
        Refusal::found(code, code)
    }

    #[test]
    fn an_invalidation_wakes_the_waiter_for_its_key_and_is_passed_on() {
        let (listener, passes) = listener();
        let [a, b] = ["a", "b"].map(|key| listener.wakeups.register(key));
        let keys =
            |keys: &[&str]| Heard::Keys(keys.iter().map(|key| key.as_bytes().to_vec()).collect());
        // What is heard; whether each of the two waiters is woken; what is passed on.
        let table = [
            (keys(&["a"]), [true, false], vec![Some("a")]),
            (
                keys(&["b", "x", "a"]),
                [true, true],
                vec![Some("b"), Some("x"), Some("a")],
            ),
            (keys(&["x"]), [false, false], vec![Some("x")]),
            (Heard::Everything, [true, true], vec![None]),
            (Heard::Silence, [false, false], vec![]),
        ];
        for (heard, woken, passed) in table {
            let said = format!("{heard:?}");
            listener.dispatch(heard);
            assert_eq!([a.forget(), b.forget()], woken, "{said}");
            assert_eq!(
                passes.try_iter().collect::<Vec<_>>(),
                passed
                    .iter()
                    .map(|key| key.map(str::to_owned))
                    .collect::<Vec<_>>(),
                "{said}"
            );
        }
    }

    #[test]
    fn a_redis_that_sends_no_invalidations_is_asked_more_rarely_than_one_that_is_away() {
        let refusal = |code| Err(Failure::Refused(refused(code)));
        let table = [
            (refusal("NOPERM"), true),
            (refusal("ERR"), true),
            // This Redis accepts tracking, but sends nothing.
            (refusal(""), true),
            (refusal("NOAUTH"), false),
            (refusal("WRONGPASS"), false),
            (refusal("LOADING"), false),
            (Err(Failure::NotSent("refused".into())), false),
            (
                Err(Failure::Unanswered {
                    link_stands: false,
                    cause: "reset".into(),
                }),
                false,
            ),
            (Ok(()), false),
        ];
        for (ended, is_rare) in table {
            let pause = Pauses::new().after(&ended);
            assert_eq!(
                pause > Duration::from_secs(2),
                is_rare,
                "{ended:?}: {pause:?}"
            );
        }
    }

    #[test]
    fn each_failure_in_a_row_has_a_longer_pause() {
        let mut pauses = Pauses::new();
        let ended: Vec<_> = (0..5).map(|_| pauses.after(&Ok(()))).collect();
        assert!(ended[4] > ended[0], "{ended:?}");
        assert!(pauses.after(&Err(Failure::Refused(refused("NOPERM")))) <= Duration::from_secs(5));
    }

    #[test]
    fn a_waiter_relies_on_invalidations_that_its_listener_receives() {
        let (listener, passes) = listener();
        let waiter = listener.wakeups.register("a");
        listener.connected(7);
        // Anything may have changed earlier.
        assert!(waiter.forget() && passes.try_iter().eq([None]));
        listener.give_up(6, &"that was the one before");
        let on = || Tracking::On { link: 1 };
        let refusal = || Tracking::Refused(refused("NOPERM"));
        for (client_id, tracking, relies, stays) in [
            (7, Tracking::Off, false, true),
            (7, on(), true, true),
            (6, on(), false, true),
            (6, refusal(), false, true),
            // The connection is given up.
            (7, refusal(), false, false),
            (7, on(), false, false),
        ] {
            let said = format!("{tracking:?} for {client_id}");
            assert_eq!(
                listener.will_wake("a", client_id, tracking),
                relies,
                "{said}"
            );
            assert_eq!(listener.client_id().is_some(), stays, "{said}");
            assert_eq!(listener.given_up.load(Ordering::Relaxed), !stays, "{said}");
        }
        assert!(waiter.forget());
        listener.disconnected();
        assert!(!waiter.forget(), "the waiter polls already");
    }
}
