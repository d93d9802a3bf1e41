//! What a program can ask about a hold while it lasts, and about all holds together.

use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockManager, LostCause};
use relatch_rig::{Fault, LONG, eventually, throughout, unique_key};

use crate::support::{
    ANSWER, INJURIES, LATE, LEASE, MINUTE, PERIOD, Rig, SOON, assert_lost, occupy, renewals,
    renewals_of, trusted,
};

#[test]
fn ensure_sends_only_what_is_needed() {
    let rig = Rig::renewing();
    // The listener starts before the test, because its start makes the keeper renew every hold that
    // was renewed before.
    occupy(&rig.server, "busy", MINUTE);
    assert!(
        rig.locks
            .named("busy")
            .try_lock_for(PERIOD)
            .expect("answers")
            .is_none()
    );
    eventually(LONG, "the listener is connected", || {
        !rig.server.listeners().is_empty()
    });
    for renew in [true, false] {
        let key = unique_key("a");
        let renewal = renewals_of(&rig.server, &key);
        let lock = rig
            .locks
            .named(&key)
            .lease(MINUTE)
            .renew_every(MINUTE / 2)
            .renew(renew);
        let guard = lock.lock().expect("locks");
        throughout(4 * PERIOD, || {});
        let sent = rig.proxy.log().len();
        guard.ensure(MINUTE / 2).expect("enough is left");
        guard.ensure(Duration::ZERO).expect("enough is left");
        let error = guard
            .ensure(trusted(MINUTE) + LATE)
            .expect_err("longer than the lease allows");
        assert!(
            matches!(
                error,
                Error::InvalidOption {
                    option: "ensure",
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(rig.proxy.log().len(), sent);
        let span = trusted(MINUTE).saturating_sub(3 * PERIOD);
        assert!(guard.remaining() < span);
        guard.ensure(span).expect("renews");
        assert!(guard.remaining() + PERIOD > span);
        assert_eq!(
            (rig.proxy.commands(&renewal), renewals(&rig.locks, &key)),
            (1, 1)
        );
        // It is tried again over other connections until its time is over.
        rig.proxy.always(&renewal, Fault::CutBeforeForward);
        throughout(4 * PERIOD, || {});
        let error = guard.ensure(span).expect_err("no answer");
        rig.proxy.clear();
        assert!(
            matches!(error, Error::Unavailable { .. }) && guard.is_valid(),
            "{error:?}"
        );
        rig.server
            .query::<()>(&["SET", &format!("lock:{key}"), "other", "PX", "60000"]);
        assert_lost(&guard.ensure(span), LostCause::Taken);
        assert_lost(&guard.ensure(Duration::ZERO), LostCause::Taken);
        assert_lost(&guard.unlock(), LostCause::Taken);
        assert_eq!(rig.value_of(&key).as_deref(), Some("other"));
    }
}

#[test]
fn ensure_uses_the_clock_and_verify_asks_redis() {
    let rig = Rig::renewing();
    let guard = rig
        .locks
        .named("a")
        .lease(MINUTE)
        .renew(false)
        .lock()
        .expect("locks");
    rig.server.query::<()>(&["DEL", "lock:a"]);
    guard
        .ensure(MINUTE / 2)
        .expect("enough is left by the clock");
    assert!(guard.is_valid());
    assert_lost(&guard.verify(), LostCause::Deleted);
    assert_lost(&guard.ensure(Duration::ZERO), LostCause::Deleted);
}

#[test]
fn extend_replaces_the_lease() {
    let rig = Rig::renewing();
    for renew in [true, false] {
        let key = unique_key("a");
        let pttl = || rig.server.pttl(&format!("lock:{key}"));
        let guard = rig.locks.named(&key).renew(renew).lock().expect("locks");
        guard.set_lease(MINUTE).expect("longer");
        assert!(pttl() > 50_000 && guard.remaining() > 5 * MINUTE / 6);
        throughout(3 * PERIOD, || assert!(guard.is_valid()));
        assert!(pttl() > 50_000, "a renewal shortened the lease");
        guard.set_lease(MINUTE / 2).expect("shorter");
        assert!(guard.remaining() <= trusted(MINUTE / 2));
        let longer = pttl();
        assert!(longer > 50_000, "a lease is never cut short in Redis");
        throughout(3 * PERIOD, || {
            assert!(pttl() <= longer, "a renewal lengthened the lease");
        });
        // Leases that cannot work are refused, and nothing is sent for them. Renewals go on.
        let before = rig.proxy.log_in_full().len();
        for lease in [
            Duration::ZERO,
            Duration::from_micros(9_999),
            1440 * MINUTE + LATE,
            Duration::MAX,
        ] {
            let error = guard.set_lease(lease).expect_err("refused");
            assert!(
                matches!(
                    error,
                    Error::InvalidOption {
                        option: "set_lease",
                        ..
                    }
                ),
                "{error:?}"
            );
        }
        let sent = rig.proxy.log_in_full().split_off(before);
        let renews = |args: &[String]| args.last().is_some_and(|it| it == "30000");
        assert!(
            sent.iter().all(|args| args[0] == "CLIENT" || renews(args)),
            "{sent:?}"
        );
        rig.server.query::<()>(&["DEL", &format!("lock:{key}")]);
        assert_lost(&guard.set_lease(MINUTE), LostCause::Deleted);
        rig.server
            .query::<()>(&["SET", &format!("lock:{key}"), "other", "PX", "5000"]);
        assert_lost(&guard.set_lease(MINUTE), LostCause::Deleted);
        assert_lost(&guard.verify(), LostCause::Deleted);
        assert!(pttl() <= 5000 && rig.value_of(&key).as_deref() == Some("other"));
        drop(guard);
        assert_eq!(rig.value_of(&key).as_deref(), Some("other"));
    }
}

/// The answer to the renewal with the longer lease is late. The answer to the renewal with the
/// shorter lease is lost.
#[test]
fn a_shorter_lease_holds_though_an_older_renewal_is_answered_late() {
    let rig = Rig::with(|builder| {
        builder
            .lease(MINUTE)
            .renew_every(PERIOD)
            .response_timeout(SOON)
    });
    let renewal = renewals_of(&rig.server, "a");
    rig.proxy.on(&renewal, Fault::DelayReply(3 * PERIOD));
    rig.proxy.on(&renewal, Fault::DropReply);
    rig.proxy.always(&renewal, Fault::SwallowCommand);
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "a renewal is under way", || {
        rig.proxy.commands(&renewal) == 1
    });
    guard.set_lease(6 * PERIOD).expect_err("no answer");
    eventually(10 * PERIOD, "the hold ends with the shorter lease", || {
        !guard.is_valid()
    });
}

#[test]
fn verify_asks_redis() {
    for (what, injure, cause) in INJURIES {
        let rig = Rig::renewing();
        let lock = rig.locks.named("a").lease(MINUTE).renew(false);
        let guard = lock.lock().expect("locks");
        guard.verify().expect("the key is still there");
        assert!(guard.is_valid() && guard.remaining() > 5 * MINUTE / 6);
        injure(&rig.server, "lock:a");
        if what == "expired early" {
            eventually(LONG, "the key expires", || !rig.server.exists("lock:a"));
        }
        assert!(guard.is_valid(), "Redis was not asked yet");
        assert_lost(&guard.verify(), cause);
        assert!(!guard.is_valid(), "{what}");
        assert_eq!(rig.locks.held()[0].lost, Some(cause));
        assert_lost(&guard.unlock(), cause);
    }
}

#[test]
fn verify_shortens_the_lease_when_redis_keeps_the_key_for_less() {
    let rig = Rig::renewing();
    let guard = rig
        .locks
        .named("a")
        .lease(MINUTE)
        .renew(false)
        .lock()
        .expect("locks");
    rig.server.query::<()>(&["PEXPIRE", "lock:a", "400"]);
    guard.verify().expect("the key is still there");
    assert!(guard.remaining() <= Duration::from_millis(400) && guard.is_valid());
    assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Expired));
    assert_lost(&guard.verify(), LostCause::Expired);
}

#[test]
fn verify_counts_the_time_left_from_its_send() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    let guard = rig.locks.named("a").renew(false).lock().expect("locks");
    rig.server.query::<()>(&["PEXPIRE", "lock:a", "600"]);
    rig.proxy
        .on("EVALSHA * 1 lock:a", Fault::DelayReply(4 * PERIOD));
    guard.verify().expect("the key was there");
    assert!(guard.remaining() <= 2 * PERIOD, "{:?}", guard.remaining());
}

#[test]
fn verify_counts_the_time_left_from_the_try_that_was_answered() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON).lease(3 * SOON));
    let guard = rig.locks.named("a").renew(false).lock().expect("locks");
    let end = Instant::now() + guard.remaining();
    rig.proxy.on("EVALSHA * 1 lock:a", Fault::SwallowCommand);
    guard.verify().expect("the key is there");
    assert_eq!(rig.proxy.fired(), 1);
    let shortened = end.saturating_duration_since(Instant::now() + guard.remaining());
    assert!(shortened < ANSWER, "{shortened:?}");
}

#[test]
fn a_hold_that_verify_has_shortened_is_renewed_or_reported_in_time() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let guard = rig.locks.lock("a").expect("locks");
    rig.server.query::<()>(&["PEXPIRE", "lock:a", "600"]);
    guard.verify().expect("the key is still there");
    throughout(SOON, || {
        assert!(guard.is_valid(), "there was time enough to renew it");
    });
}

#[test]
fn held_lists_the_locks_of_this_process() {
    let rig = Rig::renewing();
    assert!(rig.locks.held().is_empty());
    let first = rig.locks.lock("first").expect("locks");
    let second = rig
        .locks
        .named("second")
        .renew(false)
        .lock()
        .expect("locks");
    let again = rig.locks.lock("first").expect("locks");
    eventually(LONG, "the hold is renewed", || {
        renewals(&rig.locks, "first") >= 2
    });
    let held = rig.locks.held();
    assert_eq!(
        held.iter()
            .map(|it| (it.key.as_str(), it.depth))
            .collect::<Vec<_>>(),
        [("first", 2), ("second", 1)]
    );
    assert!(
        held.iter()
            .all(|it| it.owner == relatch::Owner::current() && it.lost.is_none())
    );
    // (A renewal may come an eighth of the period early. One more comes when the listener starts.)
    assert!(held[0].held_for >= PERIOD * 7 / 8 && held[0].held_for >= held[1].held_for);
    assert!(held[0].remaining > Duration::ZERO && held[0].remaining <= trusted(6 * PERIOD));
    assert_eq!(held[1].renewals, 0);
    drop(second);
    drop(first);
    assert_eq!(
        rig.locks
            .held()
            .iter()
            .map(|it| it.depth)
            .collect::<Vec<_>>(),
        [1]
    );
    rig.server.query::<()>(&["DEL", "lock:first"]);
    eventually(LONG, "the hold is lost", || {
        rig.locks.held()[0].lost == Some(LostCause::Deleted)
    });
    assert_eq!(rig.locks.held()[0].remaining, Duration::ZERO);
    drop(again);
    assert!(rig.locks.held().is_empty());
}

#[test]
fn stats_count_what_happened() {
    let rig = Rig::renewing();
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

/// The lease is too long for what is left. A shorter one is not.
fn names_the_lease(result: &Result<(), Error>) -> bool {
    matches!(
        result,
        Err(Error::InvalidOption {
            option: "set_lease",
            ..
        })
    )
}

#[test]
fn a_lease_that_is_too_long_for_max_hold_is_not_told_as_the_end_of_the_time() {
    let locks = LockManager::builder_in_memory().max_hold(MINUTE);
    let locks = locks.build().expect("it works");
    let guard = locks.lock("a").expect("locks");
    let refused = guard.set_lease(Duration::from_secs(91));
    assert!(names_the_lease(&refused), "{refused:?}");
    guard
        .set_lease(Duration::from_secs(80))
        .expect("a shorter one works");
}

#[test]
fn nothing_extends_a_hold_past_max_hold_and_the_calls_say_so() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    let (lease, limit) = (2 * SOON, 2 * SOON);
    let guard = rig
        .locks
        .named("a")
        .lease(lease)
        .max_hold(limit)
        .lock()
        .expect("locks");
    let taken = Instant::now();
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
    let later = guard.set_lease(MINUTE);
    assert!(names_the_lease(&later), "time is not up: {later:?}");
    assert!(guard.is_valid(), "nothing was sent, and nothing is lost");
    eventually(LONG, "the limit passes", || {
        is_limited(guard.confirm(Duration::ZERO))
    });
    assert!(is_limited(guard.set_lease(lease)));
    assert!(is_limited(
        guard.ensure(guard.remaining() + Duration::from_millis(1))
    ));
    let error = guard
        .hand_over()
        .map(drop)
        .expect_err("it would extend the lease");
    assert!(is_limited(Err(error)));
    eventually(LONG, "it ends", || rig.value_of("a").is_none());
    assert!(taken.elapsed() < LONG);
}

/// The limit is what was asked for when the lock was taken: `max_hold`, and the rest of that lease.
#[test]
fn a_longer_lease_does_not_put_off_max_hold() {
    let rig = Rig::new();
    let guard = rig
        .locks
        .named("a")
        .lease(LEASE)
        .max_hold(MINUTE)
        .lock()
        .expect("locks");
    guard
        .set_lease(MINUTE / 2)
        .expect("that ends before the limit");
    let late = guard.set_lease(MINUTE + MINUTE / 4);
    assert!(names_the_lease(&late), "{late:?}");
    assert!(guard.is_valid() && guard.remaining() <= MINUTE / 2);
}
