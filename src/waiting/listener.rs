//! The thread that hears from Redis which keys have changed, and wakes who waits for them.
//!
//! One per manager, started by the first wait for a busy lock or the first renewal. What it says is
//! a hint and no more: a thread that it wakes asks Redis, and none sleeps without an end of its own.
//! While it hears nothing (Redis is away, or does not let it listen), waiters poll.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use log::{info, warn};
use parking_lot::{Condvar, Mutex};

use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::process::WorkerThread;
use crate::store::{Ender, Failure, Heard, Store, Tracking};
use crate::waiting::wakeups::Wakeups;

/// How long the thread listens before it looks whether it is to stop, and whether connections of the
/// pool have ended: the response timeout, but no shorter and no longer than this.
const SILENCE: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(1)];

/// What the thread may take beyond a timeout to end, when it is to stop.
const BRIEFLY: Duration = Duration::from_millis(100);

/// Is called, besides those who wait, with a key that has changed, or is gone; with none where any
/// key may have: everything was flushed, or word of it was missed.
type Audience = Box<dyn Fn(Option<&[u8]>) + Send + Sync>;

/// The listener: what its thread shares with those who wait.
pub(crate) struct Listener {
    store: Arc<Store>,
    response_timeout: Duration,
    /// A key that nobody else knows of: none where there is to be no listener.
    probe: Option<String>,
    audience: Audience,
    pub(crate) wakeups: Wakeups,
    /// What Redis calls the connection that listens: zero while there is none.
    number: AtomicU64,
    /// Something went wrong and was logged, and has not been seen to work since.
    complained: AtomicBool,
    state: Mutex<State>,
    bell: Condvar,
    worker: WorkerThread,
}

#[derive(Default)]
struct State {
    /// It has been tried to start the thread.
    started: bool,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    done: Option<Receiver<()>>,
    /// What ends the connection, while there is one.
    ender: Option<Ender>,
    /// The connection is of no use: Redis does not tell it of changes, or has not.
    useless: bool,
    stop: bool,
}

impl Listener {
    pub(crate) fn new(
        store: Arc<Store>,
        response_timeout: Duration,
        probe: Option<String>,
        audience: impl Fn(Option<&[u8]>) + Send + Sync + 'static,
    ) -> Listener {
        Listener {
            store,
            response_timeout,
            probe,
            audience: Box::new(audience),
            wakeups: Wakeups::default(),
            number: AtomicU64::new(0),
            complained: AtomicBool::new(false),
            state: Mutex::default(),
            bell: Condvar::new(),
            worker: WorkerThread::default(),
        }
    }

    /// Starts the thread, if that has not been done. It connects by itself, and nobody waits for it.
    pub(crate) fn start(self: &Arc<Listener>) {
        let mut state = self.state.lock();
        if state.started || state.stop {
            return;
        }
        let Some(probe) = self.probe.clone() else {
            return;
        };
        state.started = true;
        let waiters = Arc::downgrade(self);
        self.store.pool.on_close(move |link| {
            if let Some(listener) = waiters.upgrade() {
                listener.wakeups.wake_over(link);
            }
        });
        let listener = Arc::clone(self);
        let (alive, done) = mpsc::channel::<()>();
        let run = move || {
            let _alive = alive;
            listener.run(&probe);
        };
        match thread::Builder::new().name("relatch-listen".to_owned()).spawn(run) {
            Ok(thread) => (state.thread, state.done) = (Some(thread), Some(done)),
            Err(error) => self.complain(&error),
        }
    }

    pub(crate) fn number(&self) -> Option<u64> {
        Some(self.number.load(Ordering::Acquire)).filter(|number| *number != 0)
    }

    /// Takes in what Redis said when it was asked to tell `number` of changes: true if it will.
    pub(crate) fn will_hear(&self, number: u64, watch: Tracking) -> bool {
        match watch {
            Tracking::Off => false,
            // Not if the connection was lost meanwhile.
            Tracking::On { .. } => self.number() == Some(number),
            Tracking::Refused(refusal) => {
                self.give_up(number, &refusal);
                false
            }
        }
    }

    /// The same for a waiter, which is woken when the connection ends that it looked over. (It still has that connection: so
    /// that cannot have ended before this is noted.)
    pub(crate) fn will_wake(&self, redis_key: &str, number: u64, watch: Tracking) -> bool {
        if let Tracking::On { link } = watch {
            self.wakeups.looked_over(redis_key.as_bytes(), link);
        }
        self.will_hear(number, watch)
    }

    /// Has the thread try another connection, for this reason, if it has not done so already.
    pub(crate) fn give_up(&self, number: u64, reason: &dyn fmt::Display) {
        if self.number() == Some(number) {
            self.state.lock().useless = true;
            self.deafen();
            self.complain(reason);
        }
    }

    /// Ends the thread, by ending its connection. (Over TLS it looks whether it is to stop, every second at least.)
    ///
    /// Nothing wakes it while it connects and tries whether Redis tells of changes, which may take a
    /// connect timeout and a response timeout, each twice: it is then left behind, and ends by itself.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        let thread = state.thread.take().zip(state.done.take());
        let ender = state.ender.take();
        drop(state);
        self.bell.notify_one();
        if let Some(end) = ender {
            end();
        }
        let Some((thread, done)) = thread else {
            return;
        };
        if self.worker.is_current() {
            return;
        }
        let limit = self.response_timeout.max(SILENCE[0]).saturating_add(BRIEFLY);
        if done.recv_timeout(limit) != Err(RecvTimeoutError::Disconnected) {
            warn!(target: "relatch::listener", "the listener still connects: its thread is left behind, and ends by itself");
        } else if thread.join().is_err() {
            warn!(target: "relatch::listener", "the listener had panicked");
        }
    }

    fn run(&self, probe: &str) {
        self.worker.enter();
        let (mut while_away, mut while_deaf) = (Backoff::for_listener(), Backoff::without_invalidations());
        while !self.stopping() {
            let heard = self.listen(probe, &mut while_away, &mut while_deaf);
            self.deafen();
            if self.stopping() {
                return;
            }
            // (A login that is refused may be right again soon.)
            let is_deaf = matches!(&heard, Err(Failure::Refused(refusal))
                if !refusal.can_pass() && !["NOAUTH", "WRONGPASS"].contains(&&*refusal.code));
            if let Err(failure) = heard {
                self.complain(&failure.into_cause());
            }
            let mut state = self.state.lock();
            (state.useless, state.ender) = (false, None);
            let backoff = if is_deaf { &mut while_deaf } else { &mut while_away };
            let until = Moment::now().after(backoff.pause());
            while !state.stop && Moment::now() < until {
                self.bell.wait_for(&mut state, until.since(Moment::now()));
            }
        }
    }

    /// Listens for as long as there is a use in it.
    fn listen(&self, probe: &str, while_away: &mut Backoff, while_deaf: &mut Backoff) -> Result<(), Failure> {
        let tracking = self.store.listen(probe)?;
        self.state.lock().ender = tracking.ender();
        if self.stopping() {
            return Ok(());
        }
        while_deaf.reset();
        self.works();
        self.number.store(tracking.id, Ordering::Release);
        // Waiters that have been polling can sleep; and what happened meanwhile was not heard.
        self.spread(Heard::Everything);
        let silence = self.response_timeout.clamp(SILENCE[0], SILENCE[1]);
        let mut sweep_at = Moment::now().after(silence);
        tracking.listen((silence, self.response_timeout), |heard| {
            if sweep_at <= Moment::now() {
                self.store.pool.sweep();
                sweep_at = Moment::now().after(silence);
            }
            if matches!(heard, Heard::Keys(_)) {
                while_away.reset();
            }
            self.spread(heard);
            let state = self.state.lock();
            if state.stop || state.useless { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
    }

    fn spread(&self, heard: Heard) {
        match heard {
            Heard::Keys(keys) => {
                for key in &keys {
                    self.wakeups.wake(key);
                    (self.audience)(Some(key));
                }
            }
            Heard::Everything => {
                self.wakeups.wake_all();
                (self.audience)(None);
            }
            Heard::Silence => {}
        }
    }

    /// There is nobody to hear any more: the waiters that counted on it have to poll.
    fn deafen(&self) {
        if self.number.swap(0, Ordering::AcqRel) != 0 {
            self.wakeups.wake_all();
        }
    }

    fn stopping(&self) -> bool {
        self.state.lock().stop
    }

    fn complain(&self, failure: &dyn fmt::Display) {
        if !self.complained.swap(true, Ordering::Relaxed) {
            warn!(target: "relatch::listener",
                "Redis does not wake who waits for a lock, so they poll until it does: {failure}");
        }
    }

    fn works(&self) {
        if self.complained.load(Ordering::Relaxed) && self.complained.swap(false, Ordering::Relaxed) {
            info!(target: "relatch::listener", "Redis wakes who waits for a lock again");
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("number", &self.number).finish_non_exhaustive()
    }
}
