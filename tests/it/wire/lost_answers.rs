//! Lost answers: Redis has executed a command, or will execute it, and the caller does not learn
//! that.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use relatch::{Error, Unlocked};
use relatch_rig::{Fault, LONG, Server, eventually, time, unique_key, within};

use crate::support::{
    ANSWER, Over, Rig, SOON, WAYS, assert_unavailable, broken_replies, builder, delete, returns_by,
    until_tracked,
};

#[test]
fn row_11_a_set_whose_answer_is_cut_off_takes_the_lock() {
    a_set_whose_answer_is_cut_off_takes_the_lock(Over::Tcp);
}

pub(crate) fn a_set_whose_answer_is_cut_off_takes_the_lock(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    for (way, take) in WAYS {
        rig.proxy
            .on(&format!("SET lock:{way}"), Fault::CutBeforeReply);
        let (took, taken) = time(|| take(&rig.locks, way));
        let guard = taken.expect(way).expect(way);
        assert!(took < SOON, "{way} waited for its own key: {took:?}");
        assert_ne!(
            rig.tokens_sent(way)[0],
            guard.token(),
            "{way}: the age of the first token is unknown"
        );
        assert_eq!(rig.value_of(way).as_deref(), Some(guard.token()), "{way}");
    }
}

/// When Redis executes the `SET`, the manager that would repeat the clean-up is gone.
#[test]
fn row_11_a_manager_dropped_after_giving_up_leaves_no_key() {
    let rig = Rig::new();
    rig.proxy
        .always("SET lock:a", Fault::DelayCommand(6 * ANSWER));
    assert!(rig.locks.try_lock("a").is_err(), "no answer");
    let Rig {
        locks,
        proxy,
        server,
        ..
    } = rig;
    drop(locks);
    eventually(LONG, "the command is executed", || {
        server.calls("set") == proxy.commands("SET lock:a")
    });
    eventually(SOON, "no key without a holder is left", || {
        !server.exists("lock:a")
    });
}

/// The answer says that Redis did not set the token, but the key has it. Nobody knows since when,
/// so a hold with this token could be trusted for too long.
#[test]
fn row_11_a_token_found_in_redis_after_a_denied_set_is_not_trusted() {
    let rig = Rig::new();
    for (way, take) in [WAYS[0], WAYS[2]] {
        rig.proxy.on(
            &format!("SET lock:{way}"),
            Fault::Replace(b"$-1\r\n".into()),
        );
        let guard = within(SOON, way, || take(&rig.locks, way))
            .expect(way)
            .expect(way);
        let sent = rig.tokens_sent(way);
        assert_ne!(
            sent[0],
            guard.token(),
            "{way} counts from the wrong send: {sent:?}"
        );
        assert_eq!(rig.value_of(way).as_deref(), Some(guard.token()), "{way}");
    }
}

#[test]
fn row_11_a_set_whose_answer_never_comes_leaves_a_lock_or_no_key() {
    a_set_whose_answer_never_comes_leaves_a_lock_or_no_key(Over::Tcp);
}

pub(crate) fn a_set_whose_answer_never_comes_leaves_a_lock_or_no_key(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    for fault in [
        Fault::DropReply,
        Fault::SwallowCommand,
        Fault::DelayReply(ANSWER * 3 / 2),
    ] {
        for (way, take) in WAYS {
            let key = unique_key(way);
            rig.proxy.on(&format!("SET lock:{key}"), fault.clone());
            let (took, taken) = time(|| take(&rig.locks, &key));
            assert!(took < 3 * SOON, "{way} waited for its own key: {took:?}");
            match taken {
                Ok(Some(guard)) => {
                    assert_eq!(rig.value_of(&key).as_deref(), Some(guard.token()), "{way}");
                }
                Ok(None) => panic!("{way} reports its own lock as busy"),
                Err(error) if way != "try_lock" => panic!("{way} gave up: {error:?}"),
                Err(_) => eventually(SOON, "the key is removed", || rig.value_of(&key).is_none()),
            }
        }
    }
}

#[test]
fn row_11_a_waiter_whose_answer_is_lost_does_not_wait_for_itself() {
    let rig = Rig::new();
    rig.server
        .query::<()>(&["SET", "lock:a", "somebody", "PX", "60000"]);
    let rig = &rig;
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = rig.locks.lock("a").expect("locks");
            (guard.token().to_owned(), rig.value_of("a"))
        });
        // From now on, the waiter asks once, when the key changes.
        until_tracked(&rig.server, 1);
        rig.proxy.on("SET lock:a", Fault::DropReply);
        delete(&rig.server, "a");
        eventually(LONG, "the waiter takes the lock without knowing", || {
            rig.value_of("a").is_some()
        });
        rig.proxy.cut_all();
        let (token, stood) =
            within(3 * SOON, "learning of the lock", || waiter.join()).expect("no panic");
        assert_eq!(Some(token), stood);
    });
}

#[test]
fn row_11_an_attempt_that_gives_up_leaves_no_key() {
    an_attempt_that_gives_up_leaves_no_key(Over::Tcp);
}

pub(crate) fn an_attempt_that_gives_up_leaves_no_key(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    for (way, take) in WAYS {
        let sets = rig.server.calls("set");
        rig.proxy.hold_replies(true);
        assert_unavailable(&take(&rig.locks, way));
        rig.assert_removed(way, sets + 1);
        rig.proxy.hold_replies(false);
        rig.assert_works(way);
    }
    rig.proxy.always("SET", Fault::DropReply);
    for limit in [ANSWER / 2, 2 * ANSWER] {
        let sets = rig.server.calls("set");
        assert_unavailable(&rig.locks.named("a").try_lock_for(limit));
        rig.assert_removed("a", sets + 1);
    }
}

#[test]
fn row_11_an_attempt_that_gives_up_on_a_broken_connection_leaves_no_key() {
    let rig = Rig::new();
    rig.proxy.on_times("SET", 2, Fault::CutBeforeReply);
    assert_unavailable(&rig.locks.try_lock("a"));
    rig.assert_removed("a", 2);
}

#[test]
fn row_11_an_attempt_that_gives_up_on_a_stopped_server_leaves_no_key() {
    let server = Server::start();
    let locks = builder(&server.url()).build().expect("connects");
    for round in 1..=10 {
        let (key, limit) = (format!("round-{round}"), Duration::from_millis(40));
        // Over a new connection, the manager would wait for its login, and never send the `SET`.
        locks
            .named(&key)
            .holder()
            .expect("a connection that is open already");
        server.pause();
        assert_unavailable(&locks.named(&key).try_lock_for(limit));
        server.resume();
        eventually(LONG, "the SET is executed", || server.calls("set") >= round);
        let stands = || server.exists(&format!("lock:{key}"));
        eventually(SOON, &format!("no key after round {round}"), || !stands());
    }
}

/// When a stopped server goes on, it reads its connections in any order. A clean-up over another
/// connection than that of the `SET` could overtake the `SET`, whose key would remain.
#[test]
fn row_11_a_clean_up_does_not_overtake_its_set() {
    const LOOK: &str = "EVALSHA * 1 lock:busy";
    let rig = Rig::new();
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
fn row_12_a_release_whose_answer_is_lost_is_never_reported_as_lost() {
    a_release_whose_answer_is_lost_is_never_reported_as_lost(Over::Tcp);
}

pub(crate) fn a_release_whose_answer_is_lost_is_never_reported_as_lost(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    for fault in broken_replies() {
        let guard = rig.locks.lock("a").expect("locks");
        rig.proxy.on("EVALSHA * 1 lock:a", fault.clone());
        assert_eq!(
            guard.unlock().expect("unlocks"),
            Unlocked::Released,
            "{fault:?}"
        );
        assert_eq!(rig.value_of("a"), None);
    }
}

#[test]
fn row_12_a_release_whose_answer_never_comes_is_unconfirmed() {
    a_release_whose_answer_never_comes_is_unconfirmed(Over::Tcp);
}

pub(crate) fn a_release_whose_answer_never_comes_is_unconfirmed(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    for fault in [Fault::DropReply, Fault::SwallowCommand] {
        returns_by(ANSWER, "unlock", || {
            let key = unique_key("a");
            let guard = rig.locks.named(&key).lease(2 * SOON).lock().expect("locks");
            rig.proxy
                .on(&format!("EVALSHA * 1 lock:{key}"), fault.clone());
            let (took, unlocked) = time(|| guard.unlock());
            match unlocked {
                Ok(Unlocked::Released) => assert_eq!(rig.value_of(&key), None),
                Err(Error::Unconfirmed { at_most, .. }) => {
                    // Redis counts whole milliseconds, so its answer may be one too high.
                    let stands = rig.server.pttl(&format!("lock:{key}"));
                    let stands = Duration::from_millis(stands.try_into().unwrap_or(0));
                    assert!(
                        stands <= at_most + Duration::from_millis(2),
                        "{stands:?} of {at_most:?}"
                    );
                    assert!(fault == Fault::SwallowCommand || rig.value_of(&key).is_none());
                }
                other => panic!("{fault:?}: {other:?}"),
            }
            rig.proxy.cut_all();
            took
        });
    }
}

#[test]
fn row_12_a_release_whose_answer_never_comes_does_not_disturb_the_next_hold() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    for (way, take) in WAYS {
        let guard = rig.locks.lock("a").expect("locks");
        rig.proxy.on("EVALSHA", Fault::DropReply);
        drop(guard);
        let guard = within(SOON, way, || take(&rig.locks, "b"))
            .expect(way)
            .expect(way);
        assert_eq!(rig.value_of("b").as_deref(), Some(guard.token()), "{way}");
    }
}

#[test]
fn row_12_a_repeated_release_does_not_delete_the_next_holders_key() {
    a_repeated_release_does_not_delete_the_next_holders_key(Over::Tcp);
}

pub(crate) fn a_repeated_release_does_not_delete_the_next_holders_key(over: Over) {
    let rig = Rig::over(over, |builder| builder);
    let (rig, before) = (&rig, rig.proxy.commands("EVALSHA"));
    rig.proxy.on("EVALSHA", Fault::CutBeforeReply);
    rig.proxy
        .on_nth("EVALSHA", 2, Fault::DelayCommand(ANSWER / 3));
    thread::scope(|scope| {
        let holder = scope.spawn(|| rig.locks.lock("a").expect("locks").unlock());
        rig.proxy.wait_fired(2, LONG);
        let taken: Option<String> = rig
            .server
            .query(&["SET", "lock:a", "theirs", "NX", "PX", "60000"]);
        assert!(taken.is_some(), "the first release was executed");
        let unlocked = holder.join().expect("no panic");
        assert!(
            matches!(
                unlocked,
                Ok(Unlocked::Released) | Err(Error::Unconfirmed { .. })
            ),
            "{unlocked:?}"
        );
    });
    assert_eq!(
        rig.proxy.commands("EVALSHA"),
        before + 2,
        "the release, and its repetition"
    );
    assert_eq!(rig.value_of("a").as_deref(), Some("theirs"));
}

#[test]
fn a_lost_answer_in_one_thread_does_not_disturb_others() {
    const ROUNDS: usize = 5;
    // The timeout is so long that only lost answers are late, however busy the machine is.
    let rig = Rig::with(|builder| builder.response_timeout(SOON).tolerate_outage(LONG));
    let (rig, done) = (&rig, &AtomicBool::new(false));
    let faults = broken_replies()
        .into_iter()
        .chain([Fault::DropReply, Fault::SwallowCommand])
        .cycle()
        .take(ROUNDS);
    thread::scope(|scope| {
        let others = [(); 4].map(|()| {
            scope.spawn(move || {
                let key = unique_key("other");
                let mut rounds = 0;
                while !done.load(Ordering::SeqCst) {
                    rig.assert_works(&key);
                    rounds += 1;
                }
                rounds
            })
        });
        let struck = scope.spawn(move || {
            for fault in faults {
                rig.proxy.on("SET lock:struck", fault);
                rig.assert_works("struck");
            }
        });
        let struck = struck.join();
        done.store(true, Ordering::SeqCst);
        let rounds = others.map(|it| it.join().expect("the others are not disturbed"));
        struck.expect("every lost answer is settled");
        assert!(rounds.iter().all(|&it| it > ROUNDS), "{rounds:?}");
    });
    assert!(rig.proxy.fired() >= ROUNDS as u64);
}
