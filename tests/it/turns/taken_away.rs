//! Locks that are taken away: with `force_unlock`, or with `reclaim_dead` from a process that is
//! certainly dead, and from no other.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockManager, Owner, Unlocked};
use relatch_rig::{Fault, LONG, Server, Worker, eventually};

use crate::support::{MINUTE, Rig, occupy};

/// How long a waiter tries in vain.
const WAIT: Duration = Duration::from_secs(1);

/// A script for a pid namespace of its own: starts processes until one has an id that no process
/// outside has. (`/proc` shows the processes outside.)
const ELSEWHERE: &str =
    r#"while sh -c '[ -e /proc/$$ ] && exit 99; exec "$@"' sh "$@"; [ $? = 99 ]; do :; done"#;

fn worker(launcher: &[&str], server: &Server) -> Worker {
    let args = [
        ("url", &*server.url()),
        ("lease", "30000"),
        ("reclaim", "yes"),
    ];
    let child = Worker::spawn_under(launcher, "worker", &args);
    child.expect_line("ready", LONG);
    child
}

fn locks(server: &Server, reclaim: bool) -> LockManager {
    LockManager::builder(&server.url())
        .reclaim_dead(reclaim)
        .build()
        .expect("connects")
}

/// Checks that a waiter with `reclaim_dead` does not take the lock over.
#[track_caller]
fn assert_kept(server: &Server, token: &str) {
    let ours = locks(server, true);
    assert!(
        ours.try_lock("a").expect("asks").is_none(),
        "{token:?} was taken over"
    );
    assert!(
        ours.named("a").try_lock_for(WAIT).expect("asks").is_none(),
        "{token:?} was taken over"
    );
    assert_eq!(server.get("lock:a").as_deref(), Some(token));
    assert_eq!(ours.stats().reclaimed, 0);
}

/// The option may be the manager's or the lock's.
#[test]
fn the_lock_of_a_killed_process_is_taken_over_soon() {
    let server = Server::start();
    let ours = locks(&server, false);
    let mut child = worker(&["env"], &server);
    let token = child.ask("lock");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = ours.named("a").reclaim_dead(true).lock().expect("locks");
            assert_ne!(guard.token(), token);
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            Instant::now()
        });
        eventually(LONG, "another waits", || ours.stats().waited == 1);
        let killed = Instant::now();
        child.kill();
        let took = waiter.join().expect("no panic") - killed;
        assert!(took < LONG / 4, "{took:?}, with a lease of 30 s");
    });
    assert_eq!(ours.stats().reclaimed, 1);

    let mut child = worker(&["env"], &server);
    let token = child.ask("lock");
    child.kill();
    assert!(ours.try_lock("a").expect("asks").is_none());
    assert!(ours.named("a").try_lock_for(WAIT).expect("asks").is_none());
    assert_eq!(server.get("lock:a"), Some(token), "without the option");
    let ours = locks(&server, true);
    let taken = (0..2).find_map(|_| ours.try_lock("a").expect("asks"));
    assert!(taken.is_some());
}

#[test]
fn nothing_is_taken_over_from_a_living_process() {
    let server = Server::start();
    let mut child = worker(&["env"], &server);
    let token = child.ask("lock");
    assert_kept(&server, &token);
    child.stop();
    assert_kept(&server, &token);
    child.cont();
    assert_eq!(child.ask("unlock"), "Ok(Released)");
}

#[test]
fn nothing_is_taken_over_from_another_pid_namespace() {
    let namespace = ["unshare", "--pid", "--fork", "--kill-child"];
    let allowed = Command::new(namespace[0])
        .args(&namespace[1..])
        .arg("true")
        .output();
    if !allowed.is_ok_and(|it| it.status.success()) {
        // The test passes, so the harness would hide the output of `eprintln`.
        let warning =
            b"\nWARNING: no pid namespace can be made here: reclaim_dead was tried without one\n";
        io::stderr()
            .write_all(warning)
            .expect("stderr can be written to");
        return;
    }
    let server = Server::start();
    let launcher = [&namespace[..], &["sh", "-c", ELSEWHERE, "sh"]].concat();
    let mut child = worker(&launcher, &server);
    let token = child.ask("lock");
    let owner = Owner::parse(&token).expect("a token");
    assert!(
        !Path::new(&format!("/proc/{}", owner.pid)).exists(),
        "no such process here: {owner}"
    );
    assert_kept(&server, &token);
    child.kill();
    eventually(LONG, "all of the namespace is gone", || {
        server.connections() == 0
    });
    assert_kept(&server, &token);
}

/// `raw` may not show all of the value, so the comparison would always say that it has changed.
/// Some programs take random bytes for a token: those are in `bytes`.
#[test]
fn force_unlock_if_refuses_a_value_that_is_not_known_in_full() {
    let rig = Rig::new();
    let lock = rig.locks.named("a");
    let set = |value: &str| {
        let script = format!("return redis.call('SET', 'lock:a', {value})");
        rig.server.query::<()>(&["EVAL", &script, "0"]);
        lock.holder().expect("answers").expect("it is held")
    };
    let bytes = "'not \\255 UTF-8\\0'";
    for value in ["string.rep('x', 256)", bytes] {
        let error = lock.force_unlock_if(set(value).raw).expect_err(value);
        let option = "force_unlock_if";
        assert!(
            matches!(&error, Error::InvalidOption { option: it, .. } if *it == option),
            "{error:?}"
        );
    }
    for value in ["string.rep('x', 255)", "'\u{e9}\\r\\n'", "''"] {
        let is_deleted = lock.force_unlock_if(set(value).raw).expect("answers");
        assert!(is_deleted, "{value}");
        assert_eq!(rig.value_of("a"), None);
    }
    let found = set(bytes).bytes.expect("not UTF-8");
    assert_eq!(*found, *b"not \xff UTF-8\0");
    let is_deleted = |bytes: &[u8]| lock.force_unlock_if(bytes).expect("answers");
    assert!(!is_deleted(b"not \xfe UTF-8\0") && is_deleted(&found));
    assert_eq!(rig.value_of("a"), None);
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
