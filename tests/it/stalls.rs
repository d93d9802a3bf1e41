//! Redis stalls, or lets a user do only so much: rows 22 and 23.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::iter;
use std::thread;
use std::time::Duration;

use redis::{Client, Connection};
use relatch::{Error, LockManager, Unlocked};

use crate::support::{Server, eventually, within};

/// Longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// A wait that ends without the lock, and how long an answer may take.
const WAIT: Duration = Duration::from_millis(150);

/// What the machine may add to a deadline.
const SLACK: Duration = Duration::from_millis(400);

/// All that a user needs.
pub(crate) const LEAST_RIGHTS: [&str; 9] =
    ["+set", "+get", "+del", "+pexpire", "+pttl", "+evalsha", "+eval", "+ping", "~lock:*"];

/// What a user needs so that waits and losses are told of.
pub(crate) const RIGHTS_TO_HEAR: [&str; 4] =
    ["+client|id", "+client|tracking", "+subscribe", "&__redis__:invalidate"];

/// A manager whose answers may take [`WAIT`].
fn hasty(server: &Server) -> LockManager {
    LockManager::builder(&server.url()).response_timeout(WAIT).build().expect("connects")
}

fn raw(server: &Server) -> Connection {
    Client::open(server.url()).and_then(|client| client.get_connection()).expect("connects")
}

fn chain(error: &Error) -> String {
    let first: &dyn StdError = error;
    let all = iter::successors(Some(first), |&error| error.source());
    all.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// What a stalled server makes of each operation: an end by its deadline, and a right state afterwards.
///
/// `stall` begins a stall, and `end` ends it or waits for its end.
fn survives(server: &Server, stall: impl FnOnce(), end: impl FnOnce()) {
    let locks = hasty(server);
    let short = locks.get("released").lease(Duration::from_secs(3)).renew(false);
    let held = short.lock().expect("locks");
    stall();
    let error = within(WAIT + SLACK, "lock", || locks.get("a").wait(WAIT).lock()).expect_err("stalled");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = within(2 * WAIT + SLACK, "try_lock", || locks.try_lock("b")).expect_err("stalled");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let error = within(WAIT + SLACK, "unlock", || held.unlock()).expect_err("stalled");
    assert!(matches!(error, Error::Unconfirmed { .. }), "{error:?}");
    end();
    for key in ["a", "b", "released"] {
        eventually(LONG, "nothing stays behind", || !server.exists(&format!("lock:{key}")));
        let guard = locks.get(key).wait(LONG).lock().expect("locks");
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
}

#[test]
fn row_22_client_pause_is_bounded() {
    let server = Server::start();
    let stall = || server.query::<()>(&["CLIENT", "PAUSE", "2500", "ALL"]);
    survives(&server, stall, || ());
}

#[test]
fn row_22_a_pause_of_writes_is_bounded_and_can_end_early() {
    let server = Server::start();
    let stall = || server.query::<()>(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    survives(&server, stall, || server.query(&["CLIENT", "UNPAUSE"]));
}

#[test]
fn row_22_a_sleeping_server_is_bounded() {
    let server = Server::start();
    let (mut bed, mut asking) = (raw(&server), raw(&server));
    let sleep = redis::cmd("DEBUG").arg("SLEEP").arg("2.5").get_packed_command();
    asking.set_read_timeout(Some(Duration::from_millis(40))).expect("a timeout");
    let stall = || {
        bed.send_packed_command(&sleep).expect("sent");
        eventually(LONG, "silence", || redis::cmd("PING").query::<()>(&mut asking).is_err());
    };
    // What is done to see how it ended waits for the server to wake.
    survives(&server, stall, || ());
}

#[test]
fn row_22_an_endless_script_is_bounded() {
    let server = Server::with(&["--lua-time-limit", "20"]);
    thread::scope(|scope| {
        let stall = || {
            let mut hog = raw(&server);
            let endless = "while true do end";
            scope.spawn(move || {
                redis::cmd("EVAL").arg(endless).arg(0).query::<()>(&mut hog).expect_err("killed")
            });
            let is_busy = || server.command(&["PING"]).is_err_and(|error| error.code() == Some("BUSY"));
            eventually(LONG, "the script runs", is_busy);
            let error = LockManager::connect(&server.url()).expect_err("busy");
            assert!(chain(&error).contains("BUSY"), "{}", chain(&error));
        };
        survives(&server, stall, || {
            server.query::<()>(&["SCRIPT", "KILL"]);
            eventually(LONG, "it is killed", || server.command(&["PING"]).is_ok());
        });
    });
}

#[test]
fn row_22_a_short_pause_is_waited_for() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    server.query::<()>(&["CLIENT", "PAUSE", "300", "ALL"]);
    let guard = locks.lock("a").expect("locks");
    server.query::<()>(&["CLIENT", "PAUSE", "300", "ALL"]);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert!(!server.exists("lock:a"));
}

/// A server with a user who has these rights, and that user's address.
pub(crate) fn server_for(rights: &[&str]) -> (Server, String) {
    let server = Server::start();
    allow(&server, rights);
    let url = format!("redis://worker:canary@127.0.0.1:{}/", server.port());
    (server, url)
}

pub(crate) fn allow(server: &Server, rights: &[&str]) {
    let user = ["ACL", "SETUSER", "worker", "reset", "on", ">canary", "-@all"];
    server.query::<()>(&[&user, rights].concat());
}

/// Does everything that can be done with a lock, as a user with these rights; returns what Redis refused meanwhile.
fn refused_to_a_user_with(rights: &[&str]) -> Vec<String> {
    let (server, url) = server_for(rights);
    let locks = LockManager::connect(&url).expect("connects");
    let outer = locks.lock("a").expect("locks");
    let inner = locks.lock("a").expect("locks again");
    outer.extend(Duration::from_secs(30)).expect("extends");
    thread::scope(|scope| {
        let others = LockManager::connect(&url).expect("connects");
        scope.spawn(move || {
            assert!(others.try_lock("a").expect("answers").is_none());
            assert!(others.try_lock_for("a", WAIT).expect("answers").is_none());
            assert!(others.get("a").wait(WAIT).lock().expect_err("busy").is_timeout());
            assert!(others.holder("a").expect("answers").is_some());
            others.with_lock("b", || ()).expect("runs");
        });
    });
    drop(inner);
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    assert_eq!(outer.unlock().expect("unlocks"), Unlocked::Released);
    let taken_away = locks.lock("a").expect("locks");
    assert!(locks.force_unlock("a").expect("answers").is_some());
    assert!(taken_away.unlock().expect_err("lost").is_lost());
    drop(locks);
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
    let log: Vec<HashMap<String, redis::Value>> = server.query(&["ACL", "LOG"]);
    let object = |entry: HashMap<_, redis::Value>| redis::from_redis_value(entry["object"].clone());
    log.into_iter().map(|entry| object(entry).expect("a string")).collect()
}

#[test]
fn row_23_the_least_rights_are_enough_for_everything() {
    assert_eq!(refused_to_a_user_with(&[&LEAST_RIGHTS[..], &RIGHTS_TO_HEAR].concat()), [""; 0]);
}

#[test]
fn row_23_without_the_rights_to_hear_everything_works_all_the_same() {
    let refused = refused_to_a_user_with(&LEAST_RIGHTS);
    assert!(!refused.is_empty() && refused.iter().all(|it| it == "client|id"), "{refused:?}");
}

/// What everything that can be done with a lock says to a user who lacks one right.
fn complaints_without(right: &str) -> Vec<Error> {
    let (server, url) = server_for(&LEAST_RIGHTS);
    let locks = LockManager::connect(&url).expect("connects");
    let others = LockManager::connect(&server.url()).expect("connects");
    thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(others.get("taken").lock().expect("locks")));
    });
    let [warm, cold] = ["warm", "cold"].map(|key| locks.lock(key).expect("locks"));
    drop(locks.lock("script").expect("locks"));
    allow(&server, &LEAST_RIGHTS.into_iter().filter(|it| *it != right).collect::<Vec<_>>());

    let mut complaints = Vec::new();
    complaints.extend(LockManager::connect(&url).err());
    complaints.extend(within(SLACK, "lock", || locks.get("taken").wait(WAIT).lock()).err());
    complaints.extend(within(SLACK, "lock", || locks.get("free").wait(WAIT).lock()).err());
    complaints.extend(locks.try_lock("tried").err());
    complaints.extend(locks.holder("taken").err());
    complaints.extend(warm.unlock().err());
    server.query::<()>(&["SCRIPT", "FLUSH"]);
    complaints.extend(cold.unlock().err());
    complaints.extend(locks.force_unlock("taken").err());
    complaints.retain(|error| !error.is_timeout());
    complaints
}

#[track_caller]
fn assert_names(right: &str) {
    let complaints = complaints_without(right);
    assert!(!complaints.is_empty(), "nobody missed {right}");
    let name = right.trim_start_matches('+');
    for error in complaints {
        assert!(matches!(error, Error::Refused { .. } | Error::Unconfirmed { .. }), "{error:?}");
        let text = chain(&error);
        let mut words = text.split(|c: char| !c.is_ascii_lowercase());
        assert!(words.any(|word| word == name), "does not name {right}: {text}");
    }
}

#[test]
fn row_23_no_ping_is_named() {
    assert_names("+ping");
}

#[test]
fn row_23_no_set_is_named() {
    assert_names("+set");
}

#[test]
fn row_23_no_get_is_named() {
    assert_names("+get");
}

#[test]
fn row_23_no_del_is_named() {
    assert_names("+del");
}

#[test]
fn row_23_no_pttl_is_named() {
    assert_names("+pttl");
}

#[test]
fn row_23_no_evalsha_is_named() {
    assert_names("+evalsha");
}

#[test]
fn row_23_no_eval_is_named() {
    assert_names("+eval");
}

#[test]
fn row_23_no_right_to_the_key_is_named() {
    let (_server, url) = server_for(&LEAST_RIGHTS);
    let locks = LockManager::builder(&url).prefix("elsewhere:").build().expect("connects");
    let error = locks.lock("a").expect_err("no right");
    assert!(matches!(&error, Error::Refused { code, .. } if code == "NOPERM"), "{error:?}");
    assert!(error.to_string().contains("keys"), "{error}");
}
