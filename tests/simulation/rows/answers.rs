//! Scenes of their own, as those in `rows`: what a wait says when it ends without the lock, and
//! when it says so.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::sync::scheduler::{self, change_link, now, one_in, process, thread};
use crate::simulation::redis::{Entry, Value};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::{Error, LockManager, LostCause};

/// One thread takes A, then B, and another one B, then A. Returns what each got, and how long after
/// both had their first lock.
fn in_a_circle(limits: [Option<Duration>; 2]) -> [(Result<(), Error>, Duration); 2] {
    let locks = locks(|builder| builder);
    let both = |first: &'static str, second: &'static str, limit| {
        let locks = locks.clone();
        thread::spawn(move || {
            let guard = locks.lock(first).expect("locks");
            thread::sleep(10 * QUICK + some(QUICK));
            let asked = now();
            let taken = locks.named(second).wait(limit).lock().map(drop);
            let took = since(asked);
            thread::sleep(SECOND / 10);
            drop(guard);
            (taken, took)
        })
    };
    let threads = [both("a", "b", limits[0]), both("b", "a", limits[1])];
    threads.map(|thread| thread.join().expect("no panic"))
}

#[test]
fn a_deadlock_ends_at_once_also_if_each_wait_has_a_limit() {
    in_scenes(60, |_| {
        for limits in [
            [Some(30 * SECOND); 2],
            [Some(20 * SECOND), Some(30 * SECOND)],
            [Some(20 * SECOND), None],
            [None; 2],
        ] {
            let [first, second] = in_a_circle(limits);
            if limits[0] != limits[1] {
                assert!(first.0.is_err(), "{limits:?}: its wait would end first");
            }
            let (told, other) = if first.0.is_err() {
                (first, second)
            } else {
                (second, first)
            };
            let (error, took) = (told.0.expect_err("one of them is told"), told.1);
            assert!(matches!(error, Error::WouldDeadlock { .. }), "{error:?}");
            assert!(took < 10 * QUICK, "{limits:?}: told after {took:?}");
            other.0.expect("the other goes on");
        }
    });
}

const LEASE: Duration = Duration::from_millis(4_300);

/// The thread waits in front, or behind another one.
#[test]
fn a_wait_ends_when_the_thread_loses_a_lock_that_it_holds() {
    for (renews, is_behind) in [(true, false), (true, true), (false, false), (false, true)] {
        in_scenes(20, move |world| {
            let locks = locks(|builder| builder.renew(renews).lease(LEASE));
            drop(locks.lock("b").expect("locks"));
            world.occupy("b", 1);
            let front = is_behind.then(|| {
                let locks = locks.clone();
                thread::spawn(move || drop(locks.lock("b")))
            });
            let (theirs, at) = (locks.clone(), Arc::new(Mutex::new(0)));
            let told = Arc::clone(&at);
            let waits = thread::spawn(move || {
                thread::sleep(10 * QUICK);
                let guard = theirs.lock("a").expect("locks");
                let began = now();
                let taken = theirs.lock("b").map(drop);
                // Without renewals, the lease ends: `is_valid` is false a little before.
                let lost = *told.lock();
                let late = if lost == 0 {
                    since(began).saturating_sub(LEASE)
                } else {
                    since(lost)
                };
                assert!(late < 10 * QUICK, "told {late:?} later: {taken:?}");
                drop(guard);
                taken
            });
            thread::sleep(2 * SECOND + some(SECOND));
            if renews {
                *at.lock() = now();
                world.delete("a");
            }
            let error = waits.join().expect("no panic").expect_err("it has lost a");
            let wanted = if renews {
                LostCause::Deleted
            } else {
                LostCause::Expired
            };
            assert!(
                matches!(&error, Error::OuterLost { key, outer, cause } if key == "b" && outer == "a" && *cause == wanted),
                "{error:?}"
            );
            world.delete("b");
            if let Some(front) = front {
                front.join().expect("no panic");
            }
        });
    }
}

/// The thread has not learned yet who has the other lock: Redis gives no answer.
#[test]
fn a_wait_for_a_silent_redis_ends_with_the_lease_of_what_the_thread_holds() {
    in_scenes(20, |world| {
        let locks = locks(|builder| {
            let builder = builder.tolerate_outage(60 * SECOND).renew(false);
            builder.lease(LEASE).connect_timeout(SECOND / 4)
        });
        let locks_b = locks.clone();
        let guard = locks.lock("a").expect("locks");
        let taken = now();
        let until = taken + 120_000_000_000;
        change_link(world.servers.address(0), |link| {
            link.silent_until = [until; 2];
        });
        let error = locks_b.lock("b").expect_err("it has lost a");
        assert!(matches!(error, Error::OuterLost { .. }), "{error:?}");
        assert!(
            since(taken) < LEASE + 2 * SECOND,
            "told after {:?}",
            since(taken)
        );
        change_link(world.servers.address(0), |link| link.silent_until = [0; 2]);
        drop(guard);
    });
}

fn tries(locks: &LockManager) -> Vec<Result<Option<()>, Error>> {
    let begin = |_| {
        let locks = locks.clone();
        thread::spawn(move || {
            thread::sleep(some(QUICK / 2));
            let asked = now();
            let tried = locks.try_with_lock("a", || thread::sleep(10 * SECOND));
            let took = since(asked);
            assert!(
                !matches!(tried, Ok(None)) || took < 3 * QUICK,
                "busy after {took:?}"
            );
            tried
        })
    };
    let threads: Vec<_> = (0..6).map(begin).collect();
    threads
        .into_iter()
        .map(|it| it.join().expect("no panic"))
        .collect()
}

#[test]
fn no_single_try_says_busy_if_nobody_knows() {
    in_scenes(60, |world| {
        let locks = locks(|builder| builder.connect_timeout(SECOND / 2).response_timeout(SECOND));
        drop(locks.lock("b").expect("locks"));
        let server = &world.servers.nodes[0];
        server
            .borrow_mut()
            .act(|redis, _| redis.faults().out_of_memory = true);
        for tried in tries(&locks) {
            assert!(matches!(tried, Err(Error::Refused { .. })), "{tried:?}");
        }
        server
            .borrow_mut()
            .act(|redis, _| redis.faults().out_of_memory = false);
        let address = world.servers.address(0);
        let until = now() + 60_000_000_000;
        change_link(address, |link| link.silent_until = [until; 2]);
        let began = now();
        for tried in tries(&locks) {
            assert!(matches!(tried, Err(Error::Unavailable { .. })), "{tried:?}");
        }
        assert!(since(began) < 2 * SECOND, "{:?}", since(began));
        change_link(address, |link| link.silent_until = [0; 2]);
    });
}

/// All of them learn it from the same few answers.
#[test]
fn single_tries_at_the_same_time_say_busy_if_somebody_has_the_lock() {
    in_scenes(40, |world| {
        let locks = locks(|builder| builder);
        let busy = |tried: &Result<Option<()>, Error>| matches!(tried, Ok(None));
        let tried = tries(&locks);
        let ran = tried.iter().filter(|it| matches!(it, Ok(Some(())))).count();
        assert_eq!(
            (ran, tried.iter().filter(|it| busy(it)).count()),
            (1, 5),
            "{tried:?}"
        );
        world.occupy("a", 1);
        let tried = tries(&locks);
        assert!(tried.iter().all(busy), "{tried:?}");
        // Behind a thread that sleeps until the key changes, which asks once more.
        let front = locks.clone();
        let front = thread::spawn(move || drop(front.lock("a")));
        thread::sleep(SECOND);
        let tried = tries(&locks);
        assert!(tried.iter().all(busy), "{tried:?}");
        world.delete("a");
        front.join().expect("no panic");
    });
}

/// The queue knows what its first thread has learned.
#[test]
fn a_key_that_never_expires_is_told_to_the_whole_queue() {
    in_scenes(20, |world| {
        world.servers.nodes[0].borrow_mut().act(|redis, now| {
            let value = Value::String(b"1700000000".to_vec());
            redis.set(
                b"lock:a",
                Entry {
                    value,
                    expires: None,
                },
                now,
            );
        });
        let locks = locks(|builder| builder);
        let began = now();
        let begin = |_| {
            let locks = locks.clone();
            thread::spawn(move || locks.named("a").wait(5 * SECOND).lock().map(drop))
        };
        let threads: Vec<_> = (0..10).map(begin).collect();
        for thread in threads {
            let told = thread.join().expect("no panic");
            assert!(matches!(told, Err(Error::NotALock { .. })), "{told:?}");
        }
        assert!(since(began) < SECOND / 2, "{:?}", since(began));
    });
}

/// The thread in front waits without a limit, and would look again in ten seconds.
#[test]
fn a_thread_behind_another_one_knows_at_its_end_whether_redis_is_silent() {
    in_scenes(60, |world| {
        let locks = locks(|builder| builder);
        drop(locks.lock("a").expect("locks"));
        world.occupy("a", 1);
        let front = locks.clone();
        let front = thread::spawn(move || drop(front.lock("a")));
        thread::sleep(10 * QUICK);
        let waits = locks.clone();
        let asked = now();
        let waits = thread::spawn(move || waits.named("a").wait(5 * SECOND).lock().map(drop));
        let is_silent = one_in(2);
        thread::sleep(SECOND + some(3 * SECOND));
        if is_silent {
            let until = asked + 6_000_000_000;
            change_link(world.servers.address(0), |link| {
                link.silent_until = [until; 2];
            });
        }
        let error = waits.join().expect("no panic").expect_err("it is taken");
        match error {
            Error::Unavailable { .. } if is_silent => {}
            Error::Timeout {
                source: None,
                holder: Some(_),
                ..
            } if !is_silent => {}
            other => panic!("silent: {is_silent}, and {other:?}"),
        }
        thread::sleep(2 * SECOND);
        world.delete("a");
        front.join().expect("no panic");
    });
}

/// Four threads of one process, and one of another. At zero, the four hand nothing off, and each
/// leaves the lock free in between. Otherwise, each turn is shorter than their budget.
#[test]
fn other_processes_get_their_turns_with_hand_offs_and_without() {
    for (handoff, work, most) in [
        (Duration::ZERO, 50 * QUICK, 4 * SECOND),
        (5 * QUICK, QUICK, 3 * SECOND / 4),
    ] {
        in_scenes(6, move |_| {
            let is_over = Arc::new(Mutex::new(false));
            let lives = |threads: usize| {
                let is_over = Arc::clone(&is_over);
                move || {
                    let locks = locks(|builder| builder.local_handoff(handoff));
                    let begin = |_| {
                        let (locks, is_over) = (locks.clone(), Arc::clone(&is_over));
                        thread::spawn(move || take_turns(&locks, &is_over, work))
                    };
                    let all: Vec<_> = (0..threads).map(begin).collect();
                    for thread in all {
                        let longest = thread.join().expect("no panic");
                        let is_alone = threads == 1;
                        assert!(!is_alone || longest < SECOND / 2, "waited for {longest:?}");
                    }
                }
            };
            let begin = |threads| {
                let builder = thread::Builder::new().process(process(0));
                builder.spawn(lives(threads)).expect("a thread")
            };
            let both = [begin(4), begin(1)];
            thread::sleep(most);
            *is_over.lock() = true;
            let _ = both.map(|it| it.join().expect("no panic"));
        });
    }
}

/// Takes the lock again and again; returns the longest wait.
fn take_turns(locks: &LockManager, is_over: &Mutex<bool>, work: Duration) -> Duration {
    let mut longest = Duration::ZERO;
    while !*is_over.lock() {
        let asked = now();
        let guard = locks.lock("a").expect("Redis works");
        longest = longest.max(since(asked));
        thread::sleep(work / 5 + some(work * 4 / 5));
        drop(guard);
    }
    longest
}

/// Only the first of a queue looks at the clock once a second.
#[test]
fn the_threads_of_a_queue_sleep_until_something_happens() {
    in_scenes(4, |world| {
        let locks = locks(|builder| builder.wait(50 * SECOND));
        drop(locks.lock("a").expect("locks"));
        world.occupy("a", 1);
        let begin = |_| {
            let locks = locks.clone();
            thread::spawn(move || drop(locks.lock("a")))
        };
        let threads: Vec<_> = (0..50).map(begin).collect();
        // They report in the log after 5, 10, 20 and 40 seconds.
        thread::sleep(21 * SECOND);
        let before = scheduler::steps();
        thread::sleep(18 * SECOND);
        let steps = scheduler::steps() - before;
        assert!(
            steps < 4_500,
            "{steps} steps, 3,750 of them without a queue"
        );
        world.delete("a");
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

/// The node answers each login, and no command that writes, as a proxy does whose server is gone.
/// So it answers all the time.
#[test]
fn a_node_that_answers_logins_alone_is_an_outage_for_all_that_wait() {
    in_scenes(40, |world| {
        let (tolerated, answer) = (3 * SECOND, SECOND / 2);
        let locks = locks(|builder| builder.tolerate_outage(tolerated).response_timeout(answer));
        if one_in(2) {
            drop(locks.lock("a").expect("locks"));
        }
        let until = now() + 60_000_000_000;
        let server = &world.servers.nodes[0];
        server
            .borrow_mut()
            .act(|redis, _| redis.pause_until(until, true));
        let began = now();
        let waits = |_| {
            let locks = locks.clone();
            thread::spawn(move || (locks.lock("a").map(drop), since(began)))
        };
        for waits in [0; 3].map(waits) {
            let (taken, took) = waits.join().expect("no panic");
            assert!(matches!(taken, Err(Error::Unavailable { .. })), "{taken:?}");
            let most = tolerated + 2 * answer;
            assert!(took < most, "after {took:?}: {taken:?}");
        }
    });
}
