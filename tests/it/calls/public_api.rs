//! The public interface, from the user's side.

use std::panic::catch_unwind;
use std::thread;
use std::time::Duration;

use relatch::{Error, LockGuard, LockManager, LostCause, SetupCause, Unlocked};
use relatch_rig::{LONG, Server, Worker, role};

use crate::support::{MINUTE, PERIOD, assert_lost, connect, delete};

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
    assert_eq!(locks.with_lock_result("a", |_| Ok::<_, Failure>(7)), Ok(7));
    let failed: Result<(), _> = locks.with_lock_result("a", |_| Err(Failure::OutOfPaper));
    assert_eq!(failed, Err(Failure::OutOfPaper));
    assert!(!server.exists("lock:a"));
    let steal = |guard: &LockGuard| -> Result<u32, Error> {
        guard.ensure(Duration::from_secs(5))?;
        let depth = locks.with_lock_result("a", |inner| Ok::<_, Error>(inner.depth()))?;
        assert_eq!((depth, guard.depth()), (2, 1));
        server.query::<()>(&["SET", "lock:a", "thief"]);
        guard.verify()?;
        Ok(depth)
    };
    let stolen = locks.named("a").with_lock_result(steal);
    assert_lost(&stolen, LostCause::Taken);
    assert_eq!(server.get("lock:a").as_deref(), Some("thief"));
    delete(&server, "a");
    let lost = locks.with_lock("a", || delete(&server, "a"));
    assert_lost(&lost, LostCause::Deleted);
}

#[test]
fn with_lock_result_never_masks_the_closures_error() {
    let builder = LockManager::builder_in_memory().response_timeout(PERIOD);
    let locks = builder.build().expect("it works");
    let memory = locks.memory().expect("in memory");
    let lose = || assert!(memory.lose("a", LostCause::Deleted));
    let failed: Result<(), _> = locks.with_lock_result("a", |_| {
        lose();
        Err(Failure::OutOfPaper)
    });
    assert_eq!(failed, Err(Failure::OutOfPaper));
    let failed = locks.with_lock_result("a", |_| {
        lose();
        Ok::<_, Failure>(())
    });
    let text = r#"lock "a" was lost: its key was deleted"#.to_owned();
    assert_eq!(failed, Err(Failure::Lock(text)));
    let failed: Result<(), _> = locks.with_lock_result("a", |_| {
        memory.go_away(MINUTE);
        Err(Failure::OutOfPaper)
    });
    assert_eq!(failed, Err(Failure::OutOfPaper));
    memory.go_away(Duration::ZERO);
    let ran = locks.with_lock("b", || memory.go_away(MINUTE));
    ran.expect("the closure ran under the lock, and its release has no answer");
}

#[test]
fn with_lock_result_serves_a_closure_that_returns_an_io_result() {
    let locks = LockManager::in_memory();
    let append = || std::fs::read_to_string("/nowhere/at/all");
    let failed = locks.with_lock_result("a", |_| append());
    let failed = failed.expect_err("no such file");
    assert_eq!(failed.kind(), std::io::ErrorKind::NotFound);
    let _held = locks.lock("b").expect("locks").detach();
    let lock = locks.named("b").wait(Duration::ZERO);
    let read = || -> std::io::Result<()> { lock.with_lock_result(|_| Ok(())) };
    let busy = read().expect_err("busy");
    assert_eq!(busy.kind(), std::io::ErrorKind::TimedOut);
    assert!(busy.to_string().contains("\"b\""), "{busy}");
    let inside = busy.get_ref().and_then(|it| it.downcast_ref::<Error>());
    assert!(inside.is_some_and(Error::is_timeout), "{busy:?}");
}

#[test]
fn a_panic_under_a_lock_can_be_caught_around_it() {
    let locks = LockManager::in_memory();
    let lock = locks.named("a");
    let guard = locks.lock("b").expect("locks");
    let watch = guard.watch();
    let caught = catch_unwind(|| {
        assert!(guard.is_valid() && watch.is_valid());
        locks.with_lock("a", || lock.with_lock(|| panic!("in the closure")))
    });
    assert!(caught.is_err() && guard.is_valid());
    let holder = lock.holder().expect("answers");
    assert!(holder.is_none(), "the unwinding released the lock");
}

#[test]
fn no_limit_undoes_a_wait() {
    let builder = LockManager::builder_in_memory().wait(PERIOD);
    let locks = builder.build().expect("it works");
    let guard = locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let patient = scope.spawn(|| locks.named("a").wait(None).lock().map(drop));
        let hasty = scope.spawn(|| locks.lock("a").map(drop));
        let told = hasty.join().expect("no panic");
        assert!(told.is_err_and(|error| error.is_timeout()));
        assert!(!patient.is_finished());
        drop(guard);
        let taken = patient.join().expect("no panic");
        taken.expect("waits until it is free");
    });
}

#[test]
fn what_a_hold_and_a_release_look_like_in_a_log() {
    let locks = LockManager::in_memory();
    let take = || locks.lock("a").expect("locks");
    let (outer, inner, third) = (take(), take(), take());
    let text = locks.held()[0].to_string();
    let start = format!("lock \"a\", held by {} for ", relatch::Owner::current());
    assert!(text.starts_with(&start), "{text}");
    assert!(text.contains(" (3 deep), valid for "), "{text}");
    let unlock = |guard: LockGuard| guard.unlock().expect("unlocks").to_string();
    assert_eq!(unlock(third), "still held by 2 guards");
    assert_eq!(unlock(inner), "still held by one guard");
    assert_eq!(unlock(outer), "released");
    let kept = locks.named("a").keep_at_least(LONG).lock();
    let kept = unlock(kept.expect("locks"));
    assert!(kept.starts_with("kept for "), "{kept}");
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
    assert!(error.is_redis_failure(), "{error:?}");
    assert!(error.to_string().contains(path), "{error}");
}

/// The role of a process that installs a manager. A process can install only one, so this cannot
/// run beside other tests.
pub(crate) fn install_as_told() {
    let connect = || LockManager::connect(&role::arg("url")).expect("connects");
    let of_setup = |error: Error| match error {
        Error::Setup { cause, .. } => cause,
        other => panic!("{other:?}"),
    };
    let error = relatch::with_lock("a", || unreachable!()).expect_err("none yet");
    assert!(error.to_string().contains("relatch::install"), "{error}");
    for refused in [
        Err(error),
        relatch::installed().map(drop),
        relatch::named("free").map(drop),
    ] {
        let cause = of_setup(refused.expect_err("none yet"));
        assert_eq!(cause, SetupCause::NotInstalled);
    }
    relatch::install(connect()).expect("the first");
    let second = relatch::install(connect()).expect_err("the second");
    assert_eq!(of_setup(second), SetupCause::AlreadyInstalled);
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
