//! How a test waits: with a deadline.

use std::thread;
use std::time::{Duration, Instant};

use crate::LONG;

/// How often [`eventually`] looks again.
pub(crate) const POLL: Duration = Duration::from_millis(2);

/// Waits until `ready` returns true, looking every 2 ms; panics with `what` when `limit` has
/// passed.
#[track_caller]
pub fn eventually(limit: Duration, what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !ready() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        thread::sleep(POLL);
    }
}

/// Waits for `span`, and runs `check` every 2 ms meanwhile.
#[track_caller]
pub fn throughout(span: Duration, mut check: impl FnMut()) {
    let end = Instant::now() + span;
    eventually(span + LONG, "time passes", || {
        check();
        Instant::now() >= end
    });
}

/// Runs `action` and returns what it returned; panics with `what` if it took longer than `limit`.
///
/// The limit is checked when `action` returns: if it never returns, the test hangs.
#[track_caller]
pub fn within<T>(limit: Duration, what: &str, action: impl FnOnce() -> T) -> T {
    let (took, value) = time(action);
    assert!(
        took <= limit,
        "took {took:?}, longer than {limit:?}: {what}"
    );
    value
}

/// Runs `action`, and returns how long it took and what it returned.
pub fn time<T>(action: impl FnOnce() -> T) -> (Duration, T) {
    let start = Instant::now();
    let value = action();
    (start.elapsed(), value)
}
