//! What a lock does is the same with a Redis and in memory: each test here runs over both.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Builder, Error, LockManager, LostCause, StopHandle, Unlocked};
use relatch_rig::{LONG, Server, eventually, within};

use crate::support::{
    ANSWER, LEASE, MINUTE, PERIOD, SOON, assert_lost, delete, lease_left, trusted, until_queued,
};

/// A manager, and its Redis if it has one.
pub(crate) struct Place {
    locks: LockManager,
    server: Option<Server>,
}

type Change = fn(Builder) -> Builder;

impl Place {
    fn on_redis(change: Change) -> Place {
        let server = Server::start();
        let locks = change(LockManager::builder(&server.url()))
            .build()
            .expect("connects");
        Place {
            locks,
            server: Some(server),
        }
    }

    fn in_memory(change: Change) -> Place {
        let locks = change(LockManager::builder_in_memory())
            .build()
            .expect("the options can work");
        Place {
            locks,
            server: None,
        }
    }

    /// Somebody deletes the key of a lock.
    fn lose(&self, name: &str) {
        if let Some(server) = &self.server {
            delete(server, name);
        } else {
            let memory = self.locks.memory().expect("in memory");
            assert!(memory.lose(name, LostCause::Deleted));
        }
    }

    /// Whether another thread could take a lock now.
    fn is_free(&self, name: &str) -> bool {
        thread::scope(|scope| {
            let other = scope.spawn(|| self.locks.try_lock(name).expect("answers").is_some());
            other.join().expect("no panic")
        })
    }
}

/// Makes two tests of each function: over a Redis, and in memory.
macro_rules! over_both {
    ($($name:ident: $change:expr;)*) => {
        mod on_redis {
            use super::*;

            $(#[test] fn $name() { super::$name(&super::Place::on_redis($change)); })*
        }
        mod in_memory {
            use super::*;

            $(#[test] fn $name() { super::$name(&super::Place::in_memory($change)); })*
        }
    };
}

over_both! {
    a_counter_loses_no_update: |it| it;
    threads_get_a_lock_in_the_order_in_which_they_asked: |it| it;
    a_lock_is_free_once_its_last_guard_is_gone: |it| it;
    a_wait_ends_with_its_limit_and_names_the_holder: |it| it;
    a_panic_releases: |it| it;
    a_lock_that_is_not_reentrant_is_held_already: |it| it.reentrant(false);
    two_threads_that_wait_for_each_other_are_told: |it| it;
    a_released_lock_can_stay_taken: |it| it;
    a_lease_ends_by_the_clock: |it| it.renew(false).lease(LEASE);
    a_lease_can_be_extended: |it| it.renew(false);
    a_renewed_hold_outlasts_its_lease: |it| it.lease(3 * SOON).renew_every(PERIOD);
    max_hold_ends_a_hold_that_is_renewed: |it| it.lease(LEASE).max_hold(LEASE);
    a_thread_that_ends_leaves_a_lock_for_a_lease: |it| it.lease(LEASE);
    a_deleted_key_is_a_lost_hold: |it| it;
    a_hold_whose_key_was_deleted_is_found_lost: |it| it.renew(false).lease(MINUTE);
    a_forced_lock_goes_to_the_waiter: |it| it;
    fences_grow: |it| it.fenced(true);
    what_is_held_is_listed_and_counted: |it| it;
    a_parcel_is_adopted_once: |it| it;
    a_parcel_that_nobody_adopts_ends: |it| it;
    several_locks_are_all_taken_or_none: |it| it;
    a_stopped_lock_is_refused_and_what_is_held_stays_held: |it| it;
    a_thread_that_shuts_down_does_not_wait_for_itself: |it| it;
    a_manager_that_is_shut_down_can_give_back_what_is_held: |it| it;
    a_lost_hold_is_told_to_its_watcher_and_to_on_lost: |it| it.on_lost(|lost| {
        assert_eq!(lost.cause, LostCause::Deleted);
        TOLD.lock().expect("no panic").push(lost.key.clone());
    });
}

fn a_counter_loses_no_update(place: &Place) {
    const THREADS: u32 = 4;
    const ROUNDS: u32 = 250;
    let counter = AtomicU32::new(0);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for round in 0..ROUNDS {
                    let guard = place.locks.lock("a").expect("locks");
                    let again = (round % 3 == 0).then(|| place.locks.lock("a").expect("re-enters"));
                    let before = counter.load(Ordering::Relaxed);
                    thread::yield_now();
                    counter.store(before + 1, Ordering::Relaxed);
                    drop((guard, again));
                }
            });
        }
    });
    assert_eq!(counter.into_inner(), THREADS * ROUNDS);
    assert!(place.locks.held().is_empty() && place.is_free("a"));
}

fn threads_get_a_lock_in_the_order_in_which_they_asked(place: &Place) {
    let (guard, order) = (
        place.locks.lock("a").expect("locks"),
        Mutex::new(Vec::new()),
    );
    let (order, locks) = (&order, &place.locks);
    thread::scope(|scope| {
        for number in 0..5 {
            let (sender, thread) = std::sync::mpsc::channel();
            scope.spawn(move || {
                sender
                    .send(relatch::Owner::current().thread)
                    .expect("it is awaited");
                locks
                    .with_lock("a", || order.lock().expect("no panic").push(number))
                    .expect("locks");
            });
            until_queued(thread.recv().expect("it began"));
        }
        guard.unlock().expect("unlocks");
    });
    assert_eq!(*order.lock().expect("no panic"), [0, 1, 2, 3, 4]);
}

fn a_lock_is_free_once_its_last_guard_is_gone(place: &Place) {
    let outer = place.locks.lock("a").expect("locks");
    let inner = place
        .locks
        .try_lock("a")
        .expect("answers")
        .expect("re-enters");
    assert_eq!((outer.token(), inner.depth()), (inner.token(), 2));
    assert_eq!(
        outer.unlock().expect("unlocks"),
        Unlocked::StillHeld { depth: 1 }
    );
    assert!(!place.is_free("a") && place.is_free("b"));
    let holder = place
        .locks
        .named("a")
        .holder()
        .expect("answers")
        .expect("somebody");
    assert_eq!(
        (&*holder.raw, holder.owner()),
        (inner.token(), Some(relatch::Owner::current()))
    );
    assert_eq!(inner.unlock().expect("unlocks"), Unlocked::Released);
    assert!(place.is_free("a"));
    assert!(place.locks.named("a").holder().expect("answers").is_none());
    assert!(matches!(
        place.locks.named("a").assert_held(),
        Err(Error::NotHeld { .. })
    ));
}

fn a_wait_ends_with_its_limit_and_names_the_holder(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let wait = || place.locks.named("a").wait(PERIOD).lock();
        let begun = Instant::now();
        let other = scope.spawn(move || wait().expect_err("it is busy"));
        let Error::Timeout { holder, waited, .. } = other.join().expect("no panic") else {
            panic!()
        };
        assert!(waited >= PERIOD && begun.elapsed() < LONG);
        assert_eq!(holder.map(|it| it.raw).as_deref(), Some(guard.token()));
    });
}

fn a_panic_releases(place: &Place) {
    let panics = || {
        place
            .locks
            .with_lock("a", || panic!("as the test wants it"))
    };
    assert!(catch_unwind(AssertUnwindSafe(panics)).is_err());
    assert!(place.is_free("a") && place.locks.held().is_empty());
    let fails = place.locks.with_lock_result("a", |_| {
        Err::<(), _>(Box::<dyn std::error::Error>::from("no"))
    });
    assert_eq!(fails.expect_err("its own error").to_string(), "no");
}

fn a_lock_that_is_not_reentrant_is_held_already(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    assert!(matches!(
        place.locks.lock("a"),
        Err(Error::AlreadyHeld { .. })
    ));
    assert!(place.locks.named("a").current().is_some() && guard.is_valid());
}

fn two_threads_that_wait_for_each_other_are_told(place: &Place) {
    let a = place.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let (sender, thread) = std::sync::mpsc::channel();
        let other = scope.spawn(move || {
            let b = place.locks.lock("b").expect("locks");
            sender
                .send(relatch::Owner::current().thread)
                .expect("it is awaited");
            let taken = place.locks.lock("a").map(drop);
            b.unlock().expect("unlocks");
            taken
        });
        until_queued(thread.recv().expect("it began"));
        assert!(matches!(
            place.locks.lock("b"),
            Err(Error::WouldDeadlock { .. })
        ));
        a.unlock().expect("unlocks");
        other
            .join()
            .expect("no panic")
            .expect("the other one goes on");
    });
}

fn a_released_lock_can_stay_taken(place: &Place) {
    let guard = place.locks.named("b").keep_at_least(MINUTE).lock();
    let unlocked = guard.expect("locks").unlock();
    assert!(matches!(unlocked, Ok(Unlocked::Kept { .. })));
    assert!(!place.is_free("b"));
    let begun = Instant::now();
    let short = place.locks.named("a").keep_at_least(ANSWER);
    short.with_lock(|| ()).expect("locks");
    drop(within(LONG, "the key expires", || place.locks.lock("a")).expect("locks"));
    let kept = begun.elapsed() + Duration::from_millis(1); // A key lives for whole milliseconds.
    assert!(kept >= ANSWER, "{kept:?}");
}

fn a_lease_ends_by_the_clock(place: &Place) {
    let begun = Instant::now();
    let guard = place.locks.lock("a").expect("locks");
    assert!(guard.remaining() <= trusted(LEASE));
    assert!(guard.is_valid() || begun.elapsed() >= trusted(LEASE));
    thread::scope(|scope| {
        let taken = scope.spawn(|| place.locks.lock("a").map(drop));
        taken.join().expect("no panic").expect("locks");
    });
    assert!(begun.elapsed() >= trusted(LEASE), "{:?}", begun.elapsed());
    assert_lost(&place.locks.lock("a"), LostCause::Expired);
    assert_lost(&guard.unlock(), LostCause::Expired);
}

fn a_lease_can_be_extended(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    assert!(guard.remaining() > MINUTE / 2 && guard.remaining() <= trusted(MINUTE));
    guard.confirm(MINUTE / 2).expect("it is there");
    guard.verify().expect("it is there");
    assert!(matches!(
        guard.ensure(2 * MINUTE),
        Err(Error::InvalidOption { .. })
    ));
    guard.set_lease(MINUTE / 2).expect("extends");
    assert!(
        guard.remaining() <= trusted(MINUTE / 2),
        "a shorter lease counts at once"
    );
    assert!(matches!(
        guard.set_lease(Duration::ZERO),
        Err(Error::InvalidOption { .. })
    ));
}

fn a_renewed_hold_outlasts_its_lease(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    let end = Instant::now() + 3 * SOON;
    eventually(LONG, "the first lease is over", || {
        assert!(guard.is_valid() && !place.is_free("a"));
        Instant::now() > end
    });
    guard.verify().expect("it is there");
    guard.ensure(SOON).expect("it is there");
    assert!(guard.is_valid());
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

fn max_hold_ends_a_hold_that_is_renewed(place: &Place) {
    let begun = Instant::now();
    let guard = place.locks.lock("a").expect("locks");
    assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Expired));
    assert!(begun.elapsed() >= trusted(LEASE), "{:?}", begun.elapsed());
    within(LONG, "its key expires", || {
        eventually(LONG, "it is free", || place.is_free("a"));
    });
    assert_lost(&guard.unlock(), LostCause::Expired);
}

fn a_thread_that_ends_leaves_a_lock_for_a_lease(place: &Place) {
    let begun = Instant::now();
    thread::scope(|scope| {
        scope
            .spawn(|| mem::forget(place.locks.lock("a").expect("locks")))
            .join()
            .expect("no panic");
    });
    let is_over = || begun.elapsed() >= trusted(LEASE);
    assert!(!place.is_free("a") || is_over(), "its lease lasts");
    drop(within(LONG, "the lease ends", || place.locks.lock("a")).expect("locks"));
}

fn a_deleted_key_is_a_lost_hold(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    // From now on, Redis tracks the key.
    guard.confirm(Duration::from_secs(1)).expect("it is there");
    place.lose("a");
    eventually(LONG, "the loss is found", || !guard.is_valid());
    assert!(place.is_free("a"));
    assert_lost(&guard.confirm(Duration::ZERO), LostCause::Deleted);
    assert_lost(&place.locks.lock("a"), LostCause::Deleted);
    assert_lost(&guard.unlock(), LostCause::Deleted);
}

fn a_hold_whose_key_was_deleted_is_found_lost(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    place.lose("a");
    assert_lost(&guard.verify(), LostCause::Deleted);
    assert_lost(&guard.unlock(), LostCause::Deleted);
    place
        .locks
        .lock("a")
        .expect("locks")
        .unlock()
        .expect("unlocks");
}

fn a_forced_lock_goes_to_the_waiter(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let (sender, thread) = std::sync::mpsc::channel();
        let waiter = scope.spawn(move || {
            sender
                .send(relatch::Owner::current().thread)
                .expect("it is awaited");
            place.locks.lock("a").map(drop)
        });
        until_queued(thread.recv().expect("it began"));
        let forced = place
            .locks
            .named("a")
            .force_unlock()
            .expect("answers")
            .expect("somebody had it");
        assert_eq!(forced.raw, guard.token());
        waiter.join().expect("no panic").expect("locks");
    });
    assert_lost(&guard.unlock(), LostCause::Deleted);
    assert!(
        place
            .locks
            .named("a")
            .force_unlock()
            .expect("answers")
            .is_none()
    );
}

fn fences_grow(place: &Place) {
    let mut last = None;
    for name in ["a"; 3] {
        let guard = place.locks.lock(name).expect("locks");
        let fence = guard.fence();
        assert!(fence > last, "{fence:?} after {last:?}");
        let holder = place
            .locks
            .named(name)
            .holder()
            .expect("answers")
            .expect("somebody");
        assert_eq!(holder.fence, fence);
        last = fence;
    }
}

fn what_is_held_is_listed_and_counted(place: &Place) {
    let before = place.locks.stats();
    let [a, b] = ["a", "b"].map(|name| place.locks.lock(name).expect("locks"));
    let again = place.locks.lock("a").expect("re-enters");
    let held = place.locks.held();
    let keys: Vec<_> = held.iter().map(|held| (&*held.key, held.depth)).collect();
    assert_eq!(keys, [("a", 2), ("b", 1)]);
    drop((a, b, again));
    let stats = place.locks.stats();
    assert_eq!(
        (
            stats.acquired - before.acquired,
            stats.reentered - before.reentered
        ),
        (2, 1)
    );
    assert!(place.locks.held().is_empty());
}

fn a_parcel_is_adopted_once(place: &Place) {
    let guard = place.locks.named("a").fenced(true).lock().expect("locks");
    let (fence, parcel) = (guard.fence(), guard.hand_over().expect("hands over"));
    let left = lease_left(&parcel);
    assert!(
        left <= Duration::from_secs(30) && left > Duration::from_secs(15),
        "{left:?}"
    );
    assert!(!place.is_free("a") && place.locks.held().is_empty());
    let adopted = place.locks.adopt(&parcel).expect("adopts");
    assert!(adopted.fence() > fence && !place.is_free("a"));
    thread::scope(|scope| {
        let late = scope.spawn(|| place.locks.adopt(&parcel).map(drop));
        assert_lost(&late.join().expect("no panic"), LostCause::Taken);
    });
    adopted.confirm(Duration::ZERO).expect("it is still ours");
    let hold = adopted.detach().expect("detaches");
    assert!(!place.is_free("a"));
    thread::scope(|scope| {
        scope.spawn(move || drop(hold.attach().expect("attaches")));
    });
    assert!(place.is_free("a"));
    let too_late = place.locks.adopt(&parcel);
    assert!(
        matches!(too_late, Err(Error::NothingToAdopt { .. })),
        "{too_late:?}"
    );
}

fn a_parcel_that_nobody_adopts_ends(place: &Place) {
    let guard = place.locks.named("a").lease(2 * SOON).lock();
    let parcel = guard.expect("locks").hand_over().expect("hands over");
    let next = place
        .locks
        .named("a")
        .try_lock_for(LONG)
        .expect("answers")
        .expect("its lease ends");
    next.unlock().expect("unlocks");
    let adopted = place.locks.adopt(&parcel);
    assert!(
        matches!(adopted, Err(Error::NothingToAdopt { .. })),
        "{adopted:?}"
    );
}

fn several_locks_are_all_taken_or_none(place: &Place) {
    let kept = place
        .locks
        .named("b")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    assert!(matches!(kept.unlock(), Ok(Unlocked::Kept { .. })));
    assert!(
        place
            .locks
            .several(["a", "b"])
            .try_lock()
            .expect("answers")
            .is_none()
            && place.is_free("a")
    );
    let all = place.locks.several(["a", "c"]).lock().expect("locks");
    assert!(!place.is_free("a") && !place.is_free("c"));
    all.confirm(Duration::from_secs(1)).expect("ours");
    all.unlock().expect("unlocks");
    assert!(place.is_free("a") && place.is_free("c"));
}

fn assert_stopped<T>(taken: &Result<T, Error>) {
    assert!(matches!(taken, Err(Error::Stopped { .. })));
}

fn a_stopped_lock_is_refused_and_what_is_held_stays_held(place: &Place) {
    let stop = StopHandle::new();
    let [a, b] = ["a", "b"].map(|name| place.locks.named(name).stopped_by(&stop));
    let guard = a.lock().expect("locks");
    stop.stop();
    assert!(guard.is_valid());
    assert_eq!(a.lock().expect("re-enters").depth(), 2);
    assert_stopped(&b.lock());
    assert_stopped(&b.try_lock());
    assert_stopped(&b.try_lock_for(PERIOD));
    assert_stopped(&b.with_lock(|| panic!("it has no lock")));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_stopped(&a.lock());
    assert!(place.is_free("a"), "this handle is not that of the manager");
}

fn a_thread_that_shuts_down_does_not_wait_for_itself(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    let left = within(LONG, "it", || place.locks.shutdown(2 * MINUTE));
    assert!(matches!(&left[..], [held] if held.key == "a"), "{left:?}");
    let again = place.locks.lock("a").expect("what is held is re-entered");
    drop(again);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_stopped(&place.locks.several(["b", "c"]).lock());
}

fn a_manager_that_is_shut_down_can_give_back_what_is_held(place: &Place) {
    let guard = place.locks.lock("a").expect("locks");
    let hold = place.locks.lock("b").expect("locks").detach();
    assert_eq!(place.locks.shutdown_and_release(Duration::ZERO).len(), 2);
    for name in ["a", "b"] {
        let holder = place.locks.named(name).holder();
        assert!(holder.expect("answers").is_none());
    }
    assert_lost(&guard.unlock(), LostCause::ShutDown);
    let attached = hold.expect("detaches").attach().map(drop);
    assert_lost(&attached, LostCause::ShutDown);
    assert_stopped(&place.locks.lock("a"));
}

/// The keys that `on_lost` was called for, over both stores.
static TOLD: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn a_lost_hold_is_told_to_its_watcher_and_to_on_lost(place: &Place) {
    let name = if place.server.is_some() {
        "on redis"
    } else {
        "in memory"
    };
    let guard = place.locks.lock(name).expect("locks");
    guard.confirm(Duration::ZERO).expect("it is there");
    thread::scope(|scope| {
        let watch = guard.watch();
        let watcher = scope.spawn(move || watch.wait_lost(LONG));
        place.lose(name);
        assert_eq!(watcher.join().expect("no panic"), Some(LostCause::Deleted));
    });
    let told = || {
        TOLD.lock()
            .expect("no panic")
            .iter()
            .filter(|key| *key == name)
            .count()
    };
    let both = || (told(), place.locks.stats().lost);
    eventually(LONG, "on_lost is called, and it is counted", || {
        both() == (1, 1)
    });
    assert_lost(&guard.unlock(), LostCause::Deleted);
    assert_eq!(both(), (1, 1));
}
