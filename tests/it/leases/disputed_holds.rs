//! Holds on which Redis's answer and the clock disagree: releases that come late, keys that come
//! back, renewals that are refused.

use std::error::Error as StdError;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{Error, LockGuard, LostCause};
use relatch_rig::{Fault, LONG, eventually, throughout, unique_key};

use crate::support::{MINUTE, Rig, SOON, assert_lost, delete, occupy, renewals, renewals_of};

/// A lease so long that a hold is still valid when its release begins.
const LEASE: Duration = Duration::from_millis(700);

type Act<'a> = &'a (dyn Fn(&Rig) + Sync);

/// Releases holds that are valid when the release begins, and whose lease ends before Redis
/// executes the release. `stall` begins to delay the release, and `end` ends the delay. For each
/// `true` in `others`, another holder takes the lock before the delay ends; for `false`, nobody
/// does.
fn run_out_on_the_way(stall: Act<'_>, end: Act<'_>, others: &[bool]) {
    let rig = &Rig::with(|builder| builder.pool_size(1).response_timeout(LONG));
    for (taken, by_closure) in others
        .iter()
        .flat_map(|taken| [(*taken, false), (*taken, true)])
    {
        let name = &unique_key("a");
        let lock = rig.locks.named(name).renew(false).lease(LEASE);
        let started = Instant::now();
        thread::scope(|scope| {
            let meanwhile = move || {
                // Redis counts whole milliseconds: its key may live a little longer than the lease.
                throughout(LEASE + Duration::from_millis(10), || ());
                if taken {
                    eventually(LONG, "the key is gone", || {
                        !rig.server.exists(&format!("lock:{name}"))
                    });
                    occupy(&rig.server, name, MINUTE);
                }
                end(rig);
            };
            let begin = |guard: &LockGuard| {
                scope.spawn(meanwhile);
                stall(rig);
                assert!(guard.is_valid(), "after {:?}", started.elapsed());
            };
            if by_closure {
                lock.with_lock_result(|guard| {
                    begin(guard);
                    Ok::<_, Error>(())
                })
                .expect("the closure ran under the lock");
            } else {
                let guard = lock.lock().expect("locks");
                begin(&guard);
                let error = guard.unlock().expect_err("no answer");
                let source = error.source().map(ToString::to_string).unwrap_or_default();
                let at_most = match &error {
                    Error::Unconfirmed { at_most, .. } => *at_most,
                    other => panic!("taken by another: {taken}: {other:?}"),
                };
                assert_eq!(at_most, Duration::ZERO, "{error}");
                assert!(
                    error.to_string().ends_with("its lease is over by now"),
                    "{error}"
                );
                assert!(
                    source.contains("while the release was on its way"),
                    "{source}"
                );
            }
        });
        assert!(started.elapsed() >= LEASE);
        assert_eq!(rig.value_of(name).as_deref(), taken.then_some("somebody"));
        delete(&rig.server, name);
    }
    assert_eq!(rig.locks.stats().lost, 0);
}

#[test]
fn a_lease_that_ends_while_its_release_is_on_the_wire_is_no_loss() {
    let stall: Act<'_> = &|rig| rig.proxy.on("EVALSHA", Fault::DelayCommand(2 * LEASE));
    run_out_on_the_way(stall, &|_| (), &[false, true]);
}

#[test]
fn a_lease_that_ends_while_the_server_is_stopped_is_no_loss() {
    let end: Act<'_> = &|rig| rig.server.resume();
    run_out_on_the_way(&|rig| rig.server.pause(), end, &[false]);
}

#[test]
fn a_lease_that_ends_while_its_release_waits_for_a_connection_is_no_loss() {
    let stall: Act<'_> = &|rig| {
        let (locks, fired) = (rig.locks.clone(), rig.proxy.fired());
        rig.proxy
            .on("EVALSHA * 1 lock:other", Fault::DelayReply(2 * LEASE));
        drop(thread::spawn(move || locks.named("other").holder()));
        rig.proxy.wait_fired(fired + 1, LONG);
    };
    run_out_on_the_way(stall, &|_| (), &[false, true]);
}

#[test]
fn a_lease_that_ends_while_connecting_is_refused_is_no_loss() {
    let stall: Act<'_> = &|rig| {
        rig.proxy.refuse(true);
        rig.proxy.cut_all();
        // This call notices that the connection is closed, so the release is never sent over it.
        rig.locks.try_lock("other").expect_err("refused");
    };
    run_out_on_the_way(stall, &|rig| rig.proxy.refuse(false), &[false, true]);
}

/// Redis can deny a hold and have its token again later: if the address moves to another server and
/// back, or if the key is renamed by hand.
#[test]
fn a_hold_that_redis_has_denied_is_not_released() {
    let reported = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&reported);
    let period = Duration::from_millis(100);
    let rig = &Rig::with(|builder| {
        let builder = builder.lease(MINUTE).renew_every(period);
        builder.on_lost(move |lost| recorder.lock().push((lost.key.clone(), lost.cause)))
    });
    for (taken, cause) in [(false, LostCause::Deleted), (true, LostCause::Taken)] {
        for by_closure in [false, true] {
            let name = &unique_key("a");
            let (key, away) = (format!("lock:{name}"), format!("away{{lock:{name}}}"));
            let goes_and_comes_back = |guard: &LockGuard| {
                eventually(LONG, "the hold is renewed", || {
                    renewals(&rig.locks, name) > 0
                });
                let script = "redis.call('RENAME', KEYS[1], KEYS[2]) \
                    if ARGV[1] == 'true' then redis.call('SET', KEYS[1], 'somebody', 'PX', 60000) end";
                rig.server
                    .query::<()>(&["EVAL", script, "2", &key, &away, &taken.to_string()]);
                assert_eq!(guard.watch().wait_lost(LONG), Some(cause));
                rig.server.query::<()>(&["RENAME", &away, &key]);
                assert_eq!(
                    rig.value_of(name).as_deref(),
                    Some(guard.token()),
                    "the token is there again"
                );
            };
            if by_closure {
                assert_lost(
                    &rig.locks.with_lock_result(name, |guard| {
                        goes_and_comes_back(guard);
                        Ok(())
                    }),
                    cause,
                );
            } else {
                let guard = rig.locks.lock(name).expect("locks");
                goes_and_comes_back(&guard);
                assert_lost(&guard.unlock(), cause);
            }
            assert_eq!(rig.value_of(name), None, "the key is deleted all the same");
            let expected = (name.clone(), cause);
            eventually(LONG, "on_lost is called", || {
                reported.lock().last() == Some(&expected)
            });
        }
    }
    assert_eq!(rig.locks.stats().lost, 4);
}

/// The hold stays lost even if its release gets no answer.
#[test]
fn a_hold_that_redis_has_denied_is_lost_though_its_release_has_no_answer() {
    let rig = Rig::renewing();
    for by_closure in [false, true] {
        let name = &unique_key("a");
        let is_denied = |guard: &LockGuard| {
            eventually(LONG, "the hold is renewed", || {
                renewals(&rig.locks, name) > 0
            });
            delete(&rig.server, name);
            assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
            rig.proxy.always("EVALSHA", Fault::SwallowCommand);
        };
        if by_closure {
            assert_lost(
                &rig.locks.with_lock_result(name, |guard| {
                    is_denied(guard);
                    Ok(())
                }),
                LostCause::Deleted,
            );
        } else {
            let guard = rig.locks.lock(name).expect("locks");
            is_denied(&guard);
            assert_lost(&guard.unlock(), LostCause::Deleted);
        }
        rig.proxy.clear();
    }
}

#[test]
fn a_refused_renewal_does_not_extend_the_hold() {
    let rig = Rig::renewing();
    let loading = Fault::Answer(b"-LOADING Redis is loading the dataset in memory\r\n".to_vec());
    rig.proxy.always(&renewals_of(&rig.server, "a"), loading);
    let guard = rig.locks.lock("a").expect("locks");
    assert_eq!(
        guard.watch().wait_lost(6 * SOON),
        Some(LostCause::Expired),
        "trusted past its lease"
    );
    assert!(!guard.is_valid());
    let stats = rig.locks.stats();
    assert_eq!((renewals(&rig.locks, "a"), stats.renewed), (0, 0));
    assert!(stats.renewal_errors > 0);
}

/// The first `SET` gets no answer, and the second one takes the lock. Redis executes the first
/// `SET` only after the lease of that hold is over.
#[test]
fn a_token_that_reappears_after_its_lease_is_no_lock() {
    let rig = &Rig::with(|builder| builder.lease(LEASE).renew(false));
    rig.proxy.on("SET lock:a", Fault::CutBeforeForward);
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "the lease is over", || {
        rig.value_of("a").is_none() && !guard.is_valid()
    });
    let given_up = &rig.tokens_sent("a")[0];
    rig.server
        .query::<()>(&["SET", "lock:a", given_up, "NX", "PX", "60000"]);
    assert_lost(&guard.unlock(), LostCause::Taken);
}
