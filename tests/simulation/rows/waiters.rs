//! Who waits for whom: circles, and the list of the threads that wait.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::Error;
use crate::base::sync::scheduler::{now, one_in, thread};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};

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
                let me = crate::Owner::current();
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
