//! Several locks at a time: all or none, one after the other, in an order that all callers share;
//! and a lock inside of one that is lost.

use std::env;
use std::thread;
use std::time::{Duration, Instant};

use redis::Client;
use relatch::{Error, LockGuard, LockManager, LostCause, StopHandle, Unlocked};
use relatch_rig::{
    Cluster, ClusterSetup, Fault, LONG, Server, Worker, eventually, role, throughout, time, within,
};

use crate::support::{
    ANSWER, MINUTE, PERIOD, Rig, SOON, assert_lost, behind, broken_replies, connect, delete,
    occupy, renewals, returns_by, take,
};
use crate::turns::mutual_exclusion::{COUNTING, increment, total};

const NAMES: [&str; 3] = ["a", "b", "c"];

/// Checks that none of the three locks is in Redis.
#[track_caller]
fn assert_free(server: &Server) {
    let left: Vec<_> = NAMES
        .iter()
        .filter(|name| server.exists(&format!("lock:{name}")))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn several_locks_are_taken_and_released() {
    let rig = Rig::new();
    let guard = rig
        .locks
        .several(["c", "a", "b", "a"])
        .lock()
        .expect("locks");
    assert_eq!(
        guard.keys().collect::<Vec<_>>(),
        NAMES,
        "sorted, and each once"
    );
    assert!(guard.remaining() > Duration::from_secs(20));
    for name in NAMES {
        let one = rig
            .locks
            .named(name)
            .current()
            .expect("this thread holds it");
        assert_eq!(rig.value_of(name).as_deref(), Some(one.token()));
        assert_eq!(one.depth(), 2, "it counts as one guard");
    }
    assert_eq!(rig.locks.stats().acquired, 1 + 3, "with the warm-up's");
    guard.ensure(Duration::from_secs(5)).expect("held");
    guard.confirm(Duration::from_secs(5)).expect("held");
    guard.unlock().expect("unlocks");
    assert_free(&rig.server);
    assert!(rig.locks.held().is_empty());
    assert_eq!(
        rig.locks
            .several(NAMES)
            .with_lock(|| rig.locks.held().len())
            .expect("locks"),
        3
    );
    let sum = rig
        .locks
        .several(vec!["a".to_owned(), "b".to_owned()])
        .with_lock_result(|guard| {
            guard.confirm(Duration::ZERO)?;
            Ok::<_, Error>(guard.keys().count())
        });
    assert_eq!(sum.expect("locks"), 2);
    assert_free(&rig.server);
}

#[test]
fn each_lock_costs_two_commands() {
    let rig = Rig::new();
    drop(rig.locks.several(NAMES).lock().expect("locks"));
    let sent = rig.proxy.log().len();
    rig.locks
        .several(NAMES)
        .lock()
        .expect("locks")
        .unlock()
        .expect("unlocks");
    assert_eq!(
        rig.proxy.log().split_off(sent),
        ["SET", "SET", "SET", "EVALSHA", "EVALSHA", "EVALSHA"]
    );
}

#[test]
fn no_key_or_too_many_are_refused() {
    let rig = Rig::new();
    let sent = rig.proxy.log().len();
    let none: [&str; 0] = [];
    let many: Vec<_> = (0..65).map(|n| n.to_string()).collect();
    for refused in [
        rig.locks.several(none).lock().map(drop),
        rig.locks.several(&many).with_lock(|| ()),
    ] {
        let error = refused.expect_err("it cannot work");
        assert!(matches!(error, Error::InvalidOption { .. }), "{error:?}");
    }
    assert!(matches!(
        rig.locks.several(["a", ""]).try_lock(),
        Err(Error::InvalidKey { .. })
    ));
    assert_eq!(rig.proxy.log().len(), sent, "nothing is sent");
    assert!(rig.locks.held().is_empty());
    drop(rig.locks.several(&many[..64]).lock().expect("locks"));
}

#[test]
fn if_one_is_busy_those_behind_it_are_free_for_others_and_those_before_it_are_kept() {
    let server = Server::start();
    let [locks, others] = [(); 2].map(|()| connect(&server));
    occupy(&server, "b", MINUTE);
    assert!(locks.several(NAMES).try_lock().expect("answers").is_none());
    assert!(!server.exists("lock:a") && !server.exists("lock:c") && locks.held().is_empty());
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            locks
                .several(NAMES)
                .lock()
                .map(|guard| guard.keys().count())
        });
        eventually(LONG, "it waits for `b`", || server.tracked_keys() == 1);
        throughout(PERIOD, || assert!(!waiter.is_finished()));
        assert!(
            others.try_lock("a").expect("answers").is_none(),
            "it is kept"
        );
        drop(others.try_lock("c").expect("answers").expect("it is free"));
        delete(&server, "b");
        assert_eq!(waiter.join().expect("no panic").expect("locks"), 3);
    });
    assert_free(&server);
}

#[test]
fn a_stop_ends_the_wait_for_several_and_leaves_none() {
    let server = Server::start();
    let locks = connect(&server);
    let stop = StopHandle::new();
    occupy(&server, "b", MINUTE);
    let wanted = locks.several(NAMES).options(|lock| lock.stopped_by(&stop));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| wanted.lock().map(drop));
        eventually(LONG, "it waits for `b`", || server.tracked_keys() == 1);
        throughout(PERIOD, || assert!(!waiter.is_finished()));
        stop.stop();
        let stopped = waiter.join().expect("no panic");
        assert!(
            matches!(&stopped, Err(Error::Stopped { key, .. }) if key == "b"),
            "{stopped:?}"
        );
    });
    delete(&server, "b");
    assert_free(&server);
    assert!(wanted.try_lock().is_err(), "it stays stopped");
    assert!(
        locks
            .several(NAMES)
            .try_lock()
            .is_ok_and(|guard| guard.is_some())
    );
}

#[test]
fn the_options_of_a_set_are_those_of_each_of_its_locks() {
    let rig = Rig::new();
    let set = rig
        .locks
        .several(NAMES)
        .options(|lock| lock.fenced(true).lease(4 * MINUTE).reentrant(false));
    let guard = set.lock().expect("locks");
    for name in NAMES {
        assert!(guard.fence(name).is_some(), "{name}");
        assert!(rig.server.pttl(&format!("lock:{name}")) > 200_000, "{name}");
    }
    assert!(matches!(set.try_lock(), Err(Error::AlreadyHeld { .. })));
    drop(guard);
    let busy = thread::scope(|scope| {
        let _b = rig.locks.lock("b").expect("locks");
        let other = scope.spawn(|| set.try_with_lock(|| ()));
        other.join().expect("no panic").expect("answers")
    });
    assert_eq!(busy, None);
    assert_eq!(set.try_with_lock(|| 7).expect("answers"), Some(7));
    assert_free(&rig.server);
    let cannot = set.options(|lock| lock.lease(Duration::ZERO)).lock();
    assert!(
        matches!(cannot, Err(Error::InvalidOption { .. })),
        "{cannot:?}"
    );
}

#[test]
fn all_have_one_deadline_and_an_error_leaves_none() {
    let rig = Rig::new();
    occupy(&rig.server, "c", MINUTE);
    returns_by(ANSWER, "a wait for several", || {
        occupy(&rig.server, "b", ANSWER * 2 / 3); // The wait for `b` counts, too.
        let asked = Instant::now();
        assert!(
            rig.locks
                .several(NAMES)
                .try_lock_for(ANSWER)
                .expect("answers")
                .is_none()
        );
        assert!(asked.elapsed() >= ANSWER);
        asked.elapsed()
    });
    occupy(&rig.server, "b", SOON / 2);
    let hasty = LockManager::builder(&rig.server.url())
        .wait(SOON)
        .build()
        .expect("connects");
    let error = hasty.several(NAMES).lock().expect_err("busy");
    let Error::Timeout {
        key, held, waited, ..
    } = &error
    else {
        panic!("{error:?}")
    };
    assert!(*waited >= SOON, "from the call on: {waited:?}");
    assert_eq!((key.as_str(), &held[..]), ("c", &[][..]), "what it held");
    rig.server.query::<()>(&["DEL", "lock:c"]);
    rig.server.query::<()>(&["RPUSH", "lock:b", "a list"]);
    let error = rig
        .locks
        .several(NAMES)
        .lock()
        .expect_err("that is no lock");
    assert!(
        matches!(&error, Error::NotALock { key, .. } if key == "b"),
        "{error:?}"
    );
    rig.server.query::<()>(&["DEL", "lock:b"]);
    assert_free(&rig.server);
    assert!(rig.locks.held().is_empty() && hasty.held().is_empty());
}

#[test]
fn what_the_thread_has_already_is_entered_again() {
    let rig = Rig::new();
    let b = rig.locks.lock("b").expect("locks");
    let sets = rig.proxy.commands("SET");
    let all = rig.locks.several(NAMES).lock().expect("locks");
    assert_eq!((b.depth(), rig.proxy.commands("SET") - sets), (2, 2));
    all.unlock().expect("unlocks");
    assert_eq!(b.depth(), 1);
    assert!(rig.server.exists("lock:b") && !rig.server.exists("lock:a"));
    // Only the last guard releases: here that is the set's.
    let all = rig.locks.several(NAMES).lock().expect("locks");
    assert_eq!(
        b.unlock().expect("unlocks"),
        Unlocked::StillHeld { depth: 1 }
    );
    drop(all);
    assert_free(&rig.server);
}

#[test]
fn lost_answers_leave_no_key() {
    for fault in broken_replies() {
        let rig = Rig::new();
        rig.proxy.on("SET lock:b", fault.clone());
        let all = within(LONG, "another attempt", || rig.locks.several(NAMES).lock())
            .expect("takes them");
        let held: Vec<_> = NAMES
            .iter()
            .map(|name| {
                rig.locks
                    .named(name)
                    .current()
                    .expect("held")
                    .token()
                    .to_owned()
            })
            .collect();
        let stored: Vec<_> = NAMES.iter().filter_map(|name| rig.value_of(name)).collect();
        assert_eq!(held, stored, "{fault:?}");
        rig.proxy
            .on(&format!("EVALSHA * 1 lock:b {}", held[1]), fault.clone());
        all.unlock().expect("another try releases them");
        assert_eq!(rig.proxy.fired(), 2, "{fault:?}");
        eventually(LONG, "no key is left", || {
            NAMES.iter().all(|name| rig.value_of(name).is_none())
        });
        throughout(2 * PERIOD, || assert_free(&rig.server));
    }
}

/// The claims were executed, so their keys must not count as somebody else's.
#[test]
fn a_single_try_does_not_report_its_own_locks_as_busy() {
    for fault in broken_replies() {
        let rig = Rig::new();
        rig.proxy.on("SET lock:b", fault.clone());
        let all = rig.locks.several(NAMES).try_lock().expect("answers");
        all.unwrap_or_else(|| panic!("{fault:?}: they are free"))
            .unlock()
            .expect("unlocks");
        assert_eq!(rig.proxy.fired(), 1, "{fault:?}");
    }
}

/// Redis executes the claims long after the manager has given up, and is gone.
#[test]
fn a_manager_dropped_after_giving_up_several_leaves_no_key() {
    let rig = Rig::new();
    rig.proxy
        .always("SET lock:b", Fault::DelayCommand(6 * ANSWER));
    assert!(
        rig.locks.several(["b", "c"]).try_lock().is_err(),
        "no answer"
    );
    let Rig {
        locks,
        proxy,
        server,
        ..
    } = rig;
    drop(locks);
    eventually(LONG, "the claims are executed", || {
        server.calls("set") == proxy.commands("SET lock:b") + proxy.commands("SET lock:c")
    });
    eventually(SOON, "no key without a holder is left", || {
        !server.exists("lock:b") && !server.exists("lock:c")
    });
}

#[test]
fn a_limit_holds_for_all_keys_together() {
    let rig = Rig::new();
    let names: Vec<_> = (0..8).map(|n| n.to_string()).collect();
    rig.proxy.always("SET", Fault::DelayReply(ANSWER / 2));
    returns_by(ANSWER, "a wait for eight locks", || {
        let (took, taken) = time(|| rig.locks.several(&names).try_lock_for(ANSWER / 3));
        assert!(!matches!(taken, Ok(Some(_))), "no answer can come in time");
        took
    });
    rig.proxy.clear();
    eventually(LONG, "no key is left", || {
        names.iter().all(|name| rig.value_of(name).is_none())
    });
}

/// All answers together take longer than an attempt and a release may.
#[test]
fn a_slow_link_has_time_for_an_answer_for_each_of_many_locks() {
    let rig = Rig::with(|builder| builder.response_timeout(SOON).connect_timeout(SOON));
    let names: Vec<_> = (0..12).map(|n| n.to_string()).collect();
    rig.proxy.always("SET", Fault::DelayReply(SOON / 5));
    let (before, asked) = (rig.locks.stats().time_waited.sum, Instant::now());
    let all = rig
        .locks
        .several(&names)
        .try_lock()
        .expect("answers")
        .expect("they are free");
    let waited = rig.locks.stats().time_waited.sum.saturating_sub(before);
    assert!(
        waited <= asked.elapsed(),
        "{waited:?}: no lock waits for those before it"
    );
    assert!(asked.elapsed() > 2 * SOON);
    all.unlock().expect("unlocks");
    assert!(names.iter().all(|name| rig.value_of(name).is_none()));
}

#[test]
fn a_release_without_an_answer_does_not_hide_that_the_outer_lock_was_lost() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let outer = rig.locks.lock("outer").expect("locks");
    let inner = rig.locks.lock("inner").expect("locks");
    let set = rig.locks.several(["x", "y"]).lock().expect("locks");
    delete(&rig.server, "outer");
    assert_lost(&outer.verify(), LostCause::Deleted);
    rig.proxy.black_hole(true);
    assert!(matches!(inner.unlock(), Err(Error::OuterLost { .. })));
    assert!(matches!(set.unlock(), Err(Error::OuterLost { .. })));
    rig.proxy.black_hole(false);
}

#[test]
fn an_answer_that_comes_after_the_lease_takes_none() {
    let rig = Rig::with(|builder| {
        builder
            .lease(SOON)
            .response_timeout(LONG)
            .tolerate_outage(LONG)
    });
    rig.proxy.on("SET lock:b", Fault::DelayReply(SOON * 3 / 2));
    let all = rig
        .locks
        .several(NAMES)
        .lock()
        .expect("another attempt takes them");
    assert_eq!(rig.proxy.fired(), 1);
    all.confirm(Duration::ZERO).expect("they are held");
    all.unlock().expect("unlocks");
    throughout(PERIOD, || assert_free(&rig.server));
}

#[test]
fn an_outage_leaves_nothing_held() {
    let rig = Rig::new();
    rig.server.reset_stats();
    rig.proxy.hold_replies(true);
    let error = rig.locks.several(NAMES).lock().expect_err("no answer");
    assert!(error.is_redis_failure(), "{error:?}");
    assert!(rig.locks.held().is_empty());
    assert!(rig.server.calls("set") >= 1, "a claim was executed");
    rig.proxy.hold_replies(false);
    rig.proxy.cut_all();
    eventually(LONG, "the keeper deletes what may be left", || {
        NAMES.iter().all(|name| rig.value_of(name).is_none())
    });
    eventually(LONG, "they can be taken", || {
        rig.locks
            .several(NAMES)
            .try_lock()
            .is_ok_and(|it| it.is_some())
    });
}

#[test]
fn if_one_is_lost_the_set_is_lost_and_the_others_are_released() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let all = rig.locks.several(NAMES).lock().expect("locks");
    delete(&rig.server, "b");
    let confirmed = all.confirm(Duration::ZERO);
    assert!(
        matches!(&confirmed, Err(Error::Lost { key, .. }) if key == "b"),
        "{confirmed:?}"
    );
    assert!(all.remaining().is_zero());
    assert!(
        all.ensure(Duration::ZERO)
            .is_err_and(|error| error.is_lost())
    );
    assert_lost(&all.unlock(), LostCause::Deleted);
    assert_free(&rig.server);
    let lost = rig
        .locks
        .several(NAMES)
        .with_lock(|| delete(&rig.server, "a"));
    assert!(
        matches!(&lost, Err(Error::Lost { key, .. }) if key == "a"),
        "{lost:?}"
    );
    assert_free(&rig.server);
}

#[test]
fn the_guard_of_a_set_tells_what_happened_to_each() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    // A lock that has another guard, and is lost.
    let outer = rig.locks.lock("b").expect("locks");
    let lost = rig.locks.several(NAMES).with_lock(|| {
        delete(&rig.server, "b");
        assert_lost(&outer.verify(), LostCause::Deleted);
    });
    assert!(
        matches!(&lost, Err(Error::Lost { key, .. }) if key == "b"),
        "{lost:?}"
    );
    drop(outer);
    // A loss says more than a release without an answer, and that keeps to its limit.
    returns_by(ANSWER, "the release of a set in a black hole", || {
        let all = rig.locks.several(NAMES).lock().expect("locks");
        delete(&rig.server, "b");
        assert!(all.confirm(Duration::ZERO).is_err());
        rig.proxy.black_hole(true);
        let (took, unlocked) = time(|| all.unlock());
        assert!(
            matches!(&unlocked, Err(Error::Lost { key, .. }) if key == "b"),
            "{unlocked:?}"
        );
        rig.proxy.black_hole(false);
        rig.proxy.cut_all();
        eventually(LONG, "the others are deleted", || {
            NAMES.iter().all(|it| rig.value_of(it).is_none())
        });
        took
    });
    // A lock that is to be kept.
    let kept = rig
        .locks
        .named("a")
        .keep_at_least(2 * MINUTE)
        .lock()
        .expect("locks");
    let all = rig.locks.several(NAMES).lock().expect("locks");
    drop(kept);
    all.unlock().expect("unlocks");
    assert!(rig.server.pttl("lock:a") > 61_000 && rig.value_of("b").is_none());
}

#[test]
fn ensure_renews_a_set_of_which_too_little_is_left() {
    // Two seconds remain for the answers.
    let rig = Rig::with(|builder| builder.lease(4 * SOON).renew(false));
    let all = rig.locks.several(NAMES).lock().expect("locks");
    let span = 2 * SOON;
    eventually(LONG, "less is left", || all.remaining() < span);
    all.ensure(span).expect("renews them");
    assert!(all.remaining() + PERIOD >= span, "{:?}", all.remaining());
    assert!(matches!(
        all.ensure(MINUTE),
        Err(Error::InvalidOption { .. })
    ));
}

#[test]
fn a_set_of_which_one_lock_may_not_be_extended_sends_nothing() {
    let rig = Rig::with(|builder| builder.renew(false).response_timeout(SOON));
    let limited = rig
        .locks
        .named("b")
        .lease(2 * SOON)
        .max_hold(2 * SOON)
        .lock()
        .expect("locks");
    let all = rig.locks.several(NAMES).lock().expect("locks");
    let is_refused = |confirmed| {
        matches!(
            confirmed,
            Err(Error::InvalidOption {
                option: "max_hold",
                ..
            })
        )
    };
    eventually(LONG, "the limit passes", || {
        is_refused(limited.confirm(Duration::ZERO))
    });
    let sent = rig.proxy.log().len();
    assert!(is_refused(all.confirm(Duration::ZERO)));
    throughout(PERIOD, || assert_eq!(rig.proxy.log().len(), sent));
}

#[test]
fn a_thread_that_waits_for_one_of_them_gets_it_with_the_release() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .local_handoff(MINUTE)
        .build()
        .expect("connects");
    thread::scope(|scope| {
        let all = locks.several(NAMES).lock().expect("locks");
        let waiter = behind(scope, || take(&locks, "b"));
        all.unlock().expect("unlocks");
        waiter.join().expect("no panic");
    });
    assert_eq!(locks.stats().handed_off, 1);
    assert_free(&server);
}

#[test]
fn fenced_locks_can_be_taken_together() {
    let server = Server::start();
    let fenced = LockManager::builder(&server.url())
        .fenced(true)
        .build()
        .expect("connects");
    let mut last = [0; 3];
    for _ in 0..3 {
        let all = fenced.several(NAMES).lock().expect("locks");
        let fences = NAMES.map(|name| all.fence(name).expect("it is one of them"));
        assert!(
            fences.iter().zip(last).all(|(new, old)| *new > old),
            "{fences:?} after {last:?}"
        );
        assert_eq!(all.fence("d"), None);
        last = fences;
    }
}

#[test]
fn locks_of_several_nodes_can_be_taken_together() {
    let cluster = Cluster::without_replicas();
    let locks = LockManager::builder(&cluster.url())
        .lease(MINUTE)
        .build()
        .expect("connects");
    let names: Vec<_> = (0..6).map(|n| cluster.key_on(n % 3)).collect();
    let key = |n: usize| format!("lock:{}", names[n]);
    let all = locks.several(&names).lock().expect("locks");
    assert!((0..6).all(|n| cluster.server(n % 3).exists(&key(n))));
    all.confirm(Duration::ZERO).expect("held");
    all.unlock().expect("unlocks");
    assert!((0..6).all(|n| !cluster.server(n % 3).exists(&key(n))));
    // The map is out of date: the batch is refused for this key, and a command of its own follows.
    cluster.move_slot(cluster.slot_of(&names[0]), 1);
    let all = locks.several(&names).lock().expect("locks");
    assert!(cluster.server(1).exists(&key(0)));
    cluster.move_slot(cluster.slot_of(&names[3]), 1);
    all.unlock().expect("unlocks");
    assert!(!cluster.server(1).exists(&key(0)) && !cluster.server(1).exists(&key(3)));
    assert!(locks.held().is_empty());
}

#[test]
fn a_node_that_is_away_keeps_none_of_the_others_locks() {
    // The other nodes go on though the slots of one are not served.
    let args = vec!["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::with(ClusterSetup {
        replicas: 0,
        args,
        ..ClusterSetup::default()
    });
    let locks = LockManager::builder(&cluster.url())
        .response_timeout(SOON)
        .tolerate_outage(SOON);
    let locks = locks.lease(MINUTE).build().expect("connects");
    let names = [0, 0, 1].map(|place| cluster.key_on(place));
    drop(locks.several(&names).lock().expect("locks"));
    let all = locks.several(&names).lock().expect("locks");
    cluster.server(1).pause();
    let unlocked = all.unlock();
    assert!(
        matches!(&unlocked, Err(Error::Unconfirmed { key, .. }) if *key == names[2]),
        "{unlocked:?}"
    );
    assert!(
        names[..2]
            .iter()
            .all(|name| !cluster.server(0).exists(&format!("lock:{name}")))
    );
    let taken = locks.several(&names).lock();
    assert!(
        matches!(&taken, Err(error) if error.is_redis_failure()),
        "{taken:?}"
    );
    assert!(locks.held().is_empty());
    assert!(
        names[..2]
            .iter()
            .all(|name| !cluster.server(0).exists(&format!("lock:{name}")))
    );
    cluster.server(1).resume();
}

#[test]
fn a_lock_that_is_lost_during_a_wait_is_told_at_its_end() {
    let rig = Rig::with(|builder| builder.lease(MINUTE).renew_every(PERIOD));
    let lose_while =
        |take: &(dyn Fn() -> Result<bool, Error> + Sync), lost: &str, busy: &str, ends: bool| {
            occupy(&rig.server, busy, MINUTE);
            let taken = thread::scope(|scope| {
                let taker = scope.spawn(take);
                eventually(LONG, "it waits", || rig.locks.waiting().len() == 1);
                let before = rig.locks.stats().lost;
                delete(&rig.server, lost);
                eventually(LONG, "the loss is found", || {
                    rig.locks.stats().lost > before
                });
                if ends {
                    delete(&rig.server, busy);
                }
                taker.join().expect("no panic")
            });
            delete(&rig.server, busy);
            assert!(rig.locks.held().is_empty());
            taken
        };
    let nested = || {
        let _outer = rig.locks.lock("outer")?;
        rig.locks.lock("inner").map(|_| true)
    };
    let taken = lose_while(&nested, "outer", "inner", true);
    assert!(
        matches!(&taken, Err(Error::OuterLost { outer, .. }) if outer == "outer"),
        "{taken:?}"
    );
    // Of a set, none is around another one, and no work was done: it can be tried again.
    let all = rig.locks.several(["a", "b"]);
    let whole = || all.with_lock(|| true);
    let taken = lose_while(&whole, "a", "b", false);
    assert!(
        matches!(&taken, Err(Error::Timeout { key, source: Some(_), .. }) if key == "a"),
        "{taken:?}"
    );
    // Unless the thread has work under the lock that was lost.
    let around = || {
        let _a = rig.locks.lock("a")?;
        all.lock().map(|_| true)
    };
    let taken = lose_while(&around, "a", "b", true);
    assert!(
        matches!(&taken, Err(Error::Lost { key, .. }) if key == "a"),
        "{taken:?}"
    );
}

/// The outer lock may belong to another manager, and run out by the clock alone.
#[test]
fn an_outer_lock_of_any_manager_that_has_run_out_is_noticed() {
    let rig = Rig::new();
    let outer = connect(&rig.server)
        .named("outer")
        .lease(ANSWER)
        .renew(false)
        .lock()
        .expect("locks");
    rig.assert_works("inner");
    eventually(LONG, "it runs out", || !outer.is_valid());
    let sent = rig.proxy.log().len();
    let error = rig.locks.lock("inner").expect_err("the outer lock is lost");
    assert!(
        matches!(
            error,
            Error::OuterLost {
                cause: LostCause::Expired,
                ..
            }
        ),
        "{error:?}"
    );
    assert_eq!(rig.proxy.log().len(), sent);
}

#[test]
fn a_thread_that_has_lost_a_lock_is_told_when_it_takes_another_one() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let outer = rig.locks.lock("outer").expect("locks");
    let held = rig.locks.lock("held").expect("locks");
    delete(&rig.server, "outer");
    assert_lost(&outer.verify(), LostCause::Deleted);
    let sent = rig.proxy.log().len();
    let again = rig.locks.with_lock("held", || ());
    again.expect("what the thread holds already, it can enter again");
    for taken in [
        rig.locks.lock("inner").map(drop),
        rig.locks.try_lock("inner").map(drop),
        rig.locks
            .with_lock("inner", || panic!("it runs without the outer lock")),
        rig.locks.several(["inner", "other"]).lock().map(drop),
    ] {
        let error = taken.expect_err("the outer lock is lost");
        let Error::OuterLost {
            key, outer, cause, ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(
            (key.as_str(), outer.as_str(), *cause),
            ("inner", "outer", LostCause::Deleted)
        );
        assert!(error.is_lost());
    }
    assert_eq!(rig.proxy.log().len(), sent, "nothing is sent");
    thread::scope(|scope| {
        scope
            .spawn(|| rig.assert_works("inner"))
            .join()
            .expect("no panic");
    });
    drop((held, outer));
    rig.assert_works("inner");
}

#[test]
fn a_release_says_that_a_lock_around_it_was_lost_meanwhile() {
    let rig = Rig::with(|builder| builder.lease(MINUTE));
    let lose = |outer: &relatch::LockGuard| {
        delete(&rig.server, "outer");
        assert_lost(&outer.verify(), LostCause::Deleted);
    };
    let nested = rig.locks.with_lock_result("outer", |outer| {
        let inner = rig.locks.with_lock("inner", || lose(outer));
        assert!(
            matches!(&inner, Err(Error::OuterLost { outer, .. }) if outer == "outer"),
            "{inner:?}"
        );
        assert!(!rig.server.exists("lock:inner"), "it is released");
        Ok::<_, Error>(())
    });
    assert_lost(&nested, LostCause::Deleted);
    // A lock that was taken later is no lock around it. Neither is one whose guard is gone.
    let first = rig.locks.lock("first").expect("locks");
    let second = rig.locks.lock("outer").expect("locks");
    lose(&second);
    assert_eq!(
        first.unlock().expect("nothing is around it"),
        Unlocked::Released
    );
    drop(second);
    let outer = rig.locks.lock("outer").expect("locks");
    let inner = rig.locks.several(["x", "y"]).lock().expect("locks");
    lose(&outer);
    assert!(matches!(inner.unlock(), Err(Error::OuterLost { .. })));
    drop(outer);
    // One lock of a set was taken before the outer one, and is not given back with the set.
    let _first = rig.locks.lock("y").expect("locks");
    let outer = rig.locks.lock("outer").expect("locks");
    let inner = rig.locks.several(["x", "y"]).with_lock(|| lose(&outer));
    assert!(matches!(inner, Err(Error::OuterLost { .. })), "{inner:?}");
    assert_lost(&outer.unlock(), LostCause::Deleted);
}

/// Four processes with eight threads each take two locks, half of them in the other order. Each
/// round increments a counter that would lose updates without the locks.
#[test]
fn callers_with_opposite_orders_do_not_wait_for_each_other() {
    let rounds: u64 = env::var("RELATCH_ROUNDS").map_or(640, |it| it.parse().expect("a number"));
    let server = Server::start();
    let each = rounds.div_ceil(4 * 8);
    let args = [
        ("url", server.url()),
        ("bare", server.bare_url()),
        ("rounds", each.to_string()),
    ];
    let args = args.each_ref().map(|(name, value)| (*name, value.as_str()));
    let mut workers = [(); 4].map(|()| Worker::spawn("pairs", &args));
    for worker in &mut workers {
        assert!(worker.wait(COUNTING * 5).success());
    }
    assert_eq!(total(&server), each * 32);
    assert_free(&server);
}

/// A worker process of that test.
pub(crate) fn pair_as_told() {
    let locks = LockManager::builder(&role::arg("url"))
        .wait(COUNTING)
        .build()
        .expect("connects");
    let rounds: u64 = role::arg("rounds").parse().expect("a number");
    thread::scope(|scope| {
        for thread in 0..8 {
            let locks = &locks;
            scope.spawn(move || {
                let keys = if thread % 2 == 0 {
                    ["a", "b"]
                } else {
                    ["b", "a"]
                };
                let client = Client::open(role::arg("bare")).expect("a valid address");
                let mut connection = client.get_connection().expect("connects");
                for _ in 0..rounds {
                    let (took, done) =
                        time(|| locks.several(keys).with_lock(|| increment(&mut connection)));
                    done.expect("no wait is too long");
                    assert!(
                        took < COUNTING / 2,
                        "{took:?}: others make progress, and this thread none"
                    );
                }
            });
        }
    });
    assert_eq!(locks.stats().timed_out, 0);
}

/// One lock is taken, and then Redis says nothing more.
#[test]
fn a_limit_holds_for_giving_back_too() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG).connect_timeout(LONG));
    rig.proxy.always("SET lock:b", Fault::SwallowCommand);
    rig.proxy.always("EVALSHA", Fault::SwallowCommand);
    rig.proxy.always("EVAL", Fault::SwallowCommand);
    let asked = Instant::now();
    assert!(!matches!(
        rig.locks.several(["a", "b"]).try_lock_for(PERIOD),
        Ok(Some(_))
    ));
    assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
    rig.proxy.clear();
    rig.proxy.cut_all();
    eventually(LONG, "the keeper deletes the key", || {
        rig.value_of("a").is_none()
    });
}

#[test]
fn an_outer_lock_that_is_lost_while_the_answer_for_several_is_due_is_told() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG));
    let _outer = rig.locks.lock("outer").expect("locks");
    rig.proxy.on("SET lock:a", Fault::DelayReply(ANSWER));
    thread::scope(|scope| {
        let (server, locks) = (&rig.server, &rig.locks);
        scope.spawn(move || {
            eventually(LONG, "the claim is executed", || server.exists("lock:a"));
            let _ = locks
                .named("outer")
                .force_unlock()
                .expect("answers")
                .expect("it is held");
        });
        let taken = rig.locks.several(NAMES).lock();
        assert!(
            matches!(&taken, Err(Error::OuterLost { outer, .. }) if outer == "outer"),
            "{taken:?}"
        );
    });
    assert_free(&rig.server);
}

#[test]
fn locks_of_a_dead_redis_have_one_response_timeout() {
    let server = Server::start();
    let locks = LockManager::builder(&server.url())
        .response_timeout(SOON)
        .build()
        .expect("connects");
    let names: Vec<_> = (0..16).map(|n| n.to_string()).collect();
    let all = locks.several(&names).lock().expect("locks");
    server.kill();
    let (took, unlocked) = time(|| all.unlock());
    assert!(
        matches!(unlocked, Err(Error::Unconfirmed { .. })),
        "{unlocked:?}"
    );
    assert!(took < 3 * SOON, "{took:?}");
}

/// The release of a lock that is not to be held after all has no answer.
#[test]
fn a_limit_holds_though_an_outer_lock_is_lost() {
    for several in [false, true] {
        let rig = Rig::with(|builder| builder.response_timeout(LONG).connect_timeout(LONG));
        let outer = rig.locks.lock("outer").expect("locks");
        let watch = outer.watch();
        occupy(&rig.server, "a", MINUTE);
        thread::scope(|scope| {
            scope.spawn(|| {
                eventually(LONG, "it waits", || rig.locks.waiting().len() == 1);
                delete(&rig.server, "outer");
                assert_eq!(watch.wait_lost(LONG), Some(LostCause::Deleted));
                for script in ["EVALSHA * 1 lock:a", "EVAL"] {
                    rig.proxy.always(script, Fault::SwallowCommand);
                }
                delete(&rig.server, "a");
            });
            let asked = Instant::now();
            let limit = 4 * SOON;
            let taken = if several {
                rig.locks.several(["a", "b"]).try_lock_for(limit).map(drop)
            } else {
                rig.locks.named("a").try_lock_for(limit).map(drop)
            };
            assert!(asked.elapsed() < LONG / 2, "{:?}", asked.elapsed());
            assert!(
                !matches!(taken, Err(ref error) if !error.is_lost()),
                "{taken:?}"
            );
        });
    }
}

#[test]
fn kept_locks_of_a_set_have_one_response_timeout() {
    returns_by(ANSWER, "the release of kept locks in a black hole", || {
        let rig = Rig::with(|builder| builder.lease(MINUTE));
        let kept = NAMES.map(|name| {
            rig.locks
                .named(name)
                .keep_at_least(MINUTE)
                .lock()
                .expect("locks")
        });
        let all = rig.locks.several(NAMES).lock().expect("locks");
        drop(kept);
        rig.proxy.black_hole(true);
        let (took, unlocked) = time(|| all.unlock());
        assert!(
            matches!(unlocked, Err(Error::Unconfirmed { .. })),
            "{unlocked:?}"
        );
        took
    });
}

/// A hold with just enough left has too little of its lease when the answer for the other hold
/// comes.
#[test]
fn if_one_of_a_set_ends_too_soon_all_are_renewed() {
    let locks = LockManager::builder_in_memory().lease(MINUTE).renew(false);
    let locks = locks.build().expect("it works");
    let shorter = locks.named("a").lease(4 * SOON).lock().expect("locks");
    let all = locks.several(["a", "b"]).lock().expect("locks");
    let renewed = || ["a", "b"].map(|name| renewals(&locks, name));
    all.ensure(SOON).expect("that is left");
    assert_eq!(renewed(), [0, 0]);
    eventually(LONG, "half of the lease has passed", || {
        shorter.remaining() < 2 * SOON
    });
    all.ensure(2 * SOON).expect("they are renewed");
    assert_eq!(renewed(), [1, 1]);
    drop((all, shorter));
}

/// No renewal waits for the answer to another one.
#[test]
fn the_locks_of_a_set_are_renewed_together() {
    let rig = Rig::with(|builder| builder.response_timeout(LONG).connect_timeout(LONG));
    let all = rig.locks.several(NAMES).lock().expect("locks");
    all.confirm(PERIOD).expect("they are held"); // The keeper is connected from now on.
    let sent = |name: &str| rig.proxy.commands(&format!("EVALSHA * 1 lock:{name}"));
    let before = NAMES.map(sent);
    rig.proxy.hold_replies(true);
    thread::scope(|scope| {
        let proxy = &rig.proxy;
        scope.spawn(move || {
            eventually(LONG / 2, "all are sent", || {
                (0..3).all(|n| sent(NAMES[n]) > before[n])
            });
            proxy.hold_replies(false);
        });
        all.confirm(PERIOD).expect("they are held");
    });
}

/// Redis answers nothing about one of the locks. That takes the time of no other.
#[test]
fn a_lock_whose_release_has_no_answer_delays_no_other_by_all_of_the_time() {
    let rig = Rig::with(|builder| builder.response_timeout(6 * SOON));
    let all = rig.locks.several(NAMES).lock().expect("locks");
    rig.proxy
        .always("EVALSHA * 1 lock:a", Fault::SwallowCommand);
    let unlocked = all.unlock();
    let free = ["b", "c"].map(|name| rig.value_of(name).is_none());
    assert!(
        matches!(&unlocked, Err(Error::Unconfirmed { key, .. }) if key == "a"),
        "{unlocked:?}"
    );
    assert_eq!(free, [true; 2]);
    rig.proxy.clear();
    eventually(LONG, "the keeper deletes the key", || {
        rig.value_of("a").is_none()
    });
}

/// A sort that is not stable leaves a few names in their order, and not so many. The fences of the
/// locks in memory have one counter, so they show in which order the locks were taken.
#[test]
fn many_names_of_which_the_thread_holds_some_are_taken_in_order() {
    let locks = LockManager::in_memory();
    let names: Vec<_> = (100..160).map(|n| n.to_string()).collect();
    let fenced = |name: &String| locks.named(name).fenced(true).lock().expect("locks");
    let before: Vec<_> = names.iter().step_by(7).map(fenced).collect();
    let all = locks.several(&names).options(|lock| lock.fenced(true));
    let all = all.lock().expect("locks");
    let held: Vec<_> = before.iter().filter_map(LockGuard::fence).collect();
    let fences: Vec<_> = names.iter().filter_map(|name| all.fence(name)).collect();
    assert_eq!(fences.len(), names.len());
    let taken: Vec<_> = fences.into_iter().filter(|it| !held.contains(it)).collect();
    assert!(taken.is_sorted(), "{taken:?}");
}

#[test]
fn a_set_that_cannot_be_had_leaves_the_outer_hold_to_be_kept() {
    let locks = LockManager::in_memory();
    let outer = locks.named("a").keep_at_least(MINUTE);
    let outer = outer.lock().expect("locks");
    let busy = locks.lock("b").expect("locks").detach().expect("detaches");
    let both = locks.several(["a", "b"]);
    assert!(both.try_lock().expect("answers").is_none(), "`b` is busy");
    let unlocked = outer.unlock();
    assert!(
        matches!(unlocked, Ok(Unlocked::Kept { .. })),
        "{unlocked:?}"
    );
    drop(busy);
}
