//! What a thread can ask about its own hold, and locks that it may take only once.

use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockManager, LostCause, Owner};
use relatch_rig::{Fault, LONG, Server, eventually};

use crate::support::{
    ANSWER, MINUTE, PERIOD, Rig, SOON, assert_lost, connect, delete, renewals_of, trusted,
};

#[test]
fn only_the_thread_that_holds_a_lock_finds_it() {
    let rig = Rig::new();
    assert!(rig.locks.named("a").current().is_none());
    let lock = rig.locks.named("a");
    let guard = lock.lock().expect("locks");
    let sent = rig.proxy.log().len();
    let inner = rig.locks.named("a").current().expect("held");
    assert_eq!((inner.token(), guard.depth()), (guard.token(), 2));
    drop(inner);
    assert_eq!(guard.depth(), 1);
    lock.assert_held().expect("held");
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(lock.current().is_none());
            let error = rig
                .locks
                .named("a")
                .assert_held()
                .expect_err("another thread holds it");
            assert!(
                matches!(&error, Error::NotHeld { key, .. } if key == "a"),
                "{error:?}"
            );
        });
    });
    assert_eq!(rig.proxy.log().len(), sent, "nothing is sent");
    drop(guard);
    assert!(
        lock.current().is_none() && rig.value_of("a").is_none(),
        "it is not taken"
    );
    assert!(matches!(lock.assert_held(), Err(Error::NotHeld { .. })));
}

#[test]
fn a_lost_hold_is_not_found() {
    let rig = Rig::new();
    let guard = rig.locks.lock("a").expect("locks");
    rig.locks.named("a").force_unlock().expect("deletes");
    assert!(rig.locks.named("a").current().is_none());
    assert_eq!(guard.depth(), 1);
    assert_lost(&rig.locks.named("a").assert_held(), LostCause::Deleted);
}

#[test]
fn confirm_asks_redis_each_time() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let guard = rig.locks.named("a").renew(false).lock().expect("locks");
    let renewal = renewals_of(&rig.server, "a");
    for times in 1..=3 {
        guard.confirm(Duration::ZERO).expect("held");
        assert_eq!(rig.proxy.commands(&renewal), times);
    }
    let error = guard
        .confirm(MINUTE)
        .expect_err("longer than the lease can be trusted");
    assert!(
        matches!(
            error,
            Error::InvalidOption {
                option: "confirm",
                ..
            }
        ),
        "{error:?}"
    );
    guard
        .ensure(MINUTE / 2)
        .expect("enough is left, by the clock");
    rig.server.query::<()>(&["FLUSHALL"]);
    guard
        .ensure(MINUTE / 2)
        .expect("the clock knows of no flush");
    assert_lost(&guard.confirm(Duration::ZERO), LostCause::Deleted);
    assert_lost(&guard.unlock(), LostCause::Deleted);
}

/// A renewal that is under way was executed before the question. Its answer says nothing about now.
#[test]
fn confirm_asks_again_while_a_renewal_is_under_way() {
    let rig = Rig::with(|builder| {
        builder
            .lease(MINUTE)
            .renew_every(PERIOD)
            .client_tracking(false)
            .response_timeout(LONG)
    });
    let guard = rig.locks.lock("a").expect("locks");
    let renewal = renewals_of(&rig.server, "a");
    eventually(LONG, "it is renewed", || rig.proxy.commands(&renewal) > 0);
    let before = rig.proxy.commands(&renewal);
    rig.proxy.on(&renewal, Fault::DelayReply(SOON / 2));
    eventually(LONG, "a renewal is under way", || {
        rig.proxy.commands(&renewal) > before
    });
    delete(&rig.server, "a");
    assert_lost(&guard.confirm(Duration::ZERO), LostCause::Deleted);
}

#[test]
fn confirm_finds_another_holder() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let guard = rig.locks.named("a").renew(false).lock().expect("locks");
    rig.server
        .query::<()>(&["SET", "lock:a", "other", "PX", "60000"]);
    assert_lost(&guard.confirm(PERIOD), LostCause::Taken);
}

#[test]
fn confirm_fails_without_an_answer_and_the_hold_stays_valid() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let guard = rig.locks.named("a").renew(false).lock().expect("locks");
    guard.confirm(PERIOD).expect("held");
    rig.proxy.black_hole(true);
    let start = Instant::now();
    let error = guard.confirm(PERIOD).expect_err("no answer");
    assert!(
        matches!(error, Error::Unavailable { .. }) && guard.is_valid(),
        "{error:?}"
    );
    assert!(start.elapsed() < LONG, "{:?}", start.elapsed());
    rig.proxy.black_hole(false);
    guard.confirm(PERIOD).expect("Redis answers again");
}

#[test]
fn an_answer_that_leaves_too_little_time_confirms_nothing() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let lease = MINUTE;
    let guard = rig
        .locks
        .named("a")
        .lease(lease)
        .renew(false)
        .lock()
        .expect("locks");
    guard.confirm(Duration::ZERO).expect("opens the connection");
    rig.proxy.on(
        &renewals_of(&rig.server, "a"),
        Fault::DelayReply(ANSWER / 2),
    );
    let error = guard
        .confirm(trusted(lease))
        .expect_err("half of the time has passed");
    assert!(
        matches!(error, Error::Unavailable { .. }) && guard.is_valid(),
        "{error:?}"
    );
}

#[test]
fn a_lease_can_be_made_shorter_and_longer_again() {
    let rig = Rig::with(|builder| builder.renew(false));
    let guard = rig.locks.named("a").lease(MINUTE).lock().expect("locks");
    guard.set_lease(MINUTE / 4).expect("shorter");
    assert!(guard.remaining() <= trusted(MINUTE / 4));
    guard.set_lease(MINUTE).expect("the lease of the lock");
    assert!(guard.remaining() > MINUTE / 2 && guard.remaining() <= trusted(MINUTE));
}

#[test]
fn a_lock_that_is_not_reentrant_is_taken_once() {
    let rig = Rig::new();
    let once = rig.locks.named("a").reentrant(false);
    let guard = once.lock().expect("locks");
    let sent = rig.proxy.log().len();
    let is_refused = |error: Error| {
        assert!(
            matches!(&error, Error::AlreadyHeld { key, .. } if key == "a"),
            "{error:?}"
        );
    };
    is_refused(once.lock().expect_err("held"));
    is_refused(once.try_lock().expect_err("held"));
    is_refused(once.with_lock(|| ()).expect_err("held"));
    assert_eq!((rig.proxy.log().len(), guard.depth()), (sent, 1));
    // The option is that of the attempt, and code that asks for the guard gets it.
    assert_eq!(rig.locks.lock("a").expect("this attempt may").depth(), 2);
    assert_eq!(once.current().expect("held").depth(), 2);
    drop(guard);
    let lost = once.lock().expect("free again");
    rig.locks.named("a").force_unlock().expect("deletes");
    assert_lost(&once.lock(), LostCause::Deleted);
    assert_lost(&lost.unlock(), LostCause::Deleted);
}

#[test]
fn a_manager_can_have_locks_that_are_not_reentrant() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .reentrant(false)
        .build()
        .expect("connects");
    let guard = locks.lock("a").expect("locks");
    assert!(matches!(locks.lock("a"), Err(Error::AlreadyHeld { .. })));
    let other = locks.lock("b").expect("another lock");
    assert_eq!(
        locks
            .named("a")
            .reentrant(true)
            .lock()
            .expect("asked for")
            .depth(),
        2
    );
    drop((guard, other));
}

#[test]
fn the_current_owner_is_that_of_this_threads_locks() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks.lock("a").expect("locks");
    let of_token = Owner::parse(guard.token()).expect("a token");
    assert_eq!(Owner::current(), of_token);
    let elsewhere = thread::spawn(Owner::current).join().expect("no panic");
    assert_ne!(elsewhere, of_token);
    assert_eq!(
        (&elsewhere.host, elsewhere.pid),
        (&of_token.host, of_token.pid)
    );
}
