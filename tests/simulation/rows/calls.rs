//! Calls for one lock, with one server that works.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::base::sync::scheduler::{change_link, now, one_in, per_thread, process, thread};
use crate::simulation::redis::{Entry, Value};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, locks, since, some};
use crate::{Error, LockGuard, StopHandle, Unlocked};

per_thread! {
    /// A guard that a program keeps for as long as the thread lives.
    static KEPT: RefCell<Option<LockGuard>> = RefCell::default();
}

/// The thread-local of the program is destroyed before those of the crate, or behind them.
#[test]
fn the_guard_of_a_thread_local_is_released_when_the_thread_ends() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let ends = thread::spawn(move || {
            if one_in(2) {
                KEPT.with(|_| ());
            }
            let guard = locks.lock("a").expect("locks");
            KEPT.with(|kept| *kept.borrow_mut() = Some(guard));
        });
        ends.join().expect("no panic");
        assert!(!world.exists("a"));
    });
}

#[test]
fn the_value_of_another_program_may_have_any_length() {
    in_scenes(4, |world| {
        let locks = locks(|builder| builder);
        let set = |millis: i64| {
            world.servers.nodes[0].borrow_mut().act(|redis, now| {
                redis.advance(now);
                let value = Value::String(vec![b'x'; 1 << 20]);
                let entry = Entry {
                    value,
                    expires: Some(redis.clock() + millis),
                };
                redis.set(b"lock:a", entry, now);
            });
        };
        set(1_000);
        assert!(locks.try_lock("a").expect("it is busy").is_none());
        assert!(locks.named("a").holder().expect("Redis works").is_some());
        drop(locks.lock("a").expect("it expires"));
        set(60_000);
        assert!(
            locks
                .named("a")
                .force_unlock()
                .expect("Redis works")
                .is_some()
        );
        assert!(!world.exists("a"));
    });
}

/// Nothing would wait, so this is no deadlock.
#[test]
fn row_34_a_second_manager_of_the_same_thread_fails_at_once_and_a_single_try_is_busy() {
    in_scenes(20, |_| {
        let (one, other) = (locks(|builder| builder), locks(|builder| builder));
        let guard = one.lock("a").expect("locks");
        let taken = other.try_lock("a");
        assert!(matches!(taken, Ok(None)), "{taken:?}");
        let taken = other.named("a").try_lock_for(SECOND);
        assert!(
            matches!(taken, Err(Error::WouldDeadlock { .. })),
            "{taken:?}"
        );
        drop(guard);
    });
}

/// Six processes. A process that leaves the lock to others naps for up to 250 ms.
#[test]
fn a_stop_ends_all_waits_at_once() {
    in_scenes(3, |_| {
        let lives = || {
            let (stop, stopped) = (StopHandle::new(), Arc::new(Mutex::new(0)));
            let (its_stop, told) = (stop.clone(), Arc::clone(&stopped));
            let waits = thread::spawn(move || {
                let lock = locks(|builder| builder).named("a").stopped_by(&its_stop);
                while let Ok(guard) = lock.lock() {
                    thread::sleep(some(5 * QUICK));
                    drop(guard);
                }
                assert!(
                    since(*told.lock()) < 10 * QUICK,
                    "stopped for {:?}",
                    since(*told.lock())
                );
            });
            thread::sleep(SECOND / 4 + some(SECOND / 4));
            *stopped.lock() = now();
            stop.stop();
            waits.join().expect("no panic");
        };
        let begin = |_| {
            thread::Builder::new()
                .process(process(0))
                .spawn(lives)
                .expect("a thread")
        };
        let threads: Vec<_> = (0..6).map(begin).collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

/// The answer to a `SET` may take as long as several commands of the other thread, which finds its
/// key and deletes it meanwhile. The lock is given and lost, or not given; but it is not trusted.
#[test]
fn a_lock_that_is_force_unlocked_at_the_moment_of_its_taking_is_not_trusted() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder);
        change_link(world.servers.address(0), |link| {
            link.latency = (50_000, 5_000_000);
        });
        // (At first, each of the two threads opens a connection.)
        for _ in 0..5 {
            let theirs = locks.named("a");
            let removes = thread::spawn(move || {
                let removed = || theirs.force_unlock().expect("Redis works");
                let removed = (0..20).find_map(|_| removed());
                removed.map(|holder| holder.raw.clone())
            });
            let taken = locks.lock("a");
            let removed = removes.join().expect("no panic");
            let is_it = |guard: &LockGuard| removed.as_deref() == Some(guard.token());
            let trusted = taken.iter().find(|guard| is_it(guard) && guard.is_valid());
            assert!(trusted.is_none(), "it is trusted");
            drop(taken);
            assert!(!world.exists("a"));
        }
    });
}

/// That both will lose their locks does not help either of them.
#[test]
fn locks_that_are_not_renewed_can_be_in_a_deadlock() {
    in_scenes(50, |_| {
        let locks = locks(|builder| builder.renew(false));
        let both = |first: &'static str, second: &'static str| {
            let locks = locks.clone();
            thread::spawn(move || {
                let guard = locks.lock(first).expect("locks");
                thread::sleep(10 * QUICK);
                let asked = now();
                let taken = locks.lock(second);
                assert!(since(asked) < 10 * QUICK, "waited for {:?}", since(asked));
                drop(guard);
                u32::from(matches!(taken, Err(Error::WouldDeadlock { .. })))
            })
        };
        let told = [both("a", "b"), both("b", "a")].map(|thread| thread.join().expect("no panic"));
        assert!(told[0] + told[1] >= 1);
    });
}

/// The waiters give up, or look a last time, while the wake-up is on its way.
#[test]
fn a_wake_up_that_is_on_its_way_ends_no_connection() {
    in_scenes(20, |world| {
        // An answer may overtake the wake-up, which goes over another connection.
        change_link(world.servers.address(0), |link| {
            link.latency = (100_000, 5_000_000);
        });
        let server = &world.servers.nodes[0];
        let listeners = || server.borrow_mut().act(|redis, _| redis.listeners());
        let (holder, waiter) = (locks(|builder| builder), locks(|builder| builder));
        let is_over = Arc::new(Mutex::new(false));
        let run = |name: String, is_holder: bool| {
            let locks = if is_holder {
                holder.clone()
            } else {
                waiter.clone()
            };
            let is_over = Arc::clone(&is_over);
            thread::spawn(move || {
                while !*is_over.lock() {
                    let limit = if is_holder { 10 * SECOND } else { SECOND };
                    if let Some(guard) =
                        locks.named(&name).try_lock_for(limit).expect("Redis works")
                    {
                        thread::sleep(some(if is_holder { SECOND } else { QUICK }));
                        drop(guard);
                    }
                    thread::sleep(some(QUICK));
                }
            })
        };
        let threads: Vec<_> = (0..8)
            .map(|number: u32| run((number / 2).to_string(), number.is_multiple_of(2)))
            .collect();
        while listeners().len() < 2 {
            thread::sleep(SECOND);
        }
        let before = listeners();
        thread::sleep(10 * SECOND);
        assert_eq!(listeners(), before, "a listener was replaced");
        *is_over.lock() = true;
        for thread in threads {
            thread.join().expect("no panic");
        }
    });
}

#[test]
fn unlock_now_gives_a_kept_lock_back_at_once() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let guard = locks
            .named("a")
            .keep_at_least(SECOND)
            .lock()
            .expect("locks");
        assert_eq!(guard.unlock_now().expect("unlocks"), Unlocked::Released);
        assert!(!world.exists("a"));
    });
}

/// The longest time that anybody asked for counts.
#[test]
fn a_lock_is_kept_for_as_long_as_a_reentry_wants() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let outer = locks.lock("a").expect("locks");
        drop(
            locks
                .named("a")
                .keep_at_least(SECOND)
                .lock()
                .expect("reenters"),
        );
        let kept = outer.unlock();
        assert!(matches!(kept, Ok(Unlocked::Kept { .. })), "{kept:?}");
        thread::sleep(995 * QUICK);
        assert!(world.exists("a"), "it was not kept");
    });
}

#[test]
fn force_unlock_if_deletes_what_was_seen_and_nothing_else() {
    in_scenes(20, |world| {
        let (one, other) = (locks(|builder| builder), locks(|builder| builder));
        let seen = one.lock("a").expect("locks").token().to_owned();
        let guard = other.lock("a").expect("locks");
        assert!(!one.named("a").force_unlock_if(&seen).expect("Redis works"));
        assert!(world.exists("a"));
        let token = guard.token().to_owned();
        assert!(one.named("a").force_unlock_if(&token).expect("Redis works"));
        assert!(!world.exists("a"));
    });
}

/// While a thread waits until a lease is at risk, another one makes the lease shorter.
#[test]
fn wait_at_risk_heeds_a_lease_that_is_made_shorter() {
    in_scenes(50, |_| {
        let locks = locks(|builder| builder);
        let guard = locks
            .named("a")
            .lease(60 * SECOND)
            .max_hold(60 * SECOND)
            .lock()
            .expect("locks");
        let watch = guard.watch();
        let told = Arc::new(Mutex::new(None));
        let waits = thread::spawn({
            let told = Arc::clone(&told);
            move || *told.lock() = Some((watch.wait_at_risk(2 * SECOND), now()))
        });
        thread::sleep(SECOND + some(SECOND));
        let shortened = now();
        let _ = guard.set_lease(SECOND);
        waits.join().expect("no panic");
        let (left, at) = told.lock().take().expect("it has returned");
        assert!(left.is_some_and(|left| left <= SECOND), "{left:?}");
        assert!(
            at - shortened < 1_000_000,
            "told after {:?}",
            since(shortened)
        );
    });
}

#[test]
fn a_thread_has_locks_of_one_name_by_managers_with_different_prefixes() {
    in_scenes(20, |world| {
        let (one, other) = (
            locks(|builder| builder),
            locks(|builder| builder.prefix("other:")),
        );
        let (first, second) = (
            one.lock("a").expect("locks"),
            other.lock("a").expect("locks"),
        );
        let (last, manager) = if one_in(2) {
            drop(first);
            assert!(!world.exists("a") && one.named("a").assert_held().is_err());
            (second, &other)
        } else {
            drop(second);
            assert!(world.exists("a") && other.named("a").assert_held().is_err());
            (first, &one)
        };
        manager.named("a").assert_held().expect("it is held");
        last.unlock().expect("unlocks");
        assert!(!world.exists("a") && manager.named("a").assert_held().is_err());
    });
}

/// A connection keeps the role that its server had at the login.
#[test]
fn a_server_that_is_a_master_again_is_asked_over_another_connection() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder);
        let role = |is_master: bool| {
            world.servers.nodes[0].borrow_mut().act(|redis, now| {
                if is_master {
                    redis.promote(now);
                } else {
                    redis.demote(now);
                }
            });
        };
        role(false);
        let asked = locks.named("a").holder();
        assert!(asked.is_err(), "{asked:?}");
        role(true);
        let asked = locks.named("a").holder();
        assert!(matches!(asked, Ok(None)), "{asked:?}");
    });
}
