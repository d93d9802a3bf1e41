//! Waits that the program stops, and managers that are shut down.

use std::mem;
use std::time::Duration;

use crate::base::sync::scheduler::{change_link, now, one_in, reset_all, thread};
use crate::simulation::rows::lost::ends_after;
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::{Error, LockGuard, StopHandle, Unlocked};

/// Each of two managers has threads that wait for another process. One of them is behind a thread
/// that goes on.
#[test]
fn a_stop_ends_waits_behind_a_thread_and_behind_a_process_and_in_an_outage() {
    in_scenes(60, |world| {
        let managers = [0; 2].map(|_| locks(|builder| builder.tolerate_outage(Duration::MAX)));
        let stop = StopHandle::new();
        world.occupy("a", 1);
        let front = managers[0].clone();
        let front = thread::spawn(move || drop(front.lock("a").expect("locks")));
        thread::sleep(10 * QUICK);
        let waits = |number: usize| {
            let lock = managers[number % 2].named("a").stopped_by(&stop);
            thread::spawn(move || {
                let taken = lock.lock().map(drop);
                assert!(matches!(taken, Err(Error::Stopped { .. })), "{taken:?}");
                now()
            })
        };
        let threads: Vec<_> = (0..4).map(waits).collect();
        thread::sleep(SECOND);
        if one_in(2) {
            let (address, until) = (world.servers.address(0), now() + 60_000_000_000);
            change_link(address, |link| link.refuses_until = until);
            reset_all(address);
        }
        thread::sleep(some(5 * SECOND));
        let stopped = now();
        stop.stop();
        for thread in threads {
            let late = Duration::from_nanos(thread.join().expect("no panic") - stopped);
            assert!(late < 10 * QUICK, "{late:?} after the stop");
        }
        change_link(world.servers.address(0), |link| link.refuses_until = 0);
        world.delete("a");
        front.join().expect("no panic");
    });
}

/// Only the claim of the first waiter is on its way, with the release.
#[test]
fn a_stop_during_a_hand_off_ends_the_waits_behind_it_at_once() {
    in_scenes(60, |world| {
        let locks = locks(|builder| builder.local_handoff(60 * SECOND));
        let stop = StopHandle::new();
        let guard = locks.lock("a").expect("locks");
        let waits = |_| {
            let lock = locks.named("a").stopped_by(&stop);
            thread::spawn(move || (lock.lock().map(drop), now()))
        };
        let threads = [0; 3].map(waits);
        thread::sleep(SECOND);
        change_link(world.servers.address(0), |link| {
            link.latency = (50_000_000, 50_000_000);
        });
        let stops = stop.clone();
        let stops = thread::spawn(move || {
            thread::sleep(some(80 * QUICK));
            stops.stop();
            now()
        });
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        let stopped = stops.join().expect("no panic");
        for thread in threads {
            let (taken, at) = thread.join().expect("no panic");
            let late = Duration::from_nanos(at.saturating_sub(stopped));
            assert!(taken.is_ok() || late < 10 * QUICK, "{taken:?}, {late:?}");
        }
    });
}

#[test]
fn a_shutdown_ends_waits_at_once_and_lists_what_is_held_at_its_limit() {
    in_scenes(40, |world| {
        let mine = locks(|builder| builder);
        world.occupy("b", 1);
        let theirs = mine.clone();
        let holds = thread::spawn(move || {
            let guard = theirs.lock("a").expect("locks");
            thread::sleep(10 * SECOND);
            guard.unlock()
        });
        thread::sleep(10 * QUICK);
        let waits = |name: &'static str| {
            let waiter = mine.clone();
            thread::spawn(move || {
                let taken = waiter.lock(name).map(drop);
                assert!(matches!(taken, Err(Error::Stopped { .. })), "{taken:?}");
                now()
            })
        };
        let threads = ["a", "a", "b"].map(waits);
        thread::sleep(SECOND + some(SECOND));
        let (asked, limit) = (now(), SECOND + some(SECOND));
        let left = mine.shutdown(limit);
        let took = since(asked);
        assert!(limit <= took && took < limit + 10 * QUICK, "took {took:?}");
        let [held] = &left[..] else {
            panic!("{left:?}")
        };
        assert!(held.key == "a" && held.lost.is_none(), "{held}");
        for thread in threads {
            let late = Duration::from_nanos(thread.join().expect("no panic") - asked);
            assert!(late < 10 * QUICK, "{late:?} after the shutdown began");
        }
        let unlocked = holds.join().expect("no panic");
        assert_eq!(unlocked.expect("it was left"), Unlocked::Released);
        assert!(mine.shutdown(60 * SECOND).is_empty());
    });
}

/// The release begins at the end of its limit.
#[test]
fn a_shutdown_that_lists_no_hold_leaves_no_key() {
    in_scenes(1200, |world| {
        let locks = locks(|builder| builder);
        let begins = now() + 10_000_000;
        let holder = locks.clone();
        let holds = thread::spawn(move || {
            let guard = holder.lock("a").expect("locks");
            thread::sleep(Duration::from_nanos(begins - now()));
            drop(guard);
        });
        thread::sleep(10 * QUICK + some(QUICK / 100));
        let left = locks.shutdown(Duration::ZERO);
        let is_there = world.exists("a");
        assert!(!left.is_empty() || !is_there, "its release goes on");
        holds.join().expect("no panic");
    });
}

#[test]
fn a_shutdown_waits_for_an_answer_that_may_give_a_lock() {
    in_scenes(60, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (50_000_000, 50_000_000);
        });
        let mine = locks(|builder| builder);
        drop(mine.lock("b").expect("locks")); // There is a connection from now on.
        let theirs = mine.clone();
        let takes = thread::spawn(move || {
            let taken = theirs.lock("a");
            thread::sleep(SECOND);
            taken.and_then(LockGuard::unlock)
        });
        thread::sleep(some(SECOND / 5));
        let left = mine.shutdown(Duration::ZERO);
        let is_listed = left.iter().any(|held| held.key == "a");
        assert_eq!(is_listed, world.exists("a"), "{left:?}");
        match takes.join().expect("no panic") {
            Ok(Unlocked::Released) if is_listed => {}
            Err(Error::Stopped { .. }) if !is_listed => {}
            other => panic!("{other:?}"),
        }
    });
}

/// Half of them are to be kept.
#[test]
fn what_is_given_back_together_has_one_response_timeout() {
    in_scenes(20, |world| {
        let mine = locks(|builder| builder.response_timeout(SECOND));
        let names: Vec<_> = (0..8).map(|number| number.to_string()).collect();
        let keep = |name: &String| mine.named(name).keep_at_least(60 * SECOND).lock();
        let kept: Vec<_> = names[..4].iter().map(keep).collect();
        let all = mine.several(&names).lock().expect("locks");
        drop(kept);
        world.silence(60 * SECOND);
        let began = now();
        if one_in(2) {
            assert_eq!(mine.shutdown_and_release(Duration::ZERO).len(), 8);
        } else {
            let unlocked = all.unlock();
            let is_told = matches!(unlocked, Err(Error::Unconfirmed { .. }));
            assert!(is_told, "{unlocked:?}");
        }
        assert!(since(began) < SECOND + 10 * QUICK, "{:?}", since(began));
    });
}

#[test]
fn a_shutdown_waits_for_no_hold_that_is_lost() {
    in_scenes(50, |world| {
        let mine = locks(|builder| builder);
        let theirs = mine.clone();
        let holds = thread::spawn(move || {
            let guard = theirs.lock("a").expect("locks");
            thread::sleep(20 * SECOND);
            drop(guard);
        });
        thread::sleep(2 * SECOND);
        world.delete("a");
        thread::sleep(some(SECOND) + 50 * QUICK);
        let asked = now();
        let _ = mine.shutdown(10 * SECOND);
        assert!(since(asked) < 10 * QUICK, "took {:?}", since(asked));
        holds.join().expect("no panic");
    });
}

/// A claim that was answered with "busy", one that was to go out behind a release for which there
/// was no server, and that of a lock that was handed over.
#[test]
fn a_shutdown_waits_for_no_claim_that_is_over() {
    in_scenes(20, |world| {
        let hands_off = |builder: crate::Builder| builder.local_handoff(60 * SECOND);
        let (other, mine) = (locks(|builder| builder), locks(hands_off));
        let busy = other.lock("a").expect("locks");
        let guard = mine.lock("b").expect("locks");
        let _parcel = mine.lock("c").expect("locks").hand_over();
        let waits = ["a", "b"].map(|key| {
            let waiter = mine.clone();
            thread::spawn(move || waiter.named(key).try_lock_for(20 * SECOND).map(drop))
        });
        let [waits, behind] = waits;
        thread::sleep(SECOND + some(SECOND));
        if one_in(2) {
            world.servers.nodes[0].borrow_mut().die();
            thread::sleep(SECOND); // No connection is left to send anything over.
            drop(guard);
            behind.join().expect("no panic").expect_err("no server");
            world.servers.nodes[0].borrow_mut().revive();
            thread::sleep(SECOND);
        } else {
            drop(guard);
            behind.join().expect("no panic").expect("locks");
        }
        let asked = now();
        let _ = mine.shutdown(Duration::ZERO);
        assert!(since(asked) < 10 * QUICK, "took {:?}", since(asked));
        let _ = waits.join();
        drop(busy);
    });
}

/// The answer to a claim comes during the shutdown, and nobody gives the lock back.
#[test]
fn a_shutdown_ends_with_the_last_lease() {
    in_scenes(50, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (50_000_000, 50_000_000);
        });
        let mine = locks(|builder| builder.renew(false).lease(2 * SECOND));
        let theirs = mine.clone();
        let takes = thread::spawn(move || mem::forget(theirs.lock("a")));
        thread::sleep(some(SECOND / 5));
        let asked = now();
        let _ = mine.shutdown(1000 * SECOND);
        assert!(since(asked) < 3 * SECOND, "took {:?}", since(asked));
        takes.join().expect("no panic");
    });
}

/// The keeper deletes it a moment later, as any key that nobody uses.
#[test]
fn a_shutdown_returns_as_soon_as_what_it_takes_away_is_deleted() {
    in_scenes(20, |world| {
        let mine = locks(|builder| builder);
        let _guard = mine.lock("a").expect("locks");
        let asked = now();
        let _ = mine.shutdown_and_release(Duration::ZERO);
        assert!(since(asked) < 50 * QUICK, "took {:?}", since(asked));
        assert!(!world.exists("a"));
    });
}

/// The claim takes two round trips, since Redis does not know its script. The shutdown waits for
/// one.
#[test]
fn a_claim_that_is_answered_behind_a_shutdown_gives_no_lock() {
    in_scenes(20, |world| {
        let mine = locks(|builder| {
            let builder = builder.response_timeout(SECOND / 4);
            builder.connect_timeout(5 * QUICK)
        });
        drop(mine.lock("b").expect("locks")); // There is a connection from now on.
        change_link(world.servers.address(0), |link| {
            link.latency = (120_000_000, 120_000_000);
        });
        let theirs = mine.clone();
        let takes = thread::spawn(move || theirs.named("a").fenced(true).lock().map(drop));
        thread::sleep(some(SECOND / 10));
        let _ = mine.shutdown(Duration::ZERO);
        let taken = takes.join().expect("no panic");
        assert!(matches!(taken, Err(Error::Stopped { .. })), "{taken:?}");
    });
}

/// Its last lock is given back, or kept for the keeper to delete.
#[test]
fn a_shutdown_returns_with_the_last_release_whether_that_is_answered_or_not() {
    in_scenes(40, |world| {
        let mine = locks(|builder| builder.response_timeout(SECOND / 4));
        let theirs = mine.clone();
        let holds = thread::spawn(move || {
            let guard = theirs.lock("a").expect("locks");
            thread::sleep(SECOND / 2 + some(2 * SECOND));
            drop(guard);
            now()
        });
        thread::sleep(SECOND / 4);
        if one_in(2) {
            ends_after(world, Duration::ZERO, 60 * SECOND);
        }
        let _ = mine.shutdown(10 * SECOND);
        let ended = now();
        let late = ended.saturating_sub(holds.join().expect("no panic"));
        assert!(late < 1_000_000, "it returns {late} ns later");
    });
}

/// It has found the token of an earlier one, and perhaps not deleted it; or its answer has come
/// after the lease.
#[test]
fn a_shutdown_waits_for_no_attempt_that_has_failed() {
    in_scenes(500, |world| {
        let mine = locks(|builder| builder.lease(SECOND / 10).tolerate_outage(SECOND));
        drop(mine.lock("b").expect("locks"));
        if one_in(10) {
            change_link(world.servers.address(0), |link| {
                link.latency = (60_000_000, 60_000_000);
            });
        } else {
            ends_after(world, some(QUICK / 4), Duration::ZERO);
            ends_after(world, some(2 * QUICK), 60 * SECOND);
        }
        drop(mine.lock("a"));
        let asked = now();
        let _ = mine.shutdown(Duration::ZERO);
        assert!(since(asked) < 10 * QUICK, "took {:?}", since(asked));
    });
}

/// The shutdown could not tell Redis for how long to keep it.
#[test]
fn a_lock_that_a_shutdown_takes_away_is_kept_for_its_time() {
    in_scenes(20, |world| {
        let mine = locks(|builder| builder.response_timeout(SECOND / 4));
        let asked = now();
        let lock = mine.named("a").keep_at_least(5 * SECOND);
        let _guard = lock.lock().expect("locks");
        ends_after(world, Duration::ZERO, SECOND);
        let _ = mine.shutdown_and_release(Duration::ZERO);
        thread::sleep((5 * SECOND).saturating_sub(QUICK + since(asked)));
        assert!(world.exists("a"), "it is not kept");
        thread::sleep(SECOND);
        assert!(!world.exists("a"), "it is kept for too long");
    });
}
