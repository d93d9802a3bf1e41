//! Holds whose key is deleted, by `force_unlock` or by hand: a waiter of the same process takes the
//! lock at once.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{Error, LockGuard, LockManager, LostCause};
use relatch_rig::{Fault, LONG, Server, eventually, throughout, unique_key};

use crate::support::{
    LATE, MINUTE, PERIOD, Rig, SOON, assert_lost, connect, delete, occupy, renewals, returns_by,
    take,
};

/// How soon a waiter has to take the lock: well below the second after which the first waiter asks
/// without a wake-up.
const AT_ONCE: Duration = SOON.checked_div(2).expect("not by zero");

/// Which hold is deleted, and in which way.
struct Case {
    what: &'static str,
    renew: bool,
    renewed: bool,
    by_hand: bool,
}

const CASES: [Case; 4] = [
    Case {
        what: "force-unlocked before its first renewal",
        renew: true,
        renewed: false,
        by_hand: false,
    },
    Case {
        what: "force-unlocked after a renewal",
        renew: true,
        renewed: true,
        by_hand: false,
    },
    Case {
        what: "force-unlocked, and not renewed",
        renew: false,
        renewed: false,
        by_hand: false,
    },
    Case {
        what: "deleted by hand after a renewal",
        renew: true,
        renewed: true,
        by_hand: true,
    },
];

impl Case {
    /// Takes the lock, with the default lease, which does not end during a test.
    fn hold(&self, rig: &Rig, name: &str) -> LockGuard {
        let lock = rig.locks.named(name).renew(self.renew);
        let lock = if self.renewed {
            lock.renew_every(PERIOD)
        } else {
            lock
        };
        let guard = lock.lock().expect("locks");
        eventually(LONG, "the hold is renewed", || {
            !self.renewed || renewals(&rig.locks, name) > 0
        });
        guard
    }

    fn end(&self, rig: &Rig, guard: &LockGuard) {
        if self.by_hand {
            return delete(&rig.server, guard.key());
        }
        let deleted = rig
            .locks
            .named(guard.key())
            .force_unlock()
            .expect("answers")
            .expect("the lock was held");
        assert_eq!(deleted.raw, guard.token());
        assert!(!guard.is_valid(), "{}: the hold is lost at once", self.what);
        assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
    }
}

#[test]
fn a_waiter_behind_a_deleted_hold_takes_the_lock_at_once() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&reported);
    let rig =
        &Rig::with(|builder| builder.on_lost(move |lost| recorder.lock().push(lost.key.clone())));
    for case in CASES {
        let mut rounds = 0;
        returns_by(AT_ONCE, case.what, || {
            rounds += 1;
            let (name, lost) = (&unique_key("a"), rig.locks.stats().lost);
            let guard = case.hold(rig, name);
            let took = thread::scope(|scope| {
                let waiter = scope.spawn(|| take(&rig.locks, name));
                throughout(2 * LATE, || {
                    assert!(!waiter.is_finished(), "{}: the waiter waits", case.what);
                });
                let ended = Instant::now();
                case.end(rig, &guard);
                waiter.join().expect("no panic") - ended
            });
            assert_lost(&guard.unlock(), LostCause::Deleted);
            assert_eq!(rig.locks.stats().lost, lost + 1, "{}", case.what);
            eventually(LONG, "on_lost is called", || {
                reported.lock().last() == Some(name)
            });
            took
        });
        assert_eq!(
            reported.lock().len(),
            rounds,
            "{}: each loss is reported once",
            case.what
        );
        reported.lock().clear();
    }
}

#[test]
fn a_force_unlocked_lock_is_free_for_try_lock_at_once() {
    let rig = &Rig::new();
    for case in CASES.into_iter().filter(|case| !case.by_hand) {
        let name = &unique_key("a");
        let guard = case.hold(rig, name);
        case.end(rig, &guard);
        let other = || {
            rig.locks
                .try_lock(name)
                .expect("answers")
                .map(|guard| guard.token().to_owned())
        };
        let taken = thread::scope(|scope| scope.spawn(other).join()).expect("no panic");
        assert!(taken.is_some(), "{}: the lock is busy", case.what);
        assert_ne!(taken.as_deref(), Some(guard.token()));
        assert_lost(&guard.unlock(), LostCause::Deleted);
    }
}

/// The operator looked, and then the holder changed.
#[test]
fn force_unlock_if_ends_the_hold_that_was_seen_and_no_other() {
    let rig = Rig::new();
    let operator = connect(&rig.server);
    let lock = operator.named("a");
    let see = || lock.holder().expect("answers").expect("it is held").raw;
    assert!(
        !operator
            .named("a")
            .force_unlock_if("nobody's")
            .expect("answers"),
        "the key is not there"
    );

    let first = rig.locks.lock("a").expect("locks");
    let seen = see();
    drop(first);
    let second = rig.locks.lock("a").expect("locks");
    assert!(
        !lock.force_unlock_if(&seen).expect("answers"),
        "that one is gone"
    );
    second.verify().expect("it is left alone");
    assert!(lock.force_unlock_if(see()).expect("answers"));
    assert_eq!(rig.value_of("a"), None);
    assert_lost(&second.unlock(), LostCause::Deleted);
    // By the manager of the holder: the hold is lost at once, and the next thread has the lock.
    let third = rig.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&rig.locks, "a"));
        eventually(LONG, "a thread waits", || !rig.locks.waiting().is_empty());
        assert!(
            rig.locks
                .named("a")
                .force_unlock_if(third.token())
                .expect("answers")
        );
        assert!(!third.is_valid());
        waiter.join().expect("no panic");
    });
    assert_lost(&third.unlock(), LostCause::Deleted);
}

/// `raw` does not show all of it, so the comparison would always say that it has changed.
#[test]
fn force_unlock_if_refuses_a_value_that_is_not_known_in_full() {
    let rig = Rig::new();
    let lock = rig.locks.named("a");
    let set = |value: &str| {
        let script = format!("return redis.call('SET', 'lock:a', {value})");
        rig.server.query::<()>(&["EVAL", &script, "0"]);
        lock.holder().expect("answers").expect("it is held").raw
    };
    for value in [
        "string.rep('x', 300)",
        "string.rep('x', 256)",
        "'not \\255 UTF-8'",
    ] {
        let error = lock
            .force_unlock_if(set(value))
            .expect_err("it would never match");
        assert!(
            matches!(
                &error,
                Error::InvalidOption {
                    option: "force_unlock_if",
                    ..
                }
            ),
            "{error:?}"
        );
    }
    for value in ["string.rep('x', 255)", "'\u{e9}\\r\\n'", "''"] {
        assert!(
            lock.force_unlock_if(set(value)).expect("answers"),
            "{value}"
        );
        assert_eq!(rig.value_of("a"), None);
    }
}

/// Some programs take random bytes for a token.
#[test]
fn a_value_that_is_not_utf_8_is_deleted_if_its_bytes_are_meant() {
    let rig = Rig::new();
    let lock = rig.locks.named("a");
    let script = "return redis.call('SET', 'lock:a', 'not \\255 UTF-8\\0')";
    rig.server.query::<()>(&["EVAL", script, "0"]);
    let holder = lock.holder().expect("answers").expect("it is held");
    let bytes = holder.bytes.expect("not UTF-8");
    assert_eq!(*bytes, *b"not \xff UTF-8\0");
    assert!(!lock.force_unlock_if(b"not \xfe UTF-8\0").expect("answers"));
    assert!(lock.force_unlock_if(&bytes).expect("answers"));
    assert_eq!(rig.value_of("a"), None);
}

/// A second try would find the key gone, and say that it was not there.
#[test]
fn force_unlock_if_is_one_try() {
    let rig = Rig::new();
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.on("EVAL * 1 lock:a", Fault::DropReply);
    let error = rig
        .locks
        .named("a")
        .force_unlock_if(guard.token())
        .expect_err("no answer");
    assert!(error.is_redis_failure(), "{error:?}");
    assert_eq!(rig.value_of("a"), None, "it was executed");
    assert_lost(&guard.unlock(), LostCause::Deleted);
}

/// A waiter that polls gets no invalidation, so the manager itself wakes it.
#[test]
fn a_polling_waiter_takes_the_lock_at_once_when_its_process_force_unlocks_it() {
    let server = Server::start();
    let builder = LockManager::builder(&server.url())
        .client_tracking(false)
        .poll_every(LONG);
    let locks = builder.build().expect("connects");
    occupy(&server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&locks, "a"));
        eventually(LONG, "the pause of the waiter is at least a second", || {
            server.calls("pttl") >= 12
        });
        let ended = Instant::now();
        locks
            .named("a")
            .force_unlock()
            .expect("answers")
            .expect("the lock was held");
        let took = waiter.join().expect("no panic") - ended;
        assert!(
            took < AT_ONCE,
            "{took:?}: the manager did not wake the waiter"
        );
    });
}

/// The key is not tracked yet: the hold is young, and its first renewal is ten seconds away.
#[test]
fn a_waiter_behind_a_young_hold_deleted_by_hand_takes_the_lock_soon() {
    let rig = &Rig::new();
    for before_the_wait in [false, true] {
        let name = &unique_key("a");
        let guard = rig.locks.lock(name).expect("locks");
        if before_the_wait {
            delete(&rig.server, name);
        }
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&rig.locks, name));
            if !before_the_wait {
                eventually(LONG, "the keeper renews the hold", || {
                    renewals(&rig.locks, name) > 0
                });
                delete(&rig.server, name);
            }
            let deleted = Instant::now();
            let taken = waiter.join().expect("no panic");
            let took = taken.saturating_duration_since(deleted);
            assert!(
                took < 4 * SOON,
                "{took:?}: woken too late: the loss was not noticed?"
            );
        });
        assert_lost(&guard.unlock(), LostCause::Deleted);
    }
}

/// Redis has executed the claim, and its answer is on the way.
#[test]
fn a_thread_whose_answer_is_due_gets_no_lock_that_is_force_unlocked() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    rig.proxy.on("SET lock:a", Fault::DelayReply(4 * LONG));
    thread::scope(|scope| {
        let taker = scope.spawn(|| rig.locks.lock("a").map(drop));
        eventually(LONG, "the claim is executed", || {
            rig.server.exists("lock:a")
        });
        let deleted = rig.locks.named("a").force_unlock().expect("answers");
        assert!(deleted.is_some(), "it had the key");
        drop(
            rig.locks
                .lock("b")
                .expect("a thread that asks later gets another lock"),
        );
        rig.proxy.end_delays();
        assert_lost(&taker.join().expect("no panic"), LostCause::Deleted);
    });
    assert!(rig.locks.held().is_empty());
}

/// Redis executes the deletion, and a copy of another answer comes in the place of its own. A
/// second deletion could strike the next holder.
#[test]
fn a_force_unlock_that_seems_unknown_is_not_sent_again() {
    let rig = Rig::new();
    occupy(&rig.server, "a", MINUTE);
    let sent = rig.proxy.commands("EVAL");
    rig.proxy.on(
        "EVAL",
        Fault::Replace(b"-NOSCRIPT No matching script.\r\n".to_vec()),
    );
    assert!(rig.locks.named("a").force_unlock().is_err());
    assert_eq!(
        (rig.value_of("a"), rig.proxy.commands("EVAL") - sent),
        (None, 1)
    );
}
