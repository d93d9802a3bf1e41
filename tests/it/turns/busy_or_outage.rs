//! How a wait that does not get the lock ends: busy, or an outage. An outage ends all waits at
//! once.

use std::error::Error as StdError;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockManager};
use relatch_rig::{
    Fault, LONG, Proxy, Server, SetOnDrop, eventually, throughout, time, unique_key, within,
};

use crate::support::{
    ANSWER, MINUTE, Rig, SOON, assert_unavailable, behind, builder, delete, occupy, until_tracked,
};

/// Redis is well all the time. A short wait may end before a connection is free or an answer comes,
/// but that is no outage.
#[test]
fn a_limit_that_ends_in_this_process_is_a_timeout() {
    const THREADS: u32 = 20;
    const CALLS: u32 = 150;
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .pool_size(8)
        .build()
        .expect("connects");
    let (taken, over) = (AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let (locks, taken, over) = (&locks, &taken, &over);
            scope.spawn(move || {
                let own = unique_key("own");
                for call in 0..CALLS {
                    let limit = Duration::from_millis(u64::from((thread + call) % 9 + 1));
                    let key = if call % 4 == 0 { "shared" } else { &own };
                    match locks.named(key).try_lock_for(limit) {
                        Ok(Some(_)) => taken.fetch_add(1, Ordering::Relaxed),
                        Ok(None) => {
                            assert_eq!(key, "shared", "nobody else takes this thread's own lock");
                            over.fetch_add(1, Ordering::Relaxed)
                        }
                        Err(error) => {
                            assert!(error.is_timeout(), "{limit:?}, {key}: {error:?}");
                            assert!(error.source().is_some(), "{error:?}");
                            over.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                }
            });
        }
    });
    assert!(
        taken.into_inner() > THREADS,
        "some are taken; {over:?} were not"
    );
}

/// The wait ends before the connection is open. That does not prove an outage.
#[test]
fn a_wait_that_ends_while_a_connection_is_opened_is_a_timeout() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let url = format!("{}1", proxy.bare_url());
    let locks = builder(&url).build_lazily().expect("nothing is sent");
    proxy.always("SELECT", Fault::DelayReply(ANSWER));
    for limit in [5, 10, 15].map(Duration::from_millis) {
        let taken = locks.named("a").try_lock_for(limit);
        assert!(
            matches!(taken, Err(Error::Timeout { .. })),
            "{limit:?}: {taken:?}"
        );
    }
    proxy.clear();
    drop(locks.lock("a").expect("Redis is there"));
}

/// Another thread of the process asks, and has no answer. So nobody knows whether the lock is busy.
#[test]
fn a_short_wait_behind_a_thread_that_asks_says_that_nobody_knows() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    rig.proxy.on("SET lock:a", Fault::DelayReply(4 * LONG));
    thread::scope(|scope| {
        let front = scope.spawn(|| rig.locks.lock("a").map(drop));
        rig.proxy.wait_fired(1, LONG);
        let wait = Duration::from_millis(5);
        let error = rig.locks.named("a").wait(wait).lock();
        let tried = rig.locks.named("a").try_lock_for(wait);
        rig.proxy.end_delays();
        let error = error.expect_err("it is asked for");
        let unknown = |error: &Error| {
            matches!(
                error,
                Error::Timeout {
                    holder: None,
                    source: Some(_),
                    ..
                }
            )
        };
        assert!(unknown(&error), "{error:?}");
        assert!(tried.as_ref().is_err_and(unknown), "{tried:?}");
        front.join().expect("no panic").expect("it gets its answer");
    });
}

/// There are more threads than connections. Redis answers each thread that has a connection.
#[test]
fn a_wait_for_a_pooled_connection_in_use_is_a_timeout() {
    const THREADS: u32 = 12;
    let rig = &Rig::with(|builder| builder.pool_size(1).response_timeout(LONG));
    let done = &AtomicBool::new(false);
    rig.proxy.always("SET", Fault::DelayReply(ANSWER / 10));
    thread::scope(|scope| {
        let _end = SetOnDrop(done);
        for thread in 0..THREADS {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    drop(
                        rig.locks
                            .named(format!("own-{thread}"))
                            .wait(LONG)
                            .lock()
                            .expect("locks"),
                    );
                }
            });
        }
        let sets = || rig.proxy.commands("SET");
        let before = sets();
        eventually(LONG, "the threads take locks", || {
            sets() > before + u64::from(THREADS)
        });
        // Tried up to ten times: the machine may delay the other threads for the whole wait.
        let mut tries = (0..10).map(|_| rig.locks.named("a").try_lock_for(ANSWER / 3));
        assert!(
            tries.any(|taken| matches!(taken, Err(Error::Timeout { .. }))),
            "the attempt waited behind threads that got answers"
        );
    });
}

/// This thread waits for a connection for longer than the tolerated outage. But Redis answers
/// another thread meanwhile.
#[test]
fn the_wait_for_a_connection_does_not_count_as_an_outage() {
    let rig = Rig::with(|it| {
        it.pool_size(1)
            .connect_timeout(LONG)
            .response_timeout(LONG)
            .tolerate_outage(SOON)
    });
    rig.proxy
        .on("EVALSHA * 1 lock:slow", Fault::DelayReply(3 * SOON));
    thread::scope(|scope| {
        let slow = scope.spawn(|| rig.locks.named("slow").holder().map(drop));
        eventually(LONG, "the slow call has the connection", || {
            rig.proxy.commands("EVALSHA * 1 lock:slow") > 0
        });
        rig.proxy.on("SET lock:a", Fault::CutBeforeReply);
        drop(rig.locks.lock("a").expect("one lost answer is no outage"));
        slow.join().expect("no panic").expect("answers");
    });
}

#[test]
fn a_timeout_names_what_took_the_time() {
    let rig = Rig::new();
    rig.proxy.always("SET", Fault::DelayReply(ANSWER / 3));
    let lock = rig.locks.named("a").wait(Duration::from_millis(5));
    let error = lock.lock().expect_err("there was no time");
    assert!(
        matches!(&error, Error::Timeout { holder: None, .. }),
        "{error:?}"
    );
    assert!(error.source().is_some(), "{error:?}");
    assert!(
        error
            .to_string()
            .starts_with("lock \"a\" was not taken within"),
        "{error}"
    );
}

/// The only connection is stuck. A thread that waits for it must report an outage, not a busy lock.
#[test]
fn a_pool_whose_connections_are_stuck_is_reported_as_an_outage() {
    let rig = Rig::with(|builder| builder.pool_size(1).response_timeout(5 * ANSWER));
    rig.proxy.black_hole(true);
    thread::scope(|scope| {
        let first = scope.spawn(|| rig.locks.named("a").try_lock_for(4 * ANSWER).map(drop));
        eventually(LONG, "the only connection is in use", || {
            rig.proxy.commands("SET lock:a") > 0
        });
        assert_unavailable(&rig.locks.named("b").try_lock_for(ANSWER));
        assert_unavailable(&first.join().expect("no panic").map(|()| None));
    });
}

#[test]
fn a_wait_behind_a_thread_in_a_black_hole_is_reported_as_an_outage() {
    let rig = Rig::new();
    rig.proxy.black_hole(true);
    thread::scope(|scope| {
        let first = scope.spawn(|| rig.locks.lock("a").map(drop));
        eventually(LONG, "the first asks", || {
            rig.proxy.commands("SET lock:a") > 0
        });
        let (took, second) = time(|| rig.locks.named("a").try_lock_for(ANSWER / 3));
        assert_unavailable(&second);
        assert!(took < SOON, "{took:?}");
        assert_unavailable(&first.join().expect("no panic").map(|()| None));
    });
}

/// The waiter's turn in the queue comes so late that Redis cannot answer before the deadline. That
/// is no fault of Redis.
#[test]
fn a_turn_that_comes_too_late_is_a_timeout() {
    let rig = Rig::new();
    let (rest, before) = (ANSWER / 10, ANSWER * 9 / 10);
    // Tried up to ten times: a busy machine may delay a thread for long.
    let mut tries = (0..10).map(|_| {
        let key = unique_key("a");
        let guard = rig.locks.lock(&key).expect("locks");
        rig.proxy
            .always(&format!("SET lock:{key}"), Fault::DelayReply(2 * rest));
        thread::scope(|scope| {
            let start = Instant::now();
            let second = behind(scope, || {
                rig.locks
                    .named(&key)
                    .try_lock_for(before + rest)
                    .map(|taken| taken.is_some())
            });
            eventually(LONG, "the wait is almost over", || {
                start.elapsed() >= before
            });
            guard.unlock().expect("unlocks");
            second.join().expect("no panic")
        })
    });
    assert!(
        tries.any(|taken| matches!(taken, Err(Error::Timeout { .. }))),
        "Redis is slow, and not away"
    );
}

/// Fifty waiting threads do not learn of an outage one after the other.
#[test]
fn an_outage_ends_for_all_waiters_at_once() {
    for what in ["refused", "black hole"] {
        let server = Server::start();
        let proxy = Proxy::start(server.port());
        let locks = builder(&proxy.url())
            .tolerate_outage(SOON)
            .build()
            .expect("connects");
        if what == "refused" {
            proxy.refuse(true);
            proxy.cut_all();
        } else {
            proxy.black_hole(true);
        }
        let attempts = || proxy.commands("SET lock:a");
        within(
            2 * SOON,
            &format!("{what}: the last thread returns"),
            || {
                thread::scope(|scope| {
                    let threads = [(); 50].map(|()| scope.spawn(|| locks.lock("a").map(drop)));
                    for thread in threads {
                        let result = thread.join().expect("no panic");
                        assert_unavailable(&result.map(|()| None));
                    }
                });
            },
        );
        assert!(attempts() < 50, "{what}: {} attempts", attempts());
        proxy.black_hole(false);
        proxy.refuse(false);
        drop(locks.lock("a").expect("nothing is kept of the outage"));
    }
}

/// Redis has answered the first waiter, which has slept since then. So the outage begins later than
/// the wait.
#[test]
fn an_outage_that_begins_while_the_first_waiter_sleeps_is_reported_to_all() {
    for limit in [None, Some(SOON)] {
        let rig = &Rig::with(|builder| builder.tolerate_outage(SOON));
        occupy(&rig.server, "a", MINUTE);
        thread::scope(|scope| {
            let first = scope.spawn(|| rig.locks.lock("a").map(drop));
            until_tracked(&rig.server, 1);
            let second = behind(scope, || {
                match limit {
                    None => rig.locks.lock("a").map(Some),
                    Some(limit) => rig.locks.named("a").try_lock_for(limit),
                }
                .map(drop)
            });
            rig.proxy.refuse(true);
            rig.proxy.cut_all();
            let outage = Instant::now();
            for thread in [second, first] {
                assert_unavailable(&thread.join().expect("no panic").map(|()| None));
            }
            let took = outage.elapsed();
            assert!(
                took < 2 * SOON,
                "{limit:?}, {took:?}: the outage began anew with the second waiter"
            );
        });
    }
}

/// The limit holds for the whole wait: first for the turn in the queue, then for the lock, which
/// another holder has.
#[test]
fn a_waiters_deadline_is_kept_when_its_turn_comes() {
    let part = SOON * 3 / 5;
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let guard = locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let (locks, start) = (&locks, Instant::now());
        let second = behind(scope, move || {
            let taken = locks
                .named("a")
                .try_lock_for(2 * part)
                .expect("answers")
                .is_some();
            (taken, start.elapsed())
        });
        eventually(LONG, "half of the second thread's limit is over", || {
            start.elapsed() >= part
        });
        server.query::<()>(&["SET", "lock:a", "somebody", "PX", "60000"]);
        assert!(
            guard
                .unlock()
                .expect_err("another holder has the lock")
                .is_lost()
        );
        let (taken, took) = second.join().expect("no panic");
        assert!(!taken);
        assert!(
            took < part * 5 / 2,
            "waited for {took:?}, with a limit of {:?}",
            2 * part
        );
    });
}

/// A slow answer is no outage, so even a tolerance of zero must not end the wait.
#[test]
fn a_short_outage_tolerance_fails_no_wait_while_redis_answers() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    for tolerated in [Duration::ZERO, ANSWER / 6] {
        let locks = LockManager::builder(&proxy.url())
            .tolerate_outage(tolerated)
            .build()
            .expect("connects");
        let key = unique_key("a");
        let fired = proxy.fired();
        proxy.on(&format!("SET lock:{key}"), Fault::DelayReply(ANSWER));
        thread::scope(|scope| {
            let first = scope.spawn(|| locks.lock(&key).map(drop));
            proxy.wait_fired(fired + 1, LONG);
            let second = locks.lock(&key).map(drop);
            first
                .join()
                .expect("no panic")
                .expect("the first attempt is answered");
            second.expect("nothing is wrong with Redis");
        });
    }
}

/// A release hands the lock to the first waiter, but gets no answer. The waiter's own attempt gets
/// no answer either.
#[test]
fn a_wait_behind_a_hand_off_into_a_black_hole_is_reported_as_an_outage() {
    let rig = &Rig::with(|builder| builder.response_timeout(SOON).local_handoff(MINUTE));
    let guard = rig.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let wait = |limit| {
            move || {
                rig.locks
                    .named("a")
                    .try_lock_for(limit)
                    .map(|guard| guard.is_some())
            }
        };
        let second = behind(scope, wait(4 * SOON));
        let third = behind(scope, wait(17 * SOON / 10));
        rig.proxy.black_hole(true);
        let unlocked = guard.unlock();
        assert!(
            matches!(unlocked, Err(Error::Unconfirmed { .. })),
            "{unlocked:?}"
        );
        for waiter in [third, second] {
            let result = waiter.join().expect("no panic");
            assert!(
                matches!(result, Err(Error::Unavailable { .. })),
                "{result:?}"
            );
        }
    });
}

/// Redis answers every command in time but one: the waiter's attempt after an invalidation. The
/// answer before that one came long ago.
#[test]
fn one_late_answer_ends_no_long_wait() {
    let rig = &Rig::with(|builder| builder.tolerate_outage(SOON));
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rig.locks.lock("a").map(drop));
        until_tracked(&rig.server, 1);
        throughout(3 * SOON / 2, || {
            assert!(!waiter.is_finished(), "the waiter waits");
        });
        let asked = rig.proxy.fired();
        rig.proxy.on("SET lock:a", Fault::DelayReply(ANSWER));
        rig.server.query::<i64>(&["PEXPIRE", "lock:a", "60000"]);
        rig.proxy.wait_fired(asked + 1, LONG);
        throughout(2 * ANSWER, || ());
        delete(&rig.server, "a");
        waiter.join().expect("no panic").expect("Redis was there");
    });
}
