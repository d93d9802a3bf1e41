//! Which commands lock, unlock and reentry send.

use std::time::{Duration, Instant};

use relatch::{Owner, Unlocked};
use relatch_rig::Server;

use crate::support::connect;

#[test]
fn smoke() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks.lock("a").expect("locks");
    let token = server.get("lock:a").expect("a key");
    assert_eq!(token, guard.token());
    assert_eq!(
        Owner::parse(&token).as_ref(),
        Some(&relatch::Owner::current())
    );
    assert!((29_000..=30_000).contains(&server.pttl("lock:a")));
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert!(!server.exists("lock:a"));
}

#[test]
fn lock_and_unlock_are_two_commands_and_reentry_is_none() {
    let server = Server::start();
    let locks = connect(&server);
    drop(locks.lock("warm-up").expect("locks")); // Redis knows the script now.
    server.reset_stats();
    for _ in 0..10 {
        drop(locks.lock("a").expect("locks"));
    }
    assert_eq!((server.calls("set"), server.calls("evalsha")), (10, 10));
    assert_eq!(
        server.total_calls(&["eval", "ping", "pttl", "script|load", "client|setinfo"]),
        0
    );
    assert_eq!(server.calls("get"), 10, "only from within the script");

    let outer = locks.lock("a").expect("locks");
    server.reset_stats();
    let inner: Vec<_> = (0..100).map(|_| locks.lock("a").expect("locks")).collect();
    assert_eq!(outer.depth(), 101);
    drop(inner);
    assert_eq!(
        server.total_calls(&["set", "get", "evalsha", "eval", "pttl"]),
        0
    );
    drop(outer);
    assert_eq!(server.calls("evalsha"), 1);
}

#[test]
fn try_lock_on_a_busy_lock_sends_one_set_and_looks_once() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    let _held =
        std::thread::spawn(move || std::mem::forget(theirs.lock("a").expect("locks"))).join();
    ours.named("b").holder().expect("answers"); // Makes Redis load the script.
    server.reset_stats();
    assert!(ours.try_lock("a").expect("answers").is_none());
    for once in ["set", "evalsha", "get", "pttl"] {
        assert_eq!(server.calls(once), 1, "{once}");
    }
    assert_eq!(server.calls("eval"), 0);
}

#[test]
fn an_uncontended_lock_is_taken_without_a_pause() {
    let server = Server::start();
    let locks = connect(&server);
    let times = (0..200).map(|_| {
        let start = Instant::now();
        let guard = locks.lock("a").expect("locks");
        let took = start.elapsed();
        drop(guard);
        took
    });
    let best = times.min().expect("many");
    assert!(
        best < Duration::from_micros(400),
        "{best:?}: as if the process paused for others each time"
    );
}
