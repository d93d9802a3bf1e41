//! Threads, guards and panics: who holds what, how deep, and when it is released.

use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::time::Duration;

use relatch::{Error, Holder, Lock, LockGuard, LockManager, Owner, Unlocked};
use relatch_rig::{LONG, Server, within};

use crate::support::connect;

/// How many guards one hold may have.
const MAX_DEPTH: u32 = 1 << 20;

/// The payload with which an action panics.
fn payload_of<T>(action: impl FnOnce() -> T) -> u32 {
    let Err(payload) = catch_unwind(AssertUnwindSafe(action)) else {
        panic!("the action did not panic");
    };
    *payload.downcast().expect("the payload survives")
}

#[test]
fn row_27_a_panic_in_a_closure_releases_once() {
    let server = Server::start();
    let locks = connect(&server);
    locks.with_lock("a", || ()).expect("runs"); // Redis knows the script now.
    server.reset_stats();
    let nested = || locks.with_lock("a", || locks.with_lock("a", || panic_any(7_u32)));
    assert_eq!(payload_of(nested), 7);
    assert_eq!((server.calls("set"), server.calls("evalsha")), (1, 1));
    assert!(!server.exists("lock:a"));
    let body = |_: &LockGuard| -> Result<(), Error> { panic_any(9_u32) };
    assert_eq!(payload_of(|| locks.with_lock_result("a", body)), 9);
    assert!(!server.exists("lock:a"));
    assert_eq!(locks.lock("a").expect("locks").depth(), 1);
}

#[test]
fn row_27_a_panic_without_redis_keeps_its_payload_and_does_not_abort() {
    let server = Server::start();
    let limit = Duration::from_millis(200);
    let builder = LockManager::builder(&server.url()).response_timeout(limit);
    let locks = builder.build().expect("connects");
    let body = || {
        server.kill();
        panic_any(7_u32)
    };
    let unwinds = || payload_of(|| locks.with_lock("a", body));
    assert_eq!(within(LONG / 4, "unwinding", unwinds), 7);
    server.restart();
    let guard = locks.named("a").wait(LONG).lock();
    assert_eq!(guard.expect("nothing stays broken").depth(), 1);
}

/// Whether a type implements a marker trait, `Send` or `Sync`. If the bound holds, the inherent
/// constant wins over the trait's.
macro_rules! is {
    ($type:ty: $marker:path) => {{
        #[allow(dead_code, reason = "used where the bound does not hold")]
        trait Otherwise {
            const HOLDS: bool = false;
        }
        impl<T> Otherwise for T {}
        #[allow(dead_code, reason = "named only")]
        struct Probe<T>(std::marker::PhantomData<T>);
        #[allow(dead_code, reason = "used where the bound holds")]
        impl<T: $marker> Probe<T> {
            const HOLDS: bool = true;
        }
        <Probe<$type>>::HOLDS
    }};
}

const _: () = {
    assert!(
        is!(u8: Send) && !is!(*const u8: Send),
        "the macro distinguishes"
    );
    assert!(
        !is!(LockGuard: Send) && !is!(LockGuard: Sync),
        "a guard counts in its thread's map"
    );
    assert!(is!(LockManager: Send) && is!(LockManager: Sync));
    assert!(is!(Lock: Send) && is!(Lock: Sync));
    assert!(is!(Error: Send) && is!(Error: Sync));
    assert!(is!(Owner: Send) && is!(Owner: Sync));
    assert!(is!(Holder: Send) && is!(Holder: Sync));
};

#[test]
fn row_29_a_guard_is_not_send() {
    // The constant above asserts this at compile time.
    assert!(!is!(LockGuard: Send) && !is!(LockGuard: Sync));
}

#[test]
fn row_30_guards_can_be_dropped_in_any_order() {
    let locks = LockManager::in_memory();
    for (first, second) in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)] {
        let mut guards = Vec::from([(); 3].map(|()| locks.lock("a").expect("locks")));
        for (at, depth) in [(first, 2), (second, 1)] {
            let unlocked = guards.remove(at).unlock().expect("unlocks");
            assert_eq!(unlocked, Unlocked::StillHeld { depth });
        }
        let last = guards.remove(0);
        assert!(last.is_valid() && last.depth() == 1);
        assert_eq!(last.unlock().expect("unlocks"), Unlocked::Released);
    }
}

#[test]
fn row_31_reentry_beyond_the_greatest_depth_is_an_error() {
    let lock = LockManager::in_memory().named("a");
    let first = lock.lock().expect("locks");
    let mut guards: Vec<_> = (1..MAX_DEPTH)
        .map(|_| lock.lock().expect("reenters"))
        .collect();
    assert_eq!(first.depth(), MAX_DEPTH);
    for error in [
        lock.lock().map(Some),
        lock.try_lock(),
        lock.try_lock_for(LONG),
    ] {
        let is_overflow =
            matches!(&error, Err(Error::DepthOverflow { key, depth: MAX_DEPTH, .. }) if key == "a");
        assert!(is_overflow, "{error:?}");
    }
    drop(guards.pop());
    guards.push(lock.lock().expect("there is room for one"));
    drop(guards);
    assert_eq!(first.unlock().expect("unlocks"), Unlocked::Released);
}
