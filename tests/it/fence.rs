//! Fencing tokens: each hold's is larger than that of every earlier hold, whatever happens to the
//! counter.

use relatch::{LockManager, Unlocked};
use relatch_rig::Server;

use crate::support::connect;

/// The counter of the lock `a`.
const COUNTER: &str = "lock:fence:{lock:a}";

/// Takes the lock `a` and releases it; returns its fence.
#[track_caller]
fn fence_of_a_turn(locks: &LockManager) -> u64 {
    let guard = locks.named("a").fenced(true).lock().expect("locks");
    let fence = guard.fence();
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    fence
}

#[test]
fn each_hold_has_a_larger_fence_and_reentry_keeps_it() {
    let server = Server::start();
    let locks = connect(&server);
    let first = fence_of_a_turn(&locks);
    let lock = locks.named("a").fenced(true);
    let outer = lock.lock().expect("locks");
    assert!(outer.fence() > first && first > 0, "{} after {first}", outer.fence());
    assert_eq!(server.get(COUNTER), Some(outer.fence().to_string()));
    let inner = lock.lock().expect("locks again");
    assert_eq!(inner.fence(), outer.fence());
    assert_eq!(locks.lock("a").expect("locks again").fence(), outer.fence());
    assert_eq!(locks.held()[0].fence, outer.fence());
    assert_eq!(lock.holder().expect("answers").expect("it is held").fence(), Some(outer.fence()));
    assert_eq!(locks.lock("b").expect("locks").fence(), 0);
}
