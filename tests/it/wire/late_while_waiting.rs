//! Waiting when something comes too late, or not at all: the answer to a hand-off, an invalidation,
//! Redis itself.

use std::thread;
use std::time::{Duration, Instant};

use relatch::{LockManager, Unlocked};
use relatch_rig::{Fault, LONG, Server, eventually, time, unique_key, within};

use crate::support::{Rig, SOON, behind, until_tracked};

/// The delay of a command: longer than the managers of a rig wait for an answer.
const TOO_LATE: Duration = Duration::from_millis(1500);

#[test]
fn a_delayed_hand_off_leaves_no_key_without_a_holder() {
    let rig = Rig::with(|builder| builder.local_handoff(LONG));
    for threads in [1, 4] {
        let key = unique_key("a");
        let guard = rig.locks.lock(&key).expect("locks");
        thread::scope(|scope| {
            for _ in 0..threads {
                behind(scope, || {
                    drop(rig.locks.lock(&key).expect("the waiter's turn comes"));
                });
            }
            rig.proxy.on(
                &format!("EVALSHA * 1 lock:{key}"),
                Fault::DelayCommand(TOO_LATE),
            );
            let _ = guard.unlock();
        });
        let sent = Instant::now();
        eventually(LONG, "what was held up has been executed", || {
            sent.elapsed() > 2 * TOO_LATE
        });
        eventually(SOON, "no key without a holder is left", || {
            rig.value_of(&key).is_none()
        });
    }
}

#[test]
fn a_waiter_that_considers_a_hold_expired_is_woken_by_its_release() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let guard = locks
        .named("a")
        .lease(Duration::from_secs(60))
        .renew(false)
        .lock()
        .expect("locks");
    guard
        .set_lease(Duration::from_millis(300))
        .expect("shorter by our clock; in Redis it is not");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            drop(locks.lock("a").expect("locks"));
            Instant::now()
        });
        eventually(LONG, "the hold is over", || !guard.is_valid());
        until_tracked(&server, 1);
        let released = Instant::now();
        let _ = guard.unlock();
        let had = waiter.join().expect("no panic");
        assert!(
            had - released < SOON,
            "the waiter slept beside a free lock for {:?}",
            had - released
        );
    });
}

#[test]
fn a_wait_that_ends_while_redis_is_silent_is_reported_as_an_outage() {
    let rig = Rig::new();
    let other = LockManager::connect(&rig.server.url()).expect("connects");
    let guard = other.lock("a").expect("locks");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            rig.locks
                .named("a")
                .wait(Duration::from_secs(2))
                .lock()
                .map(drop)
        });
        eventually(LONG, "the waiter waits for an invalidation", || {
            rig.server.redirects_invalidations()
        });
        rig.proxy.black_hole(true);
        let error = waiter.join().expect("no panic").expect_err("no release");
        assert!(error.is_redis_failure(), "{error:?}");
    });
    rig.proxy.black_hole(false);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn dropping_the_manager_keeps_to_its_timeouts_while_redis_is_paused() {
    let server = Server::start();
    let short = Duration::from_millis(50);
    let builder = || {
        LockManager::builder(&server.url())
            .response_timeout(short)
            .connect_timeout(short)
    };
    let locks = builder().build_lazily().expect("options that can work");
    let other = LockManager::connect(&server.url()).expect("connects");
    let guard = other.lock("a").expect("locks");
    thread::scope(|scope| {
        scope.spawn(|| drop(locks.lock("a").expect("locks")));
        eventually(LONG, "the listener is connected", || {
            server.redirects_invalidations()
        });
        drop(guard);
    });
    server.pause();
    within(2 * SOON, "the last handle", || drop(locks));
    server.resume();
}

#[test]
fn row_14_a_hand_off_whose_answer_drips_leaves_no_key() {
    let rig = Rig::with(|builder| {
        builder
            .local_handoff(LONG)
            .response_timeout(Duration::from_millis(100))
    });
    let key = unique_key("a");
    let guard = rig.locks.lock(&key).expect("locks");
    thread::scope(|scope| {
        let waiter = behind(scope, || {
            rig.locks
                .named(&key)
                .try_lock_for(LONG)
                .expect("answers")
                .map(drop)
        });
        // Each byte comes in time, but the whole reply does not.
        let its_set = format!("SET lock:{key}");
        rig.proxy
            .on(&its_set, Fault::ByteByByte(Duration::from_millis(70)));
        let (took, unlocked) = time(|| guard.unlock());
        assert!(!unlocked.is_err_and(|error| error.is_lost()));
        assert!(took < 2 * SOON, "{took:?}");
        assert!(rig.tokens_sent(&key).len() > 1, "the lock was handed off");
        assert!(
            waiter.join().expect("no panic").is_some(),
            "the waiter's turn comes"
        );
    });
    eventually(SOON, "no key without a holder is left", || {
        rig.value_of(&key).is_none()
    });
}

/// The `SET` of an abandoned token may still be on its way after the lock was taken with another
/// token and released. Here the test sends that `SET`.
#[test]
fn row_11_a_set_that_is_executed_after_the_release_leaves_no_key() {
    let rig = Rig::with(|builder| builder.connect_timeout(LONG).response_timeout(LONG));
    rig.proxy.on("SET lock:a", Fault::CutBeforeForward);
    let guard = rig.locks.lock("a").expect("the second attempt is answered");
    let [abandoned, token] = <[String; 2]>::try_from(rig.tokens_sent("a")).expect("two attempts");
    assert_eq!(token, guard.token());
    assert_ne!(token, abandoned, "the abandoned token is used again");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    for _ in 0..3 {
        rig.server
            .query::<()>(&["SET", "lock:a", &abandoned, "NX", "PX", "30000"]);
        eventually(SOON, "no key without a holder is left", || {
            rig.value_of("a").is_none()
        });
    }
}

#[test]
fn a_wait_whose_last_attempt_is_cut_short_is_reported_as_busy() {
    let rig = Rig::new();
    rig.server
        .query::<()>(&["SET", "lock:a", "somebody", "PX", "6000000"]);
    // Delays the attempts that also read the holder, but not the first attempt of each wait.
    rig.proxy.always(
        "SET lock:a * PX",
        Fault::DelayReply(Duration::from_millis(50)),
    );
    for wait in 110..130 {
        // Tried more than once: the machine may delay the first look for the rest of the wait, or
        // the last look for 100 ms. Then Redis did not answer in time, and `Unavailable` is right.
        // (On a core shared with dozens of threads, that happened three times in a row.)
        eventually(
            LONG,
            &format!("{wait} ms: Redis is slow, and not away"),
            || {
                matches!(
                    rig.locks
                        .named("a")
                        .try_lock_for(Duration::from_millis(wait)),
                    Ok(None)
                )
            },
        );
    }
}
