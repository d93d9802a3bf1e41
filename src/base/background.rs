//! A thread of the manager's own that blocks most of the time: how it begins, and how it is made to
//! end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::owner::process::Workers;
use crate::base::sync::mpsc::{self, Receiver, RecvTimeoutError};
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};

/// How much longer than `limit` [`Background::stop`] waits for the thread.
const GRACE: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(crate) struct Background {
    state: Mutex<Life>,
    stopped: Condvar,
    worker: Arc<Workers>,
}

#[derive(Default)]
struct Life {
    /// The thread was started.
    started: bool,
    thread: Option<JoinHandle<()>>,
    /// Closed when the thread has ended.
    done: Option<Receiver<()>>,
    /// Ends what the thread is blocked in.
    ender: Option<Box<dyn FnOnce() + Send>>,
    stop: bool,
}

impl Background {
    /// Starts the thread. Only the first call that succeeds does so; later calls, and calls after
    /// [`stop`](Self::stop), do nothing.
    pub(crate) fn start(&self, name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.started || state.stop {
            return Ok(());
        }
        let (alive, done) = mpsc::channel::<()>();
        let worker = Arc::clone(&self.worker);
        let run = move || {
            worker.enter();
            let _alive = alive;
            run();
        };
        let thread = thread::Builder::new().name(name.to_owned()).spawn(run)?;
        state.thread = Some(thread);
        state.done = Some(done);
        state.started = true;
        Ok(())
    }

    /// True if the thread was started.
    pub(crate) fn was_started(&self) -> bool {
        self.state.lock().started
    }

    /// True if no thread is running.
    pub(crate) fn has_ended(&self) -> bool {
        self.state
            .lock()
            .thread
            .as_ref()
            .is_none_or(JoinHandle::is_finished)
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// From now on, [`stop`](Self::stop) calls `ender`, which ends what the thread is blocked in.
    /// False if the thread has to stop already.
    pub(crate) fn ends_by(&self, ender: impl FnOnce() + Send + 'static) -> bool {
        let mut state = self.state.lock();
        state.ender = Some(Box::new(ender));
        !state.stop
    }

    /// Sleeps, or returns early if the thread has to stop.
    pub(crate) fn pause(&self, pause: Duration) {
        let mut state = self.state.lock();
        state.ender = None;
        let until = Moment::now().after(pause);
        loop {
            let now = Moment::now();
            if state.stop || until <= now {
                return;
            }
            self.stopped.wait_for(&mut state, until.since(now));
        }
    }

    /// Tells the thread to stop, and does not wait.
    pub(crate) fn tell_to_stop(&self) {
        let mut state = self.state.lock();
        state.stop = true;
        let ender = state.ender.take();
        drop(state);
        self.stopped.notify_one();
        if let Some(end) = ender {
            end();
        }
    }

    /// Tells the thread to stop, and waits for it, a little longer than `limit` at most. The thread
    /// itself may call this, and then waits for nothing. An error says what went wrong with the
    /// thread.
    pub(crate) fn stop(&self, limit: Duration) -> Result<(), &'static str> {
        self.tell_to_stop();
        let mut state = self.state.lock();
        let thread = state.thread.take().zip(state.done.take());
        drop(state);
        let Some((thread, done)) = thread.filter(|_| !self.worker.is_current()) else {
            return Ok(());
        };
        if done.recv_timeout(limit.saturating_add(GRACE)) != Err(RecvTimeoutError::Disconnected) {
            return Err("does not end in time: it is left behind, and ends by itself");
        }
        thread.join().map_err(|_| "had panicked")
    }
}
