//! Replicas that have to acknowledge a lock and its renewals, and failovers that lose what they
//! lack.

use std::env;
use std::thread;
use std::time::Duration;

use relatch::{Builder, Error, LockGuard, LockManager, Replicas};
use relatch_rig::rights::least_rights;
use relatch_rig::{
    LONG, Sentinels, Server, Setup, eventually, server_version, throughout, unique_key, within,
};

use crate::many::sentinel;
use crate::support::{
    ANSWER, MINUTE, SOON, WAYS, assert_unavailable, builder, chain, grant, server_for,
};

/// For how long Redis waits for replicas.
const WAIT: Duration = Duration::from_millis(50);

/// A master and two replicas.
struct Group {
    master: Server,
    replicas: [Server; 2],
}

impl Group {
    fn start() -> Group {
        // By default, a master waits for 5 s before it sends its data to a first replica.
        let master = Server::with(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port().to_string();
        let replicas = [(); 2].map(|()| Server::with(&["--replicaof", "127.0.0.1", &port]));
        // The first of two writes may have been part of the data that the replicas were sent.
        let written = || {
            master.query::<()>(&["SET", "connected", "1", "PX", "1000"]);
            master.query::<u64>(&["WAIT", "2", "100"]) == 2
        };
        eventually(LONG, "the replicas follow", || written() && written());
        Group { master, replicas }
    }

    /// A manager that wants both replicas to acknowledge within this time.
    fn locks(&self, timeout: Duration) -> LockManager {
        let builder = builder(&self.master.url()).connect_timeout(LONG);
        let builder = builder.response_timeout(timeout + LONG / 2).lease(MINUTE);
        let builder = builder.replicas(Replicas::at_least(2), timeout);
        builder.build().expect("connects")
    }

    fn assert_all_have(&self, guard: &LockGuard) {
        for replica in &self.replicas {
            assert_eq!(replica.get("lock:a").as_deref(), Some(guard.token()));
        }
    }
}

/// The second lock is taken by a script, as by every waiter.
#[test]
fn a_lock_is_taken_once_its_replicas_have_it() {
    let group = Group::start();
    let (locks, others) = (group.locks(LONG / 2), group.locks(LONG / 2));
    let slow = &group.replicas[1];
    slow.pause();
    thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let guard = locks.lock("a").expect("locks");
            group.assert_all_have(&guard);
            let waiter = scope.spawn(|| group.assert_all_have(&others.lock("a").expect("locks")));
            eventually(LONG, "the waiter waits", || others.stats().waited > 0);
            drop(guard);
            waiter.join().expect("no panic");
        });
        eventually(LONG, "the other replica has it", || {
            group.replicas[0].exists("lock:a")
        });
        throughout(ANSWER, || assert!(!taking.is_finished()));
        assert!(
            locks.held().is_empty(),
            "a replica that is stopped acknowledges nothing"
        );
        slow.resume();
        taking.join().expect("no panic");
    });
}

#[test]
fn a_lock_that_too_few_replicas_have_is_not_taken() {
    let group = Group::start();
    let locks = group.locks(WAIT);
    let mut held = None;
    eventually(LONG, "the replicas acknowledge in time", || {
        held = locks.try_lock("held").ok().flatten();
        held.is_some()
    });
    let held = held.expect("just seen");
    let replica = &group.replicas[0];
    // The master has no such password, so the replica cannot come back.
    replica.query::<()>(&["CONFIG", "SET", "masterauth", "wrong"]);
    replica.query::<()>(&["CLIENT", "KILL", "TYPE", "master"]);
    eventually(LONG, "the master has lost the replica", || {
        let info: String = group.master.query(&["INFO", "replication"]);
        info.contains("connected_slaves:1\r\n")
    });
    for (way, take) in WAYS {
        let taken = within(LONG, way, || take(&locks, way));
        assert_unavailable(&taken);
        let told = chain(&taken.expect_err("just seen"));
        // The last attempt of a wait with a limit has less than 50 ms.
        let why = "NOREPLICAS 1 of 2 replicas acknowledged the lock within ";
        assert!(told.contains(why), "{told}");
        // If the deadline comes first, the keeper deletes the key.
        let key = format!("lock:{way}");
        eventually(LONG, "no key is left", || !group.master.exists(&key));
    }
    let told = chain(&held.set_lease(2 * MINUTE).expect_err("one is cut off"));
    assert!(
        told.contains("1 of 2 replicas acknowledged the renewal"),
        "{told}"
    );
    replica.query::<()>(&["CONFIG", "SET", "masterauth", ""]);
    eventually(LONG, "the replica is back", || {
        held.set_lease(MINUTE).is_ok()
    });
    eventually(LONG, "the lock is taken", || {
        locks.try_lock("a").is_ok_and(|it| it.is_some())
    });
}

#[test]
fn row_23_without_the_right_to_wait_no_lock_is_taken() {
    let (server, url) = server_for(&least_rights());
    let builder = LockManager::builder(&url).replicas(Replicas::at_least(1), WAIT);
    let locks = builder.build().expect("connects");
    let error = within(5 * SOON, "the refusal", || locks.lock("a")).expect_err("no right");
    let is_named = matches!(&error, Error::Refused { code, .. } if code == "NOPERM");
    assert!(is_named && error.to_string().contains("wait"), "{error:?}");
    assert!(!server.exists("lock:a"));
    grant(&server, &[&*least_rights(), &["+wait"]].concat());
    let told = chain(&locks.try_lock("a").expect_err("no replica"));
    assert!(
        told.contains("NOREPLICAS 0 of 1 replicas acknowledged the lock"),
        "{told}"
    );
}

#[test]
fn a_lock_on_disk_needs_a_server_that_can_tell() {
    let take = |server: &Server, replicas: u32| {
        let disks = Replicas::at_least(replicas).on_disk();
        let builder = builder(&server.bare_url())
            .connect_timeout(LONG)
            .response_timeout(LONG);
        let locks = builder.replicas(disks, LONG / 2).build().expect("connects");
        let taken = within(LONG / 4, "an answer", || locks.lock("a"));
        let released = taken.map(|guard| guard.unlock().expect("unlocks"));
        assert!(!server.exists("lock:a"));
        released.err()
    };
    let without = take(&Server::start(), 0).expect("there is no append-only file");
    assert!(matches!(without, Error::Refused { .. }), "{without:?}");
    let mut args = vec!["--appendonly", "yes", "--appendfsync", "always"];
    args.extend(["--repl-diskless-sync-delay", "0"]);
    let master = Server::with(&args);
    let with = take(&master, 0);
    if server_version() < (7, 2) {
        for error in [Some(without), with] {
            let told = error.expect("`WAITAOF` is not known").to_string();
            assert!(
                told.contains("`on_disk` needs Redis 7.2 or Valkey"),
                "{told}"
            );
        }
        return;
    }
    assert!(
        without.to_string().contains("appendonly is disabled"),
        "{without}"
    );
    assert!(with.is_none(), "{with:?}");
    let port = master.port().to_string();
    args.extend(["--replicaof", "127.0.0.1", &port]);
    let _replica = Server::with(&args);
    eventually(LONG, "it acknowledges from its disk", || {
        take(&master, 1).is_none()
    });
}

#[test]
fn row_35_replicas_that_cannot_work_are_refused() {
    let nobody = || LockManager::builder("redis://127.0.0.1:1/");
    let (all, one) = (Replicas::all(), Replicas::at_least(1));
    for (replicas, timeout, told) in [
        (
            all,
            WAIT,
            "cannot be all(): only sentinels know how many there are",
        ),
        (
            all.on_disk(),
            WAIT,
            "cannot be all().on_disk(): only sentinels know",
        ),
        (
            Replicas::at_least(0),
            WAIT,
            "cannot be at_least(0): leave the option out",
        ),
        (one, Duration::ZERO, "cannot be 0ns: its timeout has to be"),
        (one, 2 * SOON, "cannot be 2s: its timeout has to be"),
    ] {
        let error = nobody()
            .replicas(replicas, timeout)
            .build()
            .expect_err("it cannot work");
        let is_named = matches!(
            &error,
            Error::InvalidOption {
                option: "replicas",
                ..
            }
        );
        assert!(is_named && error.to_string().contains(told), "{error:?}");
    }
}

/// Takes locks while the replica is cut off from the master, which is killed then: the replica
/// becomes the master. Returns how many locks were taken, and how many of them it lacks.
fn lossy_failover(sentinels: &Sentinels, locks: &LockManager) -> (usize, usize) {
    let old = sentinels.master();
    let mut guards = Vec::new();
    // A replica may acknowledge late on a busy machine.
    eventually(LONG, "a lock is taken", || {
        guards.extend(locks.try_lock(unique_key("a")).ok().flatten());
        !guards.is_empty()
    });
    let mut take_some = |span| {
        throughout(span, || {
            // Without enough replicas there is no lock.
            guards.extend(locks.try_lock(unique_key("a")).ok().flatten());
        });
    };
    thread::scope(|scope| {
        let cutting = scope.spawn(|| sentinels.cut_off(1 - old));
        while !cutting.is_finished() {
            take_some(WAIT / 10);
        }
    });
    take_some(WAIT);
    sentinels.server(old).kill();
    assert_eq!(sentinels.until_replaced(old), 1 - old);
    let is_lost = |guard: &LockGuard| {
        let mut found = guard.verify();
        eventually(LONG, "the new master answers", || {
            found = guard.verify();
            matches!(found, Ok(()) | Err(Error::Lost { .. }))
        });
        found.is_err()
    };
    let lost = guards.iter().filter(|it| is_lost(it)).count();
    // The killed master comes back as a replica, which acknowledges.
    sentinels.restart(old);
    sentinels.demote(old, 1 - old);
    let new = sentinels.server(1 - old);
    new.query::<()>(&["CONFIG", "SET", "masterauth", ""]);
    sentinels.until_in_sync();
    (guards.len(), lost)
}

/// One such failover, or as many as the variable says, and one without the option, which shows that
/// they lose locks.
#[test]
fn lossy_failovers_lose_no_lock_that_all_replicas_acknowledged() {
    let sentinels = Sentinels::with(Setup {
        replicas: 1,
        ..Setup::default()
    });
    let plain = || sentinel::patient(&sentinels.url()).lease(2 * MINUTE);
    let build = |builder: Builder| builder.connect_timeout(LONG).build().expect("connects");
    let acknowledged = build(plain().replicas(Replicas::all(), 2 * WAIT));
    let wanted = env::var("RELATCH_FAILOVERS").map_or(1, |it| it.parse().expect("a number"));
    let (mut all, mut all_lost) = (0, 0);
    for _ in 0..wanted {
        let (taken, lost) = lossy_failover(&sentinels, &acknowledged);
        (all, all_lost) = (all + taken, all_lost + lost);
    }
    println!("failovers | replicas(all) | {all} locks taken, {all_lost} lost");
    assert!(all > 0 && all_lost == 0, "{all_lost} of {all} are lost");
    let (taken, lost) = lossy_failover(&sentinels, &build(plain()));
    println!("failovers | without replicas | {taken} locks taken, {lost} lost");
    assert!(lost > 0, "the test proves nothing");
}
