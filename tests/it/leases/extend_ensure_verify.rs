//! What a program can ask about a hold while it lasts, and about all holds together.

use std::thread;
use std::time::Duration;

use relatch::{Error, LostCause};
use relatch_rig::{LONG, eventually, throughout};

use crate::support::{
    MINUTE, PERIOD, Rig, assert_lost, delete, occupy, renewals, renewals_of, trusted,
};

/// The leases last for as long as the machine is busy, so that no hold is lost by that.
fn often_renewed() -> Rig {
    Rig::with(|builder| {
        let builder = builder.lease(MINUTE / 2).renew_every(PERIOD);
        builder.response_timeout(LONG)
    })
}

#[test]
fn ensure_uses_the_clock_and_verify_asks_redis() {
    let rig = Rig::with(|builder| {
        let builder = builder.lease(MINUTE).renew(false);
        builder.response_timeout(LONG)
    });
    let guard = rig.locks.lock("a").expect("locks");
    let sent = rig.proxy.log().len();
    guard.ensure(MINUTE / 2).expect("enough is left");
    let error = guard.ensure(MINUTE).expect_err("longer than the lease");
    let is_it = matches!(
        error,
        Error::InvalidOption {
            option: "ensure",
            ..
        }
    );
    assert!(is_it, "{error:?}");
    assert_eq!(rig.proxy.log().len(), sent);
    rig.server.query::<()>(&["PEXPIRE", "lock:a", "10000"]);
    guard.verify().expect("the key is still there");
    assert!(guard.is_valid() && guard.remaining() <= MINUTE / 6);
    guard.ensure(MINUTE / 2).expect("renews");
    assert_eq!(rig.proxy.commands(&renewals_of(&rig.server, "a")), 1);
    assert!(guard.remaining() > MINUTE / 2);
    occupy(&rig.server, "a", MINUTE);
    guard
        .ensure(MINUTE / 2)
        .expect("enough is left by the clock");
    assert_lost(&guard.verify(), LostCause::Taken);
    assert_lost(&guard.ensure(Duration::ZERO), LostCause::Taken);
    assert_lost(&guard.unlock(), LostCause::Taken);
    assert_eq!(rig.value_of("a").as_deref(), Some("somebody"));
}

#[test]
fn extend_replaces_the_lease() {
    let rig = often_renewed();
    let pttl = || rig.server.pttl("lock:a");
    let guard = rig.locks.lock("a").expect("locks");
    guard.set_lease(MINUTE).expect("longer");
    assert!(pttl() > 50_000 && guard.remaining() > 5 * MINUTE / 6);
    throughout(3 * PERIOD, || {
        assert!(pttl() > 50_000, "a renewal shortened the lease");
    });
    guard.set_lease(MINUTE / 2).expect("shorter");
    assert!(guard.remaining() <= trusted(MINUTE / 2));
    assert!(pttl() > 50_000, "a lease is never cut short in Redis");
    for lease in [Duration::ZERO, Duration::from_micros(9_999), Duration::MAX] {
        let error = guard.set_lease(lease).expect_err("refused");
        let is_it = matches!(
            error,
            Error::InvalidOption {
                option: "set_lease",
                ..
            }
        );
        assert!(is_it, "{error:?}");
    }
    guard.set_lease(MINUTE).expect("longer again");
    delete(&rig.server, "a");
    assert_lost(&guard.set_lease(MINUTE), LostCause::Deleted);
    occupy(&rig.server, "a", MINUTE / 2);
    assert_lost(&guard.set_lease(MINUTE), LostCause::Deleted);
    drop(guard);
    assert_eq!(rig.value_of("a").as_deref(), Some("somebody"));
    assert!(pttl() <= 30_000);
}

#[test]
fn held_lists_the_locks_of_this_process() {
    let rig = often_renewed();
    assert!(rig.locks.held().is_empty());
    let first = rig.locks.lock("first").expect("locks");
    let second = rig.locks.named("second").renew(false).lock();
    let second = second.expect("locks");
    let again = rig.locks.lock("first").expect("locks");
    eventually(LONG, "the hold is renewed", || {
        renewals(&rig.locks, "first") >= 2
    });
    let listed = || {
        let held = rig.locks.held().into_iter();
        held.map(|it| (it.key.clone(), it.depth))
            .collect::<Vec<_>>()
    };
    assert_eq!(
        listed(),
        [("first".to_owned(), 2), ("second".to_owned(), 1)]
    );
    let held = rig.locks.held();
    let mine = relatch::Owner::current();
    assert!(held.iter().all(|it| it.owner == mine && it.lost.is_none()));
    assert!(held[0].held_for >= held[1].held_for);
    assert!(held.iter().all(|it| it.remaining > MINUTE / 4));
    assert_eq!(held[1].renewals, 0);
    drop((second, first));
    assert_eq!(listed(), [("first".to_owned(), 1)]);
    delete(&rig.server, "first");
    eventually(LONG, "the hold is lost", || {
        rig.locks.held()[0].lost == Some(LostCause::Deleted)
    });
    assert_eq!(rig.locks.held()[0].remaining, Duration::ZERO);
    drop(again);
    assert!(rig.locks.held().is_empty());
}

#[test]
fn stats_count_what_happened() {
    let rig = often_renewed();
    let locks = &rig.locks;
    let mut expected = locks.stats();
    assert_eq!(
        (
            expected.acquired,
            expected.time_waited.count,
            expected.time_held.count
        ),
        (1, 1, 1),
        "warm-up"
    );
    let guard = locks.lock("a").expect("locks");
    drop(locks.lock("a").expect("locks"));
    thread::scope(|scope| {
        let busy = scope.spawn(|| locks.try_lock("a").expect("answers").is_none());
        assert!(busy.join().expect("no panic"));
        let waiter = scope.spawn(|| locks.lock("a").expect("locks").unlock().expect("unlocks"));
        eventually(LONG, "the hold is renewed", || locks.stats().renewed >= 2);
        throughout(PERIOD, || assert!(!waiter.is_finished()));
        drop(guard);
        waiter.join().expect("no panic");
    });
    let guard = locks.lock("b").expect("locks");
    rig.server.query::<()>(&["DEL", "lock:b"]);
    eventually(LONG, "the hold is lost", || locks.stats().lost == 1);
    drop(guard);
    let stats = locks.stats();
    (
        expected.acquired,
        expected.reentered,
        expected.waited,
        expected.timed_out,
    ) = (4, 1, 1, 1);
    (expected.lost, expected.renewed) = (1, stats.renewed);
    expected.time_waited = stats.time_waited.clone();
    expected.time_held = stats.time_held.clone();
    assert_eq!(stats, expected);
    assert_eq!((stats.time_waited.count, stats.time_held.count), (4, 4));
    assert!(stats.time_held.quantile(1.0) >= Some(2 * PERIOD));
}

#[test]
fn nothing_extends_a_hold_past_max_hold_and_the_calls_say_so() {
    let rig = Rig::new();
    let lease = Duration::from_secs(3);
    let lock = rig.locks.named("a").lease(lease).max_hold(lease);
    let guard = lock.lock().expect("locks");
    // The lease is too long for what is left, which is the limit and the rest of that lease. A
    // shorter one is not.
    let later = guard.set_lease(MINUTE).expect_err("time is not up");
    let is_it = matches!(
        later,
        Error::InvalidOption {
            option: "set_lease",
            ..
        }
    );
    assert!(is_it && guard.is_valid(), "{later:?}");
    guard.set_lease(lease * 5 / 3).expect("a shorter one works");
    let is_limited = |result: Result<(), Error>| match result {
        Err(
            ref error @ Error::InvalidOption {
                option: "max_hold", ..
            },
        ) => {
            assert!(error.body_ran(), "a guard says so: the work has begun");
            true
        }
        Ok(()) => false,
        Err(other) => panic!("{other:?}"),
    };
    eventually(LONG, "the limit passes", || {
        is_limited(guard.confirm(Duration::ZERO))
    });
    assert!(is_limited(guard.hand_over().map(drop)));
}
