//! Holds that are lost: who learns of it, how soon, and what can be asked meanwhile.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{LockGuard, LockManager, LockWatch, LostCause, Unlocked};
use relatch_rig::{
    Fault, LONG, Server, compile_preload, eventually, is_alone, throughout, time, unique_key,
    within,
};

use crate::support::{
    INJURIES, MINUTE, PERIOD, Rig, SOON, assert_lost, connect, delete, renewals, returns_by,
};

/// The leases last for as long as the machine is busy, so that no hold is lost by that.
fn often_renewed() -> Rig {
    Rig::with(|builder| builder.lease(MINUTE / 2).renew_every(PERIOD))
}

/// Checks that a hold is lost within a period after each injury, and that relatch leaves its key as
/// it is.
#[track_caller]
fn assert_lost_within_a_period(rig: &Rig) {
    for (what, injure, cause) in INJURIES {
        returns_by(PERIOD, what, || {
            let name = unique_key("a");
            let key = format!("lock:{name}");
            let guard = rig.locks.lock(&name).expect("locks");
            eventually(LONG, "the hold is renewed", || {
                renewals(&rig.locks, &name) >= 1
            });
            injure(&rig.server, &key);
            let (took, ()) = time(|| eventually(LONG, "the hold is lost", || !guard.is_valid()));
            assert_eq!(rig.locks.held()[0].lost, Some(cause), "{what}");
            assert_eq!(guard.remaining(), Duration::ZERO);
            let kind = || rig.server.query::<String>(&["TYPE", &key]);
            eventually(LONG, "the injury is done", || {
                cause == LostCause::Taken || kind() == "none"
            });
            let (stands, left) = (kind(), rig.server.pttl(&key));
            throughout(3 * PERIOD, || {
                assert_eq!(kind(), stands, "{what}: made again, or gone");
                assert!(rig.server.pttl(&key) <= left, "{what}: pushed out");
            });
            assert_lost(&guard.unlock(), cause);
            assert_eq!(kind(), stands, "{what}: after the unlock");
            if stands == "string" {
                assert_eq!(rig.value_of(&name).as_deref(), Some("other"));
            }
            took
        });
    }
}

#[test]
fn row_06_a_lock_whose_key_is_gone_is_lost_within_a_renewal_period() {
    assert_lost_within_a_period(&often_renewed());
}

/// With a listener, the loss would be reported sooner.
#[test]
fn row_06_without_a_listener_the_next_renewal_finds_the_loss() {
    let rig = often_renewed();
    rig.proxy
        .always("SUBSCRIBE", Fault::Answer(b"-NOPERM no\r\n".to_vec()));
    assert_lost_within_a_period(&rig);
    assert!(rig.proxy.commands("SUBSCRIBE") > 0 && rig.proxy.commands("CLIENT TRACKING") == 0);
}

#[test]
fn row_06_a_lock_expired_by_the_servers_clock_is_lost_within_a_renewal_period() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let (shim, ahead) = (
        compile_preload("wall_clock", dir.path()),
        dir.path().join("ahead"),
    );
    let path = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let env = [
        ("LD_PRELOAD", &*path(&shim)),
        ("WALL_CLOCK_OFFSET", &*path(&ahead)),
    ];
    let server = Server::in_env(&[], &env);
    let builder = LockManager::builder(&server.url())
        .lease(MINUTE / 2)
        .renew_every(PERIOD);
    let locks = builder.build().expect("connects");
    let mut seconds = 0;
    returns_by(PERIOD, "the server's clock is a minute ahead", || {
        let guard = locks.lock("a").expect("locks");
        eventually(LONG, "the hold is renewed", || renewals(&locks, "a") >= 1);
        let mut step = || {
            seconds += 60;
            fs::write(&ahead, seconds.to_string()).expect("a file that can be written to");
            Instant::now()
        };
        let mut stepped = step();
        let (took, ()) = time(|| {
            eventually(LONG, "the hold is lost", || {
                // If Redis executes a renewal at the moment of the step, its script finds the key
                // by the old time, and extends the lease by the new time. Then the hold survives,
                // so the clock steps again.
                if stepped.elapsed() > 10 * PERIOD {
                    stepped = step();
                }
                !guard.is_valid()
            });
        });
        assert!(!server.exists("lock:a"), "made again");
        assert_lost(&guard.unlock(), LostCause::Deleted);
        took
    });
}

#[test]
fn row_16_every_holder_learns_that_redis_was_restarted() {
    let rig = Rig::renewing();
    let other = LockManager::connect(&rig.server.url()).expect("connects");
    let keys = [(); 4].map(|()| unique_key("a"));
    let (locks, other) = (&rig.locks, &other);
    thread::scope(|scope| {
        let holders = keys.each_ref().map(|key| {
            scope.spawn(move || {
                let guard = locks.lock(key).expect("locks");
                let cause = guard.watch().wait_lost(LONG);
                assert!(!guard.is_valid());
                (cause, guard.unlock())
            })
        });
        eventually(LONG, "all are held", || locks.held().len() == keys.len());
        let waiters = keys.each_ref().map(|key| {
            [locks, other].map(|from| {
                scope.spawn(move || match from.lock(key) {
                    Ok(guard) => drop(guard),
                    Err(error) => assert!(error.is_redis_failure(), "{error:?}"),
                })
            })
        });
        eventually(LONG, "the others wait", || {
            other.stats().waited == keys.len() as u64
        });
        rig.server.restart();
        within(10 * SOON, "everybody comes back", || {
            for holder in holders {
                let (cause, unlocked) = holder.join().expect("no panic");
                let cause = cause.expect("lost");
                assert_lost(&unlocked, cause);
            }
            waiters
                .into_iter()
                .flatten()
                .for_each(|it| it.join().expect("no panic"));
        });
    });
    assert_eq!(locks.stats().lost, keys.len() as u64);
    assert!(locks.held().is_empty() && other.held().is_empty());
    for key in &keys {
        rig.assert_works(key);
        let guard = other.lock(key).expect("locks");
        assert!(guard.verify().is_ok());
    }
}

#[test]
fn on_lost_is_called_once_for_each_loss() {
    let reported = Arc::new(Mutex::new(HashMap::<String, Vec<LostCause>>::new()));
    let recorder = Arc::clone(&reported);
    let rig = Rig::with(|builder| {
        // (Behind a release whose answer is late, nobody knows whether the key was still there.)
        let builder = builder
            .lease(6 * PERIOD)
            .renew_every(PERIOD)
            .response_timeout(LONG);
        builder.on_lost(move |lost| {
            recorder
                .lock()
                .entry(lost.key.clone())
                .or_default()
                .push(lost.cause);
        })
    });
    let Rig {
        locks,
        server,
        proxy: _proxy,
        ..
    } = rig;
    let take = |key: &str, renew| locks.named(key).renew(renew).lock().expect("locks");
    let delete = |key: &str| server.query::<()>(&["DEL", &format!("lock:{key}")]);
    for renew in [true, false] {
        let name = |what| format!("{what}, {renew}");
        let guard = take(&name("unlock"), renew);
        delete(&name("unlock"));
        assert_lost(&guard.unlock(), LostCause::Deleted);
        let guard = take(&name("verify"), renew);
        delete(&name("verify"));
        assert_lost(&guard.verify(), LostCause::Deleted);
        assert_lost(&guard.ensure(PERIOD), LostCause::Deleted);
        eventually(LONG, "the callback runs", || {
            reported.lock().contains_key(&name("verify"))
        });
        drop(guard);
        let guard = take(&name("extend"), renew);
        delete(&name("extend"));
        assert_lost(&guard.set_lease(MINUTE), LostCause::Deleted);
        drop(guard);
        let guard = take(&name("kept"), renew);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        let guard = take(&name("by itself"), renew);
        delete(&name("by itself"));
        eventually(LONG, "the callback runs", || {
            reported.lock().contains_key(&name("by itself"))
        });
        throughout(2 * PERIOD, || assert!(!guard.is_valid()));
        drop(guard);
    }
    assert_eq!(locks.stats().lost, 8);
    drop(locks); // Returns when all callbacks have been called.
    let reported = reported.lock();
    assert_eq!(reported.len(), 8, "{reported:?}");
    for (key, causes) in &*reported {
        let cause = if key == "by itself, false" {
            LostCause::Expired
        } else {
            LostCause::Deleted
        };
        assert_eq!(causes, &[cause], "{key}");
    }
}

#[test]
fn a_callback_that_is_slow_or_panics_disturbs_no_other_hold() {
    let (called, goes_on) = (
        Arc::new(Mutex::new(Vec::new())),
        Arc::new(AtomicBool::new(false)),
    );
    let (calls, end) = (Arc::clone(&called), Arc::clone(&goes_on));
    let rig = Rig::with(|builder| {
        builder
            .lease(LONG)
            .renew_every(PERIOD)
            .on_lost(move |lost| {
                calls.lock().push(lost.key.clone());
                assert!(lost.key != "panics", "on purpose");
                eventually(4 * LONG, "the test is done", || end.load(Ordering::SeqCst));
            })
    });
    let kept = rig.locks.lock("kept").expect("locks");
    for key in ["panics", "slow", "queued"] {
        let guard = rig.locks.lock(key).expect("locks");
        rig.server.query::<()>(&["DEL", &format!("lock:{key}")]);
        assert_lost(&guard.unlock(), LostCause::Deleted);
    }
    eventually(LONG, "the callbacks run", || called.lock().len() == 2);
    let before = renewals(&rig.locks, "kept");
    eventually(LONG, "the hold is renewed", || {
        renewals(&rig.locks, "kept") >= before + 8
    });
    assert!(kept.is_valid());
    assert_eq!(called.lock()[..], ["panics", "slow"], "one after the other");
    assert_eq!(kept.unlock().expect("unlocks"), Unlocked::Released);
    within(LONG, "dropping the manager while a callback runs", || {
        drop(rig.locks);
    });
    goes_on.store(true, Ordering::SeqCst);
}

/// Has two threads wait for the end of a hold, and ends it by `act`. Returns what they were told,
/// and how long after that.
fn acted_on(rig: &Rig, act: impl Fn(LockGuard)) -> (Option<LostCause>, Duration) {
    let key = unique_key("a");
    let guard = rig.locks.lock(&key).expect("locks");
    let watch = guard.watch();
    let (took, early) = time(|| watch.clone().wait_lost(PERIOD));
    assert_eq!(early, None);
    assert!(took >= PERIOD && watch.is_valid(), "{took:?}");
    let wait = |watch: LockWatch| move || (watch.wait_lost(LONG), Instant::now());
    let helpers = [(); 2].map(|()| thread::spawn(wait(watch.clone())));
    act(guard);
    let acted = Instant::now();
    let ends = helpers.map(|it| it.join().expect("no panic"));
    assert!(!watch.is_valid());
    assert_eq!(ends[0].0, ends[1].0);
    assert_eq!(watch.wait_lost(LONG), ends[0].0, "at once, from now on");
    (
        ends[0].0,
        ends[0].1.max(ends[1].1).saturating_duration_since(acted),
    )
}

#[test]
fn a_watch_wakes_other_threads() {
    fn for_all_threads<T: Send + Sync + Clone + 'static>() {}
    for_all_threads::<LockWatch>();
    let rig = Rig::renewing();
    // Each try on a thread of its own: one that has lost a lock gets no other.
    let watched = |act: &(dyn Fn(LockGuard) + Sync)| {
        thread::scope(|scope| {
            scope
                .spawn(|| acted_on(&rig, act))
                .join()
                .expect("no panic")
        })
    };
    returns_by(Duration::ZERO, "hearing of the release", || {
        let (lost, took) = watched(&|guard| drop(guard));
        assert_eq!(lost, None);
        took
    });
    returns_by(PERIOD, "hearing of the loss", || {
        let (lost, took) = watched(&|guard| {
            rig.server.query::<()>(&[
                "SET",
                &format!("lock:{}", guard.key()),
                "other",
                "PX",
                "60000",
            ]);
            std::mem::forget(guard); // Only the keeper can notice the loss.
        });
        assert_eq!(lost, Some(LostCause::Taken));
        took
    });
}

/// While renewals succeed, a hold is not at risk. Once they fail, its watchers learn of it before
/// the hold is lost.
#[test]
fn a_watch_tells_that_a_hold_is_at_risk_before_it_is_lost() {
    let rig = Rig::new();
    let (lease, left) = (6 * SOON, 4 * SOON);
    let guard = rig
        .locks
        .named("a")
        .lease(lease)
        .renew_every(PERIOD)
        .lock()
        .expect("locks");
    let watches: Vec<_> = (0..20).map(|_| guard.watch()).collect();
    thread::scope(|scope| {
        let at_risk: Vec<_> = watches
            .iter()
            .map(|watch| scope.spawn(move || watch.wait_at_risk(left)))
            .collect();
        throughout(5 * SOON / 2, || {
            assert!(at_risk.iter().all(|it| !it.is_finished()), "it is renewed");
        });
        rig.proxy.refuse(true);
        rig.proxy.cut_all();
        for told in at_risk {
            let told = told.join().expect("no panic").expect("it was not released");
            assert!(told <= left && told > Duration::ZERO, "{told:?}");
        }
    });
    assert!(guard.is_valid() && watches[0].remaining() <= left);
    rig.proxy.refuse(false);
    eventually(LONG, "it is renewed again", || {
        watches[0].remaining() > left
    });
    thread::scope(|scope| {
        let at_risk = scope.spawn(|| watches[0].wait_at_risk(left));
        drop(guard);
        assert_eq!(at_risk.join().expect("no panic"), None, "it was released");
    });
    assert_eq!(watches[0].remaining(), Duration::ZERO);
}

/// Every way in which a hold can be lost ends the wait.
#[test]
fn a_watch_that_waits_for_a_risk_learns_of_each_loss() {
    let rig = Rig::renewing();
    let losses: [&dyn Fn(&str); 2] = [&|name| delete(&rig.server, name), &|_| {
        _ = rig.locks.shutdown_and_release(Duration::ZERO);
    }];
    for lose in losses {
        let guard = rig.locks.lock("a").expect("locks");
        eventually(LONG, "the hold is renewed", || {
            renewals(&rig.locks, "a") >= 1
        });
        let watch = guard.watch();
        thread::scope(|scope| {
            let at_risk = scope.spawn(|| watch.wait_at_risk(PERIOD / 10));
            lose("a");
            assert_eq!(at_risk.join().expect("no panic"), Some(Duration::ZERO));
        });
    }
}

#[test]
#[cfg(target_os = "linux")]
fn the_keeper_is_one_thread_and_starts_only_when_needed() {
    if !is_alone(
        module_path!(),
        "the_keeper_is_one_thread_and_starts_only_when_needed",
    ) {
        return;
    }
    let server = Server::start();
    let locks = connect(&server);
    assert_eq!(keepers(), 0);
    drop(locks.named("a").renew(false).lock().expect("locks"));
    let unrenewed = locks.named("b").renew(false).lock().expect("locks");
    assert_eq!(keepers(), 0);
    let guards = ["c", "d", "e"].map(|key| locks.lock(key).expect("locks"));
    one_keeper();
    drop(guards);
    drop(locks.clone());
    assert_eq!(keepers(), 1);
    drop(locks);
    assert_eq!(keepers(), 1, "a guard is a handle");
    drop(unrenewed);
    eventually(SOON, "the thread is gone", || keepers() == 0);
    let locks = connect(&server);
    let guard = locks.named("a").renew(false).lock().expect("locks");
    guard
        .set_lease(MINUTE)
        .expect("the keeper is started for it");
    one_keeper();
    drop((locks, guard));
    eventually(SOON, "the thread is gone", || keepers() == 0);
}

/// Waits until there is exactly one keeper. A new thread has the name of the thread that started
/// it, until it sets its own. The keeper starts the listener, so for a moment the listener looks
/// like a second keeper.
#[cfg(target_os = "linux")]
fn one_keeper() {
    eventually(SOON, "the keeper is one thread", || keepers() == 1);
}

/// How many threads of this process are keepers; a name is cut off at 15 bytes.
#[cfg(target_os = "linux")]
fn keepers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| "relatch-keeper".starts_with(name.trim_end()))
        .count()
}
