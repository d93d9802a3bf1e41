//! `reclaim_dead`: a lock is taken over from a process that is certainly dead, and from no other.

use std::io::{self, Write};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use relatch::{LockManager, Owner, Unlocked};
use relatch_rig::{Fault, LONG, Proxy, Server, Worker, eventually, within};

use crate::support::{LATE, returns_by};

/// How long a waiter tries in vain.
const WAIT: Duration = Duration::from_millis(300);

/// How soon the lock of a dead process has to be taken over.
const SOON: Duration = Duration::from_millis(200);

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

/// The token of a process that held the lock and was killed; its key is still there.
fn dead_token(server: &Server) -> String {
    let mut child = worker(&["env"], server);
    let token = child.ask("lock");
    child.kill();
    assert_eq!(server.get("lock:a").as_deref(), Some(&*token));
    token
}

fn put(server: &Server, key: &str, token: &str) {
    server.query::<()>(&["SET", &format!("lock:{key}"), token, "PX", "30000"]);
}

/// Checks that a waiter with `reclaim_dead` does not take the lock over.
#[track_caller]
fn assert_kept(server: &Server, key: &str, token: &str) {
    let ours = locks(server, true);
    assert!(
        ours.try_lock(key).expect("asks").is_none(),
        "{token:?} was taken over"
    );
    assert!(
        ours.named(key).try_lock_for(WAIT).expect("asks").is_none(),
        "{token:?} was taken over"
    );
    assert_eq!(server.get(&format!("lock:{key}")).as_deref(), Some(token));
    assert_eq!(ours.stats().reclaimed, 0);
}

#[test]
fn the_lock_of_a_killed_process_is_taken_over_soon() {
    let server = Server::start();
    returns_by(SOON.saturating_sub(LATE), "taking it over", || {
        let ours = locks(&server, true);
        let mut child = worker(&["env"], &server);
        let token = child.ask("lock");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let guard = ours.lock("a").expect("locks");
                (
                    Instant::now(),
                    guard.token() != token,
                    guard.unlock().expect("unlocks"),
                )
            });
            eventually(LONG, "another waits", || ours.stats().waited == 1);
            let start = Instant::now();
            child.kill();
            let (taken, is_new, unlocked) = waiter.join().expect("no panic");
            assert_eq!(
                (is_new, unlocked, ours.stats().reclaimed),
                (true, Unlocked::Released, 1)
            );
            taken - start
        })
    });
}

#[test]
fn try_lock_takes_the_lock_of_a_killed_process() {
    let server = Server::start();
    dead_token(&server);
    let ours = locks(&server, true);
    let guard = (0..2)
        .find_map(|_| ours.try_lock("a").expect("asks"))
        .expect("free by now");
    assert!(guard.is_valid());
    assert_eq!(ours.stats().reclaimed, 1);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn reclaim_dead_does_not_look_more_often() {
    let server = Server::start();
    put(&server, "a", "somebody");
    let ours = locks(&server, true);
    assert!(
        ours.named("a")
            .try_lock_for(4 * WAIT)
            .expect("asks")
            .is_none()
    );
    assert!(
        server.calls("pttl") < 10,
        "asked {} times in {:?}",
        server.calls("pttl"),
        4 * WAIT
    );
}

#[test]
fn a_restarted_worker_takes_its_lock_again() {
    let server = Server::start();
    returns_by(SOON.saturating_sub(LATE), "taking it again", || {
        dead_token(&server);
        let mut restarted = worker(&["env"], &server);
        let start = Instant::now();
        restarted.ask("lock");
        let took = start.elapsed();
        assert_eq!(restarted.ask("unlock"), "Ok(Released)");
        took
    });
}

#[test]
fn nothing_is_taken_over_without_the_option() {
    let server = Server::start();
    let token = dead_token(&server);
    let ours = locks(&server, false);
    assert!(ours.try_lock("a").expect("asks").is_none());
    assert!(ours.named("a").try_lock_for(WAIT).expect("asks").is_none());
    assert!(
        ours.named("a")
            .wait(WAIT)
            .lock()
            .expect_err("busy")
            .is_timeout()
    );
    assert_eq!(server.get("lock:a"), Some(token));
    // The option of the lock has the same effect as the manager's.
    assert!(
        ours.named("a")
            .reclaim_dead(true)
            .try_lock_for(WAIT)
            .expect("asks")
            .is_some()
    );
}

#[test]
fn nothing_is_taken_over_from_a_living_process() {
    let server = Server::start();
    let mut child = worker(&["env"], &server);
    let token = child.ask("lock");
    assert_kept(&server, "a", &token);
    child.stop();
    assert_kept(&server, "a", &token);
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
            b"\nWARNING: no pid namespace can be made here: reclaim_dead was tried on forged tokens only\n";
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
    assert_kept(&server, "a", &token);
    child.kill();
    eventually(LONG, "all of the namespace is gone", || {
        server.connections() == 0
    });
    assert_kept(&server, "a", &token);
}

#[test]
fn a_lock_with_a_doubtful_token_is_not_taken_over() {
    let server = Server::start();
    let token = dead_token(&server);
    let owner = Owner::parse(&token).expect("a token");
    let (host, pid, thread) = (owner.host, owner.pid, owner.thread);
    let nonce = token.rsplit('-').next().expect("a nonce");
    let (digits, rest) = nonce.split_at(8);
    let other = if digits.ends_with('0') { '1' } else { '0' };
    let foreign = if digits == "00112233" {
        "33221100"
    } else {
        "00112233"
    };
    let forged = [
        format!("{host}-{pid}-{thread}-{foreign}{rest}"),
        format!("{host}-{pid}-{thread}-{}{other}{rest}", &digits[..7]),
        format!("other-{host}-{pid}-{thread}-{nonce}"),
        format!("{host}x-{pid}-{thread}-{nonce}"),
        format!("{host}-{pid}-{thread}-{digits}"),
        format!("{host}-{pid}-{thread}-{}", &nonce[..31]),
        format!("{host}-{pid}-{thread}-{nonce}0"),
        format!("{host}-{pid}-{nonce}"),
        format!("{host}-0-{thread}-{nonce}"),
        format!("{host}-{}-{thread}-{nonce}", u32::MAX),
        format!("{host}-1-{thread}-{nonce}"),
        format!("{host}-{}-{thread}-{nonce}", std::process::id()),
        nonce.to_owned(),
    ];
    thread::scope(|scope| {
        for (key, token) in ('b'..).zip(&forged) {
            let server = &server;
            scope.spawn(move || {
                let key = key.to_string();
                put(server, &key, token);
                assert_kept(server, &key, token);
            });
        }
    });
    // A token of the dead process with another random part is taken over.
    put(
        &server,
        "a",
        &format!("{host}-{pid}-{thread}-{digits}{}", "0".repeat(24)),
    );
    assert!(
        locks(&server, true)
            .named("a")
            .try_lock_for(WAIT)
            .expect("asks")
            .is_some()
    );
}

#[test]
fn a_dead_token_that_cannot_be_deleted_is_waited_for() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let ours = LockManager::builder(&proxy.url())
        .reclaim_dead(true)
        .build()
        .expect("connects");
    let token = dead_token(&server);
    // The answer says that the key was deleted, but the key is still there.
    let deletion = redis::Script::new(include_str!("../../../src/client/commands/lua/release.lua"));
    proxy.always(
        &format!("EVALSHA {}", deletion.get_hash()),
        Fault::Answer(b":1\r\n".to_vec()),
    );
    assert!(
        within(WAIT, "try_lock", || ours.try_lock("a"))
            .expect("asks")
            .is_none()
    );
    assert!(
        within(2 * WAIT, "try_lock_for", || ours
            .named("a")
            .try_lock_for(WAIT))
        .expect("asks")
        .is_none()
    );
    assert_eq!(server.get("lock:a").as_deref(), Some(&*token));
    let tries = ours.stats().reclaimed;
    assert!((2..20).contains(&tries), "{tries} in {WAIT:?}");
}

#[test]
fn only_the_dead_token_is_deleted() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let builder = LockManager::builder(&proxy.url()).reclaim_dead(true);
    let ours = builder.build().expect("connects");
    drop(ours.lock("warm-up").expect("locks")); // Redis knows the script now.
    dead_token(&server);
    let deletions = proxy.commands("EVALSHA");
    proxy.on("EVALSHA", Fault::DelayCommand(WAIT));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            ours.named("a")
                .try_lock_for(3 * WAIT)
                .map(|guard| guard.is_some())
        });
        eventually(LONG, "the token is about to be deleted", || {
            proxy.commands("EVALSHA") > deletions
        });
        put(&server, "a", "somebody");
        assert!(!waiter.join().expect("no panic").expect("asks"));
    });
    assert_eq!(server.get("lock:a").as_deref(), Some("somebody"));
    assert_eq!(ours.stats().reclaimed, 0);
    server.query::<()>(&["DEL", "lock:a"]);
    drop(within(WAIT, "the lock is free", || ours.lock("a")).expect("locks"));
}
