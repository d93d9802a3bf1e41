//! The public interface, from the user's side.

use std::fmt;
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockGuard, LockManager, LostCause, SetupCause, Unlocked};
use relatch_rig::{LONG, Server, Worker, eventually, role, within};

use crate::support::{connect, grant};

/// The limit of a wait that ends without the lock.
const WAIT: Duration = Duration::from_millis(200);

/// How much later than its deadline a call may return, because the machine may be busy.
const SLACK: Duration = Duration::from_secs(3);

/// A password that must never be seen.
const CANARY: &str = "canary7Qx";

/// A user's error type.
#[derive(Debug, PartialEq)]
enum Failure {
    OutOfPaper,
    Lock(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Lock(error.to_string())
    }
}

/// Deletes the lock's key, as another client would.
fn delete(server: &Server, key: &str) {
    assert_eq!(server.query::<i64>(&["DEL", key]), 1);
}

#[test]
fn with_lock_runs_once_under_the_lock_and_gives_the_result() {
    let server = Server::start();
    let locks = connect(&server);
    let mut runs = 0;
    let result = locks.with_lock("a", || {
        runs += 1;
        (server.exists("lock:a"), String::from("done"))
    });
    assert_eq!(result.expect("runs"), (true, "done".to_owned()));
    assert_eq!((runs, server.exists("lock:a")), (1, false));
}

#[test]
fn with_lock_does_not_run_without_the_lock() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    thread::scope(|scope| {
        scope.spawn(|| std::mem::forget(theirs.lock("a").expect("locks")));
    });
    let lock = ours.named("a").wait(WAIT);
    assert!(
        lock.with_lock(|| unreachable!())
            .expect_err("busy")
            .is_timeout()
    );
    assert!(
        lock.with_lock(|| unreachable!())
            .expect_err("busy")
            .is_timeout()
    );
    let failed = lock.with_lock_result(|_| -> Result<(), Failure> { unreachable!() });
    assert!(matches!(failed, Err(Failure::Lock(text)) if text.contains("still busy")));
}

#[test]
fn with_lock_reports_a_lock_that_was_lost_meanwhile() {
    let server = Server::start();
    let locks = connect(&server);
    let error = locks
        .with_lock("a", || delete(&server, "lock:a"))
        .expect_err("lost");
    assert!(
        matches!(&error, Error::Lost { key, cause: LostCause::Deleted, .. } if key == "a"),
        "{error:?}"
    );
    let error = locks
        .with_lock("a", || server.query::<()>(&["SET", "lock:a", "somebody"]))
        .expect_err("lost");
    assert!(
        matches!(
            &error,
            Error::Lost {
                cause: LostCause::Taken,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(server.get("lock:a").as_deref(), Some("somebody"));
}

#[test]
fn with_lock_succeeds_though_the_release_has_no_answer() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .response_timeout(WAIT)
        .build()
        .expect("connects");
    let result = within(WAIT + SLACK, "the release", || {
        locks.with_lock("a", || server.kill())
    });
    result.expect("the closure ran under the lock");
}

#[test]
fn with_lock_result_gives_the_closures_result_or_error() {
    let server = Server::start();
    let locks = connect(&server);
    assert_eq!(locks.with_lock_result("a", |_| Ok::<_, Failure>(7)), Ok(7));
    assert!(!server.exists("lock:a"));
    let failed: Result<(), _> = locks.with_lock_result("a", |_| Err(Failure::OutOfPaper));
    assert_eq!(failed, Err(Failure::OutOfPaper));
    assert!(!server.exists("lock:a"));
}

#[test]
fn with_lock_result_never_masks_the_closures_error() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .response_timeout(WAIT)
        .build()
        .expect("connects");
    let failed: Result<(), _> = locks.with_lock_result("a", |_| {
        delete(&server, "lock:a");
        Err(Failure::OutOfPaper)
    });
    assert_eq!(failed, Err(Failure::OutOfPaper));
    let failed = locks.with_lock_result("a", |_| {
        delete(&server, "lock:a");
        Ok::<_, Failure>(())
    });
    assert_eq!(
        failed,
        Err(Failure::Lock(
            r#"lock "a" was lost: its key was deleted"#.to_owned()
        ))
    );
    let failed: Result<(), _> = locks.with_lock_result("a", |_| {
        server.kill();
        Err(Failure::OutOfPaper)
    });
    assert_eq!(failed, Err(Failure::OutOfPaper));
}

#[test]
fn with_lock_result_lends_the_guard() {
    let server = Server::start();
    let locks = connect(&server);
    let token = locks
        .with_lock_result("a", |guard| {
            assert!(guard.is_valid());
            assert_eq!(
                locks.with_lock_result("a", |inner| Ok::<_, Error>(inner.depth()))?,
                2
            );
            assert_eq!(guard.depth(), 1);
            Ok::<_, Error>(guard.token().to_owned())
        })
        .expect("runs");
    assert!(!server.exists("lock:a") && token.len() > 32);
}

#[test]
fn with_lock_result_has_one_error_for_the_lock_and_the_closure() {
    let server = Server::start();
    let locks = connect(&server);
    let charge = |guard: &LockGuard| -> Result<u32, Error> {
        guard.ensure(Duration::from_secs(5))?;
        Ok(guard.depth())
    };
    assert_eq!(locks.with_lock_result("a", charge).expect("runs"), 1);
    let stolen = locks.named("a").with_lock_result(|guard| {
        server.query::<()>(&["SET", "lock:a", "thief"]);
        guard.verify()?;
        charge(guard)
    });
    assert!(stolen.is_err_and(|error| error.is_lost()));
    assert_eq!(server.get("lock:a").as_deref(), Some("thief"));
}

#[test]
fn with_lock_result_serves_a_closure_that_returns_an_io_result() {
    let server = Server::start();
    let locks = connect(&server);
    let append = || std::fs::read_to_string("/nowhere/at/all");
    let failed = locks
        .with_lock_result("a", |_| append())
        .expect_err("no such file");
    assert_eq!(failed.kind(), std::io::ErrorKind::NotFound);
    let _held = locks.lock("b").expect("locks");
    let read =
        || std::thread::scope(|scope| scope.spawn(|| try_b(&locks)).join().expect("no panic"));
    let busy = read().expect_err("busy");
    assert_eq!(busy.kind(), std::io::ErrorKind::TimedOut);
    assert!(busy.to_string().contains("\"b\""), "{busy}");
    let inside = busy
        .get_ref()
        .and_then(|error| error.downcast_ref::<Error>());
    assert!(inside.is_some_and(Error::is_timeout), "{busy:?}");
}

fn try_b(locks: &LockManager) -> std::io::Result<()> {
    locks
        .named("b")
        .wait(Duration::ZERO)
        .with_lock_result(|_| Ok(()))
}

#[test]
fn a_panic_under_a_lock_can_be_caught_around_it() {
    let server = Server::start();
    let locks = connect(&server);
    let lock = locks.named("a");
    let guard = locks.lock("b").expect("locks");
    let watch = guard.watch();
    let caught = std::panic::catch_unwind(|| {
        assert!(guard.is_valid() && watch.is_valid());
        locks.with_lock("a", || lock.with_lock(|| panic!("in the closure")))
    });
    assert!(caught.is_err());
    assert!(!server.exists("lock:a"), "the unwinding released the lock");
    assert!(server.exists("lock:b"));
}

#[test]
fn a_guard_describes_its_hold() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks
        .named("a")
        .lease(Duration::from_secs(10))
        .lock()
        .expect("locks");
    assert_eq!(
        (guard.key(), guard.depth(), guard.is_valid()),
        ("a", 1, true)
    );
    assert!(
        Duration::from_secs(8) < guard.remaining()
            && guard.remaining() <= Duration::from_millis(9898)
    );
    assert_eq!(relatch::Owner::current().pid, process::id());
    assert_eq!(
        *relatch::Owner::current().host,
        hostname::get().expect("a name").to_string_lossy()
    );
    assert!(
        guard
            .token()
            .starts_with(&format!("{}-", relatch::Owner::current()))
    );
    let inner = locks.lock("a").expect("locks again");
    assert_eq!(inner.token(), guard.token());
    drop((guard, inner));
    let next = locks.lock("a").expect("locks");
    let token = next.token().to_owned();
    drop(next);
    assert_ne!(
        locks.lock("a").expect("locks").token(),
        token,
        "no token is used twice"
    );
}

#[test]
fn try_lock_for_takes_a_lock_that_becomes_free_in_time() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    let held = theirs.lock("a").expect("locks");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            ours.named("a")
                .try_lock_for(LONG)
                .expect("answers")
                .is_some()
        });
        server.reset_stats();
        eventually(LONG, "the waiter waits", || server.calls("set") > 2);
        drop(held);
        assert!(waiter.join().expect("no panic"));
    });
}

#[test]
fn try_lock_for_keeps_to_its_limit_and_zero_is_a_single_try() {
    let server = Server::start();
    let (ours, theirs) = (connect(&server), connect(&server));
    let guard = theirs.lock("a").expect("locks");
    thread::scope(|scope| {
        scope.spawn(|| {
            let start = Instant::now();
            let lock = ours.named("a");
            assert!(
                lock.try_lock_for(Duration::ZERO)
                    .expect("answers")
                    .is_none(),
                "it is busy"
            );
            let rest = WAIT.saturating_sub(start.elapsed());
            assert!(
                ours.named("a")
                    .try_lock_for(rest)
                    .expect("answers")
                    .is_none()
            );
            assert!(
                start.elapsed() >= WAIT && start.elapsed() < WAIT + SLACK,
                "{:?}",
                start.elapsed()
            );
        });
    });
    drop(guard);
    assert!(
        ours.named("a")
            .try_lock_for(Duration::ZERO)
            .expect("answers")
            .is_some(),
        "it is free"
    );
}

#[test]
fn no_limit_undoes_a_wait() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .wait(WAIT)
        .build()
        .expect("connects");
    let theirs = connect(&server);
    let guard = theirs.lock("a").expect("locks");
    thread::scope(|scope| {
        let builder = LockManager::builder(&server.url())
            .wait(Duration::ZERO)
            .wait(None);
        let others = builder.build().expect("connects");
        let also_patient = scope.spawn(move || others.lock("a").map(drop));
        let patient = scope.spawn(|| locks.named("a").wait(None).lock().map(drop));
        let hasty = scope.spawn(|| locks.lock("a").map(drop));
        assert!(
            hasty
                .join()
                .expect("no panic")
                .is_err_and(|error| error.is_timeout())
        );
        assert!(!patient.is_finished() && !also_patient.is_finished());
        drop(guard);
        for patient in [patient, also_patient] {
            patient
                .join()
                .expect("no panic")
                .expect("waits until it is free");
        }
    });
}

#[test]
fn what_a_hold_and_a_release_look_like_in_a_log() {
    let server = Server::start();
    let locks = connect(&server);
    let outer = locks.lock("a").expect("locks");
    let [inner, third] = [(); 2].map(|()| locks.lock("a").expect("re-enters"));
    let [held] = &locks.held()[..] else {
        panic!("one lock")
    };
    let text = held.to_string();
    let start = format!("lock \"a\", held by {} for ", relatch::Owner::current());
    assert!(
        text.starts_with(&start) && text.contains(" (3 deep), valid for "),
        "{text}"
    );
    assert_eq!(
        third.unlock().expect("unlocks").to_string(),
        "still held by 2 guards"
    );
    assert_eq!(
        inner.unlock().expect("unlocks").to_string(),
        "still held by one guard"
    );
    delete(&server, "lock:a");
    let _ = outer.verify();
    assert!(
        locks.held()[0]
            .to_string()
            .ends_with("lost: its key was deleted")
    );
    drop(outer);
    assert_eq!(
        locks
            .lock("a")
            .expect("locks")
            .unlock()
            .expect("unlocks")
            .to_string(),
        "released"
    );
    let kept = locks
        .named("a")
        .keep_at_least(LONG)
        .lock()
        .expect("locks")
        .unlock()
        .expect("keeps");
    assert!(kept.to_string().starts_with("kept for "), "{kept}");
}

#[test]
fn an_error_names_its_key_and_says_whether_to_try_again() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .tolerate_outage(WAIT)
        .build()
        .expect("connects");
    let theirs = connect(&server);
    let guard = theirs.lock("a").expect("locks");
    let busy = thread::scope(|scope| {
        let busy = scope.spawn(|| locks.named("a").wait(WAIT).lock().expect_err("busy"));
        busy.join().expect("no panic")
    });
    drop(guard);
    let held = locks.named("a").lock().expect("locks");
    delete(&server, "lock:a");
    let lost = held.unlock().expect_err("deleted");
    let (twice, once) = (
        theirs.lock("a").expect("locks"),
        theirs.named("a").reentrant(false),
    );
    let again = once.lock().expect_err("held");
    let cycle = locks.lock("a").expect_err("it would wait for itself");
    grant(&server, &["+ping"]);
    let worker = format!("redis://worker:canary@127.0.0.1:{}/", server.port());
    let no_right = LockManager::connect(&worker)
        .expect("connects")
        .lock("d")
        .expect_err("no right");
    server.query::<()>(&["CONFIG", "SET", "requirepass", CANARY]);
    let refused = connect_error(&server);
    server.kill();
    let unconfirmed = twice.unlock().expect_err("away");
    let away = locks.lock("a").expect_err("away");
    let by_hand = locks.named("b").assert_held().expect_err("not held");
    for (error, key, again) in [
        (&busy, Some("a"), true),
        (&lost, Some("a"), false),
        (&refused, None, false),
        (&away, Some("a"), true),
        (&by_hand, Some("b"), false),
        (&again, Some("a"), false),
        (&cycle, Some("a"), false),
        (&no_right, Some("d"), false),
        (&unconfirmed, Some("a"), false),
    ] {
        assert_eq!(
            (error.key(), error.is_retryable()),
            (key, again),
            "{error:?}"
        );
    }
    let Error::Unavailable { cause, .. } = &away else {
        panic!("{away:?}")
    };
    assert!(
        away.to_string().ends_with(&format!(": {cause}")),
        "the cause is in the text: {away}"
    );
}

/// The error of a manager that has no password for the server.
fn connect_error(server: &Server) -> Error {
    LockManager::connect(&server.bare_url()).expect_err("no password")
}

#[test]
fn holder_names_the_owner_and_the_time_left() {
    let server = Server::start();
    let (locks, others) = (connect(&server), connect(&server));
    assert_eq!(locks.named("a").holder().expect("answers"), None);
    let guard = others
        .named("a")
        .lease(Duration::from_secs(10))
        .lock()
        .expect("locks");
    let holder = locks
        .named("a")
        .holder()
        .expect("answers")
        .expect("somebody");
    assert_eq!(holder.owner().as_ref(), Some(&relatch::Owner::current()));
    assert_eq!(holder.raw, guard.token());
    let left = holder.remaining.expect("a lease");
    assert!(
        Duration::from_secs(5) < left && left <= Duration::from_secs(10),
        "{left:?}"
    );
    assert_eq!(
        holder.to_string(),
        format!("{} ({left:.1?} left)", relatch::Owner::current())
    );
    assert_eq!(
        locks
            .named("a")
            .holder()
            .expect("answers")
            .expect("somebody")
            .raw,
        guard.token()
    );
    drop(guard);
    assert_eq!(locks.named("a").holder().expect("answers"), None);
}

#[test]
fn force_unlock_ends_a_hold_of_the_same_manager_at_once() {
    let server = Server::start();
    let locks = connect(&server);
    let guard = locks.lock("a").expect("locks");
    let deleted = locks
        .named("a")
        .force_unlock()
        .expect("answers")
        .expect("somebody");
    assert_eq!(deleted.raw, guard.token());
    assert!(!server.exists("lock:a") && !guard.is_valid());
    assert!(guard.unlock().expect_err("lost").is_lost());
}

#[test]
fn force_unlock_returns_the_holder_and_the_holder_learns_of_it() {
    let server = Server::start();
    let (locks, others) = (connect(&server), connect(&server));
    assert_eq!(locks.named("a").force_unlock().expect("answers"), None);
    let guard = others.lock("a").expect("locks");
    let deleted = locks
        .named("a")
        .force_unlock()
        .expect("answers")
        .expect("somebody");
    assert_eq!(deleted.owner().as_ref(), Some(&relatch::Owner::current()));
    assert!(
        deleted
            .remaining
            .is_some_and(|left| left > Duration::from_secs(20))
    );
    assert!(!server.exists("lock:a"));
    let taken = locks.lock("a").expect("free now");
    let error = guard.unlock().expect_err("lost");
    assert!(
        matches!(
            error,
            Error::Lost {
                cause: LostCause::Taken,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(taken.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn the_prefix_is_put_before_every_key() {
    let server = Server::start();
    for (prefix, expected) in [("shop:", "shop:a"), ("", "a"), ("\u{1f512}", "\u{1f512}a")] {
        let locks = LockManager::builder(&server.bare_url())
            .prefix(prefix)
            .build()
            .expect("connects");
        let guard = locks.lock("a").expect("locks");
        assert_eq!(server.get(expected).as_deref(), Some(guard.token()));
        assert_eq!((guard.key(), locks.named("a").key()), ("a", "a"));
    }
}

#[test]
fn the_builders_lease_and_wait_apply_to_every_lock() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .lease(Duration::from_secs(5))
        .wait(WAIT)
        .build();
    let locks = locks.expect("connects");
    let guard = locks.lock("a").expect("locks");
    assert!((4_000..=5_000).contains(&server.pttl("lock:a")));
    thread::scope(|scope| {
        scope.spawn(|| assert!(locks.lock("a").expect_err("busy").is_timeout()));
    });
    drop(guard);
    let _own = locks
        .named("a")
        .lease(Duration::from_secs(50))
        .lock()
        .expect("locks");
    assert!(server.pttl("lock:a") > 40_000, "a lock's own lease wins");
}

#[test]
#[cfg(unix)]
fn a_unix_socket_works() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("redis@1#2.sock");
    let path = path.to_str().expect("a printable path");
    let server = Server::with(&["--unixsocket", path]);
    let locks = LockManager::connect(&format!("unix://{path}")).expect("connects");
    let guard = locks.lock("a").expect("locks");
    assert!(server.exists("lock:a"));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    server.kill();
    let error = locks.try_lock("a").expect_err("gone");
    assert!(
        error.is_redis_failure() && error.to_string().contains(path),
        "{error}"
    );
}

#[test]
fn build_unchecked_may_come_before_redis() {
    let server = Server::start();
    server.kill();
    let locks = LockManager::builder(&server.url())
        .build_lazily()
        .expect("builds");
    assert!(locks.try_lock("a").expect_err("not yet").is_redis_failure());
    server.restart();
    drop(locks.lock("a").expect("locks"));
}

#[track_caller]
fn assert_no_canary(shown: &impl fmt::Debug) {
    let text = format!("{shown:?} {shown:#?}");
    assert!(!text.contains(CANARY), "{text}");
    assert!(!text.is_empty());
}

#[test]
fn a_manager_is_shown_by_its_server_and_its_settings() {
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let (shown, _guard) = (format!("{locks:?}"), locks.lock("a").expect("locks"));
    assert!(
        shown.contains("pool_size: 64") && shown.len() < 1000,
        "{shown}"
    );
    assert_eq!(format!("{locks:?}"), shown);
}

#[test]
fn nothing_shows_the_password() {
    let server = Server::with(&["--requirepass", CANARY]);
    let url = format!("redis://:{CANARY}@127.0.0.1:{}/", server.port());
    assert_no_canary(&LockManager::builder(&url));
    let locks = LockManager::connect(&url).expect("connects");
    let lock = locks.named("a").wait(WAIT);
    let guard = lock.lock().expect("locks");
    assert_no_canary(&locks);
    assert_no_canary(&lock);
    assert_no_canary(&guard);
    assert_no_canary(&relatch::Owner::current());
    assert_no_canary(&locks.named("a").holder());
    assert!(format!("{guard:?}").contains("\"a\"") && format!("{lock:?}").contains("\"a\""));
    thread::scope(|scope| {
        scope.spawn(|| assert_no_canary(&lock.lock().map(drop).expect_err("busy")));
    });
    server.kill();
    assert_no_canary(&locks.try_lock("b").expect_err("gone"));
    assert_no_canary(&guard.unlock().expect_err("gone"));
}

/// The role of a process that installs a manager. A process can install only one, so this cannot
/// run beside other tests.
pub(crate) fn install_as_told() {
    let connect = || LockManager::connect(&role::arg("url")).expect("connects");
    assert!(matches!(
        relatch::installed(),
        Err(Error::Setup {
            cause: SetupCause::NotInstalled,
            ..
        })
    ));
    assert!(matches!(
        relatch::named("free"),
        Err(Error::Setup {
            cause: SetupCause::NotInstalled,
            ..
        })
    ));
    let error = relatch::with_lock("a", || unreachable!()).expect_err("none yet");
    assert!(
        matches!(
            error,
            Error::Setup {
                cause: SetupCause::NotInstalled,
                ..
            }
        ),
        "{error:?}"
    );
    assert!(error.to_string().contains("relatch::install"), "{error}");
    relatch::install(connect()).expect("the first");
    assert!(matches!(
        relatch::install(connect()),
        Err(Error::Setup {
            cause: SetupCause::AlreadyInstalled,
            ..
        })
    ));
    let locks = relatch::installed().expect("installed");
    let free = relatch::named("free").expect("installed");
    assert_eq!(free.key(), "free");
    let guard = free.lock().expect("locks");
    let again = relatch::try_with_lock("free", || guard.depth());
    assert_eq!(again.expect("answers"), Some(2), "re-enters");
    assert_eq!(locks.named("free").current().expect("held").depth(), 2);
    let inner = relatch::with_lock_result("free", |inner| Ok::<_, Error>(inner.depth()));
    assert_eq!(inner.expect("re-enters"), 2);
    drop(guard);
    let depth = relatch::with_lock("a", || locks.lock("a").expect("reenters").depth());
    assert_eq!(depth.expect("runs"), 2);
    assert_eq!(locks.named("a").holder().expect("answers"), None);
    role::report("installed");
}

#[test]
fn a_manager_can_be_installed_once_for_the_process() {
    let server = Server::start();
    let mut child = Worker::spawn("install", &[("url", &*server.url())]);
    child.expect_line("installed", LONG);
    assert!(child.wait(LONG).success());
    assert_eq!(server.calls("set"), 2, "one for each outermost lock");
}
