//! Leases that end before their locks are given back, or whose renewals come late.

use std::rc::Rc;

use crate::base::sync::scheduler::{change_link, later, now, one_in, reset_all, thread};
use crate::simulation::redis::Redis;
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes, locks, since, some};
use crate::{Error, LockGuard, LostCause, Unlocked};

/// The first renewal is answered 800 ms after it was sent, or a little more.
#[test]
fn row_07_a_renewal_counts_from_its_send() {
    in_scenes(100, |world| {
        let lease = 3 * SECOND;
        let locks = locks(|builder| {
            let builder = builder.lease(lease).client_tracking(false);
            builder.response_timeout(10 * SECOND)
        });
        let guard = locks.lock("a").expect("locks");
        guard.set_lease(lease).expect("the keeper is connected");
        let (taken, before) = (now(), locks.stats().renewed);
        thread::sleep(SECOND / 2);
        change_link(world.servers.address(0), |link| {
            link.silent_until = [0, taken + 1_800_000_000];
        });
        thread::sleep(1_310 * QUICK);
        assert_eq!(locks.stats().renewed, before + 1);
        let left = guard.remaining();
        assert!(
            left + 800 * QUICK < lease,
            "counted from the answer: {left:?}"
        );
        world.silence(60 * SECOND);
        let lost = guard.watch().wait_lost(60 * SECOND);
        assert_eq!(lost, Some(LostCause::Expired));
        assert!(world.exists("a"), "the key was gone before the hold");
    });
}

/// Redis may keep the key for longer than the lease, as after a step of its clock. Then no other
/// holder could have taken the lock.
#[test]
fn row_09_a_closure_that_outlasts_its_lease_is_lost_only_if_redis_denies_it() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder.renew(false).lease(SECOND));
        let overrun = |then: &dyn Fn()| {
            locks.with_lock_result("a", |guard| {
                thread::sleep(guard.remaining().saturating_sub(QUICK));
                assert!(guard.is_valid(), "it ended too early");
                then();
                thread::sleep(2 * QUICK);
                assert!(!guard.is_valid(), "valid after its end");
                thread::sleep(SECOND / 2);
                Ok(())
            })
        };
        let cause = |done: Result<(), Error>| match done {
            Ok(()) => None,
            Err(Error::Lost { cause, .. }) => Some(cause),
            Err(other) => panic!("{other:?}"),
        };
        assert_eq!(cause(overrun(&|| ())), Some(LostCause::Expired));
        let taken = cause(overrun(&|| world.occupy("a", 1)));
        assert_eq!(taken, Some(LostCause::Taken));
        assert!(world.exists("a"), "the key is another one's");
        world.delete("a");
        let kept = overrun(&|| {
            world.servers.nodes[0].borrow_mut().act(|redis, now| {
                let mut entry = redis.get(b"lock:a").cloned().expect("it is held");
                entry.expires = entry.expires.map(|expires| expires + 60_000);
                redis.set(b"lock:a", entry, now);
            });
        });
        assert_eq!(cause(kept), None);
        assert!(!world.exists("a"));
    });
}

/// The hold is valid when its release begins. The release is on its way, or never sent.
#[test]
fn a_lease_that_ends_while_its_release_is_on_its_way_is_no_loss() {
    in_scenes(200, |world| {
        let lease = SECOND * 7 / 10;
        let locks = locks(|builder| {
            let builder = builder.pool_size(1).lease(lease).renew(false);
            builder.response_timeout(10 * SECOND)
        });
        drop(locks.lock("a").expect("locks"));
        let is_taken = one_in(2);
        let begin = |guard: &LockGuard| {
            thread::sleep(some(lease * 9 / 10));
            let (address, until) = (world.servers.address(0), now() + 1_500_000_000);
            if one_in(2) {
                change_link(address, |link| link.silent_until = [until, 0]);
            } else {
                change_link(address, |link| link.refuses_until = until);
                reset_all(address);
            }
            let servers = Rc::clone(&world.servers);
            later(SECOND, move || {
                if is_taken {
                    World { servers }.occupy("a", 1);
                }
            });
            assert!(guard.is_valid());
        };
        if one_in(2) {
            let done = locks.with_lock_result("a", |guard| {
                begin(guard);
                Ok::<_, Error>(())
            });
            done.expect("the closure ran under the lock");
        } else {
            let guard = locks.lock("a").expect("locks");
            begin(&guard);
            let unlocked = guard.unlock();
            let is_told =
                matches!(unlocked, Err(Error::Unconfirmed { at_most, .. }) if at_most.is_zero());
            assert!(is_told, "taken by another: {is_taken}: {unlocked:?}");
        }
        assert_eq!(world.exists("a"), is_taken);
        assert_eq!(locks.stats().lost, 0);
    });
}

/// Redis can deny a hold and have its token again later: if the address moves to another server and
/// back, or if the key is renamed by hand.
#[test]
fn a_hold_that_redis_has_denied_is_lost_and_its_key_is_deleted() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        thread::sleep(2 * SECOND);
        let server = &world.servers.nodes[0];
        let entry = server.borrow().redis.get(b"lock:a").cloned();
        world.delete("a");
        let lost = guard.watch().wait_lost(SECOND);
        assert_eq!(lost, Some(LostCause::Deleted));
        let entry = entry.expect("it was held");
        let comes_back = move |redis: &mut Redis, now| redis.set(b"lock:a", entry, now);
        server.borrow_mut().act(comes_back);
        let unlocked = guard.unlock();
        assert!(unlocked.is_err_and(|error| error.is_lost()));
        assert!(!world.exists("a"));
        assert_eq!(locks.stats().lost, 1);
    });
}

/// Redis has kept it, or not got the command.
#[test]
fn a_lock_whose_keeping_has_no_answer_is_free_after_its_time_and_not_before() {
    in_scenes(100, |world| {
        let least = SECOND + some(2 * SECOND);
        let answer = SECOND / 4;
        let locks = locks(|builder| builder.response_timeout(answer).connect_timeout(answer));
        drop(locks.lock("b").expect("locks"));
        let asked = now();
        let lock = locks.named("a").keep_at_least(least);
        let guard = lock.lock().expect("locks");
        let (is_executed, until) = (one_in(2), now() + 800_000_000);
        change_link(world.servers.address(0), |link| {
            link.silent_until = [if is_executed { 0 } else { until }, until];
        });
        let unlocked = guard.unlock();
        assert!(
            matches!(unlocked, Err(Error::Unconfirmed { .. })),
            "{unlocked:?}"
        );
        thread::sleep(least.saturating_sub(since(asked) + QUICK));
        assert!(world.exists("a"), "it was deleted before its time");
        thread::sleep(2 * SECOND);
        assert!(!world.exists("a"), "it is kept for too long");
    });
}

#[test]
fn row_12_a_release_without_an_answer_is_repeated_in_the_background() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder.response_timeout(SECOND / 4));
        let guard = locks.lock("a").expect("locks");
        world.silence(SECOND + some(SECOND));
        let unlocked = guard.unlock();
        assert!(
            matches!(unlocked, Err(Error::Unconfirmed { .. })),
            "{unlocked:?}"
        );
        assert!(locks.held().is_empty());
        thread::sleep(4 * SECOND);
        assert!(!world.exists("a"));
        assert_eq!(
            locks.lock("a").expect("locks").unlock().expect("unlocks"),
            Unlocked::Released
        );
    });
}
