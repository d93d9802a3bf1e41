//! Connections whose other end is gone without a sign of it: a firewall dropped them, and Redis is
//! well.

use std::thread;
use std::time::Duration;

use relatch::{LockManager, Unlocked};
use relatch_rig::{Fault, Proxy, Server, throughout, time, unique_key};

use crate::support::{Rig, SOON, Taken, until_tracked};

/// One way to take a lock of this name.
type Take<'a> = &'a dyn Fn(&str) -> Taken;

#[track_caller]
fn assert_taken(server: &Server, key: &str, what: &str, taken: Taken) {
    let guard = taken.expect(what).expect(what);
    assert_eq!(
        server.get(&format!("lock:{key}")).as_deref(),
        Some(guard.token()),
        "{what}"
    );
}

#[test]
fn a_half_open_connection_costs_a_timeout_and_the_lock_is_taken() {
    let Rig {
        locks,
        proxy,
        server,
        ..
    } = &Rig::with_defaults(|builder| builder);
    let takes: [(&str, Take<'_>); 3] = [
        ("try_lock", &|key| locks.try_lock(key)),
        ("try_lock_for", &|key| {
            locks.named(key).try_lock_for(Duration::from_millis(500))
        }),
        ("lock", &|key| locks.lock(key).map(Some)),
    ];
    for (what, take) in takes {
        let key = unique_key("a");
        let connections = proxy.connections_accepted();
        proxy.strand_all();
        assert_taken(server, &key, what, take(&key));
        assert!(
            proxy.connections_accepted() > connections,
            "{what}: over a new connection"
        );
    }
}

#[test]
fn an_answer_of_a_slow_redis_is_waited_for() {
    let Rig {
        locks,
        proxy,
        server,
        ..
    } = &Rig::with_defaults(|builder| builder);
    let takes: [(&str, Take<'_>); 3] = [
        ("try_lock", &|key| locks.try_lock(key)),
        ("lock", &|key| locks.lock(key).map(Some)),
        ("try_lock_for", &|key| {
            locks.named(key).try_lock_for(3 * SOON)
        }),
    ];
    for (what, take) in takes {
        let key = unique_key("a");
        let connections = proxy.connections_accepted();
        proxy.on(&format!("SET lock:{key}"), Fault::DelayReply(SOON * 3 / 4));
        let (took, taken) = time(|| take(&key));
        assert_taken(server, &key, what, taken);
        assert!(took >= SOON * 3 / 4, "{what}: the answer was waited for");
        assert_eq!(
            proxy.connections_accepted(),
            connections,
            "{what}: over the connection that was slow"
        );
    }
}

#[test]
fn a_release_that_takes_most_of_the_response_timeout_is_confirmed() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::builder(&proxy.url())
        .response_timeout(SOON)
        .build()
        .expect("connects");
    locks.with_lock("a", || ()).expect("Redis knows the script");
    for command in ["SET", "EVALSHA"] {
        proxy.always(command, Fault::DelayReply(6 * SOON / 10));
    }
    let before = proxy.connections_accepted();
    for _ in 0..2 {
        let guard = locks.lock("a").expect("locks");
        assert_eq!(
            guard.unlock().expect("answered in time"),
            Unlocked::Released
        );
    }
    assert!(
        proxy.connections_accepted() <= before + 1,
        "at most the first answer comes too late for its connection"
    );
}

/// Each answer to an attempt takes 70 ms. A waiter that is woken waits for that answer, and keeps
/// its connection.
#[test]
fn a_hand_off_from_a_distant_redis_closes_no_connection() {
    let Rig {
        locks: ours,
        proxy,
        server,
        ..
    } = &Rig::with_defaults(|builder| builder);
    let theirs = LockManager::connect(&server.url()).expect("connects");
    proxy.always("SET", Fault::DelayReply(Duration::from_millis(70)));
    drop(ours.lock("warm").expect("locks"));
    let mut before = 0;
    for round in 0..5 {
        let guard = theirs.lock("a").expect("locks");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| ours.lock("a").map(drop));
            until_tracked(server, 1);
            // Redis tracks the key now. The waiter sleeps only when it also has the answer.
            throughout(SOON / 4, || assert!(!waiter.is_finished()));
            guard.unlock().expect("the lock was held");
            waiter
                .join()
                .expect("no panic")
                .expect("the waiter's turn comes");
        });
        if round == 0 {
            before = proxy.connections_accepted();
        }
    }
    assert!(
        proxy.connections_accepted() <= before + 1,
        "{} after {before}",
        proxy.connections_accepted()
    );
}
