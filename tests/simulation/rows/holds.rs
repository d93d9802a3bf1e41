//! How long a hold lasts, and what its thread is told.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::sync::scheduler::{below, change_link, fail, now, one_in, reset_all, thread};
use crate::simulation::rows::{QUICK, SECOND, in_scenes, in_scenes_with, locks, since, some};
use crate::simulation::world::engine::{Copies, Engine};
use crate::{Error, LostCause, Replicas};

#[test]
fn row_06_a_key_that_is_deleted_at_any_age_of_its_hold_is_told_in_time() {
    in_scenes(300, |world| {
        let locks = locks(|builder| builder);
        let guard = locks.lock("a").expect("locks");
        // Until its first renewal, after a second, nobody looks at the key; then Redis reports it.
        let age = some(30 * SECOND);
        thread::sleep(age);
        world.delete("a");
        let deleted = now();
        assert_eq!(
            guard.watch().wait_lost(60 * SECOND),
            Some(LostCause::Deleted)
        );
        let limit = if age > SECOND + QUICK {
            50 * QUICK
        } else {
            SECOND.saturating_sub(age) + 50 * QUICK
        };
        assert!(
            since(deleted) < limit,
            "told after {:?}, at the age of {age:?}",
            since(deleted)
        );
    });
}

/// Nobody else has looked at it.
#[test]
fn a_hold_that_has_run_out_is_not_held() {
    in_scenes(20, |_| {
        let locks = locks(|builder| builder.lease(SECOND).renew(false));
        let lock = locks.named("a");
        let _guard = lock.lock().expect("locks");
        lock.assert_held().expect("it is held");
        thread::sleep(SECOND);
        let held = lock.assert_held();
        let is_over = matches!(
            held,
            Err(Error::Lost {
                cause: LostCause::Expired,
                ..
            })
        );
        assert!(is_over, "{held:?}");
    });
}

/// A lease counts from when its command was sent, however late the answer came.
#[test]
pub(crate) fn row_08_a_hold_in_a_black_hole_ends_with_its_lease_and_its_key_does_not_end_sooner() {
    in_scenes(200, |world| {
        let (lease, latency) = (3 * SECOND, below(200_000_000));
        change_link(world.servers.address(0), |link| {
            link.latency = (latency, latency);
        });
        let locks = locks(|builder| builder.lease(lease).response_timeout(SECOND));
        let guard = locks.lock("a").expect("locks");
        thread::sleep(some(8 * SECOND));
        world.silence(60 * SECOND);
        let silent = now();
        assert_eq!(
            guard.watch().wait_lost(60 * SECOND),
            Some(LostCause::Expired)
        );
        assert!(world.exists("a"), "the key was gone before the hold");
        assert!(
            since(silent) <= lease,
            "told {:?} after the beginning of the silence",
            since(silent)
        );
    });
}

#[test]
fn row_13_taking_a_lock_in_a_black_hole_ends_by_its_deadline() {
    in_scenes(200, |world| {
        let answer = SECOND / 2;
        let locks = locks(|builder| {
            builder
                .response_timeout(answer)
                .connect_timeout(answer)
                .tolerate_outage(4 * answer)
        });
        if one_in(2) {
            drop(locks.lock("b").expect("locks")); // Now there is a connection.
        }
        world.silence(60 * SECOND);
        let limit = some(4 * SECOND);
        let (began, taken) = (now(), locks.named("a").try_lock_for(limit));
        // A limit in which no answer could come gets none, and the shorter of both ends the wait.
        let most = limit.min(4 * answer) + 3 * answer + QUICK;
        let is_told = match &taken {
            Err(Error::Unavailable { .. }) => true,
            // So short a silence says nothing of Redis.
            Err(Error::Timeout { source, .. }) => source.is_some() && limit < SECOND / 10,
            _ => false,
        };
        assert!(is_told, "{taken:?}");
        assert!(
            since(began) <= most,
            "took {:?}, with a limit of {limit:?}",
            since(began)
        );
    });
}

#[test]
fn a_hold_lasts_for_as_long_as_its_thread_wants() {
    in_scenes(20, |world| {
        let lease = some(4 * SECOND) + SECOND;
        let locks = locks(|builder| builder.lease(lease));
        let guard = locks.lock("a").expect("locks");
        for _ in 0..200 {
            thread::sleep(some(lease / 10));
            assert!(world.exists("a") && guard.is_valid());
        }
        guard.unlock().expect("unlocks");
        assert!(!world.exists("a"));
    });
}

/// After an outage of nearly a lease, there is always one that ends before Redis can answer.
#[test]
fn row_18_holds_that_end_keep_no_other_from_being_renewed() {
    in_scenes(4, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (29_000_000, 31_000_000);
        });
        let locks = locks(|builder| builder);
        let lease = |n: u64| 4 * SECOND + Duration::from_millis(20 * n);
        let held: Vec<_> = (0..100)
            .map(|n| {
                locks
                    .named(format!("{n}"))
                    .lease(lease(n))
                    .lock()
                    .expect("locks")
            })
            .collect();
        thread::sleep(3 * SECOND);
        let until = now() + 60_000_000_000;
        change_link(world.servers.address(0), |link| link.refuses_until = until);
        reset_all(world.servers.address(0));
        while held.iter().filter(|guard| guard.is_valid()).count() > 90 {
            thread::sleep(50 * QUICK);
        }
        change_link(world.servers.address(0), |link| link.refuses_until = 0);
        // A pause between two attempts, a connection, a login, a batch.
        let in_time: Vec<_> = held
            .iter()
            .filter(|guard| guard.remaining() > SECOND)
            .collect();
        assert!(in_time.len() > 20, "{} had a second left", in_time.len());
        thread::sleep(2 * SECOND);
        let kept = in_time.iter().filter(|guard| guard.is_valid()).count();
        assert_eq!(kept, in_time.len(), "of those that had a second left");
    });
}

#[test]
fn a_lease_of_six_round_trips_survives_its_first_renewal() {
    in_scenes(50, |world| {
        change_link(world.servers.address(0), |link| {
            link.latency = (200_000_000, 200_000_000);
        });
        let locks = locks(|builder| builder);
        drop(locks.lock("b"));
        let guard = locks
            .named("a")
            .lease(6 * SECOND * 4 / 10 + 10 * QUICK)
            .lock()
            .expect("locks");
        thread::sleep(20 * SECOND);
        assert!(guard.is_valid());
    });
}

#[test]
fn wait_at_risk_returns_at_its_time() {
    in_scenes(100, |world| {
        let locks = locks(|builder| builder.lease(3 * SECOND).response_timeout(SECOND));
        let guards = ["a", "b", "c"].map(|name| {
            thread::sleep(some(SECOND));
            locks.lock(name).expect("locks")
        });
        thread::sleep(some(5 * SECOND));
        world.silence(60 * SECOND);
        let watchers = guards.each_ref().map(|guard| {
            let (watch, left) = (guard.watch(), some(SECOND));
            thread::spawn(move || (left, watch.wait_at_risk(left)))
        });
        for watcher in watchers {
            let (left, remaining) = watcher.join().expect("no panic");
            let remaining = remaining.expect("the hold is at risk");
            assert!(
                remaining <= left && remaining + QUICK > left,
                "{remaining:?} left, asked for {left:?}"
            );
        }
    });
}

/// A hold is renewed until then, and its last lease runs out.
#[test]
fn row_10_max_hold_is_a_limit_to_the_microsecond() {
    in_scenes(100, |_| {
        let (lease, limit) = (SECOND * 3 / 2, 2 * SECOND + some(5 * SECOND));
        let locks = locks(|builder| builder.lease(lease));
        let asked = now();
        let guard = locks.named("a").max_hold(limit).lock().expect("locks");
        while since(asked) < limit + lease + QUICK {
            assert!(
                guard.is_valid() || since(asked) + QUICK > limit,
                "it ended after {:?}",
                since(asked)
            );
            thread::sleep(some(SECOND / 10));
            let _ = one_in(3).then(|| guard.confirm(some(SECOND)));
        }
        assert!(
            !guard.is_valid(),
            "with a limit of {limit:?}, it has {:?} left",
            guard.remaining()
        );
    });
}

/// The threads are caught at every point of taking and releasing.
#[test]
fn no_thread_trusts_a_lock_once_its_manager_was_shut_down_and_released_and_no_key_is_left() {
    in_scenes(400, |world| {
        let locks = locks(|builder| builder.pool_size(1 + u32::try_from(below(4)).expect("a few")));
        let is_over = Arc::new(Mutex::new(false));
        let threads: Vec<_> = (0..4)
            .map(|n: u64| {
                let (locks, is_over) = (locks.clone(), Arc::clone(&is_over));
                thread::spawn(move || {
                    while let Ok(guard) = locks.lock((n / 2).to_string()) {
                        if guard.is_valid() && *is_over.lock() {
                            fail("a lock is trusted after the shutdown");
                        }
                    }
                })
            })
            .collect();
        thread::sleep(some(3 * QUICK));
        let _ = locks.shutdown_and_release(Duration::ZERO);
        *is_over.lock() = true;
        assert!(!world.exists("0") && !world.exists("1"), "a key is left");
        for thread in threads {
            thread.join().expect("no panic");
        }
        assert!(!world.exists("0") && !world.exists("1"), "a key is left");
    });
}

#[test]
fn a_lock_is_kept_for_its_time_whenever_it_is_released() {
    in_scenes(300, |world| {
        let locks = locks(|builder| builder);
        let least = SECOND / 10 + some(SECOND);
        let asked = now();
        let guard = locks.named("a").keep_at_least(least).lock().expect("locks");
        // Also just before the time, and in the middle of it.
        let age = if one_in(2) {
            some(2 * least)
        } else {
            (least + some(QUICK)).saturating_sub(QUICK / 2)
        };
        thread::sleep(age);
        if one_in(3) {
            reset_all(world.servers.address(0));
        }
        let released = guard.unlock();
        assert!(
            released.is_ok(),
            "{released:?} at the age of {age:?}, to be kept for {least:?}"
        );
        if since(asked) + QUICK < least {
            assert!(world.exists("a"), "it was not kept");
        }
        thread::sleep((least + 5 * QUICK).saturating_sub(since(asked)));
        assert!(
            !world.exists("a"),
            "it is kept for too long: {:?} of {least:?}",
            since(asked)
        );
    });
}

/// Nobody knows when in these 120 ms Redis measured the time left. The hold was well before, and
/// nothing says that it is not.
#[test]
fn a_slow_answer_to_verify_is_no_loss() {
    in_scenes(20, |world| {
        let locks = locks(|builder| builder.renew(false).lease(SECOND / 2));
        locks.lock("other").expect("locks").verify().expect("held"); // The scripts are known.
        let guard = locks.lock("a").expect("locks");
        let end = guard.remaining();
        let began = now();
        thread::sleep(350 * QUICK);
        change_link(world.servers.address(0), |link| {
            link.latency = (60_000_000, 60_000_000);
        });
        guard.verify().expect("the key is there");
        let left = end.saturating_sub(since(began));
        assert!(guard.remaining().abs_diff(left) < QUICK, "{left:?}");
    });
}

/// The server's clock has stepped, and the key ends in two milliseconds. It is still there at the
/// release, but nobody could rely on it.
#[test]
fn a_loss_that_a_call_has_told_is_reported_though_the_release_finds_the_key() {
    in_scenes(20, |world| {
        let told = Arc::new(Mutex::new(0));
        let counts = Arc::clone(&told);
        let locks = locks(|builder| builder.on_lost(move |_| *counts.lock() += 1).renew(false));
        locks
            .lock("other")
            .expect("locks")
            .verify()
            .expect("it is held"); // The scripts are known.
        let guard = locks.named("a").lease(SECOND / 2).lock().expect("locks");
        thread::sleep(350 * QUICK);
        let mut server = world.servers.nodes[0].borrow_mut();
        server.act(|redis, _| redis.step_clock(148_000_000));
        drop(server);
        let verified = guard.verify();
        assert!(verified.as_ref().is_err_and(Error::is_lost), "{verified:?}");
        drop(guard);
        assert_eq!(locks.stats().lost, 1);
        drop(locks);
        assert_eq!(*told.lock(), 1);
    });
}

/// Redis looks ten times a second which `WAIT` is over. So an answer may come as late as that
/// after the timeout, on a connection that was used or was not.
#[test]
fn replicas_may_take_as_long_as_the_server_itself() {
    in_scenes_with(Engine::Replicas(Copies::ONE), 40, |world| {
        let told = |error: &Error| {
            format!(
                "{error}: {}",
                error.source().map(ToString::to_string).unwrap_or_default()
            )
        };
        let latency = below(20_000_000);
        change_link(world.servers.address(0), |link| {
            link.latency = (latency, latency);
        });
        let locks = locks(|builder| {
            builder
                .replicas(Replicas::at_least(1), 300 * QUICK)
                .response_timeout(400 * QUICK)
        });
        let guard = locks.lock("held").expect("locks");
        guard.set_lease(60 * SECOND).expect("extends");
        thread::sleep(2 * SECOND + some(SECOND)); // Until after a renewal.
        let mut server = world.servers.nodes[0].borrow_mut();
        server.redis.settings().timeout_delay = below(100_000_000);
        server.streams.iter_mut().for_each(|it| it.is_cut = true);
        drop(server);
        let extended = guard.set_lease(60 * SECOND).expect_err("cut off");
        let taken = locks.lock("a").expect_err("cut off");
        let (extended, taken) = (told(&extended), told(&taken));
        let why = "0 of 1 replicas acknowledged the";
        assert!(
            extended.contains(&format!("{why} renewal within")),
            "{extended}"
        );
        assert!(
            taken.contains(&format!("{why} lock within 300 ms")),
            "{taken}"
        );
    });
}
