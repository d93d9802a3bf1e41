//! A thread that stands in line: how it is called, and how long it stays awake for that.

use std::time::Duration;

use crate::clock::Moment;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Condvar, thread};
use crate::wish::Wish;

/// How long a thread that is about to be called stays awake for it.
///
/// A sleeping thread takes tens of microseconds to wake up, as long as Redis takes for a command. So the first in
/// line is told to get up while the turn in front of it is about to end: when its release starts or, where the turn
/// before was over within this time, from its beginning. A lock that is held for long costs no waiter more than this,
/// once.
pub(crate) const AWAKE: Duration = Duration::from_micros(200);

/// A thread in line. Known by its address.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) called: Condvar,
    /// The turn in front of it is over.
    up: AtomicBool,
    pub(crate) wish: Wish,
    pub(crate) deadline: Moment,
}

impl Waiter {
    pub(crate) fn new(wish: Wish, deadline: Moment) -> Waiter {
        Waiter { called: Condvar::new(), up: AtomicBool::new(false), wish, deadline }
    }

    pub(crate) fn call(&self) {
        self.up.store(true, Ordering::Release);
        self.called.notify_one();
    }

    /// Stays awake until it is called, for a moment.
    pub(crate) fn await_call(&self) {
        let end = Moment::now().after(AWAKE);
        while !self.up.load(Ordering::Acquire) && Moment::now() < end {
            thread::yield_now();
        }
    }
}
