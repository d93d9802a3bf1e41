//! Redis Cluster: nodes that die, are silent or are failed over, and what the other nodes' locks
//! notice of that.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Builder, Error, LockManager, LostCause, Replicas, Unlocked};
use relatch_rig::rights::login;
use relatch_rig::{
    Cluster, ClusterSetup, FakeServer, Fault, LONG, Reply, Server, SetOnDrop, eventually,
    throughout, time, within,
};

use crate::many::cluster::{assert_works, connect, patient, redirects, small};
use crate::many::cluster_moves::{
    NEW_MAP, assert_no_key_is_left, key, tag_on, until_renewed, while_counting,
};
use crate::support::{
    ANSWER, MINUTE, SOON, assert_lost, assert_unavailable, chain, renewals, returns_by, take,
};

/// A lease that the death of another node must not end, and from one renewal to the next.
const BRIEF: Duration = Duration::from_millis(1500);
const PERIOD: Duration = Duration::from_millis(300);

/// What must always be left of such a lease: the rest is for a busy machine.
const LEAST: i64 = 400;

/// For how long Redis waits for replicas.
const WAIT: Duration = Duration::from_millis(100);

/// While a master is dead, the others go on.
const PARTLY: [&str; 2] = ["--cluster-require-full-coverage", "no"];

/// The places of three masters and their replicas.
const ALL: [usize; 6] = [0, 1, 2, 3, 4, 5];

fn partly() -> ClusterSetup {
    ClusterSetup {
        args: PARTLY.to_vec(),
        ..ClusterSetup::default()
    }
}

fn acknowledged(cluster: &Cluster) -> Builder {
    patient(&cluster.url()).replicas(Replicas::at_least(1), WAIT)
}

/// Managers that count. The lock whose release is lost is free again after the lease.
fn counting(cluster: &Cluster) -> [LockManager; 2] {
    [(); 2].map(|()| {
        acknowledged(cluster)
            .lease(2 * SOON)
            .tolerate_outage(2 * LONG)
            .build()
            .expect("connects")
    })
}

/// Checks all the time that these locks, each on its node, are renewed in time.
fn watch_leases(cluster: &Cluster, locks: &[(usize, String)], ended: &AtomicBool) {
    while !ended.load(Ordering::SeqCst) {
        throughout(Duration::from_millis(5), || {});
        for (place, name) in locks {
            let left = cluster.server(*place).pttl(&key(name));
            assert!(left > LEAST, "{name} on node {place}: {left} ms left");
        }
    }
}

/// The longest wait over the death of a master. Redis needs some four seconds to find it dead and
/// to elect another, the new map has to be read, and a lock whose release was lost is free two
/// seconds after it was taken. But on a busy machine, the servers' part has no bound.
const OVER_A_DEATH: Duration = LONG;

/// Holds on two nodes are renewed in time, locks are taken everywhere and a wait goes on, while
/// `body` replaces the master at place 0. No lock is lost that a replica has acknowledged, no wait
/// takes longer than `limit`, and no key is left in the end.
fn while_the_first_master_is_replaced(
    cluster: &Cluster,
    limit: Duration,
    body: impl FnOnce(&dyn Fn()),
) {
    // Who waited for the dead node would wait for long, and a busy machine costs no renewal.
    let renewing = patient(&cluster.url())
        .lease(BRIEF)
        .renew_every(PERIOD)
        .response_timeout(LONG);
    let renewing = renewing.build().expect("connects");
    let brief = [1, 2].map(|place| (place, cluster.key_on(place)));
    let guards = brief
        .each_ref()
        .map(|(_, name)| renewing.lock(name).expect("locks"));
    let (holder, waiter) = (
        acknowledged(cluster).build(),
        acknowledged(cluster).poll_every(LONG).build(),
    );
    let (holder, waiter) = (holder.expect("connects"), waiter.expect("connects"));
    let kept = cluster.key_on(0);
    let kept_guard = holder.lock(&kept).expect("locks");
    let names = [0, 1, 2].map(|place| cluster.key_on(place));
    let (managers, ended) = (counting(cluster), AtomicBool::new(false));
    thread::scope(|scope| {
        let stop = SetOnDrop(&ended);
        scope.spawn(|| watch_leases(cluster, &brief, &ended));
        let waiting = scope.spawn(|| take(&waiter, &kept));
        while_counting(&managers, &names, limit, body);
        drop(stop);
        kept_guard.verify().expect("a replica had it");
        until_renewed(&holder, &kept, 2);
        assert!(!waiting.is_finished());
        assert_eq!(kept_guard.unlock().expect("unlocks"), Unlocked::Released);
        let released = Instant::now();
        let woken = waiting
            .join()
            .expect("no panic")
            .saturating_duration_since(released);
        assert!(woken < 2 * SOON, "woken after {woken:?}");
    });
    assert_eq!(
        (
            holder.stats().lost,
            renewing.stats().lost,
            renewing.stats().renewal_errors
        ),
        (0, 0, 0)
    );
    for guard in guards {
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
    assert_no_key_is_left(cluster, &ALL);
}

#[test]
fn the_death_of_a_master_loses_no_acknowledged_lock_and_disturbs_no_other_node() {
    let cluster = Cluster::with(partly());
    while_the_first_master_is_replaced(&cluster, OVER_A_DEATH, |goes_on| {
        cluster.server(0).kill();
        assert_eq!(cluster.until_replaced(0), 3);
        // Without its replica, no lock of the new master is acknowledged.
        cluster.server(0).restart();
        cluster.until_well();
        goes_on();
    });
}

#[test]
fn a_silent_master_loses_no_acknowledged_lock_and_disturbs_no_other_node() {
    let cluster = Cluster::with(partly());
    while_the_first_master_is_replaced(&cluster, OVER_A_DEATH, |goes_on| {
        cluster.server(0).pause();
        assert_eq!(cluster.until_replaced(0), 3);
        cluster.server(0).resume();
        cluster.until_well();
        goes_on();
    });
}

#[test]
fn a_planned_failover_loses_nothing() {
    let cluster = Cluster::with(partly());
    while_the_first_master_is_replaced(&cluster, OVER_A_DEATH, |goes_on| {
        cluster.fail_over(3);
        goes_on();
        cluster.fail_over(0);
        goes_on();
    });
}

/// The replica lacks the lock. The holder learns of the loss when the new master is found, and not
/// only at the next renewal.
#[test]
fn a_lock_that_died_with_its_master_is_reported_as_lost() {
    let cluster = Cluster::start();
    let locks = patient(&cluster.url())
        .renew_every(MINUTE / 3)
        .build()
        .expect("connects");
    let waiter = patient(&cluster.url())
        .poll_every(LONG)
        .build()
        .expect("connects");
    let (name, other) = (cluster.key_on(0), cluster.key_on(1));
    cut_off(&cluster, 3, 0);
    let guard = locks.lock(&name).expect("locks");
    let kept = locks.lock(&other).expect("locks");
    for it in [&guard, &kept] {
        it.set_lease(MINUTE).expect("extends"); // From now on, Redis tracks the key.
    }
    thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&waiter, &name));
        eventually(LONG, "the wait is tracked", || {
            cluster.server(0).tracked_keys() > 0
        });
        cluster.server(0).kill();
        assert_eq!(cluster.until_replaced(0), 3);
        let lost = within(NEW_MAP, "the report", || guard.watch().wait_lost(LONG));
        assert_eq!(lost, Some(LostCause::Deleted));
        within(NEW_MAP, "the lock at the new master", || {
            waiting.join().expect("no panic")
        });
    });
    assert_lost(&guard.unlock(), LostCause::Deleted);
    kept.verify().expect("valid");
    assert_works(&cluster, &locks, &[3, 1, 2]);
    assert_eq!(kept.unlock().expect("unlocks"), Unlocked::Released);
    assert_no_key_is_left(&cluster, &[3, 1, 2]);
}

/// The replica gets no more writes of its master, which takes it for well.
fn cut_off(cluster: &Cluster, replica: usize, master: usize) {
    let server = cluster.server(replica);
    // The master refuses the password, because it has none.
    server.query::<()>(&["CONFIG", "SET", "masterauth", "wrong"]);
    server.query::<i64>(&["CLIENT", "KILL", "TYPE", "master"]);
    let replicas = |server: &Server| -> String { server.query(&["INFO", "replication"]) };
    eventually(LONG, "the replica is cut off", || {
        replicas(cluster.server(master)).contains("connected_slaves:0")
    });
}

/// The response timeout is long, so that a thread that waits for the silent node is noticed.
#[test]
fn what_is_done_on_other_nodes_does_not_wait_for_a_silent_one() {
    let cluster = small(ClusterSetup {
        node_timeout: LONG,
        ..partly()
    });
    let answer = 3 * SOON;
    let builder = patient(&cluster.url())
        .response_timeout(answer)
        .renew_every(PERIOD);
    let locks = builder.build().expect("connects");
    let lock = |place: usize, lease: Duration| {
        let name = cluster.key_on(place);
        let guard = locks.named(&name).lease(lease).lock().expect("locks");
        ((place, name), guard)
    };
    let (silent, others) = (lock(0, MINUTE), [lock(1, BRIEF), lock(2, BRIEF)]);
    until_renewed(&locks, &silent.0.1, 1);
    let (brief, guards): (Vec<_>, Vec<_>) = others.into_iter().unzip();
    let ended = AtomicBool::new(false);
    let free = [1, 2].map(|place| cluster.key_on(place));
    cluster.server(0).pause();
    thread::scope(|scope| {
        let _stop = SetOnDrop(&ended);
        scope.spawn(|| watch_leases(&cluster, &brief, &ended));
        eventually(LONG, "renewals have waited in vain", || {
            for (guard, name) in guards.iter().zip(&free) {
                within(SOON, "an extension", || guard.set_lease(BRIEF)).expect("extends");
                within(SOON, "a check", || guard.ensure(BRIEF / 10)).expect("valid");
                within(SOON, "a question", || guard.verify()).expect("valid");
                within(SOON, "a free lock", || locks.with_lock(name, || ())).expect("locks");
            }
            locks.stats().renewal_errors > 2
        });
    });
    assert!(silent.1.is_valid());
    drop(guards);
    within(answer + SOON, "the release at the silent node", || {
        drop(silent);
    });
    within(3 * (answer + SOON), "the end of the manager", || {
        drop(locks);
    });
}

#[test]
fn a_manager_is_made_although_nodes_are_dead_or_silent() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..partly()
    });
    for place in 0..3 {
        let others: Vec<_> = (0..3).filter(|it| *it != place).collect();
        let make = || {
            within(NEW_MAP, "a manager", || {
                patient(&cluster.url_with(&[place, others[0]])).build()
            })
        };
        cluster.proxy(place).black_hole(true);
        assert_works(&cluster, &make().expect("another node answers"), &others);
        cluster.proxy(place).black_hole(false);
        cluster.proxy(place).refuse(true);
        assert_works(&cluster, &make().expect("another node answers"), &others);
        cluster.proxy(place).refuse(false);
    }
}

/// In the middle of a move, a waiter is sent to the new owner, which invalidates nothing for it.
#[test]
fn a_waiter_that_is_sent_elsewhere_polls() {
    let cluster = Cluster::without_replicas();
    let (locks, others) = (connect(&cluster.url()), connect(&cluster.url()));
    let name = cluster.key_on(0);
    let guard = locks.named(&name).renew(false).lock().expect("locks");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&others, &name));
        eventually(LONG, "the wait is tracked", || {
            cluster.server(0).tracked_keys() == 1
        });
        let moving = cluster.begin_move(cluster.slot_of(&name), 1);
        cluster.server(1).reset_stats();
        moving.move_keys();
        eventually(LONG, "it has asked there", || {
            cluster.server(1).total_calls(&["eval", "evalsha"]) > 0
        });
        // The answer has to arrive.
        throughout(PERIOD, || assert!(!waiter.is_finished()));
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        within(2 * SOON, "the lock", || waiter.join().expect("no panic"));
        moving.end();
    });
}

/// The master keeps its connections open and says nothing. Another slot that has moved shows that
/// the map is old, and the map shows the new master.
#[test]
fn a_new_map_is_enough_to_wake_waiters_and_renew_holds() {
    let cluster = Cluster::with(partly());
    let slow = |builder: Builder| {
        builder
            .response_timeout(LONG)
            .poll_every(LONG)
            .renew_every(MINUTE / 3)
    };
    let [locks, others] =
        [(); 2].map(|()| slow(patient(&cluster.url())).build().expect("connects"));
    let [name, free] = [0, 1].map(|place| cluster.key_on(place));
    let guard = locks.lock(&name).expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    eventually(LONG, "the replica has it", || {
        cluster.server(3).query::<u64>(&["DBSIZE"]) == 1
    });
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&others, &name));
        eventually(LONG, "the wait is tracked", || {
            cluster.server(0).listeners().len() == 2
        });
        assert_works(&cluster, &others, &[1, 2]);
        cluster.server(0).pause();
        assert_eq!(cluster.until_replaced(0), 3);
        cluster.move_slot(cluster.slot_of(&free), 2);
        let before = renewals(&locks, &name);
        for locks in [&locks, &others] {
            locks.with_lock(&free, || ()).expect("locks");
        }
        eventually(NEW_MAP, "the hold is renewed", || {
            renewals(&locks, &name) > before
        });
        eventually(NEW_MAP, "the waiter asks, and is tracked", || {
            cluster.server(3).listeners().len() == 2
        });
        cluster.server(0).resume();
        cluster.until_well();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        within(2 * SOON, "the lock", || waiter.join().expect("no panic"));
    });
    assert_no_key_is_left(&cluster, &ALL);
}

/// The node that is asked first is drawn by lot, so there are a few moves.
#[test]
fn a_silent_node_does_not_keep_the_map_old() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..partly()
    });
    let locks = patient(&cluster.url())
        .renew_every(PERIOD / 3)
        .build()
        .expect("connects");
    let name = cluster.key_on(0);
    let guard = locks.lock(&name).expect("locks");
    assert_works(&cluster, &locks, &[1]);
    cluster.proxy(1).black_hole(true);
    for to in [2, 0, 2, 0] {
        cluster.move_slot(cluster.slot_of(&name), to);
        eventually(2 * NEW_MAP, "the new map is used", || {
            let before = redirects(&cluster, [0, 2]);
            until_renewed(&locks, &name, 3);
            redirects(&cluster, [0, 2]) == before
        });
    }
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// Every command of many threads is answered with `MOVED`, and the map is read once a second.
#[test]
fn a_storm_of_redirects_reads_the_map_about_once_a_second() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let locks = patient(&cluster.url())
        .pool_size(8)
        .build()
        .expect("connects");
    let name = cluster.key_on(0);
    let slot = cluster.slot_of(&name);
    let moved = format!("-MOVED {slot} {}\r\n", cluster.address(1));
    cluster
        .proxy(0)
        .always("SET", Fault::Answer(moved.into_bytes()));
    let reads = || {
        (0..3)
            .map(|place| cluster.proxy(place).commands("CLUSTER SLOTS"))
            .sum::<u64>()
    };
    let (before, ended) = (reads(), AtomicBool::new(false));
    let tries = AtomicU64::new(0);
    thread::scope(|scope| {
        let _stop = SetOnDrop(&ended);
        for _ in 0..8 {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    locks
                        .named(&name)
                        .wait(SOON)
                        .lock()
                        .expect_err("the nodes do not agree");
                    tries.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        throughout(3 * SOON, || {});
    });
    let reads = reads() - before;
    println!("{} tries, {reads} maps", tries.load(Ordering::SeqCst));
    assert!((2..=5).contains(&reads), "{reads} maps");
    cluster.proxy(0).clear();
    drop(within(LONG, "a free lock", || locks.lock(&name)).expect("locks"));
}

/// Without replicas, and if the cluster has to be whole, a dead master stops all nodes.
#[test]
fn a_cluster_that_is_down_is_unavailable_until_it_is_up_again() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&cluster.url());
    let names = [0, 1].map(|place| cluster.key_on(place));
    let held = cluster.key_on(2);
    let guard = locks.lock(&held).expect("locks");
    cluster.server(0).kill();
    eventually(LONG, "the cluster is down", || {
        cluster
            .server(1)
            .query::<String>(&["CLUSTER", "INFO"])
            .contains("cluster_state:fail")
    });
    thread::scope(|scope| {
        for name in &names {
            let (lock, is_alive) = (locks.named(name), name == &names[1]);
            scope.spawn(move || {
                for error in [
                    within(4 * ANSWER + SOON, "lock", || {
                        lock.clone().wait(4 * ANSWER).lock()
                    })
                    .map(Some),
                    within(4 * ANSWER + SOON, "try_lock_for", || {
                        lock.try_lock_for(4 * ANSWER)
                    }),
                    within(2 * ANSWER + SOON, "try_lock", || lock.try_lock()),
                ] {
                    assert_unavailable(&error);
                    let text = chain(&error.expect_err("unavailable"));
                    assert!(!is_alive || text.contains("CLUSTERDOWN"), "{text}");
                }
            });
        }
    });
    eventually(LONG, "a renewal fails", || locks.stats().renewal_errors > 0);
    thread::scope(|scope| {
        let waits = names.each_ref().map(|name| {
            let locks = &locks;
            scope.spawn(move || take(locks, name))
        });
        cluster.server(0).restart();
        cluster.until_well();
        for wait in waits {
            within(NEW_MAP, "a lock", || wait.join().expect("no panic"));
        }
    });
    until_renewed(&locks, &held, 1);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_works(&cluster, &locks, &[0, 1, 2]);
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// A node with an old map, as one that was cut off from the others: it says so by `cluster_state`,
/// or by an epoch that others have left behind. It names itself for all slots.
fn cut_off_node(state: &'static str, epoch: u64) -> FakeServer {
    FakeServer::start(move |command| {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let reply = match command[..] {
            ["CLUSTER", "SLOTS"] => "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$0\r\n\r\n:1\r\n".to_owned(),
            ["CLUSTER", "INFO"] => {
                let info = format!("cluster_state:{state}\r\ncluster_current_epoch:{epoch}\r\n");
                format!("${}\r\n{info}\r\n", info.len())
            }
            [] => String::new(),
            _ => "+OK\r\n".to_owned(),
        };
        Reply::Bytes(reply.into_bytes())
    })
}

#[test]
fn the_map_of_a_node_that_was_cut_off_is_believed_only_if_there_is_no_other() {
    let cluster = Cluster::without_replicas();
    let cut_off = cut_off_node("fail", u64::MAX - 1);
    let url = |rest: &str| format!("redis+cluster://{}{}{rest}", login(), cut_off.address());
    let locks = connect(&url(&format!(",{}", cluster.address(1))));
    assert_works(&cluster, &locks, &[0, 1, 2]);
    assert_eq!(redirects(&cluster, 0..3), 0);
    let alone = patient(&url("")).build_lazily().expect("sends nothing");
    let error = alone.try_lock("a").expect_err("nobody listens at port 1");
    assert!(chain(&error).contains(":1"), "{}", chain(&error));
}

/// A node redirects, and still sends the map from before. A waiter that has followed the redirect
/// may sleep for long, so no further one shows that the map is old.
#[test]
fn a_node_that_has_not_heard_of_a_switch_is_asked_for_the_map_again() {
    let cluster = Cluster::without_replicas();
    let (name, owner) = (cluster.key_on(1), cluster.address(1));
    let (slot, reads, own) = (
        cluster.slot_of(&name),
        Arc::new(AtomicU64::new(0)),
        Arc::new(OnceLock::new()),
    );
    let (counted, address) = (Arc::clone(&reads), Arc::clone(&own));
    let old = FakeServer::start(move |command| {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let reply = match command[..] {
            [] => String::new(),
            ["CLUSTER", "SLOTS"] => {
                // The first map, the one after the redirect, and the one after that.
                let is_old = counted.fetch_add(1, Ordering::SeqCst) < 2;
                let named: &String = if is_old {
                    address.get().expect("it has started")
                } else {
                    &owner
                };
                let (host, port) = named.split_once(':').expect("host and port");
                format!(
                    "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n${}\r\n{host}\r\n:{port}\r\n",
                    host.len()
                )
            }
            ["CLUSTER", "INFO"] => "-NOPERM no permissions\r\n".to_owned(),
            ["SET" | "EVALSHA" | "EVAL", ..] => format!("-MOVED {slot} {owner}\r\n"),
            _ => "+OK\r\n".to_owned(),
        };
        Reply::Bytes(reply.into_bytes())
    });
    own.set(old.address()).expect("it was not set");
    let url = format!("redis+cluster://{}{}", login(), old.address());
    // A renewal would be redirected, too.
    let locks = patient(&url)
        .renew_every(MINUTE / 3)
        .build_lazily()
        .expect("sends nothing");
    let guard = locks
        .try_lock(&name)
        .expect("follows the redirect")
        .expect("it is free");
    eventually(2 * NEW_MAP, "the map is read once more", || {
        reads.load(Ordering::SeqCst) > 2
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// The map that the manager has names a master that is gone. All that it knows besides is a
/// replica.
#[test]
fn a_replica_of_the_last_map_leads_to_the_new_masters() {
    let cluster = Cluster::without_replicas();
    let gone = Server::start();
    gone.kill();
    let [of_gone, of_replica] = [gone.address(), cluster.address(1)].map(|address| {
        let (host, port) = address.split_once(':').expect("host and port");
        format!("*2\r\n${}\r\n{host}\r\n:{port}\r\n", host.len())
    });
    let map = format!("*1\r\n*4\r\n:0\r\n:16383\r\n{of_gone}{of_replica}");
    let seed = FakeServer::start(move |command| {
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        Reply::Bytes(match command[..] {
            [] => Vec::new(),
            ["CLUSTER", "SLOTS"] => map.clone().into_bytes(),
            ["CLUSTER", "INFO"] => b"-NOPERM no permissions\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        })
    });
    let url = format!("redis+cluster://{}{}", login(), seed.address());
    let locks = patient(&url).build_lazily().expect("sends nothing");
    // It reads the seed's map, and may find the new masters already.
    let first = locks.try_lock("a");
    let is_known = matches!(first, Ok(Some(_)) | Err(Error::Unavailable { .. }));
    assert!(is_known, "{first:?}");
    drop((first, seed));
    eventually(LONG, "the replica has been asked", || {
        locks.try_lock("a").is_ok()
    });
    assert_works(&cluster, &locks, &[0, 1, 2]);
}

/// A hold whose slot is on its way to a node that falls silent cannot be renewed. The others of the
/// node from which it comes are renewed in time.
#[test]
fn a_silent_new_owner_delays_no_renewal_at_the_old_one() {
    let cluster = small(ClusterSetup {
        proxied: true,
        node_timeout: LONG,
        ..partly()
    });
    let locks = patient(&cluster.url())
        .response_timeout(3 * SOON)
        .renew_every(PERIOD)
        .build()
        .expect("connects");
    let [kept, moved] = [(); 2].map(|()| cluster.key_on(0));
    assert_ne!(cluster.slot_of(&kept), cluster.slot_of(&moved));
    let _far = locks.named(&moved).lease(MINUTE).lock().expect("locks");
    let near = locks.named(&kept).lease(BRIEF).lock().expect("locks");
    until_renewed(&locks, &moved, 2);
    let moving = cluster.begin_move(cluster.slot_of(&moved), 1);
    moving.move_keys();
    until_renewed(&locks, &moved, 2);
    cluster.proxy(1).black_hole(true);
    throughout(4 * BRIEF, || {
        let left = cluster.server(0).pttl(&key(&kept));
        assert!(left > LEAST, "{left} ms left");
    });
    near.verify().expect("valid");
    cluster.proxy(1).black_hole(false);
    moving.end();
}

/// The healthy node forgets the script. A batch of renewals begins, almost surely, with one that is
/// redirected to a node that does not answer. The other hold learns the script all the same.
#[test]
fn row_21_a_hold_that_is_redirected_keeps_no_other_from_learning_a_forgotten_script() {
    let cluster = small(ClusterSetup {
        proxied: true,
        node_timeout: LONG,
        ..partly()
    });
    let locks = patient(&cluster.url())
        .renew_every(PERIOD)
        .build()
        .expect("connects");
    let tag = tag_on(&cluster, 0);
    let moved: Vec<_> = (0..30).map(|n| format!("{tag}{n}")).collect();
    let take = |name: &String| locks.named(name).lease(MINUTE).lock().expect("locks");
    let far: Vec<_> = moved.iter().map(take).collect();
    let name = cluster.key_on(0);
    let near = locks.named(&name).lease(BRIEF).lock().expect("locks");
    let moving = cluster.begin_move(cluster.slot_of(&moved[0]), 1);
    moving.move_keys();
    // From now on, all are renewed together.
    until_renewed(&locks, &name, 2);
    cluster.proxy(1).black_hole(true);
    cluster.server(0).query::<()>(&["SCRIPT", "FLUSH"]);
    throughout(4 * BRIEF, || assert!(near.is_valid(), "it was not renewed"));
    near.verify().expect("valid");
    cluster.proxy(1).black_hole(false);
    moving.end();
    for guard in far {
        guard.verify().expect("valid");
    }
}

/// The thread that asks them for the map is ended with the manager that could not be made.
#[test]
fn a_manager_of_silent_nodes_is_refused_by_the_connect_timeout() {
    let silent = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let hosts = silent
        .each_ref()
        .map(|it| it.local_addr().expect("bound").to_string());
    let url = format!("redis+cluster://{}", hosts.join(","));
    returns_by(SOON, "build", || {
        time(|| LockManager::builder(&url).build().expect_err("no answer")).0
    });
}

/// Seeds that accept connections and are silent do not prolong the time for which an outage is
/// tolerated.
#[test]
fn many_silent_nodes_do_not_prolong_a_wait() {
    let silent: Vec<_> = (0..20)
        .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
        .collect();
    let hosts = silent
        .iter()
        .map(|it| it.local_addr().expect("bound").to_string())
        .collect::<Vec<_>>();
    let builder = LockManager::builder(&format!("redis+cluster://{}", hosts.join(",")));
    let locks = builder
        .tolerate_outage(2 * SOON)
        .build_lazily()
        .expect("sends nothing");
    let refused = within(8 * SOON, "the end of the wait", || {
        locks.lock("a").map(Some)
    });
    assert_unavailable(&refused);
}

/// A second command could delete the key of the next holder.
#[test]
fn a_force_unlock_without_an_answer_is_not_sent_again_with_a_new_map() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..partly()
    });
    let locks = patient(&cluster.url()).build().expect("connects");
    let name = cluster.key_on(0);
    let _guard = locks.lock(&name).expect("locks");
    let force = format!("EVAL * 1 {}", key(&name));
    cluster.proxy(0).always(&force, Fault::CutBeforeReply);
    let forced = locks.named(&name).force_unlock();
    assert!(
        matches!(forced, Err(Error::Unavailable { .. })),
        "{forced:?}"
    );
    assert_eq!(cluster.proxy(0).commands(&force), 1);
}
