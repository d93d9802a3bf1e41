//! Managers without a Redis: what their controls do, and what they start. (What is the same as with
//! a Redis: `either_store`.)

use std::fs;
use std::mem;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{
    Error, LockGuard, LockManager, LostCause, MemoryControls, Owner, Replicas, Unlocked, install,
    install_for_test, installed,
};
use relatch_rig::{LONG, eventually, is_alone, within};

use crate::support::{ANSWER, MINUTE, PERIOD, SOON, assert_lost, assert_unavailable, until_queued};

/// The default lease.
const LEASE: Duration = Duration::from_secs(30);

const SECOND: Duration = Duration::from_secs(1);

fn in_memory() -> (LockManager, MemoryControls) {
    let locks = LockManager::builder_in_memory()
        .response_timeout(ANSWER)
        .build()
        .expect("it works");
    let memory = locks.memory().expect("it is in memory");
    (locks, memory)
}

/// Has another thread wait for a lock while `meanwhile` runs, and returns what it took.
fn behind(locks: &LockManager, name: &str, meanwhile: impl FnOnce()) -> Result<(), Error> {
    thread::scope(|scope| {
        let (sender, thread) = mpsc::channel();
        let waiter = scope.spawn(move || {
            sender.send(Owner::current().thread).expect("it is awaited");
            locks.lock(name).map(drop)
        });
        until_queued(thread.recv().expect("it began"));
        meanwhile();
        within(LONG, "the waiter goes on", || {
            waiter.join().expect("no panic")
        })
    })
}

/// Takes a lock in a thread that ends with it.
fn leave(locks: &LockManager, name: &str) {
    let take = || mem::forget(locks.lock(name).expect("locks"));
    thread::scope(|scope| scope.spawn(take).join().expect("no panic"));
}

fn is_lost(guard: &LockGuard) -> bool {
    !guard.is_valid()
}

#[test]
fn no_socket_is_opened_and_only_the_keeper_starts() {
    if !is_alone(
        module_path!(),
        "no_socket_is_opened_and_only_the_keeper_starts",
    ) {
        return;
    }
    let threads = || {
        let tasks = fs::read_dir("/proc/self/task").expect("Linux");
        let names =
            tasks.map(|task| fs::read_to_string(task.expect("a thread").path().join("comm")));
        let names = names
            .map(Result::unwrap_or_default)
            .filter(|name| name.starts_with("relatch"));
        names.collect::<Vec<_>>()
    };
    let (locks, memory) = in_memory();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| (0..100).for_each(|_| locks.with_lock("a", || ()).expect("locks")));
        }
    });
    let guard = locks.lock("a").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    guard.confirm(SECOND).expect("it is there");
    guard.ensure(SECOND).expect("it is there");
    leave(&locks, "c");
    // (For a moment, there is one that calls a recorder.)
    eventually(LONG, "only the keeper runs", || {
        threads() == ["relatch-keeper\n"]
    });
    memory.go_away(LEASE);
    assert_unavailable(&locks.try_lock("b"));
    memory.go_away(Duration::ZERO);
    let guard = locks.lock("d").expect("locks");
    memory.lose("d", LostCause::Deleted);
    assert_lost(&guard.unlock(), LostCause::Deleted);
    eventually(LONG, "only the keeper runs", || threads().len() == 1);
    let open = fs::read_dir("/proc/self/fd").expect("Linux");
    let open: Vec<_> = open
        .filter_map(|it| fs::read_link(it.ok()?.path()).ok())
        .collect();
    assert!(
        open.iter()
            .all(|it| !it.to_string_lossy().starts_with("socket:")),
        "{open:?}"
    );
}

#[test]
fn a_lock_that_was_released_during_an_outage_is_free_after_it() {
    let (locks, memory) = in_memory();
    let short = locks.lock("short").expect("locks");
    memory.go_away(MINUTE);
    let Err(Error::Unconfirmed { at_most, .. }) = short.unlock() else {
        panic!("nothing answered")
    };
    assert!(at_most <= LEASE && at_most > LEASE / 2, "{at_most:?}");
    memory.go_away(Duration::ZERO);
    let deleted = |name: &str| locks.named(name).try_lock_for(LONG).expect("answers");
    assert!(deleted("short").is_some(), "deleted after the outage");
    // The key stays for as long as it is kept, and no longer, though its lease is longer.
    let begun = Instant::now();
    let kept = locks
        .named("kept")
        .lease(10 * MINUTE)
        .keep_at_least(SECOND)
        .lock()
        .expect("locks");
    memory.go_away(MINUTE);
    assert!(matches!(kept.unlock(), Err(Error::Unconfirmed { .. })));
    memory.go_away(Duration::ZERO);
    assert!(deleted("kept").is_some());
    assert!(begun.elapsed() >= SECOND / 2, "{:?}", begun.elapsed());
}

#[test]
fn expire_and_lose_end_one_lock_with_their_cause() {
    let (locks, memory) = in_memory();
    let [a, b, c] = ["a", "b", "c"].map(|name| locks.lock(name).expect("locks"));
    leave(&locks, "d");
    for (name, cause) in [
        ("a", LostCause::Expired),
        ("b", LostCause::Deleted),
        ("d", LostCause::Deleted),
    ] {
        behind(&locks, name, || assert!(memory.lose(name, cause))).expect("locks");
        assert!(!memory.lose(name, cause), "nobody has it");
    }
    assert!(!memory.lose("", LostCause::Deleted));
    assert!(is_lost(&a) && is_lost(&b) && c.is_valid());
    assert_lost(&a.unlock(), LostCause::Expired);
    assert_lost(&b.unlock(), LostCause::Deleted);
    assert_eq!(c.unlock().expect("unlocks"), Unlocked::Released);
    // What a `DEL` does is done to its key all the same.
    let kept = locks.named("e").keep_at_least(SECOND * 20);
    kept.with_lock(|| ()).expect("locks");
    assert!(locks.try_lock("e").expect("asks").is_none(), "it is kept");
    assert!(!memory.lose("e", LostCause::Deleted), "nobody has it");
    assert!(locks.try_lock("e").expect("asks").is_some());
}

#[test]
fn a_hold_survives_an_outage_that_is_shorter_than_its_lease() {
    let (locks, memory) = in_memory();
    let guard = locks.lock("a").expect("locks");
    memory.go_away(LEASE / 2);
    assert!(guard.is_valid());
    for failed in [
        guard.confirm(SECOND),
        guard.verify(),
        locks.named("a").force_unlock().map(drop),
        locks.try_lock("b").map(drop),
    ] {
        assert!(matches!(failed, Err(Error::Unavailable { .. })));
    }
    assert!(locks.lock("a").is_ok(), "reentry asks nobody");
    behind(&locks, "b", || memory.go_away(Duration::ZERO)).expect("locks");
    guard.confirm(SECOND).expect("it is there");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn a_hold_is_lost_by_an_outage_that_outlasts_its_lease() {
    let (sender, lost) = mpsc::channel();
    let builder = LockManager::builder_in_memory().lease(2 * SOON);
    let builder = builder.renew_every(PERIOD).on_lost(move |lost| {
        let told = (lost.key.clone(), lost.cause);
        sender.send(told).expect("it is awaited");
    });
    let locks = builder.build().expect("it works");
    let memory = locks.memory().expect("it is in memory");
    let guard = locks.lock("a").expect("locks");
    memory.go_away(MINUTE);
    let told = lost.recv_timeout(LONG).expect("it is called");
    assert_eq!(told, ("a".to_owned(), LostCause::Expired));
    assert!(is_lost(&guard) && locks.stats().renewal_errors > 0);
    memory.go_away(Duration::ZERO);
    drop(guard);
    assert!(locks.try_lock("a").expect("answers").is_some());
}

/// The callback takes a lock of the same manager.
#[test]
fn on_lost_is_called_for_a_guard_that_was_forgotten() {
    let manager: Arc<Mutex<Option<LockManager>>> = Arc::default();
    let (sender, lost) = mpsc::channel();
    let of_callback = Arc::clone(&manager);
    let builder = LockManager::builder_in_memory().lease(ANSWER);
    let builder = builder.on_lost(move |lost| {
        let locks = of_callback.lock().expect("no panic").take();
        let locks = locks.expect("it is made");
        let another = locks.named("another").lease(LEASE);
        another.with_lock(|| ()).expect("locks");
        sender.send(lost.cause).expect("awaited");
    });
    let locks = builder.build().expect("it works");
    *manager.lock().expect("no panic") = Some(locks.clone());
    leave(&locks, "a");
    let told = lost.recv_timeout(LONG).expect("it is called");
    assert_eq!(told, LostCause::Expired);
    eventually(LONG, "it is counted", || locks.stats().lost == 1);
    // The hold ends a little before its key.
    let taken = locks.named("a").lease(LEASE).try_lock_for(LONG);
    assert!(taken.expect("answers").is_some());
}

/// If both managers gave their first holds the same token, a thread would take the hold of the one
/// for a hold of the other.
#[test]
fn a_hold_of_another_manager_in_memory_is_somebody_elses() {
    let ((one, _), (two, _)) = (in_memory(), in_memory());
    let held = one.lock("x").expect("locks");
    let parcel = two.lock("y").expect("locks").hand_over();
    let parcel = parcel.expect("hands over");
    let taken = two.try_lock("y").expect("this is no deadlock");
    assert!(taken.is_none());
    // The same number of each, for the same name.
    let (theirs, ours) = (one.lock("z").expect("locks"), two.lock("z").expect("locks"));
    assert_ne!(theirs.token(), ours.token());
    let (clone, theirs) = (one.clone(), theirs.hand_over().expect("hands over"));
    thread::scope(|scope| {
        scope.spawn(|| {
            assert_lost(&two.adopt(&theirs).map(drop), LostCause::Taken);
            let taken = |locks: &LockManager| locks.try_lock("x").expect("answers").is_some();
            assert!(taken(&two) && !taken(&clone), "a clone is the same manager");
        });
    });
    assert!(ours.is_valid() && held.is_valid());
    assert!(two.adopt(&parcel).is_ok());
}

#[test]
fn options_of_servers_are_refused_in_memory() {
    let builder = LockManager::builder_in_memory;
    let credentials = || (String::new(), String::new());
    for (option, builder) in [
        ("credentials", builder().credentials(credentials)),
        ("sentinel_login", builder().sentinel_login(None, "secret")),
        (
            "replicas",
            builder().replicas(Replicas::at_least(1), ANSWER),
        ),
    ] {
        let error = builder.build().expect_err(option).to_string();
        assert!(error.contains(option) && error.contains("in memory"));
    }
    let others = builder().pool_size(1).prefix("p:").poll_every(SECOND);
    assert!(others.build().is_ok());
}

#[test]
fn a_manager_for_a_test_is_there_until_it_is_dropped() {
    if !is_alone(
        module_path!(),
        "a_manager_for_a_test_is_there_until_it_is_dropped",
    ) {
        return;
    }
    let managers = [(); 4].map(|()| LockManager::in_memory());
    // The number of the manager that has a lock which the installed one takes.
    let current = || {
        let _guard = installed().ok()?.lock("a").expect("locks");
        managers.iter().position(|locks| !locks.held().is_empty())
    };
    let [program, first, second, third] = &managers;
    assert_eq!(current(), None);
    let restore_first = install_for_test(first.clone());
    assert_eq!(current(), Some(1));
    let restore_second = install_for_test(second.clone());
    assert_eq!(current(), Some(2));
    let elsewhere = |manager: Option<&LockManager>| {
        let entered = || {
            let _restore = manager.cloned().map(install_for_test);
            current()
        };
        thread::scope(|scope| scope.spawn(entered).join().expect("no panic"))
    };
    assert_eq!(elsewhere(None), None, "it is for the thread of this test");
    let given = elsewhere(Some(first));
    assert_eq!(given, Some(1), "and for those to which it is given");
    drop(restore_second);
    assert_eq!(current(), Some(1));
    install(program.clone()).expect("it is the first of the program");
    assert_eq!(current(), Some(1), "the one of the test counts");
    let restore_third = install_for_test(third.clone());
    drop(restore_first);
    assert_eq!(current(), Some(3), "whatever the order of the drops");
    drop(restore_third);
    assert_eq!(current(), Some(0));
}
