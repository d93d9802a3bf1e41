//! Redis refuses a command, forgets a script, or has another value at the key: which error the
//! caller gets, and what is left behind.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockGuard, LockManager, LostCause, Unlocked};
use relatch_rig::{Fault, LONG, Proxy, Server, eventually, server_version, within};

use crate::support::{assert_lost, chain, connect};

/// How soon a call that could wait for longer has to return.
const IN_TIME: Duration = Duration::from_secs(10);

/// The limit of a wait that ends without the lock.
const WAIT: Duration = Duration::from_millis(150);

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(3);

/// Makes the server a replica of a master that does not exist.
fn follow_a_missing_master(server: &Server) {
    let missing = Server::start();
    missing.kill();
    server.query::<()>(&["REPLICAOF", "127.0.0.1", &missing.port().to_string()]);
}

/// Another program has a long value at the key. The lock is busy, and no answer has the whole
/// value.
#[test]
fn a_long_value_of_another_program_is_no_outage() {
    let server = Server::start();
    let value = "x".repeat(1_000_000);
    let sent = || {
        let info: String = server.query(&["INFO", "stats"]);
        let sent = info
            .lines()
            .find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        sent.and_then(|sent| sent.trim().parse::<u64>().ok())
            .expect("a number")
    };
    for fenced in [false, true] {
        server.query::<()>(&["SET", "lock:a", &value, "PX", "600000"]);
        let locks = connect(&server);
        let lock = locks.named("a").fenced(fenced);
        let before = sent();
        assert!(lock.try_lock().expect("answers").is_none());
        // The waiter asks at the beginning and at the end, or more often.
        let error = lock.clone().wait(4 * WAIT).lock().expect_err("it is busy");
        assert!(
            error.is_timeout() && error.to_string().len() < 500,
            "{error}"
        );
        // The lock's counter may have such a value, too.
        server.query::<()>(&["SET", crate::turns::fence::COUNTER, &value]);
        let holder = lock.holder().expect("answers").expect("held");
        assert_eq!(
            (&*holder.raw, holder.owner(), holder.fence),
            (&value[..256], None, None)
        );
        let parcel = "relatch1:1000:0:app-1-42-43-00112233445566778899aabbccddeeff:a";
        let adopted = lock.adopt(&parcel.parse().expect("a parcel")).map(drop);
        assert_lost(&adopted, LostCause::Taken);
        let deleted = lock.force_unlock().expect("answers").expect("held");
        assert_eq!(deleted.raw, &value[..256]);
        let taken = lock.try_lock().map(drop);
        assert_eq!(
            matches!(&taken, Err(Error::Refused { code, .. }) if code == "NOFENCE"),
            fenced,
            "{taken:?}"
        );
        server.query::<()>(&["DEL", crate::turns::fence::COUNTER]);
        assert!(
            sent() - before < 100_000,
            "{} bytes were sent",
            sent() - before
        );
        drop(lock.try_lock().expect("answers").expect("it is free"));
    }
}

/// The error of each way to take a lock. None may say that the lock is busy.
fn refusals(locks: &LockManager, key: &str) -> Vec<Error> {
    let lock = locks.named(key).wait(WAIT);
    vec![
        within(WAIT + SLACK, "lock", || lock.lock()).expect_err("lock"),
        within(WAIT + SLACK, "try_lock", || lock.try_lock()).expect_err("try_lock"),
        within(WAIT + SLACK, "try_lock_for", || lock.try_lock_for(WAIT)).expect_err("try_lock_for"),
        within(WAIT + SLACK, "with_lock", || {
            lock.with_lock(|| unreachable!())
        })
        .expect_err("with_lock"),
    ]
}

#[track_caller]
fn assert_refused(error: &Error, expected: &str) {
    assert!(
        matches!(error, Error::Refused { code, .. } if code == expected),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains(expected) && text.contains("127.0.0.1:"),
        "{text}"
    );
    assert!(error.is_redis_failure() && !error.is_timeout());
}

#[track_caller]
fn assert_unavailable(error: &Error, code: &str) {
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("127.0.0.1:"), "{error}");
    assert!(chain(error).contains(code), "{}", chain(error));
    assert!(error.is_redis_failure() && !error.is_timeout());
}

/// Asserts that each way of taking a lock says that Redis is unavailable, and why.
///
/// The deadline may cut the last attempt of a wait short, and then the error does not say why. So
/// this tries again until each way has named the code once.
#[track_caller]
fn assert_all_unavailable(locks: &LockManager, code: &str) {
    let mut named = [false; 4];
    eventually(LONG, "each names the code", || {
        for (named, error) in named.iter_mut().zip(refusals(locks, "a")) {
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            *named |= chain(&error).contains(code);
        }
        named == [true; 4]
    });
}

/// The result of an action on a thread of its own; panics if the action takes too long.
#[track_caller]
fn in_time<T: Send + 'static>(action: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || done.send(action()));
    is_done.recv_timeout(IN_TIME).expect("an endless wait")
}

/// The errors of the calls that would wait for a lock.
fn waits(locks: &LockManager, key: &'static str) -> [Error; 2] {
    let (one, other) = (locks.clone(), locks.clone());
    [
        in_time(move || one.lock(key).map(drop)).expect_err("lock"),
        in_time(move || other.named(key).try_lock_for(2 * LONG).map(drop))
            .expect_err("try_lock_for"),
    ]
}

/// Asserts that a lock can be taken and released, and leaves nothing behind.
#[track_caller]
fn assert_all_is_well(server: &Server, locks: &LockManager, key: &str) {
    let guard = locks.named(key).wait(LONG).lock().expect("locks");
    assert!(server.exists(&format!("lock:{key}")));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert!(!server.exists(&format!("lock:{key}")));
}

#[test]
fn row_19_a_foreign_key_without_a_ttl_is_reported_and_not_waited_for() {
    let server = Server::start();
    let locks = connect(&server);
    server.query::<()>(&["SET", "lock:a", "by-hand"]);
    for error in waits(&locks, "a") {
        assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
        let text = error.to_string();
        assert!(
            text.contains("\"lock:a\"") && text.contains("by-hand"),
            "{text}"
        );
        assert!(text.contains("never expires"), "{text}");
    }
    let error = locks.try_lock("a").expect_err("the lock can never be free");
    assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
    assert!(
        locks
            .named("a")
            .try_lock_for(WAIT)
            .expect("answers")
            .is_none(),
        "too soon to know"
    );
    let holder = locks
        .named("a")
        .holder()
        .expect("answers")
        .expect("somebody");
    assert_eq!(
        (&*holder.raw, holder.owner(), holder.remaining),
        ("by-hand", None, None)
    );
    let deleted = locks
        .named("a")
        .force_unlock()
        .expect("answers")
        .expect("somebody");
    assert_eq!(deleted, holder);
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_19_a_list_at_the_key_is_reported_and_not_waited_for() {
    let server = Server::start();
    let locks = connect(&server);
    server.query::<()>(&["RPUSH", "lock:a", "1"]);
    for expiry in [None, Some("60000")] {
        if let Some(millis) = expiry {
            server.query::<()>(&["PEXPIRE", "lock:a", millis]);
        }
        for error in waits(&locks, "a")
            .into_iter()
            .chain(locks.named("a").holder().err())
        {
            assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("\"lock:a\"") && text.contains("not a string"),
                "{text}"
            );
        }
    }
    let error = locks.try_lock("a").expect_err("the lock can never be free");
    assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
    let deleted = locks
        .named("a")
        .force_unlock()
        .expect("answers")
        .expect("something");
    assert!(deleted.raw.contains("not a string"), "{deleted}");
    assert_all_is_well(&server, &locks, "a");
}

/// An operator's `PERSIST` removes the TTL of a held key. The next renewal restores the TTL, and if
/// the key is tracked, that renewal comes at once. Here the key is not tracked yet, and the first
/// renewal is ten seconds away.
#[test]
fn row_19_a_young_lock_whose_key_lost_its_ttl_is_waited_for() {
    let server = Server::start();
    let (ours, theirs) = (
        LockManager::connect(&server.url()),
        LockManager::connect(&server.url()),
    );
    let (ours, theirs) = (ours.expect("connects"), theirs.expect("connects"));
    let guard = theirs.lock("a").expect("locks");
    assert_eq!(server.query::<i64>(&["PERSIST", "lock:a"]), 1);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| ours.lock("a").map(drop));
        let begun = Instant::now();
        eventually(
            LONG,
            "by now, a foreign value would not count as a lock",
            || begun.elapsed() > 6 * WAIT,
        );
        assert!(!waiter.is_finished());
        guard.unlock().expect("the lock was held");
        waiter
            .join()
            .expect("no panic")
            .expect("the key is a lock, and its holder lives");
    });
}

#[test]
fn row_19_a_renewed_lock_whose_key_lost_its_ttl_is_waited_for() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    for key in ["a", "b", "c"] {
        let guard = theirs
            .named(key)
            .renew_every(WAIT / 3)
            .lock()
            .expect("locks");
        eventually(
            LONG,
            "the hold is renewed, and a listener is connected",
            || server.redirects_invalidations() && theirs.stats().renewed > 0,
        );
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| ours.named(key).lock().map(drop));
            let tries = scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    assert!(
                        ours.named(key)
                            .try_lock_for(WAIT / 10)
                            .expect("the key is a lock")
                            .is_none()
                    );
                    let other = LockManager::connect(&server.url()).expect("connects");
                    assert!(other.try_lock(key).expect("the key is a lock").is_none());
                }
            });
            eventually(LONG, "the waiter waits for an invalidation", || {
                server.tracked_keys() > 0
            });
            let redis_key = format!("lock:{key}");
            assert_eq!(server.query::<i64>(&["PERSIST", &redis_key]), 1);
            eventually(LONG, "the holder restores the TTL", || {
                server.pttl(&redis_key) > 0
            });
            let (repaired, renewed) = (Instant::now(), theirs.stats().renewed);
            let passed = || repaired.elapsed() > 3 * WAIT && theirs.stats().renewed > renewed;
            eventually(LONG, "the waiters that looked meanwhile look again", passed);
            done.store(true, Ordering::SeqCst);
            tries.join().expect("no panic");
            guard.unlock().expect("the lock was held throughout");
            waiter
                .join()
                .expect("no panic")
                .expect("the waiter's turn comes");
        });
    }
}

#[test]
fn row_19_a_hold_whose_key_became_a_list_is_lost() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks.lock("a").expect("locks");
    server.query::<()>(&["DEL", "lock:a"]);
    server.query::<()>(&["RPUSH", "lock:a", "1"]);
    assert!(guard.unlock().expect_err("lost").is_lost());
    assert_eq!(
        server.query::<i64>(&["LLEN", "lock:a"]),
        1,
        "and is left alone"
    );
}

#[test]
fn row_20_out_of_memory_is_reported_at_once_and_releases_work() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]);
    let locks = connect(&server);
    let held = locks.lock("held").expect("locks");
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for error in refusals(&locks, "a") {
        assert_refused(&error, "OOM");
    }
    assert_refused(
        &within(SLACK, "no limit", || locks.lock("a")).expect_err("full"),
        "OOM",
    );
    assert_eq!(held.unlock().expect("unlocks"), Unlocked::Released);
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_20_a_missing_right_or_a_full_disk_is_reported_at_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    for (code, text) in [
        ("MISCONF", "-MISCONF Errors writing to the AOF file\r\n"),
        ("NOPERM", "-NOPERM no\r\n"),
    ] {
        proxy.always("SET", Fault::Answer(text.into()));
        let before = proxy.commands("SET");
        for error in refusals(&locks, "a") {
            assert_refused(&error, code);
        }
        assert_eq!(proxy.commands("SET") - before, 4, "one attempt each");
        proxy.clear();
    }
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_20_a_password_set_meanwhile_is_reported() {
    let server = Server::start();
    let old = LockManager::connect(&server.bare_url()).expect("connects");
    let held = old.lock("held").expect("locks");
    server.query::<()>(&["CONFIG", "SET", "requirepass", "canary"]);
    assert_refused(
        &LockManager::connect(&server.bare_url()).expect_err("no password"),
        "NOAUTH",
    );
    let late = LockManager::builder(&server.bare_url())
        .build_lazily()
        .expect("builds");
    for error in refusals(&late, "a") {
        assert_refused(&error, "NOAUTH");
    }
    assert_refused(
        &late.named("a").holder().expect_err("no password"),
        "NOAUTH",
    );
    // Redis still serves connections that were opened before the password was set.
    assert_eq!(held.unlock().expect("unlocks"), Unlocked::Released);
    let url = format!("redis://:canary@127.0.0.1:{}/", server.port());
    assert_all_is_well(&server, &LockManager::connect(&url).expect("connects"), "a");
}

#[test]
fn row_20_a_refusal_that_passes_is_waited_for() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    for code in [
        "LOADING",
        "READONLY",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "TRYAGAIN",
        "BUSY",
        "NOREPLICAS",
    ] {
        let answer = Fault::Answer(format!("-{code} for a while\r\n").into_bytes());
        proxy.always("SET", answer.clone());
        assert_all_unavailable(&locks, code);
        proxy.clear();
        let armed = proxy.fired();
        proxy.on_times("SET", 3, answer);
        drop(
            locks
                .named("a")
                .wait(LONG)
                .lock()
                .expect("the refusal passes"),
        );
        proxy.wait_fired(armed + 3, LONG);
    }
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_20_a_replica_is_not_reported_as_busy_and_its_promotion_ends_the_wait() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    follow_a_missing_master(&server);
    assert_all_unavailable(&locks, "READONLY");
    thread::scope(|scope| {
        let before = proxy.commands("SET");
        let taker = scope.spawn(|| {
            drop(
                locks
                    .named("a")
                    .wait(LONG)
                    .lock()
                    .expect("taken after the promotion"),
            );
        });
        eventually(LONG, "the waiter tries", || {
            proxy.commands("SET") >= before + 4
        });
        assert!(!taker.is_finished());
        server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    });
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_20_a_release_on_a_replica_is_retried_until_its_promotion() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .response_timeout(LONG)
        .build()
        .expect("connects");
    let guard = locks.lock("a").expect("locks");
    follow_a_missing_master(&server);
    server.reset_stats();
    thread::scope(|scope| {
        scope.spawn(|| {
            eventually(LONG, "the release is tried", || {
                server.total_calls(&["evalsha", "eval"]) >= 3
            });
            server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
        });
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    });
    assert!(!server.exists("lock:a"));
}

#[test]
fn row_20_a_replica_without_its_master_is_not_reported_as_busy() {
    // A replica that accepts writes, because any other would answer READONLY first.
    let server = Server::with(&[
        "--replica-serve-stale-data",
        "no",
        "--replica-read-only",
        "no",
    ]);
    let locks = connect(&server);
    follow_a_missing_master(&server);
    assert_all_unavailable(&locks, "MASTERDOWN");
    assert_unavailable(
        &locks.named("a").holder().expect_err("no master"),
        "MASTERDOWN",
    );
    // Connecting sends only PING, which servers before 7 answer in this state, too.
    let connected = LockManager::connect(&server.url());
    if server_version() >= (7, 0) {
        assert_unavailable(&connected.expect_err("no master"), "MASTERDOWN");
    } else {
        assert_unavailable(
            &connected
                .expect("PING")
                .named("a")
                .holder()
                .expect_err("no master"),
            "MASTERDOWN",
        );
    }
    server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_20_too_few_replicas_are_not_reported_as_busy() {
    let server = Server::start();
    let locks = connect(&server);
    server.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    assert_all_unavailable(&locks, "NOREPLICAS");
    server.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_20_a_wait_without_a_limit_ends_after_the_tolerated_outage() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::builder(&proxy.url())
        .tolerate_outage(WAIT)
        .build()
        .expect("connects");
    proxy.always(
        "SET",
        Fault::Answer(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec()),
    );
    let start = Instant::now();
    let error = within(WAIT + 2 * SLACK, "lock", || locks.lock("a")).expect_err("loading");
    assert!(start.elapsed() >= WAIT);
    assert_unavailable(&error, "LOADING");
}

#[test]
fn row_21_a_forgotten_script_costs_one_round_trip() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    for _ in 0..2 {
        let guard = locks.lock("a").expect("locks");
        server.query::<()>(&["SCRIPT", "FLUSH"]);
        let before = proxy.log().len();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert_eq!(proxy.log()[before..], ["EVALSHA", "EVAL"]);
    }
    let before = proxy.log().len();
    assert_all_is_well(&server, &locks, "a");
    assert_eq!(
        proxy.log()[before..],
        ["SET", "EVALSHA"],
        "and no more than one"
    );
}

#[test]
fn row_21_a_forgotten_script_costs_a_renewal_one_round_trip() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    // No listener can connect here. A listener that connects causes one more renewal.
    proxy.always("SUBSCRIBE", Fault::Answer(b"-NOPERM no\r\n".to_vec()));
    let lease = Duration::from_secs(60);
    let guard = locks.lock("a").expect("locks");
    let renewals = || {
        let sent = proxy
            .log_in_full()
            .into_iter()
            .filter(|args| args.iter().any(|arg| arg == "lock:a"));
        sent.skip(1).count()
    };
    guard.set_lease(lease).expect("extends");
    assert_eq!(
        (renewals(), server.calls("eval")),
        (1, 1),
        "the first one of a connection has the text"
    );
    for round in 2..4 {
        server.query::<()>(&["SCRIPT", "FLUSH"]);
        guard.set_lease(round * lease).expect("extends");
        let left = Duration::from_millis(
            server
                .pttl("lock:a")
                .try_into()
                .expect("the key is still there"),
        );
        assert!(
            left > (round - 1) * lease && guard.remaining() > (round - 1) * lease,
            "{left:?}"
        );
    }
    assert_eq!(renewals(), 1 + 2 * 2);
    guard.set_lease(lease).expect("extends");
    assert_eq!(renewals(), 1 + 2 * 2 + 1, "and no more than one");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn row_21_a_restart_between_lock_and_unlock_costs_one_round_trip() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let locks = connect(&server);
    let guard: LockGuard = locks.lock("a").expect("locks");
    server.restart();
    eventually(LONG, "loaded", || server.command(&["DBSIZE"]).is_ok());
    assert!(server.exists("lock:a"));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_eq!((server.calls("evalsha"), server.calls("eval")), (1, 1));
    assert!(!server.exists("lock:a"));
}

#[test]
fn row_21_a_restart_without_the_key_loses_the_lock() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks.lock("a").expect("locks");
    server.restart();
    // This call notices that the connection is closed. If the release noticed that, its answer
    // would count as lost, and the missing key as released.
    locks.with_lock("b", || ()).expect("runs");
    assert!(guard.unlock().expect_err("lost").is_lost());
    assert_all_is_well(&server, &locks, "a");
}

#[test]
fn row_21_a_call_that_only_asks_works_after_a_restart() {
    let server = Server::start();
    let locks = connect(&server);
    drop(locks.lock("a").expect("locks"));
    server.restart();
    assert_eq!(
        locks
            .named("a")
            .holder()
            .expect("a stale connection is no outage"),
        None
    );
}
