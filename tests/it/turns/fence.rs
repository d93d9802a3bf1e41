//! Fencing tokens: what a lock with a fence sends, what is refused, and what the counter is.

use std::time::{SystemTime, UNIX_EPOCH};

use relatch::{Error, LockGuard, LockManager, Unlocked};
use relatch_rig::Server;

use crate::support::{MINUTE, Rig, chain, connect, grant, occupy, server_for, without};

/// The counter of the lock `a`.
pub(crate) const COUNTER: &str = "lock:fence:{lock:a}";

/// How long a counter stays, in milliseconds.
const DAY: i64 = 24 * 3600 * 1000;

/// The fence of a hold that has one.
#[track_caller]
pub(crate) fn fence_of(guard: &LockGuard) -> u64 {
    guard.fence().expect("it is fenced")
}

/// Takes the lock `a` with a fence, and releases it; returns the fence.
#[track_caller]
pub(crate) fn fence_of_a_turn(locks: &LockManager) -> u64 {
    let guard = locks.named("a").fenced(true).lock().expect("locks");
    let fence = fence_of(&guard);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    fence
}

/// The number in a counter.
fn counted(server: &Server) -> u64 {
    server
        .get(COUNTER)
        .expect("a counter")
        .parse()
        .expect("a number")
}

fn fenced(url: &str) -> LockManager {
    LockManager::builder(url)
        .fenced(true)
        .build()
        .expect("connects")
}

#[test]
fn each_hold_has_a_larger_fence_and_reentry_keeps_it() {
    let server = Server::start();
    let (locks, others) = (connect(&server), connect(&server));
    let first = fence_of_a_turn(&locks);
    let lock = locks.named("a").fenced(true);
    let outer = lock.lock().expect("locks");
    let fence = fence_of(&outer);
    assert!(fence > first && first > 0, "{fence} after {first}");
    assert_eq!(counted(&server), fence);
    assert_eq!(lock.lock().expect("locks again").fence(), Some(fence));
    assert_eq!(locks.lock("a").expect("locks again").fence(), Some(fence));
    assert_eq!(locks.held()[0].fence, Some(fence));
    let seen = |fenced| {
        let holder = others.named("a").fenced(fenced).holder();
        holder.expect("answers").expect("held").fence
    };
    assert_eq!((seen(true), seen(false)), (Some(fence), None));
    server.query::<()>(&["DEL", COUNTER]);
    assert_eq!(seen(true), None, "the counter is gone");
}

#[test]
fn a_lock_without_a_fence_sends_what_it_always_sent_and_has_none() {
    let rig = Rig::new();
    let before = rig.proxy.log_in_full().len();
    let guard = rig.locks.lock("a").expect("locks");
    assert_eq!((guard.fence(), rig.locks.held()[0].fence), (None, None));
    drop(guard);
    let sent = rig.proxy.log_in_full().split_off(before);
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(
        [&*sent[0][0], &*sent[0][3], &*sent[1][0]],
        ["SET", "NX", "EVALSHA"]
    );
    assert_eq!(rig.server.query::<i64>(&["DBSIZE"]), 0, "no counter");
}

#[test]
fn a_lock_with_a_fence_is_two_commands_as_well() {
    let rig = Rig::with(|builder| builder.fenced(true));
    fence_of_a_turn(&rig.locks); // Redis knows the script now.
    let before = rig.proxy.log().len();
    for _ in 0..10 {
        fence_of_a_turn(&rig.locks);
    }
    assert_eq!(rig.proxy.log().split_off(before), ["EVALSHA"; 20]);
    // `try_lock` on a busy lock needs no second look: the script says who has the lock.
    occupy(&rig.server, "a", MINUTE);
    assert!(rig.locks.try_lock("a").expect("answers").is_none());
    assert_eq!(rig.proxy.log().len(), before + 21);
}

/// If the clock was a month ahead, and is right again, the counter stays until the clock has passed
/// its number. Otherwise, fences would fall.
#[test]
fn a_counter_stays_a_day_after_the_last_hold_and_two_leases_at_least() {
    let server = Server::start();
    let hour = 60 * MINUTE;
    let builder = LockManager::builder(&server.url()).max_lease(100 * hour);
    let locks = builder.build().expect("connects");
    let stays = |longest: i64| {
        let left = server.pttl(COUNTER);
        let wanted = longest - 20_000..=longest;
        assert!(wanted.contains(&left), "{left}, not {longest}");
    };
    fence_of_a_turn(&locks);
    stays(DAY);
    server.query::<()>(&["PEXPIRE", COUNTER, "60000"]);
    fence_of_a_turn(&locks);
    stays(DAY);
    let long = locks.named("a").fenced(true).lease(30 * hour);
    drop(long.lock().expect("locks"));
    stays(DAY * 60 / 24);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = u64::try_from(now.expect("after 1970").as_micros()).expect("small");
    let month = 30 * DAY;
    let ahead = now + 1000 * month.unsigned_abs();
    server.query::<()>(&["SET", COUNTER, &ahead.to_string(), "PX", "60000"]);
    assert_eq!(fence_of_a_turn(&locks), ahead + 1);
    let left = server.pttl(COUNTER);
    assert!((month..month + 2 * DAY).contains(&left), "{left}");
}

#[test]
fn a_key_whose_counter_has_no_name_is_refused_before_anything_is_sent() {
    let rig = Rig::new();
    let before = rig.server.all_calls();
    for key in ["a}b", "{}x"] {
        let lock = rig.locks.named(key).fenced(true);
        for error in [lock.lock().map(drop), lock.holder().map(drop)] {
            let error = error.expect_err("no fence");
            assert!(
                matches!(&error, Error::NoFence { key: named, .. } if named == key),
                "{error:?}"
            );
            assert!(error.to_string().contains("braces"), "{error}");
        }
    }
    assert_eq!(rig.server.all_calls(), before, "nothing was sent");
    drop(
        rig.locks
            .lock("a}b")
            .expect("without a fence, any key will do"),
    );
}

#[test]
fn a_hold_without_a_fence_is_not_taken_again_with_one() {
    let locks = LockManager::in_memory();
    let outer = locks.lock("a").expect("locks");
    let again = locks.named("a").fenced(true).lock();
    let error = again.expect_err("there is no fence to return");
    assert!(
        matches!(&error, Error::NoFence { key, .. } if key == "a"),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("this thread holds it already"),
        "{error}"
    );
    assert_eq!(outer.depth(), 1);
}

/// A counter that another program has written proves nothing about earlier fences.
#[test]
fn a_counter_that_is_no_number_is_an_error_and_no_lock_is_taken() {
    let server = Server::start();
    let locks = connect(&server);
    let too_large = "99999999999999999999999";
    for value in ["", "abc", "-5", "+5", " 5", "1e3", "0x10", "5\n", too_large] {
        server.query::<()>(&["SET", COUNTER, value]);
        assert_no_fence(&locks, &server, value.trim());
        assert_eq!(server.get(COUNTER).as_deref(), Some(value), "changed");
    }
    server.query::<()>(&["DEL", COUNTER]);
    server.query::<()>(&["RPUSH", COUNTER, "5"]);
    assert_no_fence(&locks, &server, "is not a string");
    drop(
        locks
            .lock("a")
            .expect("without a fence, the counter does not matter"),
    );
    server.query::<()>(&["DEL", COUNTER]);
    assert!(fence_of_a_turn(&locks) > 0);
    server.query::<()>(&["SET", COUNTER, "9007199254740990"]);
    assert_eq!(
        fence_of_a_turn(&locks),
        9_007_199_254_740_991,
        "the last number that Lua can count to"
    );
    assert_no_fence(&locks, &server, "9007199254740991");
}

#[track_caller]
fn assert_no_fence(locks: &LockManager, server: &Server, told: &str) {
    for taken in [
        locks.named("a").fenced(true).lock().map(drop),
        locks.named("a").fenced(true).try_lock().map(drop),
    ] {
        let error = taken.expect_err(told);
        assert!(
            matches!(&error, Error::Refused { code, .. } if code == "NOFENCE"),
            "{error:?}"
        );
        let text = error.to_string();
        assert!(
            text.contains(told) && text.contains(COUNTER) && text.contains(r#"lock "a""#),
            "{text}"
        );
    }
    assert!(!server.exists("lock:a"), "{told}: taken without a fence");
}

#[test]
fn a_missing_right_leaves_neither_lock_nor_counter() {
    let (server, url) = server_for(&without(&[]));
    let locks = fenced(&url);
    let error = locks.lock("a").expect_err("`TIME` is not allowed");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "NOPERM" || code == "ERR"),
        "{error:?}"
    );
    assert!(chain(&error).contains("time"), "{}", chain(&error));
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
    grant(&server, &[&without(&[])[..], &["+time"]].concat());
    assert!(fence_of_a_turn(&locks) > 0);
}

/// Nobody should give a lock the name of another lock's counter. A program that does gets no lock,
/// or an error, but never a fence that was there before.
#[test]
fn a_lock_with_the_name_of_a_counter_is_no_danger() {
    let server = Server::start();
    let (locks, others) = (connect(&server), connect(&server));
    let first = fence_of_a_turn(&locks);
    let lock = others.named("fence:{lock:a}");
    assert!(
        lock.try_lock().expect("answers").is_none(),
        "the counter is in its place"
    );
    lock.force_unlock().expect("deletes the counter");
    let held = lock.lock().expect("locks");
    assert_no_fence(&locks, &server, "holds no number");
    drop(held);
    assert!(fence_of_a_turn(&locks) > first);
}
