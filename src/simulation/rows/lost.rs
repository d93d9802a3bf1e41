//! Answers that are lost, or come late.

use std::time::Duration;

use crate::base::sync::scheduler::{change_link, later, now, one_in, reset_all, thread};
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes, locks, since, some};
use crate::{Error, LostCause, Unlocked};

/// After `moment`, all connections are reset, and none can be opened for `span`.
fn ends_after(world: &World, moment: Duration, span: Duration) {
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
fn a_release_whose_answer_is_lost_is_sent_again_and_is_no_loss() {
    in_scenes(200, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        ends_after(world, some(QUICK / 4), Duration::ZERO);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!(!world.exists("a"));
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
