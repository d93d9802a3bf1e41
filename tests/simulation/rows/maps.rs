//! Maps of a cluster that are out of date.

use std::time::Duration;

use crate::Builder;
use crate::base::sync::scheduler::{change_link, now, one_in, thread};
use crate::simulation::plan::{Fault, ServerFault, name};
use crate::simulation::rows::nodes::{CLUSTER, locks, silence};
use crate::simulation::rows::{QUICK, SECOND, in_scenes_with, since, some};

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
