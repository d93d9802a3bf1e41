//! Redis does not answer, breaks off its answers, or is not up yet.

use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockGuard, LockManager, Unlocked};
use relatch_rig::{Fault, LONG, Proxy, Server, eventually, rights, time, unique_key};

use crate::support::{
    ANSWER, MINUTE, Over, PERIOD, Rig, SOON, Taken, WAYS, assert_unavailable, broken_replies,
    builder, renewals, renewals_of, returns_by, trusted,
};

#[test]
fn row_13_taking_a_lock_in_a_black_hole_ends_by_its_deadline() {
    taking_a_lock_in_a_black_hole_ends_by_its_deadline(Over::Tcp);
}

pub(crate) fn taking_a_lock_in_a_black_hole_ends_by_its_deadline(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    let waiting = rig.locks.named("a").wait(ANSWER * 3 / 2);
    let takes: [(&str, Duration, &dyn Fn() -> Taken); 5] = [
        ("try_lock", 2 * ANSWER, &|| rig.locks.try_lock("a")),
        ("try_lock_for, shorter than an answer", ANSWER / 2, &|| {
            rig.locks.named("a").try_lock_for(ANSWER / 2)
        }),
        ("try_lock_for", 4 * ANSWER, &|| {
            rig.locks.named("a").try_lock_for(4 * ANSWER)
        }),
        ("lock with a wait", ANSWER * 3 / 2, &|| {
            waiting.lock().map(Some)
        }),
        // The tolerated outage lasts for four times `ANSWER`. The last attempt, with the pause
        // before it, takes two more.
        ("lock", 6 * ANSWER, &|| rig.locks.lock("a").map(Some)),
    ];
    let in_a_hole = |take: &dyn Fn() -> Taken| {
        rig.proxy.black_hole(true);
        let (took, taken) = time(take);
        assert_unavailable(&taken);
        took
    };
    let end = || {
        rig.proxy.black_hole(false);
        rig.proxy.cut_all();
    };
    for (what, limit, take) in takes {
        returns_by(limit, what, || {
            drop(rig.locks.named("a").holder());
            let took = in_a_hole(take);
            end();
            took
        });
        returns_by(limit, &format!("{what}, connecting into the hole"), || {
            // This attempt closes the connection that was open when the black hole began.
            in_a_hole(&|| rig.locks.named("a").try_lock_for(ANSWER / 2));
            let connections = rig.proxy.connections_accepted();
            let took = in_a_hole(take);
            assert!(
                rig.proxy.connections_accepted() > connections,
                "{what}: over the same connection"
            );
            end();
            took
        });
    }
    rig.assert_works("b");
}

type Ask = fn(&LockManager, &LockGuard) -> Result<(), Error>;

/// Other calls, and how many response timeouts each takes at most.
const ASKS: [(&str, u32, Ask); 5] = [
    ("extend", 1, |_, guard| guard.set_lease(2 * MINUTE)),
    ("ensure", 1, |_, guard| guard.ensure(trusted(MINUTE))),
    // `verify` and `holder` ask once more, because the connection may have been closed while idle.
    ("verify", 2, |_, guard| guard.verify()),
    ("holder", 2, |locks, guard| {
        locks.named(guard.key()).holder().map(drop)
    }),
    ("force_unlock", 1, |locks, guard| {
        locks.named(guard.key()).force_unlock().map(drop)
    }),
];

#[test]
fn row_13_a_question_in_a_black_hole_ends_by_the_response_timeout() {
    a_question_in_a_black_hole_ends_by_the_response_timeout(Over::Tcp);
}

pub(crate) fn a_question_in_a_black_hole_ends_by_the_response_timeout(over: Over) {
    for every in [MINUTE / 2, PERIOD] {
        let rig = Rig::over(over, |builder| builder.lease(MINUTE).renew_every(every));
        for (what, answers, ask) in ASKS {
            // In a cluster, `force_unlock` tries again with a new map.
            let tries_again = what == "force_unlock" && !rights::in_cluster().is_empty();
            let answers = answers + u32::from(tries_again);
            returns_by(
                answers * ANSWER,
                &format!("{what}, renewed every {every:?}"),
                || {
                    let guard = rig.locks.lock(unique_key("a")).expect("locks");
                    let renewal = renewals_of(&rig.server, guard.key());
                    // In the black hole, no login is answered, so the keeper needs its connection
                    // now.
                    let has_renewed = || every > PERIOD || renewals(&rig.locks, guard.key()) > 0;
                    eventually(LONG, "the keeper is connected", has_renewed);
                    rig.proxy.black_hole(true);
                    // If a renewal was on its way when the hole began, the next one is sent over a
                    // new connection, and gets no further than its login.
                    let tries = || rig.proxy.commands(&renewal) + rig.proxy.commands("HELLO");
                    let before = tries();
                    let is_renewed = || every > PERIOD || tries() > before;
                    eventually(LONG, "a renewal is under way", is_renewed);
                    let (took, asked) = time(|| ask(&rig.locks, &guard));
                    assert!(
                        matches!(asked, Err(Error::Unavailable { .. })),
                        "{what}: {asked:?}"
                    );
                    assert!(guard.is_valid(), "{what}");
                    rig.proxy.black_hole(false);
                    rig.proxy.cut_all();
                    let name = guard.key().to_owned();
                    let released = guard.unlock();
                    // On a busy machine, the answer may take longer than `ANSWER`. Then the keeper
                    // deletes the key.
                    let is_given_back = matches!(
                        released,
                        Ok(Unlocked::Released) | Err(Error::Unconfirmed { .. })
                    );
                    assert!(is_given_back, "{what}: {released:?}");
                    eventually(LONG, "the key is deleted", || rig.value_of(&name).is_none());
                    took
                },
            );
        }
        rig.assert_works("b");
    }
}

#[test]
fn row_13_connecting_into_a_black_hole_ends_by_the_deadline() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.black_hole(true);
    returns_by(ANSWER, "build", || {
        time(|| builder(&proxy.url()).build().expect_err("no answer")).0
    });
    // With a password, a new connection first waits for the answer to its login.
    let url = proxy.bare_url().replace("redis://", "redis://:secret@");
    for url in [proxy.bare_url(), url] {
        let locks = builder(&url).build_lazily().expect("sends nothing");
        for (way, take) in WAYS {
            let limit = ANSWER * if way == "try_lock" { 2 } else { 6 };
            returns_by(limit, way, || {
                let (took, taken) = time(|| take(&locks, "a"));
                assert_unavailable(&taken);
                took
            });
        }
    }
}

#[test]
fn row_13_releasing_in_a_black_hole_ends_by_the_response_timeout() {
    releasing_in_a_black_hole_ends_by_the_response_timeout(Over::Tcp);
}

pub(crate) fn releasing_in_a_black_hole_ends_by_the_response_timeout(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    let in_a_hole = |release: &dyn Fn(LockGuard)| {
        let guard = rig.locks.lock(unique_key("a")).expect("locks");
        rig.proxy.black_hole(true);
        let (took, ()) = time(|| release(guard));
        rig.proxy.black_hole(false);
        rig.proxy.cut_all();
        took
    };
    let unlock = |guard: LockGuard| {
        let unlocked = guard.unlock();
        assert!(
            matches!(unlocked, Err(Error::Unconfirmed { .. })),
            "{unlocked:?}"
        );
    };
    returns_by(ANSWER, "unlock", || in_a_hole(&unlock));
    returns_by(ANSWER, "drop", || in_a_hole(&|guard| drop(guard)));
    let cut = |guard: LockGuard| {
        rig.proxy.cut_all();
        unlock(guard);
    };
    returns_by(ANSWER, "unlock, on a new connection", || in_a_hole(&cut));
    rig.assert_works("b");
}

#[test]
fn row_13_waiting_for_the_only_connection_in_a_black_hole_ends_by_the_deadline() {
    let rig = Rig::with(|builder| builder.pool_size(1));
    let rig = &rig;
    returns_by(4 * ANSWER, "waiting for the only connection", || {
        let guard = rig.locks.lock(unique_key("held")).expect("locks");
        rig.proxy.black_hole(true);
        let too_long = thread::scope(|scope| {
            let tries = [ANSWER / 2, ANSWER, 2 * ANSWER, 4 * ANSWER, Duration::ZERO].map(|limit| {
                scope.spawn(move || {
                    let (took, taken) =
                        time(|| rig.locks.named(unique_key("a")).try_lock_for(limit));
                    assert_unavailable(&taken);
                    took.saturating_sub(if limit.is_zero() { 2 * ANSWER } else { limit })
                })
            });
            let (took, ()) = time(|| drop(guard));
            let others = tries.map(|it| it.join().expect("no panic"));
            others
                .into_iter()
                .chain([took.saturating_sub(ANSWER)])
                .max()
                .unwrap_or_default()
        });
        rig.proxy.black_hole(false);
        rig.proxy.cut_all();
        4 * ANSWER + too_long
    });
    rig.assert_works("b");
}

#[test]
fn row_14_a_broken_reply_is_resolved_over_another_connection() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    for fault in broken_replies()
        .into_iter()
        .chain([Fault::CutBeforeForward])
    {
        assert_settled_elsewhere(&rig, &fault, &fault);
    }
}

#[test]
fn row_14_a_reply_of_the_wrong_type_is_resolved_over_another_connection() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let replies = [
        (":1\r\n", "+OK\r\n"),
        ("*0\r\n", "*0\r\n"),
        ("$2\r\nOK\r\n", "$-1\r\n"),
    ];
    for (to_set, to_evalsha) in replies {
        let [to_set, to_evalsha] = [to_set, to_evalsha].map(|it| Fault::Replace(it.into()));
        assert_settled_elsewhere(&rig, &to_set, &to_evalsha);
    }
}

/// Has a fault strike a `SET` and a release. Checks that both succeed nevertheless, and that no
/// connection is used again after a fault. The manager has to wait long for answers: behind one
/// that is only late, a clean-up goes over the same connection.
fn assert_settled_elsewhere(rig: &Rig, to_set: &Fault, to_evalsha: &Fault) {
    let none_is_used_again = |what: &str| {
        assert_eq!(
            rig.proxy.commands_after_faults(),
            0,
            "{what}: a struck connection, after {to_set:?}"
        );
    };
    for (way, take) in WAYS {
        let key = unique_key(way);
        rig.proxy.on(&format!("SET lock:{key}"), to_set.clone());
        let (took, taken) = time(|| take(&rig.locks, &key));
        let guard = taken.expect(way).expect(way);
        assert!(
            took < SOON,
            "{way} waited for its own key after {to_set:?}: {took:?}"
        );
        assert_eq!(
            rig.value_of(&key).as_deref(),
            Some(guard.token()),
            "{way} after {to_set:?}"
        );
        none_is_used_again(way);
        rig.assert_works(&unique_key("other"));
        rig.proxy
            .on(&format!("EVALSHA * 1 lock:{key}"), to_evalsha.clone());
        assert_eq!(
            guard.unlock().expect("unlocks"),
            Unlocked::Released,
            "{way} after {to_evalsha:?}"
        );
        assert_eq!(rig.value_of(&key), None, "{way} after {to_evalsha:?}");
        none_is_used_again("unlock");
        rig.assert_works(&unique_key("other"));
    }
}

#[test]
fn row_14_a_reply_in_small_pieces_is_accepted() {
    // The timeout is long: the pieces take half of the usual one, and a busy machine may take the
    // other half.
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    rig.server
        .query::<()>(&["SET", "lock:busy", "somebody", "PX", "60000"]);
    assert!(
        rig.locks
            .named("busy")
            .try_lock_for(SOON)
            .expect("answers")
            .is_none()
    );
    eventually(
        LONG,
        "the listener is connected, over its own connection",
        || !rig.server.listeners().is_empty(),
    );
    let before = rig.proxy.connections_accepted();
    for gap in [1, 5].map(Duration::from_millis) {
        for command in ["CLIENT", "SET", "GET", "PTTL", "EVALSHA"] {
            rig.proxy.on(command, Fault::ByteByByte(gap));
        }
        rig.assert_works("a");
        assert!(
            rig.locks
                .named("busy")
                .try_lock_for(SOON)
                .expect("answers")
                .is_none()
        );
    }
    assert_eq!(
        rig.proxy.connections_accepted(),
        before,
        "nothing was broken"
    );
}

/// Each byte comes in time, but the whole reply does not.
#[test]
fn row_14_a_reply_that_drips_ends_by_the_deadline() {
    let rig = Rig::new();
    let takes: [(&str, Duration, &dyn Fn() -> Taken); 2] = [
        ("try_lock", 2 * ANSWER, &|| rig.locks.try_lock("a")),
        ("try_lock_for", ANSWER * 3 / 2, &|| {
            rig.locks.named("a").try_lock_for(ANSWER * 3 / 2)
        }),
    ];
    for (what, limit, take) in takes {
        rig.proxy.always("SET", Fault::ByteByByte(ANSWER * 2 / 3));
        returns_by(limit, what, || time(take).0);
        rig.proxy.clear();
    }
    eventually(LONG, "no key without a holder is left", || {
        rig.value_of("a").is_none()
    });
    returns_by(ANSWER, "unlock", || {
        let guard = rig.locks.lock("a").expect("locks");
        rig.proxy
            .always("EVALSHA", Fault::ByteByByte(ANSWER * 2 / 3));
        let (took, unlocked) = time(|| guard.unlock());
        assert!(
            matches!(unlocked, Err(Error::Unconfirmed { .. })),
            "{unlocked:?}"
        );
        rig.proxy.clear();
        took
    });
}

#[test]
fn row_15_a_lock_waits_for_redis_to_come_up() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    proxy.refuse(true);
    let locks = builder(&proxy.url()).build_lazily().expect("sends nothing");
    let start = Instant::now();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = locks
                .named("a")
                .wait(LONG)
                .lock()
                .expect("locks within the wait");
            assert_eq!(server.get("lock:a").as_deref(), Some(guard.token()));
            start.elapsed()
        });
        eventually(LONG, "a second passes", || start.elapsed() >= SOON);
        proxy.refuse(false);
        let took = waiter.join().expect("no panic");
        assert!((SOON..2 * SOON).contains(&took), "{took:?}");
    });
    let error = builder("redis://127.0.0.1:1/")
        .build()
        .expect_err("nothing listens there");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[test]
fn row_15_many_threads_that_wait_for_redis_connect_at_a_bounded_rate() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    server.kill();
    let locks = builder(&proxy.url()).build_lazily().expect("sends nothing");
    let start = Instant::now();
    thread::scope(|scope| {
        let waiters = [(); 8].map(|()| {
            scope.spawn(|| {
                let key = unique_key("a");
                let guard = locks
                    .named(&key)
                    .wait(LONG)
                    .lock()
                    .expect("locks within the wait");
                assert_eq!(
                    server.get(&format!("lock:{key}")).as_deref(),
                    Some(guard.token())
                );
            })
        });
        eventually(LONG, "a second passes", || start.elapsed() >= SOON);
        let attempts = proxy.connections_accepted();
        server.restart();
        assert!(
            (16..200).contains(&attempts),
            "{attempts} connections within a second"
        );
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
    });
}

#[test]
fn a_wait_with_a_limit_ends_when_an_outage_has_lasted_for_as_long_as_is_tolerated() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .tolerate_outage(ANSWER)
        .build()
        .expect("connects");
    server.kill();
    thread::scope(|scope| {
        // One asks, and the others wait behind it.
        for _ in 0..3 {
            scope.spawn(|| {
                let asked = Instant::now();
                let error = locks
                    .named("a")
                    .wait(LONG)
                    .lock()
                    .map(drop)
                    .expect_err("Redis is gone");
                assert!(error.is_redis_failure(), "{error:?}");
                assert!(
                    asked.elapsed() >= ANSWER && asked.elapsed() < LONG / 2,
                    "{:?}",
                    asked.elapsed()
                );
            });
        }
    });
}
