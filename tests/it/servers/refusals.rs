//! Redis refuses a command, forgets a script, or has another value at the key: which error the
//! caller gets, and what is left behind.

use std::thread;
use std::time::Duration;

use relatch::{Error, LockGuard, LockManager, LostCause, Unlocked};
use relatch_rig::{LONG, Proxy, Server, eventually, server_version, within};

use crate::support::{ANSWER, MINUTE, SOON, assert_lost, chain, connect, occupy};

/// The limit of a wait that ends without the lock.
const WAIT: Duration = Duration::from_secs(1);

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
        let mut lines = info.lines();
        let sent = lines.find_map(|line| line.strip_prefix("total_net_output_bytes:"));
        let sent = sent.and_then(|sent| sent.trim().parse::<u64>().ok());
        sent.expect("a number")
    };
    for fenced in [false, true] {
        server.query::<()>(&["SET", "lock:a", &value, "PX", "600000"]);
        let locks = connect(&server);
        let lock = locks.named("a").fenced(fenced);
        let before = sent();
        assert!(lock.try_lock().expect("answers").is_none());
        // The waiter asks at the beginning and at the end, or more often.
        let error = lock.clone().wait(WAIT).lock().expect_err("it is busy");
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
fn refusals(locks: &LockManager) -> [Error; 3] {
    let lock = locks.named("a").wait(WAIT);
    within(2 * WAIT + 5 * SOON, "three refusals", || {
        [
            lock.lock().expect_err("lock"),
            lock.try_lock().expect_err("try_lock"),
            lock.try_lock_for(WAIT).expect_err("try_lock_for"),
        ]
    })
}

#[track_caller]
fn assert_refused(error: &Error, expected: &str) {
    let is_it = matches!(error, Error::Refused { code, .. } if code == expected);
    assert!(is_it && error.is_redis_failure(), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("127.0.0.1:"), "{text}");
}

/// Asserts that a lock can be taken and released, and leaves nothing behind.
#[track_caller]
fn assert_all_is_well(server: &Server, locks: &LockManager) {
    let guard = locks.named("a").wait(LONG).lock().expect("locks");
    assert!(server.exists("lock:a"));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert!(!server.exists("lock:a"));
}

#[test]
fn row_19_what_is_no_lock_is_reported_and_not_waited_for() {
    let server = Server::start();
    let locks = connect(&server);
    let (by_hand, list) = (["SET", "lock:a", "by-hand"], ["RPUSH", "lock:a", "1"]);
    for (value, words) in [(by_hand, "by-hand"), (list, "not a string")] {
        server.query::<()>(&value);
        for error in [
            within(LONG / 2, "no endless wait", || locks.lock("a")).expect_err("lock"),
            locks.named("a").try_lock_for(2 * LONG).expect_err("wait"),
            locks.try_lock("a").expect_err("try_lock"),
        ] {
            assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
            let text = error.to_string();
            assert!(
                text.contains("\"lock:a\"") && text.contains(words),
                "{text}"
            );
        }
        let deleted = locks.named("a").force_unlock().expect("answers");
        let deleted = deleted.expect("something");
        assert!(deleted.raw.contains(words), "{deleted}");
        assert_all_is_well(&server, &locks);
    }
}

#[test]
fn row_20_out_of_memory_is_reported_at_once_and_releases_work() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]);
    let locks = connect(&server);
    let held = locks.lock("held").expect("locks");
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    for error in refusals(&locks) {
        assert_refused(&error, "OOM");
    }
    let no_limit = within(5 * SOON, "no limit", || locks.lock("a"));
    assert_refused(&no_limit.expect_err("full"), "OOM");
    assert_eq!(held.unlock().expect("unlocks"), Unlocked::Released);
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_all_is_well(&server, &locks);
}

#[test]
fn row_20_a_password_set_meanwhile_is_reported() {
    let server = Server::start();
    let old = LockManager::connect(&server.bare_url()).expect("connects");
    let held = old.lock("held").expect("locks");
    server.query::<()>(&["CONFIG", "SET", "requirepass", "canary"]);
    let late = LockManager::builder(&server.bare_url()).build_lazily();
    for error in refusals(&late.expect("builds")) {
        assert_refused(&error, "NOAUTH");
    }
    // Redis still serves connections that were opened before the password was set.
    assert_eq!(held.unlock().expect("unlocks"), Unlocked::Released);
}

/// Asserts that each way of taking a lock says that Redis is unavailable, and why.
///
/// The deadline may cut the last attempt of a wait short, and then the error does not say why. So
/// this tries again until each way has named the code once.
#[track_caller]
fn assert_all_unavailable(locks: &LockManager, code: &str) {
    let mut named = [false; 3];
    eventually(LONG, "each names the code", || {
        for (named, error) in named.iter_mut().zip(refusals(locks)) {
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            *named |= chain(&error).contains(code);
        }
        named == [true; 3]
    });
}

/// A replica, one without its master, and a master with too few replicas are not reported as busy,
/// and a waiter takes the lock, and a holder releases it, once Redis is well.
#[test]
fn row_20_a_refusal_that_passes_is_waited_for() {
    // A replica that accepts writes does not answer `READONLY` first.
    let stale = [
        "--replica-serve-stale-data",
        "no",
        "--replica-read-only",
        "no",
    ];
    for (code, options) in [
        ("READONLY", &[][..]),
        ("MASTERDOWN", &stale),
        ("NOREPLICAS", &[]),
    ] {
        let server = Server::with(options);
        let builder = LockManager::builder(&server.url()).response_timeout(LONG);
        let locks = builder.build().expect("connects");
        let held = (code != "NOREPLICAS").then(|| locks.lock("held").expect("locks"));
        if code == "NOREPLICAS" {
            server.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        } else {
            follow_a_missing_master(&server);
        }
        assert_all_unavailable(&locks, code);
        if code == "MASTERDOWN" && server_version() >= (7, 0) {
            // Servers before 7 answer to `PING` in this state, too.
            let error = LockManager::connect(&server.url()).expect_err("no master");
            assert!(chain(&error).contains(code), "{}", chain(&error));
        }
        thread::scope(|scope| {
            let waits = scope.spawn(|| locks.named("b").wait(LONG).lock().map(drop));
            scope.spawn(|| {
                thread::sleep(ANSWER);
                server.query::<()>(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
                server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
            });
            let released = held.map(LockGuard::unlock);
            waits.join().expect("no panic").expect("the refusal passes");
            let is_released = matches!(released, None | Some(Ok(Unlocked::Released)));
            assert!(is_released, "{code}: {released:?}");
        });
        assert_all_is_well(&server, &locks);
    }
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
    let guard = locks.lock("a").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    guard.set_lease(2 * MINUTE).expect("extends");
    assert!(guard.remaining() > MINUTE && server.pttl("lock:a") > 60_000);
}

#[test]
fn row_21_a_restart_between_lock_and_unlock_costs_one_round_trip() {
    let server = Server::with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let locks = connect(&server);
    let guard = locks.lock("a").expect("locks");
    server.restart();
    eventually(LONG, "loaded", || server.command(&["DBSIZE"]).is_ok());
    assert!(server.exists("lock:a"));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_eq!((server.calls("evalsha"), server.calls("eval")), (1, 1));
    assert!(!server.exists("lock:a"));
}

/// Before Redis 7, a server can be set to replicate scripts verbatim. Such a server refuses a write
/// if the script has already read something that may differ between servers. (Later servers ignore
/// the setting.)
#[test]
fn scripts_work_on_a_server_that_replicates_scripts_verbatim() {
    let server = Server::with(&["--lua-replicate-commands", "no"]);
    let locks = connect(&server);
    let guard = locks.named("a").lease(LONG).lock().expect("locks");
    guard.set_lease(2 * LONG).expect("extends");
    occupy(&server, "b", ANSWER);
    let taken = locks.named("b").try_lock_for(LONG).expect("answers");
    drop(taken.expect("the lease ends"));
    let fenced = locks.named("c").fenced(true).lock();
    drop(fenced.expect("reads the time and writes"));
    assert!(locks.named("a").force_unlock().expect("deletes").is_some());
    assert_lost(&guard.unlock(), LostCause::Deleted);
}
