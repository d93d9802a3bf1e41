//! Replicas that have to acknowledge a lock and its renewals.

use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{change_link, later, now, one_in, reset_all, thread};
use crate::simulation::redis::Redis;
use crate::simulation::rows::nodes::locks;
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes_with, since, some};
use crate::simulation::world::engine::{Copies, Engine};
use crate::simulation::world::replication::follow;
use crate::{Error, LostCause, Unlocked};

/// The replica has to acknowledge within 100 ms.
const ONE: Engine = Engine::Replicas(Copies::ONE_SAFE);

impl World {
    /// The replica hears nothing more of its master.
    fn cuts_replica(&self) {
        let mut master = self.servers.nodes[0].borrow_mut();
        master.streams.iter_mut().for_each(|it| it.is_cut = true);
    }

    fn heals(&self) {
        follow(&self.servers.nodes[0], &self.servers.nodes[1]);
        thread::sleep(QUICK);
    }
}

fn lacks_replicas<T>(what: &str, result: Result<T, Error>) {
    let error = result.map(drop).expect_err("no replica has it");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let told = format!("0 of 1 replicas acknowledged the {what} within");
    assert!(error.to_string().contains(&told), "{error}");
}

#[test]
fn a_lock_that_no_replica_has_is_taken_when_one_is_back() {
    in_scenes_with(ONE, 40, |world| {
        let locks = locks(ONE, |builder| builder.tolerate_outage(60 * SECOND));
        let parcel = locks.lock("parcel").expect("locks");
        let parcel = parcel.hand_over().expect("hands over");
        assert!(world.node_has(1, "parcel"));
        world.cuts_replica();
        lacks_replicas("lock", locks.try_lock("a"));
        lacks_replicas("lock", locks.named("a").try_lock_for(SECOND));
        lacks_replicas("lock", locks.named("a").wait(SECOND).lock());
        lacks_replicas("lock", locks.several(["a", "b"]).try_lock());
        lacks_replicas("lock", locks.adopt(&parcel));
        // The keeper deletes what an attempt leaves that ends by its deadline.
        thread::sleep(SECOND);
        assert!(!["a", "b", "parcel"].iter().any(|it| world.exists(it)));
        let waits = thread::spawn(move || {
            let guard = locks.lock("a").expect("locks");
            (now(), guard.detach().expect("detaches"))
        });
        thread::sleep(some(5 * SECOND));
        let healed = now();
        world.heals();
        let (taken, hold) = waits.join().expect("no panic");
        assert!(world.node_has(1, "a"));
        let took = Duration::from_nanos(taken - healed);
        assert!(took < SECOND, "taken after {took:?}");
        drop(hold);
    });
}

/// The replica may become the master, and then gives the lock away when that lease ends.
#[test]
fn a_hold_ends_with_the_last_lease_that_a_replica_has() {
    in_scenes_with(ONE, 40, |world| {
        let locks = locks(ONE, |builder| builder.lease(3 * SECOND));
        let guard = locks.lock("a").expect("locks");
        thread::sleep(some(5 * SECOND));
        world.cuts_replica();
        while guard.is_valid() {
            world.servers.nodes[1].borrow_mut().act(Redis::advance);
            assert!(world.node_has(1, "a"), "the replica gives it away");
            thread::sleep(some(10 * QUICK));
        }
        assert!(world.exists("a"), "the master has renewed it");
        let cause = guard.watch().wait_lost(SECOND);
        assert_eq!(cause, Some(LostCause::Expired));
    });
}

#[test]
fn no_lease_is_extended_without_replicas_and_a_loss_is_told() {
    in_scenes_with(ONE, 20, |world| {
        let locks = locks(ONE, |builder| builder.lease(60 * SECOND).renew(false));
        let guard = locks.lock("a").expect("locks");
        world.cuts_replica();
        let left = guard.remaining();
        lacks_replicas("renewal", guard.set_lease(120 * SECOND));
        lacks_replicas("renewal", guard.ensure(90 * SECOND));
        lacks_replicas("renewal", guard.confirm(30 * SECOND));
        assert!(guard.is_valid() && guard.remaining() <= left);
        guard.verify().expect("the master has the key");
        world.heals();
        guard.set_lease(120 * SECOND).expect("extends");
        assert!(guard.remaining() > 60 * SECOND);
        world.cuts_replica();
        world.delete("a");
        let extended = guard.set_lease(60 * SECOND);
        let is_lost = matches!(
            extended,
            Err(Error::Lost {
                cause: LostCause::Deleted,
                ..
            })
        );
        assert!(is_lost, "{extended:?}");
    });
}

#[test]
fn only_what_takes_or_renews_a_lock_waits_for_replicas() {
    in_scenes_with(ONE, 20, |world| {
        let [locks, others] = [(); 2].map(|()| locks(ONE, |builder| builder));
        let [guard, other] = ["a", "c"].map(|name| locks.lock(name).expect("locks"));
        drop(others.lock("b").expect("locks"));
        world.cuts_replica();
        let asked = now();
        drop(other); // The replica lacks that.
        drop(locks.lock("a").expect("locks again"));
        guard.verify().expect("the master has the key");
        assert!(others.try_lock("a").expect("Redis works").is_none());
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(since(asked) < 10 * QUICK, "took {:?}", since(asked));
    });
}

#[test]
fn nothing_is_handed_off_past_the_replicas() {
    in_scenes_with(ONE, 20, |_| {
        let locks = locks(ONE, |builder| builder.local_handoff(SECOND));
        let threads = [(); 4].map(|()| {
            let locks = locks.clone();
            thread::spawn(move || {
                for _ in 0..10 {
                    locks.with_lock("a", || thread::sleep(QUICK)).expect("runs");
                }
            })
        });
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!(locks.stats().handed_off, 0);
    });
}

/// The answer, or the connection, is lost at any moment, whether a replica has the lock or not.
#[test]
fn a_wait_whose_answer_is_lost_leaves_a_lock_or_no_key() {
    in_scenes_with(ONE, 200, |world| {
        let locks = locks(ONE, |builder| builder);
        drop(locks.lock("a").expect("locks"));
        let is_cut = one_in(2);
        if is_cut {
            world.cuts_replica();
        }
        let (master, is_silent) = (world.servers.address(0), one_in(2));
        later(some(if is_cut { 150 * QUICK } else { QUICK }), move || {
            if is_silent {
                let until = now() + 300_000_000;
                change_link(master, |link| link.silent_until = [0, until]);
            } else {
                reset_all(master);
            }
        });
        let limit = some(SECOND);
        match locks.named("a").try_lock_for(limit) {
            Ok(Some(_guard)) => assert!(!is_cut && world.node_has(1, "a")),
            Ok(None) => panic!("its own key is in its way"),
            Err(_) => {}
        }
        thread::sleep(3 * SECOND);
        assert!(!world.exists("a"));
    });
}

/// While Redis waits for its replica, clients lose their way to Redis, or a script keeps it busy.
#[test]
fn a_key_that_too_few_replicas_have_is_deleted_later_if_its_removal_fails() {
    in_scenes_with(ONE, 40, |world| {
        let locks = locks(ONE, |builder| builder.response_timeout(SECOND / 2));
        drop(locks.lock("a").expect("locks"));
        world.cuts_replica();
        let (master, span) = (world.servers.address(0), 5 * SECOND + some(SECOND));
        let (is_away, server) = (one_in(2), Rc::clone(&world.servers));
        later(some(90 * QUICK), move || {
            let until = now() + u64::try_from(span.as_nanos()).expect("a short time");
            if is_away {
                change_link(master, |link| {
                    (link.silent_until, link.refuses_until) = ([until, 0], until);
                });
            } else {
                let mut server = server.nodes[0].borrow_mut();
                server.act(|redis, _| redis.faults().stuck_until = until);
            }
        });
        assert!(locks.try_lock("a").is_err());
        assert!(world.exists("a"), "the removal has come there");
        thread::sleep(10 * SECOND);
        assert!(!world.exists("a"));
    });
}

/// Those that come later count, too.
#[test]
fn all_replicas_are_those_that_the_sentinels_know_and_one_at_least() {
    let engine = Engine::Sentinel(Copies::ONE_SAFE);
    in_scenes_with(engine, 20, move |world| {
        world.sentinels_know(0, 1, 0);
        world.cuts_replica();
        let locks = locks(engine, |builder| builder);
        lacks_replicas("lock", locks.try_lock("a"));
        world.heals();
        drop(locks.lock("a").expect("locks"));
        world.sentinels_know(0, 1, 2);
        thread::sleep(11 * SECOND);
        let error = locks.try_lock("a").expect_err("there is only one");
        let told = "1 of 2 replicas acknowledged the lock within";
        assert!(error.to_string().contains(told), "{error}");
    });
}
