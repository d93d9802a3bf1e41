//! Waiting for a lock that another process holds: the waiter sends nothing until an invalidation
//! arrives, and then takes the lock quickly.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{LockManager, Unlocked};
use relatch_rig::{
    Fault, LONG, Server, SetOnDrop, eventually, is_alone, throughout, unique_key, within,
};

use crate::support::{
    ANSWER, LATE, LISTENING, MINUTE, Rig, SOON, builder, delete, occupy, take, until_tracked,
};

/// A server and two managers, which share nothing but the server.
struct Scene {
    server: Server,
    locks: LockManager,
    others: LockManager,
}

impl Scene {
    fn new() -> Scene {
        let server = Server::start();
        let [locks, others] =
            [(); 2].map(|()| LockManager::connect(&server.url()).expect("connects"));
        Scene {
            server,
            locks,
            others,
        }
    }
}

type End = fn(&Scene, &str);

/// How another client's hold can end without a release.
const ENDS: [(&str, End); 11] = [
    ("deleted", |scene, name| delete(&scene.server, name)),
    ("unlinked", |scene, name| {
        scene
            .server
            .query::<()>(&["UNLINK", &format!("lock:{name}")]);
    }),
    ("renamed", |scene, name| {
        // In the same slot of a cluster.
        let key = format!("lock:{name}");
        scene
            .server
            .query::<()>(&["RENAME", &key, &format!("elsewhere{{{key}}}")]);
    }),
    ("flushed", |scene, _| {
        scene.server.query::<()>(&["FLUSHALL"]);
    }),
    ("flushed in the background", |scene, _| {
        scene.server.query::<()>(&["FLUSHDB", "ASYNC"]);
    }),
    ("expired", |scene, name| {
        scene
            .server
            .query::<()>(&["PEXPIREAT", &format!("lock:{name}"), "1"]);
    }),
    ("force-unlocked", |scene, name| forced(&scene.locks, name)),
    ("force-unlocked from elsewhere", |scene, name| {
        forced(&scene.others, name);
    }),
    ("replaced, and then deleted", |scene, name| {
        occupy(&scene.server, name, MINUTE / 2);
        until_tracked(&scene.server, 1);
        delete(&scene.server, name);
    }),
    ("replaced for a moment", |scene, name| {
        occupy(&scene.server, name, ANSWER);
    }),
    ("cut short", |scene, name| {
        scene
            .server
            .query::<()>(&["PEXPIRE", &format!("lock:{name}"), "300"]);
    }),
];

fn forced(locks: &LockManager, name: &str) {
    locks
        .named(name)
        .force_unlock()
        .expect("answers")
        .expect("the lock was held");
}

#[test]
fn a_waiter_is_woken_however_the_hold_ends() {
    let scene = Scene::new();
    for (what, end) in ENDS {
        let name = unique_key("a");
        occupy(&scene.server, &name, MINUTE);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&scene.locks, &name));
            until_tracked(&scene.server, 1);
            let (sets, acted) = (scene.server.calls("set"), Instant::now());
            end(&scene, &name);
            let took = waiter.join().expect("no panic") - acted;
            assert!(
                took < SOON,
                "{what}: {took:?}: woken too late: was a wake-up lost?"
            );
            let asked = scene.server.calls("set") - sets;
            assert!(asked <= 8, "{what}: asked {asked} times");
        });
        assert!(!scene.server.exists(&format!("lock:{name}")));
    }
}

#[test]
fn a_waiter_is_woken_by_a_release_in_another_manager() {
    let scene = Scene::new();
    for _ in 0..20 {
        let name = unique_key("a");
        let guard = scene.others.lock(&name).expect("locks");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&scene.locks, &name));
            until_tracked(&scene.server, 1);
            let sets = scene.server.calls("set");
            let released = Instant::now();
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            let took = waiter.join().expect("no panic") - released;
            assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
            assert!(
                scene.server.calls("set") - sets <= 2,
                "the waiter asked more than twice"
            );
        });
    }
    assert_eq!(scene.server.query::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn a_waiter_takes_an_abandoned_lock_when_its_lease_ends() {
    let scene = Scene::new();
    let lease = Duration::from_secs(2);
    let start = Instant::now();
    occupy(&scene.server, "a", lease);
    let earliest = start + lease.saturating_sub(LATE / 10);
    let (at, asked) = thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&scene.locks, "a"));
        // The waiter polls until it is registered for invalidations.
        until_tracked(&scene.server, 1);
        let sets = scene.server.calls("set");
        (
            waiter.join().expect("no panic"),
            scene.server.calls("set") - sets,
        )
    });
    assert!(
        at >= earliest && at < start + lease + SOON,
        "{:?}",
        at - start
    );
    assert!(asked <= 8, "the waiter polled, {asked} times");
}

/// How many listener threads this process has.
#[cfg(target_os = "linux")]
fn listening() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let names =
        tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names
        .filter(|name| name.trim_end() == "relatch-listen")
        .count()
}

#[test]
#[cfg(target_os = "linux")]
fn no_listener_starts_while_nothing_waits_for_another_process() {
    if !is_alone(
        module_path!(),
        "no_listener_starts_while_nothing_waits_for_another_process",
    ) {
        return;
    }
    let scene = Scene::new();
    let Scene {
        server,
        locks,
        others,
    } = &scene;
    drop(locks.lock("warm-up").expect("locks"));
    server.reset_stats();
    for round in 1..=100 {
        drop(locks.lock("a").expect("locks"));
        assert_eq!(
            (server.calls("set"), server.calls("evalsha")),
            (round, round)
        );
    }
    assert_eq!(
        server.total_calls(&["get", "del"]),
        200,
        "those of the script"
    );
    assert_eq!(server.all_calls() - 1, 400, "and nothing else");

    // Three holds, each longer than the hand-off budget of 5 ms.
    for _ in 0..3 {
        locks
            .with_lock("a", || throughout(Duration::from_millis(6), || ()))
            .expect("runs");
    }
    occupy(server, "busy", MINUTE);
    assert!(locks.try_lock("busy").expect("answers").is_none());
    assert!(
        locks
            .named("busy")
            .wait(Duration::ZERO)
            .lock()
            .expect_err("busy")
            .is_timeout()
    );
    let guard = locks.lock("a").expect("locks");
    thread::scope(|scope| {
        // This thread waits behind a thread of its own process.
        scope.spawn(|| {
            assert!(
                locks
                    .named("a")
                    .try_lock_for(LATE)
                    .expect("answers")
                    .is_none()
            );
        });
    });
    drop(guard);
    assert_eq!((listening(), server.total_calls(&LISTENING)), (0, 0));

    assert!(
        locks
            .named("busy")
            .try_lock_for(LATE)
            .expect("answers")
            .is_none()
    );
    eventually(LONG, "the listener is connected", || {
        server.listeners().len() == 1
    });
    assert!(
        others
            .named("busy")
            .try_lock_for(LATE)
            .expect("answers")
            .is_none()
    );
    eventually(LONG, "both listeners are connected", || {
        server.listeners().len() == 2
    });
    assert_eq!(listening(), 2);
    // The system may still list a thread that was just joined.
    drop(scene.others);
    eventually(SOON, "one has ended", || listening() == 1);
    drop(scene.locks);
    eventually(SOON, "both have ended", || listening() == 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_hundred_waiters_share_a_listener_and_send_nothing() {
    const WAITERS: u64 = 100;
    if !is_alone(
        module_path!(),
        "a_hundred_waiters_share_a_listener_and_send_nothing",
    ) {
        return;
    }
    let Scene {
        server,
        locks,
        others: _,
    } = &Scene::new();
    (0..WAITERS).for_each(|n| occupy(server, &format!("{n}"), MINUTE));
    thread::scope(|scope| {
        let waiters: Vec<_> = (0..WAITERS)
            .map(|n| scope.spawn(move || take(locks, &format!("{n}"))))
            .collect();
        until_tracked(server, WAITERS);
        assert_eq!((listening(), server.listeners().len()), (1, 1));
        // The listener wakes all waiters when it starts to listen. Some of them had registered
        // already, and ask once more. On a busy machine, some of them do that late.
        eventually(LONG, "nobody asks for two seconds", || {
            let (sent, mut is_quiet) = (server.all_calls(), true);
            throughout(2 * SOON, || is_quiet &= server.all_calls() == sent);
            is_quiet
        });
        let released = Instant::now();
        (0..WAITERS).for_each(|n| delete(server, &format!("{n}")));
        for waiter in waiters {
            let took = waiter
                .join()
                .expect("no panic")
                .saturating_duration_since(released);
            assert!(
                took < 2 * SOON,
                "{took:?}: woken too late: was a wake-up lost?"
            );
        }
    });
    assert_eq!(server.query::<i64>(&["DBSIZE"]), 0);
}

#[test]
fn a_waiter_that_panics_with_the_lock_delays_no_other() {
    let Scene {
        server,
        locks,
        others: _,
    } = &Scene::new();
    for _ in 0..10 {
        let name = &unique_key("a");
        occupy(server, name, MINUTE);
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                let body = || locks.with_lock(name, || panic!("as the test wants it"));
                catch_unwind(AssertUnwindSafe(body)).is_err()
            });
            until_tracked(server, 1);
            let second = scope.spawn(move || take(locks, name));
            let deleted = Instant::now();
            delete(server, name);
            assert!(first.join().expect("caught"), "the closure was run");
            let took = second
                .join()
                .expect("no panic")
                .saturating_duration_since(deleted);
            assert!(took < SOON, "{took:?}: woken too late: was a wake-up lost?");
        });
        assert!(!server.exists(&format!("lock:{name}")));
    }
    assert!(locks.held().is_empty());
}

#[test]
fn a_manager_dropped_after_waiting_ends_at_once_and_leaves_nothing() {
    let scene = Scene::new();
    let before = scene.server.connections();
    for _ in 0..3 {
        let locks = LockManager::connect(&scene.server.url()).expect("connects");
        occupy(&scene.server, "a", MINUTE);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&locks, "a"));
            until_tracked(&scene.server, 1);
            delete(&scene.server, "a");
            waiter.join().expect("no panic");
        });
        let guard = locks.lock("b").expect("locks");
        guard.set_lease(MINUTE).expect("extends"); // Starts the keeper.
        drop(guard);
        throughout(LATE, || ()); // Now nothing is under way that would wake the listener.
        within(SOON / 2, "dropping the manager", || drop(locks));
        eventually(SOON, "the manager's connections are closed", || {
            scene.server.connections() == before
        });
        assert_eq!(scene.server.query::<i64>(&["DBSIZE"]), 0);
    }
}

#[test]
fn a_manager_dropped_after_waiting_ends_by_its_deadline_without_redis() {
    for what in ["paused", "gone"] {
        let server = Server::start();
        let locks = builder(&server.url())
            .response_timeout(SOON)
            .build()
            .expect("connects");
        occupy(&server, "a", MINUTE);
        assert!(
            locks
                .named("a")
                .try_lock_for(ANSWER)
                .expect("answers")
                .is_none()
        );
        assert_eq!(server.listeners().len(), 1);
        if what == "paused" {
            server.pause();
        } else {
            server.kill();
        }
        within(2 * SOON + 4 * LATE, what, || drop(locks));
    }
}

/// A waiter that knows of rivals sleeps after a wake-up, and asks only then. A new waiter sleeps
/// before its first look. That look already registers for invalidations, so no second look follows.
#[test]
fn a_waiter_with_rivals_leaves_them_time_before_it_tries() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON));
    rig.proxy
        .always("SET lock:a", Fault::DelayReply(Duration::from_millis(30)));
    let looks = || rig.proxy.commands("SET lock:a");
    // Gives the lock to another holder, and measures how soon the waiter looks.
    let holds = |number: u32| {
        let holder = format!("host-{number}-1-{number:032x}");
        let (before, start) = (looks(), Instant::now());
        rig.server
            .query::<()>(&["SET", "lock:a", &holder, "PX", "60000"]);
        eventually(LONG, "the waiter looks", || looks() > before);
        let took = start.elapsed();
        until_tracked(&rig.server, 1);
        took
    };
    occupy(&rig.server, "a", MINUTE);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| take(&rig.locks, "a"));
        until_tracked(&rig.server, 1);
        // A waiter that looked at once would need 30 ms each time, for the answer to the last look:
        // 240 ms in all. But this waiter sleeps for 105 ms or more per rival, and chance shortens a
        // sleep by half at most. So eight rivals cost it at least half of 8 x 105 ms, or 420 ms. (A
        // sleep is never shorter than requested.)
        let took: Duration = (1..=8).map(holds).sum();
        assert!(
            took >= Duration::from_millis(400),
            "{took:?}: it looks at once"
        );
        delete(&rig.server, "a");
        waiter.join().expect("no panic");
        // Tried up to ten times: the machine may be so slow that the manager forgets its rivals.
        let looks_once = || {
            occupy(&rig.server, "a", MINUTE);
            let before = looks();
            let newcomer = scope.spawn(|| take(&rig.locks, "a"));
            until_tracked(&rig.server, 1);
            throughout(ANSWER / 3, || ());
            let looked = looks() - before;
            delete(&rig.server, "a");
            newcomer.join().expect("no panic");
            looked == 1
        };
        assert!((0..10).any(|_| looks_once()), "the newcomer looked twice");
    });
}

/// Redis wakes waiters in the order of their connections, so the third could starve. The sleep
/// before each look prevents that.
#[test]
fn of_three_waiters_that_take_turns_none_starves() {
    let server = Server::start();
    let managers = [(); 3].map(|()| LockManager::connect(&server.url()).expect("connects"));
    let done = &AtomicBool::new(false);
    let turns = managers.map(|locks| (locks, AtomicU64::new(0)));
    thread::scope(|scope| {
        let _end = SetOnDrop(done);
        for (locks, turns) in &turns {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    locks
                        .with_lock("a", || thread::sleep(Duration::from_millis(3)))
                        .expect("runs");
                    turns.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let all = || {
            turns
                .iter()
                .map(|(_, turns)| turns.load(Ordering::Relaxed))
                .sum::<u64>()
        };
        eventually(LONG, "they take turns", || all() >= 200);
    });
    let turns = turns.map(|(_, turns)| turns.load(Ordering::Relaxed));
    assert!(turns.iter().all(|turns| *turns >= 20), "{turns:?}");
}
