//! Scenes of their own, as those in `rows`, for waits.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::Error;
use crate::base::sync::scheduler::{self, below, change_link, fail, later, now, one_in, thread};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, in_scenes_with, locks, since, some};
use crate::simulation::world::engine::{Copies, Engine};

#[test]
fn a_waiter_is_woken_when_the_lock_is_released_and_not_a_poll_later() {
    in_scenes(200, |_| {
        let (holder, waiter) = (locks(|builder| builder), locks(|builder| builder));
        let guard = holder.lock("a").expect("locks");
        let released = Arc::new(Mutex::new(0));
        let waits = thread::spawn({
            let released = Arc::clone(&released);
            move || {
                let guard = waiter.lock("a").expect("locks");
                let woken = since(*released.lock());
                if woken > 5 * QUICK {
                    fail(format!("woken {woken:?} after the release"));
                }
                drop(guard);
            }
        });
        thread::sleep(5 * SECOND + some(5 * SECOND));
        *released.lock() = now();
        guard.unlock().expect("unlocks");
        waits.join().expect("no panic");
    });
}

/// A wake-up may reach a waiter just before its wait ends, and the answer to its attempt just
/// after.
#[test]
fn a_waiter_that_gives_up_while_it_is_woken_delays_no_other() {
    in_scenes(400, |world| {
        let latency = 50_000 + below(20_000_000);
        change_link(world.servers.address(0), |link| {
            link.latency = (latency, latency);
        });
        let (holder, waiters) = (locks(|builder| builder), locks(|builder| builder));
        let guard = holder.lock("a").expect("locks");
        let wait = SECOND + some(SECOND);
        let asked = now();
        let first = waiters.clone();
        let first = thread::spawn(move || {
            drop(
                first
                    .named("a")
                    .try_lock_for(wait)
                    .expect("there are answers"),
            );
        });
        thread::sleep(SECOND / 2);
        let second = thread::spawn(move || {
            drop(waiters.lock("a").expect("locks"));
            now()
        });
        let way = Duration::from_nanos(latency);
        thread::sleep(
            (wait + some(2 * QUICK)).saturating_sub(since(asked) + QUICK + some(6 * way)),
        );
        world.delete("a");
        let deleted = now();
        let taken = second.join().expect("no panic") - deleted;
        // The news is under way once. Then, one after the other, each of the two waiters pauses for
        // a rival (3.5 looks of two ways each), looks (two ways), and sends a script whole (two).
        assert!(
            taken < (1 + 2 * (7 + 2 + 2)) * latency + 5_000_000,
            "{taken} ns with a latency of {latency} ns"
        );
        first.join().expect("no panic");
        thread::sleep(SECOND);
        assert!(!world.exists("a"), "a key is left");
        assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    });
}

/// The release takes the claim of the next waiter along. Its answer comes late, while that waiter
/// gives up, or just before, or just after.
#[test]
fn row_12_a_hand_off_to_a_thread_that_gives_up_leaves_no_key() {
    in_scenes(300, |world| {
        let (answer, wait) = (SECOND / 10, SECOND);
        let locks = locks(|builder| builder.response_timeout(answer).local_handoff(60 * SECOND));
        let first = locks.lock("a").expect("locks");
        let (asked, gives_up, waits) = (now(), locks.clone(), locks.clone());
        let second = thread::spawn(move || drop(gives_up.named("a").try_lock_for(wait)));
        thread::sleep(SECOND / 10);
        let third = thread::spawn(move || {
            let guard = waits
                .named("a")
                .try_lock_for(60 * SECOND)
                .expect("answers")
                .expect("its turn comes");
            let unlocked = guard.unlock();
            assert!(
                !unlocked.as_ref().is_err_and(Error::is_lost),
                "{unlocked:?}"
            );
            now()
        });
        thread::sleep(wait.saturating_sub(since(asked) + some(2 * answer)));
        let silence = some(3 * answer);
        let until = now() + u64::try_from(silence.as_nanos()).expect("a short time");
        change_link(world.servers.address(0), |link| {
            link.silent_until = [0, until];
        });
        let released = now();
        let unlocked = first.unlock();
        assert!(
            !unlocked.as_ref().is_err_and(Error::is_lost),
            "{unlocked:?}"
        );
        second.join().expect("no panic");
        let took = Duration::from_nanos(third.join().expect("no panic") - released);
        // The key of a claim whose answer came too late is deleted within a second.
        let most = silence + SECOND + 3 * answer;
        assert!(
            took < most,
            "the turn came after {took:?}, with a silence of {silence:?}"
        );
        thread::sleep(2 * SECOND);
        assert!(!world.exists("a"), "a key is left");
        assert_eq!(locks.stats().lost, 0);
    });
}

/// The first hand-off has to teach Redis the scripts.
#[test]
fn a_hand_off_takes_one_round_trip() {
    in_scenes(20, |world| {
        let (latency, is_fenced) = (10_000_000, one_in(2));
        change_link(world.servers.address(0), |link| {
            link.latency = (latency, latency);
        });
        let locks = locks(|builder| builder.fenced(is_fenced).local_handoff(60 * SECOND));
        for is_first in [true, false] {
            let guard = locks.lock("a").expect("locks");
            let waiter = locks.clone();
            let waits = thread::spawn(move || {
                let guard = waiter.lock("a").expect("locks");
                (now(), guard.fence())
            });
            thread::sleep(SECOND);
            let (released, fence) = (now(), guard.fence());
            guard.unlock().expect("unlocks");
            let (taken, next) = waits.join().expect("no panic");
            assert!(if is_fenced {
                next > fence
            } else {
                next.is_none()
            });
            let took = Duration::from_nanos(taken - released);
            let most = Duration::from_nanos(2 * latency) + QUICK;
            assert!(is_first || took < most, "it took {took:?}");
        }
        assert_eq!(locks.stats().late_releases, 0);
    });
}

/// A manager that has seen many holders, each in another process, pauses before it asks. A waiter
/// may report a lock as busy only after Redis has said so.
#[test]
fn a_wait_shorter_than_the_pause_for_rivals_ends_on_time_with_an_attempt() {
    in_scenes(50, |world| {
        let locks = locks(|builder| builder.client_tracking(false).poll_every(QUICK));
        change_link(world.servers.address(0), |link| {
            link.latency = (5_000_000, 5_000_000);
        });
        world.occupy("a", 0);
        let waiter = locks.clone();
        let waiter = thread::spawn(move || drop(waiter.lock("a").expect("locks")));
        for number in 1..=8 {
            thread::sleep(2 * SECOND);
            world.occupy("a", number);
        }
        thread::sleep(2 * SECOND);
        world.delete("a");
        waiter.join().expect("no panic");
        world.occupy("a", 9);
        let wait = 70 * QUICK + some(30 * QUICK);
        let (began, taken) = (now(), locks.named("a").wait(wait).lock());
        // A socket keeps a timeout that is up to `SHORTEST`, a millisecond, too long. The steps of
        // the call come on top of that.
        assert!(
            since(began) <= wait + 2 * QUICK,
            "waited for {:?} of {wait:?}",
            since(began)
        );
        assert!(
            matches!(
                taken,
                Err(Error::Timeout {
                    holder: Some(_),
                    ..
                })
            ),
            "{wait:?}: {taken:?}"
        );
        world.delete("a");
    });
}

#[test]
fn a_limit_holds_for_several_locks_whatever_is_silent_and_when() {
    in_scenes(200, |world| {
        let answer = SECOND / 2;
        let locks = locks(|builder| builder.response_timeout(answer).connect_timeout(answer));
        drop(locks.lock("a").expect("locks"));
        let silence = some(3 * QUICK);
        let address = world.servers.address(0);
        let until = now() + 60_000_000_000;
        later(silence, move || {
            change_link(address, |link| link.silent_until = [until; 2]);
        });
        let limit = some(SECOND);
        let (began, taken) = (now(), locks.several(["a", "b", "c"]).try_lock_for(limit));
        // What was taken in vain is given back, together, within 100 ms.
        let most = limit + SECOND / 10 + QUICK;
        assert!(
            since(began) <= most,
            "took {:?} of {limit:?}: {:?}",
            since(began),
            taken.map(|it| it.is_some())
        );
    });
}

#[test]
fn threads_that_wait_for_the_first_map_of_a_silent_cluster_do_not_wake_each_other() {
    let engine = Engine::Cluster(Copies::NONE);
    in_scenes_with(engine, 20, move |world| {
        for number in 0..3 {
            change_link(world.servers.address(number), |link| {
                link.silent_until = [u64::MAX / 2; 2];
            });
        }
        let locks = engine
            .builder()
            .connect_timeout(2 * SECOND)
            .build_lazily()
            .expect("options that can work");
        let wait = |name| {
            let locks = locks.clone();
            thread::spawn(move || {
                let taken = locks.try_lock(name);
                assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
            })
        };
        for thread in ["a", "b", "c"].map(wait) {
            thread.join().expect("no panic");
        }
        assert!(scheduler::steps() < 20_000, "{} steps", scheduler::steps());
    });
}

/// First behind a thread of its process, and then for another process.
#[test]
fn a_thread_that_waits_twice_in_one_call_is_counted_once() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder.local_handoff(Duration::ZERO));
        let guard = locks.lock("a").expect("locks");
        let waiter = locks.clone();
        let waits = thread::spawn(move || drop(waiter.lock("a").expect("locks")));
        thread::sleep(10 * QUICK);
        world.delete("a");
        world.occupy("a", 1);
        assert!(guard.unlock().is_err_and(|error| error.is_lost()));
        thread::sleep(some(SECOND));
        world.delete("a");
        waits.join().expect("no panic");
        assert_eq!(locks.stats().waited, 1);
    });
}

/// Nobody renews the lock in front, or tells that it has run out. The second waiter has to know
/// that it is the first one now.
#[test]
fn the_next_waiter_takes_over_where_the_first_has_given_up() {
    in_scenes(50, |_| {
        let locks = locks(|builder| builder.renew(false).lease(3 * SECOND));
        let guard = locks.lock("a").expect("locks");
        let taken = now();
        let (first, second) = (locks.clone(), locks.clone());
        let first = thread::spawn(move || {
            let taken = first.named("a").try_lock_for(SECOND * 5 / 2);
            assert!(taken.expect("Redis works").is_none());
        });
        thread::sleep(SECOND / 5 + some(SECOND / 2));
        let second = thread::spawn(move || {
            drop(second.lock("a").expect("locks"));
            now()
        });
        first.join().expect("no panic");
        let took = Duration::from_nanos(second.join().expect("no panic") - taken);
        let most = 3 * SECOND + SECOND / 10;
        assert!(took < most, "taken after {took:?}");
        assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    });
}

/// The change comes within a sleep that nothing else ends.
#[test]
fn a_listener_that_has_missed_a_change_is_replaced() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder);
        world.occupy("a", 1);
        let waiter = thread::spawn({
            let locks = locks.clone();
            move || {
                locks.lock("a").map(drop).expect("locks");
                now()
            }
        });
        thread::sleep(SECOND + some(SECOND));
        world.servers.nodes[0].borrow_mut().act(|redis, _| {
            redis.faults().unheard = redis.listeners();
        });
        world.occupy("a", 2);
        thread::sleep(17 * SECOND); // The waiter looks after 15 s at the latest.
        let freed = now();
        world.delete("a");
        let taken = waiter.join().expect("no panic");
        let took = Duration::from_nanos(taken - freed);
        assert!(took < 5 * QUICK, "it took {took:?}");
    });
}

/// The lease is over for the holder, and the key is there: a renewal that had no answer was
/// executed.
#[test]
fn the_release_of_a_hold_that_is_over_wakes_who_waits_for_its_key() {
    in_scenes(200, |world| {
        let locks = locks(|builder| builder.lease(3 * SECOND));
        let guard = locks.lock("a").expect("locks");
        let waiter = thread::spawn({
            let locks = locks.clone();
            move || {
                locks.lock("a").map(drop).expect("locks");
                now()
            }
        });
        thread::sleep(SECOND * 3 / 2);
        let until = now() + 2_700_000_000;
        change_link(world.servers.address(0), |link| {
            link.silent_until = [0, until];
        });
        thread::sleep(SECOND * 29 / 10 + some(SECOND / 10));
        assert!(world.exists("a"), "a renewal was executed");
        let _ = guard.unlock();
        let freed = now();
        let taken = waiter.join().expect("no panic");
        let took = Duration::from_nanos(taken.saturating_sub(freed));
        assert!(took < 20 * QUICK, "it took {took:?}");
    });
}
