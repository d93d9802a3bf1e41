//! Several locks at a time, and locks with several holders.

use std::mem;
use std::time::Duration;

use crate::base::sync::scheduler::{change_link, now, one_in, thread};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::{DetachedHold, Error, Lock};

/// Another manager has `b`. Meanwhile `a` is deleted, or ends with its lease.
#[test]
fn a_set_of_which_a_lock_is_lost_while_it_waits_for_another_can_be_tried_again() {
    in_scenes(100, |world| {
        let is_deleted = one_in(2);
        let other = locks(|builder| builder);
        let mine = locks(|builder| builder.renew(is_deleted).lease(2 * SECOND));
        let taken = other.lock("b").expect("locks").detach().expect("detaches");
        let theirs = mine.clone();
        let waits = thread::spawn(move || {
            let error = theirs.several(["a", "b"]).lock().expect_err("`a` is lost");
            (now(), error)
        });
        thread::sleep(10 * QUICK + some(SECOND));
        let began = now();
        if is_deleted {
            world.delete("a");
        }
        let (told, error) = waits.join().expect("no panic");
        let late = Duration::from_nanos(told.saturating_sub(began));
        assert!(
            late < if is_deleted { SECOND } else { 2 * SECOND },
            "told after {late:?}"
        );
        assert!(
            matches!(&error, Error::Timeout { key, source: Some(_), .. } if key == "a"),
            "{error:?}"
        );
        assert!(error.is_retryable() && !error.body_ran());
        assert!(!world.exists("a") && mine.held().is_empty());
        drop(taken);
        let all = mine
            .several(["a", "b"])
            .lock()
            .expect("the same call succeeds");
        all.unlock().expect("both were held");
    });
}

/// The answers for all locks take longer than the lease of the first one.
#[test]
fn a_set_that_is_slower_than_its_lease_ends_and_names_its_own_lock() {
    in_scenes(20, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (60_000_000, 60_000_000);
        });
        let locks = locks(|builder| builder.renew(false).lease(SECOND / 5));
        let all = locks.several(["a", "b"]);
        for taken in [all.lock().map(Some), all.try_lock()] {
            let error = taken.map(|it| it.is_some()).expect_err("`a` has run out");
            assert!(error.is_timeout() && error.key() == Some("a"), "{error:?}");
        }
    });
}

#[test]
fn a_set_that_cannot_be_had_leaves_nothing() {
    in_scenes(20, |world| {
        let (other, mine) = (locks(|builder| builder), locks(|builder| builder));
        let guard = other.lock("c").expect("locks");
        assert!(
            mine.several(["a", "b", "c"])
                .try_lock()
                .expect("Redis works")
                .is_none()
        );
        assert!(!world.exists("a") && !world.exists("b") && mine.held().is_empty());
        drop(guard);
    });
}

#[test]
fn locks_that_are_ensured_have_so_much_time_left() {
    in_scenes(20, |_| {
        let locks = locks(|builder| builder.renew(false).lease(3 * SECOND));
        let both = locks.several(["a", "b"]).lock().expect("locks");
        both.ensure(2 * SECOND).expect("nothing is to be done");
        assert_eq!(locks.stats().renewed, 0);
        thread::sleep(2 * SECOND);
        both.ensure(2 * SECOND).expect("Redis works");
        let left = both.remaining() + QUICK;
        assert!(left >= 2 * SECOND, "{left:?} are left");
    });
}

#[test]
fn a_key_that_is_named_twice_is_taken_once() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let all = locks.several(["b", "a", "b"]).lock().expect("locks");
        assert_eq!(all.keys().collect::<Vec<_>>(), ["a", "b"]);
        let held: Vec<_> = locks
            .held()
            .into_iter()
            .map(|held| (held.key, held.depth))
            .collect();
        assert_eq!(held, [("a".to_owned(), 1), ("b".to_owned(), 1)]);
        all.unlock().expect("unlocks");
        assert!(!world.exists("a") && !world.exists("b"));
    });
}

#[test]
fn a_set_gives_back_the_others_if_one_was_lost() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder.renew(false));
        let all = locks.several(["a", "b", "c"]).lock().expect("locks");
        world.delete("a");
        world.delete("b");
        let unlocked = all.unlock();
        assert!(
            matches!(&unlocked, Err(Error::Lost { key, .. }) if key == "a"),
            "{unlocked:?}"
        );
        assert!(!world.exists("c"), "the third one stays");
    });
}

/// Half of the time is too short, and Redis has done it within all of it.
#[test]
fn a_set_is_given_back_to_a_redis_that_pauses_as_one_lock_is() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder.response_timeout(SECOND));
        let names = ["a", "b", "c"];
        let all = locks.several(names).lock().expect("locks");
        let pause = now() + 600_000_000;
        world.servers.nodes[0]
            .borrow_mut()
            .act(|redis, _| redis.pause_until(pause, false));
        let unlocked = all.unlock();
        assert!(unlocked.is_ok(), "{unlocked:?}");
        assert!(names.iter().all(|name| !world.exists(name)));
    });
}

#[test]
fn a_set_is_given_back_in_one_round_trip() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder);
        let all = locks.several(["a", "b", "c"]);
        drop(all.lock().expect("locks"));
        let all = all.lock().expect("locks");
        let way = SECOND / 20;
        let nanos = u64::try_from(way.as_nanos()).expect("a short time");
        change_link(world.servers.address(0), |it| it.latency = (nanos, nanos));
        let began = now();
        all.unlock().expect("unlocks");
        assert!(since(began) < 2 * way + QUICK, "took {:?}", since(began));
    });
}

/// The thread has `a`, and waits for `b`. The answer that gives `b` comes after `a` was deleted.
#[test]
fn a_lock_is_not_given_under_another_that_is_lost_meanwhile() {
    in_scenes(100, |world| {
        let (other, mine) = (locks(|builder| builder), locks(|builder| builder));
        let guard = other.lock("b").expect("locks");
        let waits = thread::spawn(move || {
            let outer = mine.lock("a").expect("locks");
            let taken = mine.lock("b");
            let is_told = matches!(&taken, Err(Error::OuterLost { outer, .. }) if outer == "a");
            assert!(is_told, "{taken:?}");
            drop(outer);
        });
        thread::sleep(2 * SECOND + some(SECOND));
        world.delete("a");
        thread::sleep(50 * QUICK);
        drop(guard);
        waits.join().expect("no panic");
        assert!(!world.exists("b"));
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

/// The set waits for `b` for longer than it is to be kept.
#[test]
fn a_set_is_kept_from_when_it_was_taken() {
    in_scenes(20, |world| {
        let (other, mine) = (locks(|builder| builder), locks(|builder| builder));
        let guard = other.lock("b").expect("locks");
        let waits = thread::spawn(move || {
            let all = mine.several(["a", "b"]);
            let all = all.options(|lock| lock.keep_at_least(SECOND));
            let all = all.lock().expect("locks");
            let taken = now();
            all.unlock().expect("unlocks");
            taken
        });
        thread::sleep(2 * SECOND + some(SECOND));
        drop(guard);
        let taken = waits.join().expect("no panic");
        thread::sleep((999 * QUICK).saturating_sub(since(taken)));
        assert!(world.exists("a") && world.exists("b"), "they are not kept");
        thread::sleep(5 * QUICK);
        assert!(!world.exists("a") && !world.exists("b"));
    });
}

/// Takes the lock, and leaves it to no thread.
fn take(lock: &Lock) -> DetachedHold {
    let guard = lock.lock().expect("locks");
    guard.detach().expect("detaches")
}

/// Two threads each hold one of three slots, and wait for another one through another manager. A
/// third slot is about to be free.
#[test]
fn a_wait_for_a_slot_is_no_deadlock() {
    in_scenes(50, |world| {
        let managers = [0; 3].map(|_| locks(|builder| builder));
        let third = take(&managers[2].slots("a", 3));
        let begin = |n: usize| {
            let (mine, other) = (managers[n].clone(), managers[1 - n].clone());
            thread::spawn(move || {
                let _held = mine.slots("a", 3).lock().expect("locks");
                thread::sleep(20 * QUICK);
                let second = other.slots("a", 3).lock();
                assert!(second.is_ok(), "{second:?}");
            })
        };
        let threads = [0, 1].map(begin);
        thread::sleep(SECOND + some(SECOND));
        let freed = now();
        drop(third);
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert!(since(freed) < 50 * QUICK, "it took {:?}", since(freed));
        assert!((1..=3).all(|it| !world.exists(&format!("{{a}}#{it}"))));
    });
}

/// The answer that no reader is left comes after the lease of the gate.
#[test]
fn a_writer_does_not_trust_an_answer_that_is_too_late() {
    in_scenes(50, |world| {
        let locks = locks(|builder| builder.renew(false));
        let cache = locks.read_write("a", 3);
        cache.with_write(|| {}).expect("writes"); // Redis knows the script.
        let reader = take(&cache.read_lock());
        let writer = cache.write_lock().lease(SECOND);
        let writes = thread::spawn(move || writer.lock().map(drop));
        thread::sleep(SECOND / 2);
        change_link(world.servers.address(0), |link| {
            link.latency = (300_000_000, 300_000_000);
        });
        drop(reader);
        let writes = writes.join().expect("no panic");
        assert!(matches!(writes, Err(Error::Lost { .. })), "{writes:?}");
    });
}
