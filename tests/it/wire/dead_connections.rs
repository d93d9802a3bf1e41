//! Connections that are dead without a sign of it, while Redis is well: dropped by a firewall,
//! closed while idle.

use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use relatch::{LockGuard, LockManager, LostCause, Unlocked};
use relatch_rig::{Fault, LONG, Proxy, Server, eventually, throughout, time, within};

use crate::support::{
    ANSWER, MINUTE, Rig, SOON, builder, delete, occupy, renewals, renewals_of, take, tracked_hold,
    until_tracked,
};

/// How many connections the pool has.
const POOL: usize = 8;

/// How soon after a change the manager has to notice that the listener's connection is dead. The
/// listener sends a `PING` after three seconds without a message.
const NOTICED: Duration = Duration::from_secs(7);

/// A manager with all its connections open and idle.
fn with_idle_connections() -> Rig {
    let rig = Rig::with(|builder| {
        builder
            .response_timeout(SOON)
            .connect_timeout(SOON)
            .tolerate_outage(LONG)
    });
    open_all(&rig);
    rig
}

fn open_all(rig: &Rig) {
    use_at_once(rig, POOL);
}

/// Uses this many connections of the pool at the same time.
fn use_at_once(rig: &Rig, connections: usize) {
    let all = Barrier::new(connections);
    // Only `SET` is delayed, and not the login, so that each connection gets as far as its `SET`.
    rig.proxy.always("SET", Fault::DelayReply(SOON / 3));
    let before = rig.proxy.commands("SET");
    thread::scope(|scope| {
        for number in 0..connections {
            let all = &all;
            scope.spawn(move || {
                let guard = rig.locks.lock(format!("{number}")).expect("locks");
                all.wait();
                assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            });
        }
        let sent = before + u64::try_from(connections).expect("a few");
        eventually(LONG, "each asks over a connection of its own", || {
            rig.proxy.commands("SET") >= sent
        });
        rig.proxy.clear();
    });
}

fn release(guard: LockGuard) {
    assert_eq!(guard.unlock().expect("released"), Unlocked::Released);
}

type Take = fn(&LockManager) -> LockGuard;

#[test]
fn all_connections_that_a_firewall_dropped_cost_one_timeout() {
    let takes: [(&str, Take); 3] = [
        ("try_lock", |locks| {
            locks.try_lock("a").expect("answers").expect("free")
        }),
        ("lock", |locks| locks.lock("a").expect("locks")),
        ("try_lock_for", |locks| {
            locks
                .named("a")
                .try_lock_for(4 * SOON)
                .expect("answers")
                .expect("free")
        }),
    ];
    for (what, take) in takes {
        let rig = with_idle_connections();
        rig.proxy.strand_all();
        let (took, guard) = time(|| take(&rig.locks));
        assert!(took < 4 * SOON, "{what}: {took:?}");
        let (took, ()) = time(|| {
            release(guard);
            open_all(&rig);
        });
        assert!(
            took < SOON,
            "{what}: another dropped connection was used, {took:?}"
        );
    }
}

#[test]
fn a_release_over_a_connection_that_a_firewall_dropped_is_confirmed() {
    let rig = with_idle_connections();
    let guards = ["a", "b", "c"].map(|name| rig.locks.lock(name).expect("locks"));
    rig.proxy.strand_all();
    let (took, ()) = time(|| guards.into_iter().for_each(release));
    assert!(took < 3 * SOON, "{took:?}");
    assert_eq!(rig.server.query::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn extend_and_ensure_work_after_a_firewall_dropped_the_connection() {
    let rig = Rig::with(|builder| builder.response_timeout(4 * SOON).lease(MINUTE));
    let guard = rig.locks.lock("a").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    rig.proxy.strand_all();
    guard
        .set_lease(MINUTE / 2)
        .expect("over another connection");
    rig.proxy.strand_all();
    throughout(ANSWER, || ());
    guard
        .ensure(guard.remaining() + ANSWER / 10)
        .expect("over another connection");
    release(guard);
}

/// Only the next attempt tells a dead connection from an outage, so a wait makes that attempt
/// however short an outage it tolerates.
#[test]
fn a_wait_that_tolerates_no_outage_goes_on_over_another_connection() {
    let rig = Rig::with_defaults(|builder| builder.tolerate_outage(Duration::ZERO).wait(LONG));
    for _ in 0..20 {
        rig.assert_works("a");
        rig.server
            .query::<i64>(&["CLIENT", "KILL", "TYPE", "normal"]);
        release(rig.locks.lock("a").expect("Redis is there"));
    }
}

/// The timeout of one command proves nothing about a connection that has answered since that
/// command was sent.
#[test]
fn an_unanswered_command_closes_no_connection_that_answers() {
    let rig = Rig::with(|builder| builder.response_timeout(4 * SOON));
    open_all(&rig);
    let guard = rig.locks.lock("a").expect("locks");
    let before = rig.proxy.connections_accepted();
    rig.proxy.on("EVALSHA", Fault::SwallowCommand);
    thread::scope(|scope| {
        scope.spawn(|| {
            rig.proxy.wait_fired(1, LONG);
            use_at_once(&rig, 4);
        });
        release(guard);
    });
    use_at_once(&rig, 4);
    let opened = rig.proxy.connections_accepted() - before;
    assert!(
        opened <= 1,
        "{opened} new connections, though only one was silent"
    );
}

/// A short attempt without an answer proves nothing about other connections: Redis may have been
/// busy.
#[test]
fn a_wait_too_short_for_an_answer_closes_no_other_connection() {
    let rig = with_idle_connections();
    // Up to ten times: the machine itself may delay the attempt for a tenth of a second.
    let mut tries = (0..10).map(|_| {
        open_all(&rig);
        let opened = rig.proxy.connections_accepted();
        rig.proxy
            .always("SET lock:slow", Fault::DelayReply(SOON / 4));
        drop(rig.locks.named("slow").try_lock_for(ANSWER / 6)); // Its result does not matter here.
        rig.proxy.clear();
        open_all(&rig);
        rig.proxy.connections_accepted() - opened
    });
    // The connections over which the answers are late are not used again.
    assert!(tries.any(|opened| opened <= 2), "all were opened anew");
}

#[test]
fn a_waiter_is_woken_after_a_firewall_dropped_the_listener() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON).tolerate_outage(LONG));
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&rig.locks, "a"));
        until_tracked(&rig.server, 1);
        rig.proxy.strand_all();
        delete(&rig.server, "a");
        let (took, at) = time(|| waiter.join());
        at.expect("no panic");
        assert!(
            took < NOTICED,
            "{took:?}: the dead listener was not noticed"
        );
    });
}

/// The listener is silent because nothing happens, and answers a `PING`.
#[test]
fn a_listener_that_answers_a_ping_is_kept() {
    let rig = Rig::new();
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&rig.locks, "a"));
        until_tracked(&rig.server, 1);
        let (listeners, asked) = (rig.server.listeners(), rig.proxy.commands("PING"));
        eventually(LONG, "the listener sends a PING", || {
            rig.proxy.commands("PING") > asked
        });
        throughout(3 * ANSWER, || {
            assert_eq!(
                rig.server.listeners(),
                listeners,
                "the listener was replaced"
            );
        });
        delete(&rig.server, "a");
        waiter.join().expect("no panic");
    });
}

#[test]
fn a_loss_is_noticed_after_a_firewall_dropped_every_connection() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    let guard = tracked_hold(&rig.server, &rig.locks, "a");
    rig.proxy.strand_all();
    delete(&rig.server, "a");
    let (took, lost) = time(|| guard.watch().wait_lost(LONG));
    assert_eq!(lost, Some(LostCause::Deleted), "after {took:?}");
    assert!(took < NOTICED, "{took:?}: noticed only by the next renewal");
}

fn kill(server: &Server, numbers: &[u64]) {
    assert!(!numbers.is_empty());
    for number in numbers {
        server.query::<()>(&["CLIENT", "KILL", "ID", &number.to_string()]);
    }
}

#[test]
fn a_loss_is_noticed_after_the_keepers_connection_was_closed() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let guard = tracked_hold(&server, &locks, "a");
    kill(&server, &server.clients_with("cmd=evalsha"));
    delete(&server, "a");
    let (took, lost) = time(|| guard.watch().wait_lost(LONG));
    assert_eq!(lost, Some(LostCause::Deleted), "after {took:?}");
    assert!(
        took < 4 * SOON,
        "{took:?}: noticed only by the next renewal"
    );
}

/// Redis sends invalidations for a key only as long as the connection that tracks it is open. A
/// renewal without an answer costs the keeper its connection. So the keeper has to renew every
/// hold, which makes Redis track the keys again.
#[test]
fn a_renewal_without_an_answer_has_every_hold_renewed_again() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    let [first, second] = ["a", "b"].map(|name| tracked_hold(&rig.server, &rig.locks, name));
    let before = renewals(&rig.locks, "b");
    rig.proxy
        .on(&renewals_of(&rig.server, "a"), Fault::SwallowCommand);
    first.set_lease(MINUTE).expect("over another connection");
    eventually(5 * SOON, "the other hold is renewed", || {
        renewals(&rig.locks, "b") > before
    });
    delete(&rig.server, "b");
    let (took, lost) = time(|| second.watch().wait_lost(LONG));
    assert_eq!(lost, Some(LostCause::Deleted), "after {took:?}");
    assert!(took < SOON, "{took:?}: noticed only by the next renewal");
}

#[test]
fn a_waiter_is_woken_after_the_connection_that_tracked_its_key_was_closed() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    occupy(&server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&locks, "a"));
        until_tracked(&server, 1);
        eventually(LONG, "the listener is connected", || {
            server.redirects_invalidations()
        });
        let listener = server.listeners()[0];
        kill(&server, &server.clients_with(&format!("redir={listener}")));
        delete(&server, "a");
        let (took, at) = time(|| waiter.join());
        at.expect("no panic");
        assert!(took < 4 * SOON, "{took:?}: nothing woke the waiter");
    });
}

#[test]
fn a_listener_that_connects_slowly_has_the_connect_timeout() {
    let rig = Rig::with(|builder| builder.connect_timeout(5 * SOON).response_timeout(ANSWER));
    rig.proxy.always("CLIENT ID", Fault::DelayReply(4 * ANSWER));
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&rig.locks, "a"));
        until_tracked(&rig.server, 1);
        delete(&rig.server, "a");
        waiter.join().expect("no panic");
    });
}

#[test]
fn dropping_the_manager_does_not_wait_for_a_listener_that_connects() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url())
        .connect_timeout(MINUTE / 2)
        .build()
        .expect("connects");
    proxy.on("CLIENT ID", Fault::SwallowCommand);
    occupy(&server, "a", MINUTE);
    assert!(
        locks
            .named("a")
            .try_lock_for(2 * ANSWER)
            .expect("answers")
            .is_none()
    );
    proxy.wait_fired(1, LONG);
    within(4 * SOON, "the last handle goes", || drop(locks));
}
