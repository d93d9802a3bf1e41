//! Answers that are lost, or come late.

use std::time::Duration;

use crate::base::sync::scheduler::{change_link, later, now, one_in, reset_all, thread};
use crate::simulation::redis::Value;
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes, locks, since, some};
use crate::{Error, LockGuard, LockManager, LostCause, Unlocked};

/// After `moment`, all connections are reset, and none can be opened for `span`.
pub(crate) fn ends_after(world: &World, moment: Duration, span: Duration) {
    let address = world.servers.address(0);
    let span = u64::try_from(span.as_nanos()).expect("a short time");
    later(moment, move || {
        let until = now() + span;
        change_link(address, |link| link.refuses_until = until);
        reset_all(address);
    });
}

/// A second release finds no key, since the first one was executed.
#[test]
fn row_12_a_release_whose_answer_is_lost_is_sent_again_and_is_no_loss() {
    in_scenes(200, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        ends_after(world, some(QUICK / 4), Duration::ZERO);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(!world.exists("a"));
    });
}

/// It is asked again with another token, whether Redis has executed it or not.
#[test]
fn an_attempt_whose_answer_is_lost_delays_the_lock_for_a_moment() {
    in_scenes(200, |world| {
        let locks = locks(|builder| builder);
        drop(locks.lock("b").expect("locks"));
        ends_after(world, some(QUICK / 4), Duration::ZERO);
        let asked = now();
        let guard = locks.lock("a").expect("locks");
        let took = since(asked);
        assert!(took < SECOND, "it took {took:?}");
        guard.unlock().expect("unlocks");
        assert!(!world.exists("a"));
    });
}

/// The key that its first command has set is its own.
#[test]
fn a_single_try_whose_answer_is_lost_finds_no_other_holder() {
    in_scenes(200, |world| {
        let locks = locks(|builder| builder);
        drop(locks.lock("b").expect("locks"));
        ends_after(world, some(QUICK / 4), Duration::ZERO);
        let taken = locks.try_lock("a").expect("Redis is back at once");
        assert!(taken.is_some(), "nobody has it");
    });
}

/// Long before its lease ends.
#[test]
fn a_key_that_may_exist_is_deleted_when_redis_is_back() {
    in_scenes(300, |world| {
        let locks = locks(|builder| builder.tolerate_outage(SECOND));
        if one_in(2) {
            ends_after(world, some(QUICK / 2), 3 * SECOND);
            let taken = locks.try_lock("a");
            thread::sleep(QUICK);
            drop(taken);
        } else {
            let guard = locks.lock("a").expect("locks");
            let waiter = locks.clone();
            let waits = thread::spawn(move || drop(waiter.named("a").try_lock_for(2 * SECOND)));
            thread::sleep(5 * QUICK);
            ends_after(world, some(QUICK / 4), 3 * SECOND);
            drop(guard);
            waits.join().expect("no panic");
        }
        thread::sleep(5 * SECOND);
        assert!(!world.exists("a"));
    });
}

/// The guard of the lost lock lives on, as in a closure that hangs.
#[test]
fn a_waiter_beside_a_lost_guard_is_woken_by_others() {
    in_scenes(60, |world| {
        let (mine, others) = (locks(|builder| builder), locks(|builder| builder));
        let holder = mine.clone();
        let hangs = thread::spawn(move || {
            let _lost = holder.lock("a").expect("locks");
            thread::sleep(30 * SECOND);
        });
        thread::sleep(5 * SECOND);
        world.delete("a");
        thread::sleep(some(SECOND / 2));
        let other = others.lock("a").expect("it is free");
        let waits = thread::spawn(move || {
            let _taken = mine.lock("a").expect("locks");
            now()
        });
        thread::sleep(SECOND + some(5 * SECOND));
        let freed = now();
        drop(other);
        let woken = waits.join().expect("no panic");
        assert!(woken < freed + 100_000_000, "{} ns later", woken - freed);
        hangs.join().expect("no panic");
    });
}

/// The last renewal was a second before the outage at most.
#[test]
fn a_renewal_that_failed_is_tried_again_before_the_hold_ends() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder.lease(3 * SECOND));
        let guard = locks.lock("a").expect("locks");
        thread::sleep(2 * SECOND + some(3 * SECOND));
        ends_after(world, Duration::ZERO, 1_700 * QUICK);
        thread::sleep(5 * SECOND);
        assert!(guard.is_valid());
    });
}

/// Its renewal is sent together with that of a longer one, for which the answer comes in time.
#[test]
fn a_hold_that_has_ended_stays_so_when_its_renewal_is_answered() {
    in_scenes(300, |world| {
        let locks = locks(|builder| builder);
        let _long = locks
            .named("b")
            .lease(SECOND * 6 / 5)
            .lock()
            .expect("locks");
        let short = locks.named("a").lease(SECOND / 2).lock().expect("locks");
        thread::sleep(some(2 * SECOND));
        let until = now() + 600_000_000;
        change_link(world.servers.address(0), |link| {
            link.silent_until = [0, until];
        });
        let mut has_ended = false;
        for _ in 0..100 {
            thread::sleep(10 * QUICK);
            assert!(!(has_ended && short.is_valid()), "it is trusted again");
            has_ended |= !short.is_valid();
        }
        assert!(
            has_ended,
            "it has not ended in a silence that is longer than its lease"
        );
        if let Err(error) = short.unlock() {
            let is_over = matches!(
                error,
                Error::Lost {
                    cause: LostCause::Expired,
                    ..
                }
            );
            assert!(is_over, "{error:?}");
        }
    });
}

/// The keeper asks at that moment, and the invalidation comes before the answer.
#[test]
fn a_key_that_is_deleted_while_it_is_renewed_is_told_in_time() {
    in_scenes(400, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        thread::sleep(SECOND + some(3 * QUICK));
        world.delete("a");
        let deleted = now();
        assert_eq!(
            guard.watch().wait_lost(60 * SECOND),
            Some(LostCause::Deleted)
        );
        assert!(
            since(deleted) < 50 * QUICK,
            "told after {:?}",
            since(deleted)
        );
    });
}

/// No lease is extended any more, but the hold is trusted until its last one ends.
#[test]
fn a_key_that_is_gone_after_max_hold_is_told_in_time() {
    in_scenes(200, |world| {
        let tracking = one_in(2);
        let locks = locks(|builder| {
            let builder = builder.max_hold(30 * SECOND);
            builder.client_tracking(tracking)
        });
        let guard = locks.lock("a").expect("locks");
        thread::sleep(30 * SECOND + some(9 * SECOND));
        assert!(guard.is_valid());
        let cause = if one_in(2) {
            world.delete("a");
            LostCause::Deleted
        } else {
            world.occupy("a", 1);
            LostCause::Taken
        };
        let (gone, limit) = (now(), if tracking { 50 * QUICK } else { 10 * SECOND });
        assert_eq!(guard.watch().wait_lost(60 * SECOND), Some(cause));
        let told = since(gone);
        assert!(told < limit, "told after {told:?}");
    });
}

/// No question about the key extends its lease then.
#[test]
fn a_key_ends_a_lease_after_max_hold() {
    in_scenes(50, |world| {
        let locks = locks(|builder| builder.max_hold(30 * SECOND));
        let _guard = locks.lock("a").expect("locks");
        thread::sleep(31 * SECOND + some(8 * SECOND));
        let expires = || {
            let server = world.servers.nodes[0].borrow();
            server.redis.get(b"lock:a").and_then(|entry| entry.expires)
        };
        let before = expires();
        assert!(before.is_some());
        world.servers.nodes[0].borrow_mut().act(|redis, now| {
            let entry = redis.get(b"lock:a").cloned().expect("it is held");
            redis.set(b"lock:a", entry, now);
        });
        thread::sleep(10 * SECOND);
        assert_eq!(expires(), before);
        thread::sleep(20 * SECOND);
        assert!(!world.exists("a"));
    });
}

/// The swap was executed, and nobody can be asked again for a while.
#[test]
fn an_adoption_without_an_answer_leaves_no_lock_that_nobody_has() {
    in_scenes(200, |world| {
        let one = locks(|builder| builder);
        let other = locks(|builder| {
            builder
                .response_timeout(SECOND / 4)
                .connect_timeout(SECOND / 4)
        });
        let parcel = one.lock("a").expect("locks").hand_over();
        let parcel = parcel.expect("hands over");
        drop(other.lock("b").expect("locks"));
        ends_after(world, some(QUICK / 4), 3 * SECOND);
        let adopted = other.adopt(&parcel);
        thread::sleep(5 * SECOND);
        let server = world.servers.nodes[0].borrow();
        let left = server.redis.get(b"lock:a").map(|entry| entry.value.clone());
        drop(server);
        if let Ok(guard) = adopted {
            assert!(guard.is_valid());
            return;
        }
        let old = Value::String(parcel.token.clone().into_bytes());
        let is_old = left.as_ref() == Some(&old);
        assert!(is_old || left.is_none(), "the new token is left");
        // If the script never arrived, the parcel is as good as before.
        let other = one.adopt(&parcel);
        thread::sleep(2 * SECOND);
        assert_eq!(other.is_ok_and(|guard| guard.is_valid()), is_old);
    });
}

/// The first script was executed, and the second one finds its token.
#[test]
fn the_key_of_an_adoption_that_was_sent_twice_lives_as_long_as_its_hold() {
    in_scenes(100, |world| {
        let one = locks(|builder| builder);
        let other = locks(|builder| {
            let builder = builder.lease(2 * SECOND).renew(false);
            builder.response_timeout(2 * SECOND)
        });
        let hand_over = |key| one.lock(key).expect("locks").hand_over();
        let [first, parcel] = ["b", "a"].map(|key| hand_over(key).expect("hands over"));
        drop(other.adopt(&first).expect("adopts")); // The script is known from then on.
        let silent_until = [0, now() + 1_000_000_000];
        let address = world.servers.address(0);
        change_link(address, |link| link.silent_until = silent_until);
        ends_after(world, SECOND, Duration::ZERO);
        let guard = other.adopt(&parcel).expect("the second answer comes");
        thread::sleep(guard.remaining().saturating_sub(QUICK));
        assert!(guard.is_valid() && world.exists("a"));
    });
}

/// The answer of the last renewal before an outage is lost. Its lease is nine seconds.
fn is_renewed_without_an_answer(world: &World, outage: Duration) -> (LockManager, LockGuard) {
    let locks = locks(|builder| {
        let builder = builder.lease(9 * SECOND).response_timeout(SECOND / 4);
        builder.connect_timeout(SECOND / 4)
    });
    let guard = locks.lock("a").expect("locks");
    // It was renewed after a second, and will be after three more.
    thread::sleep(3_900 * QUICK);
    change_link(world.servers.address(0), |link| {
        link.silent_until = [0, u64::MAX / 2];
    });
    thread::sleep(200 * QUICK);
    change_link(world.servers.address(0), |link| link.silent_until = [0; 2]);
    ends_after(world, Duration::ZERO, outage);
    (locks, guard)
}

/// The hold ends in the outage, and so does its release. Its key would last for three seconds more.
#[test]
fn a_key_that_outlives_its_hold_is_deleted_when_redis_is_back() {
    in_scenes(50, |world| {
        let (_locks, guard) = is_renewed_without_an_answer(world, 7 * SECOND);
        thread::sleep(6 * SECOND + some(SECOND / 2));
        assert!(!guard.is_valid());
        assert!(guard.unlock().is_err_and(|error| error.is_lost()));
        thread::sleep(2 * SECOND);
        assert!(!world.exists("a"));
    });
}

#[test]
fn an_unconfirmed_release_says_for_how_long_its_key_may_exist() {
    in_scenes(50, |world| {
        let (_locks, guard) = is_renewed_without_an_answer(world, 60 * SECOND);
        thread::sleep(some(4 * SECOND));
        match guard.unlock() {
            Err(Error::Unconfirmed { at_most, .. }) => thread::sleep(at_most),
            other => panic!("{other:?}"),
        }
        assert!(!world.exists("a"));
    });
}

/// Somebody has changed the key once, and Redis has reported that.
#[test]
fn a_change_of_its_key_renews_a_hold_once() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        thread::sleep(2 * SECOND + some(SECOND));
        let before = locks.stats().renewed;
        let mut server = world.servers.nodes[0].borrow_mut();
        let entry = server.redis.get(b"lock:a").cloned().expect("it is held");
        server.act(|redis, now| redis.set(b"lock:a", entry, now));
        drop(server);
        thread::sleep(5 * SECOND);
        assert_eq!(locks.stats().renewed, before + 1);
        assert!(guard.is_valid());
    });
}

/// Redis forgets what a connection has read when that connection ends.
#[test]
fn a_key_that_is_deleted_behind_the_end_of_the_connection_that_renewed_it_is_told_soon() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        thread::sleep(2 * SECOND + some(SECOND)); // It was renewed after a second.
        world.servers.nodes[0].borrow_mut().act(|redis, now| {
            let listeners = redis.listeners();
            redis.kill_all_but(&listeners, now);
        });
        thread::sleep(some(SECOND));
        world.delete("a");
        let deleted = now();
        assert_eq!(
            guard.watch().wait_lost(5 * SECOND),
            Some(LostCause::Deleted)
        );
        let took = since(deleted);
        assert!(took < SECOND + 50 * QUICK, "it took {took:?}");
    });
}
