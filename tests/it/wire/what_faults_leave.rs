//! What remains of an earlier fault must not shorten a lease or prolong a wait.

use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Builder, Error, LockManager};
use relatch_rig::{Fault, LONG, eventually, throughout, within};

use crate::support::{MINUTE, Rig, delete, occupy, renewals_of, until_tracked};

const ANSWER: Duration = Duration::from_millis(200);
fn rig(set: impl FnOnce(Builder) -> Builder) -> Rig {
    Rig::with(|builder| set(builder.response_timeout(ANSWER)))
}

#[test]
fn row_11_a_refused_second_set_does_not_restart_the_lease() {
    let lease = Duration::from_secs(10);
    let rig = rig(|it| it.lease(lease).renew(false));
    // The first `SET` is executed, and its answer comes too late to be read.
    rig.proxy.on("SET", Fault::DelayReply(3 * ANSWER / 2));
    rig.proxy
        .on_nth("SET", 2, Fault::Answer(b"-LOADING not now\r\n".to_vec()));
    let start = Instant::now();
    let guard = rig.locks.named("a").wait(LONG).lock().expect("locks");
    let took = start.elapsed();
    assert_eq!(rig.proxy.fired(), 2);
    assert!(took >= ANSWER && took < lease, "{took:?}");
    assert_eq!(rig.server.get("lock:a").as_deref(), Some(guard.token()));
    let left = Duration::from_millis(rig.server.pttl("lock:a").try_into().expect("a lease"));
    assert!(
        guard.remaining() <= left,
        "{:?} of {left:?}",
        guard.remaining()
    );
}

#[test]
fn row_11_a_wait_that_a_refusal_ends_leaves_no_key() {
    let rig = rig(|it| it.renew(false));
    rig.proxy.on("SET", Fault::DelayReply(3 * ANSWER / 2));
    rig.proxy
        .on_nth("SET", 2, Fault::Answer(b"-OOM no memory\r\n".to_vec()));
    let error = rig.locks.named("a").wait(LONG).lock().expect_err("refused");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "OOM"),
        "{error:?}"
    );
    eventually(LONG, "the first SET is cleaned up", || {
        !rig.server.exists("lock:a")
    });
}

#[test]
fn row_11_a_late_answer_is_not_read_as_the_answer_to_the_next_command() {
    let rig = rig(|it| it);
    rig.server
        .query::<()>(&["SET", "lock:a", "somebody", "PX", "60000"]);
    // The reply to the second `SET` comes late, and so do the replies behind it on that connection.
    rig.proxy
        .on_nth("SET lock:a", 2, Fault::DelayReply(3 * ANSWER / 2));
    let taken = rig.locks.named("a").try_lock_for(5 * ANSWER);
    assert!(
        taken.expect("Redis is there").is_none(),
        "another holder has the lock"
    );
    assert_eq!(rig.proxy.fired(), 1);
}

#[test]
fn a_connection_without_an_answer_is_closed_and_its_token_is_not_used_again() {
    let rig = rig(|it| it.renew(false));
    rig.proxy.always("SET", Fault::DropReply);
    let guard = thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            rig.locks
                .named("a")
                .wait(LONG)
                .lock()
                .map(|it| it.token().to_owned())
        });
        eventually(LONG, "Redis is asked twice", || {
            rig.tokens_sent("a").len() >= 2
        });
        rig.proxy.clear();
        waiter.join().expect("no panic").expect("locks")
    });
    let tokens = rig.tokens_sent("a");
    assert!(tokens[0] != tokens[1], "{tokens:?}");
    assert_eq!(tokens.last(), Some(&guard));
}

#[test]
fn a_refused_listener_retries_with_backoff() {
    let rig = rig(|it| it);
    rig.proxy
        .always("SUBSCRIBE", Fault::Answer(b"-NOPERM no\r\n".to_vec()));
    rig.server
        .query::<()>(&["SET", "lock:a", "somebody", "PX", "60000"]);
    assert!(
        rig.locks
            .named("a")
            .try_lock_for(5 * ANSWER)
            .expect("answers")
            .is_none()
    );
    let tries = rig.proxy.commands("SUBSCRIBE");
    assert!((1..8).contains(&tries), "{tries} in {:?}", 5 * ANSWER);
}

#[test]
fn a_lock_whose_answer_was_late_is_renewed_in_time() {
    let lease = Duration::from_secs(1);
    let rig = rig(|it| it.lease(lease).response_timeout(LONG));
    rig.proxy.on("SET", Fault::DelayReply(lease * 8 / 10));
    let guard = rig.locks.lock("a").expect("locks");
    assert!(guard.remaining() < lease / 5);
    eventually(LONG, "the hold is renewed", || {
        rig.locks.stats().renewed >= 2
    });
    assert!(guard.is_valid());
    guard.unlock().expect("the lock was held throughout");
}

#[test]
fn a_waiter_takes_the_lock_when_the_hold_before_it_expires() {
    let rig = rig(|it| it.lease(ANSWER).renew(false));
    let start = Instant::now();
    let guard = rig.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let next = scope.spawn(|| rig.locks.lock("a").map(drop));
        next.join()
            .expect("no panic")
            .expect("the waiter's turn comes");
    });
    assert!(
        start.elapsed() < 9 * ANSWER / 2,
        "the waiter took the lock after {:?}",
        start.elapsed()
    );
    assert!(guard.unlock().expect_err("the lease is over").is_lost());
}

#[test]
fn two_tries_of_one_call_share_its_timeout() {
    let rig = rig(|it| it.connect_timeout(ANSWER));
    // The call asks again over a second connection, because the first one might be dead.
    rig.proxy
        .on_times("EVALSHA * 1 lock:a", 2, Fault::DelayReply(3 * ANSWER / 2));
    let answer = within(3 * ANSWER, "two questions", || {
        rig.locks.named("a").holder()
    });
    assert!(
        answer
            .expect_err("the second answer came too late")
            .is_redis_failure()
    );
}

#[test]
fn time_in_the_wait_queue_is_no_outage() {
    let rig = rig(|it| it.tolerate_outage(ANSWER));
    let guard = rig.locks.lock("a").expect("locks");
    let (asked, waits) = mpsc::channel();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            asked.send(Instant::now()).expect("awaited");
            rig.locks.lock("a").map(drop)
        });
        let since = waits.recv().expect("asks");
        eventually(LONG, "the wait is longer than an outage may be", || {
            since.elapsed() > 2 * ANSWER
        });
        rig.proxy.on("SET", Fault::CutBeforeForward); // The connection was closed while idle.
        drop(guard);
        waiter
            .join()
            .expect("no panic")
            .expect("locks at the second attempt");
    });
    assert_eq!(rig.proxy.fired(), 1);
}

#[test]
fn a_thread_that_waits_for_a_connection_is_woken_when_one_is_closed() {
    let rig = rig(|it| it.pool_size(1).renew(false));
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.on("EVALSHA", Fault::SwallowCommand);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            rig.proxy.wait_fired(1, LONG);
            let start = Instant::now();
            (rig.locks.lock("b").map(drop), start.elapsed())
        });
        let unlocked = guard.unlock();
        assert!(
            matches!(unlocked, Ok(_) | Err(Error::Unconfirmed { .. })),
            "{unlocked:?}"
        );
        let (locked, took) = waiter.join().expect("no panic");
        locked.expect("the pool has room");
        assert!(took < 5 * ANSWER, "{took:?}");
    });
}

#[test]
fn try_lock_works_though_all_idle_connections_were_cut() {
    const IDLE: u64 = 3;
    let rig = rig(|it| it.renew(false).response_timeout(LONG));
    // The delay keeps all connections in use, so each thread needs one of its own.
    rig.proxy
        .on_times("SET", IDLE, Fault::DelayReply(ANSWER / 4));
    thread::scope(|scope| {
        for n in 0..IDLE {
            let locks = &rig.locks;
            scope.spawn(move || drop(locks.lock(format!("busy:{n}")).expect("locks")));
        }
    });
    rig.proxy.cut_all();
    let guard = rig
        .locks
        .try_lock("a")
        .expect("the second connection is a new one")
        .expect("free");
    drop(guard);
}

#[test]
fn an_answer_that_is_too_long_costs_no_other_connection() {
    let rig = rig(|it| it.renew(false).response_timeout(LONG));
    let all = Barrier::new(3);
    thread::scope(|scope| {
        for name in ["a", "b", "c"] {
            let (locks, all) = (&rig.locks, &all);
            rig.proxy
                .on(&format!("SET lock:{name}"), Fault::DelayReply(ANSWER / 2));
            scope.spawn(move || {
                all.wait();
                drop(locks.lock(name).expect("locks"));
            });
        }
    });
    let long = [
        b"$300000\r\n".to_vec(),
        b"x".repeat(300_000),
        b"\r\n".to_vec(),
    ]
    .concat();
    rig.proxy
        .on_times("EVALSHA * 1 lock:long", 2, Fault::Replace(long));
    let error = rig
        .locks
        .named("long")
        .holder()
        .expect_err("too long, twice");
    assert!(
        error.is_redis_failure() && format!("{error:?}").contains("too long"),
        "{error:?}"
    );
    let connections = rig.proxy.connections_accepted();
    drop(rig.locks.lock("d").expect("locks"));
    assert_eq!(
        rig.proxy.connections_accepted(),
        connections,
        "the third connection can still be used"
    );
}

#[test]
fn ensure_works_though_the_connection_was_cut_while_idle() {
    let rig = rig(|it| it.lease(Duration::from_secs(9)));
    let guard = rig.locks.lock("a").expect("locks");
    guard.set_lease(Duration::from_secs(8)).expect("extends"); // Opens the keeper's connection.
    // This closes the connections. (A restart would delete the key, too.)
    rig.server
        .query::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]);
    rig.server.query::<i64>(&["PEXPIRE", "lock:a", "5000"]);
    guard
        .verify()
        .expect("the key is there, though the connections are gone");
    guard
        .ensure(Duration::from_secs(7))
        .expect("renews over a new one");
}

#[test]
fn a_waiter_that_is_woken_leaves_no_orphan_to_clean_up() {
    // An answer that a busy machine delays for longer would leave one.
    let rig = rig(|it| it.renew(false).response_timeout(LONG));
    let Rig { locks, server, .. } = &rig;
    let others = LockManager::connect(&server.url()).expect("connects");
    for n in 0..8 {
        let name = format!("a:{n}");
        let guard = others.lock(&name).expect("locks");
        let tracked = server.tracked_keys();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| locks.lock(&name).map(drop));
            eventually(LONG, "the waiter waits for an invalidation", || {
                server.tracked_keys() > tracked
            });
            drop(guard);
            waiter.join().expect("no panic").expect("locks");
        });
    }
    let sent = server.calls("evalsha");
    throughout(ANSWER, || {
        assert_eq!(
            server.calls("evalsha"),
            sent,
            "the keeper still looks for an orphan"
        );
    });
}

#[test]
fn dropping_the_manager_does_not_wait_for_all_orphans() {
    let rig = Rig::with(|it| it.pool_size(32));
    let Rig { locks, proxy, .. } = &rig;
    thread::scope(|scope| {
        for n in 0..24 {
            scope.spawn(move || {
                let guard = locks.lock(format!("orphan:{n}")).expect("locks");
                eventually(LONG, "all hold", || locks.stats().acquired > 24);
                proxy.black_hole(true);
                assert!(matches!(guard.unlock(), Err(Error::Unconfirmed { .. })));
            });
        }
    });
    // 24 releases were sent in vain. The keeper is to repeat them, and gets no further than its
    // login.
    let before = proxy.commands("HELLO");
    eventually(LONG, "the keeper is at it", || {
        proxy.commands("HELLO") >= before + 2
    });
    let Rig {
        locks,
        proxy: _proxy,
        ..
    } = rig;
    within(4 * ANSWER, "the end of the manager", || drop(locks));
}

#[test]
fn a_key_renewed_after_its_hold_expired_is_deleted() {
    let rig = rig(|it| it.lease(Duration::from_secs(2)).renew_every(ANSWER));
    // Renewals are executed, and no answer arrives.
    rig.proxy
        .always(&renewals_of(&rig.server, "a"), Fault::DropReply);
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "no renewal is answered", || !guard.is_valid());
    assert!(rig.server.pttl("lock:a") > 500, "the lease was renewed");
    rig.proxy.clear();
    rig.proxy.black_hole(true);
    assert!(
        guard
            .unlock()
            .expect_err("no answer, and too late")
            .is_lost()
    );
    rig.proxy.black_hole(false);
    rig.proxy.cut_all();
    eventually(LONG, "the key is deleted in the background", || {
        rig.locks.stats().late_releases == 1
    });
}

/// The answer says that another holder has the lock, but the key has our token. Nobody knows when
/// Redis set the key, so a hold with this token could be trusted for too long.
#[test]
fn row_11_a_token_found_after_a_busy_answer_is_not_trusted() {
    let rig = rig(|it| it);
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            rig.locks
                .named("a")
                .wait(LONG)
                .lock()
                .map(|guard| guard.token().to_owned())
        });
        until_tracked(&rig.server, 1);
        let asked = rig.proxy.commands("SET lock:a");
        rig.proxy.on(
            "SET lock:a",
            Fault::Replace(b"*2\r\n$8\r\nsomebody\r\n:300\r\n".into()),
        );
        delete(&rig.server, "a");
        let token = waiter.join().expect("no panic").expect("locks");
        let sent = rig.tokens_sent("a");
        let asked = usize::try_from(asked).expect("a few");
        assert_ne!(
            sent[asked], token,
            "a token that Redis denied is trusted: {sent:?}"
        );
    });
    eventually(LONG, "no key without a holder is left", || {
        rig.value_of("a").is_none()
    });
}

/// The proxy answers the `SET` with nil, though Redis executed it.
#[test]
fn row_11_a_try_lock_whose_refused_token_is_stored_leaves_no_key() {
    let rig = rig(|it| it);
    rig.proxy
        .on("SET lock:a", Fault::Replace(b"$-1\r\n".into()));
    let guard = rig
        .locks
        .try_lock("a")
        .expect("answers")
        .expect("the key that nobody holds is removed");
    let sent = rig.tokens_sent("a");
    assert_ne!(
        sent[0],
        guard.token(),
        "a token that Redis denied is trusted: {sent:?}"
    );
    guard.unlock().expect("unlocks");
    eventually(LONG, "no key without a holder is left", || {
        rig.value_of("a").is_none()
    });
}

/// The clean-up is lost with its connection, so the key that remains has no holder.
#[test]
fn row_11_an_abandoned_token_of_our_own_is_not_reported_as_busy() {
    let rig = rig(|it| it.renew(false));
    for _ in 0..5 {
        rig.proxy.on("SET lock:a", Fault::DropReply);
        rig.proxy.always("EVAL", Fault::SwallowCommand);
        let taken = rig.locks.try_lock("a");
        assert!(
            !matches!(taken, Ok(None)),
            "busy, though no other holder has the lock"
        );
        drop(taken);
        rig.proxy.clear();
        eventually(LONG, "no key without a holder is left", || {
            rig.value_of("a").is_none()
        });
    }
}
