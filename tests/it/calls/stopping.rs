//! The end: waits that the program stops, and a manager that is shut down.

use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use log::{LevelFilter, Log, Metadata, Record};
use relatch::{Error, LockGuard, LockManager, LockParcel, LostCause, StopHandle, Unlocked};
use relatch_rig::{
    Fault, LONG, Server, SetOnDrop, Worker, eventually, is_alone, role, throughout, time,
};

use crate::support::{
    ANSWER, LATE, MINUTE, PERIOD, Rig, SOON, assert_lost, behind, builder, connect, delete, occupy,
    returns_by, take,
};

#[track_caller]
fn assert_stopped<T>(result: Result<T, Error>, wanted: &str) {
    match result {
        Err(Error::Stopped { key, .. }) if key == wanted => {}
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was taken"),
    }
}

/// Runs `body` in a thread that holds the lock `name` until the returned sender is dropped.
fn held_elsewhere<'s>(
    scope: &'s thread::Scope<'s, '_>,
    locks: &'s LockManager,
    name: &'s str,
) -> (
    mpsc::Sender<()>,
    thread::ScopedJoinHandle<'s, Result<Unlocked, Error>>,
) {
    let (release, released) = mpsc::channel::<()>();
    let (took, taken) = mpsc::channel();
    let thread = scope.spawn(move || {
        let guard = locks.lock(name).expect("locks");
        took.send(()).expect("awaited");
        let _ = released.recv();
        guard.unlock()
    });
    taken.recv().expect("the thread takes it");
    (release, thread)
}

#[test]
fn a_stop_ends_waits_behind_a_thread_and_behind_a_process() {
    let server = Server::start();
    let locks = connect(&server);
    let stop = StopHandle::new();
    occupy(&server, "theirs", MINUTE);
    thread::scope(|scope| {
        let guard = locks.lock("ours").expect("locks");
        let (theirs, ours) = (
            locks.named("theirs").stopped_by(&stop),
            locks.named("ours").stopped_by(&stop),
        );
        let behind_a_process = scope.spawn(move || theirs.lock().map(drop));
        // Only the first waiter of a queue looks now and then by itself.
        let without = behind(scope, || take(&locks, "ours"));
        let behind_a_thread = behind(scope, move || ours.lock().map(drop));
        eventually(LONG, "all wait", || {
            locks.waiting().len() == 3 && server.tracked_keys() > 0
        });
        throughout(PERIOD, || {
            assert!(!behind_a_process.is_finished() && !behind_a_thread.is_finished());
        });
        let stopped = Instant::now();
        stop.stop();
        assert_stopped(behind_a_process.join().expect("no panic"), "theirs");
        assert_stopped(behind_a_thread.join().expect("no panic"), "ours");
        assert!(stopped.elapsed() < SOON, "{:?}", stopped.elapsed());
        throughout(PERIOD, || {
            assert!(!without.is_finished(), "this wait has no such handle");
        });
        assert_eq!(
            guard.unlock().expect("it is held all the time"),
            Unlocked::Released
        );
        without.join().expect("it gets the lock");
    });
}

/// A waiter that cannot reach Redis sleeps for half a second between its attempts.
#[test]
fn a_stop_ends_a_wait_in_an_outage() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .tolerate_outage(MINUTE)
        .build()
        .expect("connects");
    server.kill();
    returns_by(
        Duration::from_millis(100),
        "a wait that is stopped in an outage",
        || {
            let stop = StopHandle::new();
            let waiters: Vec<_> = (0..8)
                .map(|n| {
                    let lock = locks.named(format!("{n}")).stopped_by(&stop);
                    thread::spawn(move || lock.lock().map(drop))
                })
                .collect();
            throughout(Duration::from_millis(1500), || {
                assert!(waiters.iter().all(|it| !it.is_finished()));
            });
            let stopped = Instant::now();
            stop.stop();
            for (n, waiter) in waiters.into_iter().enumerate() {
                assert_stopped(waiter.join().expect("no panic"), &n.to_string());
            }
            stopped.elapsed()
        },
    );
}

#[test]
fn a_stopped_lock_is_refused_and_what_is_held_stays_held() {
    let rig = Rig::new();
    let stop = StopHandle::new();
    let lock = rig.locks.named("a").stopped_by(&stop);
    let guard = lock.lock().expect("locks");
    stop.stop();
    assert!(guard.is_valid());
    assert_eq!(lock.lock().expect("re-enters").depth(), 2);
    let other = rig.locks.named("b").stopped_by(&stop);
    let sent = rig.proxy.log().len();
    assert_stopped(other.lock(), "b");
    assert_stopped(other.try_lock(), "b");
    assert_stopped(other.try_lock_for(SOON), "b");
    assert_stopped(other.with_lock(|| panic!("it has no lock")), "b");
    assert_eq!(rig.proxy.log().len(), sent, "nothing is sent");
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_stopped(lock.lock(), "a");
    rig.assert_works("a"); // The manager's own handle knows nothing of it.
}

#[test]
fn one_handle_stops_waits_of_several_managers_also_if_one_is_gone() {
    let server = Server::start();
    let [one, two, gone] = [(); 3].map(|()| connect(&server));
    let stop = StopHandle::new();
    occupy(&server, "a", MINUTE);
    occupy(&server, "b", MINUTE);
    drop(gone.named("c").stopped_by(&stop));
    drop(gone);
    thread::scope(|scope| {
        let (a, b) = (
            one.named("a").stopped_by(&stop),
            two.named("b").stopped_by(&stop),
        );
        let (a, b) = (
            scope.spawn(move || a.lock().map(drop)),
            scope.spawn(move || b.lock().map(drop)),
        );
        eventually(LONG, "both wait", || server.tracked_keys() == 2);
        let stopped = Instant::now();
        stop.stop();
        assert_stopped(a.join().expect("no panic"), "a");
        assert_stopped(b.join().expect("no panic"), "b");
        assert!(stopped.elapsed() < SOON, "{:?}", stopped.elapsed());
    });
}

#[test]
fn a_shutdown_refuses_locks_ends_waits_and_waits_for_holds() {
    let server = Server::start();
    occupy(&server, "theirs", MINUTE);
    returns_by(
        Duration::from_millis(100),
        "waits that a shutdown ends",
        || {
            let locks = connect(&server);
            let took = thread::scope(|scope| {
                let (release, holder) = held_elsewhere(scope, &locks, "a");
                // Only the first waiter of a queue looks now and then by itself.
                let in_front = behind(scope, || locks.lock("a").map(drop));
                let behind_a_thread = behind(scope, || locks.lock("a").map(drop));
                let behind_a_process = scope.spawn(|| locks.lock("theirs").map(drop));
                eventually(LONG, "all wait", || {
                    locks.waiting().len() == 3 && server.tracked_keys() > 0
                });
                let asked = Instant::now();
                let shutdown = scope.spawn(|| {
                    let left = locks.shutdown(LONG);
                    (left, server.exists("lock:a"))
                });
                assert_stopped(in_front.join().expect("no panic"), "a");
                assert_stopped(behind_a_thread.join().expect("no panic"), "a");
                assert_stopped(behind_a_process.join().expect("no panic"), "theirs");
                let took = asked.elapsed();
                assert_stopped(locks.lock("b"), "b");
                assert_stopped(locks.clone().try_lock("b"), "b");
                assert_stopped(locks.several(["b", "c"]).lock(), "b");
                throughout(PERIOD, || {
                    assert!(!shutdown.is_finished(), "a lock is held");
                });
                drop(release);
                let unlocked = holder
                    .join()
                    .expect("no panic")
                    .expect("nothing was taken away");
                assert_eq!(unlocked, Unlocked::Released);
                let (left, exists) = shutdown.join().expect("no panic");
                assert!(left.is_empty() && !exists, "{left:?}, {exists}");
                took
            });
            assert!(
                locks.shutdown(MINUTE).is_empty(),
                "a second call has nothing to wait for"
            );
            took
        },
    );
}

#[test]
fn a_shutdown_returns_as_soon_as_the_last_lock_is_given_back() {
    let server = Server::start();
    returns_by(LATE, "the shutdown after the release", || {
        let locks = connect(&server);
        thread::scope(|scope| {
            let (release, holder) = held_elsewhere(scope, &locks, "a");
            let shutdown = scope.spawn(|| (locks.shutdown(LONG), Instant::now()));
            throughout(PERIOD, || {
                assert!(!shutdown.is_finished(), "a lock is held");
            });
            drop(release);
            holder.join().expect("no panic").expect("unlocks");
            let released = Instant::now();
            let (left, at) = shutdown.join().expect("no panic");
            assert!(left.is_empty(), "{left:?}");
            at.saturating_duration_since(released)
        })
    });
}

#[test]
fn a_shutdown_lists_what_is_held_at_its_limit() {
    let server = Server::start();
    let locks = connect(&server);
    thread::scope(|scope| {
        let (release, holder) = held_elsewhere(scope, &locks, "a");
        let started = Instant::now();
        let left = locks.shutdown(PERIOD);
        assert!(
            started.elapsed() >= PERIOD && started.elapsed() < PERIOD + SOON,
            "{:?}",
            started.elapsed()
        );
        assert!(
            matches!(&left[..], [held] if held.key == "a" && held.lost.is_none()),
            "{left:?}"
        );
        assert!(server.exists("lock:a"), "it is still held");
        drop(release);
        assert_eq!(
            holder
                .join()
                .expect("no panic")
                .expect("nothing was taken away"),
            Unlocked::Released
        );
    });
}

#[test]
fn a_thread_that_shuts_down_does_not_wait_for_itself() {
    let rig = Rig::new();
    let guard = rig.locks.lock("a").expect("locks");
    let started = Instant::now();
    let left = rig.locks.shutdown(MINUTE);
    assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    assert!(matches!(&left[..], [held] if held.key == "a"), "{left:?}");
    let again = rig.locks.lock("a").expect("what is held can be re-entered");
    assert_eq!(again.depth(), 2);
    drop(again);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// The thread has sent its `SET`, and the answer comes after the limit. A program that exited
/// before that would leave the key behind.
#[test]
fn a_shutdown_waits_for_an_answer_that_may_give_a_lock() {
    for other_is_held in [false, true] {
        let rig = Rig::with(|builder| builder.response_timeout(2 * SOON));
        rig.proxy.on("SET lock:a", Fault::DelayReply(SOON / 2));
        thread::scope(|scope| {
            let locks = &rig.locks;
            let other = other_is_held.then(|| held_elsewhere(scope, locks, "b"));
            let (end, ends) = mpsc::channel::<()>();
            let taker = scope.spawn(move || {
                let taken = locks.lock("a");
                let _ = ends.recv();
                taken.and_then(LockGuard::unlock)
            });
            rig.proxy.wait_fired(1, LONG);
            let mut left: Vec<_> = locks
                .shutdown(Duration::ZERO)
                .into_iter()
                .map(|held| held.key)
                .collect();
            left.sort();
            drop(end);
            let taken = taker.join().expect("no panic");
            drop(other);
            assert_eq!(
                left,
                if other_is_held {
                    vec!["a", "b"]
                } else {
                    vec!["a"]
                }
            );
            assert_eq!(taken.expect("unlocks"), Unlocked::Released);
        });
    }
}

#[test]
fn a_shutdown_waits_for_a_release_under_way() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    rig.proxy
        .on("EVALSHA * 1 lock:a", Fault::DelayCommand(SOON));
    thread::scope(|scope| {
        let (release, holder) = held_elsewhere(scope, &rig.locks, "a");
        drop(release);
        rig.proxy.wait_fired(1, LONG);
        assert!(rig.locks.held().is_empty(), "its release has begun");
        assert!(rig.locks.shutdown(Duration::ZERO).is_empty());
        assert_eq!(rig.value_of("a"), None, "the key is gone");
        assert_eq!(
            holder.join().expect("no panic").expect("unlocks"),
            Unlocked::Released
        );
    });
}

#[test]
fn a_shutdown_can_give_back_what_others_hold_and_they_learn_it() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let other = connect(&rig.server);
    thread::scope(|scope| {
        let (took, taken) = mpsc::channel();
        let (end, ends) = mpsc::channel::<()>();
        let locks = &rig.locks;
        let holder = scope.spawn(move || {
            let guard = locks.lock("a").expect("locks");
            took.send(guard.watch()).expect("awaited");
            let _ = ends.recv();
            (guard.is_valid(), locks.lock("a").map(drop), guard.unlock())
        });
        let watch = taken.recv().expect("it is taken");
        let waiter = scope.spawn(|| take(&other, "a"));
        eventually(LONG, "the other manager waits", || {
            rig.server.tracked_keys() > 0
        });
        let left = rig.locks.shutdown_and_release(Duration::ZERO);
        assert!(
            matches!(&left[..], [held] if held.key == "a" && held.lost.is_none()),
            "{left:?}"
        );
        assert_eq!(watch.wait_lost(Duration::ZERO), Some(LostCause::ShutDown));
        waiter.join().expect("the other manager gets it");
        assert_eq!(rig.locks.stats().lost, 1, "the loss is reported at once");
        drop(end);
        let (valid, again, unlocked) = holder.join().expect("no panic");
        assert!(!valid);
        assert_lost(&again, LostCause::ShutDown);
        assert_lost(&unlocked, LostCause::ShutDown);
    });
    assert_eq!(rig.locks.stats().lost, 1);
    assert!(rig.locks.held().is_empty());
}

/// The claim of the next thread is on its way with the release. If that thread left, its key would
/// stay for a moment in which the program may exit.
#[test]
fn a_shutdown_during_a_hand_off_leaves_no_key() {
    // (A deletion without an answer would be the keeper's, for which a shutdown does not wait.)
    let rig = Rig::with(|builder| builder.local_handoff(MINUTE).response_timeout(LONG));
    thread::scope(|scope| {
        let (release, holder) = held_elsewhere(scope, &rig.locks, "a");
        let next = behind(scope, || rig.locks.lock("a").map(drop));
        rig.proxy
            .on("EVALSHA * 1 lock:a", Fault::DelayCommand(ANSWER / 2));
        drop(release);
        rig.proxy.wait_fired(1, LONG);
        let left = rig.locks.shutdown(LONG);
        let exists = rig.value_of("a").is_some();
        holder.join().expect("no panic").expect("unlocks");
        let _ = next.join().expect("no panic");
        assert!(left.is_empty() && !exists, "{left:?}");
    });
}

/// Only the first waiter's claim is on its way. The others have nothing to wait for.
#[test]
fn a_stop_during_a_hand_off_ends_the_waits_behind_it_at_once() {
    let rig = Rig::with(|builder| builder.local_handoff(MINUTE).response_timeout(LONG));
    let stop = StopHandle::new();
    let lock = || rig.locks.named("a").stopped_by(&stop).lock();
    thread::scope(|scope| {
        let (release, holder) = held_elsewhere(scope, &rig.locks, "a");
        let next = behind(scope, || lock().and_then(LockGuard::unlock));
        let last = behind(scope, || lock().map(drop));
        rig.proxy
            .on("EVALSHA * 1 lock:a", Fault::DelayReply(2 * SOON));
        drop(release);
        rig.proxy.wait_fired(1, LONG);
        let stopped = Instant::now();
        stop.stop();
        assert_stopped(last.join().expect("no panic"), "a");
        assert!(
            stopped.elapsed() < SOON,
            "it waited for the answer to the release"
        );
        holder.join().expect("no panic").expect("unlocks");
        next.join()
            .expect("no panic")
            .expect("its answer brought the lock");
    });
    assert_eq!(rig.value_of("a"), None);
}

/// If the key were deleted first, the holder would trust a lock that another process may have.
#[test]
fn a_lock_that_is_taken_away_is_lost_before_its_key_is_deleted() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    rig.proxy
        .on("EVALSHA * 1 lock:a", Fault::DelayCommand(SOON));
    thread::scope(|scope| {
        let (release, holder) = held_elsewhere(scope, &rig.locks, "a");
        let shutdown = scope.spawn(|| rig.locks.shutdown_and_release(Duration::ZERO).len());
        rig.proxy.wait_fired(1, LONG);
        let lost_first = rig.locks.stats().lost == 1;
        drop(release);
        assert_eq!(shutdown.join().expect("no panic"), 1);
        assert_lost(&holder.join().expect("no panic"), LostCause::ShutDown);
        assert!(
            lost_first,
            "the command was on its way, and the hold was not lost yet"
        );
    });
}

#[test]
fn a_lock_to_be_kept_is_kept_by_a_shutdown_too() {
    let rig = Rig::new();
    let guard = rig
        .locks
        .named("a")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    assert_eq!(rig.locks.shutdown_and_release(Duration::ZERO).len(), 1);
    assert!(!guard.is_valid());
    assert!(rig.server.pttl("lock:a") > 31_000, "the rest of a minute");
    assert_lost(&guard.unlock(), LostCause::ShutDown);
    assert!(rig.server.pttl("lock:a") > 31_000);
}

/// No answer says that the lock is kept. Its key has the old lease then, and nobody deletes it
/// before its time.
#[test]
fn a_lock_that_a_shutdown_could_not_keep_is_not_deleted_before_its_time() {
    let rig = Rig::new();
    let guard = rig
        .locks
        .named("a")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    rig.proxy
        .always("EVALSHA * 1 lock:a * *", Fault::SwallowCommand);
    assert_eq!(rig.locks.shutdown_and_release(Duration::ZERO).len(), 1);
    assert!(rig.proxy.fired() > 0);
    rig.proxy.clear();
    throughout(SOON, || {
        assert!(rig.server.exists("lock:a"), "it was to be kept");
    });
    assert_lost(&guard.unlock(), LostCause::ShutDown);
}

/// In a black hole, the release takes the response timeout, and not that for each lock.
#[test]
fn a_shutdown_in_a_black_hole_ends_by_the_response_timeout() {
    let rig = Rig::new();
    returns_by(ANSWER, "a shutdown in a black hole", || {
        let locks = builder(&rig.proxy.url()).build().expect("connects");
        let guards: Vec<_> = (0..5)
            .map(|n| locks.lock(n.to_string()).expect("locks"))
            .collect();
        rig.proxy.black_hole(true);
        let (took, left) = time(|| locks.shutdown_and_release(Duration::ZERO));
        assert_eq!(left.len(), 5);
        assert!(guards.iter().all(|guard| !guard.is_valid()));
        rig.proxy.black_hole(false);
        rig.proxy.cut_all();
        eventually(LONG, "the keeper deletes them", || {
            (0..5).all(|n| rig.value_of(&n.to_string()).is_none())
        });
        took
    });
}

/// The adopter has no turn in the queue, so the end of all turns is not enough.
#[test]
fn a_shutdown_waits_for_a_lock_that_was_adopted_beside_the_queue() {
    let server = Server::start();
    let (locks, others) = (&connect(&server), connect(&server));
    let parcel = others
        .lock("a")
        .expect("locks")
        .hand_over()
        .expect("hands over");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| locks.lock("a").map(drop));
        eventually(LONG, "it waits", || {
            locks.waiting().len() == 1 && server.tracked_keys() == 1
        });
        let ((took, taken), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
        let adopter = scope.spawn(move || {
            let guard = locks.adopt(&parcel).expect("adopts");
            took.send(()).expect("awaited");
            let _ = ends.recv();
            guard.unlock()
        });
        taken.recv().expect("adopted");
        let shutdown = scope.spawn(|| locks.shutdown(LONG));
        assert_stopped(waiter.join().expect("no panic"), "a");
        throughout(3 * PERIOD, || {
            assert!(!shutdown.is_finished(), "a lock is held");
        });
        drop(end);
        let unlocked = adopter
            .join()
            .expect("no panic")
            .expect("nothing was taken away");
        assert_eq!(unlocked, Unlocked::Released);
        assert!(shutdown.join().expect("no panic").is_empty());
    });
    let parcel = others
        .lock("b")
        .expect("locks")
        .hand_over()
        .expect("hands over");
    assert_stopped(locks.adopt(&parcel), "b");
}

/// Calls `check` while a thread of this process waits for the lock `a`, which `parcel` is of. The
/// manager is shut down by `check`. What it adopts, it has beside the queue.
fn beside_the_queue(check: impl FnOnce(&Rig, &LockParcel)) {
    let rig = Rig::with(|builder| builder.response_timeout(2 * SOON));
    let parcel = connect(&rig.server)
        .lock("a")
        .expect("locks")
        .hand_over()
        .expect("hands over");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| rig.locks.lock("a").map(drop));
        eventually(LONG, "it waits", || {
            rig.locks.waiting().len() == 1 && rig.server.tracked_keys() == 1
        });
        check(&rig, &parcel);
        assert_stopped(waiter.join().expect("no panic"), "a");
    });
}

/// An adoption beside the queue is known to no queue, and the lock may be its adopter's already.
#[test]
fn a_shutdown_waits_for_the_answer_to_an_adoption() {
    beside_the_queue(|rig, parcel| {
        rig.proxy
            .on("EVALSHA * 1 lock:a", Fault::DelayReply(SOON / 2));
        let (end, ends) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let adopter = scope.spawn(move || {
                let adopted = rig.locks.adopt(parcel);
                let _ = ends.recv();
                adopted.and_then(LockGuard::unlock)
            });
            rig.proxy.wait_fired(1, LONG);
            let left = rig.locks.shutdown(Duration::ZERO);
            drop(end);
            assert_eq!(
                adopter.join().expect("no panic").expect("unlocks"),
                Unlocked::Released
            );
            assert!(matches!(&left[..], [held] if held.key == "a"), "{left:?}");
        });
    });
}

#[test]
fn a_shutdown_waits_for_the_release_of_what_was_adopted_beside_the_queue() {
    beside_the_queue(|rig, parcel| {
        let ((took, taken), (end, ends)) = (mpsc::channel(), mpsc::channel::<()>());
        thread::scope(|scope| {
            let adopter = scope.spawn(move || {
                let guard = rig.locks.adopt(parcel).expect("adopts");
                took.send(guard.token().to_owned()).expect("awaited");
                let _ = ends.recv();
                guard.unlock()
            });
            let release = format!("EVALSHA * 1 lock:a {}", taken.recv().expect("adopted"));
            rig.proxy.on(&release, Fault::DelayCommand(SOON / 2));
            drop(end);
            rig.proxy.wait_fired(1, LONG);
            assert!(rig.locks.shutdown(LONG).is_empty());
            assert_eq!(rig.value_of("a"), None, "the release is not executed yet");
            assert_eq!(
                adopter.join().expect("no panic").expect("unlocks"),
                Unlocked::Released
            );
        });
    });
}

#[test]
fn a_detached_hold_can_be_given_back_by_a_shutdown() {
    // The key is deleted by then, also on a busy machine.
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let hold = rig
        .locks
        .lock("a")
        .expect("locks")
        .detach()
        .expect("detaches");
    let left = rig.locks.shutdown_and_release(Duration::ZERO);
    assert!(matches!(&left[..], [held] if held.key == "a"), "{left:?}");
    assert_eq!(rig.value_of("a"), None);
    assert_lost(&hold.attach().map(drop), LostCause::ShutDown);
}

/// A process that is told to end, and leaves nothing behind that others have to wait for.
#[test]
fn a_process_that_shuts_down_before_it_exits_leaves_no_lock() {
    let server = Server::start();
    let mut worker = Worker::spawn("leaver", &[("url", &server.url())]);
    worker.expect_line("holds", LONG);
    assert!(server.exists("lock:a"));
    worker.send("exit");
    assert_eq!(worker.wait(LONG).code(), Some(7));
    assert!(!server.exists("lock:a"), "it is gone before the process is");
}

/// A worker: holds a lock in another thread, and exits when the parent says so.
pub(crate) fn leave_as_told() {
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    let theirs = locks.clone();
    thread::spawn(move || {
        let _guard = theirs.lock("a").expect("locks");
        role::report("holds");
        loop {
            thread::park();
        }
    });
    role::next_line();
    assert_eq!(locks.shutdown_and_release(Duration::ZERO).len(), 1);
    process::exit(7)
}

#[test]
fn a_shutdown_does_not_wait_for_a_hold_that_is_lost() {
    let rig = Rig::new();
    thread::scope(|scope| {
        let (release, holder) = held_elsewhere(scope, &rig.locks, "a");
        let _ = rig
            .locks
            .named("a")
            .force_unlock()
            .expect("answers")
            .expect("it is held");
        let asked = Instant::now();
        let left = rig.locks.shutdown(LONG);
        assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
        assert_eq!(left.len(), 1, "its guard is there");
        drop(release);
        assert_lost(&holder.join().expect("no panic"), LostCause::Deleted);
    });
}

/// Stalls a thread that has its answer, and has not entered its hold yet: in the log, which says
/// then that the thread's wait is over.
struct Stalls {
    is_there: AtomicBool,
    goes_on: AtomicBool,
}

static STALLS: Stalls = Stalls {
    is_there: AtomicBool::new(false),
    goes_on: AtomicBool::new(false),
};

impl Log for Stalls {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() == "relatch::wait" && record.args().to_string().contains(" took lock ") {
            self.is_there.store(true, Ordering::SeqCst);
            eventually(4 * LONG, "the manager is shut down", || {
                self.goes_on.load(Ordering::SeqCst)
            });
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_thread_that_stalls_with_its_answer_gets_no_lock_after_a_shutdown() {
    if !is_alone(
        module_path!(),
        "a_thread_that_stalls_with_its_answer_gets_no_lock_after_a_shutdown",
    ) {
        return;
    }
    log::set_logger(&STALLS).expect("the only logger");
    log::set_max_level(LevelFilter::Debug);
    let shutdowns: [fn(&LockManager) -> bool; 2] = [
        |locks| locks.shutdown_and_release(Duration::ZERO).is_empty(),
        |locks| locks.shutdown(Duration::ZERO).is_empty(),
    ];
    for leaves_nothing in shutdowns {
        for flag in [&STALLS.is_there, &STALLS.goes_on] {
            flag.store(false, Ordering::SeqCst);
        }
        let rig = Rig::new();
        occupy(&rig.server, "a", MINUTE);
        thread::scope(|scope| {
            let _goes_on = SetOnDrop(&STALLS.goes_on);
            let taker = scope.spawn(|| rig.locks.lock("a").map(drop));
            eventually(LONG, "it waits", || rig.locks.waiting().len() == 1);
            delete(&rig.server, "a");
            eventually(LONG, "it has its answer", || {
                STALLS.is_there.load(Ordering::SeqCst)
            });
            assert!(leaves_nothing(&rig.locks));
            STALLS.goes_on.store(true, Ordering::SeqCst);
            assert_stopped(taker.join().expect("no panic"), "a");
        });
        assert_eq!(rig.value_of("a"), None, "the thread has given it back");
    }
}

/// The only connection is in use, by a thread that waits for an answer.
#[test]
#[cfg(target_os = "linux")]
fn a_thread_that_waits_for_a_connection_gets_no_lock_after_a_shutdown() {
    let rig = &Rig::with(|builder| builder.pool_size(1).response_timeout(4 * LONG));
    rig.proxy.on("SET lock:first", Fault::DelayReply(4 * LONG));
    thread::scope(|scope| {
        let first = scope.spawn(|| drop(rig.locks.lock("first")));
        rig.proxy.wait_fired(1, LONG);
        let others = ["a", "b"].map(|name| behind(scope, move || rig.locks.lock(name).map(drop)));
        let down = behind(scope, || rig.locks.shutdown(Duration::ZERO));
        rig.proxy.end_delays();
        let _ = down.join().expect("no panic");
        for (name, other) in ["a", "b"].into_iter().zip(others) {
            assert_stopped(other.join().expect("no panic"), name);
            assert_eq!(
                rig.proxy.commands(&format!("SET lock:{name}")),
                0,
                "nothing is sent"
            );
        }
        first.join().expect("no panic");
    });
}

/// Nobody says that a hold without renewals has run out.
#[test]
fn a_shutdown_without_a_limit_notices_that_a_hold_runs_out() {
    let locks = LockManager::in_memory();
    let hold = locks
        .named("a")
        .renew(false)
        .lease(SOON)
        .lock()
        .expect("locks");
    let others = locks.clone();
    let down = thread::spawn(move || others.shutdown(Duration::MAX).len());
    eventually(LONG, "it returns", || down.is_finished());
    assert_eq!(down.join().expect("no panic"), 1, "its guard is there");
    drop(hold);
}
