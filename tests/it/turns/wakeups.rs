//! Redis's invalidations wake waiters and tell of losses, however a hold ends. Nothing is sent in
//! between, over connections of one listener.

use std::thread;
use std::time::{Duration, Instant};

use relatch::LostCause;
use relatch_rig::{LONG, Server, eventually, is_alone, throughout, time, unique_key};

use crate::support::{
    INJURIES, LISTENING, MINUTE, SOON, assert_lost, connect, delete, occupy, take, tracked_hold,
    until_tracked,
};

type End = (&'static str, fn(&Server, &str), LostCause);

/// Further ways in which a hold can end without a release.
const ENDS: [End; 3] = [
    (
        "unlinked",
        |server, key| server.query(&["UNLINK", key]),
        LostCause::Deleted,
    ),
    (
        "renamed",
        // In the same slot of a cluster.
        |server, key| server.query(&["RENAME", key, &format!("elsewhere{{{key}}}")]),
        LostCause::Deleted,
    ),
    (
        "flushed in the background",
        |server, _| server.query(&["FLUSHDB", "ASYNC"]),
        LostCause::Deleted,
    ),
];

#[test]
fn row_06_a_loss_after_the_first_renewal_is_reported_at_once() {
    let server = Server::start();
    let locks = connect(&server);
    for (what, injure, cause) in INJURIES.iter().chain(&ENDS) {
        let name = unique_key("a");
        let guard = tracked_hold(&server, &locks, &name);
        injure(&server, &format!("lock:{name}"));
        let (took, lost) = time(|| guard.watch().wait_lost(LONG));
        assert_eq!(lost, Some(*cause), "{what}");
        assert!(
            took < 5 * SOON,
            "{what}: {took:?}: was the invalidation lost?"
        );
        assert_lost(&guard.unlock(), *cause);
        server.query::<()>(&["FLUSHALL"]);
    }
}

/// Lets `end` end the hold for which a thread waits, and checks that this wakes it. Returns how
/// often it has asked for the lock since then.
#[track_caller]
fn wakes(server: &Server, locks: &relatch::LockManager, name: &str, end: impl FnOnce()) -> u64 {
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(locks, name));
        until_tracked(server, 1);
        let (sets, ended) = (server.calls("set"), Instant::now());
        end();
        let took = waiter.join().expect("no panic") - ended;
        assert!(took < 5 * SOON, "{took:?}: was a wake-up lost?");
        server.calls("set") - sets
    })
}

/// A waiter would learn of a list that it is no lock, and from a full Redis that it is full.
#[test]
fn a_waiter_is_woken_however_the_hold_ends() {
    let server = Server::start();
    let [locks, others] = [(); 2].map(|()| connect(&server));
    for (what, end, _) in INJURIES.iter().chain(&ENDS) {
        if ["a list", "evicted"].contains(what) {
            continue;
        }
        let name = unique_key("a");
        occupy(&server, &name, MINUTE);
        wakes(&server, &locks, &name, || {
            end(&server, &format!("lock:{name}"));
            if *what == "replaced" {
                until_tracked(&server, 1);
                delete(&server, &name);
            }
        });
    }
    for _ in 0..5 {
        let name = unique_key("a");
        let guard = others.lock(&name).expect("locks");
        let asked = wakes(&server, &locks, &name, || {
            guard.unlock().expect("unlocks");
        });
        assert!(asked <= 2, "the waiter asked {asked} times");
    }
}

/// How many listener threads this process has.
#[cfg(target_os = "linux")]
fn listening() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| name.trim_end() == "relatch-listen")
        .count()
}

#[test]
#[cfg(target_os = "linux")]
fn no_listener_starts_while_nothing_waits_for_another_process() {
    let name = "no_listener_starts_while_nothing_waits_for_another_process";
    if !is_alone(module_path!(), name) {
        return;
    }
    let server = Server::start();
    let locks = connect(&server);
    let is_busy = |key: &str, wait| {
        let tried = locks.named(key).try_lock_for(wait).expect("answers");
        assert!(tried.is_none(), "it is busy");
    };
    // Three holds, each longer than the hand-off budget of 5 ms.
    for _ in 0..3 {
        let body = || throughout(Duration::from_millis(6), || ());
        locks.with_lock("a", body).expect("runs");
    }
    occupy(&server, "busy", MINUTE);
    is_busy("busy", Duration::ZERO);
    // (A renewal would need the listener.)
    let guard = locks.named("a").renew(false).lock().expect("locks");
    // A thread waits behind a thread of its own process.
    thread::scope(|scope| scope.spawn(|| is_busy("a", SOON)).join()).expect("no panic");
    drop(guard);
    assert_eq!((listening(), server.total_calls(&LISTENING)), (0, 0));
    is_busy("busy", SOON);
    eventually(LONG, "the listener is connected", || {
        (server.listeners().len(), listening()) == (1, 1)
    });
    drop(locks);
    // The system may still list a thread that was just joined.
    eventually(LONG, "it has ended", || listening() == 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_hundred_waiters_share_a_listener_and_send_nothing() {
    let name = "a_hundred_waiters_share_a_listener_and_send_nothing";
    if !is_alone(module_path!(), name) {
        return;
    }
    let server = &Server::start();
    let locks = &connect(server);
    let keys: Vec<_> = (0..100).map(|n: u32| n.to_string()).collect();
    for key in &keys {
        occupy(server, key, MINUTE);
    }
    thread::scope(|scope| {
        for key in &keys {
            scope.spawn(move || take(locks, key));
        }
        until_tracked(server, 100);
        assert_eq!((listening(), server.listeners().len()), (1, 1));
        // The listener wakes all waiters when it starts to listen. Some of them had registered
        // already, and ask once more. On a busy machine, some of them do that late.
        eventually(LONG, "nobody asks for two seconds", || {
            let (sent, mut is_quiet) = (server.all_calls(), true);
            throughout(2 * SOON, || is_quiet &= server.all_calls() == sent);
            is_quiet
        });
        for key in &keys {
            delete(server, key);
        }
    });
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
}
