//! What a thread can ask about its own hold, and locks that it may take only once.

use std::thread;
use std::time::Duration;

use relatch::{Error, LostCause};

use crate::support::{MINUTE, PERIOD, Rig, SOON, assert_lost, occupy, renewals_of};

#[test]
fn only_the_thread_that_holds_a_lock_finds_it() {
    let rig = Rig::new();
    let lock = rig.locks.named("a");
    assert!(lock.current().is_none());
    let guard = lock.lock().expect("locks");
    let sent = rig.proxy.log().len();
    let inner = rig.locks.named("a").current().expect("held");
    assert_eq!((inner.token(), guard.depth()), (guard.token(), 2));
    drop(inner);
    lock.assert_held().expect("held");
    let is_not_held = |held| matches!(held, Err(Error::NotHeld { key, .. }) if key == "a");
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(lock.current().is_none());
            assert!(is_not_held(lock.assert_held()), "another thread holds it");
        });
    });
    assert_eq!((guard.depth(), rig.proxy.log().len()), (1, sent));
    drop(guard);
    assert!(lock.current().is_none() && is_not_held(lock.assert_held()));
    let guard = lock.lock().expect("locks");
    lock.force_unlock().expect("deletes");
    assert!(lock.current().is_none(), "a lost hold is not found");
    assert_eq!(guard.depth(), 1);
    assert_lost(&lock.assert_held(), LostCause::Deleted);
}

#[test]
fn confirm_asks_redis_each_time_and_ensure_and_the_clock_do_not() {
    let rig = Rig::with(|builder| {
        let builder = builder.lease(MINUTE).renew(false);
        builder.response_timeout(3 * SOON)
    });
    let guard = rig.locks.lock("a").expect("locks");
    let renewal = renewals_of(&rig.server, "a");
    for times in 1..=3 {
        guard.confirm(Duration::ZERO).expect("held");
        assert_eq!(rig.proxy.commands(&renewal), times);
    }
    let error = guard.confirm(MINUTE).expect_err("longer than the lease");
    let is_it = matches!(
        error,
        Error::InvalidOption {
            option: "confirm",
            ..
        }
    );
    assert!(is_it, "{error:?}");
    rig.proxy.black_hole(true);
    let error = guard.confirm(PERIOD).expect_err("no answer");
    let is_it = matches!(error, Error::Unavailable { .. });
    assert!(is_it && guard.is_valid(), "{error:?}");
    rig.proxy.black_hole(false);
    rig.server.query::<()>(&["FLUSHALL"]);
    guard
        .ensure(MINUTE / 2)
        .expect("the clock knows of no flush");
    assert_lost(&guard.confirm(Duration::ZERO), LostCause::Deleted);
    assert_lost(&guard.ensure(Duration::ZERO), LostCause::Deleted);
    assert_lost(&guard.unlock(), LostCause::Deleted);
    let guard = rig.locks.lock("b").expect("locks");
    occupy(&rig.server, "b", MINUTE);
    assert_lost(&guard.confirm(PERIOD), LostCause::Taken);
}

#[test]
fn a_lock_that_is_not_reentrant_is_taken_once() {
    let rig = Rig::with(|builder| builder.reentrant(false));
    let once = rig.locks.named("a");
    let guard = once.lock().expect("locks");
    let sent = rig.proxy.log().len();
    for error in [
        once.lock().expect_err("held"),
        once.try_lock().expect_err("held"),
        once.with_lock(|| ()).expect_err("held"),
    ] {
        let is_it = matches!(&error, Error::AlreadyHeld { key, .. } if key == "a");
        assert!(is_it, "{error:?}");
    }
    assert_eq!((rig.proxy.log().len(), guard.depth()), (sent, 1));
    // The option is that of the attempt, and code that asks for the guard gets it.
    let again = once.clone().reentrant(true).lock();
    assert_eq!(again.expect("this attempt may").depth(), 2);
    assert_eq!(once.current().expect("held").depth(), 2);
    drop(guard);
    let lost = once.lock().expect("free again");
    once.force_unlock().expect("deletes");
    assert_lost(&once.lock(), LostCause::Deleted);
    assert_lost(&lost.unlock(), LostCause::Deleted);
}
