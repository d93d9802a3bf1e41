//! Who waits for whom: circles, and the list of the threads that wait. What a thread leaves to
//! others that has lost its lock, or has ended with it.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use crate::base::sync::scheduler::{self, below, change_link, kill, now, one_in, process, thread};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::{Error, Holder, LostCause, Owner};

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

/// Each thread holds a lock, and waits for that of the next one. One of them learns who waits for
/// whom, and the others get their locks.
#[test]
fn a_cycle_may_have_many_threads_and_lead_through_several_managers() {
    in_scenes(60, |_| {
        let managers: Vec<_> = (0..=below(3)).map(|_| locks(|builder| builder)).collect();
        let count = usize::try_from(2 + below(4)).expect("a few");
        let key = move |n: usize| (n % count).to_string();
        let begin = |n: usize| {
            let locks = managers[n % managers.len()].clone();
            thread::spawn(move || {
                let guard = locks.lock(key(n)).expect("locks");
                thread::sleep(20 * QUICK + some(QUICK));
                let next = locks.lock(key(n + 1)).map(drop);
                guard.unlock().expect("it was held all the time");
                (n, next)
            })
        };
        let threads: Vec<_> = (0..count).map(begin).collect();
        let told = threads.into_iter().map(|it| it.join().expect("no panic"));
        let told: Vec<_> = told.filter(|(_, next)| next.is_err()).collect();
        let [(closer, Err(error @ Error::WouldDeadlock { cycle, .. }))] = &told[..] else {
            panic!("one of them is told: {told:?}");
        };
        let named: Vec<_> = cycle.iter().map(|it| it.key.clone()).collect();
        let wanted: Vec<_> = (1..=count).map(|step| key(closer + step)).collect();
        assert_eq!(named, wanted, "each waits for the lock of the next");
        for blocked in cycle {
            let part = format!("thread {} waits for", blocked.thread.thread);
            assert!(error.to_string().contains(&part), "{error}");
        }
    });
}

/// One thread sleeps, and knows only the first holder. The second one, which got the lock handed
/// off, closes the cycle.
#[test]
fn a_holder_that_changes_during_the_wait_closes_the_cycle() {
    in_scenes(60, |_| {
        let one = locks(|builder| builder.local_handoff(60 * SECOND));
        let two = locks(|builder| builder);
        let guard = one.lock("a").expect("locks");
        let first = thread::spawn(move || {
            let _held = two.lock("b").expect("locks");
            two.lock("a").map(drop)
        });
        thread::sleep(10 * QUICK);
        let next = one.clone();
        let second = thread::spawn(move || {
            let _held = next.lock("a").expect("handed off");
            next.lock("b").map(drop)
        });
        thread::sleep(10 * QUICK + some(QUICK));
        drop(guard);
        let told = [first, second].map(|it| it.join().expect("no panic"));
        let is_told = |it: &&Result<_, _>| matches!(it, Err(Error::WouldDeadlock { .. }));
        assert_eq!(told.iter().filter(is_told).count(), 1, "{told:?}");
    });
}

/// Nobody knows of both waits. So each lasts until its deadline, and the error says what to look
/// for.
#[test]
fn row_33_a_deadlock_of_two_processes_ends_by_the_deadline() {
    in_scenes(20, |_| {
        let mine = locks(|builder| builder);
        let guard = mine.lock("a").expect("locks");
        let other = thread::Builder::new().process(process(0)).spawn(|| {
            let theirs = locks(|builder| builder);
            let _held = theirs.lock("b").expect("locks");
            let taken = theirs.named("a").wait(60 * SECOND).lock();
            drop(taken.expect("the other one gives up"));
            Owner::current().to_string()
        });
        thread::sleep(10 * QUICK);
        let asked = now();
        let error = mine.named("b").wait(SECOND).lock().expect_err("busy");
        assert!((SECOND..SECOND + 2 * QUICK).contains(&since(asked)));
        let text = error.to_string();
        let Error::Timeout {
            holder: Some(holder),
            held,
            ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(held, ["a"]);
        assert!(text.contains("this thread held \"a\" meanwhile"), "{text}");
        drop(guard);
        let owner = other.expect("a thread").join().expect("no panic");
        assert_eq!(holder.owner().map(|it| it.to_string()), Some(owner));
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

/// Nothing is sent: Redis is silent, and the answers come at once.
#[test]
fn row_24_reentry_after_the_lease_ran_out_is_lost() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder);
        let brief = locks.named("a").lease(SECOND / 10).renew(false);
        let outer = brief.lock().expect("locks");
        let inner = brief.lock().expect("locks again");
        thread::sleep(SECOND / 10);
        let is_taken = one_in(2);
        if is_taken {
            world.occupy("a", 1);
        }
        world.silence(60 * SECOND);
        let asked = now();
        for lost in [
            brief.lock().map(Some),
            brief.try_lock(),
            brief.try_lock_for(SECOND),
            locks.lock("a").map(Some),
        ] {
            let is_over = matches!(
                &lost,
                Err(Error::Lost { key, cause: LostCause::Expired, .. }) if key == "a"
            );
            assert!(is_over, "{lost:?}");
        }
        assert_eq!((outer.depth(), inner.depth()), (2, 2));
        assert!(inner.unlock().is_err_and(|error| error.is_lost()));
        assert!(since(asked) < QUICK, "something was sent");
        change_link(world.servers.address(0), |link| link.silent_until = [0; 2]);
        let unlocked = outer.unlock();
        if is_taken {
            assert!(unlocked.is_err_and(|error| error.is_lost()));
            assert!(world.exists("a"), "the other's key is untouched");
        }
    });
}

/// Another thread of the process, or another process, waits for the lock meanwhile.
#[test]
fn row_26_a_lock_whose_guard_was_forgotten_by_an_ended_thread_expires() {
    in_scenes(60, |_| {
        let mine = locks(|builder| builder.lease(3 * SECOND));
        let next = if one_in(2) {
            mine.clone()
        } else {
            locks(|builder| builder)
        };
        let ends = thread::spawn(move || {
            mem::forget(mine.lock("a").expect("locks"));
            thread::sleep(SECOND / 10 + some(10 * SECOND));
        });
        thread::sleep(10 * QUICK);
        let waits = thread::spawn(move || {
            let guard = next.lock("a").expect("the turn comes");
            let taken = now();
            thread::sleep(10 * SECOND);
            assert!(guard.is_valid(), "the new hold is renewed");
            guard.unlock().expect("unlocks");
            taken
        });
        ends.join().expect("no panic");
        let ended = now();
        let took = Duration::from_nanos(waits.join().expect("no panic") - ended);
        // It was renewed a second before, at most, and never again.
        let left = (2 * SECOND).saturating_sub(50 * QUICK)..3 * SECOND + 50 * QUICK;
        assert!(left.contains(&took), "taken {took:?} after the end");
        scheduler::end(); // The guard that was forgotten keeps its manager.
    });
}

/// There is one connection. One thread works with a lock, and others wait for it, or for another
/// process.
#[test]
fn a_thread_that_sleeps_or_works_keeps_no_connection() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder.pool_size(1));
        world.occupy("b", 1);
        let guard = locks.lock("a").expect("locks");
        let waiters = ["a", "b", "b"].map(|name| {
            let locks = locks.clone();
            thread::spawn(move || drop(locks.lock(name).expect("locks")))
        });
        thread::sleep(SECOND + some(SECOND));
        let asked = now();
        drop(locks.lock("c").expect("locks"));
        assert!(since(asked) < 5 * QUICK, "it took {:?}", since(asked));
        drop(guard);
        world.delete("b");
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
    });
}

/// The waiter looks at the process whose token it has read.
#[test]
fn row_28_with_reclaim_dead_a_waiter_has_the_lock_of_a_killed_process_within_200_ms() {
    in_scenes(50, |_| {
        let ours = locks(|builder| builder.reclaim_dead(true));
        // Each third process is on the same host.
        let number = [0; 3].map(process)[2];
        let holder = thread::Builder::new().process(number).spawn(|| {
            let theirs = locks(|builder| builder.reclaim_dead(true));
            let _held = theirs.lock("a").expect("locks");
            thread::sleep(1_000 * SECOND);
        });
        let _ = holder.expect("a thread");
        thread::sleep(10 * QUICK);
        let mine = ours.clone();
        let waits = thread::spawn(move || {
            drop(mine.lock("a").expect("locks"));
            now()
        });
        thread::sleep(SECOND / 10 + some(10 * SECOND));
        kill(number, true);
        let killed = now();
        let took = Duration::from_nanos(waits.join().expect("no panic") - killed);
        assert!(took < SECOND / 5, "it took {took:?}");
        assert_eq!(ours.stats().reclaimed, 1);
        scheduler::end(); // The thread that was killed never ends.
    });
}
