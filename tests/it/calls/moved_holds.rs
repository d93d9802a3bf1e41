//! Handing a hold over: to another thread (`detach`, `attach`), and to another process
//! (`hand_over`, `adopt`).

use std::error::Error as StdError;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{DetachedHold, Error, LockGuard, LockManager, LockParcel, LostCause, Unlocked};
use relatch_rig::{Fault, LONG, Proxy, Server, Worker, eventually, role, throughout, within};

use crate::support::{
    ANSWER, LEASE, MINUTE, PERIOD, Rig, SOON, assert_lost, builder, connect, delete, lease_left,
    renewals, returns_by, trusted, until_tracked,
};

/// The script of an adoption.
const ADOPT: &str = include_str!("../../../src/client/commands/lua/adopt.lua");

/// Redis knows nothing of the parcel, whatever the reason.
#[track_caller]
fn assert_nothing<T>(adopted: &Result<T, Error>) {
    let error = adopted.as_ref().err().expect("there is nothing to adopt");
    assert!(matches!(error, Error::NothingToAdopt { .. }), "{error:?}");
}

/// The beginning of each command that adopts a lock without a fence, for a proxy's rule. Loads the
/// script into Redis.
fn adoptions_of(server: &Server, name: &str) -> String {
    format!(
        "EVALSHA {} 1 lock:{name}",
        server.query::<String>(&["SCRIPT", "LOAD", ADOPT])
    )
}

/// A parcel of the lock `name`, whose sender this process is.
#[track_caller]
fn parcel_of(locks: &LockManager, name: &str) -> LockParcel {
    locks
        .lock(name)
        .expect("locks")
        .hand_over()
        .expect("hands over")
}

/// Takes the lock and detaches it, in a thread that then ends.
fn detached_elsewhere(locks: &LockManager, name: &str) -> DetachedHold {
    thread::scope(|scope| {
        let other = scope.spawn(|| locks.lock(name).expect("locks").detach().expect("detaches"));
        other.join().expect("no panic")
    })
}

/// Calls `check` in another thread of this process.
fn in_another_thread<T: Send>(check: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(check).join().expect("no panic"))
}

fn is_other_guards(error: &Error, wanted: u32) -> bool {
    matches!(error, Error::OtherGuards { key, depth, .. } if key == "a" && *depth == wanted)
}

// Between threads.

#[test]
fn a_hold_goes_on_in_another_thread() {
    let rig = Rig::new();
    let guard = rig.locks.named("a").fenced(true).lock().expect("locks");
    let (token, fence, watch) = (guard.token().to_owned(), guard.fence(), guard.watch());
    let sent = rig.proxy.log().len();
    let hold = guard.detach().expect("detaches");
    assert!(hold.watch().is_valid() && watch.is_valid());
    let held = rig.locks.held();
    assert_eq!(held.len(), 1);
    assert_eq!((held[0].key.as_str(), held[0].fence), ("a", fence));
    assert_eq!(rig.value_of("a").as_deref(), Some(&*token));
    assert!(rig.locks.named("a").current().is_none(), "no thread has it");
    in_another_thread(|| {
        let guard = hold.attach().expect("attaches");
        assert_eq!(
            (guard.token(), guard.fence(), guard.depth()),
            (&*token, fence, 1)
        );
        let again = rig.locks.lock("a").expect("re-enters");
        assert_eq!((again.token(), again.depth()), (&*token, 2));
        drop(again);
        assert_eq!(rig.proxy.log().len(), sent, "nothing was sent");
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    });
    assert!(!watch.is_valid());
    assert_eq!(rig.value_of("a"), None);
}

#[test]
fn a_detached_hold_is_renewed_though_its_thread_has_ended() {
    let rig = Rig::renewing();
    let hold = detached_elsewhere(&rig.locks, "a");
    let token = rig.value_of("a");
    eventually(LONG, "it is renewed", || renewals(&rig.locks, "a") > 3);
    throughout(2 * LEASE, || assert!(hold.watch().is_valid()));
    assert_eq!(rig.value_of("a"), token);
    assert!(
        rig.locks.try_lock("a").expect("answers").is_none(),
        "it is held"
    );
    drop(hold.attach().expect("attaches"));
    assert_eq!(rig.value_of("a"), None);
}

#[test]
fn dropping_a_detached_hold_releases_the_lock_and_the_next_thread_gets_it() {
    let rig = Rig::new();
    let hold = rig
        .locks
        .lock("a")
        .expect("locks")
        .detach()
        .expect("detaches");
    assert!(
        rig.locks.try_lock("a").expect("answers").is_none(),
        "the thread that took it has it no more"
    );
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rig.locks.lock("a").map(drop));
        eventually(LONG, "it waits", || rig.locks.waiting().len() == 1);
        throughout(PERIOD, || assert!(!waiter.is_finished()));
        drop(hold);
        waiter.join().expect("no panic").expect("locks");
    });
    let hold = rig
        .locks
        .lock("a")
        .expect("locks")
        .detach()
        .expect("detaches");
    assert_eq!(
        in_another_thread(|| hold.unlock()).expect("unlocks"),
        Unlocked::Released
    );
    assert_eq!(rig.value_of("a"), None);
}

#[test]
fn dropping_a_detached_hold_ends_by_the_response_timeout() {
    returns_by(ANSWER, "the drop in a black hole", || {
        let rig = Rig::new();
        let hold = detached_elsewhere(&rig.locks, "a");
        rig.proxy.black_hole(true);
        let start = Instant::now();
        drop(hold);
        start.elapsed()
    });
}

#[test]
fn only_the_last_guard_leaves_its_thread() {
    let rig = Rig::new();
    let outer = rig.locks.lock("a").expect("locks");
    let inner = rig.locks.lock("a").expect("re-enters");
    let error = inner.detach().expect_err("there is another guard");
    assert!(is_other_guards(&error, 2), "{error:?}");
    let inner = rig.locks.named("a").current().expect("it is still held");
    assert_eq!(
        error.to_string(),
        "this thread has 2 guards of lock \"a\", and the hold can leave the thread only when one is left"
    );
    let (inner, error) = inner.try_hand_over().expect_err("there is another guard");
    assert!(
        is_other_guards(&error, 2) && error.key() == Some("a"),
        "{error:?}"
    );
    assert!(inner.is_valid() && outer.is_valid());
    assert!(
        is_other_guards(&inner.detach().expect_err("still two"), 2),
        "and drops the inner one"
    );
    let hold = outer.detach().expect("it is the last one");
    assert_eq!(hold.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn a_lost_hold_neither_leaves_its_thread_nor_comes_to_another() {
    let rig = Rig::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| rig.locks.lock(name).expect("locks"));
    let b = b.detach().expect("detaches");
    for name in ["a", "b", "c"] {
        rig.locks.named(name).force_unlock().expect("answers");
    }
    assert_lost(&a.detach(), LostCause::Deleted);
    let (b, error) = b.try_attach().expect_err("lost");
    assert!(
        matches!(
            error,
            Error::Lost {
                cause: LostCause::Deleted,
                ..
            }
        ),
        "{error:?}"
    );
    assert_lost(&b.unlock(), LostCause::Deleted);
    assert_lost(&c.hand_over(), LostCause::Deleted);
    assert!(rig.locks.held().is_empty());
}

/// The thread got the lock by a parcel that it should not have had. Its own older hold is lost,
/// and nobody has noticed that yet.
#[test]
fn a_hold_is_not_attached_where_the_lock_is_held_already() {
    let rig = Rig::new();
    let guard = rig.locks.named("a").lease(MINUTE).lock().expect("locks");
    let own = guard.token().to_owned();
    let hold = guard.detach().expect("detaches");
    let token = own.replace(&own[own.len() - 8..], "00000000");
    rig.server
        .query::<()>(&["SET", "lock:a", &token, "PX", "60000"]);
    let parcel: LockParcel = format!("relatch1:0:0:{token}:a").parse().expect("a parcel");
    let guard = rig.locks.adopt(&parcel).expect("adopts");
    let (hold, error) = hold.try_attach().expect_err("the thread holds it");
    assert!(
        matches!(&error, Error::AlreadyHeld { key, .. } if key == "a"),
        "{error:?}"
    );
    assert_eq!((guard.depth(), own == guard.token()), (1, false));
    assert!(
        in_another_thread(|| hold.attach().map(drop)).is_ok(),
        "another thread may have it"
    );
    assert_eq!(
        rig.value_of("a").as_deref(),
        Some(guard.token()),
        "it was not that hold's to delete"
    );
}

/// The first thread has detached `a`, and waits for a thread that waits for `a`. No thread knows
/// who will release `a`, so that is no deadlock.
#[test]
fn a_detached_hold_is_no_part_of_a_deadlock() {
    let server = Server::start();
    let locks = connect(&server);
    let (sender, receiver) = mpsc::channel();
    let both = Barrier::new(2);
    thread::scope(|scope| {
        let first = scope.spawn(|| {
            let z = locks.lock("z").expect("locks");
            sender
                .send(locks.lock("a").expect("locks").detach().expect("detaches"))
                .expect("awaited");
            both.wait();
            let b = locks.lock("b");
            drop(z);
            b.map(drop)
        });
        let second = scope.spawn(|| {
            let b = locks.lock("b").expect("locks");
            both.wait();
            let a = locks.lock("a");
            drop(b);
            a.map(drop)
        });
        let hold = receiver.recv().expect("detached");
        throughout(3 * PERIOD, || {
            assert!(!first.is_finished() && !second.is_finished());
        });
        drop(hold);
        first.join().expect("no panic").expect("no deadlock");
        second.join().expect("no panic").expect("no deadlock");
    });
}

/// As soon as the second thread has attached the hold, it is the thread to wait for.
#[test]
fn an_attached_hold_is_part_of_a_deadlock() {
    let server = Server::start();
    let locks = connect(&server);
    let hold = locks.lock("a").expect("locks").detach().expect("detaches");
    let b = locks.lock("b").expect("locks");
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            let a = hold.attach().expect("attaches");
            locks.lock("b").map(|b| drop((a, b)))
        });
        let mine = within(LONG, "one of the two learns it", || {
            locks.lock("a").map(drop)
        });
        drop(b);
        let theirs = other.join().expect("no panic");
        let found = [mine, theirs]
            .into_iter()
            .filter(|it| matches!(it, Err(Error::WouldDeadlock { .. })));
        assert_eq!(found.count(), 1);
    });
}

// Between processes.

#[test]
fn a_lock_goes_on_in_another_process() {
    let lost = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&lost);
    let rig = Rig::with(|builder| {
        builder
            .lease(LEASE)
            .renew_every(PERIOD)
            .on_lost(move |_| _ = count.fetch_add(1, Ordering::SeqCst))
    });
    let other = builder(&rig.server.url())
        .lease(LEASE)
        .renew_every(PERIOD)
        .build()
        .expect("connects");
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "it is renewed", || renewals(&rig.locks, "a") > 2);
    let (old, watch) = (guard.token().to_owned(), guard.watch());
    let parcel = guard.hand_over().expect("hands over");
    assert!(
        !watch.is_valid()
            && rig.locks.held().is_empty()
            && rig.locks.named("a").current().is_none()
    );
    assert_eq!(parcel.key(), "a");
    assert_eq!(rig.value_of("a"), Some(old.clone()), "the lock stays taken");
    assert!(
        other.try_lock("a").expect("answers").is_none()
            && rig.locks.try_lock("a").expect("answers").is_none()
    );
    let sent = parcel.to_string();
    let adopted = other
        .adopt(&sent.parse().expect("a parcel"))
        .expect("adopts");
    assert_ne!(adopted.token(), old);
    assert_eq!(rig.value_of("a").as_deref(), Some(adopted.token()));
    assert_eq!(
        (adopted.depth(), other.lock("a").expect("re-enters").depth()),
        (1, 2)
    );
    eventually(LONG, "its lease is renewed", || renewals(&other, "a") > 3);
    throughout(2 * LEASE, || assert!(adopted.is_valid()));
    assert_nothing(
        &other
            .named("b")
            .adopt(&sent.replace(":a", ":b").parse().expect("a parcel")),
    );
    assert_lost(
        &in_another_thread(|| rig.locks.adopt(&parcel).map(drop)),
        LostCause::Taken,
    );
    assert_eq!(adopted.unlock().expect("unlocks"), Unlocked::Released);
    assert_nothing(&rig.locks.adopt(&parcel));
    assert_eq!(
        (lost.load(Ordering::SeqCst), rig.locks.stats().lost),
        (0, 0),
        "a hand-over is no loss"
    );
}

#[test]
fn a_watcher_learns_at_once_that_its_hold_was_handed_over() {
    let rig = Rig::new();
    let guard = rig.locks.lock("a").expect("locks");
    let watch = guard.watch();
    let watcher = thread::spawn(move || watch.wait_lost(LONG));
    let parcel = guard.hand_over().expect("hands over");
    let learnt = within(SOON, "the watcher returns", || watcher.join()).expect("no panic");
    assert_eq!(learnt, None, "that is no loss");
    drop(rig.locks.adopt(&parcel).expect("adopts"));
}

#[test]
fn a_sender_takes_its_parcel_back() {
    let rig = Rig::new();
    let parcel = parcel_of(&rig.locks, "a");
    let guard = rig.locks.adopt(&parcel).expect("adopts");
    assert!(guard.is_valid());
    assert_lost(
        &in_another_thread(|| rig.locks.adopt(&parcel).map(drop)),
        LostCause::Taken,
    );
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    rig.assert_works("a");
}

#[test]
fn a_lock_is_handed_over_with_nearly_a_lease() {
    let rig = Rig::with(|builder| builder.renew(false));
    let guard = rig.locks.named("a").lease(4 * LEASE).lock().expect("locks");
    eventually(LONG, "most of the lease is over", || {
        guard.remaining() < LEASE
    });
    let parcel = guard.hand_over().expect("hands over");
    assert!(
        rig.server.pttl("lock:a") > 2_000,
        "{}",
        rig.server.pttl("lock:a")
    );
    let left = lease_left(&parcel);
    assert!(left <= trusted(4 * LEASE) && left > 3 * LEASE, "{left:?}");
}

#[test]
fn a_lock_that_cannot_be_renewed_is_not_handed_over() {
    let rig = Rig::new();
    let guard = rig.locks.lock("a").expect("locks");
    rig.proxy.black_hole(true);
    let (guard, error) = guard.try_hand_over().expect_err("no answer");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    rig.proxy.black_hole(false);
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// `?` makes an error of any kind of it, which can go to any thread and keeps no lock.
#[test]
fn an_error_of_a_hand_over_keeps_no_lock() {
    let rig = Rig::new();
    let hand_over = |guard: LockGuard| -> Result<LockParcel, Box<dyn StdError + Send + Sync>> {
        Ok(guard.hand_over()?)
    };
    let guard = rig.locks.lock("a").expect("locks");
    // A hold is renewed before it is handed over, and without an answer once more.
    rig.proxy
        .on_times("EVALSHA * 1 lock:a", 2, Fault::DropReply);
    let error = hand_over(guard).expect_err("no answer");
    assert!(
        error
            .downcast_ref::<Error>()
            .is_some_and(Error::is_redis_failure),
        "{error:?}"
    );
    assert!(
        in_another_thread(|| rig.locks.try_lock("a").expect("answers").is_some()),
        "it is kept"
    );
}

#[test]
fn a_parcel_that_nobody_adopts_ends_with_the_lease() {
    let rig = Rig::with(|builder| builder.lease(LEASE));
    let parcel = parcel_of(&rig.locks, "a");
    let start = Instant::now();
    let guard = rig.locks.lock("a").expect("locks");
    assert!(start.elapsed() >= LEASE / 2, "{:?}", start.elapsed());
    assert_lost(
        &in_another_thread(|| rig.locks.adopt(&parcel).map(drop)),
        LostCause::Taken,
    );
    drop(guard);
    assert_nothing(&rig.locks.adopt(&parcel));
    let parcel = parcel_of(&rig.locks, "b");
    delete(&rig.server, "b");
    assert_nothing(&rig.locks.adopt(&parcel));
    rig.server.query::<()>(&["RPUSH", "lock:b", "other"]);
    assert_lost(&rig.locks.adopt(&parcel), LostCause::Taken);
}

#[test]
fn what_cannot_be_adopted_sends_nothing() {
    let rig = Rig::new();
    let parcel = parcel_of(&rig.locks, "a");
    let other: LockParcel = parcel
        .to_string()
        .replace(":a", ":b")
        .parse()
        .expect("a parcel");
    let guard = rig.locks.lock("b").expect("locks");
    rig.server.reset_stats();
    let error = rig.locks.adopt(&other).expect_err("this thread holds it");
    assert!(
        matches!(&error, Error::AlreadyHeld { key, .. } if key == "b"),
        "{error:?}"
    );
    let error = rig
        .locks
        .named("c")
        .adopt(&parcel)
        .expect_err("for another lock");
    assert_eq!(
        error.to_string(),
        "option `adopt` cannot be a parcel of lock \"a\": it is for another lock"
    );
    let error = rig
        .locks
        .named("a")
        .lease(Duration::ZERO)
        .adopt(&parcel)
        .expect_err("no lease");
    assert!(
        matches!(
            error,
            Error::InvalidOption {
                option: "lease",
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(
        (
            rig.server.calls("evalsha"),
            rig.server.calls("eval"),
            guard.depth()
        ),
        (0, 0, 1)
    );
    assert!(
        rig.locks.adopt(&parcel).is_ok(),
        "the parcel is as good as before"
    );
}

/// The thread that adopts does not wait for those that wait for the lock. Its release wakes them:
/// over the one connection that all share here, Redis tells nobody of it.
#[test]
fn an_adopted_lock_is_held_beside_the_queue_and_its_release_wakes_the_queue() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .lease(MINUTE)
        .pool_size(1)
        .build()
        .expect("connects");
    let others = LockManager::builder(&server.url())
        .lease(MINUTE)
        .build()
        .expect("connects");
    let parcel = parcel_of(&others, "a");
    thread::scope(|scope| {
        let waiters = [(); 3].map(|()| scope.spawn(|| locks.lock("a").map(drop)));
        eventually(LONG, "one of them waits for Redis", || {
            locks.stats().waited > 0 && server.tracked_keys() == 1
        });
        let guard = within(SOON, "adopting", || locks.adopt(&parcel)).expect("adopts");
        throughout(3 * PERIOD, || {
            assert!(guard.is_valid() && waiters.iter().all(|it| !it.is_finished()));
        });
        within(SOON, "the release and the waiters", || {
            drop(guard);
            for waiter in waiters {
                waiter.join().expect("no panic").expect("locks");
            }
        });
    });
}

/// The swap goes over the one connection by which the waiter has asked for wake-ups, and uses its
/// wake-up up. So the waiter asks again.
#[test]
fn a_waiter_of_the_adopters_process_is_woken_by_the_next_change_as_well() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .lease(MINUTE)
        .pool_size(1)
        .build()
        .expect("connects");
    let others = LockManager::builder(&server.url())
        .lease(MINUTE)
        .build()
        .expect("connects");
    let parcel = parcel_of(&others, "a");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.lock("a").map(drop));
        until_tracked(&server, 1);
        let guard = locks.adopt(&parcel).expect("adopts");
        within(SOON, "the waiter asks again", || until_tracked(&server, 1));
        delete(&server, "a");
        within(SOON, "the waiter gets the lock", || waiter.join())
            .expect("no panic")
            .expect("locks");
        assert_lost(&guard.unlock(), LostCause::Deleted);
    });
}

#[test]
fn the_fence_grows_by_an_adoption() {
    let rig = Rig::new();
    let guard = rig.locks.named("a").fenced(true).lock().expect("locks");
    let before = guard.fence();
    let parcel = guard.hand_over().expect("hands over");
    // Also a manager that knows nothing of fences keeps to the sender's.
    let adopted = rig.locks.adopt(&parcel).expect("adopts");
    assert!(
        adopted.fence() > before,
        "{:?} after {before:?}",
        adopted.fence()
    );
    let holder = rig
        .locks
        .named("a")
        .fenced(true)
        .holder()
        .expect("answers")
        .expect("held");
    assert_eq!(holder.fence, adopted.fence());
    let again = adopted.hand_over().expect("hands over");
    // The server's clock is set back, or the counter is ahead of it.
    let ahead = "9007199254740000";
    rig.server
        .query::<()>(&["SET", crate::turns::fence::COUNTER, ahead]);
    let adopted = rig.locks.adopt(&again).expect("adopts");
    assert_eq!(adopted.fence(), Some(9_007_199_254_740_001));
    assert!(
        rig.server.pttl(crate::turns::fence::COUNTER) > 24 * 3_600_000,
        "until the clock has passed it"
    );
    drop(adopted);
    let parcel = parcel_of(&rig.locks, "b");
    assert!(
        rig.locks
            .named("b")
            .fenced(true)
            .adopt(&parcel)
            .expect("adopts")
            .fence()
            .is_some()
    );
}

#[test]
fn a_lock_whose_counter_is_broken_is_not_adopted_and_not_lost() {
    let rig = Rig::new();
    let parcel = rig
        .locks
        .named("a")
        .fenced(true)
        .lock()
        .expect("locks")
        .hand_over()
        .expect("hands over");
    rig.server
        .query::<()>(&["SET", crate::turns::fence::COUNTER, "x"]);
    let error = rig.locks.adopt(&parcel).expect_err("no number");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "NOFENCE"),
        "{error:?}"
    );
    rig.server
        .query::<()>(&["DEL", crate::turns::fence::COUNTER]);
    assert!(rig.locks.adopt(&parcel).expect("adopts").fence().is_some());
}

// Lost answers.

#[test]
fn an_adoption_whose_answer_is_lost_is_settled() {
    for fault in [
        Fault::CutBeforeReply,
        Fault::CutBeforeForward,
        Fault::HalfReply,
        Fault::DropReply,
    ] {
        for is_fenced in [false, true] {
            let rig =
                Rig::with(|builder| builder.response_timeout(ANSWER).connect_timeout(4 * ANSWER));
            let lock = rig.locks.named("a").fenced(is_fenced);
            let guard = lock.lock().expect("locks");
            let before = guard.fence();
            let parcel = guard.hand_over().expect("hands over");
            let pattern = adoptions_of(&rig.server, "a")
                .replace(" 1 ", if is_fenced { " 2 " } else { " 1 " });
            rig.proxy.on(&pattern, fault.clone());
            let guard = rig
                .locks
                .adopt(&parcel)
                .unwrap_or_else(|error| panic!("{fault:?}: {error:?}"));
            rig.proxy.wait_fired(1, SOON);
            assert_eq!(
                rig.value_of("a").as_deref(),
                Some(guard.token()),
                "{fault:?}"
            );
            if is_fenced {
                let holder = lock.holder().expect("answers").expect("held");
                assert_eq!(holder.fence, guard.fence(), "{fault:?}: numbered once");
                assert!(guard.fence() > before, "{fault:?}");
            }
            assert!(guard.is_valid());
            assert_eq!(
                guard.unlock().expect("unlocks"),
                Unlocked::Released,
                "{fault:?}"
            );
            assert_eq!(rig.locks.stats().lost, 0);
        }
    }
}

/// Redis executes the first try when the second one has long been answered.
#[test]
fn an_adoption_that_is_executed_late_changes_nothing() {
    let rig = Rig::with(|builder| builder.connect_timeout(4 * ANSWER));
    let lock = rig.locks.named("a").fenced(true).lease(MINUTE).renew(false);
    let parcel = lock.lock().expect("locks").hand_over().expect("hands over");
    let pattern = adoptions_of(&rig.server, "a").replace(" 1 ", " 2 ");
    rig.proxy.on(&pattern, Fault::DelayCommand(3 * ANSWER));
    let guard = lock.adopt(&parcel).expect("adopts");
    guard.set_lease(2 * MINUTE).expect("extends");
    let scripts = rig.server.calls("evalsha");
    eventually(LONG, "the first try is executed", || {
        rig.server.calls("evalsha") > scripts
    });
    let holder = lock.holder().expect("answers").expect("held");
    assert_eq!(holder.raw, guard.token());
    assert_eq!(holder.fence, guard.fence(), "numbered once");
    assert!(
        rig.server.pttl("lock:a") > 61_000,
        "the longer lease counts"
    );
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// The lease counts from the try that was answered, so that try must have extended it.
#[test]
fn a_repeated_adoption_extends_the_lease() {
    let rig = Rig::with(|builder| {
        builder
            .lease(LONG / 2) // A hundredth of it is much less than the response timeout.
            .renew(false)
            .connect_timeout(4 * ANSWER)
    });
    let parcel = parcel_of(&rig.locks, "a");
    rig.proxy
        .on(&adoptions_of(&rig.server, "a"), Fault::DropReply);
    let guard = rig.locks.adopt(&parcel).expect("adopts");
    rig.proxy.wait_fired(1, SOON);
    let (left, in_redis) = (guard.remaining(), rig.server.pttl("lock:a"));
    assert!(
        u128::from(in_redis.unsigned_abs()) + 5 >= left.as_millis(),
        "{in_redis} ms in Redis, {left:?} here"
    );
}

#[test]
fn an_adoption_without_an_answer_leaves_no_key_and_no_hold() {
    for fault in [
        Fault::DropReply,
        Fault::CutBeforeReply,
        Fault::DelayCommand(3 * ANSWER),
    ] {
        let rig = Rig::new();
        let others = connect(&rig.server);
        let parcel = parcel_of(&others, "a");
        rig.proxy
            .always(&adoptions_of(&rig.server, "a"), fault.clone());
        let error = rig.locks.adopt(&parcel).expect_err("no answer");
        assert!(
            matches!(error, Error::Unavailable { .. }),
            "{fault:?}: {error:?}"
        );
        assert!(rig.locks.held().is_empty() && rig.locks.named("a").current().is_none());
        eventually(LONG, "no key without a holder is left", || {
            rig.value_of("a").is_none()
        });
        drop(others.lock("a").expect("locks"));
    }
}

/// The script never arrived. The keeper looks for the new token, and leaves the key alone.
#[test]
fn an_adoption_that_redis_never_got_leaves_the_parcel_to_others() {
    let rig = Rig::new();
    let others = connect(&rig.server);
    let parcel = parcel_of(&others, "a");
    rig.proxy
        .always(&adoptions_of(&rig.server, "a"), Fault::SwallowCommand);
    let error = rig.locks.adopt(&parcel).expect_err("no answer");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let guard = others.adopt(&parcel).expect("adopts");
    throughout(3 * ANSWER, || {
        assert_eq!(rig.value_of("a").as_deref(), Some(guard.token()));
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn an_adoption_that_is_answered_after_its_lease_is_refused() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let parcel = parcel_of(&rig.locks, "a");
    rig.proxy.on(
        &adoptions_of(&rig.server, "a"),
        Fault::DelayReply(ANSWER / 2),
    );
    let adopted = rig.locks.named("a").lease(ANSWER / 4).adopt(&parcel);
    assert_lost(&adopted, LostCause::Expired);
    rig.assert_works("a");
}

/// As for a lock that was waited for: a thread that has lost a lock does not begin to work under
/// another one.
#[test]
fn an_adoption_during_which_an_outer_lock_ends_is_undone() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let parcel = parcel_of(&rig.locks, "b");
    rig.proxy.on(
        &adoptions_of(&rig.server, "b"),
        Fault::DelayReply(2 * LEASE),
    );
    let outer = rig
        .locks
        .named("a")
        .renew(false)
        .lease(LEASE)
        .lock()
        .expect("locks");
    let adopted = rig.locks.named("b").keep_at_least(MINUTE).adopt(&parcel);
    rig.proxy.wait_fired(1, SOON);
    assert!(
        matches!(&adopted, Err(Error::OuterLost { key, outer, .. }) if key == "b" && outer == "a"),
        "{adopted:?}"
    );
    assert_eq!(
        rig.value_of("b"),
        None,
        "it was given back, and not kept: nobody has done its work"
    );
    assert_lost(&outer.unlock(), LostCause::Expired);
}

/// Hands a lock over again and again. Each time, two adopt it at once: `lossy` says what happens to
/// the scripts of some of them. One wins, and has the lock.
fn adopted_twice_at_once(rounds: u64, lossy: bool) {
    let server = Server::start();
    let proxies = [(); 2].map(|()| Proxy::start(server.port()));
    let sender = connect(&server);
    let adopters = proxies.each_ref().map(|proxy| {
        let builder = LockManager::builder(&proxy.url())
            .connect_timeout(LONG)
            .response_timeout(LONG);
        builder.lease(MINUTE).build().expect("connects")
    });
    let pattern = adoptions_of(&server, "a");
    for round in 0..rounds {
        for (proxy, place) in proxies.iter().zip([0, 1]) {
            match (lossy, (round / (1 + 2 * place)) % 4) {
                (true, 0) => proxy.on(&pattern, Fault::CutBeforeReply),
                (true, 1) => proxy.on(&pattern, Fault::CutBeforeForward),
                (true, 2) => proxy.on_times(&pattern, 2, Fault::HalfReply),
                _ => {}
            }
        }
        let (parcel, start, end) = (parcel_of(&sender, "a"), Barrier::new(2), Barrier::new(2));
        let adopt = |locks: &LockManager| {
            start.wait();
            let adopted = locks.adopt(&parcel);
            let in_redis = server.get("lock:a");
            end.wait(); // Nobody releases it before both have tried.
            adopted.map(|guard| in_redis.as_deref() == Some(guard.token()) && guard.is_valid())
        };
        let adopt = &adopt;
        let threads = adopters.each_ref().map(|locks| move || adopt(locks));
        let outcomes = thread::scope(|scope| {
            threads
                .map(|thread| scope.spawn(thread))
                .map(|thread| thread.join().expect("no panic"))
        });
        assert!(
            matches!(
                &outcomes,
                [
                    Ok(true),
                    Err(Error::Lost {
                        cause: LostCause::Taken,
                        ..
                    })
                ] | [
                    Err(Error::Lost {
                        cause: LostCause::Taken,
                        ..
                    }),
                    Ok(true)
                ]
            ),
            "round {round}: {outcomes:?}"
        );
        proxies.iter().for_each(Proxy::clear);
    }
    for locks in &adopters {
        assert_eq!(locks.stats().lost, 0);
    }
    if lossy {
        let fired = proxies.each_ref().map(Proxy::fired);
        assert!(
            fired.iter().all(|&it| it >= rounds / 2),
            "three rounds of four have a fault: {fired:?}"
        );
    }
}

#[test]
fn of_two_that_adopt_at_once_one_wins() {
    adopted_twice_at_once(300, false);
}

#[test]
fn of_two_that_adopt_at_once_one_wins_whatever_answers_are_lost() {
    adopted_twice_at_once(300, true);
}

#[test]
#[ignore = "takes minutes: tests/chaos.sh runs it"]
fn of_two_that_adopt_at_once_one_wins_ten_thousand_times() {
    adopted_twice_at_once(10_000, false);
    adopted_twice_at_once(10_000, true);
}

// Processes that die.

/// A role: takes or adopts the lock `a`, and hands it over, as each line says.
pub(crate) fn hand_over_as_told() {
    let locks = LockManager::builder(&role::arg("url"))
        .lease(LEASE)
        .build()
        .expect("connects");
    let mut held = None;
    role::report("ready");
    while let Some(line) = role::next_line() {
        role::report(match line.as_str() {
            "lock" => held
                .insert(locks.lock("a").expect("locks"))
                .token()
                .to_owned(),
            "hand over" => held
                .take()
                .expect("held")
                .hand_over()
                .expect("hands over")
                .to_string(),
            parcel => match locks.adopt(&parcel.parse().expect("a parcel")) {
                Ok(guard) => held.insert(guard).token().to_owned(),
                Err(error) => format!("{error:?}"),
            },
        });
    }
    std::mem::forget(held); // The input ends when the process is about to be killed.
}

fn worker(server: &Server) -> Worker {
    let worker = Worker::spawn("hander", &[("url", &server.url())]);
    worker.expect_line("ready", LONG);
    worker
}

#[test]
fn a_lock_outlives_the_process_that_handed_it_over() {
    let server = Server::start();
    let locks = connect(&server);
    let mut sender = worker(&server);
    sender.ask("lock");
    let parcel: LockParcel = sender.ask("hand over").parse().expect("a parcel");
    sender.kill();
    let guard = locks.adopt(&parcel).expect("adopts");
    throughout(2 * LEASE, || assert!(guard.is_valid()));
    assert_eq!(server.get("lock:a").as_deref(), Some(guard.token()));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn the_lock_of_an_adopter_that_dies_is_free_after_its_lease() {
    let server = Server::start();
    let locks = connect(&server);
    let mut receiver = worker(&server);
    let parcel = parcel_of(&locks, "a");
    let token = receiver.ask(&parcel.to_string());
    assert_eq!(server.get("lock:a"), Some(token.clone()));
    eventually(LONG, "it is renewed", || server.calls("pexpire") > 1);
    throughout(LEASE, || {
        assert_eq!(server.get("lock:a"), Some(token.clone()));
    });
    receiver.kill();
    let guard = within(LEASE + LONG / 4, "the lease ends", || locks.lock("a")).expect("locks");
    assert_lost(
        &in_another_thread(|| locks.adopt(&parcel).map(drop)),
        LostCause::Taken,
    );
    drop(guard);
}

#[test]
fn of_many_processes_that_get_a_parcel_one_has_the_lock() {
    let server = Server::start();
    let locks = connect(&server);
    let mut workers: Vec<_> = (0..3).map(|_| worker(&server)).collect();
    for _ in 0..20 {
        let parcel = parcel_of(&locks, "a").to_string();
        for worker in &mut workers {
            worker.send(&parcel);
        }
        let said: Vec<_> = workers
            .iter()
            .map(|worker| worker.expect_line("", LONG))
            .collect();
        let tokens: Vec<_> = said.iter().filter(|it| !it.starts_with("Lost")).collect();
        assert_eq!(tokens.len(), 1, "{said:?}");
        assert_eq!(server.get("lock:a").as_ref(), Some(tokens[0]));
        let winner = said
            .iter()
            .position(|it| !it.starts_with("Lost"))
            .expect("one won");
        let parcel = workers[winner].ask("hand over").parse().expect("a parcel");
        drop(locks.adopt(&parcel).expect("comes back"));
    }
}

/// The lease of each of these parcels is far from over.
#[test]
fn a_parcel_that_is_of_no_use_here_is_not_told_to_have_run_out() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let server = Server::start();
    let elsewhere = connect(&server);
    let prefixed = crate::support::builder(&rig.server.url())
        .prefix("lock:other:")
        .build()
        .expect("connects");
    let parcel = parcel_of(&rig.locks, "a");
    for other in [&elsewhere, &prefixed] {
        assert_nothing(&other.adopt(&parcel));
    }
    drop(rig.locks.adopt(&parcel).expect("adopts"));
    let error = rig
        .locks
        .adopt(&parcel)
        .map(drop)
        .expect_err("it was adopted and released");
    assert!(
        matches!(&error, Error::NothingToAdopt { redis_key, .. } if redis_key == "lock:a"),
        "{error:?}"
    );
    assert_eq!(error.key(), Some("a"));
}

/// The counter is gone and the server's clock is behind, or the fence is made up. Its successor
/// would be stored, and from 2^53 on no lock is numbered.
#[test]
fn a_parcel_that_is_ahead_of_the_counter_and_of_the_clock_is_not_adopted() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let lock = rig.locks.named("a").fenced(true);
    let guard = lock.lock().expect("locks");
    let fence = guard.fence().expect("it is fenced");
    let parcel = guard.hand_over().expect("hands over");
    let ahead = |by: u64| -> LockParcel {
        parcel
            .to_string()
            .replace(&fence.to_string(), &(fence + by).to_string())
            .parse()
            .expect("a parcel")
    };
    let a_day = 24 * 3_600_000_000;
    for made_up in [a_day, (1 << 53) - 2 - fence, u64::MAX - fence].map(ahead) {
        let error = rig.locks.adopt(&made_up).map(drop).expect_err("refused");
        assert!(
            matches!(&error, Error::Refused { code, .. } if code == "NOFENCE"),
            "{error:?}"
        );
    }
    assert_eq!(
        rig.server.get(crate::turns::fence::COUNTER),
        Some(fence.to_string())
    );
    rig.server
        .query::<()>(&["DEL", crate::turns::fence::COUNTER]);
    assert!(rig.locks.adopt(&ahead(a_day)).is_err());
    rig.server.query::<()>(&[
        "SET",
        crate::turns::fence::COUNTER,
        &(fence + a_day).to_string(),
    ]);
    let adopted = rig.locks.adopt(&ahead(a_day)).expect("adopts");
    assert_eq!(adopted.fence(), Some(fence + a_day + 1));
    drop(adopted);
    assert_eq!(lock.lock().expect("locks").fence(), Some(fence + a_day + 2));
}

#[test]
fn a_parcel_moves_no_fence_in_memory() {
    let locks = LockManager::in_memory();
    let lock = locks.named("a").fenced(true);
    let parcel = lock
        .lock()
        .expect("locks")
        .hand_over()
        .expect("hands over")
        .to_string();
    let fence = parcel.split(':').nth(2).expect("a fence");
    let made_up: LockParcel = parcel
        .replace(fence, "9007199254740000")
        .parse()
        .expect("a parcel");
    let before = fence.parse::<u64>().expect("a number");
    let adopted = locks
        .adopt(&made_up)
        .expect("adopts")
        .fence()
        .expect("it is fenced");
    assert!(
        (before + 1..before + 3_600_000_000).contains(&adopted),
        "{adopted} after {before}"
    );
}
