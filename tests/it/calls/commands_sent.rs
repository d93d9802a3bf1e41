//! Which commands lock, unlock and reentry send.

use std::time::Duration;

use relatch::{Owner, Unlocked};
use relatch_rig::Server;

use crate::support::{Rig, connect};

#[test]
fn smoke() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks.lock("a").expect("locks");
    let token = server.get("lock:a").expect("a key");
    assert_eq!(token, guard.token());
    assert_eq!(Owner::parse(&token), Some(Owner::current()));
    let host = hostname::get().expect("a name");
    assert_eq!(*Owner::current().host, host.to_string_lossy());
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
    let sent = server.total_calls(&["set", "get", "evalsha", "eval", "pttl"]);
    assert_eq!(sent, 0);
    drop(outer);
    assert_eq!(server.calls("evalsha"), 1);
}

#[test]
fn each_lock_costs_two_commands() {
    let rig = Rig::new();
    let all = rig.locks.several(["a", "b", "c"]);
    drop(all.lock().expect("locks"));
    let sent = rig.proxy.log().len();
    all.lock().expect("locks").unlock().expect("unlocks");
    let six = ["SET", "SET", "SET", "EVALSHA", "EVALSHA", "EVALSHA"];
    assert_eq!(rig.proxy.log().split_off(sent), six);
}

#[test]
fn a_single_try_and_a_wait_of_zero_send_one_set_and_look_once() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    let _held =
        std::thread::spawn(move || std::mem::forget(theirs.lock("a").expect("locks"))).join();
    ours.named("b").holder().expect("answers"); // Makes Redis load the script.
    let zero = || ours.named("a").try_lock_for(Duration::ZERO);
    let tries: [&dyn Fn() -> _; 2] = [&|| ours.try_lock("a"), &zero];
    for single in tries {
        server.reset_stats();
        assert!(single().expect("answers").is_none());
        for once in ["set", "evalsha", "get", "pttl"] {
            assert_eq!(server.calls(once), 1, "{once}");
        }
        assert_eq!(server.calls("eval"), 0);
    }
}
