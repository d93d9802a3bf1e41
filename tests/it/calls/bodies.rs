//! Closures under a lock: whether they run, and what an error says of that.

use std::time::Duration;

use relatch::{DetachedHold, Error, LockGuard, LockManager, LostCause};

use crate::support::assert_lost;

/// Nobody in this thread has the lock `name` until the result is dropped.
fn busy(locks: &LockManager, name: &str) -> DetachedHold {
    let guard = locks.lock(name).expect("locks");
    guard.detach().expect("detaches")
}

/// Calls `check` in another thread, which holds nothing.
fn elsewhere<T: Send>(check: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"))
}

#[test]
fn try_with_lock_runs_the_closure_under_the_lock_or_not_at_all() {
    let locks = LockManager::in_memory();
    let is_free = || elsewhere(|| locks.try_with_lock("a", || ()).expect("answers").is_some());
    assert_eq!(
        locks.try_with_lock("a", is_free).expect("runs"),
        Some(false)
    );
    assert!(is_free(), "and gives it back");
    assert_eq!(
        locks.named("a").try_with_lock(is_free).expect("runs"),
        Some(false)
    );
    let guard = locks.lock("a").expect("locks");
    let ran = elsewhere(|| locks.named("a").try_with_lock(|| unreachable!()));
    assert!(ran.expect("busy is no error").is_none());
    assert_eq!(
        locks
            .try_with_lock("a", || guard.depth())
            .expect("re-enters"),
        Some(2)
    );
    drop(guard);
    let lost = locks.try_with_lock("a", || locks.named("a").force_unlock().map(drop));
    assert_lost(&lost, LostCause::Deleted);
    let _restore = relatch::install_for_test(locks);
    assert_eq!(relatch::try_with_lock("a", || 7).expect("runs"), Some(7));
}

/// An error type of a program.
#[derive(Debug)]
struct Failure(Error);

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure(error)
    }
}

#[test]
fn an_error_of_a_lock_that_was_not_taken_says_that_no_body_ran() {
    let locks = LockManager::in_memory();
    let _held = busy(&locks, "a");
    locks
        .with_lock("b", || ())
        .expect("a closure that ran before changes nothing");
    let brief = locks.named("a").wait(Duration::from_millis(1));
    let error = brief.with_lock(|| unreachable!()).expect_err("busy");
    assert!(error.is_timeout() && !error.body_ran(), "{error:?}");
    let error = brief
        .with_lock_result(|_| -> Result<(), Failure> { unreachable!() })
        .expect_err("busy");
    assert!(!error.0.body_ran(), "{error:?}");
    let error = brief.lock().expect_err("busy");
    assert!(!error.body_ran(), "there is none: {error:?}");
    locks
        .memory()
        .expect("in memory")
        .go_away(Duration::from_secs(60));
    let away = locks.named("c").wait(Duration::from_millis(1));
    let error = away.with_lock(|| unreachable!()).expect_err("no answer");
    assert!(error.is_redis_failure() && !error.body_ran(), "{error:?}");
}

/// The answer to a worker's or a web handler's question must not change on the way to it.
#[test]
fn what_an_error_says_of_work_is_the_same_later_and_in_another_thread() {
    let locks = LockManager::in_memory();
    let _held = busy(&locks, "b");
    let brief = |key: &str| {
        let lock = locks.named(key).wait(Duration::from_millis(1));
        lock.with_lock(|| ())
    };
    let all: Vec<_> = ["a", "b", "c"].map(brief).into();
    let busy = all[1].as_ref().expect_err("somebody has it");
    assert!(busy.is_timeout() && !busy.body_ran(), "{busy:?}");
    let from_a_worker = elsewhere(|| brief("b").expect_err("busy"));
    assert!(!from_a_worker.body_ran(), "{from_a_worker:?}");
}

/// A set that is given back whole leaves no work behind.
#[test]
fn the_locks_of_a_set_that_was_not_taken_count_as_no_work() {
    let locks = LockManager::in_memory();
    let _held = busy(&locks, "b");
    let set = locks
        .several(["a", "b"])
        .options(|lock| lock.wait(Duration::from_millis(1)));
    let error = set.lock().expect_err("b is busy");
    assert!(error.is_timeout() && !error.body_ran(), "{error:?}");
    let _outer = locks.lock("outer").expect("locks");
    assert!(set.lock().expect_err("b is busy").body_ran());
}

/// A program that has a fake in place of the lock needs the errors, too.
#[test]
fn a_program_makes_the_errors_that_its_fake_returns() {
    let busy = Error::Timeout {
        key: "a".to_owned(),
        waited: Duration::from_secs(5),
        holder: None,
        held: Vec::new(),
        source: None,
    };
    assert!(busy.is_timeout() && busy.is_retryable() && !busy.body_ran());
    let lost = Error::Lost {
        key: "a".to_owned(),
        cause: LostCause::Deleted,
    };
    assert!(lost.is_lost() && lost.body_ran());
}

/// A program may do without closures.
#[test]
fn an_error_that_comes_past_a_guard_says_that_work_may_be_done() {
    let locks = LockManager::in_memory();
    let _held = busy(&locks, "busy");
    let busy = || {
        locks
            .named("busy")
            .wait(Duration::from_millis(1))
            .lock()
            .map(drop)
    };
    let under_a_guard = || {
        let _guard = locks.lock("a")?;
        busy()
    };
    assert!(under_a_guard().expect_err("busy").body_ran());
    let under_a_set = || {
        let _guard = locks.several(["a", "b"]).lock()?;
        busy()
    };
    assert!(under_a_set().expect_err("busy").body_ran());
    // Calls that take no lock, or that fail before they ask.
    let parcel = locks.lock("b").expect("locks").hand_over();
    let parcel = parcel.expect("hands over");
    let guard = locks.lock("a").expect("locks");
    let memory = locks.memory().expect("in memory");
    memory.go_away(Duration::from_secs(60));
    let failed = [
        guard.confirm(Duration::from_secs(1)),
        locks.named("c").holder().map(drop),
        locks.adopt(&parcel).map(drop),
    ];
    let _ = locks.shutdown(Duration::ZERO);
    let stopped = [locks.lock("c").map(drop)];
    for error in failed.into_iter().chain(stopped) {
        let error = error.expect_err("no answer, or stopped");
        assert!(error.body_ran(), "{error:?}");
    }
}

#[test]
fn the_error_of_a_release_says_that_work_may_be_done() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").expect("locks");
    let set = locks.several(["b", "c"]).lock().expect("locks");
    let hold = busy(&locks, "d");
    let memory = locks.memory().expect("in memory");
    for key in ["a", "b", "d"] {
        assert!(memory.lose(key, LostCause::Deleted));
    }
    for error in [
        hold.unlock().map(drop),
        set.unlock(),
        guard.unlock().map(drop),
    ] {
        let error = error.expect_err("lost");
        assert!(error.is_lost() && error.body_ran(), "{error:?}");
    }
    let guard = locks.lock("a").expect("locks");
    memory.go_away(Duration::from_secs(60));
    let error = guard.unlock().expect_err("no answer");
    assert!(
        matches!(error, Error::Unconfirmed { .. }) && error.body_ran(),
        "{error:?}"
    );
}

/// The program's own type is between the two locks, and the error in it is right.
#[test]
fn an_error_that_comes_out_of_a_body_says_that_it_ran() {
    let locks = LockManager::in_memory();
    let _held = busy(&locks, "inner");
    let inner = || {
        locks
            .named("inner")
            .wait(Duration::from_millis(1))
            .with_lock(|| unreachable!())
    };
    let body = |_: &LockGuard| -> Result<(), Failure> { Err(inner().expect_err("busy").into()) };
    let Failure(error) = locks.with_lock_result("a", body).expect_err("busy");
    assert!(
        error.is_timeout() && error.key() == Some("inner") && error.body_ran(),
        "{error:?}"
    );
    let error = locks
        .with_lock("a", inner)
        .expect("the outer one is well")
        .expect_err("busy");
    assert!(error.body_ran(), "{error:?}");
    let error = locks
        .several(["a", "b"])
        .with_lock_result(|_| inner())
        .expect_err("busy");
    assert!(error.body_ran(), "{error:?}");
    // A closure that panics has begun, too.
    let mut error = None;
    let fails = std::panic::AssertUnwindSafe(|| {
        locks.with_lock("a", || {
            error = inner().err();
            panic!("in the closure");
        })
    });
    assert!(std::panic::catch_unwind(fails).is_err());
    assert!(error.expect("busy").body_ran());
    let error = inner().expect_err("busy");
    assert!(!error.body_ran(), "no closure runs: {error:?}");
}

/// While a thread has a guard of a lost lock, work under that lock has begun.
#[test]
fn a_loss_says_that_work_may_be_done() {
    let locks = LockManager::in_memory();
    let lose = |key: &str| locks.named(key).force_unlock().map(drop);
    let error = locks.with_lock("a", || lose("a")).expect_err("lost");
    assert!(error.is_lost() && error.body_ran(), "{error:?}");
    let guard = locks.lock("a").expect("locks");
    lose("a").expect("answers");
    for key in ["a", "b"] {
        let error = locks.with_lock(key, || unreachable!()).expect_err("lost");
        assert!(error.is_lost() && error.body_ran(), "{error:?}");
    }
    drop(guard);
    let outer = locks.lock("a").expect("locks");
    let error = locks
        .with_lock("b", || lose("a"))
        .expect_err("the outer one is lost");
    assert!(
        matches!(error, Error::OuterLost { .. }) && error.body_ran(),
        "{error:?}"
    );
    drop(outer);
}

/// An outer lock of the same name can only be that of another manager.
#[test]
fn the_loss_of_an_outer_lock_of_the_same_name_says_whose_it_is() {
    let [ours, theirs] = [(); 2].map(|()| LockManager::in_memory());
    let _outer = theirs.lock("a").expect("locks");
    theirs
        .named("a")
        .force_unlock()
        .expect("answers")
        .expect("it was held");
    let said = |key: &str| {
        ours.lock(key)
            .expect_err("the outer one is lost")
            .to_string()
    };
    assert_eq!(
        said("a"),
        r#"lock "a", which this thread holds through another LockManager, was lost: its key was deleted"#
    );
    assert_eq!(
        said("b"),
        r#"lock "a", which this thread holds around lock "b", was lost: its key was deleted"#
    );
}
