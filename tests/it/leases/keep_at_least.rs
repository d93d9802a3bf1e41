//! `keep_at_least`: a lock that is released early stays taken, and nobody owns it.

use std::thread;
use std::time::{Duration, Instant};

use relatch::{Error, LockManager, LostCause, Unlocked};
use relatch_rig::{Fault, LONG, Server, Worker, eventually, role, throughout};

use crate::support::{
    ANSWER, LATE, LEASE, MINUTE, PERIOD, Rig, SOON, assert_lost, broken_replies, connect, delete,
    renewals_of,
};

/// For how long locks are kept here.
const KEPT: Duration = Duration::from_millis(400);

#[test]
fn a_lock_that_is_released_early_stays_taken() {
    let rig = Rig::new();
    let start = Instant::now();
    let guard = rig
        .locks
        .named("a")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    let (token, owner) = (
        guard.token().to_owned(),
        relatch::Owner::current().to_string(),
    );
    let Unlocked::Kept { until, .. } = guard.unlock().expect("keeps") else {
        panic!("it was released")
    };
    assert!(
        until + LATE >= start + MINUTE && until <= Instant::now() + MINUTE,
        "{until:?}"
    );
    assert_eq!(rig.value_of("a"), Some(format!("kept:{token}")));
    assert!(rig.server.pttl("lock:a") > 31_000, "the rest of a minute");
    assert!(
        rig.locks.held().is_empty() && rig.locks.named("a").current().is_none(),
        "nobody holds it"
    );
    assert!(
        rig.locks.try_lock("a").expect("answers").is_none(),
        "it is taken"
    );
    let holder = rig
        .locks
        .named("a")
        .holder()
        .expect("answers")
        .expect("it is taken");
    assert_eq!(holder.owner(), None, "nobody holds it");
    assert!(
        holder
            .to_string()
            .starts_with(&format!("{owner}, which is done (")),
        "{holder}"
    );
}

#[test]
fn the_thread_that_kept_a_lock_waits_for_it_like_any_other() {
    let rig = Rig::new();
    let start = Instant::now();
    let kept = rig
        .locks
        .named("a")
        .keep_at_least(KEPT)
        .lock()
        .expect("locks")
        .unlock()
        .expect("keeps");
    let again = rig.locks.lock("a").expect("locks");
    let waited = start.elapsed();
    // On a machine that is held up, it may have been released after that time.
    assert!(waited >= KEPT || kept == Unlocked::Released, "{waited:?}");
    assert!(waited < KEPT + LONG / 2, "{waited:?}");
    assert_eq!(again.unlock().expect("unlocks"), Unlocked::Released);
}

#[test]
fn a_lock_that_is_held_for_longer_is_released() {
    let rig = Rig::new();
    let lock = rig.locks.named("a").keep_at_least(PERIOD);
    let guard = lock.lock().expect("locks");
    throughout(PERIOD + LATE, || assert!(guard.is_valid()));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_eq!(rig.value_of("a"), None);
}

#[test]
fn only_the_outermost_release_keeps() {
    let rig = Rig::new();
    let lock = rig.locks.named("a").keep_at_least(MINUTE);
    let outer = lock.lock().expect("locks");
    let inner = rig.locks.lock("a").expect("re-enters");
    assert_eq!(
        inner.unlock().expect("unlocks"),
        Unlocked::StillHeld { depth: 1 }
    );
    assert!(outer.is_valid());
    assert!(rig.server.pttl("lock:a") < 31_000, "the lease of the hold");
    drop(outer);
    assert!(rig.server.pttl("lock:a") > 31_000, "the rest of a minute");
}

/// Redis refuses a `SET` that is the first write of a script then.
#[test]
fn a_lock_is_kept_until_its_time_and_not_for_its_lease_though_the_memory_is_full() {
    let server = Server::with(&["--maxmemory-policy", "noeviction"]);
    let builder = LockManager::builder(&server.url()).lease(MINUTE);
    let locks = builder.build().expect("connects");
    let lock = locks.named("a").keep_at_least(5 * KEPT);
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
    assert!(left <= 2_000, "{left} ms");
    server.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(locks.try_lock("a").expect("answers").is_none());
    eventually(LONG, "the time is over", || !server.exists("lock:a"));
}

#[test]
fn a_kept_lock_is_not_renewed() {
    let rig = Rig::renewing();
    let lock = rig.locks.named("a").keep_at_least(LEASE + KEPT);
    let guard = lock.lock().expect("locks");
    throughout(2 * PERIOD, || assert!(guard.is_valid()));
    drop(guard);
    let renewed = rig.locks.stats().renewed;
    eventually(LONG, "the key expires", || rig.value_of("a").is_none());
    assert_eq!(
        (rig.locks.stats().renewed, rig.locks.stats().lost),
        (renewed, 0)
    );
}

#[test]
fn waiters_in_and_outside_of_the_process_get_a_kept_lock_when_it_expires() {
    let server = Server::start();
    let (here, there) = (connect(&server), connect(&server));
    let start = Instant::now();
    let guard = here.named("a").keep_at_least(KEPT).lock().expect("locks");
    thread::scope(|scope| {
        let waiters = [&here, &there].map(|locks| {
            scope.spawn(move || {
                let guard = locks.lock("a").expect("locks");
                let waited = start.elapsed();
                drop(guard);
                waited
            })
        });
        eventually(LONG, "one waits in the queue, one behind Redis", || {
            there.stats().waited == 1
        });
        drop(guard);
        for waiter in waiters {
            let waited = waiter.join().expect("no panic");
            assert!(waited >= KEPT && waited < KEPT + LONG / 2, "{waited:?}");
        }
    });
}

/// A rig whose Redis knows the script, so that one command is one execution.
fn taught() -> Rig {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    drop(
        rig.locks
            .named("taught")
            .keep_at_least(MINUTE)
            .lock()
            .expect("locks"),
    );
    rig
}

#[test]
fn a_lost_answer_to_keeping_is_settled() {
    let rig = taught();
    for (n, fault) in broken_replies().into_iter().enumerate() {
        let name = format!("a{n}");
        let guard = rig
            .locks
            .named(&name)
            .keep_at_least(MINUTE)
            .lock()
            .expect("locks");
        let keep = format!("EVALSHA * 1 lock:{name} * *");
        rig.proxy.on(&keep, fault.clone());
        let kept = guard.unlock();
        assert!(
            matches!(kept, Ok(Unlocked::Kept { .. })),
            "{fault:?}: {kept:?}"
        );
        assert_eq!(
            rig.proxy.commands(&keep),
            2,
            "{fault:?}: it was executed, and sent again"
        );
        assert!(
            rig.server.pttl(&format!("lock:{name}")) > 31_000,
            "{fault:?}: the rest of a minute"
        );
    }
}

#[test]
fn nothing_that_comes_late_changes_a_kept_lock() {
    const KEEP: &str = include_str!("../../../src/client/commands/lua/keep.lua");
    let rig = Rig::new();
    let guard = rig
        .locks
        .named("a")
        .keep_at_least(MINUTE / 2)
        .lock()
        .expect("locks");
    let token = guard.token().to_owned();
    let renewal = renewals_of(&rig.server, "a");
    assert!(matches!(guard.unlock(), Ok(Unlocked::Kept { .. })));
    let mut renewal: Vec<_> = renewal.split(' ').collect();
    renewal.extend([&*token, "60000"]);
    assert_eq!(rig.server.query::<i64>(&renewal), -1, "a late renewal");
    assert_eq!(
        rig.server
            .query::<i64>(&["EVAL", KEEP, "1", "lock:a", &token, "60000"]),
        1,
        "a late release"
    );
    assert!(rig.server.pttl("lock:a") <= 30_000);
}

/// Without an answer, the keeper must not delete what was to be kept.
#[test]
fn a_lock_whose_keeping_has_no_answer_is_not_deleted() {
    let rig = Rig::new();
    let guard = rig
        .locks
        .named("a")
        .lease(MINUTE / 2)
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    rig.proxy.black_hole(true);
    let error = guard.unlock().expect_err("no answer");
    assert!(
        matches!(error, Error::Unconfirmed { at_most, .. } if at_most > MINUTE / 2),
        "the keeping may have been executed: {error:?}"
    );
    rig.proxy.black_hole(false);
    throughout(2 * ANSWER, || {
        assert!(rig.value_of("a").is_some(), "nobody deletes it");
    });
    assert_eq!(rig.locks.stats().late_releases, 0);
    assert!(rig.server.pttl("lock:a") <= 30_000, "nor was it kept");
}

#[test]
fn a_lock_whose_keeping_has_no_answer_is_free_after_its_time() {
    let rig = Rig::new();
    let (start, least) = (Instant::now(), 4 * ANSWER);
    let guard = rig
        .locks
        .named("a")
        .lease(MINUTE)
        .keep_at_least(least)
        .lock()
        .expect("locks");
    rig.proxy.black_hole(true);
    let error = guard.unlock().expect_err("no answer");
    assert!(matches!(error, Error::Unconfirmed { .. }), "{error:?}");
    rig.proxy.black_hole(false);
    eventually(LONG, "the keeper deletes it", || {
        rig.value_of("a").is_none()
    });
    assert!(start.elapsed() >= least, "{:?}", start.elapsed());
}

#[test]
fn a_lost_lock_is_not_kept_though_an_answer_is_missing() {
    let rig = taught();
    for (name, fault) in [("a", Fault::CutBeforeForward), ("b", Fault::CutBeforeReply)] {
        let guard = rig
            .locks
            .named(name)
            .keep_at_least(MINUTE)
            .lock()
            .expect("locks");
        delete(&rig.server, name);
        rig.proxy.on(&format!("EVALSHA * 1 lock:{name} * *"), fault);
        assert_lost(&guard.unlock(), LostCause::Deleted);
    }
}

#[test]
fn a_lost_lock_is_not_kept() {
    let rig = Rig::new();
    let guard = rig
        .locks
        .named("a")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    rig.server
        .query::<()>(&["SET", "lock:a", "other", "PX", "1000"]);
    assert_lost(&guard.unlock(), LostCause::Taken);
    assert!(rig.server.pttl("lock:a") <= 1000);
    let guard = rig
        .locks
        .named("b")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    rig.server.query::<()>(&["DEL", "lock:b"]);
    assert_lost(&guard.unlock(), LostCause::Deleted);
    assert_eq!(rig.value_of("b"), None, "the key is not created again");
}

#[test]
fn keeping_and_reclaiming_contradict_each_other() {
    let rig = Rig::new();
    let lock = rig.locks.named("a").keep_at_least(KEPT);
    for (wrong, value) in [
        (lock.clone().reclaim_dead(true), "400ms"),
        (
            lock.keep_at_least(Duration::MAX),
            "18446744073709551615.999999999s",
        ),
    ] {
        let error = wrong.lock().expect_err("cannot work");
        let text = error.to_string();
        assert!(
            matches!(
                error,
                Error::InvalidOption {
                    option: "keep_at_least",
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(
            text.starts_with(&format!("option `keep_at_least` cannot be {value}: ")),
            "{text}"
        );
    }
}

/// Three processes start 60 ms apart, each with a job of 5 ms. One runs it, ten times out of ten.
#[test]
fn one_of_three_processes_that_start_one_after_the_other_runs_a_short_job() {
    let server = Server::start();
    for round in 0..10 {
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

/// In the middle of a release, the process of a kept lock may stop: others see a held lock.
#[test]
fn a_slow_answer_to_keeping_changes_nothing() {
    let rig = taught();
    let guard = rig
        .locks
        .named("a")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    rig.proxy
        .on("EVALSHA * 1 lock:a * *", Fault::DelayReply(ANSWER / 2));
    assert!(matches!(guard.unlock(), Ok(Unlocked::Kept { .. })));
    assert!(rig.locks.try_lock("a").expect("answers").is_none());
}

/// The first try to keep the lock has no answer, and when the second is sent, the time is over.
#[test]
fn a_lock_whose_time_ends_during_its_release_is_not_unconfirmed() {
    let rig = Rig::new();
    let guard = rig
        .locks
        .named("a")
        .keep_at_least(KEPT)
        .lock()
        .expect("locks");
    let taken = Instant::now();
    rig.proxy.on("EVALSHA * 1 lock:a", Fault::SwallowCommand);
    eventually(LONG, "its time is nearly over", || {
        taken.elapsed() + ANSWER / 4 > KEPT
    });
    guard.unlock().expect("Redis answers the second try");
    eventually(LONG, "the lock is free", || rig.value_of("a").is_none());
}

#[test]
fn the_longest_time_that_any_reentry_asks_for_counts() {
    let rig = Rig::new();
    let outer = rig.locks.lock("a").expect("locks");
    drop(
        rig.locks
            .named("a")
            .keep_at_least(MINUTE)
            .lock()
            .expect("re-enters"),
    );
    drop(
        rig.locks
            .named("a")
            .keep_at_least(SOON)
            .lock()
            .expect("re-enters"),
    );
    assert!(matches!(outer.unlock(), Ok(Unlocked::Kept { .. })));
    assert!(rig.server.pttl("lock:a") > 31_000, "the rest of a minute");
}

/// The time counts from the reentry that asked for it.
#[test]
fn a_late_reentry_keeps_the_lock_for_all_of_its_time() {
    let rig = Rig::new();
    let outer = rig
        .locks
        .named("a")
        .keep_at_least(MINUTE)
        .lock()
        .expect("locks");
    throughout(SOON, || assert!(outer.is_valid()));
    let asked = Instant::now();
    drop(
        rig.locks
            .named("a")
            .keep_at_least(MINUTE)
            .lock()
            .expect("re-enters"),
    );
    let Ok(Unlocked::Kept { until, .. }) = outer.unlock() else {
        panic!("it was released")
    };
    assert!(until + LATE >= asked + MINUTE, "a second too short");
}

#[test]
fn a_job_that_has_failed_can_leave_the_lock_to_others_at_once() {
    let rig = Rig::new();
    let lock = rig.locks.named("a").keep_at_least(MINUTE);
    let guard = lock.lock().expect("locks");
    assert_eq!(guard.unlock_now().expect("unlocks"), Unlocked::Released);
    assert_eq!(rig.value_of("a"), None);
    let (outer, inner) = (lock.lock().expect("locks"), lock.lock().expect("re-enters"));
    assert!(matches!(inner.unlock_now(), Ok(Unlocked::StillHeld { .. })));
    assert_eq!(outer.unlock().expect("unlocks"), Unlocked::Released);
    let failed: Result<(), Error> = lock.with_lock_result(|_| relatch::installed().map(drop));
    assert!(matches!(failed, Err(Error::Setup { .. })));
    assert!(
        rig.value_of("a")
            .is_some_and(|value| value.starts_with("kept:")),
        "an error keeps it"
    );
}
