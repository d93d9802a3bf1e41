//! Closures under a lock: whether they run, and what an error says of that.

use relatch::{LockManager, LostCause};

use crate::support::assert_lost;

/// Calls `check` in another thread, which holds nothing.
fn elsewhere<T: Send>(check: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(check).join().expect("no panic"))
}

#[test]
fn try_with_lock_runs_the_closure_under_the_lock_or_not_at_all() {
    let locks = LockManager::in_memory();
    let is_free = || elsewhere(|| locks.try_with_lock("a", || ()).expect("answers").is_some());
    assert_eq!(locks.try_with_lock("a", is_free).expect("runs"), Some(false));
    assert!(is_free(), "and gives it back");
    assert_eq!(locks.named("a").try_with_lock(is_free).expect("runs"), Some(false));
    let guard = locks.lock("a").expect("locks");
    let ran = elsewhere(|| locks.named("a").try_with_lock(|| unreachable!()));
    assert!(ran.expect("busy is no error").is_none());
    assert_eq!(locks.try_with_lock("a", || guard.depth()).expect("re-enters"), Some(2));
    drop(guard);
    let lost = locks.try_with_lock("a", || locks.named("a").force_unlock().map(drop));
    assert_lost(&lost, LostCause::Deleted);
    let _restore = relatch::install_for_test(locks);
    assert_eq!(relatch::try_with_lock("a", || 7).expect("runs"), Some(7));
}
