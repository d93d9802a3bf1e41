//! `keep_at_least`: a lock that is released early stays taken, and nobody owns it.

use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockManager, LostCause, Unlocked};
use relatch_rig::{LONG, Server, Worker, role};

use crate::support::{LATE, MINUTE, Rig, SOON, assert_lost, connect, delete, occupy};

#[test]
fn a_lock_that_is_released_early_stays_taken() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let lock = rig.locks.named("a").keep_at_least(MINUTE);
    let start = Instant::now();
    let guard = lock.lock().expect("locks");
    let inner = rig.locks.lock("a").expect("re-enters").unlock();
    assert_eq!(inner.expect("unlocks"), Unlocked::StillHeld { depth: 1 });
    assert!(rig.server.pttl("lock:a") < 31_000, "the lease of the hold");
    let token = guard.token().to_owned();
    let Unlocked::Kept { until, .. } = guard.unlock().expect("keeps") else {
        panic!("it was released")
    };
    let (least, most) = (start + MINUTE, Instant::now() + MINUTE);
    assert!(until + LATE >= least && until <= most, "{until:?}");
    assert_eq!(rig.value_of("a"), Some(format!("kept:{token}")));
    assert!(rig.server.pttl("lock:a") > 31_000, "the rest of a minute");
    assert!(rig.locks.held().is_empty() && lock.current().is_none());
    assert!(lock.try_lock().expect("answers").is_none(), "it is taken");
    let holder = lock.holder().expect("answers").expect("it is taken");
    assert_eq!(holder.owner(), None, "nobody holds it");
    let done = format!("{}, which is done (", relatch::Owner::current());
    assert!(holder.to_string().starts_with(&done), "{holder}");
    lock.force_unlock().expect("answers");
    // A job that has failed can leave the lock to others at once, and an error keeps it.
    let released = lock.lock().expect("locks").unlock_now();
    assert_eq!(released.expect("unlocks"), Unlocked::Released);
    let failed: Result<(), Error> = lock.with_lock_result(|_| relatch::installed().map(drop));
    assert!(matches!(failed, Err(Error::Setup { .. })));
    assert!(lock.try_lock().expect("answers").is_none(), "it is kept");
}

#[test]
fn a_lost_lock_is_not_kept() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let take = |name| {
        let lock = rig.locks.named(name).keep_at_least(MINUTE);
        lock.lock().expect("locks")
    };
    let guard = take("a");
    occupy(&rig.server, "a", MINUTE / 2);
    assert_lost(&guard.unlock(), LostCause::Taken);
    assert!(rig.server.pttl("lock:a") <= 30_000);
    let guard = take("b");
    delete(&rig.server, "b");
    assert_lost(&guard.unlock(), LostCause::Deleted);
    assert_eq!(rig.value_of("b"), None, "the key is not created again");
}

/// Redis refuses a `SET` that is the first write of a script then.
#[test]
fn a_lock_is_kept_until_its_time_and_not_for_its_lease_though_the_memory_is_full() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]);
    let locks = connect(&server);
    let lock = locks.named("a").lease(MINUTE).keep_at_least(LONG);
    drop(lock.lock().expect("locks").unlock_now()); // Redis knows all scripts but one.
    let guard = lock.lock().expect("locks");
    let kept = format!("kept:{}", guard.token());
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    let unlocked = guard.unlock();
    assert!(
        matches!(unlocked, Ok(Unlocked::Kept { .. })),
        "{unlocked:?}"
    );
    assert_eq!(server.get("lock:a"), Some(kept), "nobody owns it");
    let left = server.pttl("lock:a");
    assert!(left <= 20_000, "{left} ms");
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(locks.try_lock("a").expect("answers").is_none());
}

/// Three processes start 60 ms apart, each with a job of 5 ms. One runs it, three times out of three.
#[test]
fn one_of_three_processes_that_start_one_after_the_other_runs_a_short_job() {
    let server = Server::start();
    for round in 0..3 {
        let key = format!("nightly:{round}");
        let workers: Vec<_> = (0..3)
            .map(|number| {
                // From start to start.
                thread::sleep(Duration::from_millis(60 * u64::from(number > 0)));
                Worker::spawn("one shot", &[("url", &server.url()), ("key", &key)])
            })
            .collect();
        let said: Vec<_> = workers.iter().map(|it| it.expect_line("", LONG)).collect();
        let runs = said.iter().filter(|it| *it == "ran").count();
        assert_eq!(runs, 1, "{said:?}");
    }
}

/// The process that kept the lock is gone. That makes the lock no dead holder's.
#[test]
fn a_kept_lock_belongs_to_no_process_that_may_be_gone() {
    let server = Server::start();
    let mut worker = Worker::spawn("one shot", &[("url", &server.url()), ("key", "nightly")]);
    worker.expect_line("ran", LONG);
    assert!(worker.wait(LONG).success());
    let locks = LockManager::builder(&server.url())
        .reclaim_dead(true)
        .build()
        .expect("connects");
    assert!(
        locks
            .named("nightly")
            .try_lock_for(SOON)
            .expect("answers")
            .is_none(),
        "the job would run twice"
    );
}

/// A process that runs a short job if it gets the lock, and exits.
pub(crate) fn run_once_as_told() {
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    let lock = locks
        .named(role::arg("key"))
        .keep_at_least(Duration::from_secs(20));
    let Some(guard) = lock.try_lock().expect("answers") else {
        return role::report("left it");
    };
    thread::sleep(Duration::from_millis(5)); // The job.
    let kept = guard.unlock();
    assert!(matches!(kept, Ok(Unlocked::Kept { .. })), "{kept:?}");
    role::report("ran");
}
