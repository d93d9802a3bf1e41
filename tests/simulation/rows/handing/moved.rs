//! Holds that go to another thread, and what becomes of a hold that is to go to another process.

use std::time::Duration;

use crate::base::sync::scheduler::{change_link, fail, later, now, one_in, reset_all, thread};
use crate::simulation::redis::Value;
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes, locks, since, some};
use crate::{DetachedHold, Error, LockManager, LockParcel, LostCause, Unlocked};

fn detached(locks: &LockManager, name: &str) -> DetachedHold {
    let guard = locks.lock(name).expect("locks");
    guard.detach().expect("detaches")
}

fn parcel_of(locks: &LockManager, name: &str) -> LockParcel {
    let guard = locks.lock(name).expect("locks");
    guard.hand_over().expect("hands over")
}

/// Until `moment`, commands (or answers) are on their way.
fn delay(world: &World, way: usize, moment: u64) {
    change_link(world.servers.address(0), |link| {
        link.silent_until[way] = moment;
    });
}

/// The thread that took it ends at once.
#[test]
fn a_detached_hold_goes_on_in_another_thread_or_is_released() {
    in_scenes(60, |world| {
        let locks = locks(|builder| builder.fenced(true).lease(3 * SECOND));
        let theirs = locks.clone();
        let takes = thread::spawn(move || {
            let guard = theirs.lock("a").expect("locks");
            let (token, fence) = (guard.token().to_owned(), guard.fence());
            (guard.detach().expect("detaches"), token, fence)
        });
        let (hold, token, fence) = takes.join().expect("no panic");
        assert!(locks.named("a").current().is_none(), "no thread has it");
        let waiter = locks.clone();
        let waits = thread::spawn(move || drop(waiter.lock("a").expect("locks")));
        thread::sleep(10 * SECOND);
        assert!(hold.watch().is_valid() && world.exists("a"));
        if one_in(2) {
            drop(hold);
        } else {
            let guard = hold.attach().expect("attaches");
            assert_eq!((guard.token(), guard.fence()), (&*token, fence));
            let again = locks.lock("a").expect("re-enters");
            assert_eq!((again.token(), again.depth()), (&*token, 2));
            drop(again);
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        }
        waits.join().expect("no panic");
        assert!(!world.exists("a"));
    });
}

#[test]
fn dropping_a_detached_hold_ends_by_the_response_timeout() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder.response_timeout(SECOND));
        let hold = detached(&locks, "a");
        world.silence(60 * SECOND);
        let began = now();
        drop(hold);
        assert!(since(began) < SECOND + 5 * QUICK, "{:?}", since(began));
    });
}

#[test]
fn a_lost_hold_neither_leaves_its_thread_nor_comes_to_another() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let [a, c] = ["a", "c"].map(|name| locks.lock(name).expect("locks"));
        let b = detached(&locks, "b");
        for name in ["a", "b", "c"] {
            world.delete(name);
        }
        thread::sleep(2 * SECOND);
        let (b, error) = b.try_attach().expect_err("it is lost");
        for told in [
            Err(error),
            a.detach().map(drop),
            b.unlock().map(drop),
            c.hand_over().map(drop),
        ] {
            let cause = LostCause::Deleted;
            assert!(
                matches!(told, Err(Error::Lost { cause: is, .. }) if is == cause),
                "{told:?}"
            );
        }
        assert!(locks.held().is_empty());
    });
}

/// The thread has the lock by a parcel that it should not have had: the key was deleted, and nobody
/// has noticed that yet.
#[test]
fn a_hold_is_not_attached_where_the_lock_is_held_already() {
    in_scenes(20, |world| {
        let (mine, other) = (locks(|builder| builder), locks(|builder| builder));
        let hold = detached(&mine, "a");
        world.delete("a");
        let guard = mine.adopt(&parcel_of(&other, "a")).expect("adopts");
        let (hold, error) = hold.try_attach().expect_err("the thread holds it");
        assert!(matches!(error, Error::AlreadyHeld { .. }), "{error:?}");
        assert_eq!(guard.depth(), 1);
        drop(hold);
        assert!(world.exists("a"), "it was not that hold's to delete");
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    });
}

/// Nobody knows which thread will release a hold that is detached.
#[test]
fn a_hold_is_part_of_a_deadlock_only_while_a_thread_has_it() {
    in_scenes(60, |_| {
        let locks = locks(|builder| builder);
        let is_attached = one_in(2);
        let hold = detached(&locks, "a");
        let b = locks.lock("b").expect("locks");
        let theirs = locks.clone();
        let waits = thread::spawn(move || {
            let (attached, detached) = if is_attached {
                (Some(hold.attach().expect("attaches")), None)
            } else {
                (None, Some(hold))
            };
            thread::sleep(10 * QUICK);
            let taken = theirs.named("b").wait(20 * SECOND).lock().map(drop);
            drop((attached, detached));
            taken
        });
        thread::sleep(10 * QUICK + some(QUICK));
        let mine = locks.named("a").wait(5 * SECOND).lock().map(drop);
        drop(b);
        let told = [mine, waits.join().expect("no panic")];
        let is_circle = |it: &Result<(), Error>| matches!(it, Err(Error::WouldDeadlock { .. }));
        let circles = told.iter().filter(|it| is_circle(it)).count();
        assert_eq!(circles, usize::from(is_attached), "{told:?}");
    });
}

#[test]
fn a_hand_over_ends_the_hold_of_its_sender_and_is_no_loss() {
    in_scenes(60, |_| {
        let one = locks(|builder| builder.on_lost(|_| fail("a hand-over is no loss")));
        let other = locks(|builder| builder.lease(2 * SECOND));
        let guard = one.lock("a").expect("locks");
        let watch = guard.watch();
        let watches = thread::spawn(move || (watch.wait_lost(60 * SECOND), now()));
        thread::sleep(some(3 * SECOND));
        let parcel = guard.hand_over().expect("hands over");
        let ended = now();
        assert!(one.held().is_empty() && one.named("a").current().is_none());
        let (told, at) = watches.join().expect("no panic");
        let late = Duration::from_nanos(at.saturating_sub(ended));
        assert!(told.is_none() && late < QUICK, "{told:?} after {late:?}");
        for locks in [&one, &other] {
            assert!(locks.try_lock("a").expect("answers").is_none());
        }
        let adopted = other.adopt(&parcel).expect("adopts");
        thread::sleep(5 * SECOND);
        assert!(adopted.is_valid(), "it is not renewed");
        assert_eq!(one.stats().lost, 0);
    });
}

#[test]
fn a_lock_that_cannot_be_renewed_is_not_handed_over() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder.response_timeout(SECOND / 2));
        let guard = locks.lock("a").expect("locks");
        world.silence(10 * SECOND);
        if one_in(2) {
            let (guard, error) = guard.try_hand_over().expect_err("no answer");
            assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
            thread::sleep(12 * SECOND);
            assert!(guard.is_valid());
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        } else {
            let error = guard.hand_over().expect_err("no answer");
            assert!(error.is_redis_failure(), "{error:?}");
            thread::sleep(12 * SECOND);
        }
        assert!(!world.exists("a"), "an error keeps no lock");
    });
}

/// Whatever answers are lost.
#[test]
fn of_two_that_adopt_at_once_one_wins() {
    in_scenes(400, |world| {
        let parcel = parcel_of(&locks(|builder| builder.fenced(true)), "a");
        let adopts = |_| {
            let (mine, parcel) = (locks(|builder| builder), parcel.clone());
            thread::spawn(move || {
                let adopted = mine.adopt(&parcel);
                thread::sleep(5 * SECOND); // Nobody releases it before both have tried.
                match adopted {
                    Ok(guard) => {
                        assert!(guard.is_valid() && guard.fence() > parcel.fence);
                        Some(guard.token().to_owned().into_bytes())
                    }
                    Err(Error::Lost {
                        cause: LostCause::Taken,
                        ..
                    }) => None,
                    Err(error) => panic!("{error:?}"),
                }
            })
        };
        let threads = [0; 2].map(adopts);
        let address = world.servers.address(0);
        if one_in(2) {
            later(some(QUICK), move || reset_all(address));
        }
        thread::sleep(4 * SECOND);
        let value = world.value("a");
        let tokens = threads.map(|it| it.join().expect("no panic"));
        let won: Vec<_> = tokens.into_iter().flatten().map(Value::String).collect();
        assert_eq!((won.len(), won.first()), (1, value.as_ref()));
    });
}

/// Redis executes the first try when the second one has long been answered.
#[test]
fn an_adoption_that_is_executed_late_changes_nothing() {
    in_scenes(20, |world| {
        let one = locks(|builder| builder);
        let other = locks(|builder| {
            let builder = builder.response_timeout(SECOND).connect_timeout(4 * SECOND);
            builder.renew(false).lease(20 * SECOND)
        });
        let [first, parcel] = ["b", "a"].map(|name| parcel_of(&one, name));
        drop(other.adopt(&first).expect("adopts")); // Redis knows the script.
        delay(world, 0, now() + 6_000_000_000);
        let address = world.servers.address(0);
        later(SECOND / 4, move || {
            change_link(address, |link| link.silent_until = [0; 2]);
        });
        let began = now();
        let guard = other.adopt(&parcel).expect("the second try is answered");
        let took = since(began);
        assert!(SECOND / 4 < took && took < 3 * SECOND, "{took:?}");
        guard.set_lease(60 * SECOND).expect("extends");
        thread::sleep(8 * SECOND);
        let token = Value::String(guard.token().to_owned().into_bytes());
        assert_eq!(world.value("a"), Some(token));
        thread::sleep(50 * SECOND);
        assert!(
            guard.is_valid() && world.exists("a"),
            "the longer lease counts"
        );
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    });
}

/// A thread that has lost a lock does not begin to work under another one.
#[test]
fn an_adoption_during_which_an_outer_lock_ends_is_undone() {
    in_scenes(20, |world| {
        let parcel = parcel_of(&locks(|builder| builder), "b");
        let mine = locks(|builder| builder.response_timeout(20 * SECOND));
        let outer = mine.named("a").renew(false).lease(SECOND).lock();
        let outer = outer.expect("locks");
        delay(world, 1, now() + 3_000_000_000);
        let adopted = mine.named("b").keep_at_least(60 * SECOND).adopt(&parcel);
        assert!(
            matches!(&adopted, Err(Error::OuterLost { outer, .. }) if outer == "a"),
            "{adopted:?}"
        );
        thread::sleep(SECOND);
        assert!(!world.exists("b"), "nobody has done its work");
        assert!(outer.unlock().is_err_and(|error| error.is_lost()));
    });
}
