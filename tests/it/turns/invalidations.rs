//! Redis's invalidations: the listener is killed again and again, or is refused.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use relatch::LockManager;
use relatch_rig::{LONG, Server, SetOnDrop, Worker, eventually, throughout, time};

use crate::support::{
    MINUTE, SOON, connect, delete, names_right, occupy, renewals, server_for, take, until_tracked,
    without,
};

#[test]
fn no_waiter_hangs_while_listeners_are_killed() {
    let server = Server::start();
    let managers = &[(); 2].map(|()| connect(&server));
    let done = &AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        let end = SetOnDrop(done);
        let turns = |number: usize| {
            let (mut longest, mut turns) = (Duration::ZERO, 0);
            while turns <= 10 || !done.load(Ordering::Relaxed) {
                turns += 1;
                let lock = managers[(number + turns) % 2].named((turns % 2).to_string());
                let (took, guard) = time(|| lock.try_lock_for(LONG));
                longest = longest.max(took);
                drop(guard.expect("answers").expect("the waiter's turn comes"));
            }
            longest
        };
        let threads = [0, 1, 2, 3, 4, 5].map(|number| scope.spawn(move || turns(number)));
        throughout(3 * SOON, || {
            for number in server.listeners() {
                // The connection may be gone by now.
                let _ = server.command(&["CLIENT", "KILL", "ID", &number.to_string()]);
            }
        });
        drop(end);
        let longest = threads.map(|it| it.join().expect("no panic"));
        longest.into_iter().max().expect("threads")
    });
    assert!(longest < 5 * SOON, "{longest:?}: was a wake-up lost?");
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
    occupy(&server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&managers[0], "a"));
        until_tracked(&server, 1);
        delete(&server, "a");
        waiter.join().expect("no panic");
    });
}

/// Checks that the waiters of a user without these rights poll, and that the log says once that the
/// polling begins, and once that it ends.
#[track_caller]
pub(crate) fn assert_polls_without(missing: &[&str]) {
    let (server, url) = server_for(&without(missing));
    let mut waiter = Worker::spawn("waiter", &[("url", &url)]);
    let waits = |waiter: &mut Worker, ready: &dyn Fn(u64)| {
        occupy(&server, "a", MINUTE);
        let before = server.calls("set");
        waiter.send("wait");
        ready(before);
        delete(&server, "a");
        let (took, taken) = time(|| waiter.expect_line("", LONG));
        assert_eq!(taken, "Ok(true)");
        assert!(
            took < LONG / 4,
            "without {missing:?}: {took:?}: woken too late: was a wake-up lost?"
        );
        eventually(LONG, "the lock is given back", || !server.exists("lock:a"));
        waiter.ask("log")
    };
    let complaint = "WARN relatch::listener Redis sends no invalidations, so waiters poll";
    for _ in 0..3 {
        let log = waits(&mut waiter, &|before| {
            eventually(LONG, "the waiter polls", || {
                server.calls("set") >= before + 12
            });
        });
        assert!(
            log.starts_with(complaint) && log.contains("NOPERM"),
            "without {missing:?}: {log:?}"
        );
        assert!(
            missing.iter().any(|right| names_right(&log, right)),
            "does not name {missing:?}: {log:?}"
        );
        assert_eq!(
            log.matches("relatch::listener").count(),
            1,
            "without {missing:?}: {log:?}"
        );
    }
    server.query::<()>(&[&["ACL", "SETUSER", "worker"], missing].concat());
    for _ in 0..2 {
        waits(&mut waiter, &|_| until_tracked(&server, 1));
        // Another thread writes the log.
        eventually(LONG, "the log says so", || {
            let log = waiter.ask("log");
            log.contains("; INFO relatch::listener Redis wakes waiters again")
        });
        let log = waiter.ask("log");
        assert_eq!(
            log.matches("relatch::listener").count(),
            2,
            "without {missing:?}: {log:?}"
        );
    }
}

#[test]
fn row_23_without_the_right_to_client_tracking_waiters_poll() {
    assert_polls_without(&["+client|tracking"]);
}

/// Every retry fails in the same way. So the listener retries rarely, and a retry does not make the
/// keeper renew. A user may lack the right to tracking, or to the key with which the listener tests
/// itself.
#[test]
fn row_23_a_listener_without_the_right_to_tracking_retries_rarely_and_renews_nothing() {
    let no_tracking = without(&["+client|tracking"]);
    let few_keys = [without(&["~lock:*"]), vec!["~lock:a", "~lock:b"]].concat();
    for rights in [no_tracking, few_keys] {
        let (server, url) = server_for(&rights);
        let locks = LockManager::connect(&url).expect("connects");
        let guard = locks.named("b").lease(MINUTE).lock().expect("locks");
        guard.set_lease(MINUTE).expect("extends");
        occupy(&server, "a", MINUTE);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&locks, "a"));
            eventually(LONG, "the waiter polls", || {
                server.calls("set") >= 12 && server.calls("subscribe") > 0
            });
            let (tries, renewed) = (server.calls("subscribe"), renewals(&locks, "b"));
            let since = Instant::now();
            throughout(3 * SOON, || {
                let more = server.calls("subscribe") - tries;
                let most = 1 + since.elapsed().as_secs() / 2;
                assert!(more <= most, "tried {more} times more");
                assert_eq!(renewals(&locks, "b"), renewed, "renewed for nothing");
            });
            delete(&server, "a");
            waiter.join().expect("no panic");
        });
    }
}
