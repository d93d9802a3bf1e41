//! Channels, as `std::sync::mpsc` has them.

use std::collections::VecDeque;
use std::sync::Arc;
pub(crate) use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError};
use std::time::Duration;

use super::tools::{Condvar, Mutex};
use crate::base::clock::Moment;

#[derive(Debug)]
struct Channel<T> {
    state: Mutex<State<T>>,
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    sent: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
}

#[derive(Debug)]
pub(crate) struct Sender<T>(Arc<Channel<T>>);

#[derive(Debug)]
pub(crate) struct Receiver<T>(Arc<Channel<T>>);

pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let state = State {
        sent: VecDeque::new(),
        senders: 1,
        has_receiver: true,
    };
    let channel = Arc::new(Channel {
        state: Mutex::new(state),
        changed: Condvar::new(),
    });
    (Sender(Arc::clone(&channel)), Receiver(channel))
}

impl<T> Sender<T> {
    pub(crate) fn send(&self, value: T) -> Result<(), SendError<T>> {
        let mut state = self.0.state.lock();
        if !state.has_receiver {
            return Err(SendError(value));
        }
        state.sent.push_back(value);
        drop(state);
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.state.lock().senders += 1;
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.state.lock().senders -= 1;
        self.0.changed.notify_one();
    }
}

impl<T> Receiver<T> {
    pub(crate) fn recv(&self) -> Result<T, RecvError> {
        self.until(None).map_err(|_| RecvError)
    }

    pub(crate) fn recv_timeout(&self, limit: Duration) -> Result<T, RecvTimeoutError> {
        self.until(Some(Moment::now().after(limit)))
    }

    pub(crate) fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.0.state.lock();
        state.sent.pop_front().ok_or(match state.senders {
            0 => TryRecvError::Disconnected,
            _ => TryRecvError::Empty,
        })
    }

    pub(crate) fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.try_recv().ok())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.recv().ok())
    }

    fn until(&self, deadline: Option<Moment>) -> Result<T, RecvTimeoutError> {
        let mut state = self.0.state.lock();
        loop {
            if let Some(value) = state.sent.pop_front() {
                return Ok(value);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            match deadline.map(|deadline| deadline.since(Moment::now())) {
                None => self.0.changed.wait(&mut state),
                Some(left) if left.is_zero() => return Err(RecvTimeoutError::Timeout),
                Some(left) => self.0.changed.wait_for(&mut state, left),
            }
        }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.0.state.lock().has_receiver = false;
    }
}
