//! Holds that are lost: who learns of it, how soon, and what can be asked meanwhile.

use std::thread;
use std::time::Duration;

use relatch::LockManager;
use relatch_rig::{LONG, eventually, throughout, unique_key, within};

use crate::support::{INJURIES, MINUTE, PERIOD, Rig, assert_lost, tracked_hold};

/// The next renewal, which would find the loss, is far away.
#[test]
fn row_06_a_lock_whose_key_is_gone_is_lost_at_once_and_its_key_stays_as_it_is() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    for (what, injure, cause) in INJURIES {
        let name = unique_key("a");
        let key = format!("lock:{name}");
        let guard = tracked_hold(&rig.server, &rig.locks, &name);
        injure(&rig.server, &key);
        let lost = guard.watch().wait_lost(MINUTE / 6);
        assert_eq!(lost, Some(cause), "{what}");
        assert_eq!(rig.locks.held()[0].lost, Some(cause), "{what}");
        assert!(!guard.is_valid() && guard.remaining() == Duration::ZERO);
        let kind = || rig.server.query::<String>(&["TYPE", &key]);
        let (stands, left) = (kind(), rig.server.pttl(&key));
        throughout(3 * PERIOD, || {
            assert_eq!(kind(), stands, "{what}: made again, or gone");
            assert!(rig.server.pttl(&key) <= left, "{what}: pushed out");
        });
        assert_lost(&guard.unlock(), cause);
        assert_eq!(kind(), stands, "{what}: after the unlock");
    }
}

#[test]
fn row_16_every_holder_learns_that_redis_was_restarted() {
    let rig = Rig::with(|builder| builder.lease(MINUTE / 2).renew_every(PERIOD));
    let other = LockManager::connect(&rig.server.url()).expect("connects");
    let keys = [(); 4].map(|()| unique_key("a"));
    let (locks, other) = (&rig.locks, &other);
    thread::scope(|scope| {
        let holders = keys.each_ref().map(|key| {
            scope.spawn(move || {
                let guard = locks.lock(key).expect("locks");
                let cause = guard.watch().wait_lost(LONG);
                assert!(!guard.is_valid());
                (cause, guard.unlock())
            })
        });
        eventually(LONG, "all are held", || locks.held().len() == keys.len());
        let waiters = keys.each_ref().map(|key| {
            [locks, other].map(|from| {
                scope.spawn(move || match from.lock(key) {
                    Ok(guard) => drop(guard),
                    Err(error) => assert!(error.is_redis_failure(), "{error:?}"),
                })
            })
        });
        eventually(LONG, "the others wait", || {
            other.stats().waited == keys.len() as u64
        });
        rig.server.restart();
        within(2 * LONG, "everybody comes back", || {
            for holder in holders {
                let (cause, unlocked) = holder.join().expect("no panic");
                let cause = cause.expect("lost");
                assert_lost(&unlocked, cause);
            }
            waiters
                .into_iter()
                .flatten()
                .for_each(|it| it.join().expect("no panic"));
        });
    });
    assert_eq!(locks.stats().lost, keys.len() as u64);
    assert!(locks.held().is_empty() && other.held().is_empty());
    for key in &keys {
        rig.assert_works(key);
        let guard = other.lock(key).expect("locks");
        assert!(guard.verify().is_ok());
    }
}
