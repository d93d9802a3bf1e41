//! Errors inside a script, as servers before Redis 7 report them: the code is in the middle of the
//! message.

use std::thread;
use std::time::Duration;

use relatch::{Error, LockManager, LostCause, Unlocked};
use relatch_rig::{Fault, LONG, Server, eventually};

use crate::support::{ANSWER, MINUTE, Rig, assert_lost, occupy};

/// The answer to a script in which a command failed with this error.
fn failed(error_text: &str) -> Fault {
    let error = "-ERR Error running script (call to f_7b891bcf6f40bba3b5d8eb0f7b2f4aaa21fb0ec8): @user_script:4:";
    Fault::Answer(format!("{error} {error_text}\r\n").into_bytes())
}

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";

const READ_ONLY: &str = "@user_script: 4: -READONLY You can't write against a read only replica.";

/// The beginning of a waiter's attempts, from the second on, for a proxy's rule.
const LOOK: &str = "SET lock:a * PX";

const NO_MEMORY: &str = "@user_script: 4: -OOM command not allowed when used memory > 'maxmemory'.";

#[test]
fn a_waiter_whose_attempt_is_refused_returns_the_servers_reason() {
    let rig = Rig::new();
    occupy(&rig.server, "a", MINUTE);
    rig.proxy.on(LOOK, failed(WRONG_TYPE));
    let error = rig.locks.lock("a").expect_err("a list is no lock");
    assert!(matches!(error, Error::NotALock { .. }), "{error:?}");
    rig.proxy.on(LOOK, failed(NO_MEMORY));
    let error = rig.locks.lock("a").expect_err("nothing can be set");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "OOM"),
        "{error:?}"
    );
}

#[test]
fn row_20_an_attempt_that_a_replica_refuses_is_retried() {
    let rig = Rig::new();
    occupy(&rig.server, "a", ANSWER);
    let connections = rig.proxy.connections_accepted();
    rig.proxy.on(LOOK, failed(READ_ONLY));
    drop(
        rig.locks
            .named("a")
            .try_lock_for(LONG)
            .expect("another connection leads to the primary")
            .expect("free"),
    );
    assert_eq!(rig.proxy.fired(), 1);
    assert!(rig.proxy.connections_accepted() > connections);
}

#[test]
fn a_lock_whose_key_holds_a_list_is_lost() {
    let rig = Rig::with(|builder| builder.renew(false));
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.on("EVALSHA", failed(WRONG_TYPE));
    assert_lost(&guard.unlock(), LostCause::Taken);
}

#[test]
fn a_renewal_finds_the_loss_of_a_lock_whose_key_holds_a_list() {
    let rig = Rig::new();
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.always("EVALSHA", failed(WRONG_TYPE));
    assert_lost(&guard.set_lease(Duration::from_secs(60)), LostCause::Taken);
    assert!(!guard.is_valid());
}

#[test]
fn row_20_a_release_that_a_replica_refuses_is_retried() {
    let rig = Rig::with(|builder| builder.renew(false));
    let guard = rig.locks.lock("a").expect("locks");
    let connections = rig.proxy.connections_accepted();
    rig.proxy.on("EVALSHA", failed(READ_ONLY));
    assert_eq!(
        guard
            .unlock()
            .expect("another connection leads to the primary"),
        Unlocked::Released
    );
    assert!(rig.proxy.connections_accepted() > connections);
    assert_eq!(rig.value_of("a"), None);
}

#[test]
fn row_20_renewals_that_a_replica_refuses_are_retried() {
    let rig = Rig::with(|builder| builder.lease(LONG).renew_every(Duration::from_millis(100)));
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "the keeper has a connection", || {
        rig.locks.stats().renewed > 0
    });
    let connections = rig.proxy.connections_accepted();
    rig.proxy.on("EVALSHA", failed(READ_ONLY));
    rig.proxy.wait_fired(1, LONG);
    let before = rig.locks.stats().renewed;
    eventually(LONG, "the hold is renewed", || {
        rig.locks.stats().renewed > before
    });
    assert!(rig.proxy.connections_accepted() > connections);
    assert!(guard.is_valid());
    rig.proxy.always(
        "EVALSHA",
        failed("-OOM command not allowed when used memory > 'maxmemory'."),
    );
    let refused = guard.set_lease(LONG).expect_err("refused");
    assert!(
        matches!(&refused, Error::Refused { code, .. } if code == "OOM"),
        "{refused:?}"
    );
}

/// Before Redis 7, a server can be set to replicate scripts verbatim. Such a server refuses a write
/// if the script has already read something that may differ between servers. (Later servers ignore
/// the setting.)
#[test]
fn scripts_work_on_a_server_that_replicates_scripts_verbatim() {
    let server = Server::with(&["--lua-replicate-commands", "no"]);
    let locks = LockManager::connect(&server.url()).expect("connects");
    let guard = locks.named("a").lease(LONG).lock().expect("locks");
    guard.set_lease(2 * LONG).expect("extends");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.named("b").wait(ANSWER).lock().map(drop));
        waiter.join().expect("no panic").expect("free");
        occupy(&server, "b", ANSWER);
        drop(
            locks
                .named("b")
                .try_lock_for(LONG)
                .expect("answers")
                .expect("the lease ends"),
        );
    });
    assert!(server.pttl("lock:a") > i64::try_from(LONG.as_millis()).expect("small"));
    drop(
        locks
            .named("c")
            .fenced(true)
            .lock()
            .expect("reads the time and writes"),
    );
    assert!(locks.named("a").force_unlock().expect("deletes").is_some());
    assert!(!server.exists("lock:a"));
    assert_lost(&guard.unlock(), LostCause::Deleted);
}
