//! Maps of a cluster that are out of date, slots that move, and nodes that are silent or gone.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{change_link, later, now, one_in, reset_all, thread};
use crate::simulation::plan::{Fault, ServerFault, name, path};
use crate::simulation::redis::{Entry, Redis, Value};
use crate::simulation::rows::nodes::{CLUSTER, REPLICATED, locks, silence};
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes_with, since, some};
use crate::simulation::world::cluster::move_slot;
use crate::{Builder, LockGuard};

/// Nothing has shown that the map is out of date: what is asked is the first thing that this
/// process asks of the node.
#[test]
fn a_node_at_another_address_is_found_by_a_question_that_is_asked_once() {
    in_scenes_with(CLUSTER, 40, |world| {
        let quiet = |builder: Builder| builder.renew(false).client_tracking(false);
        let locks = locks(CLUSTER, |builder| quiet(builder).lease(60 * SECOND));
        let first = world.reads_the_map(&locks);
        let lock = locks.named(name(0));
        let moves = |may_be_silent: bool| {
            thread::sleep(3 * SECOND); // The map is read again after the call before.
            let old = world.servers.address(first);
            if may_be_silent && one_in(2) {
                // Nobody is left there who could refuse.
                silence(old, 1_000 * SECOND);
            }
            Fault::Server(first, ServerFault::Readdressed, 0).happens(&world.servers, &[]);
            // By then, all nodes know of it.
            thread::sleep(4 * SECOND + some(SECOND));
        };
        moves(true);
        assert!(matches!(lock.holder(), Ok(None)));
        let guard = lock.lock().expect("locks");
        moves(false);
        guard.verify().expect("the cluster is well");
        moves(true);
        assert!(matches!(lock.force_unlock(), Ok(Some(_))));
    });
}

/// Another call has just had the map read, and no other one comes before the timeouts.
#[test]
fn a_question_takes_the_map_that_comes_during_its_attempt() {
    in_scenes_with(CLUSTER, 200, |world| {
        let locks = locks(CLUSTER, |builder| {
            let builder = builder.connect_timeout(SECOND / 5);
            builder.response_timeout(SECOND / 5).client_tracking(false)
        });
        let first = world.reads_the_map(&locks);
        thread::sleep(3 * SECOND);
        Fault::Server(first, ServerFault::Readdressed, 0).happens(&world.servers, &[]);
        thread::sleep(4 * SECOND);
        let lock = locks.named(name(0));
        // It fails, unless the map comes while it connects.
        drop(lock.try_lock());
        assert!(matches!(lock.holder(), Ok(None)));
    });
}

/// The question is the first that needs a map, and is told where a node is that is not there yet.
#[test]
fn a_question_is_not_content_with_the_first_map_of_all() {
    in_scenes_with(CLUSTER, 40, |world| {
        let locks = locks(CLUSTER, |builder| builder);
        let address = world.servers.address(world.servers.shard_of_key(0));
        let back = now() + 500_000_000;
        change_link(address, |link| link.refuses_until = back);
        let lock = locks.named(name(0));
        if one_in(2) {
            assert!(matches!(lock.holder(), Ok(None)));
        } else {
            assert!(matches!(lock.force_unlock(), Ok(None)));
        }
    });
}

/// No other node has its slots.
#[test]
fn a_question_that_is_asked_once_at_a_node_that_is_gone_waits_for_one_map() {
    in_scenes_with(CLUSTER, 40, |world| {
        let timeout = 5 * SECOND;
        let locks = locks(CLUSTER, |builder| {
            let builder = builder.connect_timeout(timeout).response_timeout(timeout);
            builder.client_tracking(false)
        });
        let first = world.reads_the_map(&locks);
        let gone = world.servers.address(first);
        change_link(gone, |link| link.refuses_until = u64::MAX);
        let lock = locks.named(name(0));
        let took_at_most = |limit: Duration, ask: &dyn Fn() -> bool| {
            thread::sleep(some(2 * SECOND));
            let asked = now();
            assert!(ask());
            assert!(since(asked) < limit, "took {:?}", since(asked));
        };
        took_at_most(SECOND + 10 * QUICK, &|| lock.holder().is_err());
        took_at_most(SECOND + 10 * QUICK, &|| lock.force_unlock().is_err());
        // Meanwhile, other threads would be told that the lock is busy.
        took_at_most(10 * QUICK, &|| lock.try_lock().is_err());
    });
}

impl World {
    /// The locks, beside the first, that this node has.
    fn others_on(&self, node: usize) -> impl Iterator<Item = &'static str> {
        let others = (1..40).filter(move |key| self.servers.shard_of_key(*key) == node);
        others.map(name)
    }

    fn other_on(&self, node: usize) -> &'static str {
        self.others_on(node).next().expect("each node has some")
    }

    /// Somebody deletes the lock, wherever it is.
    fn deletes(&self, key: &str) {
        let key = format!("lock:{key}");
        for node in &self.servers.nodes {
            let delete = |redis: &mut Redis, now| redis.delete(key.as_bytes(), now);
            node.borrow_mut().act(delete);
        }
    }
}

/// The node executes a claim, its answer is lost, and the key is carried over before it is deleted.
#[test]
fn the_key_of_a_lost_answer_is_deleted_at_the_new_owner() {
    in_scenes_with(CLUSTER, 60, |world| {
        let locks = locks(CLUSTER, |builder| builder.response_timeout(SECOND / 5));
        drop(locks.lock(name(0)).expect("locks"));
        let source = world.servers.address(world.servers.shard_of_key(0));
        silence_of_answers(source, SECOND / 4);
        let taking = thread::spawn({
            let locks = locks.clone();
            move || assert!(locks.try_lock(name(0)).is_err())
        });
        thread::sleep(SECOND / 10);
        if one_in(2) {
            world.carries_over(0);
        } else {
            move_slot(&world.servers, 0);
        }
        taking.join().expect("no panic");
        thread::sleep(3 * SECOND);
        assert!(!world.has(name(0)));
    });
}

/// What is sent to it arrives.
fn silence_of_answers(address: SocketAddr, span: Duration) {
    let until = now() + u64::try_from(span.as_nanos()).expect("a short time");
    change_link(address, |link| link.silent_until = [0, until]);
}

/// The hold is tracked at the new owner though it was not renewed there: its period is 40 s.
#[test]
fn the_map_is_looked_at_now_and_then_though_nothing_shows_that_it_is_old() {
    in_scenes_with(CLUSTER, 20, |world| {
        let locks = locks(CLUSTER, |builder| builder.lease(120 * SECOND));
        let guard = locks.lock(name(0)).expect("locks");
        thread::sleep(some(SECOND));
        move_slot(&world.servers, 0);
        thread::sleep(25 * SECOND);
        world.deletes(name(0));
        thread::sleep(5 * QUICK);
        assert!(!guard.is_valid());
    });
}

/// The silent node has the first lock, or is about to get it.
#[test]
fn what_is_done_on_other_nodes_does_not_wait_for_a_silent_one() {
    in_scenes_with(CLUSTER, 20, |world| {
        let locks = locks(CLUSTER, |builder| {
            let builder = builder.response_timeout(10 * SECOND);
            builder.lease(SECOND).renew_every(SECOND / 5)
        });
        let lock = |name| locks.lock(name).expect("locks");
        let _first = locks
            .named(name(0))
            .lease(60 * SECOND)
            .lock()
            .expect("locks");
        let node = world.servers.shard_of_key(0);
        let silent = if one_in(2) { (node + 1) % 3 } else { node };
        let others: Vec<_> = (0..3)
            .filter(|it| *it != silent)
            .flat_map(|it| world.others_on(it).take(3))
            .map(lock)
            .collect();
        thread::sleep(SECOND / 2 + some(SECOND / 5));
        if silent != node {
            world.carries_over(0);
            thread::sleep(some(SECOND / 2));
        }
        silence(world.servers.address(silent), 600 * SECOND);
        for _ in 0..100 {
            thread::sleep(some(SECOND / 10));
            assert!(others.iter().all(LockGuard::is_valid));
        }
        let asked = now();
        for guard in others {
            guard.set_lease(SECOND).expect("extends");
            guard.verify().expect("its node is well");
            guard.unlock().expect("unlocks");
        }
        // An extension may wait for a renewal that is under way.
        assert!(since(asked) < SECOND / 2, "took {:?}", since(asked));
    });
}

/// The replica lacks it.
#[test]
fn a_lock_that_died_with_its_master_is_told_with_the_next_map() {
    in_scenes_with(REPLICATED, 20, |world| {
        let locks = locks(REPLICATED, |builder| builder.lease(120 * SECOND));
        let node = world.servers.shard_of_key(0);
        let mut master = world.servers.nodes[node].borrow_mut();
        master.streams.iter_mut().for_each(|it| it.is_cut = true);
        drop(master);
        let guard = locks.lock(name(0)).expect("locks");
        guard.set_lease(120 * SECOND).expect("extends");
        let other = locks.lock(world.other_on((node + 1) % 3)).expect("locks");
        thread::sleep(some(SECOND));
        world.loses_master_of_first_key();
        thread::sleep(8 * SECOND);
        assert!(!guard.is_valid() && other.is_valid());
        drop(guard);
        drop(locks.lock(name(0)).expect("the replica has its place"));
    });
}

/// All masters that the map and the URL name are gone.
#[test]
fn a_replica_of_the_last_map_leads_to_the_new_masters() {
    in_scenes_with(REPLICATED, 20, |world| {
        let locks = locks(REPLICATED, |builder| builder);
        drop(locks.lock(name(0)).expect("locks"));
        thread::sleep(some(SECOND));
        (0..3).for_each(|it| world.loses_master_of(it));
        thread::sleep(10 * SECOND);
        for node in 0..3 {
            let lock = locks.named(world.other_on(node)).wait(SECOND);
            drop(lock.lock().expect("the replicas have their places"));
        }
    });
}

#[test]
fn a_manager_is_made_although_nodes_are_dead_or_silent() {
    in_scenes_with(CLUSTER, 40, |world| {
        let node = 0; // The first that is asked.
        let address = world.servers.address(node);
        if one_in(2) {
            silence(address, 60 * SECOND);
        } else {
            change_link(address, |link| link.refuses_until = u64::MAX);
        }
        let asked = now();
        let locks = CLUSTER.builder().build().expect("two nodes answer");
        for other in (1..3).map(|it| world.other_on((node + it) % 3)) {
            drop(locks.lock(other).expect("locks"));
        }
        assert!(since(asked) < SECOND, "took {:?}", since(asked));
    });
}

/// It was executed, and the connection ends. A second command would delete the next holder's key.
#[test]
fn a_force_unlock_without_an_answer_is_not_sent_again_with_a_new_map() {
    in_scenes_with(CLUSTER, 100, |world| {
        let locks = locks(CLUSTER, |builder| builder);
        drop(locks.lock(name(0)).expect("locks"));
        let node = world.servers.shard_of_key(0);
        let (address, servers) = (world.servers.address(node), Rc::clone(&world.servers));
        let occupy = move |number: u32| {
            let value = Value::String(format!("host-{number}-1-{number:032x}").into_bytes());
            servers.nodes[node].borrow_mut().act(|redis, now| {
                redis.advance(now);
                let expires = Some(redis.clock() + 60_000);
                if redis.get(path(0)).is_none() {
                    redis.set(path(0), Entry { value, expires }, now);
                }
            });
        };
        occupy(1);
        later(some(QUICK / 4), move || reset_all(address));
        later(SECOND / 10, move || occupy(2));
        let forced = locks.named(name(0)).force_unlock();
        thread::sleep(3 * SECOND);
        let is_of_first = matches!(&forced, Ok(Some(holder)) if holder.raw.starts_with("host-1-"));
        assert!(
            is_of_first || forced.is_err() && world.has(name(0)),
            "{forced:?}"
        );
    });
}
