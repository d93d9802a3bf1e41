//! Managers without a Redis: what their controls do, and what they start. (What is the same as with
//! a Redis: `either_store`.)

use std::fs;
use std::mem;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use log::LevelFilter;
use relatch::{
    Error, LockGuard, LockManager, LostCause, MemoryControls, Owner, Replicas, Unlocked, install,
    install_for_test, installed,
};
use relatch_rig::{LONG, eventually, is_alone, throughout, within};

use crate::calls::logs::{collect, lines_of};
use crate::support::{ANSWER, MINUTE, SOON, assert_lost, assert_unavailable, until_queued};

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
fn a_lock_that_is_free_is_not_waited_for() {
    let (locks, _) = in_memory();
    drop(locks.lock("a").expect("it is free"));
    let stats = locks.stats();
    assert_eq!((stats.acquired, stats.waited), (1, 0));
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
    eventually(ANSWER, "only the keeper runs", || {
        threads() == ["relatch-keeper\n"]
    });
    memory.go_away(LEASE);
    assert_unavailable(&locks.try_lock("b"));
    memory.go_away(Duration::ZERO);
    let guard = locks.lock("d").expect("locks");
    memory.lose("d", LostCause::Deleted);
    assert_lost(&guard.unlock(), LostCause::Deleted);
    eventually(ANSWER, "only the keeper runs", || threads().len() == 1);
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

/// All, or none: a lock that the thread had before is not kept because of a set that it did not
/// get.
#[test]
fn a_set_that_cannot_be_taken_keeps_nothing_of_what_its_thread_has() {
    let (locks, _) = in_memory();
    let minute = Duration::from_secs(60);
    let set = locks
        .several(["a", "b"])
        .options(|lock| lock.keep_at_least(minute));
    let outer = locks.lock("a").expect("it is free");
    let others = locks.lock("b").expect("it is free").detach();
    assert!(set.try_lock().expect("it answers").is_none(), "`b` is busy");
    assert_eq!(outer.unlock().expect("unlocks"), Unlocked::Released);
    drop(others);
    let both = set.try_lock().expect("it answers").expect("both are free");
    both.unlock().expect("unlocks");
    let kept = |key| locks.try_lock(key).expect("it answers").is_none();
    assert!(kept("a") && kept("b"), "both were taken, and are kept");
}

#[test]
fn the_options_of_a_set_come_from_a_lock_and_its_manager_does_not() {
    let (locks, _) = in_memory();
    let (elsewhere, _) = in_memory();
    let set = locks
        .several(["a", "b"])
        .options(|_| elsewhere.named("c").fenced(true));
    let both = set.lock().expect("both are free");
    assert!(locks.named("a").assert_held().is_ok());
    assert!(elsewhere.named("a").assert_held().is_err());
    both.unlock().expect("unlocks");
}

#[test]
fn a_waiter_gets_the_lock_when_a_lease_or_the_time_that_it_is_kept_ends() {
    let locks = LockManager::builder_in_memory().lease(2 * SOON).build();
    let locks = locks.expect("it works");
    let begun = Instant::now();
    let guard = locks.named("a").renew(false).lock().expect("locks");
    behind(&locks, "a", || ()).expect("locks");
    assert_lost(&guard.unlock(), LostCause::Expired);
    // Nobody of the process holds these: the waiter sleeps until the key ends.
    leave(&locks, "b");
    behind(&locks, "b", || ()).expect("locks");
    let kept = locks.named("c").keep_at_least(2 * SOON).lock();
    kept.and_then(LockGuard::unlock).expect("it is kept");
    behind(&locks, "c", || ()).expect("locks");
    assert!(begun.elapsed() >= 6 * SOON, "{:?}", begun.elapsed());
}

#[test]
fn a_waiter_goes_on_when_a_key_is_deleted() {
    let (locks, memory) = in_memory();
    leave(&locks, "a");
    behind(&locks, "a", || {
        eventually(LONG, "the waiter has asked the store", || {
            locks.stats().waited > 0
        });
        assert!(memory.lose("a", LostCause::Deleted));
    })
    .expect("locks");
}

/// What a `DEL` does is done to its key all the same.
#[test]
fn nobody_loses_a_lock_that_is_only_kept() {
    let (locks, memory) = in_memory();
    let kept = locks.named("a").keep_at_least(SECOND * 20);
    kept.with_lock(|| ()).expect("locks");
    assert!(locks.try_lock("a").expect("asks").is_none(), "it is kept");
    assert!(!memory.lose("a", LostCause::Deleted), "nobody has it");
    let free = locks.try_lock("a").expect("asks");
    assert!(free.is_some(), "its key is gone");
}

#[test]
fn expire_and_lose_end_one_lock_with_their_cause() {
    let (locks, memory) = in_memory();
    let [a, b, c] = ["a", "b", "c"].map(|name| locks.lock(name).expect("locks"));
    behind(&locks, "a", || {
        assert!(memory.lose("a", LostCause::Expired));
    })
    .expect("locks");
    behind(&locks, "b", || {
        assert!(memory.lose("b", LostCause::Deleted));
    })
    .expect("locks");
    assert!(
        !memory.lose("a", LostCause::Expired)
            && !memory.lose("nobody has it", LostCause::Deleted)
            && !memory.lose("", LostCause::Deleted)
    );
    assert!(is_lost(&a) && is_lost(&b) && c.is_valid());
    assert_lost(&a.unlock(), LostCause::Expired);
    assert_lost(&b.unlock(), LostCause::Deleted);
    assert_eq!(c.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn a_hold_survives_an_outage_that_is_shorter_than_its_lease() {
    let (locks, memory) = in_memory();
    let guard = locks.lock("a").expect("locks");
    assert!(
        guard.remaining() <= LEASE,
        "as with a Redis: {:?}",
        guard.remaining()
    );
    memory.go_away(LEASE / 2);
    assert!(guard.is_valid());
    assert!(matches!(
        guard.confirm(SECOND),
        Err(Error::Unavailable { .. })
    ));
    assert!(matches!(guard.verify(), Err(Error::Unavailable { .. })));
    assert_unavailable(&locks.try_lock("b"));
    assert!(locks.lock("a").is_ok(), "reentry asks nobody");
    memory.go_away(Duration::ZERO);
    guard.confirm(SECOND).expect("it is there");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn a_hold_is_lost_by_an_outage_that_outlasts_its_lease() {
    let locks = LockManager::builder_in_memory().lease(2 * SOON).build();
    let locks = locks.expect("it works");
    let memory = locks.memory().expect("it is in memory");
    let guard = locks.lock("a").expect("locks");
    memory.go_away(MINUTE);
    eventually(LONG, "the lease ends", || is_lost(&guard));
    assert!(locks.stats().renewal_errors > 0, "its renewals failed");
    let another = locks.try_lock("b");
    assert!(
        matches!(another, Err(Error::OuterLost { .. })),
        "{another:?}"
    );
    memory.go_away(Duration::ZERO);
    drop(guard);
    assert!(locks.try_lock("a").expect("answers").is_some());
}

#[test]
fn a_waiter_goes_on_after_an_outage() {
    let (locks, memory) = in_memory();
    memory.go_away(MINUTE);
    let begun = Instant::now();
    behind(&locks, "a", || memory.go_away(Duration::ZERO)).expect("locks");
    assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
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
    let kept = locks
        .named("kept")
        .lease(10 * MINUTE)
        .keep_at_least(SECOND)
        .lock()
        .expect("locks");
    let begun = Instant::now();
    memory.go_away(MINUTE);
    assert!(matches!(kept.unlock(), Err(Error::Unconfirmed { .. })));
    memory.go_away(Duration::ZERO);
    assert!(deleted("kept").is_some());
    assert!(begun.elapsed() >= SECOND / 2, "{:?}", begun.elapsed());
}

#[test]
fn on_lost_is_called_for_a_lease_that_ends_by_the_real_clock() {
    let (sender, lost) = mpsc::channel();
    let builder = LockManager::builder_in_memory().renew(false).lease(ANSWER);
    let locks = builder.on_lost(move |lost| sender.send(lost.key.clone()).expect("it is awaited"));
    let locks = locks.build().expect("it works");
    let guard = locks.lock("a").expect("locks");
    assert_eq!(lost.recv_timeout(LONG).expect("it is called"), "a");
    assert!(is_lost(&guard));
}

#[test]
fn on_lost_is_called_for_a_hold_that_an_outage_ends() {
    let (sender, lost) = mpsc::channel();
    let builder = LockManager::builder_in_memory()
        .lease(2 * SOON)
        .renew_every(SOON / 10);
    let builder = builder.on_lost(move |lost| {
        sender
            .send((lost.key.clone(), lost.cause))
            .expect("it is awaited");
    });
    let locks = builder.build().expect("it works");
    let guard = locks.lock("a").expect("locks");
    eventually(LONG, "the hold is renewed", || locks.stats().renewed >= 2);
    locks.memory().expect("in memory").go_away(4 * SOON);
    assert_eq!(
        lost.recv_timeout(LONG).expect("it is called"),
        ("a".to_owned(), LostCause::Expired)
    );
    assert!(is_lost(&guard));
}

#[test]
fn on_lost_may_take_locks_of_its_manager() {
    let manager: Arc<Mutex<Option<LockManager>>> = Arc::default();
    let (sender, lost) = mpsc::channel();
    let of_callback = Arc::clone(&manager);
    let builder = LockManager::builder_in_memory().on_lost(move |lost| {
        let locks = of_callback
            .lock()
            .expect("no panic")
            .take()
            .expect("it is made");
        let taken = locks.with_lock(&lost.key, || ());
        sender.send(taken.is_ok()).expect("it is awaited");
    });
    let locks = builder.build().expect("it works");
    *manager.lock().expect("no panic") = Some(locks.clone());
    let guard = locks.lock("a").expect("locks");
    let memory = locks.memory().expect("in memory");
    assert!(memory.lose("a", LostCause::Deleted));
    assert!(lost.recv_timeout(LONG).expect("it is called"));
    drop(guard);
}

/// The keeper has planned to look at the hold when its lease ends, and that is sooner now.
#[test]
fn on_lost_is_called_for_a_lease_that_ends_sooner_than_planned() {
    let (sender, lost) = mpsc::channel();
    let builder = LockManager::builder_in_memory().renew(false).lease(MINUTE);
    let locks = builder.on_lost(move |lost| sender.send(lost.cause).expect("it is awaited"));
    let locks = locks.build().expect("it works");
    let guard = locks.lock("a").expect("locks");
    throughout(ANSWER, || assert!(guard.is_valid())); // The keeper sleeps by then.
    guard.set_lease(ANSWER).expect("it is held");
    assert_eq!(
        lost.recv_timeout(LONG).expect("it is called"),
        LostCause::Expired
    );
    assert!(is_lost(&guard));
}

#[test]
fn on_lost_is_called_for_a_guard_that_was_forgotten() {
    let (sender, lost) = mpsc::channel();
    let builder = LockManager::builder_in_memory().lease(ANSWER);
    let locks = builder.on_lost(move |lost| sender.send(lost.cause).expect("it is awaited"));
    let locks = locks.build().expect("it works");
    thread::scope(|scope| {
        scope.spawn(|| {
            let guard = locks.lock("a").expect("locks");
            throughout(2 * ANSWER, || assert!(guard.is_valid()));
            mem::forget(guard);
        });
    });
    assert_eq!(
        lost.recv_timeout(LONG).expect("it is called"),
        LostCause::Expired
    );
    // The hold ends a little before its key.
    assert!(
        locks
            .named("a")
            .try_lock_for(LONG)
            .expect("answers")
            .is_some()
    );
    assert_eq!(locks.stats().lost, 1);
}

#[test]
fn nothing_is_forced_during_an_outage() {
    let (locks, memory) = in_memory();
    let guard = locks.lock("a").expect("locks");
    memory.go_away(MINUTE);
    assert_unavailable(&locks.try_lock("b"));
    assert!(matches!(
        locks.named("a").force_unlock(),
        Err(Error::Unavailable { .. })
    ));
    assert!(guard.is_valid());
}

#[test]
fn a_hold_is_renewed_and_listed_with_what_is_left_of_its_lease() {
    let (locks, _) = in_memory();
    let guard = locks.named("a").lease(ANSWER).lock().expect("locks");
    throughout(3 * ANSWER, || assert!(guard.is_valid()));
    let holder = locks
        .named("a")
        .holder()
        .expect("answers")
        .expect("it is held");
    assert!(
        holder
            .remaining
            .is_some_and(|it| it <= ANSWER && !it.is_zero()),
        "{holder}"
    );
    let [held] = &locks.held()[..] else {
        panic!("it is held once")
    };
    assert!(held.renewals > 0 && held.remaining <= ANSWER, "{held:?}");
    assert_eq!(locks.stats().renewed, u64::from(held.renewals));
}

#[test]
fn managers_in_memory_share_nothing_but_with_their_clones() {
    let (one, _) = in_memory();
    let (two, _) = in_memory();
    let guard = one.lock("a").expect("locks");
    let clone = one.clone();
    let taken = |locks: &LockManager| locks.try_lock("a").expect("answers").is_some();
    thread::scope(|scope| {
        assert!(!scope.spawn(|| taken(&clone)).join().expect("no panic"));
        assert!(scope.spawn(|| taken(&two)).join().expect("no panic"));
    });
    assert!(guard.is_valid());
}

/// If both managers gave their first holds the same token, a thread would take the hold of the one
/// for a hold of the other.
#[test]
fn a_hold_of_another_manager_in_memory_is_somebody_elses() {
    let ((one, _), (two, _)) = (in_memory(), in_memory());
    let held = one.lock("x").expect("locks");
    let parcel = two
        .lock("y")
        .expect("locks")
        .hand_over()
        .expect("hands over");
    assert!(
        two.try_lock("y")
            .expect("no deadlock: this thread does not hold it")
            .is_none()
    );
    // The same number of each, for the same name.
    let (theirs, ours) = (one.lock("z").expect("locks"), two.lock("z").expect("locks"));
    assert_ne!(theirs.token(), ours.token());
    let theirs = theirs.hand_over().expect("hands over");
    assert_lost(
        &thread::scope(|scope| scope.spawn(|| two.adopt(&theirs).map(drop)).join())
            .expect("no panic"),
        LostCause::Taken,
    );
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
        let Err(Error::InvalidOption {
            option: named,
            reason,
            ..
        }) = builder.build()
        else {
            panic!("{option}")
        };
        assert_eq!(named, option);
        assert!(reason.contains("in memory"), "{reason}");
    }
    assert!(
        builder()
            .pool_size(1)
            .prefix("p:")
            .poll_every(SECOND)
            .build()
            .is_ok()
    );
    assert!(matches!(
        builder().lease(Duration::ZERO).build(),
        Err(Error::InvalidOption { .. })
    ));
}

#[test]
fn warn_after_works_in_memory() {
    if !is_alone(module_path!(), "warn_after_works_in_memory") {
        return;
    }
    collect(LevelFilter::Warn);
    let locks = LockManager::builder_in_memory()
        .warn_after(LONG, ANSWER)
        .build()
        .expect("it works");
    let _guard = locks.lock("a").expect("locks");
    eventually(LONG, "a warning", || {
        lines_of("relatch::slow")
            .iter()
            .any(|it| it.contains("lock \"a\""))
    });
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
    assert_eq!(
        elsewhere(Some(first)),
        Some(1),
        "and for those to which it is given"
    );
    assert_eq!(current(), Some(2));
    relatch::with_lock("a", || {
        second.named("a").assert_held().expect("this one has it");
    })
    .expect("locks");
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
