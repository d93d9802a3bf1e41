//! A proxy that forwards a command and then answers with an error of its own: Redis may have
//! executed the command.

use std::thread;

use relatch::{Error, LockManager, Unlocked};
use relatch_rig::{Fault, LONG, eventually, throughout, unique_key};

use crate::support::{ANSWER, MINUTE, Rig, SOON, Taken, WAYS, assert_unavailable, behind};

/// What Envoy and twemproxy answer if the server behind them does not answer in time.
const ERRORS: [&str; 2] = ["-upstream failure\r\n", "-ERR Connection timed out\r\n"];

fn faults() -> impl Iterator<Item = Fault> {
    ERRORS
        .iter()
        .map(|error| Fault::Replace(error.as_bytes().to_vec()))
}

#[test]
fn a_set_that_a_proxy_answers_with_an_error_leaves_a_lock_or_no_key() {
    // The timeout is so long that every answer comes in time, however busy the machine is.
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let patiently: fn(&LockManager, &str) -> Taken =
        |locks, name| locks.named(name).try_lock_for(LONG);
    for fault in faults() {
        for (what, take) in [WAYS[0], WAYS[1], ("try_lock_for", patiently)] {
            let key = unique_key("a");
            rig.proxy.on(&format!("SET lock:{key}"), fault.clone());
            let taken = take(&rig.locks, &key);
            let guard = taken
                .unwrap_or_else(|error| panic!("{what}: {error:?}"))
                .expect("no other holder has the lock");
            assert_eq!(rig.value_of(&key).as_deref(), Some(guard.token()), "{what}");
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);

            rig.proxy.always(&format!("SET lock:{key}"), fault.clone());
            let taken = take(&rig.locks, &key);
            rig.proxy.clear();
            assert_unavailable(&taken);
            let error = format!("{:?}", taken.expect_err("unavailable"));
            assert!(
                error.contains("upstream failure") || error.contains("Connection timed out"),
                "{error}"
            );
            eventually(5 * SOON, &format!("{what}: no key is left"), || {
                rig.value_of(&key).is_none()
            });
        }
    }
}

#[test]
fn a_release_that_a_proxy_answers_with_an_error_is_sent_again() {
    let rig = Rig::new();
    for fault in faults() {
        let guard = rig.locks.lock("a").expect("locks");
        rig.proxy.on("EVALSHA", fault.clone());
        assert_eq!(
            guard.unlock().expect("released"),
            Unlocked::Released,
            "{fault:?}"
        );
        let guard = rig.locks.lock("a").expect("locks");
        rig.proxy.always("EVALSHA", fault.clone());
        let unlocked = guard.unlock();
        rig.proxy.clear();
        assert!(
            matches!(unlocked, Err(Error::Unconfirmed { .. })),
            "{fault:?}: {unlocked:?}"
        );
        rig.assert_works("a");
    }
}

/// Redis may have extended the lease or not, so the hold stays valid only for as long as before.
#[test]
fn an_extension_that_a_proxy_answers_with_an_error_does_not_count() {
    let rig = Rig::with(|builder| builder.renew(false));
    for fault in faults() {
        let guard = rig.locks.lock("a").expect("locks");
        rig.proxy.always("EVALSHA", fault.clone());
        let extended = guard.set_lease(2 * MINUTE);
        rig.proxy.clear();
        assert!(
            matches!(extended, Err(Error::Unavailable { .. })),
            "{fault:?}: {extended:?}"
        );
        assert!(
            guard.is_valid() && guard.remaining() < MINUTE,
            "{fault:?}: {:?}",
            guard.remaining()
        );
        guard
            .set_lease(2 * MINUTE)
            .expect("over another connection");
        assert!(guard.remaining() > MINUTE);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
}

/// The next thread's hold is not valid for longer than Redis keeps the key.
#[test]
fn a_hand_off_that_a_proxy_answers_with_an_error_counts_from_its_send() {
    let rig = Rig::with(|builder| {
        let builder = builder.local_handoff(MINUTE).response_timeout(10 * ANSWER);
        builder.lease(MINUTE / 10).renew(false)
    });
    let rig = &rig;
    for fault in faults() {
        for command in ["SET", "EVALSHA"] {
            let key = unique_key("a");
            let first = rig.locks.lock(&key).expect("locks");
            thread::scope(|scope| {
                let next = behind(scope, || {
                    let guard = rig.locks.named(&key).wait(LONG).lock().expect("locks");
                    // Redis is asked first, so its TTL is older than the validity compared with it.
                    let left = rig.server.pttl(&format!("lock:{key}"));
                    let valid = guard.remaining().as_millis();
                    assert_eq!(rig.value_of(&key).as_deref(), Some(guard.token()));
                    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
                    (valid, left)
                });
                let pattern = if command == "SET" {
                    format!("SET lock:{key}")
                } else {
                    command.to_owned()
                };
                rig.proxy.on(&pattern, fault.clone());
                let sets = rig.server.calls("set");
                rig.proxy.hold_replies(true);
                let answers_come = scope.spawn(move || {
                    eventually(LONG, "the lock is handed off", || {
                        rig.server.calls("set") > sets
                    });
                    throughout(2 * ANSWER, || ());
                    rig.proxy.hold_replies(false);
                });
                assert_eq!(
                    first.unlock().expect("kept"),
                    Unlocked::Released,
                    "{command}: {fault:?}"
                );
                answers_come.join().expect("no panic");
                let (valid, left) = next.join().expect("no panic");
                let left = u128::try_from(left).expect("the key is still there");
                assert!(
                    valid <= left,
                    "{command}, {fault:?}: {valid} ms, {left} ms in Redis"
                );
            });
            assert_eq!(rig.value_of(&key), None);
        }
    }
}
