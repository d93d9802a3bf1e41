//! Redis does not answer, breaks off its answers, or is not up yet.

use std::thread;
use std::time::Instant;

use relatch::{Error, LockGuard, Unlocked};
use relatch_rig::{Fault, LONG, Proxy, Server, eventually, rights, time, unique_key, within};

use crate::support::{
    ANSWER, MINUTE, Over, Rig, SOON, Take, WAYS, assert_unavailable, broken_replies, builder,
    returns_by,
};

const OVER: &[Over] = &[
    Over::Tcp,
    #[cfg(feature = "tls")]
    Over::Tls,
];

type Call = fn(&Rig, &mut Option<LockGuard>) -> Result<(), Error>;

/// Each call, and how many response timeouts it takes at most. `verify` and `holder` ask once more,
/// because the connection may have been closed while idle. `lock` makes its last attempt when an
/// outage of four times `ANSWER` is over.
const CALLS: [(&str, u32, Call); 8] = [
    ("try_lock", 2, |rig, _| rig.locks.try_lock("b").map(drop)),
    ("try_lock_for", 3, |rig, _| {
        rig.locks.named("b").try_lock_for(3 * ANSWER).map(drop)
    }),
    ("lock", 6, |rig, _| rig.locks.lock("b").map(drop)),
    ("set_lease", 1, |_, guard| {
        guard.as_ref().expect("held").set_lease(2 * MINUTE)
    }),
    ("verify", 2, |_, guard| {
        guard.as_ref().expect("held").verify()
    }),
    ("holder", 2, |rig, _| {
        rig.locks.named("b").holder().map(drop)
    }),
    ("force_unlock", 1, |rig, _| {
        rig.locks.named("b").force_unlock().map(drop)
    }),
    ("unlock", 1, |_, guard| {
        guard.take().expect("held").unlock().map(drop)
    }),
];

/// Also on a connection that is opened into the hole.
#[test]
fn row_13_every_call_in_a_black_hole_ends_by_its_deadline() {
    for over in OVER {
        let rig = Rig::over(*over, |builder| builder);
        for (what, answers, call) in CALLS {
            // In a cluster, `force_unlock` tries again with a new map.
            let tries_again = what == "force_unlock" && !rights::in_cluster().is_empty();
            for cut in [false, true] {
                let limit = (answers + u32::from(tries_again)) * ANSWER;
                returns_by(limit, what, || {
                    let mut guard = Some(rig.locks.lock(unique_key("a")).expect("locks"));
                    rig.proxy.black_hole(true);
                    if cut {
                        rig.proxy.cut_all();
                    }
                    let (took, called) = time(|| call(&rig, &mut guard));
                    let told = matches!(
                        called,
                        Err(Error::Unavailable { .. } | Error::Unconfirmed { .. })
                    );
                    assert!(told, "{over:?}, {what}: {called:?}");
                    rig.proxy.black_hole(false);
                    rig.proxy.cut_all();
                    took
                });
            }
        }
        rig.assert_works("c");
    }
}

/// The manager has to wait long for answers: behind one that is only late, a clean-up goes over the
/// same connection.
#[test]
fn row_14_a_broken_reply_is_resolved_over_another_connection() {
    let of_the_wrong_type = Fault::Replace(b"*0\r\n".to_vec());
    for over in OVER {
        let rig = Rig::over(*over, |it| it.connect_timeout(LONG).response_timeout(LONG));
        for fault in broken_replies()
            .into_iter()
            .chain([Fault::CutBeforeForward, of_the_wrong_type.clone()])
        {
            for (way, take) in WAYS {
                // The keeper's clean-up may be what the second fault strikes, in the middle of a
                // pipeline.
                let is_left = (0..3).any(|_| {
                    let before = rig.proxy.commands_after_faults();
                    is_resolved(&rig, way, take, &fault);
                    rig.proxy.commands_after_faults() == before
                });
                assert!(is_left, "{way} goes on over a connection after {fault:?}");
            }
        }
    }
}

/// Takes a lock and gives it back, while the fault strikes both.
fn is_resolved(rig: &Rig, way: &str, take: Take, fault: &Fault) {
    let key = unique_key(way);
    rig.proxy.on(&format!("SET lock:{key}"), fault.clone());
    let (took, taken) = time(|| take(&rig.locks, &key));
    let guard = taken.expect(way).expect(way);
    assert!(took < 5 * SOON, "{way} waited for its own key: {took:?}");
    let sent = rig.tokens_sent(&key);
    assert_ne!(sent[0], guard.token(), "its age is unknown");
    assert_eq!(rig.value_of(&key).as_deref(), Some(guard.token()));
    rig.proxy
        .on(&format!("EVALSHA * 1 lock:{key}"), fault.clone());
    let unlocked = guard.unlock().expect("unlocks");
    assert_eq!(unlocked, Unlocked::Released, "{way} after {fault:?}");
    assert_eq!(rig.value_of(&key), None, "{way} after {fault:?}");
}

/// Each byte comes in time, but the whole reply does not.
#[test]
fn row_14_a_reply_that_drips_ends_by_the_deadline() {
    let rig = Rig::over(Over::Tcp, |builder| builder);
    rig.proxy.always("SET", Fault::ByteByByte(ANSWER * 2 / 3));
    returns_by(2 * ANSWER, "try_lock", || {
        time(|| drop(rig.locks.try_lock("a"))).0
    });
    rig.proxy.clear();
    eventually(LONG, "no key without a holder is left", || {
        rig.value_of("a").is_none()
    });
}

/// The answer says that Redis did not set the token, but the key has it. Nobody knows since when,
/// so a hold with this token could be trusted for too long.
#[test]
fn row_11_a_token_found_in_redis_after_a_denied_set_is_not_trusted() {
    let rig = Rig::new();
    for (way, take) in [WAYS[0], WAYS[2]] {
        let denied = Fault::Replace(b"$-1\r\n".into());
        rig.proxy.on(&format!("SET lock:{way}"), denied);
        let guard = within(5 * SOON, way, || take(&rig.locks, way));
        let guard = guard.expect(way).expect(way);
        assert_ne!(rig.tokens_sent(way)[0], guard.token(), "{way}");
        assert_eq!(rig.value_of(way).as_deref(), Some(guard.token()), "{way}");
    }
}

/// When a stopped server goes on, it reads its connections in any order. A clean-up over another
/// connection than that of the `SET` could overtake the `SET`, whose key would remain.
#[test]
fn row_11_a_clean_up_does_not_overtake_its_set() {
    const LOOK: &str = "EVALSHA * 1 lock:busy";
    let rig = Rig::over(Over::Tcp, |builder| builder);
    let holder = || rig.locks.named("busy").holder();
    for round in 1..=5 {
        let key = format!("round-{round}");
        eventually(LONG, "two connections are open", || {
            rig.proxy.on_times(LOOK, 2, Fault::DelayReply(ANSWER / 3));
            thread::scope(|scope| {
                [(); 2]
                    .map(|()| scope.spawn(holder))
                    .map(|it| it.join().is_ok())
            });
            rig.server.connections() >= 2
        });
        let asked = rig.proxy.commands(LOOK);
        rig.server.pause();
        thread::scope(|scope| {
            scope.spawn(|| holder().expect_err("no answer"));
            eventually(LONG, "one of them is in use", || {
                rig.proxy.commands(LOOK) > asked
            });
            assert_unavailable(&rig.locks.named(&key).try_lock_for(ANSWER));
        });
        rig.server.resume();
        rig.assert_removed(&key, round);
    }
}

#[test]
fn row_15_many_threads_that_wait_for_redis_connect_at_a_bounded_rate() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    server.kill();
    let error = builder(&server.url()).build().expect_err("nobody listens");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let locks = builder(&proxy.url()).tolerate_outage(LONG);
    let locks = locks.build_lazily().expect("sends nothing");
    let start = Instant::now();
    thread::scope(|scope| {
        let waiters = [(); 8].map(|()| {
            scope.spawn(|| drop(locks.lock(unique_key("a")).expect("locks within the wait")))
        });
        eventually(LONG, "a second passes", || start.elapsed() >= SOON);
        let attempts = proxy.connections_accepted();
        let seconds = u64::from(start.elapsed().subsec_millis() > 0) + start.elapsed().as_secs();
        server.restart();
        assert!(
            (8..200 * seconds).contains(&attempts),
            "{attempts} connections within {seconds} s"
        );
        for waiter in waiters {
            waiter.join().expect("no panic");
        }
    });
}

/// The pool has one connection, and its thread closes it because there is no answer.
#[test]
fn a_thread_that_waits_for_a_connection_is_woken_when_one_is_closed() {
    let rig = Rig::over(Over::Tcp, |it| it.pool_size(1).renew(false));
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.on("EVALSHA", Fault::SwallowCommand);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            rig.proxy.wait_fired(1, LONG);
            within(5 * SOON, "a connection", || rig.locks.lock("b").map(drop))
        });
        let unlocked = guard.unlock();
        let told = matches!(unlocked, Ok(_) | Err(Error::Unconfirmed { .. }));
        assert!(told, "{unlocked:?}");
        let locked = waiter.join().expect("no panic");
        locked.expect("the pool has room");
    });
}
