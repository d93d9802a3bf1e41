//! Several locks at a time, and locks with several holders.

use std::time::Duration;

use crate::base::sync::scheduler::{below, change_link, later, now, one_in, reset_all, thread};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::{DetachedHold, Error, Lock, StopHandle};

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
    in_scenes(20, |world| {
        let locks = locks(|builder| builder.renew(false).lease(3 * SECOND));
        let both = locks.several(["a", "b"]).lock().expect("locks");
        both.ensure(2 * SECOND).expect("nothing is to be done");
        assert_eq!(locks.stats().renewed, 0);
        both.confirm(SECOND).expect("Redis works"); // The keeper is connected from now on.
        thread::sleep(2 * SECOND);
        let way = SECOND / 10;
        change_link(world.servers.address(0), |link| {
            link.latency = (100_000_000, 100_000_000);
        });
        let began = now();
        both.ensure(2 * SECOND).expect("Redis works");
        // No renewal waits for the answer to another one.
        assert!(since(began) < 2 * way + 5 * QUICK, "{:?}", since(began));
        let left = both.remaining() + 2 * way + QUICK;
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
            let taken = if one_in(2) {
                mine.lock("b").map(drop)
            } else {
                mine.several(["b", "c"]).lock().map(drop)
            };
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

/// Another process has `b`, and then perhaps `c`. The wait ends with the locks, by a stop, or with
/// its limit.
#[test]
fn if_one_is_busy_those_behind_it_are_free_for_others_and_those_before_it_are_kept() {
    in_scenes(60, |world| {
        let (other, mine) = (locks(|builder| builder), locks(|builder| builder));
        let (stop, limit) = (StopHandle::new(), 2 * SECOND + some(2 * SECOND));
        world.occupy("b", 1);
        let all = mine.several(["c", "b", "a"]);
        let all = all.options(|lock| lock.stopped_by(&stop));
        let waits = thread::spawn(move || {
            let asked = now();
            let taken = all.try_lock_for(limit).map(|it| it.is_some());
            (taken, since(asked))
        });
        thread::sleep(SECOND / 2);
        assert!(other.try_lock("a").expect("answers").is_none(), "kept");
        assert!(other.try_lock("c").expect("answers").is_some(), "free");
        let how = below(3);
        match how {
            0 => world.delete("b"),
            1 => stop.stop(),
            _ => {
                world.occupy("c", 1);
                thread::sleep(some(SECOND));
                world.delete("b"); // The wait for `b` counts, too.
            }
        }
        let (taken, took) = waits.join().expect("no panic");
        match (how, taken) {
            (0, Ok(true)) => {}
            (1, Err(Error::Stopped { key, .. })) if key == "b" => world.delete("b"),
            (2, Ok(false)) if limit <= took && took < limit + 10 * QUICK => world.delete("c"),
            (_, other) => panic!("{how}: {other:?} after {took:?}"),
        }
        let is_free = ["a", "b", "c"].iter().all(|name| !world.exists(name));
        assert!(is_free && mine.held().is_empty());
    });
}

/// Redis is back at once, or after three seconds.
#[test]
fn lost_answers_and_outages_leave_no_key_of_a_set() {
    in_scenes(200, |world| {
        let locks = locks(|builder| builder.tolerate_outage(SECOND));
        drop(locks.lock("d").expect("locks"));
        let (address, outage) = (world.servers.address(0), one_in(2));
        let cut = || {
            later(some(QUICK), move || {
                let until = now() + if outage { 3_000_000_000 } else { 0 };
                change_link(address, |link| link.refuses_until = until);
                reset_all(address);
            });
        };
        cut();
        let all = locks.several(["a", "b", "c"]);
        let taken = if one_in(2) {
            all.lock().map(Some)
        } else {
            all.try_lock()
        };
        match taken {
            Ok(all) => {
                let all = all.expect("nobody else has one of them");
                cut();
                let unlocked = all.unlock();
                assert!(outage || unlocked.is_ok(), "{unlocked:?}");
            }
            Err(error) => assert!(outage && error.is_redis_failure(), "{error:?}"),
        }
        assert!(locks.held().is_empty());
        thread::sleep(6 * SECOND);
        assert!(["a", "b", "c"].iter().all(|name| !world.exists(name)));
    });
}

/// All answers together take longer than an attempt and a release may.
#[test]
fn a_slow_link_has_time_for_an_answer_for_each_of_many_locks() {
    in_scenes(10, |world| {
        let locks = locks(|builder| builder.response_timeout(SECOND).connect_timeout(SECOND));
        drop(locks.lock("a").expect("locks"));
        change_link(world.servers.address(0), |link| {
            link.latency = (200_000_000, 200_000_000);
        });
        let names: Vec<_> = (0..12).map(|number| number.to_string()).collect();
        let began = now();
        let all = locks.several(&names).try_lock().expect("answers");
        all.expect("they are free").unlock().expect("unlocks");
        assert!(since(began) > 4 * SECOND, "{:?}", since(began));
    });
}

#[test]
fn a_thread_that_waits_for_one_of_them_gets_it_with_the_release() {
    in_scenes(20, |_| {
        let locks = locks(|builder| builder.local_handoff(60 * SECOND));
        let all = locks.several(["a", "b"]).lock().expect("locks");
        let waiter = locks.clone();
        let waits = thread::spawn(move || drop(waiter.lock("b").expect("locks")));
        thread::sleep(SECOND);
        all.unlock().expect("unlocks");
        waits.join().expect("no panic");
        assert_eq!(locks.stats().handed_off, 1);
    });
}

#[test]
fn callers_with_opposite_orders_do_not_wait_for_each_other() {
    in_scenes(20, |_| {
        let managers = [locks(|builder| builder), locks(|builder| builder)];
        let calls = |number: usize| {
            let locks = managers[number / 2].clone();
            let keys = [["a", "b"], ["b", "a"]][number % 2];
            thread::spawn(move || {
                let both = locks.several(keys).options(|lock| lock.wait(5 * SECOND));
                for _ in 0..10 {
                    let ran = both.with_lock(|| thread::sleep(some(QUICK)));
                    ran.expect("no wait is too long");
                }
            })
        };
        let threads: Vec<_> = (0..4).map(calls).collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
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

/// One of them is lost, and the release of another one has no answer.
#[test]
fn the_error_of_a_set_is_the_gravest_of_its_locks() {
    in_scenes(12, |world| {
        let locks = locks(|builder| builder.response_timeout(SECOND / 2));
        let (lost, kept) = if one_in(2) { ("a", "b") } else { ("b", "a") };
        let guard = locks.several([lost, kept]).lock().expect("locks");
        thread::sleep(15 * SECOND);
        world.delete(lost);
        thread::sleep(SECOND);
        world.silence(5 * SECOND);
        let unlocked = guard.unlock();
        assert!(unlocked.as_ref().is_err_and(Error::is_lost), "{unlocked:?}");
    });
}

/// The thread reads what its own manager renews: a writer its gate, and who waits for another slot
/// the one that it holds. (The keeper renews each of the two holds every ten seconds.)
#[test]
fn a_renewal_wakes_no_thread_of_its_own_process() {
    in_scenes(40, |world| {
        let (mine, others) = (locks(|builder| builder), locks(|builder| builder));
        let is_writer = one_in(2);
        let held = (!is_writer).then(|| take(&mine.slots("a", 2)));
        let waits_for = if is_writer {
            take(&others.read_write("a", 3).read_lock())
        } else {
            take(&others.slots("a", 2))
        };
        let locks = mine.clone();
        let waits = thread::spawn(move || {
            if is_writer {
                locks.read_write("a", 3).write_lock().lock().map(drop)
            } else {
                locks.slots("a", 2).lock().map(drop)
            }
        });
        thread::sleep(100 * SECOND);
        let renewed = mine.stats().renewed;
        assert!((8..30).contains(&renewed), "{renewed} renewals");
        let freed = now();
        if one_in(2) && !is_writer {
            world.delete("{a}#1"); // The manager learns that it has lost its own slot.
        } else {
            drop(waits_for);
        }
        waits.join().expect("no panic").expect("locks");
        assert!(since(freed) < 50 * QUICK, "it took {:?}", since(freed));
        drop(held);
    });
}

/// The writer asks within the lease of its gate. The answer that no reader is left comes after it.
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
            link.latency = (150_000_000, 150_000_000);
        });
        drop(reader);
        let writes = writes.join().expect("no panic");
        assert!(matches!(writes, Err(Error::Lost { .. })), "{writes:?}");
    });
}
