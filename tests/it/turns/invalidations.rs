//! Redis's invalidations: a listener that is lost and reconnects, is refused, or receives nothing;
//! and losses that are reported at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{Error, LockManager, LostCause, Unlocked};
use relatch_rig::rights::{invalidation_rights, least_rights};
use relatch_rig::{
    Fault, LONG, Server, SetOnDrop, Worker, eventually, server_version, throughout, time,
    unique_key,
};

use crate::support::{
    ANSWER, INJURIES, LISTENING, MINUTE, Rig, SOON, assert_lost, connect, delete, names_right,
    occupy, redis_connection, renewals, renewals_of, returns_by, server_for, take, tracked_hold,
    until_tracked, without,
};

/// Waits until there is a listener's connection other than `before`, and returns its id.
#[track_caller]
fn listener(server: &Server, before: Option<u64>) -> u64 {
    let mut found = None;
    eventually(LONG, "there is a listener", || {
        found = server
            .listeners()
            .into_iter()
            .find(|number| Some(*number) != before);
        found.is_some()
    });
    found.expect("just found")
}

fn kill(server: &Server, number: u64) {
    // The connection may be gone by now.
    let _ = server.command(&["CLIENT", "KILL", "ID", &number.to_string()]);
}

/// Checks that a thread can wait for a lock without polling, and is woken.
#[track_caller]
fn assert_hears(server: &Server, locks: &LockManager) {
    let name = &unique_key("tracked");
    occupy(server, name, MINUTE);
    let asked = server.calls("pttl");
    thread::scope(|scope| {
        let waiter = scope.spawn(move || take(locks, name));
        // (A new listener's own key may be tracked for a moment, so keys alone say nothing.)
        eventually(LONG, "the waiter waits for an invalidation", || {
            server.calls("pttl") > asked
                && server.tracked_keys() > 0
                && server.redirects_invalidations()
        });
        // (A new listener wakes all waiters, so a waiter may ask once more.)
        eventually(LONG, "the waiter does not poll", || {
            let asked = server.calls("pttl");
            throughout(ANSWER, || ());
            server.calls("pttl") == asked
        });
        let deleted = Instant::now();
        delete(server, name);
        let took = waiter.join().expect("no panic") - deleted;
        assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
    });
}

#[test]
fn a_waiter_is_woken_though_its_listener_was_killed() {
    let server = Server::start();
    let locks = connect(&server);
    for free_at_once in [false, true, false] {
        let name = &unique_key("a");
        occupy(&server, name, MINUTE);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&locks, name));
            until_tracked(&server, 1);
            let was = listener(&server, None);
            kill(&server, was);
            if !free_at_once {
                listener(&server, Some(was));
            }
            let deleted = Instant::now();
            delete(&server, name);
            let took = waiter.join().expect("no panic") - deleted;
            assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
            listener(&server, Some(was));
        });
        assert_hears(&server, &locks);
    }
}

/// The backoff between connections starts anew after each connection that has worked.
#[test]
fn a_killed_listener_that_had_worked_comes_back_soon() {
    let server = Server::start();
    let locks = connect(&server);
    for round in 1..=9 {
        assert_hears(&server, &locks);
        let was = listener(&server, None);
        kill(&server, was);
        let (took, _) = time(|| listener(&server, Some(was)));
        assert!(took < 2 * SOON, "{took:?} for the {round}. time");
    }
}

/// `CLIENT TRACKING` holds until its connection ends. So each later attempt or renewal is a single
/// command.
#[test]
fn tracking_is_switched_on_once_per_connection() {
    // However busy the machine is, every answer comes in time, and no connection is closed.
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let guard = tracked_hold(&rig.server, &rig.locks, "renewed");
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&rig.locks, "a"));
        until_tracked(&rig.server, 2);
        let sent = rig.proxy.log().len();
        for round in 1..=5 {
            let looks = rig.proxy.commands("SET lock:a");
            occupy(&rig.server, "a", MINUTE);
            eventually(LONG, "the waiter looks again", || {
                rig.proxy.commands("SET lock:a") > looks
            });
            until_tracked(&rig.server, 2);
            guard.set_lease((1 + round) * MINUTE).expect("extends");
        }
        let log = rig.proxy.log();
        assert!(
            !log[sent..].contains(&"CLIENT".to_owned()),
            "tracking was switched on again: {log:?}"
        );
        delete(&rig.server, "a");
        waiter.join().expect("no panic");
    });
}

/// When a connection ends, Redis no longer tracks the keys that were read over it. So a waiter
/// whose last question went over that connection asks again.
#[test]
fn a_waiter_tries_again_when_a_pooled_connection_breaks() {
    let server = Server::start();
    let locks = connect(&server);
    occupy(&server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&locks, "a"));
        until_tracked(&server, 1);
        server.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        let asked = server.calls("pttl");
        drop(locks.lock("other").expect("locks, over another connection"));
        eventually(LONG, "the waiter asks again", || {
            server.calls("pttl") > asked && server.redirects_invalidations()
        });
        let deleted = Instant::now();
        delete(&server, "a");
        let took = waiter.join().expect("no panic") - deleted;
        assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
    });
}

#[test]
fn a_broken_connection_wakes_only_the_waiters_whose_keys_it_tracked() {
    let rig = Rig::with(|builder| builder.response_timeout(4 * SOON));
    let (server, locks) = (&rig.server, &rig.locks);
    for key in ["a", "b"] {
        occupy(server, key, MINUTE);
    }
    let looks = |key: &str| rig.proxy.commands(&format!("SET lock:{key}"));
    thread::scope(|scope| {
        let wait = |key| scope.spawn(move || take(locks, key));
        let first = wait("a");
        until_tracked(&rig.server, 1);
        let listener = listener(&rig.server, None);
        let tracking = || rig.server.clients_with(&format!("redir={listener}"));
        // The connection with which the listener was tested may take a moment to close.
        eventually(LONG, "the waiter looked over one connection", || {
            tracking().len() == 1
        });
        let number = tracking()[0];
        // While this connection is in use, the other waiter's attempt goes over another one.
        rig.proxy
            .on("EVALSHA * 1 lock:slow", Fault::DelayReply(SOON));
        let slow = scope.spawn(|| rig.locks.named("slow").holder());
        let is_in_use = || rig.proxy.commands("EVALSHA * 1 lock:slow") > 0;
        eventually(LONG, "the connection is in use", is_in_use);
        let second = wait("b");
        eventually(LONG, "it looked over another connection", || {
            tracking().len() == 2
        });
        eventually(LONG, "both wait", || locks.waiting().len() == 2);
        slow.join().expect("no panic").expect("answers");
        let (first_looked, second_looked) = (looks("a"), looks("b"));
        kill(&rig.server, number);
        eventually(LONG, "the waiter looks again", || looks("a") > first_looked);
        throughout(ANSWER, || {
            assert_eq!(looks("b"), second_looked, "woken for nothing");
        });
        let deleted = Instant::now();
        for (key, waiter) in [("a", first), ("b", second)] {
            delete(server, key);
            let took = waiter.join().expect("no panic") - deleted;
            assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
        }
    });
}

#[test]
fn a_waiter_polls_when_its_listener_cannot_come_back() {
    let (server, url) = server_for(&least_rights());
    let locks = LockManager::connect(&url).expect("connects");
    occupy(&server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&locks, "a"));
        until_tracked(&server, 1);
        // On a server before 7, a right is for a command with all its subcommands.
        let right = if server_version() >= (7, 0) {
            "-client|id"
        } else {
            "-client"
        };
        server.query::<()>(&["ACL", "SETUSER", "worker", right]);
        kill(&server, listener(&server, None));
        let deleted = Instant::now();
        delete(&server, "a");
        let took = waiter.join().expect("no panic") - deleted;
        assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
    });
}

#[test]
fn no_waiter_hangs_while_listeners_are_killed() {
    const THREADS: usize = 6;
    let server = Server::start();
    let managers = [(); 2].map(|()| connect(&server));
    let done = AtomicBool::new(false);
    let longest = thread::scope(|scope| {
        let (done, managers) = (&done, &managers);
        let end = SetOnDrop(done);
        let threads: [_; THREADS] = std::array::from_fn(|number| {
            scope.spawn(move || {
                let (mut longest, mut turns) = (Duration::ZERO, 0);
                while !done.load(Ordering::Relaxed) {
                    turns += 1;
                    let locks = &managers[(number + turns) % 2];
                    let (took, guard) =
                        time(|| locks.named(format!("{}", turns % 2)).try_lock_for(LONG));
                    longest = longest.max(took);
                    let guard = guard.expect("answers").expect("the waiter's turn comes");
                    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
                }
                (longest, turns)
            })
        });
        throughout(3 * SOON, || {
            server
                .listeners()
                .into_iter()
                .for_each(|number| kill(&server, number));
        });
        drop(end);
        let ends = threads.map(|it| it.join().expect("no panic"));
        assert!(ends.iter().all(|(_, turns)| *turns > 10), "{ends:?}");
        ends.into_iter()
            .map(|(longest, _)| longest)
            .max()
            .expect("threads")
    });
    assert!(
        longest < 2 * SOON,
        "{longest:?}: woken too late: was a wake-up lost?"
    );
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
    let [first, second] = managers;
    drop(first);
    assert_hears(&server, &second);
}

#[test]
fn a_waiter_takes_the_lock_after_a_restart_of_redis() {
    let lease = 2 * SOON;
    for (what, server) in [
        ("empty", Server::start()),
        ("with its keys", Server::with(&["--appendonly", "yes"])),
    ] {
        let locks = connect(&server);
        occupy(&server, "a", if what == "empty" { MINUTE } else { lease });
        let start = Instant::now();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&locks, "a"));
            until_tracked(&server, 1);
            server.restart();
            let free = if what == "empty" {
                Instant::now()
            } else {
                start + lease
            };
            let took = waiter
                .join()
                .expect("no panic")
                .saturating_duration_since(free);
            assert!(took < 2 * SOON, "{what}: {took:?}");
        });
        listener(&server, None);
        assert_hears(&server, &locks);
        drop(locks);
        assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
    }
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
            took < SOON,
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

#[test]
fn row_23_without_any_right_to_invalidations_waiters_poll() {
    assert_polls_without(&invalidation_rights());
}

#[test]
fn with_tracking_off_nothing_listens_and_waiters_poll_at_their_interval() {
    let server = Server::start();
    let off = || LockManager::builder(&server.url()).client_tracking(false);
    for longest in [Duration::from_millis(1), SOON] {
        let locks = off().poll_every(longest).build().expect("connects");
        let guard = locks.named("renewed").lease(MINUTE).lock().expect("locks");
        guard.set_lease(MINUTE).expect("extends");
        occupy(&server, "a", MINUTE);
        server.reset_stats();
        let polls = || server.calls("pttl");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&locks, "a"));
            if longest < SOON {
                eventually(LONG, "the waiter polls often", || polls() > 1000);
            } else {
                eventually(LONG, "the waiter polls", || polls() >= 8);
                let before = polls();
                throughout(2 * SOON, || ());
                assert!(
                    polls() <= before + 8,
                    "{} polls in {:?}",
                    polls() - before,
                    2 * SOON
                );
            }
            delete(&server, "a");
            waiter.join().expect("no panic");
        });
        assert_eq!(server.total_calls(&LISTENING), 0);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
}

/// Without the right, every retry fails in the same way. So the listener retries rarely, and a
/// retry does not make the keeper renew.
#[test]
fn row_23_a_listener_without_the_right_to_tracking_retries_rarely_and_renews_nothing() {
    let (server, url) = server_for(&without(&["+client|tracking"]));
    let locks = LockManager::connect(&url).expect("connects");
    let guard = locks.named("renewed").lease(MINUTE).lock().expect("locks");
    guard.set_lease(MINUTE).expect("extends");
    occupy(&server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&locks, "a"));
        eventually(LONG, "the waiter polls", || {
            server.calls("set") >= 12 && server.calls("subscribe") > 0
        });
        let (tries, renewed) = (server.calls("subscribe"), renewals(&locks, "renewed"));
        throughout(3 * SOON, || {
            let more = server.calls("subscribe") - tries;
            assert!(more <= 1, "tried {more} times more");
            assert_eq!(renewals(&locks, "renewed"), renewed, "renewed for nothing");
        });
        delete(&server, "a");
        waiter.join().expect("no panic");
    });
}

/// The user may use some keys only, and not the key with which the listener tests itself.
#[test]
fn row_23_a_listener_whose_own_key_is_refused_retries_rarely() {
    let rights: Vec<_> = without(&["~lock:*"])
        .into_iter()
        .chain(["~lock:a"])
        .collect();
    let (server, url) = server_for(&rights);
    let locks = LockManager::connect(&url).expect("connects");
    occupy(&server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&locks, "a"));
        eventually(LONG, "the waiter polls", || {
            server.calls("set") >= 12 && server.calls("subscribe") > 0
        });
        let tries = server.calls("subscribe");
        throughout(3 * SOON, || {
            let more = server.calls("subscribe") - tries;
            assert!(more <= 1, "tried {more} times more");
        });
        delete(&server, "a");
        waiter.join().expect("no panic");
    });
}

/// A proxy may give connections ids of its own. Then Redis accepts the redirection, but sends the
/// invalidations to the wrong connection.
#[test]
fn row_23_when_tracking_is_accepted_and_no_invalidation_comes_waiters_poll() {
    let rig = Rig::new();
    let mut other = redis_connection(&rig.server.bare_url());
    let number: u64 = redis::cmd("CLIENT")
        .arg("ID")
        .query(&mut other)
        .expect("a number");
    rig.proxy.always(
        "CLIENT ID",
        Fault::Replace(format!(":{number}\r\n").into_bytes()),
    );
    let mut waiter = Worker::spawn("waiter", &[("url", &rig.proxy.url())]);
    for round in 1..=2 {
        occupy(&rig.server, "a", MINUTE);
        let before = rig.proxy.commands("SET lock:a");
        waiter.send("wait");
        eventually(LONG, "the fault has happened", || rig.proxy.fired() > 0);
        throughout(2 * SOON, || ());
        assert!(
            rig.proxy.commands("SET lock:a") >= before + 12,
            "round {round}: the waiter does not poll"
        );
        delete(&rig.server, "a");
        let (took, taken) = time(|| waiter.expect_line("", LONG));
        assert_eq!(taken, "Ok(true)");
        assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
        eventually(LONG, "the lock is given back", || {
            !rig.server.exists("lock:a")
        });
        let log = waiter.ask("log");
        assert_eq!(log.matches("relatch::listener").count(), 1, "{log:?}");
        assert!(log.contains("no invalidation came"), "{log:?}");
    }
    rig.proxy.clear();
    occupy(&rig.server, "a", MINUTE);
    waiter.send("wait");
    until_tracked(&rig.server, 1);
    delete(&rig.server, "a");
    assert_eq!(waiter.expect_line("", SOON), "Ok(true)");
    assert!(
        waiter
            .ask("log")
            .contains("; INFO relatch::listener Redis wakes waiters again")
    );
}

/// The answer to `CLIENT TRACKING` says that Redis tracks what is read over this connection, but
/// Redis never got the command.
#[test]
fn a_waiter_that_missed_an_invalidation_has_the_listener_reconnect() {
    for replaced in [false, true] {
        let rig = Rig::new();
        rig.proxy.on(
            "CLIENT TRACKING ON REDIRECT * NOLOOP",
            Fault::Answer(b"+OK\r\n".to_vec()),
        );
        occupy(&rig.server, "a", MINUTE);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                rig.locks
                    .named("a")
                    .try_lock_for(4 * SOON)
                    .map(|it| it.is_some())
            });
            eventually(LONG, "the waiter looks, and relies on the listener", || {
                let mut log = rig.proxy.log_in_full().into_iter();
                log.by_ref()
                    .any(|args| args.last().is_some_and(|arg| arg == "NOLOOP"))
                    && log.any(|args| args.starts_with(&["SET".into(), "lock:a".into()]))
            });
            let was = listener(&rig.server, None);
            // The listener wakes all waiters when it starts to listen. If this waiter has
            // registered by then, it asks once more.
            eventually(LONG, "the waiter does not poll", || {
                let (looks, mut is_quiet) = (rig.proxy.commands("SET lock:a"), true);
                throughout(ANSWER, || {
                    is_quiet &= rig.proxy.commands("SET lock:a") == looks;
                });
                is_quiet
            });
            if replaced {
                rig.server
                    .query::<()>(&["SET", "lock:a", "another", "PX", "60000"]);
            } else {
                delete(&rig.server, "a");
            }
            assert_eq!(
                waiter.join().expect("no panic").expect("answers"),
                !replaced
            );
            listener(&rig.server, Some(was));
        });
        assert_hears(&rig.server, &rig.locks);
    }
}

/// If a waiter takes the lock without a wake-up, it waits for a quarter of a second: the wake-up
/// may be on its way. The lease runs meanwhile.
#[test]
fn a_missed_invalidation_costs_no_short_lease() {
    let is_valid = || {
        let rig = Rig::new();
        rig.proxy.on(
            "CLIENT TRACKING ON REDIRECT * NOLOOP",
            Fault::Answer(b"+OK\r\n".to_vec()),
        );
        occupy(&rig.server, "a", MINUTE);
        thread::scope(|scope| {
            let lock = rig.locks.named("a").lease(SOON / 4).wait(4 * SOON);
            let waiter = scope
                .spawn(move || lock.with_lock_result(|guard| Ok::<_, Error>(guard.is_valid())));
            eventually(LONG, "it waits", || rig.locks.waiting().len() == 1);
            throughout(ANSWER, || ());
            delete(&rig.server, "a");
            waiter.join().expect("no panic").unwrap_or(false)
        })
    };
    // On a busy machine, the lease may be over all the same.
    assert!((0..5).any(|_| is_valid()));
}

/// The holder has changed, and there was no wake-up. But the wait ends before one that is on its
/// way could come.
#[test]
fn a_wait_that_is_too_short_proves_nothing_against_the_listener() {
    let rig = Rig::new();
    rig.proxy.always(
        "CLIENT TRACKING ON REDIRECT * NOLOOP",
        Fault::Answer(b"+OK\r\n".to_vec()),
    );
    occupy(&rig.server, "a", MINUTE);
    let wait = || {
        rig.locks
            .named("a")
            .try_lock_for(Duration::from_millis(200))
            .map(|it| it.is_some())
    };
    let _ = rig.locks.named("a").try_lock_for(SOON);
    let was = listener(&rig.server, None);
    for _ in 0..10 {
        let looks = rig.proxy.commands("SET lock:a");
        thread::scope(|scope| {
            let waiter = scope.spawn(wait);
            eventually(LONG, "it has looked", || {
                rig.proxy.commands("SET lock:a") > looks + 1 || waiter.is_finished()
            });
            rig.server
                .query::<()>(&["SET", "lock:a", &unique_key("another"), "PX", "60000"]);
            // On a busy machine, the time may be too short for an answer.
            let _ = waiter.join().expect("no panic");
        });
    }
    throughout(SOON, || ());
    assert_eq!(
        listener(&rig.server, None),
        was,
        "the listener was disconnected"
    );
}

/// The right to tracking is revoked after the listener has found that it works.
#[test]
fn row_23_tracking_that_is_refused_later_is_logged() {
    let (server, url) = server_for(&least_rights());
    let mut waiter = Worker::spawn("waiter", &[("url", &url)]);
    occupy(&server, "a", MINUTE);
    waiter.send("wait");
    until_tracked(&server, 1);
    let right = if server_version() >= (7, 0) {
        "-client|tracking"
    } else {
        "-client"
    };
    server.query::<()>(&["ACL", "SETUSER", "worker", right]);
    // The next attempt goes over a new connection, where Redis refuses tracking.
    server.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    delete(&server, "a");
    assert_eq!(waiter.expect_line("", LONG), "Ok(true)");
    occupy(&server, "a", MINUTE);
    waiter.send("wait");
    let before = server.calls("set");
    eventually(LONG, "the waiter polls", || {
        server.calls("set") >= before + 12
    });
    delete(&server, "a");
    assert_eq!(waiter.expect_line("", LONG), "Ok(true)");
    let log = waiter.ask("log");
    assert!(
        log.contains("Redis sends no invalidations, so waiters poll") && log.contains("NOPERM"),
        "{log:?}"
    );
}

/// Only renewals need tracking here. If Redis refuses tracking, the listener is of no use.
#[test]
fn row_23_when_tracking_of_a_renewed_lock_is_refused_the_listener_disconnects() {
    let (server, url) = server_for(&least_rights());
    let locks = LockManager::connect(&url).expect("connects");
    let guard = tracked_hold(&server, &locks, "a");
    let was = listener(&server, None);
    let right = if server_version() >= (7, 0) {
        "-client|tracking"
    } else {
        "-client"
    };
    server.query::<()>(&["ACL", "SETUSER", "worker", right]);
    // The next renewal goes over a new connection.
    server.query::<u64>(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    guard.set_lease(MINUTE).expect("extends");
    eventually(LONG, "the listener gives up its connection", || {
        !server.listeners().contains(&was)
    });
}

#[test]
fn polling_is_logged_once_however_often_the_listener_retries() {
    let rig = Rig::new();
    rig.proxy
        .always("SUBSCRIBE", Fault::Answer(b"+no\r\n".to_vec()));
    occupy(&rig.server, "a", MINUTE);
    let mut waiter = Worker::spawn("waiter", &[("url", &rig.proxy.url())]);
    waiter.send("wait");
    eventually(LONG, "the listener tries again and again", || {
        rig.proxy.commands("SUBSCRIBE") > 3
    });
    delete(&rig.server, "a");
    assert_eq!(waiter.expect_line("", LONG), "Ok(true)");
    let log = waiter.ask("log");
    assert_eq!(log.matches("relatch::listener").count(), 1, "{log:?}");
}

/// Redis keeps the listener's connection open, but nothing arrives over it, because Redis never got
/// the `SUBSCRIBE`.
#[test]
fn a_listener_that_receives_nothing_is_noticed_and_replaced() {
    let rig = Rig::new();
    let subscribed = b"*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n";
    rig.proxy
        .on("SUBSCRIBE", Fault::Answer(subscribed.to_vec()));
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&rig.locks, "a"));
        until_tracked(&rig.server, 1);
        delete(&rig.server, "a");
        let (took, at) = time(|| waiter.join());
        at.expect("no panic");
        assert!(
            took < 7 * SOON,
            "{took:?}: the silent connection was not noticed"
        );
    });
    listener(&rig.server, None);
    assert_hears(&rig.server, &rig.locks);
}

type Injury<'a> = (&'a str, &'a dyn Fn(&Server, &str), LostCause);

#[test]
fn row_06_a_loss_after_the_first_renewal_is_reported_at_once() {
    let server = Server::start();
    let [locks, others] = [(); 2].map(|()| connect(&server));
    let force = |_: &Server, key: &str| {
        let name = key.strip_prefix("lock:").expect("a lock's key");
        others
            .named(name)
            .force_unlock()
            .expect("answers")
            .expect("the lock was held");
    };
    let mut injuries: Vec<Injury<'_>> = vec![("force-unlocked", &force, LostCause::Deleted)];
    injuries.extend(
        INJURIES
            .iter()
            .map(|(what, injure, cause)| -> Injury<'_> { (what, injure, *cause) }),
    );
    for (what, injure, cause) in injuries {
        returns_by(Duration::ZERO, what, || {
            let name = unique_key("a");
            let guard = tracked_hold(&server, &locks, &name);
            let watch = guard.watch();
            injure(&server, &format!("lock:{name}"));
            let (took, lost) = time(|| watch.wait_lost(LONG));
            assert_eq!(lost, Some(cause), "{what}");
            assert!(
                took < SOON,
                "{what}: {took:?}: reported too late: was the invalidation lost?"
            );
            assert!(!guard.is_valid());
            assert_lost(&guard.unlock(), cause);
            server.query::<()>(&["FLUSHALL"]);
            took
        });
    }
}

#[test]
fn row_06_a_loss_without_a_listener_is_reported_when_the_listener_is_back() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = tracked_hold(&server, &locks, "a");
    let number = listener(&server, None);
    server.query::<()>(&["MULTI"]);
    server.query::<()>(&["CLIENT", "KILL", "ID", &number.to_string()]);
    server.query::<()>(&["DEL", "lock:a"]);
    server.query::<()>(&["EXEC"]);
    let (took, lost) = time(|| guard.watch().wait_lost(LONG));
    assert_eq!(lost, Some(LostCause::Deleted));
    assert!(
        took < SOON,
        "{took:?}: reported too late: was the invalidation lost?"
    );
}

#[test]
fn row_06_a_key_is_tracked_though_its_first_renewal_was_slow() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    rig.proxy
        .on(&renewals_of(&rig.server, "a"), Fault::DelayReply(ANSWER));
    let _guard = tracked_hold(&rig.server, &rig.locks, "a");
}

#[test]
fn row_06_a_loss_while_a_renewal_is_answered_is_reported_at_once() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    let renewal = renewals_of(&rig.server, "a");
    for first in [true, false] {
        drop(tracked_hold(&rig.server, &rig.locks, "listened for"));
        let guard = rig.locks.named("a").lease(MINUTE).lock().expect("locks");
        if !first {
            guard.set_lease(MINUTE).expect("extends");
        }
        let watch = guard.watch();
        rig.proxy.on(&renewal, Fault::DelayReply(ANSWER));
        let fired = rig.proxy.fired();
        thread::scope(|scope| {
            let helper = scope.spawn(|| {
                rig.proxy.wait_fired(fired + 1, LONG); // The renewal was executed.
                delete(&rig.server, "a");
                time(|| watch.wait_lost(LONG))
            });
            let _ = guard.set_lease(MINUTE);
            let (took, lost) = helper.join().expect("no panic");
            assert_eq!(lost, Some(LostCause::Deleted));
            assert!(
                took < SOON + ANSWER,
                "first renewal: {first}, {took:?}: reported too late: was the invalidation lost?"
            );
        });
    }
}

#[test]
fn row_06_a_lease_that_is_cut_short_is_renewed_at_once() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = tracked_hold(&server, &locks, "a");
    for round in 2..5 {
        server.query::<()>(&["PEXPIRE", "lock:a", "5000"]);
        eventually(4 * SOON, "the lease is renewed", || {
            server.pttl("lock:a") > 50_000
        });
        eventually(SOON, "the key is tracked again", || {
            server.tracked_keys() == 1
        });
        assert!(renewals(&locks, "a") >= round && guard.is_valid());
    }
    throughout(2 * ANSWER, || assert!(guard.is_valid()));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn a_tracked_hold_sends_nothing_for_its_own_changes() {
    let server = Server::start();
    let locks = connect(&server);
    drop(locks.lock("warm-up").expect("locks"));
    let guard = tracked_hold(&server, &locks, "a");
    guard.set_lease(2 * MINUTE).expect("extends");
    let sent = server.all_calls();
    throughout(SOON, || {
        assert_eq!(server.all_calls(), sent, "commands after its own renewals");
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    throughout(ANSWER, || {
        assert!(
            server.all_calls() <= sent + 3,
            "commands after its own release"
        );
    });
}

#[test]
fn a_managers_own_changes_are_no_loss() {
    let server = Server::start();
    let reported = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&reported);
    let builder =
        LockManager::builder(&server.url()).on_lost(move |lost| recorder.lock().push(lost.clone()));
    let locks = builder
        .lease(3 * SOON)
        .renew_every(ANSWER / 10)
        .build()
        .expect("connects");
    drop(tracked_hold(&server, &locks, "first"));
    let rounds = 60;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..rounds {
                    let guard = locks.lock("a").expect("locks");
                    guard.set_lease(3 * SOON).expect("extends");
                    if round % 10 == 0 {
                        // Long enough that the keeper renews the hold, too.
                        throughout(ANSWER / 8, || assert!(guard.is_valid()));
                    }
                    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
                }
            });
        }
    });
    let stats = locks.stats();
    assert!(
        stats.handed_off > 0 && stats.renewed > 4 * rounds,
        "{stats:?}"
    );
    assert_eq!(stats.lost, 0);
    drop(locks);
    assert!(reported.lock().is_empty(), "{:?}", reported.lock());
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
}

/// The waiter polls ever more rarely, and then once more half a second before its deadline.
#[test]
fn a_waiter_that_polls_rarely_tries_once_more_before_its_deadline() {
    let server = Server::start();
    let rarely = LockManager::builder(&server.url())
        .client_tracking(false)
        .poll_every(MINUTE);
    let locks = &rarely.build().expect("connects");
    let wait = Duration::from_secs(3);
    let start = Instant::now();
    thread::scope(|scope| {
        let names = ["a", "b", "c", "d"];
        for name in names {
            occupy(&server, name, MINUTE);
        }
        let waiters = names.map(|name| {
            scope.spawn(move || locks.named(name).try_lock_for(wait).map(|it| it.is_some()))
        });
        // Most waiters are in a pause that would not end before the deadline.
        thread::sleep(
            wait.saturating_sub(Duration::from_millis(700))
                .saturating_sub(start.elapsed()),
        );
        for name in names {
            delete(&server, name);
        }
        for waiter in waiters {
            assert!(
                waiter.join().expect("no panic").expect("answers"),
                "the lock was free for 700 ms"
            );
        }
    });
}
