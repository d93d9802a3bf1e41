//! Answers that come late, and connections that are dead, while Redis is well.

use std::time::Duration;

use crate::base::sync::scheduler::{
    below, change_link, lose_all, now, one_in, open_connections, thread,
};
use crate::simulation::redis::Value;
use crate::simulation::rows::lost::ends_after;
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes, locks, since, some};
use crate::{Error, LockGuard, LockManager, LostCause, StopHandle, Unlocked};

/// Nothing arrives at the server for `span`, or nothing comes from it.
fn silence(world: &World, [there, here]: [bool; 2], span: Duration) {
    let until = now() + u64::try_from(span.as_nanos()).expect("a short time");
    change_link(world.servers.address(0), |link| {
        link.silent_until = [u64::from(there) * until, u64::from(here) * until];
    });
}

const COMMANDS: [bool; 2] = [true, false];
const ANSWERS: [bool; 2] = [false, true];

fn is_its_token(world: &World, guard: &LockGuard) -> bool {
    let token = Value::String(guard.token().as_bytes().to_vec());
    guard.is_valid() && world.value(guard.key()) == Some(token)
}

/// A key that was set late still has its whole lease when the answer comes.
#[test]
fn row_03_an_answer_after_the_lease_gives_no_lock_and_leaves_no_key() {
    in_scenes(100, |world| {
        let lease = SECOND * 3 / 10;
        let locks = locks(|builder| {
            let builder = builder.lease(lease).renew(false);
            builder.response_timeout(3 * SECOND)
        });
        drop(locks.lock("b").expect("locks"));
        let late = if one_in(2) { COMMANDS } else { ANSWERS };
        silence(world, late, 2 * lease);
        let asked = now();
        let guard = locks.lock("a").expect("locks");
        let took = since(asked);
        assert!(took < 2 * lease + 10 * QUICK, "{late:?}: {took:?}");
        assert!(is_its_token(world, &guard), "{late:?}");
        drop(guard);
        // A wait that was stopped asks no more.
        let stop = StopHandle::new();
        let stopped = locks.named("a").stopped_by(&stop);
        silence(world, COMMANDS, 2 * lease);
        let waits = thread::spawn(move || stopped.lock().map(drop));
        thread::sleep(lease);
        stop.stop();
        let told = waits.join().expect("no panic");
        assert!(matches!(told, Err(Error::Stopped { .. })), "{told:?}");
        assert!(!world.exists("a"), "left behind");
        change_link(world.servers.address(0), |link| {
            link.latency = (200_000_000, 200_000_000);
        });
        let tried = locks.try_lock("a").expect_err("no answer in time");
        assert!(tried.is_redis_failure(), "{tried:?}");
    });
}

/// Little of the lease is left when the answer comes, and the first renewal has to come in time.
#[test]
fn row_04_the_time_of_a_slow_answer_is_subtracted_from_the_lease() {
    in_scenes(100, |world| {
        let late = SECOND * 7 / 10 + some(SECOND / 5);
        let locks = locks(|builder| builder.lease(SECOND).response_timeout(10 * SECOND));
        drop(locks.lock("b").expect("locks"));
        silence(world, ANSWERS, late);
        let guard = locks.lock("a").expect("locks");
        let (left, most) = (guard.remaining(), (988 * QUICK).saturating_sub(late));
        assert!(
            left <= most && most < left + 2 * QUICK,
            "{left:?}, {most:?}"
        );
        thread::sleep(5 * SECOND);
        assert!(guard.is_valid(), "it was not renewed in time");
    });
}

#[test]
fn row_11_a_manager_dropped_after_giving_up_leaves_no_key() {
    in_scenes(100, |world| {
        let answer = SECOND / 4;
        let locks = locks(|builder| builder.response_timeout(answer).connect_timeout(answer));
        drop(locks.lock("b").expect("locks"));
        silence(world, COMMANDS, SECOND + some(SECOND));
        locks.try_lock("a").expect_err("no answer");
        drop(locks);
        thread::sleep(3 * SECOND);
        assert!(!world.exists("a"));
    });
}

/// The waiter is woken, and takes the lock without learning of it. It does not leave its old token
/// to the keeper, which would delete it after 20 ms.
#[test]
fn row_11_a_waiter_whose_answer_is_lost_does_not_wait_for_itself() {
    in_scenes(200, |world| {
        let locks = locks(|builder| builder);
        drop(locks.lock("a").expect("locks"));
        world.occupy("a", 1);
        let waits = thread::spawn(move || {
            drop(locks.lock("a").expect("locks"));
            now()
        });
        thread::sleep(2 * SECOND);
        world.delete("a");
        let deleted = now();
        ends_after(world, some(QUICK / 2), Duration::ZERO);
        let took = Duration::from_nanos(waits.join().expect("no panic") - deleted);
        assert!(took < 20 * QUICK, "it took {took:?}");
        assert!(!world.exists("a"));
    });
}

/// The proxy answers some commands by itself, and Redis has executed half of them.
#[test]
fn row_14_an_error_of_a_proxy_says_nothing_of_what_redis_did() {
    in_scenes(300, |world| {
        let locks = locks(|builder| builder.renew(false).response_timeout(SECOND / 4));
        let held = locks.lock("held").expect("locks");
        world.servers.nodes[0].borrow_mut().proxy_fails_until = now() + 1_000_000_000;
        match locks.try_lock("a") {
            Ok(Some(guard)) => assert!(is_its_token(world, &guard)),
            Err(Error::Unavailable { .. }) => {}
            other => panic!("{other:?}"),
        }
        match held.set_lease(60 * SECOND) {
            Ok(()) => assert!(held.remaining() > 50 * SECOND),
            Err(Error::Unavailable { .. }) => assert!(held.remaining() < held.first_lease()),
            other => panic!("{other:?}"),
        }
        let unlocked = held.unlock();
        let is_told = matches!(
            unlocked,
            Ok(Unlocked::Released) | Err(Error::Unconfirmed { .. })
        );
        assert!(is_told, "{unlocked:?}");
        thread::sleep(3 * SECOND);
        assert!(!world.exists("a") && !world.exists("held"));
    });
}

/// Redis starts later than the program.
#[test]
fn row_15_a_lock_is_taken_within_a_second_after_redis_is_up() {
    in_scenes(60, |world| {
        let starts = some(8 * SECOND);
        let until = now() + u64::try_from(starts.as_nanos()).expect("a short time");
        change_link(world.servers.address(0), |link| link.refuses_until = until);
        let locks = locks(|builder| builder);
        let asked = now();
        let waits = ["a", "b", "c"].map(|name| {
            let locks = locks.clone();
            thread::spawn(move || {
                drop(locks.lock(name).expect("locks"));
                since(asked)
            })
        });
        for waits in waits {
            let late = waits.join().expect("no panic").saturating_sub(starts);
            assert!(late < SECOND, "{late:?} after Redis was up");
        }
    });
}

/// The only connection of the pool is dead, and a thread waits for its answer.
#[test]
fn row_17_renewals_do_not_wait_for_the_pool() {
    in_scenes(40, |world| {
        let locks = locks(|builder| {
            let builder = builder.pool_size(1).lease(3 * SECOND);
            builder
                .response_timeout(20 * SECOND)
                .connect_timeout(20 * SECOND)
        });
        let guard = locks.lock("a").expect("locks");
        lose_all(world.servers.address(0));
        let busy = locks.clone();
        let busy = thread::spawn(move || drop(busy.try_lock("b")));
        thread::sleep(8 * SECOND);
        assert!(!busy.is_finished(), "the connection was free");
        assert!(guard.is_valid());
        busy.join().expect("no panic");
    });
}

/// Nobody is told that the connection is dead. It costs half of the lease.
#[test]
fn row_18_a_dead_connection_costs_no_hold_whose_lease_is_shorter_than_the_timeouts() {
    in_scenes(100, |world| {
        let locks = locks(|builder| {
            let builder = builder.lease(6 * SECOND).connect_timeout(10 * SECOND);
            builder.response_timeout(10 * SECOND)
        });
        let guard = locks.lock("a").expect("locks");
        thread::sleep(SECOND + some(6 * SECOND));
        lose_all(world.servers.address(0));
        thread::sleep(20 * SECOND);
        assert!(guard.is_valid());
    });
}

/// Takes as many locks at the same time as the pool has connections.
fn use_all(locks: &LockManager) {
    let takes = [(); 8].map(|()| {
        let locks = locks.clone();
        thread::spawn(move || {
            let name = format!("{}", below(u64::MAX));
            locks.lock(name).expect("locks").unlock().expect("unlocks")
        })
    });
    for taken in takes {
        assert_eq!(taken.join().expect("no panic"), Unlocked::Released);
    }
}

#[test]
fn all_connections_that_a_firewall_dropped_cost_one_timeout() {
    in_scenes(60, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (10_000_000, 10_000_000);
        });
        let locks = locks(|builder| builder.lease(60 * SECOND).response_timeout(4 * SECOND));
        let guard = locks.lock("held").expect("locks");
        guard.set_lease(60 * SECOND).expect("extends");
        use_all(&locks);
        thread::sleep(3 * SECOND); // No renewal is under way.
        let strike = || {
            lose_all(world.servers.address(0));
            now()
        };
        let began = strike();
        let extended = guard.set_lease(50 * SECOND);
        assert!(extended.is_ok(), "{:?}: {extended:?}", since(began));
        assert!(since(began) < 2 * SECOND + SECOND / 5, "{:?}", since(began));
        let began = strike();
        if one_in(2) {
            drop(locks.lock("a").expect("over another connection"));
        } else {
            guard.unlock().expect("over another connection");
        }
        assert!(since(began) < 4 * SECOND + SECOND / 5, "{:?}", since(began));
        let began = now();
        use_all(&locks);
        assert!(since(began) < SECOND / 5, "another one was used");
    });
}

/// The silence of one connection proves nothing about those that have answered since, and a short
/// one nothing about any other: Redis may have been busy.
#[test]
fn an_unanswered_command_closes_no_connection_that_answers() {
    in_scenes(40, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (10_000_000, 10_000_000);
        });
        let locks = locks(|builder| builder.renew(false).client_tracking(false));
        let guard = locks.lock("a").expect("locks");
        let opened = |what: &str, most: usize, act: &dyn Fn()| {
            let before = open_connections();
            act();
            use_all(&locks);
            let new = |it: &u64| !before.contains(it);
            let opened = open_connections().into_iter().filter(new).count();
            assert!(opened <= most, "{what}: {opened} new connections");
        };
        lose_all(world.servers.address(0));
        let others = locks.clone();
        let others = thread::spawn(move || {
            thread::sleep(10 * QUICK);
            use_all(&others);
        });
        drop(guard);
        others.join().expect("no panic");
        opened("the others", 1, &|| ());
        opened("a short silence", 4, &|| {
            silence(world, ANSWERS, SECOND / 10);
            drop(locks.named("b").try_lock_for(SECOND / 20));
            thread::sleep(SECOND);
        });
    });
}

/// The listener sends a `PING` after three seconds without a message.
#[test]
fn a_change_is_noticed_after_a_firewall_dropped_the_listener() {
    in_scenes(60, |world| {
        let locks = locks(|builder| builder.lease(60 * SECOND));
        let guard = locks.lock("held").expect("locks");
        guard.set_lease(60 * SECOND).expect("extends");
        world.occupy("a", 1);
        let waiter = locks.clone();
        let waits = thread::spawn(move || {
            drop(waiter.lock("a").expect("locks"));
            now()
        });
        thread::sleep(2 * SECOND + some(3 * SECOND));
        lose_all(world.servers.address(0));
        world.delete("a");
        world.delete("held");
        let deleted = now();
        let lost = guard.watch().wait_lost(60 * SECOND);
        assert_eq!(lost, Some(LostCause::Deleted));
        assert!(since(deleted) < 7 * SECOND, "{:?}", since(deleted));
        let took = Duration::from_nanos(waits.join().expect("no panic") - deleted);
        assert!(took < 7 * SECOND, "woken after {took:?}");
    });
}

/// Redis forgets what a connection has read when that connection ends. The listener looks once a
/// second whether one has ended.
#[test]
fn a_waiter_is_woken_after_the_connection_that_tracked_its_key_was_closed() {
    in_scenes(60, |world| {
        let locks = locks(|builder| builder);
        world.occupy("a", 1);
        let waits = thread::spawn(move || {
            drop(locks.lock("a").expect("locks"));
            now()
        });
        thread::sleep(2 * SECOND + some(SECOND));
        world.servers.nodes[0].borrow_mut().act(|redis, now| {
            let listeners = redis.listeners();
            redis.kill_all_but(&listeners, now);
        });
        thread::sleep(some(SECOND));
        world.delete("a");
        let deleted = now();
        let took = waits.join().expect("no panic").saturating_sub(deleted);
        assert!(Duration::from_nanos(took) < 2 * SECOND, "{took} ns");
    });
}

/// A slow connection is not taken for a dead one, though an answer takes more than half of the time
/// that it has.
#[test]
fn an_answer_of_a_slow_redis_is_waited_for() {
    in_scenes(40, |world| {
        let [ours, theirs] = [(); 2].map(|()| locks(|builder| builder.connect_timeout(4 * SECOND)));
        drop(theirs.lock("a").expect("locks")); // Redis knows the script.
        let latency = 260_000_000 + below(100_000_000);
        change_link(world.servers.address(0), |link| {
            link.latency = (latency, latency);
        });
        let mut before = Vec::new();
        for round in 0..4 {
            let guard = theirs.lock("a").expect("locks");
            let waiter = ours.clone();
            let waits = thread::spawn(move || drop(waiter.lock("a").expect("locks")));
            thread::sleep(4 * SECOND);
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            waits.join().expect("no panic");
            thread::sleep(SECOND);
            let mut open = open_connections();
            open.sort_unstable();
            assert!(round < 2 || open == before, "{open:?}, not {before:?}");
            before = open;
        }
    });
}

/// The last handle waits for each thread, for a response timeout and 100 ms at most.
#[test]
fn dropping_the_manager_keeps_to_its_timeouts_while_redis_is_silent() {
    in_scenes(40, |world| {
        let locks = locks(|builder| {
            let builder = builder.connect_timeout(30 * SECOND);
            builder.response_timeout(SECOND / 5)
        });
        let guard = locks.lock("b").expect("locks");
        world.occupy("a", 1);
        let (is_silent, until) = (one_in(2), now() + 60_000_000_000);
        if !is_silent {
            // The listener never connects.
            change_link(world.servers.address(0), |link| link.hangs_until = until);
        }
        drop(locks.named("a").try_lock_for(SECOND / 2));
        if is_silent {
            world.silence(60 * SECOND);
        }
        let _ = guard.unlock();
        let began = now();
        drop(locks);
        let most = 3 * (SECOND * 3 / 10 + QUICK);
        assert!(since(began) < most, "{is_silent}: {:?}", since(began));
        thread::sleep(60 * SECOND); // The connect ends by itself.
    });
}
