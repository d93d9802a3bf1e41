//! Several locks at a time, and a lock inside of one that is lost. What waits, outages and lost
//! answers do to them: `src/simulation/rows/sets.rs`.

use std::thread;
use std::time::Duration;

use relatch::{Error, LockGuard, LockManager, LostCause, MemoryControls, Unlocked};

use crate::support::{MINUTE, assert_lost};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn in_memory() -> (LockManager, MemoryControls) {
    let locks = LockManager::in_memory();
    let memory = locks.memory().expect("it is in memory");
    (locks, memory)
}

fn is_free(locks: &LockManager, name: &str) -> bool {
    locks.named(name).holder().expect("answers").is_none()
}

#[test]
fn the_options_of_a_set_are_those_of_each_of_its_locks() {
    let ((locks, _), (elsewhere, _)) = (in_memory(), in_memory());
    let set = locks.several(["c", "a", "b", "a"]).options(|_| {
        let other = elsewhere.named("x").fenced(true);
        other.lease(4 * MINUTE).reentrant(false)
    });
    let guard = set.lock().expect("locks");
    let keys: Vec<_> = guard.keys().collect();
    assert_eq!(keys, NAMES, "sorted, and each once");
    assert!(guard.remaining() > 3 * MINUTE);
    guard.ensure(MINUTE).expect("held");
    guard.confirm(MINUTE).expect("held");
    for name in NAMES {
        assert!(guard.fence(name).is_some());
        assert!(locks.named(name).assert_held().is_ok());
        assert!(elsewhere.named(name).assert_held().is_err());
    }
    assert_eq!(guard.fence("d"), None);
    assert!(matches!(set.try_lock(), Err(Error::AlreadyHeld { .. })));
    guard.unlock().expect("unlocks");
    assert_eq!(set.with_lock(|| locks.held().len()).expect("locks"), 3);
    let counted = set.with_lock_result(|guard| Ok::<_, Error>(guard.keys().count()));
    assert_eq!(counted.expect("locks"), 3);
    let busy = locks.lock("b").expect("locks").detach();
    assert_eq!(set.try_with_lock(|| ()).expect("answers"), None);
    drop(busy);
    assert_eq!(set.try_with_lock(|| 7).expect("answers"), Some(7));
    assert!(NAMES.iter().all(|name| is_free(&locks, name)));
}

#[test]
fn no_key_or_too_many_are_refused() {
    let (locks, memory) = in_memory();
    memory.go_away(MINUTE); // Nobody is asked.
    let none: [&str; 0] = [];
    let many: Vec<_> = (0..65).map(|n| n.to_string()).collect();
    for refused in [
        locks.several(none).lock().map(drop),
        locks.several(&many).with_lock(|| ()),
    ] {
        assert!(matches!(refused, Err(Error::InvalidOption { .. })));
    }
    let refused = locks.several(["a", ""]).try_lock();
    assert!(matches!(refused, Err(Error::InvalidKey { .. })));
    memory.go_away(Duration::ZERO);
    drop(locks.several(&many[..64]).lock().expect("locks"));
}

#[test]
fn what_the_thread_has_already_is_entered_again() {
    let (locks, _) = in_memory();
    let b = locks.lock("b").expect("locks");
    let all = locks.several(NAMES).lock().expect("locks");
    assert_eq!(b.depth(), 2);
    all.unlock().expect("unlocks");
    assert!(b.depth() == 1 && is_free(&locks, "a"));
    // Only the last guard releases: here that is the set's.
    let all = locks.several(NAMES).lock().expect("locks");
    let unlocked = b.unlock().expect("unlocks");
    assert_eq!(unlocked, Unlocked::StillHeld { depth: 1 });
    drop(all);
    assert!(is_free(&locks, "b"));
}

/// A sort that is not stable leaves a few names in their order, and not so many. The fences of the
/// locks in memory have one counter, so they show in which order the locks were taken.
#[test]
fn many_names_of_which_the_thread_holds_some_are_taken_in_order() {
    let (locks, _) = in_memory();
    let names: Vec<_> = (100..160).map(|n| n.to_string()).collect();
    let fenced = |name: &String| locks.named(name).fenced(true).lock().expect("locks");
    let before: Vec<_> = names.iter().step_by(7).map(fenced).collect();
    let all = locks.several(&names).options(|lock| lock.fenced(true));
    let all = all.lock().expect("locks");
    let held: Vec<_> = before.iter().filter_map(LockGuard::fence).collect();
    let fences: Vec<_> = names.iter().filter_map(|name| all.fence(name)).collect();
    assert_eq!(fences.len(), names.len());
    let taken: Vec<_> = fences.into_iter().filter(|it| !held.contains(it)).collect();
    assert!(taken.is_sorted(), "{taken:?}");
}

/// All, or none: what the thread had before is kept if it wanted so, and not because of a set that
/// it did not get.
#[test]
fn a_set_that_cannot_be_had_leaves_the_outer_hold_to_be_kept() {
    for is_kept in [true, false] {
        let (locks, _) = in_memory();
        let keeps = |it: bool| if it { MINUTE } else { Duration::ZERO };
        let outer = locks.named("a").keep_at_least(keeps(is_kept));
        let outer = outer.lock().expect("locks");
        let set = locks.several(["a", "b"]);
        let set = set.options(|lock| lock.keep_at_least(keeps(!is_kept)));
        let busy = locks.lock("b").expect("locks").detach();
        assert!(set.try_lock().expect("answers").is_none(), "`b` is busy");
        let unlocked = outer.unlock().expect("unlocks");
        assert_eq!(matches!(unlocked, Unlocked::Kept { .. }), is_kept);
        drop(busy);
    }
}

#[test]
fn a_thread_that_has_lost_a_lock_is_told_when_it_takes_another_one() {
    let (locks, memory) = in_memory();
    let outer = locks.lock("outer").expect("locks");
    let held = locks.lock("held").expect("locks");
    assert!(memory.lose("outer", LostCause::Deleted));
    memory.go_away(MINUTE); // Nobody is asked.
    let again = locks.with_lock("held", || ());
    again.expect("what the thread holds already, it can enter again");
    for taken in [
        locks.lock("inner").map(drop),
        locks.try_lock("inner").map(drop),
        locks.with_lock("inner", || panic!("it runs without the outer lock")),
        locks.several(["inner", "other"]).lock().map(drop),
    ] {
        let is_told = matches!(
            &taken,
            Err(Error::OuterLost { key, outer, cause: LostCause::Deleted, .. })
                if key == "inner" && outer == "outer"
        );
        assert!(is_told && taken.is_err_and(|it| it.is_lost()));
    }
    memory.go_away(Duration::ZERO);
    let elsewhere = || {
        let taken = locks.with_lock("inner", || ());
        taken.expect("nothing is around it");
    };
    thread::scope(|scope| scope.spawn(elsewhere).join().expect("no panic"));
    drop((held, outer));
    elsewhere();
}

#[test]
fn a_release_says_that_a_lock_around_it_was_lost_meanwhile() {
    let (locks, memory) = in_memory();
    let take = |name: &str| locks.lock(name).expect("locks");
    let lose = || assert!(memory.lose("outer", LostCause::Deleted));
    let assert_told = |it: Result<(), Error>| {
        assert!(matches!(&it, Err(Error::OuterLost { outer, .. }) if outer == "outer"));
    };
    let outer = take("outer");
    assert_told(locks.with_lock("inner", lose));
    assert!(is_free(&locks, "inner"), "it is released");
    drop(outer);
    // A lock that was taken later is no lock around it. Neither is one whose guard is gone.
    let (first, second) = (take("first"), take("outer"));
    lose();
    assert_eq!(first.unlock().expect("unlocks"), Unlocked::Released);
    drop(second);
    // One lock of a set was taken before the outer one, and is not given back with the set. That
    // the others' releases have no answer does not hide the loss.
    let (_first, outer) = (take("y"), take("outer"));
    let inner = locks.several(["x", "y"]).lock().expect("locks");
    lose();
    memory.go_away(MINUTE);
    assert_told(inner.unlock());
    assert_lost(&outer.unlock(), LostCause::Deleted);
}
