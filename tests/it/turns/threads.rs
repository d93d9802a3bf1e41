//! Threads, guards and panics: who holds what, how deep, and when it is released.

use std::future::{Future, poll_fn};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, panic_any};
use std::sync::Barrier;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use relatch::{Error, Holder, Lock, LockGuard, LockManager, LostCause, Owner, Unlocked};
use relatch_rig::{LONG, Proxy, Server, eventually, within};

use crate::support::connect;

/// The limit of a wait that ends without the lock.
const WAIT: Duration = Duration::from_millis(200);

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(3);

/// How many guards one hold may have.
const MAX_DEPTH: u32 = 1 << 20;

#[test]
fn row_24_reentry_after_the_lease_ran_out_is_lost() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = LockManager::connect(&proxy.url()).expect("connects");
    let brief = locks
        .named("a")
        .lease(Duration::from_millis(100))
        .renew(false);
    let outer = brief.lock().expect("locks");
    let inner = brief.lock().expect("locks again");
    eventually(LONG, "the lease runs out", || !outer.is_valid());
    let sent = proxy.log().len();
    for lost in [
        brief.lock().map(Some),
        brief.try_lock(),
        brief.try_lock_for(WAIT),
        locks.lock("a").map(Some),
    ] {
        assert!(
            matches!(lost, Err(Error::Lost { ref key, cause: LostCause::Expired, .. }) if key == "a"),
            "{lost:?}"
        );
    }
    assert!(
        brief
            .with_lock(|| unreachable!())
            .expect_err("lost")
            .is_lost()
    );
    assert_eq!((outer.depth(), inner.depth()), (2, 2));
    assert_eq!(outer.remaining(), Duration::ZERO);
    assert!(inner.unlock().expect_err("lost").is_lost());
    assert_eq!(proxy.log().len(), sent, "nothing was sent");
    drop(outer);
    let again = brief.lock().expect("a new hold");
    assert_eq!(again.depth(), 1);
}

#[test]
fn row_24_reentry_does_not_take_a_lock_that_another_holds_now() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    let outer = ours
        .named("a")
        .lease(Duration::from_millis(100))
        .renew(false)
        .lock()
        .expect("locks");
    thread::scope(|scope| {
        let (taken, is_taken) = mpsc::channel();
        let (done, is_done) = mpsc::channel::<()>();
        scope.spawn(move || {
            let guard = theirs.lock("a").expect("locks after the lease");
            taken.send(guard.token().to_owned()).expect("awaited");
            let _ = is_done.recv();
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        });
        let token = is_taken.recv().expect("the other holder has the lock");
        assert!(!outer.is_valid());
        assert!(ours.lock("a").expect_err("lost").is_lost());
        assert_eq!(outer.depth(), 1);
        let lost = outer.unlock().expect_err("lost");
        assert!(lost.is_lost(), "{lost}");
        assert_eq!(
            server.get("lock:a"),
            Some(token),
            "the other's key is untouched"
        );
        drop(done);
    });
}

#[derive(Debug, PartialEq)]
struct Payload(u32);

fn payload_of<T>(action: impl FnOnce() -> T) -> Payload {
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
    let payload =
        payload_of(|| locks.with_lock("a", || locks.with_lock("a", || panic_any(Payload(7)))));
    assert_eq!(payload, Payload(7));
    assert_eq!((server.calls("set"), server.calls("evalsha")), (1, 1));
    assert!(!server.exists("lock:a"));
    let payload = payload_of(|| locks.with_lock("a", || panic_any(Payload(8))));
    assert_eq!(payload, Payload(8));
    let payload = payload_of(|| {
        locks.with_lock_result("a", |_| -> Result<(), Error> { panic_any(Payload(9)) })
    });
    assert_eq!(payload, Payload(9));
    assert!(!server.exists("lock:a"));
    assert_eq!(locks.lock("a").expect("locks").depth(), 1);
}

#[test]
fn row_27_a_panic_without_redis_keeps_its_payload_and_does_not_abort() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .response_timeout(WAIT)
        .build()
        .expect("connects");
    let payload = within(WAIT + SLACK, "unwinding", || {
        payload_of(|| {
            locks.with_lock("a", || {
                server.kill();
                panic_any(Payload(7))
            })
        })
    });
    assert_eq!(payload, Payload(7));
    server.restart();
    let guard = locks
        .named("a")
        .wait(LONG)
        .lock()
        .expect("nothing stays broken");
    assert_eq!(guard.depth(), 1);
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
    let server = Server::start();
    let locks = connect(&server);
    for order in [
        [0, 1, 2],
        [0, 2, 1],
        [1, 0, 2],
        [1, 2, 0],
        [2, 0, 1],
        [2, 1, 0],
    ] {
        let mut guards = [(); 3].map(|()| Some(locks.lock("a").expect("locks")));
        server.reset_stats();
        for (at, left) in order.into_iter().zip([2, 1]) {
            let guard = guards[at].take().expect("still there");
            let unlocked = guard.unlock().expect("unlocks");
            assert_eq!(unlocked, Unlocked::StillHeld { depth: left }, "{order:?}");
            assert!(server.exists("lock:a"), "{order:?}");
        }
        assert_eq!(server.total_calls(&["evalsha", "eval"]), 0);
        let last = guards[order[2]].take().expect("still there");
        assert!(last.is_valid() && last.depth() == 1);
        drop(last);
        assert!(!server.exists("lock:a"), "{order:?}");
    }
}

#[test]
fn row_30_an_outer_guard_dropped_first_does_not_release_the_lock() {
    let server = Server::start();
    let locks = connect(&server);
    let outer = locks.lock("a").expect("locks");
    let inner = locks.lock("a").expect("locks again");
    drop(outer);
    thread::scope(|scope| {
        scope.spawn(|| assert!(locks.try_lock("a").expect("answers").is_none()));
    });
    assert_eq!(locks.lock("a").expect("reenters").depth(), 2);
    drop(inner);
    thread::scope(|scope| {
        scope.spawn(|| assert!(locks.try_lock("a").expect("answers").is_some()));
    });
}

#[test]
fn row_31_reentry_beyond_the_greatest_depth_is_an_error() {
    let server = Server::start();
    let lock = connect(&server).named("a").lease(Duration::from_secs(600));
    let first = lock.lock().expect("locks");
    let mut guards: Vec<_> = (1..MAX_DEPTH)
        .map(|_| lock.lock().expect("reenters"))
        .collect();
    assert_eq!(first.depth(), MAX_DEPTH);
    for error in [
        lock.lock().map(Some),
        lock.try_lock(),
        lock.try_lock_for(WAIT),
    ] {
        let is_overflow =
            matches!(&error, Err(Error::DepthOverflow { key, depth: MAX_DEPTH, .. }) if key == "a");
        assert!(is_overflow, "{error:?}");
    }
    assert_eq!(first.depth(), MAX_DEPTH);
    drop(guards.pop());
    guards.push(lock.lock().expect("there is room for one"));
    drop(guards);
    assert!(server.exists("lock:a"));
    assert_eq!(first.unlock().expect("unlocks"), Unlocked::Released);
    assert!(!server.exists("lock:a"));
}

/// Two threads take two locks in different orders. Returns the results of both.
fn deadlock(locks: &LockManager) -> [Result<Result<bool, Error>, Error>; 2] {
    let both_hold = Barrier::new(2);
    let take = |first: &str, second: &str| {
        locks.with_lock_result(first, |outer| {
            both_hold.wait();
            locks.with_lock(second, || outer.is_valid()).map(Ok)
        })
    };
    thread::scope(|scope| {
        let threads = [
            scope.spawn(|| take("a", "b")),
            scope.spawn(|| take("b", "a")),
        ];
        threads.map(|thread| thread.join().expect("no panic"))
    })
}

#[test]
fn row_33_a_deadlock_of_two_closures_is_an_error_for_one_of_them() {
    let server = Server::start();
    let results = deadlock(&connect(&server));
    let [Err(Error::WouldDeadlock { .. }), Ok(Ok(true))] = &results else {
        let [Ok(Ok(true)), Err(Error::WouldDeadlock { .. })] = &results else {
            panic!("{results:?}")
        };
        return;
    };
}

/// A limit for the holds would end it later, by taking locks away.
#[test]
fn row_33_a_deadlock_is_told_and_nothing_is_lost_though_max_hold_would_end_it() {
    let server = Server::start();
    let lease = Duration::from_millis(300);
    let builder = LockManager::builder(&server.url())
        .lease(lease)
        .max_hold(3 * LONG);
    let locks = builder.build().expect("connects");
    let results = deadlock(&locks);
    let told = results
        .iter()
        .filter(|it| matches!(it, Err(Error::WouldDeadlock { .. })))
        .count();
    assert!(
        told == 1 && results.iter().flatten().all(Result::is_ok),
        "{results:?}"
    );
    assert_eq!((locks.stats().acquired, locks.stats().lost), (3, 0));
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
}

#[track_caller]
fn assert_would_deadlock(result: Result<Option<LockGuard>, Error>) {
    let error = result.expect_err("a wait for oneself");
    assert!(
        matches!(&error, Error::WouldDeadlock { key, .. } if key == "a"),
        "{error:?}"
    );
    assert!(error.to_string().contains("\"a\"") && !error.is_timeout());
}

#[test]
fn row_34_a_second_manager_of_the_same_thread_fails_at_once() {
    let server = Server::start();
    let (first, second) = (connect(&server), connect(&server));
    let guard = first.lock("a").expect("locks");
    assert_would_deadlock(within(SLACK, "lock", || second.lock("a").map(Some)));
    assert_would_deadlock(within(SLACK, "lock, waiting", || {
        second.named("a").wait(LONG).lock().map(Some)
    }));
    assert_would_deadlock(within(SLACK, "try_lock_for", || {
        second.named("a").try_lock_for(LONG)
    }));
    let tried = within(SLACK, "try_lock", || second.try_lock("a"));
    assert!(tried.expect("nothing waits").is_none(), "it is busy");
    thread::scope(|scope| {
        let elsewhere = scope.spawn(|| second.named("a").wait(WAIT).lock().map(drop));
        let error = elsewhere.join().expect("no panic").expect_err("plain busy");
        assert!(error.is_timeout(), "{error:?}");
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    drop(second.lock("a").expect("free for the second"));
}

#[test]
fn row_34_a_second_manager_fails_even_behind_other_waiters() {
    let server = Server::start();
    let (first, second) = (connect(&server), connect(&server));
    let guard = first.lock("a").expect("locks");
    thread::scope(|scope| {
        scope.spawn(|| {
            drop(
                second
                    .named("a")
                    .wait(LONG)
                    .lock()
                    .expect("locks in the end"),
            );
        });
        server.reset_stats();
        eventually(LONG, "the other waits", || server.calls("get") > 0);
        let result = second.named("a").wait(4 * SLACK).lock().map(Some);
        drop(guard);
        assert_would_deadlock(result);
    });
}

#[test]
fn row_34_managers_with_different_prefixes_do_not_conflict() {
    let server = Server::start();
    let other = LockManager::builder(&server.bare_url())
        .prefix("other:")
        .build()
        .expect("connects");
    let _guard = connect(&server).lock("a").expect("locks");
    let _another = other.lock("a").expect("another lock");
    assert!(server.exists("lock:a") && server.exists("other:a"));
}

/// For a lock, the holder is the thread, and not the future that runs in it.
#[test]
fn two_futures_of_a_thread_reenter_each_others_lock_unless_it_is_not_reentrant() {
    /// Takes the lock, and keeps it for a turn of the other futures of the thread.
    async fn step(lock: &Lock) -> Result<u32, Error> {
        let guard = lock.lock()?;
        let mut waited = false;
        poll_fn(|_| {
            if mem::replace(&mut waited, true) {
                Poll::Ready(())
            } else {
                Poll::Pending
            }
        })
        .await;
        Ok(guard.depth())
    }
    let both = |lock: &Lock| {
        let [mut one, mut two] = [(); 2].map(|()| Box::pin(step(lock)));
        let mut context = Context::from_waker(Waker::noop());
        assert!(
            one.as_mut().poll(&mut context).is_pending(),
            "it has the lock, and waits for something"
        );
        two.as_mut().poll(&mut context)
    };
    let locks = LockManager::in_memory();
    assert!(
        both(&locks.named("a")).is_pending(),
        "the second one has the lock as well"
    );
    let Poll::Ready(Err(error)) = both(&locks.named("a").reentrant(false)) else {
        panic!("both have it")
    };
    assert!(matches!(error, Error::AlreadyHeld { .. }), "{error:?}");
}
