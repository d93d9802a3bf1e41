//! Parcels: who adopts a lock, with which lease and fence, and beside which queue and shutdown.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::sync::scheduler::{change_link, now, one_in, thread};
use crate::simulation::redis::{Entry, Value};
use crate::simulation::rows::{
    self, QUICK, SECOND, World, in_long_strides, in_scenes, locks, since, some,
};
use crate::{Error, LockGuard, LockManager, LockParcel, Unlocked};

#[test]
fn a_parcel_is_adopted_once_and_has_no_fence_that_nobody_asked_for() {
    in_scenes(50, |world| {
        let (one, other) = (locks(|builder| builder), locks(|builder| builder));
        let parcel = one
            .lock("a")
            .expect("locks")
            .hand_over()
            .expect("hands over");
        let parcel: LockParcel = parcel.to_string().parse().expect("a parcel");
        let guard = other.adopt(&parcel).expect("adopts");
        assert_eq!(guard.fence(), None);
        if one_in(2) {
            let again = one.adopt(&parcel).map(drop);
            assert!(matches!(again, Err(Error::Lost { .. })), "{again:?}");
        }
        guard.unlock().expect("unlocks");
        let again = one.adopt(&parcel).map(drop);
        assert!(
            matches!(again, Err(Error::NothingToAdopt { .. })),
            "{again:?}"
        );
        assert!(!world.exists("a"));
    });
}

/// Redis loads its data at first, and then has no memory left.
#[test]
fn an_adoption_that_is_refused_at_last_says_why() {
    in_scenes(20, |world| {
        let (one, other) = (locks(|builder| builder), locks(|builder| builder));
        let parcel = one.lock("a").expect("locks").hand_over();
        let parcel = parcel.expect("hands over");
        let mut server = world.servers.nodes[0].borrow_mut();
        server.act(|redis, now| {
            redis.faults().loading_until = now + 50_000_000;
            redis.faults().out_of_memory = true;
        });
        drop(server);
        let adopted = other.adopt(&parcel).map(drop);
        let text = adopted.expect_err("no memory is left").to_string();
        assert!(text.contains("OOM"), "{text}");
    });
}

/// The adopter has the time that is left of the parcel's lease.
#[test]
fn a_parcel_has_a_whole_lease() {
    in_scenes(50, |_| {
        let locks = locks(|builder| builder.lease(3 * SECOND));
        let guard = locks.lock("a").expect("locks");
        thread::sleep(some(5 * SECOND));
        let left = Duration::from_millis(guard.hand_over().expect("hands over").left);
        // A lease is trusted for 32 ms less, and the answer took a moment.
        let whole = 2968 * QUICK;
        assert!(left <= whole && left + 3 * QUICK >= whole, "{left:?}");
    });
}

/// The counter is gone, and the server's clock was set back.
#[test]
fn the_fence_of_who_adopts_is_larger_than_that_in_the_parcel() {
    in_scenes(20, |world| {
        let (one, other) = (
            locks(|builder| builder.fenced(true)),
            locks(|builder| builder.fenced(true)),
        );
        let parcel = one
            .lock("a")
            .expect("locks")
            .hand_over()
            .expect("hands over");
        let mut server = world.servers.nodes[0].borrow_mut();
        server.act(|redis, now| {
            let counter = redis
                .keys()
                .find(|key| *key != b"lock:a")
                .expect("the counter")
                .to_vec();
            redis.delete(&counter, now);
        });
        server.redis.step_clock(-2_000_000);
        drop(server);
        thread::sleep(some(5 * QUICK));
        match other.adopt(&parcel) {
            Ok(guard) => assert!(
                guard.fence() > parcel.fence,
                "{:?} and {:?}",
                guard.fence(),
                parcel.fence
            ),
            Err(error) => {
                assert!(
                    matches!(error, Error::NoFence { .. } | Error::Refused { .. }),
                    "{error:?}"
                );
            }
        }
    });
}

#[test]
fn the_error_of_detach_or_hand_over_keeps_no_guard() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let outer = locks.lock("a").expect("locks");
        let inner = locks.lock("a").expect("reenters");
        let failed = if one_in(2) {
            inner.detach().map(drop)
        } else {
            inner.hand_over().map(drop)
        };
        assert!(
            matches!(failed, Err(Error::OtherGuards { depth: 2, .. })),
            "{failed:?}"
        );
        assert_eq!(outer.depth(), 1);
        outer.unlock().expect("unlocks");
        assert!(!world.exists("a"));
    });
}

/// The old token may stay, for a process that adopts it later.
#[test]
fn a_shutdown_leaves_nothing_of_an_adoption_that_is_under_way() {
    in_scenes(300, |world| {
        let (one, other) = (locks(|builder| builder), locks(|builder| builder));
        let parcel = one
            .lock("a")
            .expect("locks")
            .hand_over()
            .expect("hands over");
        let (adopts, its_parcel) = (other.clone(), parcel.clone());
        let adopts = thread::spawn(move || {
            let adopted = adopts.adopt(&its_parcel);
            thread::sleep(SECOND);
            assert!(!adopted.is_ok_and(|guard| guard.is_valid()));
        });
        thread::sleep(some(QUICK / 2));
        let _ = other.shutdown_and_release(Duration::ZERO);
        let left = world.value("a");
        let old = Value::String(parcel.token.clone().into_bytes());
        assert!(
            left.as_ref().is_none_or(|left| *left == old),
            "{left:?} is left"
        );
        adopts.join().expect("no panic");
    });
}

/// The manager takes the lock from its thread just before that makes the parcel.
#[test]
fn a_shutdown_leaves_nothing_of_a_lock_that_is_not_handed_over() {
    in_scenes(300, |world| {
        let mine = locks(|builder| builder);
        let theirs = mine.clone();
        let hands = thread::spawn(move || theirs.lock("a").expect("locks").hand_over());
        while mine.stats().renewed == 0 {
            thread::sleep(QUICK / 1000);
        }
        let _ = mine.shutdown_and_release(Duration::ZERO);
        let is_left = world.exists("a");
        let parcel = hands.join().expect("no panic");
        assert_eq!(is_left, parcel.is_ok(), "{parcel:?}");
    });
}

/// A manager whose queue for a lock belongs to a hold of this thread, and the parcel that another
/// manager has made of the lock: the key was deleted, and nobody has noticed yet. Who adopts it
/// gets no turn.
fn beside_the_queue(world: &World) -> (LockManager, LockGuard, LockParcel) {
    let locks = locks(|builder| builder.client_tracking(false));
    let guard = locks.lock("a").expect("locks");
    world.delete("a");
    let other = rows::locks(|builder| builder);
    let taken = other.lock("a").expect("the key was deleted");
    (locks, guard, taken.hand_over().expect("hands over"))
}

/// A program that exits then would leave the lock taken for a lease, and no report has named it.
#[test]
fn no_lock_is_adopted_behind_a_shutdown() {
    in_long_strides(1_000, |world| {
        let (locks, guard, parcel) = beside_the_queue(world);
        let adopts = locks.clone();
        let adopts = thread::spawn(move || {
            let adopted = adopts.adopt(&parcel);
            thread::sleep(SECOND);
            drop(adopted);
        });
        thread::sleep(some(QUICK / 500));
        let _ = locks.shutdown(Duration::ZERO);
        let at_the_end = world.value("a");
        for _ in 0..50 {
            thread::sleep(QUICK / 50);
            let value = world.value("a");
            assert!(
                value.is_none() || value == at_the_end,
                "{value:?} is taken, and there was {at_the_end:?} when the shutdown returned"
            );
        }
        adopts.join().expect("no panic");
        drop(guard);
    });
}

/// If the program exited before the release is sent, the lock would stay taken for a lease.
#[test]
fn a_shutdown_returns_behind_the_release_of_an_adopted_lock() {
    in_scenes(300, |world| {
        let (locks, guard, parcel) = beside_the_queue(world);
        let began = now();
        let adopts = locks.clone();
        let adopts = thread::spawn(move || {
            let adopted = adopts.adopt(&parcel).expect("adopts");
            // A shutdown looks every five milliseconds.
            let when = 6 * QUICK + some(QUICK / 100);
            thread::sleep(when.saturating_sub(since(began)));
            adopted.unlock().expect("unlocks");
        });
        thread::sleep(QUICK);
        let _ = locks.shutdown(SECOND);
        assert!(!world.exists("a"), "its release is under way");
        adopts.join().expect("no panic");
        drop(guard);
    });
}

/// The swap goes out over the connection over which the waiter has asked, so Redis tells it
/// nothing.
#[test]
fn a_waiter_of_the_process_that_adopts_hears_of_the_next_change() {
    in_scenes(50, |world| {
        let one = locks(|builder| builder);
        let mine = locks(|builder| builder.pool_size(1));
        let guard = one.lock("a").expect("locks");
        let waiter = mine.clone();
        let waits = thread::spawn(move || {
            drop(waiter.lock("a").expect("locks"));
            now()
        });
        thread::sleep(SECOND + some(SECOND));
        let parcel = guard.hand_over().expect("hands over");
        let adopted = mine.adopt(&parcel).expect("adopts");
        thread::sleep(SECOND / 2);
        let changed = now();
        let _lost = if one_in(2) {
            world.delete("a");
            Some(adopted)
        } else {
            drop(adopted);
            None
        };
        let took = Duration::from_nanos(waits.join().expect("no panic") - changed);
        assert!(took < 50 * QUICK, "taken {took:?} after the change");
    });
}

/// A thread of the process waits for the lock, and need not be asked.
#[test]
fn an_adoption_beside_a_waiter_takes_one_round_trip() {
    in_scenes(20, |world| {
        let (one, mine) = (locks(|builder| builder), locks(|builder| builder));
        let parcel = || {
            one.lock("a")
                .expect("locks")
                .hand_over()
                .expect("hands over")
        };
        drop(mine.adopt(&parcel()).expect("adopts")); // Redis knows the scripts now.
        let guard = one.lock("a").expect("locks");
        let waiter = mine.clone();
        let waits = thread::spawn(move || drop(waiter.lock("a").expect("locks")));
        thread::sleep(SECOND);
        let parcel = guard.hand_over().expect("hands over");
        thread::sleep(SECOND / 10); // Its last renewal has woken the waiter.
        let way = 50 * QUICK;
        change_link(world.servers.address(0), |link| {
            link.latency = (50_000_000, 50_000_000);
        });
        let began = now();
        let adopted = mine.adopt(&parcel).expect("adopts");
        assert!(since(began) < 2 * way + 5 * QUICK, "{:?}", since(began));
        drop(adopted);
        waits.join().expect("no panic");
    });
}

/// Between the questions for the holder and for the counter, another thread takes the lock. The
/// number in the counter is that of its hold then.
#[test]
fn a_holder_is_not_said_to_have_the_fence_of_the_next_one() {
    in_scenes(40, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (10_000, 400_000);
        });
        let (ours, theirs) = (
            locks(|builder| builder.fenced(true)),
            locks(|builder| builder.fenced(true)),
        );
        let fences = Arc::new(Mutex::new(BTreeMap::new()));
        let takes = Arc::clone(&fences);
        let turns = thread::spawn(move || {
            for _ in 0..40 {
                let guard = theirs.lock("a").expect("locks");
                let fence = guard.fence().expect("it is fenced");
                takes.lock().insert(guard.token().to_owned(), fence);
            }
        });
        let mut seen = Vec::new();
        while !turns.is_finished() {
            seen.extend(ours.named("a").holder().expect("Redis works"));
        }
        turns.join().expect("no panic");
        assert!(!seen.is_empty());
        for holder in seen {
            assert_eq!(holder.fence, fences.lock().get(&holder.raw).copied());
        }
    });
}

/// The claim that goes out with the release is refused. The thread that it was for asks again, and
/// learns why.
#[test]
fn a_thread_whose_fence_is_refused_at_the_hand_off_learns_it() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder.fenced(true).local_handoff(60 * SECOND));
        let first = locks.lock("a").expect("locks");
        let next = locks.clone();
        let next = thread::spawn(move || next.lock("a").map(drop));
        thread::sleep(10 * QUICK);
        world.servers.nodes[0].borrow_mut().act(|redis, now| {
            let entry = Entry {
                value: Value::String(b"abc".to_vec()),
                expires: None,
            };
            redis.set(b"lock:fence:{lock:a}", entry, now);
        });
        assert_eq!(first.unlock().expect("unlocks"), Unlocked::Released);
        let refused = next.join().expect("no panic");
        assert!(
            matches!(&refused, Err(Error::Refused { code, .. }) if code == "NOFENCE"),
            "{refused:?}"
        );
        assert!(!world.exists("a"));
    });
}
