//! Clusters.

use std::net::SocketAddr;
use std::time::Duration;

use crate::base::sync::scheduler::{below, change_link, now, one_in, thread, threads_left};
use crate::simulation::plan::{Failover, Fault, Master, name, path};
use crate::simulation::redis::{View, slot};
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes_with, since, some};
use crate::simulation::world::cluster::move_slot;
use crate::simulation::world::engine::{Copies, Engine};
use crate::{Builder, Error, LockGuard, LockManager, Unlocked};

pub(super) const CLUSTER: Engine = Engine::Cluster(Copies::NONE);

/// Each master has a replica.
pub(super) const REPLICATED: Engine = Engine::Cluster(Copies::ONE);

pub(super) fn locks(engine: Engine, change: impl FnOnce(Builder) -> Builder) -> LockManager {
    change(engine.builder())
        .build_lazily()
        .expect("options that can work")
}

/// Nothing comes from there for `span`.
pub(super) fn silence(address: SocketAddr, span: Duration) {
    let until = now() + u64::try_from(span.as_nanos()).expect("a short time");
    change_link(address, |link| link.silent_until = [until; 2]);
}

impl World {
    pub(super) fn node_has(&self, node: usize, key: &str) -> bool {
        self.servers.nodes[node]
            .borrow()
            .redis
            .get(format!("lock:{key}").as_bytes())
            .is_some()
    }

    /// The slot of a key begins to move, and the key is at its target already.
    pub(super) fn carries_over(&self, key: usize) {
        let nodes = &self.servers.nodes;
        let source = self.servers.shard_of_key(key);
        let (slot, target) = (slot(path(key)), (source + 1) % 3);
        let change = |node: usize, change: &dyn Fn(&mut View)| {
            change(nodes[node].borrow_mut().redis.view().expect("a node"));
        };
        change(source, &|view| _ = view.migrating.insert(slot, target));
        change(target, &|view| _ = view.importing.insert(slot, source));
        let entry = nodes[source].borrow().redis.get(path(key)).cloned();
        let entry = entry.expect("it is held");
        nodes[target]
            .borrow_mut()
            .act(|redis, now| redis.set(path(key), entry, now));
        nodes[source]
            .borrow_mut()
            .act(|redis, now| redis.delete(path(key), now));
    }

    /// The node of the first key, to which nothing was sent. This manager has the map.
    pub(super) fn reads_the_map(&self, locks: &LockManager) -> usize {
        let first = self.servers.shard_of_key(0);
        let other = (1..10)
            .find(|key| self.servers.shard_of_key(*key) != first)
            .expect("there are three nodes");
        drop(locks.lock(name(other)).expect("locks"));
        first
    }

    /// The master of the first key's slot dies, and its replica takes its place.
    pub(super) fn loses_master_of_first_key(&self) {
        self.loses_master_of(self.servers.shard_of_key(0));
    }

    pub(super) fn loses_master_of(&self, shard: usize) {
        let after = some(SECOND / 2).as_millis();
        let failover = Failover {
            shard,
            how: Master::Dies,
            after: u64::try_from(after).expect("a short time"),
            back: 1_000_000,
            learns: 0,
        };
        Fault::Failover(failover).happens(&self.servers, &[]);
    }

    /// Whether any node has it.
    pub(super) fn has(&self, key: &str) -> bool {
        (0..self.servers.nodes.len()).any(|node| self.node_has(node, key))
    }
}

/// Its lease is shorter than the time after which the map is read again.
#[test]
fn a_hold_whose_slot_moves_is_kept() {
    in_scenes_with(CLUSTER, 60, |world| {
        let locks = locks(CLUSTER, |builder| builder.lease(SECOND / 2));
        let guard = locks.lock(name(0)).expect("locks");
        thread::sleep(some(SECOND));
        move_slot(&world.servers, 0);
        let end =
            now() + 3_000_000_000 + u64::try_from(some(SECOND).as_nanos()).expect("a short time");
        while now() < end {
            thread::sleep(some(SECOND / 10));
            assert!(guard.is_valid() && world.has(name(0)));
        }
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(!world.has(name(0)));
    });
}

/// By then all nodes know the owner of the slot, and one has told the manager. The third one may be
/// silent.
#[test]
fn a_waiter_behind_a_slot_that_has_moved_is_woken_by_the_release() {
    in_scenes_with(CLUSTER, 60, |world| {
        let (holder, waiter) = (
            locks(CLUSTER, |builder| builder),
            locks(CLUSTER, |builder| builder),
        );
        let guard = holder.lock(name(0)).expect("locks");
        let waits = thread::spawn(move || {
            drop(waiter.lock(name(0)).expect("locks"));
            now()
        });
        thread::sleep(some(SECOND));
        let source = world.servers.shard_of_key(0);
        move_slot(&world.servers, 0);
        thread::sleep(SECOND);
        let third = 3 - source - world.servers.shard_of_key(0);
        if one_in(2) {
            silence(world.servers.address(third), 60 * SECOND);
        }
        thread::sleep(6 * SECOND + some(SECOND));
        let released = now();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        let woken = waits.join().expect("no panic");
        assert!(
            woken < released + 5_000_000,
            "woken {:?} after the release",
            since(released)
        );
        assert!(!world.has(name(0)));
    });
}

/// A redirect costs a connection and a command.
#[test]
fn a_lock_is_taken_and_given_back_quickly_while_its_slot_moves() {
    in_scenes_with(CLUSTER, 20, |world| {
        let locks = locks(CLUSTER, |builder| builder);
        for round in 0..200 {
            if round == 20 {
                move_slot(&world.servers, 0);
            }
            let asked = now();
            let guard = locks.lock(name(0)).expect("locks");
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            assert!(since(asked) < 10 * QUICK, "took {:?}", since(asked));
            thread::sleep(some(40 * QUICK));
        }
    });
}

/// Of a batch of renewals, one is redirected, since its slot is on its way, and the others meet a
/// script that the node has forgotten.
#[test]
fn a_redirected_renewal_keeps_no_other_from_teaching_the_script() {
    in_scenes_with(CLUSTER, 60, |world| {
        let locks = locks(CLUSTER, |builder| builder.lease(SECOND / 2));
        let source = world.servers.shard_of_key(0);
        let same: Vec<_> = (0..40)
            .filter(|key| world.servers.shard_of_key(*key) == source)
            .take(3)
            .collect();
        let held: Vec<_> = same
            .iter()
            .map(|key| locks.lock(name(*key)).expect("locks"))
            .collect();
        thread::sleep(some(SECOND));
        let moves = same[usize::try_from(below(3)).expect("small")];
        let nodes = &world.servers.nodes;
        world.carries_over(moves);
        for _ in 0..100 {
            nodes[source]
                .borrow_mut()
                .act(|redis, _| redis.script_flush());
            thread::sleep(some(20 * QUICK));
            assert!(held.iter().all(LockGuard::is_valid));
        }
    });
}

#[test]
fn a_cluster_that_was_silent_at_first_is_found() {
    in_scenes_with(CLUSTER, 20, |world| {
        let span = some(5 * SECOND);
        (0..3).for_each(|number| silence(world.servers.address(number), span));
        let locks = locks(CLUSTER, |builder| builder.tolerate_outage(20 * SECOND));
        let asked = now();
        drop(locks.lock("a").expect("locks"));
        assert!(
            since(asked) < span + 3 * SECOND,
            "took {:?}, silent for {span:?}",
            since(asked)
        );
    });
}

/// See the row of the guarantees: the nodes are far away.
#[test]
fn a_cluster_may_be_far_away() {
    in_scenes_with(CLUSTER, 40, |world| {
        let far = |span: Duration| {
            let latency = u64::try_from(span.as_nanos()).expect("a short time") / 2;
            (0..3).for_each(|it| {
                change_link(world.servers.address(it), |link| {
                    link.latency = (latency, latency);
                });
            });
        };
        far(some(115 * QUICK));
        drop(CLUSTER.builder().build().expect("the cluster is well"));
        far(some(450 * QUICK));
        let locks = locks(CLUSTER, |builder| builder);
        assert!(
            locks
                .named("a")
                .try_lock_for(10 * SECOND)
                .expect("the cluster is well")
                .is_some()
        );
    });
}

#[test]
fn seeds_that_do_not_answer_prolong_no_wait() {
    in_scenes_with(CLUSTER, 4, |_| {
        let silent = (0..20).map(|number| SocketAddr::from(([10, 1, 0, number], 6379)));
        let silent: Vec<_> = silent.collect();
        for address in &silent {
            silence(*address, 1_000 * SECOND);
        }
        let hosts: Vec<_> = silent.iter().map(ToString::to_string).collect();
        let builder = LockManager::builder(&format!("redis+cluster://{}", hosts.join(",")));
        let builder = builder
            .connect_timeout(SECOND / 2)
            .response_timeout(SECOND / 2);
        let locks = builder
            .tolerate_outage(3 * SECOND)
            .build_lazily()
            .expect("options that can work");
        let asked = now();
        assert!(locks.lock("a").is_err());
        assert!(since(asked) < 4 * SECOND, "took {:?}", since(asked));
    });
}

/// Connects to it are refused, and no node is there that could redirect.
#[test]
fn a_master_of_a_cluster_that_dies_is_replaced_within_a_second() {
    in_scenes_with(REPLICATED, 40, |world| {
        let locks = locks(REPLICATED, |builder| builder);
        drop(locks.lock(name(0)).expect("locks"));
        thread::sleep(SECOND + some(SECOND));
        world.loses_master_of_first_key();
        // By then, all nodes know of the new one.
        thread::sleep(4 * SECOND + some(SECOND));
        let asked = now();
        drop(locks.lock(name(0)).expect("the replica has its place"));
        assert!(since(asked) < SECOND, "took {:?}", since(asked));
    });
}

#[test]
fn no_thread_is_left_for_a_node_that_has_left_the_cluster() {
    in_scenes_with(REPLICATED, 20, |world| {
        let locks = locks(REPLICATED, |builder| builder);
        let _guard = locks.lock(name(0)).expect("locks");
        let serves = |it: &String| it.contains("relatch-listen") || it.contains("relatch-renewer");
        let count = || threads_left().into_iter().filter(serves).count();
        thread::sleep(2 * SECOND + some(SECOND));
        assert_eq!(count(), 2, "{:?}", threads_left());
        world.loses_master_of_first_key();
        thread::sleep(30 * SECOND);
        assert_eq!(count(), 2, "{:?}", threads_left());
    });
}

/// The failure is that of an attempt to read the map which ended long ago.
#[test]
fn a_cluster_that_is_back_is_found_by_a_single_try() {
    in_scenes_with(CLUSTER, 40, |world| {
        let refuse = |until: u64| {
            (0..3).for_each(|it| {
                change_link(world.servers.address(it), |link| link.refuses_until = until);
            });
        };
        refuse(u64::MAX);
        let locks = locks(CLUSTER, |builder| builder);
        assert!(locks.try_lock("a").is_err());
        thread::sleep(SECOND + some(SECOND));
        refuse(0);
        thread::sleep(SECOND + some(SECOND));
        let taken = locks.try_lock("a");
        assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
    });
}

/// The old node answers `ASK`, and will report no change of the key.
#[test]
fn a_waiter_behind_a_slot_that_is_on_its_way_looks_again_soon() {
    in_scenes_with(CLUSTER, 40, |world| {
        let (holder, waiter) = (
            locks(CLUSTER, |builder| builder),
            locks(CLUSTER, |builder| builder),
        );
        let guard = holder.lock(name(0)).expect("locks");
        world.carries_over(0);
        let waits = thread::spawn(move || {
            drop(waiter.lock(name(0)).expect("locks"));
            now()
        });
        thread::sleep(SECOND / 2 + some(3 * SECOND));
        let released = now();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        let took = Duration::from_nanos(waits.join().expect("no panic") - released);
        assert!(took < SECOND / 2, "taken {took:?} after the release");
    });
}

/// What the silent node leaves of the time is for the others.
#[test]
fn the_silent_node_of_one_lock_keeps_no_other_of_a_set() {
    in_scenes_with(CLUSTER, 40, |world| {
        let locks = locks(CLUSTER, |builder| builder.response_timeout(SECOND));
        let first = world.servers.shard_of_key(0);
        let other = (1..10)
            .find(|key| world.servers.shard_of_key(*key) != first)
            .expect("there are three nodes");
        let all = locks.several([name(0), name(other)]);
        let all = all.lock().expect("locks");
        silence(world.servers.address(first), 60 * SECOND);
        let unlocked = all.unlock();
        let is_of_first =
            matches!(&unlocked, Err(Error::Unconfirmed { key, .. }) if *key == name(0));
        assert!(is_of_first, "{unlocked:?}");
        assert!(!world.has(name(other)));
    });
}
