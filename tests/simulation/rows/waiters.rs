//! Who waits for whom: circles, and the list of the threads that wait.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::base::sync::scheduler::{now, one_in, thread};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::{Error, Holder, Owner};

/// Each waits for what the other one holds through another manager: in front of its queue, or
/// behind a thread that learns before or after it who holds the lock.
#[test]
fn a_circle_through_two_managers_is_found_wherever_its_threads_stand() {
    in_scenes(100, |_| {
        let managers = [locks(|builder| builder), locks(|builder| builder)];
        let both = |mine: &'static str, wanted: &'static str, manager: usize| {
            let locks = managers[manager].clone();
            thread::spawn(move || {
                let guard = locks.lock(mine).expect("locks");
                thread::sleep(20 * QUICK + some(QUICK));
                let front = one_in(2).then(|| {
                    let locks = locks.clone();
                    thread::spawn(move || drop(locks.lock(wanted).expect("locks")))
                });
                thread::sleep(some(2 * QUICK));
                let asked = now();
                let taken = locks.lock(wanted).map(drop);
                let told = (taken, since(asked));
                drop(guard);
                if let Some(front) = front {
                    front.join().expect("no panic");
                }
                told
            })
        };
        let threads = [both("a", "b", 0), both("b", "a", 1)];
        let told = threads.map(|thread| thread.join().expect("no panic"));
        let told: Vec<_> = told.iter().filter(|(taken, _)| taken.is_err()).collect();
        let [(Err(Error::WouldDeadlock { .. }), took)] = told[..] else {
            panic!("one of them is told: {told:?}");
        };
        assert!(*took < 20 * QUICK, "told after {took:?}");
    });
}

/// A thread that waits is listed once, and none that has the lock: neither the first one, which
/// waits for another process, nor those that get the lock from it.
#[test]
fn who_waits_is_listed_wherever_it_stands_and_nobody_else() {
    in_scenes(100, |world| {
        let handoff = if one_in(2) { SECOND } else { Duration::ZERO };
        let locks = locks(|builder| builder.local_handoff(handoff));
        world.occupy("a", 1);
        let waits = |_| {
            let locks = locks.clone();
            thread::spawn(move || {
                let guard = locks.lock("a").expect("locks");
                let me = Owner::current();
                let listed = locks.waiting();
                assert!(listed.iter().all(|it| it.thread != me), "{listed:?}");
                thread::sleep(some(QUICK));
                drop(guard);
            })
        };
        let threads = [0; 3].map(waits);
        thread::sleep(10 * QUICK);
        let listed: BTreeSet<_> = locks.waiting().iter().map(|it| it.thread.thread).collect();
        assert_eq!((listed.len(), locks.waiting().len()), (3, 3), "{listed:?}");
        assert_eq!(locks.stats().waiting, 3);
        world.delete("a");
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert_eq!((locks.waiting().len(), locks.stats().waiting), (0, 0));
    });
}

#[test]
fn threads_that_wait_are_listed_with_the_holder_and_what_is_left() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        world.occupy("far", 1);
        let guard = locks.lock("near").expect("locks");
        let limit = 20 * SECOND;
        let waits = |name: &'static str, limit: Option<Duration>| {
            let lock = locks.named(name).wait(limit);
            thread::spawn(move || lock.lock().map(drop))
        };
        let far = waits("far", Some(limit));
        thread::sleep(SECOND);
        let near = waits("near", None);
        thread::sleep(SECOND);
        let listed = locks.waiting();
        let [first, second] = &listed[..] else {
            panic!("{listed:?}")
        };
        assert_eq!((&*first.key, &*second.key), ("far", "near"));
        let holder = first.holder.as_ref().expect("it has asked");
        assert!(holder.raw.starts_with("host-1-"), "{holder}");
        let owner = second.holder.as_ref().and_then(Holder::owner);
        assert_eq!(owner, Some(Owner::current()));
        let whole = first.remaining.expect("a limit") + first.waited;
        assert!(whole <= limit && whole + QUICK > limit, "{whole:?}");
        assert_eq!(second.remaining, None);
        assert_eq!((locks.stats().waiting, locks.stats().held), (2, 1));
        guard.unlock().expect("unlocks");
        near.join().expect("no panic").expect("locks");
        let told = far.join().expect("no panic");
        assert!(matches!(told, Err(Error::Timeout { .. })), "{told:?}");
        let stats = locks.stats();
        assert!(locks.waiting().is_empty());
        assert_eq!((stats.waiting, stats.held, stats.waited), (0, 0, 2));
    });
}
