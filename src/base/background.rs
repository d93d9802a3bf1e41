//! The threads of a manager: those that block most of the time, with how they begin and how they
//! are made to end; and those that run the program's code.

use std::cell::Cell;
use std::collections::VecDeque;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::owner::process::thread_id;
use crate::base::sync::mpsc::{self, Receiver, RecvTimeoutError};
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex, per_thread, process};

/// How much longer than `limit` [`Background::stop`] waits for the thread.
const GRACE: Duration = Duration::from_millis(100);

per_thread! {
    static ON_DUTY: Cell<bool> = const { Cell::new(false) };
}

/// From now on, this thread calls none of the program's code that could hold it up.
pub(crate) fn go_on_duty() {
    ON_DUTY.with(|it| it.set(true));
}

pub(crate) fn is_on_duty() -> bool {
    ON_DUTY.with(Cell::get)
}

/// Starts a thread of the manager, which is on duty.
pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.to_owned()).spawn(|| {
        go_on_duty();
        run();
    })
}

#[derive(Default)]
pub(crate) struct Background {
    state: Mutex<Life>,
    stopped: Condvar,
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
        let run = move || {
            let _alive = alive;
            run();
        };
        state.thread = Some(spawn(name, run)?);
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
        self.stopped
            .wait_while_for(&mut state, |state| !state.stop, pause);
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

    /// Tells the thread to stop, and waits for it, at most a little longer than `limit`. An error
    /// says what went wrong with the thread.
    pub(crate) fn stop(&self, limit: Duration) -> Result<(), &'static str> {
        self.tell_to_stop();
        let mut state = self.state.lock();
        let thread = state.thread.take().zip(state.done.take());
        drop(state);
        let Some((thread, done)) = thread else {
            return Ok(());
        };
        if done.recv_timeout(limit.saturating_add(GRACE)) != Err(RecvTimeoutError::Disconnected) {
            return Err("did not end in time; it was left running, and will end by itself");
        }
        thread.join().map_err(|_| "panicked")
    }
}

/// Runs calls of the program's code, one after another, on a thread that ends when none is left:
/// one that hangs holds up only those after it.
pub(crate) struct Errands {
    /// The name of the thread.
    name: &'static str,
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    due: VecDeque<Box<dyn FnOnce() + Send>>,
    /// The thread, and its number while it runs.
    thread: Option<JoinHandle<()>>,
    runs_as: Option<u64>,
    /// Later errands are dropped.
    is_closed: bool,
}

impl Errands {
    pub(crate) fn new(name: &'static str) -> Arc<Errands> {
        Arc::new(Errands {
            name,
            state: Mutex::default(),
            ended: Condvar::new(),
        })
    }

    /// Runs an errand after all others, without waiting for it. If no thread can be started, the
    /// errand waits for the next one.
    pub(crate) fn run(
        self: &Arc<Errands>,
        errand: impl FnOnce() + Send + 'static,
    ) -> io::Result<()> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Ok(());
        }
        state.due.push_back(Box::new(errand));
        if state.runs_as.is_none() {
            let errands = Arc::clone(self);
            let thread = thread::Builder::new().name(self.name.to_owned());
            state.thread = Some(thread.spawn(move || errands.serve())?);
            state.runs_as = Some(0);
        }
        Ok(())
    }

    fn serve(&self) {
        let mut state = self.state.lock();
        state.runs_as = Some(thread_id(process::id()));
        while let Some(errand) = state.due.pop_front() {
            drop(state);
            // The hook has reported a panic, and nobody here needs more.
            let _ = panic::catch_unwind(AssertUnwindSafe(errand));
            state = self.state.lock();
        }
        state.runs_as = None;
        drop(state);
        self.ended.notify_all();
    }

    /// How many errands wait.
    pub(crate) fn due(&self) -> usize {
        self.state.lock().due.len()
    }

    /// From now on, no errand is accepted.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
    }

    /// Waits until no errand is left, for `limit` at most. False if one takes longer: it is left to
    /// run on, with its thread. An errand that calls this does not wait for itself.
    pub(crate) fn settle(&self, limit: Duration) -> bool {
        let me = Some(thread_id(process::id()));
        let mut state = self.state.lock();
        let runs = |state: &mut State| state.runs_as.is_some() && state.runs_as != me;
        self.ended.wait_while_for(&mut state, runs, limit);
        if state.runs_as.is_some() {
            return state.runs_as == me;
        }
        let thread = state.thread.take();
        drop(state);
        thread.is_none_or(|thread| thread.join().is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::mpsc;

    const LONG: Duration = Duration::from_secs(10);

    #[test]
    fn errands_run_in_order_and_one_that_panics_ends_none() {
        let errands = Errands::new("of-a-test");
        let (tell, told) = mpsc::channel();
        for n in 0..20 {
            let tell = tell.clone();
            let run = move || {
                tell.send((n, std::thread::current().name().map(str::to_owned)))
                    .unwrap();
                assert!(n % 3 > 0, "expected here: on purpose");
            };
            errands.run(run).unwrap();
        }
        assert!(errands.settle(LONG));
        let of_test = Some("of-a-test".to_owned());
        let all: Vec<_> = told.try_iter().collect();
        assert_eq!(
            all,
            (0..20).map(|n| (n, of_test.clone())).collect::<Vec<_>>()
        );
        assert!(errands.settle(Duration::ZERO), "nothing is left");
    }

    #[test]
    fn an_errand_that_stands_still_holds_up_those_behind_it_and_nobody_else() {
        let errands = Errands::new("of-a-test");
        let (go, may_go) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let (own, tell_behind) = (Arc::clone(&errands), tell.clone());
        let stands = move || {
            let _ = may_go.recv();
            tell.send(own.settle(LONG)).unwrap();
        };
        errands.run(stands).unwrap();
        errands
            .run(move || tell_behind.send(true).unwrap())
            .unwrap();
        assert!(!errands.settle(Duration::from_millis(1)));
        assert!(told.try_recv().is_err(), "they run one after the other");
        drop(go);
        let not_itself = told.recv_timeout(LONG / 2);
        assert!(not_itself.unwrap(), "it does not wait for itself");
        assert!(errands.settle(LONG));
    }
}
