//! Whether a wait that ends without the lock says that somebody has it, that there was no time, or
//! that Redis is away; and when those that wait learn of an outage, of the end of the connections
//! that would wake them, or of a deletion.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::sync::scheduler::{below, change_link, now, one_in, reset_all, thread};
use crate::simulation::redis::Redis;
use crate::simulation::rows::lost::ends_after;
use crate::simulation::rows::{QUICK, SECOND, World, in_scenes, locks, since, some};
use crate::{Error, LockManager, LostCause};

/// Threads that wait do not learn of an outage one after the other, nor does the outage begin anew
/// for the next of a queue, when the limit of the thread in front is over. Redis has answered some
/// of them before it.
#[test]
fn an_outage_ends_for_all_waiters_at_once() {
    in_scenes(60, |world| {
        let (tolerated, answer) = (2 * SECOND, SECOND / 4);
        let locks = locks(|builder| {
            let builder = builder.tolerate_outage(tolerated);
            builder.response_timeout(answer).connect_timeout(answer)
        });
        drop(locks.lock("b").expect("locks"));
        let wait_before = one_in(2);
        let limit = if wait_before { 20 } else { 1 } * SECOND;
        let begin = |n: u32| {
            let (locks, limit) = (locks.clone(), n.is_multiple_of(2).then_some(limit));
            thread::spawn(move || locks.named("a").wait(limit).lock().map(drop))
        };
        let mut threads = Vec::new();
        if wait_before {
            world.occupy("a", 1);
            threads.extend((0..10).map(begin));
            thread::sleep(3 * SECOND + some(SECOND));
        }
        let address = world.servers.address(0);
        if wait_before || one_in(2) {
            let until = now() + 60_000_000_000;
            change_link(address, |link| link.refuses_until = until);
            reset_all(address);
        } else {
            world.silence(60 * SECOND);
        }
        let began = now();
        if !wait_before {
            threads.extend((0..10).map(begin));
        }
        for thread in threads {
            let taken = thread.join().expect("no panic");
            assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
        }
        let (took, most) = (since(began), tolerated + 3 * answer);
        assert!(took < most, "the last one after {took:?}");
        change_link(address, |link| {
            (link.silent_until, link.refuses_until) = ([0; 2], 0);
        });
        drop(locks.lock("b").expect("nothing is kept of the outage"));
    });
}

/// Redis works all the time. There may be no time for a connection, for a turn or for an answer.
#[test]
fn a_limit_that_ends_in_this_process_is_a_timeout() {
    in_scenes(60, |world| {
        let latency = 100_000 + below(3_000_000);
        change_link(world.servers.address(0), |link| {
            link.latency = (latency / 4, latency);
        });
        let locks = locks(|builder| builder.pool_size(if one_in(2) { 1 } else { 3 }));
        let threads = (0..6).map(|n: u32| {
            let locks = locks.clone();
            thread::spawn(move || {
                for call in 0..20 {
                    let name = if (n + call).is_multiple_of(4) { 7 } else { n };
                    let limit = QUICK + some(9 * QUICK);
                    match locks.named(name.to_string()).try_lock_for(limit) {
                        Ok(taken) => drop(taken),
                        Err(Error::Timeout {
                            source: Some(_), ..
                        }) => {}
                        Err(other) => panic!("{limit:?}: {other:?}"),
                    }
                }
            })
        });
        for thread in threads.collect::<Vec<_>>() {
            thread.join().expect("no panic");
        }
    });
}

/// Another thread of the process asks, and has no answer yet.
#[test]
fn a_short_wait_behind_a_thread_that_asks_says_that_nobody_knows() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder);
        drop(locks.lock("b").expect("locks"));
        change_link(world.servers.address(0), |link| {
            link.latency = (100_000_000, 100_000_000);
        });
        let front = locks.clone();
        let front = thread::spawn(move || drop(front.lock("a").expect("locks")));
        thread::sleep(QUICK + some(180 * QUICK));
        let lock = locks.named("a").wait(5 * QUICK);
        for taken in [
            lock.lock().map(drop),
            lock.try_lock_for(5 * QUICK).map(|_| ()),
        ] {
            let is_unknown = matches!(
                taken,
                Err(Error::Timeout {
                    holder: None,
                    source: Some(_),
                    ..
                })
            );
            assert!(is_unknown, "{taken:?}");
        }
        front.join().expect("no panic");
    });
}

/// Takes the lock, alone, and gives it back. Returns when it was taken.
fn takes_a_turn(locks: &LockManager, inside: &Mutex<u32>) -> u64 {
    let guard = locks.lock("a").expect("locks");
    let taken = now();
    assert!(guard.is_valid());
    *inside.lock() += 1;
    thread::sleep(some(QUICK));
    let mut held = inside.lock();
    assert_eq!(*held, 1, "two at a time");
    *held -= 1;
    drop(held);
    let unlocked = guard.unlock();
    assert!(
        !unlocked.as_ref().is_err_and(Error::is_lost),
        "{unlocked:?}"
    );
    taken
}

/// The release takes the claim of the next waiter along. The connection ends, or nothing arrives
/// for a time, so that nobody knows whether Redis has executed them.
#[test]
fn row_12_a_hand_off_whose_answer_is_lost_loses_no_turn() {
    in_scenes(300, |world| {
        let (answer, fenced) = (SECOND / 4, one_in(2));
        let locks = locks(|builder| {
            let builder = builder.local_handoff(60 * SECOND).fenced(fenced);
            builder.response_timeout(answer).connect_timeout(answer)
        });
        let first = locks.lock("a").expect("locks");
        let inside = Arc::new(Mutex::new(0));
        let waiters = [0; 2].map(|_| {
            let (locks, inside) = (locks.clone(), Arc::clone(&inside));
            thread::spawn(move || takes_a_turn(&locks, &inside))
        });
        thread::sleep(SECOND / 10);
        let silence = if one_in(2) {
            ends_after(world, some(QUICK / 2), Duration::ZERO);
            Duration::ZERO
        } else {
            let silence = some(4 * answer);
            world.silence(silence);
            silence
        };
        let released = now();
        let unlocked = first.unlock();
        assert!(
            !unlocked.as_ref().is_err_and(Error::is_lost),
            "{unlocked:?}"
        );
        for waiter in waiters {
            let taken = waiter.join().expect("no panic");
            let took = Duration::from_nanos(taken - released);
            // The key of a claim whose answer came too late is deleted within a second.
            let most = silence + SECOND + 3 * answer;
            assert!(took < most, "after {took:?}, with a silence of {silence:?}");
        }
        thread::sleep(2 * SECOND);
        assert!(!world.exists("a"), "a key is left");
        assert_eq!(locks.stats().lost, 0);
    });
}

/// A thread that waits for `a`, and says when it has had the lock.
fn waits(locks: &LockManager) -> thread::JoinHandle<u64> {
    let locks = locks.clone();
    thread::spawn(move || {
        drop(locks.lock("a").expect("locks"));
        now()
    })
}

fn listeners(world: &World) -> usize {
    let mut server = world.servers.nodes[0].borrow_mut();
    server.act(|redis, _| redis.listeners().len())
}

/// Ends all connections, or all but those of listeners. Or Redis restarts, with its keys or
/// without. Returns how long a waiter may not be woken.
fn ends_connections(world: &World) -> Duration {
    let kind = below(4);
    world.servers.nodes[0]
        .borrow_mut()
        .act(|redis, now| match kind {
            0 => redis.kill_clients(now),
            1 => redis.kill_all_but(&redis.listeners(), now),
            _ => redis.restart(kind == 2, now),
        });
    // A listener is back soon, and looks once a second whether other connections have ended.
    if kind == 1 { 2 * SECOND } else { SECOND / 4 }
}

/// Redis tracks nothing for a connection that has ended, and sends nothing over it. A listener that
/// has worked is back soon, however often that happens.
#[test]
fn a_waiter_is_woken_whichever_connections_have_ended() {
    in_scenes(150, |world| {
        let locks = locks(|builder| builder.poll_every(20 * SECOND));
        for number in 1..=8 {
            world.occupy("a", 1);
            let waiter = waits(&locks);
            thread::sleep(SECOND + some(SECOND));
            world.occupy("a", 2); // The listener hears of that.
            thread::sleep(10 * QUICK);
            let most = ends_connections(world);
            if one_in(2) {
                thread::sleep(some(SECOND));
            }
            world.delete("a");
            let freed = now();
            let taken = waiter.join().expect("no panic");
            let took = Duration::from_nanos(taken.saturating_sub(freed));
            assert!(took < most, "round {number}: it took {took:?}");
        }
    });
}

/// The key is deleted while nobody listens.
#[test]
fn row_06_a_loss_without_a_listener_is_told_when_the_listener_is_back() {
    in_scenes(50, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        thread::sleep(2 * SECOND + some(SECOND)); // It was renewed after a second.
        let mut server = world.servers.nodes[0].borrow_mut();
        server.act(Redis::kill_clients);
        drop(server);
        world.delete("a");
        let deleted = now();
        let lost = guard.watch().wait_lost(60 * SECOND);
        assert_eq!(lost, Some(LostCause::Deleted));
        assert!(since(deleted) < SECOND / 4, "{:?}", since(deleted));
    });
}

/// By the operator's call in the process of the holder, or by hand. The hold is renewed or not, and
/// invalidations come or not.
#[test]
fn a_waiter_behind_a_deleted_hold_takes_the_lock_at_once() {
    in_scenes(200, |world| {
        let (renews, tracks) = (one_in(2), one_in(2));
        let told = Arc::new(Mutex::new(Vec::new()));
        let tells = Arc::clone(&told);
        let locks = locks(|builder| {
            let builder = builder.on_lost(move |lost| tells.lock().push(lost.key.clone()));
            let builder = builder.renew(renews).client_tracking(tracks);
            builder.poll_every(20 * SECOND)
        });
        let guard = locks.lock("a").expect("locks");
        let waiter = one_in(2).then(|| waits(&locks));
        let age = some(3 * SECOND);
        thread::sleep(age);
        let by_hand = renews && tracks && waiter.is_some() && one_in(2);
        let ended = now();
        if by_hand {
            world.delete("a");
        } else {
            let deleted = locks.named("a").force_unlock().expect("Redis works");
            assert_eq!(deleted.expect("it is held").raw, guard.token());
            assert!(!guard.is_valid(), "the hold is lost at once");
        }
        // Nobody looks at the key before the first renewal, after a second.
        let unseen = by_hand.then(|| SECOND.saturating_sub(age));
        let most = 50 * QUICK + unseen.unwrap_or_default();
        let other = waiter.unwrap_or_else(|| {
            let locks = locks.clone();
            thread::spawn(move || {
                let taken = locks.try_lock("a").expect("Redis works");
                assert!(taken.is_some(), "it is busy");
                now()
            })
        });
        let taken = other.join().expect("no panic");
        let took = Duration::from_nanos(taken - ended);
        assert!(took < most, "taken after {took:?}, by hand: {by_hand}");
        assert!(guard.unlock().is_err_and(|error| error.is_lost()));
        drop(locks);
        assert_eq!(*told.lock(), ["a"], "the loss is reported once");
    });
}

/// The manager itself wakes a waiter that no invalidation reaches, and it has no listener.
#[test]
fn a_polling_waiter_is_woken_by_a_force_unlock_in_its_process() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder.client_tracking(false).poll_every(60 * SECOND));
        world.occupy("a", 1);
        let waiter = waits(&locks);
        thread::sleep(20 * SECOND + some(SECOND));
        assert_eq!(listeners(world), 0);
        let freed = now();
        let deleted = locks.named("a").force_unlock().expect("Redis works");
        assert!(deleted.is_some());
        let took = Duration::from_nanos(waiter.join().expect("no panic") - freed);
        assert!(took < 50 * QUICK, "it took {took:?}");
    });
}
