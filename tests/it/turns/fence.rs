//! Fencing tokens: what a lock with a fence sends, what is refused, and what the counter is.

use std::collections::HashMap;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use relatch::{Builder, Error, LockGuard, LockManager, Unlocked};
use relatch_rig::{Fault, LONG, Server, eventually, server_version};

#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{
    MINUTE, Rig, SOON, chain, connect, grant, occupy, server_for, until_tracked, without,
};

/// The counter of the lock `a`.
pub(crate) const COUNTER: &str = "lock:fence:{lock:a}";

/// The script that takes a lock with a fence.
const CLAIM_FENCED: &str = include_str!("../../../src/client/commands/lua/claim_fenced.lua");

/// The beginning of each command that takes the lock `a` with a fence, for a proxy's rule.
const FENCED_CLAIM: &str = "EVALSHA * 2 lock:a";

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
    let locks = connect(&server);
    let first = fence_of_a_turn(&locks);
    let lock = locks.named("a").fenced(true);
    let outer = lock.lock().expect("locks");
    assert!(
        fence_of(&outer) > first && first > 0,
        "{} after {first}",
        fence_of(&outer)
    );
    assert_eq!(counted(&server), fence_of(&outer));
    assert_eq!(lock.lock().expect("locks again").fence(), outer.fence());
    assert_eq!(locks.lock("a").expect("locks again").fence(), outer.fence());
    let inside = lock.with_lock_result(|guard| Ok::<_, Error>(guard.fence()));
    assert_eq!(inside.expect("runs"), outer.fence());
    assert_eq!((counted(&server), outer.depth()), (fence_of(&outer), 1));
}

#[test]
fn the_fence_of_a_hold_is_seen_by_others() {
    let server = Server::start();
    let (locks, others) = (fenced(&server.url()), connect(&server));
    let lock = others.named("a").fenced(true);
    assert!(lock.holder().expect("answers").is_none());
    let guard = locks.lock("a").expect("locks");
    assert_eq!(locks.held()[0].fence, guard.fence());
    assert_eq!(
        lock.holder().expect("answers").expect("held").fence,
        guard.fence()
    );
    assert_eq!(
        others
            .named("a")
            .holder()
            .expect("answers")
            .expect("held")
            .fence,
        None,
        "nobody asked"
    );
    server.query::<()>(&["DEL", COUNTER]);
    assert_eq!(
        lock.holder().expect("answers").expect("held").fence,
        None,
        "the counter is gone"
    );
}

/// Between the questions for the holder and for the counter, another thread takes the lock. The
/// number in the counter is that of its hold then.
#[test]
fn a_holder_is_not_said_to_have_the_fence_of_the_next_one() {
    let rig = Rig::with(|builder| builder.fenced(true).response_timeout(LONG));
    let others = fenced(&rig.server.url());
    let (fences, seen) = thread::scope(|scope| {
        let turns = scope.spawn(|| {
            let turn = || {
                let guard = others.lock("a").expect("locks");
                (guard.token().to_owned(), fence_of(&guard))
            };
            (0..300).map(|_| turn()).collect::<HashMap<_, _>>()
        });
        let mut seen = Vec::new();
        while !turns.is_finished() {
            seen.extend(rig.locks.named("a").holder().expect("answers"));
        }
        (turns.join().expect("no panic"), seen)
    });
    assert!(!seen.is_empty());
    for holder in seen {
        assert_eq!(holder.fence, fences.get(&holder.raw).copied());
    }
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

#[test]
fn a_counter_stays_a_day_after_the_last_hold_and_two_leases_at_least() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .max_lease(100 * MINUTE * 60)
        .build()
        .expect("connects");
    let stays = |longest: i64| (longest - 10_000..=longest).contains(&server.pttl(COUNTER));
    fence_of_a_turn(&locks);
    assert!(stays(DAY), "{}", server.pttl(COUNTER));
    server.query::<()>(&["PEXPIRE", COUNTER, "60000"]);
    fence_of_a_turn(&locks);
    assert!(stays(DAY), "{}: not renewed", server.pttl(COUNTER));
    drop(
        locks
            .named("a")
            .fenced(true)
            .lease(30 * MINUTE * 60)
            .lock()
            .expect("locks"),
    );
    assert!(stays(DAY * 60 / 24), "{}", server.pttl(COUNTER));
}

/// The server's clock was a month ahead, and is right again. If the counter expired before its
/// number has passed, fences would fall.
#[test]
fn a_counter_that_is_ahead_of_the_clock_stays_until_the_clock_has_passed_it() {
    let server = Server::start();
    let month = 30 * DAY;
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("after 1970")
        .as_micros();
    let ahead = u64::try_from(now).expect("small") + 1000 * month.unsigned_abs();
    server.query::<()>(&["SET", COUNTER, &ahead.to_string(), "PX", "1000"]);
    let guard = fenced(&server.url()).lock("a").expect("locks");
    assert_eq!(fence_of(&guard), ahead + 1);
    let stays = server.pttl(COUNTER);
    assert!((month..month + 2 * DAY).contains(&stays), "{stays}");
}

#[test]
fn a_key_whose_counter_has_no_name_is_refused_before_anything_is_sent() {
    let server = Server::start();
    let locks = connect(&server);
    server.reset_stats();
    let before = server.all_calls();
    for key in ["a}b", "{}x"] {
        let lock = locks.named(key).fenced(true);
        for error in [
            lock.lock().map(drop),
            lock.try_lock().map(drop),
            lock.holder().map(drop),
        ] {
            let error = error.expect_err("no fence");
            assert!(
                matches!(&error, Error::NoFence { key: named, .. } if named == key),
                "{error:?}"
            );
            assert!(error.to_string().contains("braces"), "{error}");
        }
    }
    assert_eq!(server.all_calls(), before, "nothing was sent");
    drop(locks.lock("a}b").expect("without a fence, any key will do"));
    let tagged = locks
        .named("{orders}:42")
        .fenced(true)
        .lock()
        .expect("locks");
    assert_eq!(
        server.get("lock:fence:lock:{orders}:42"),
        Some(fence_of(&tagged).to_string())
    );
}

#[test]
fn a_hold_without_a_fence_is_not_taken_again_with_one() {
    let server = Server::start();
    let locks = connect(&server);
    let outer = locks.lock("a").expect("locks");
    let error = locks
        .named("a")
        .fenced(true)
        .lock()
        .expect_err("there is no fence to return");
    assert!(
        matches!(&error, Error::NoFence { key, .. } if key == "a"),
        "{error:?}"
    );
    assert!(
        error.to_string().contains("this thread holds it already"),
        "{error}"
    );
    assert_eq!(outer.depth(), 1);
    assert_eq!(outer.unlock().expect("unlocks"), Unlocked::Released);
    assert!(fence_of_a_turn(&locks) > 0);
}

/// A counter that another program has written proves nothing about earlier fences.
#[test]
fn a_counter_that_is_no_number_is_an_error_and_no_lock_is_taken() {
    let server = Server::start();
    let locks = connect(&server);
    let too_large = ["9007199254740991", "99999999999999999999999"];
    for value in ["", "abc", "-5", "+5", " 5", "1e3", "0x10", "5\n"]
        .into_iter()
        .chain(too_large)
    {
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

/// A server that has lost its scripts, in a restart or by `SCRIPT FLUSH`, is sent the whole script.
#[test]
fn a_forgotten_script_is_sent_again() {
    let server = Server::start();
    let locks = fenced(&server.url());
    let mut last = fence_of_a_turn(&locks);
    for _ in 0..3 {
        server.query::<()>(&["SCRIPT", "FLUSH"]);
        let next = fence_of_a_turn(&locks);
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

/// The same script with the same token: a client that sent it twice has one hold, and one fence.
#[test]
fn a_repeated_claim_has_the_fence_of_the_first_and_does_not_raise_it() {
    let server = Server::start();
    let claim = [
        "EVAL",
        CLAIM_FENCED,
        "2",
        "lock:a",
        COUNTER,
        "token",
        "60000",
        "86400000",
    ];
    let told: String = server.query(&claim);
    let first: u64 = told
        .strip_prefix("token ")
        .expect("the token, and")
        .parse()
        .expect("a number");
    for _ in 0..3 {
        let (value, left, again): (String, i64, u64) = server.query(&claim);
        assert_eq!((&*value, again), ("token", first));
        assert!(
            (1..=60_000).contains(&left),
            "{left}: nobody extends a lease by repeating the claim"
        );
    }
    assert_eq!(counted(&server), first);
    let (value, _): (String, i64) = server.query(&[
        "EVAL",
        CLAIM_FENCED,
        "2",
        "lock:a",
        COUNTER,
        "another",
        "60000",
        "86400000",
    ]);
    assert_eq!(
        (&*value, counted(&server)),
        ("token", first),
        "a busy lock raises nothing"
    );
}

#[test]
fn a_claim_whose_answer_is_lost_is_followed_by_a_larger_fence() {
    let rig = Rig::with(|builder| builder.fenced(true));
    fence_of_a_turn(&rig.locks);
    for fault in [
        Fault::CutBeforeReply,
        Fault::DropReply,
        Fault::HalfReply,
        Fault::CutBeforeForward,
    ] {
        let (last, before) = (counted(&rig.server), rig.proxy.log().len());
        rig.proxy.on(FENCED_CLAIM, fault.clone());
        let guard = rig.locks.named("a").wait(LONG).lock().expect("locks");
        assert!(fence_of(&guard) > last, "{fault:?}");
        assert_eq!(
            rig.value_of("a").as_deref(),
            Some(guard.token()),
            "{fault:?}"
        );
        assert_eq!(counted(&rig.server), fence_of(&guard), "{fault:?}");
        let sent = rig.proxy.log_in_full().split_off(before);
        let claims: Vec<_> = sent
            .iter()
            .filter(|it| it[0] == "EVALSHA" && it[2] == "2")
            .collect();
        assert!(
            claims.len() > 1 && claims[0][5] != guard.token(),
            "{fault:?}: the token is used again"
        );
        drop(guard);
        eventually(SOON, "no key is left", || rig.value_of("a").is_none());
    }
}

/// Redis executes the first claim only after another hold has come and gone.
#[test]
fn a_claim_that_is_executed_late_makes_no_fence_smaller() {
    let rig = Rig::with(|builder| builder.fenced(true));
    fence_of_a_turn(&rig.locks);
    rig.proxy.on(FENCED_CLAIM, Fault::DelayCommand(2 * SOON));
    let last = fence_of_a_turn(&rig.locks);
    assert_eq!(
        counted(&rig.server),
        last,
        "the late claim is executed already"
    );
    eventually(LONG, "the late claim is executed", || {
        counted(&rig.server) > last
    });
    eventually(SOON, "its key is removed", || rig.value_of("a").is_none());
    let late = counted(&rig.server);
    assert!(fence_of_a_turn(&rig.locks) > late);
}

#[test]
fn a_waiter_is_woken_by_the_lock_and_not_by_its_counter() {
    let server = Server::start();
    let (ours, theirs) = (fenced(&server.url()), fenced(&server.url()));
    thread::scope(|scope| {
        let held = ours.lock("a").expect("locks");
        let waiter = scope.spawn(|| fence_of_a_turn(&theirs));
        // Before 7.2, Redis takes each key that a script was given for read.
        until_tracked(&server, if server_version() >= (7, 2) { 1 } else { 2 });
        let fence = fence_of(&held);
        drop(held);
        assert!(waiter.join().expect("no panic") > fence);
    });
}

#[cfg(target_os = "linux")]
#[test]
fn a_lock_that_is_handed_off_has_a_larger_fence() {
    let rig = Rig::with(|builder: Builder| {
        builder
            .fenced(true)
            .local_handoff(MINUTE)
            .response_timeout(LONG)
    });
    fence_of_a_turn(&rig.locks);
    for forgets in [false, true] {
        let handed = rig.locks.stats().handed_off;
        let first = rig.locks.lock("a").expect("locks");
        let before = rig.proxy.log().len();
        thread::scope(|scope| {
            let next = behind(scope, || {
                let guard = rig.locks.lock("a").expect("locks");
                (
                    fence_of(&guard),
                    rig.value_of("a").as_deref() == Some(guard.token()),
                )
            });
            if forgets {
                rig.server.query::<()>(&["SCRIPT", "FLUSH"]);
            }
            let fence = fence_of(&first);
            drop(first);
            let (next, stored) = next.join().expect("no panic");
            assert!(next > fence && stored, "{next} after {fence}");
        });
        assert_eq!(rig.locks.stats().handed_off, handed + 1);
        // The release with the claim, and the last release: without a wasted round trip.
        let sent = rig.proxy.log().split_off(before);
        let expected = if forgets {
            vec!["EVALSHA", "EVALSHA", "EVAL", "EVAL", "EVALSHA"]
        } else {
            vec!["EVALSHA"; 3]
        };
        assert_eq!(sent, expected);
    }
}

/// The claim that goes out with the release is refused. The thread that it was for asks again, and
/// learns why.
#[cfg(target_os = "linux")]
#[test]
fn a_thread_whose_fence_is_refused_at_the_hand_off_learns_it() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .local_handoff(MINUTE)
        .fenced(true)
        .build()
        .expect("connects");
    let first = locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let next = behind(scope, || locks.lock("a").map(drop));
        server.query::<()>(&["SET", COUNTER, "abc"]);
        assert_eq!(first.unlock().expect("unlocks"), Unlocked::Released);
        let error = next.join().expect("no panic").expect_err("no fence");
        assert!(
            matches!(&error, Error::Refused { code, .. } if code == "NOFENCE"),
            "{error:?}"
        );
    });
    assert!(!server.exists("lock:a"));
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
