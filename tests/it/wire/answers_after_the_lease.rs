//! An answer to a `SET` that takes longer than the lease, or nearly as long.

use std::time::{Duration, Instant};

use relatch::LockGuard;
use relatch_rig::{Fault, LONG, eventually, within};

use crate::support::{Rig, trusted};

/// A lease that is shorter than a slow answer.
const LEASE: Duration = Duration::from_millis(300);

/// A rig whose holds are not renewed.
fn rig(lease: Duration) -> Rig {
    Rig::with_defaults(|builder| builder.lease(lease).renew(false).response_timeout(LONG))
}

/// Checks that a hold of `a` came from a later attempt than the first.
fn assert_taken_anew(rig: &Rig, guard: &LockGuard) {
    assert!(guard.is_valid());
    assert_eq!(rig.value_of("a").as_deref(), Some(guard.token()));
    assert_ne!(
        rig.tokens_sent("a")[0],
        guard.token(),
        "the token of the first attempt"
    );
}

#[test]
fn row_03_a_lock_answered_after_its_lease_is_taken_anew() {
    let rig = rig(LEASE);
    rig.proxy.on("SET lock:a", Fault::DelayReply(2 * LEASE));
    let start = Instant::now();
    let guard = rig
        .locks
        .named("a")
        .wait(LONG)
        .lock()
        .expect("locks within the wait");
    assert!(start.elapsed() >= 2 * LEASE);
    assert_taken_anew(&rig, &guard);
}

#[test]
fn row_03_a_key_set_too_late_is_removed_and_taken_anew() {
    let rig = rig(LEASE);
    // The `SET` is executed late and answered at once, so the key still has its whole lease.
    rig.proxy.on("SET lock:a", Fault::DelayCommand(2 * LEASE));
    let start = Instant::now();
    let guard = rig
        .locks
        .named("a")
        .try_lock_for(LONG)
        .expect("answers")
        .expect("locks within the wait");
    assert!(
        start.elapsed() < LEASE * 29 / 10,
        "the call waited for the late key to expire"
    );
    assert_taken_anew(&rig, &guard);
}

/// The removal of a key that was set too late gets no answer. The key that remains has no holder.
#[test]
fn row_03_a_key_set_too_late_is_not_reported_as_busy() {
    let rig = rig(LEASE);
    rig.proxy.on("SET lock:a", Fault::DelayCommand(2 * LEASE));
    rig.proxy.on("EVALSHA * 1 lock:a", Fault::CutBeforeForward);
    let taken = rig.locks.try_lock("a");
    assert_eq!(rig.proxy.fired(), 2);
    assert!(
        matches!(taken, Ok(Some(_))),
        "{taken:?}, though no other holder has the lock"
    );
}

#[test]
fn row_03_a_try_that_is_always_answered_too_late_takes_nothing() {
    let rig = rig(LEASE);
    rig.proxy.always("SET lock:a", Fault::DelayCommand(LEASE));
    let error = rig.locks.try_lock("a").expect_err("no answer in time");
    assert!(error.is_redis_failure(), "{error:?}");
    assert!(!rig.server.exists("lock:a"), "left behind");
}

#[test]
fn row_03_a_set_that_is_executed_after_its_caller_gave_up_leaves_no_key() {
    let rig = rig(LONG);
    rig.server.reset_stats();
    rig.proxy
        .on_times("SET lock:a", 2, Fault::DelayCommand(2 * LEASE));
    let taken = within(2 * LEASE, "the caller's wait", || {
        rig.locks.named("a").try_lock_for(LEASE)
    });
    let error = taken.expect_err("no answer in time");
    assert!(error.is_redis_failure(), "{error:?}");
    eventually(LONG, "both late SETs are executed", || {
        rig.server.calls("set") > 1
    });
    eventually(Duration::from_secs(1), "the key is removed", || {
        !rig.server.exists("lock:a")
    });
}

#[test]
fn row_04_the_time_of_a_slow_answer_is_subtracted_from_the_lease() {
    let lease = Duration::from_secs(3);
    let rig = rig(lease);
    rig.proxy
        .on("SET lock:a", Fault::DelayReply(lease * 9 / 10));
    let guard = rig.locks.lock("a").expect("locks");
    let remaining = guard.remaining();
    assert!(
        remaining + lease * 9 / 10 <= trusted(lease),
        "{remaining:?}"
    );
    assert!(guard.is_valid() && !remaining.is_zero(), "{remaining:?}");
    assert_eq!(rig.tokens_sent("a"), [guard.token()]);
    let (asked, remaining) = (Instant::now(), guard.remaining());
    let key_left = u64::try_from(rig.server.pttl("lock:a")).expect("the key exists and expires");
    let key_left = Duration::from_millis(key_left) + asked.elapsed();
    assert!(
        remaining < key_left,
        "{remaining:?}, {key_left:?}: the hold ends before its key does"
    );
    eventually(lease, "the hold runs out by the clock", || {
        !guard.is_valid()
    });
}
