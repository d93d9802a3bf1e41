//! Acknowledged replicas: a lock counts as taken, and a lease as renewed, once replicas have it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use relatch::{Builder, Error, LockManager, LostCause, Replicas, Unlocked};
use relatch_rig::rights::least_rights;
use relatch_rig::{
    Fault, LONG, Proxy, Server, eventually, server_version, throughout, unique_key, within,
};

use crate::support::{
    ANSWER, LEASE, MINUTE, PERIOD, SOON, WAYS, assert_lost, assert_unavailable, builder, chain,
    grant, occupy, renewals, server_for, trusted,
};
use crate::turns::mutual_exclusion::{How, count_with, total};

/// For how long Redis waits for replicas.
const WAIT: Duration = Duration::from_millis(50);

/// The code and the text of a server that has no replica.
const NOBODY: &str = "NOREPLICAS 0 of 1 replicas acknowledged the lock within 50 ms";

/// A master and its replicas, through a proxy in front of the master.
struct Group {
    master: Server,
    replicas: Vec<Server>,
    proxy: Proxy,
}

impl Group {
    /// Returns when the replicas have all that the master has.
    fn start(count: usize) -> Group {
        // By default, a master waits for 5 s before it sends its data to a first replica.
        let master = Server::with(&["--repl-diskless-sync-delay", "0"]);
        let port = master.port().to_string();
        let replica = || Server::with(&["--replicaof", "127.0.0.1", &port]);
        let replicas: Vec<_> = (0..count).map(|_| replica()).collect();
        let proxy = Proxy::start(master.port());
        let group = Group {
            master,
            replicas,
            proxy,
        };
        group.until_connected(count);
        group
    }

    /// A manager with the timeouts of [`builder`] that wants this many replicas. On a busy machine,
    /// a replica may acknowledge too late for it.
    fn hasty(&self, count: u32) -> LockManager {
        self.locks_with(|builder| builder.replicas(Replicas::at_least(count), WAIT))
    }

    /// A manager that wants this many replicas, and waits for them as long as need be.
    fn patient(&self, count: u32) -> LockManager {
        self.locks_with(|builder| patient(builder).replicas(Replicas::at_least(count), LONG / 2))
    }

    fn locks_with(&self, change: impl FnOnce(Builder) -> Builder) -> LockManager {
        // (Whether a connection opens in time is of no interest here.)
        let locks = change(builder(&self.proxy.url()).connect_timeout(LONG))
            .build()
            .expect("connects");
        // Makes Redis load the script of a release.
        let other = LockManager::connect(&self.master.url()).expect("connects");
        drop(other.lock("warm-up").expect("locks"));
        locks
    }

    /// Waits until the replicas have two writes in a row. The first may have been part of the data
    /// that they were sent; after that, they get no write for up to a second.
    #[track_caller]
    fn until_connected(&self, count: usize) {
        let count = count.to_string();
        let written = || {
            self.master
                .query::<()>(&["SET", "connected", "1", "PX", "1000"]);
            self.master
                .query::<u64>(&["WAIT", &count, "100"])
                .to_string()
                == count
        };
        eventually(LONG, "the replicas follow the master", || {
            written() && written()
        });
    }

    /// Cuts the first replica off from the master, until [`heal`](Self::heal).
    #[track_caller]
    fn cut(&self) {
        let replica = &self.replicas[0];
        // The master has no such password, so the replica cannot come back.
        replica.query::<()>(&["CONFIG", "SET", "masterauth", "wrong"]);
        replica.query::<()>(&["CLIENT", "KILL", "TYPE", "master"]);
        let left = self.replicas.len() - 1;
        eventually(LONG, "the master has lost the replica", || {
            let info: String = self.master.query(&["INFO", "replication"]);
            info.contains(&format!("connected_slaves:{left}\r\n"))
        });
    }

    /// Lets the first replica connect to the master again, which takes a second.
    #[track_caller]
    fn heal(&self) {
        self.replicas[0].query::<()>(&["CONFIG", "SET", "masterauth", ""]);
    }

    fn value_of(&self, name: &str) -> Option<String> {
        self.master.get(&format!("lock:{name}"))
    }

    /// How often replicas were waited for.
    fn waits(&self) -> u64 {
        self.proxy.commands("WAIT")
    }
}

/// The same builder with timeouts that no busy machine exceeds.
fn patient(builder: Builder) -> Builder {
    builder.connect_timeout(LONG).response_timeout(LONG)
}

#[test]
fn several_locks_are_taken_only_if_replicas_have_each_of_them() {
    let group = Group::start(1);
    let locks = group.patient(1);
    let all = locks.several(["a", "b"]).lock().expect("locks");
    assert!(
        ["lock:a", "lock:b"]
            .iter()
            .all(|key| group.replicas[0].exists(key))
    );
    drop(all);
    group.cut();
    let hasty = group.hasty(1);
    let error = hasty
        .several(["a", "b"])
        .try_lock()
        .map(drop)
        .expect_err("no replica acknowledges");
    assert!(error.is_redis_failure(), "{error:?}");
    assert!(
        group.value_of("a").is_none() && group.value_of("b").is_none() && hasty.held().is_empty()
    );
}

/// Its lease counts from the `SET`, however long the replicas take.
#[test]
fn a_lock_is_taken_once_its_replicas_have_it() {
    let group = Group::start(2);
    let locks = group.patient(2);
    let (slow, is_taken) = (&group.replicas[1], AtomicBool::new(false));
    slow.pause();
    group.proxy.on("SET lock:a", Fault::DelayReply(ANSWER));
    thread::scope(|scope| {
        let taking = scope.spawn(|| {
            let guard = locks
                .named("a")
                .lease(MINUTE)
                .renew(false)
                .lock()
                .expect("locks");
            let left = guard.remaining();
            is_taken.store(true, Ordering::SeqCst);
            assert!(left + 2 * ANSWER <= trusted(MINUTE), "{left:?} are left");
            let token = Some(guard.token().to_owned());
            let found = group.replicas.iter().map(|replica| replica.get("lock:a"));
            assert!(
                found.into_iter().all(|found| found == token),
                "each replica has the key"
            );
        });
        eventually(LONG, "Redis waits for the replicas", || group.waits() == 1);
        eventually(LONG, "the other replica has the key", || {
            group.replicas[0].exists("lock:a")
        });
        throughout(ANSWER, || {
            assert!(
                !is_taken.load(Ordering::SeqCst),
                "a replica that is stopped has acknowledged nothing"
            );
        });
        slow.resume();
        taking.join().expect("no panic");
    });
    assert_eq!(group.waits(), 1, "the first wait was long enough");
}

#[test]
fn a_lock_that_too_few_replicas_have_is_not_taken() {
    let group = Group::start(2);
    let locks = group.hasty(2);
    group.cut();
    for (way, take) in WAYS {
        let taken = within(LONG, way, || take(&locks, way));
        assert_unavailable(&taken);
        let told = chain(&taken.expect_err("just seen"));
        // The last attempt of a wait with a limit has less than 50 ms.
        assert!(
            told.contains("NOREPLICAS 1 of 2 replicas acknowledged the lock within "),
            "{told}"
        );
        // If the deadline comes first, the keeper deletes the key.
        eventually(SOON, "no key is left", || group.value_of(way).is_none());
    }
    let fewer = group.patient(1);
    assert_eq!(
        fewer
            .lock("a")
            .expect("one replica is enough")
            .unlock()
            .expect("unlocks"),
        Unlocked::Released
    );
}

#[test]
fn a_lock_is_taken_when_its_replica_comes_back_within_the_wait() {
    let group = Group::start(1);
    let locks = group.locks_with(|builder| {
        builder
            .tolerate_outage(LONG)
            .replicas(Replicas::at_least(1), WAIT)
    });
    group.cut();
    for limit in [None, Some(LONG)] {
        let (before, lock) = (group.waits(), locks.named("a"));
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let lock = limit.map_or_else(|| lock.clone(), |limit| lock.clone().wait(limit));
                let guard = lock.lock().expect("locks");
                assert_eq!(
                    group.replicas[0].get("lock:a").as_deref(),
                    Some(guard.token())
                );
                assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            });
            eventually(LONG, "it was tried twice", || group.waits() >= before + 2);
            group.heal();
            waiter.join().expect("no panic");
        });
        group.cut();
    }
}

#[test]
fn a_limit_too_short_for_replicas_is_a_timeout() {
    let group = Group::start(1);
    let locks = group.hasty(1);
    locks.with_lock("a", || ()).expect("runs");
    // As a server does that looks at its timeouts in time. (Redis does so ten times a second.)
    group.proxy.always("WAIT", Fault::Answer(b":0\r\n".into()));
    let limit = Duration::from_millis(10);
    let timeout = locks
        .named("a")
        .try_lock_for(limit)
        .expect_err("nobody has it");
    assert!(timeout.is_timeout(), "{timeout:?}");
    // Unless the machine is so busy that there is no answer at all.
    eventually(LONG, "too few replicas", || {
        let timeout = locks
            .named("a")
            .wait(limit)
            .lock()
            .expect_err("in too short a time");
        assert!(timeout.is_timeout(), "{timeout:?}");
        chain(&timeout).contains("0 of 1 replicas acknowledged the lock")
    });
    assert_unavailable(&locks.named("a").try_lock_for(4 * WAIT));
    eventually(SOON, "no key is left", || group.value_of("a").is_none());
}

/// A replica that was cut off becomes a master. It has the old end of the lease, and grants the
/// lock after that. The holder, which the old master still answers, must not believe in it by then.
#[test]
fn a_hold_whose_renewals_no_replica_has_ends_before_the_replica_gives_its_lock_away() {
    let group = Group::start(1);
    // One late acknowledgement does not end a lease that lasts for several renewals.
    let renewing = |builder: Builder| builder.lease(4 * LEASE).renew_every(PERIOD);
    let locks = group.locks_with(|builder| renewing(builder).replicas(Replicas::at_least(1), WAIT));
    let guard = locks.lock("a").expect("locks");
    eventually(LONG, "it is renewed", || renewals(&locks, "a") >= 3);
    group.cut();
    let (acknowledged, watch) = (renewals(&locks, "a"), guard.watch());
    let replica = &group.replicas[0];
    replica.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    let others = LockManager::connect(&replica.url()).expect("connects");
    thread::scope(|scope| {
        scope.spawn(|| {
            let theirs = others
                .named("a")
                .try_lock_for(LONG)
                .expect("answers")
                .expect("the old lease ends there");
            assert!(
                !watch.is_valid(),
                "two masters have each given the lock to a holder"
            );
            drop(theirs);
        });
    });
    assert!(
        group
            .value_of("a")
            .is_some_and(|token| token == guard.token()),
        "the old master renewed it"
    );
    assert!(
        renewals(&locks, "a") <= acknowledged + 1,
        "only acknowledged renewals count"
    );
    assert_eq!(
        guard.watch().wait_lost(LONG),
        Some(LostCause::Expired),
        "the holder learns of it"
    );
    assert!(locks.stats().renewal_errors > 0);
}

#[test]
fn extend_and_ensure_fail_without_their_replicas() {
    let group = Group::start(1);
    let locks = group.hasty(1);
    let guard = locks
        .named("a")
        .lease(MINUTE)
        .renew(false)
        .lock()
        .expect("locks");
    eventually(LONG, "the replica has it", || {
        guard.set_lease(MINUTE).is_ok()
    });
    group.cut();
    let left = guard.remaining();
    let refused = [
        guard.set_lease(2 * MINUTE),
        guard.ensure(MINUTE * 3 / 2),
        guard.confirm(MINUTE / 2),
    ];
    for error in refused.map(|it| it.expect_err("cut off")) {
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        let told = chain(&error);
        assert!(
            told.contains("NOREPLICAS 0 of 1 replicas acknowledged the renewal within"),
            "{told}"
        );
    }
    assert!(
        guard.is_valid() && guard.remaining() <= left,
        "the last acknowledged lease counts"
    );
    guard.verify().expect("the master has the key");
    group.heal();
    group.until_connected(1);
    eventually(LONG, "the replica has it", || {
        guard.set_lease(2 * MINUTE).is_ok()
    });
    assert!(guard.remaining() > MINUTE);
}

/// Renewals without an acknowledgement do not hide what the master says of the key.
#[test]
fn a_lost_key_is_reported_although_no_replica_acknowledges() {
    let group = Group::start(1);
    let locks = group.hasty(1);
    let (gone, taken) = (
        locks.lock("gone").expect("locks"),
        locks.lock("taken").expect("locks"),
    );
    group.cut();
    group.master.query::<()>(&["DEL", "lock:gone"]);
    occupy(&group.master, "taken", MINUTE);
    assert_lost(&gone.set_lease(MINUTE), LostCause::Deleted);
    assert_lost(&taken.set_lease(MINUTE), LostCause::Taken);
}

#[test]
fn an_adoption_counts_once_replicas_have_it() {
    let group = Group::start(1);
    let (patient, hasty) = (group.patient(1), group.hasty(1));
    let parcel_of = |name: &str| {
        patient
            .lock(name)
            .expect("locks")
            .hand_over()
            .expect("hands over")
    };
    let (first, others) = (parcel_of("a"), ["b", "c", "d", "e", "f"].map(parcel_of));
    // Too few replicas at first. The token is swapped by then, and the next try finds it.
    group.proxy.on("WAIT", Fault::Answer(b":0\r\n".into()));
    let adopted = patient.adopt(&first).expect("adopts");
    assert_eq!(group.value_of("a").as_deref(), Some(adopted.token()));
    group.cut();
    // On a busy machine, the deadline may cut all tries short.
    let says_why = others.iter().any(|parcel| {
        let error = hasty.adopt(parcel).expect_err("no replica has it");
        assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
        eventually(LONG, "no key is left", || {
            group.value_of(parcel.key()).is_none()
        });
        chain(&error).contains("0 of 1 replicas acknowledged the lock")
    });
    assert!(says_why && hasty.held().is_empty());
}

/// The last try has no answer. The one before has said why there is no lock.
#[test]
fn the_error_of_an_adoption_has_the_last_answer() {
    let group = Group::start(1);
    let parcel = group
        .patient(1)
        .lock("a")
        .expect("locks")
        .hand_over()
        .expect("hands over");
    group.proxy.on("WAIT", Fault::Answer(b":0\r\n".into()));
    group.proxy.always("WAIT", Fault::DropReply);
    let error = group
        .hasty(1)
        .adopt(&parcel)
        .expect_err("no replica has it");
    assert!(
        chain(&error).contains("0 of 1 replicas acknowledged the lock"),
        "{}",
        chain(&error)
    );
}

/// What becomes of the answer to `WAIT`: lost, broken, or an error that leaves the key in doubt.
fn lost_waits() -> Vec<Fault> {
    let says = |text: &str| Fault::Replace(format!("{text}\r\n").into_bytes());
    vec![
        Fault::DropReply,
        Fault::CutBeforeReply,
        Fault::HalfReply,
        Fault::CutBeforeForward,
        Fault::SwallowCommand,
        says("+OK"),
        says(
            "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
        ),
        says("-ERR WAIT cannot be used with replica instances. Please also note that"),
        says("-upstream failure"),
    ]
}

#[test]
fn a_wait_whose_answer_is_lost_leaves_a_lock_or_no_key() {
    let group = Group::start(1);
    let locks = group.hasty(1);
    for fault in lost_waits() {
        for (way, take) in WAYS {
            let key = unique_key(way);
            group.proxy.on("WAIT", fault.clone());
            match within(LONG / 4, way, || take(&locks, &key)) {
                Ok(Some(guard)) => {
                    assert_eq!(
                        group.value_of(&key).as_deref(),
                        Some(guard.token()),
                        "{way}, {fault:?}"
                    );
                    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
                }
                Ok(None) => panic!("{way} reports its own lock as busy after {fault:?}"),
                Err(error) if way != "try_lock" => {
                    panic!("{way} gave up after {fault:?}: {error:?}")
                }
                Err(_) => {}
            }
            eventually(SOON, "no key is left", || group.value_of(&key).is_none());
        }
    }
}

/// The same while no replica has the key: nobody may take the lock for acknowledged.
#[test]
fn a_wait_whose_answer_is_lost_is_no_acknowledgement() {
    let group = Group::start(1);
    let locks = group.hasty(1);
    group.cut();
    for fault in lost_waits() {
        group.proxy.always("WAIT", fault.clone());
        // Those that try again are slow to give up, so one fault has to do for them.
        let tried = if fault == Fault::DropReply {
            &WAYS[..]
        } else {
            &WAYS[1..2]
        };
        for (way, take) in tried {
            let key = unique_key(way);
            let taken = within(LONG / 4, way, || take(&locks, &key));
            assert!(taken.is_err(), "{way}, {fault:?}: {taken:?}");
            eventually(SOON, "no key is left", || group.value_of(&key).is_none());
        }
        group.proxy.clear();
    }
}

/// The key stands, and the thread that set it cannot delete it: nobody may take that for a key that
/// was never set.
#[test]
fn a_key_that_too_few_replicas_have_is_deleted_later_if_its_removal_fails() {
    let server = Server::start();
    let proxy = Proxy::start(server.port());
    let locks = builder(&proxy.url())
        .replicas(Replicas::at_least(1), WAIT)
        .build()
        .expect("connects");
    drop(
        LockManager::connect(&server.url())
            .expect("connects")
            .lock("warm-up")
            .expect("locks"),
    );
    let refuses =
        || Fault::Answer(b"-READONLY You can't write against a read only replica.\r\n".into());
    for fault in [
        Fault::DropReply,
        Fault::SwallowCommand,
        Fault::CutBeforeForward,
        refuses(),
    ] {
        let key = unique_key("a");
        proxy.always("EVALSHA", fault.clone());
        proxy.always("EVAL", fault.clone());
        if fault == Fault::SwallowCommand {
            // The wait ends with the first attempt: a second one would find the key.
            let taken = locks.named(&key).try_lock_for(ANSWER / 2);
            assert!(!matches!(taken, Ok(Some(_))), "{taken:?}");
        } else {
            assert_unavailable(&locks.try_lock(&key));
        }
        let is_deleted = fault == Fault::DropReply;
        assert!(
            is_deleted || server.exists(&format!("lock:{key}")),
            "{fault:?}: the removal did not run"
        );
        proxy.clear();
        eventually(
            LONG / 4,
            &format!("the keeper deletes the key: {fault:?}"),
            || !server.exists(&format!("lock:{key}")),
        );
    }
}

/// As Sentinel does at a planned failover.
#[test]
fn a_master_that_is_demoted_while_it_waits_has_given_no_lock() {
    let server = Server::start();
    let locks = patient(builder(&server.url())).replicas(Replicas::at_least(1), LONG);
    let locks = locks.build().expect("connects");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| assert_unavailable(&locks.try_lock("a")));
        eventually(LONG, "Redis waits for replicas", || {
            !server.clients_with("cmd=wait").is_empty()
        });
        assert!(server.exists("lock:a"));
        server.query::<()>(&["REPLICAOF", "127.0.0.1", "1"]);
        within(SOON, "the end of the wait", || waiter.join()).expect("no panic");
    });
    server.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    eventually(SOON, "no key without a holder is left", || {
        !server.exists("lock:a")
    });
}

#[test]
fn only_what_takes_or_renews_a_lock_waits_for_replicas() {
    let group = Group::start(1);
    let locks = group.locks_with(|it| {
        patient(it)
            .renew(false)
            .replicas(Replicas::at_least(1), LONG / 2)
    });
    let mut before = group.waits();
    let mut waited = || {
        let more = group.waits() - before;
        before += more;
        more
    };
    let outer = locks.lock("a").expect("locks");
    assert_eq!(waited(), 1, "a lock that is taken");
    let inner = locks.lock("a").expect("locks again");
    drop(inner);
    assert_eq!(waited(), 0, "reentry");
    let others = group.patient(1);
    thread::scope(|scope| {
        scope.spawn(|| {
            assert!(others.try_lock("a").expect("answers").is_none());
            assert!(
                others
                    .named("a")
                    .try_lock_for(WAIT)
                    .expect("answers")
                    .is_none()
            );
        });
    });
    assert_eq!(waited(), 0, "tries that find the lock busy");
    outer.verify().expect("answers");
    assert_eq!(waited(), 0, "a question");
    outer.set_lease(MINUTE).expect("extends");
    assert_eq!(waited(), 1, "the first renewal of a connection");
    outer.set_lease(2 * MINUTE).expect("extends");
    assert_eq!(waited(), 1, "a renewal");
    assert_eq!(outer.unlock().expect("unlocks"), Unlocked::Released);
    assert_eq!(waited(), 0, "a release");
}

/// A waiter's attempt is a script, and not a `SET`.
#[test]
fn a_waiter_takes_the_lock_once_the_replica_has_it() {
    let group = Group::start(1);
    let (locks, others) = (group.patient(1), group.patient(1));
    let guard = locks.lock("a").expect("locks");
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = others.lock("a").expect("locks");
            assert_eq!(
                group.replicas[0].get("lock:a").as_deref(),
                Some(guard.token())
            );
        });
        eventually(LONG, "the waiter waits", || {
            group.master.redirects_invalidations()
        });
        let before = group.waits();
        drop(guard);
        waiter.join().expect("no panic");
        assert_eq!(group.waits(), before + 1);
    });
}

#[test]
fn a_release_does_not_wait_for_a_replica_that_is_away() {
    let group = Group::start(1);
    let locks = group.patient(1);
    let guard = locks.lock("a").expect("locks");
    group.replicas[0].pause();
    let released = within(SOON, "the release", || guard.unlock());
    assert_eq!(released.expect("unlocks"), Unlocked::Released);
}

#[test]
fn nothing_is_handed_off_past_the_replicas() {
    let group = Group::start(1);
    let locks = group.patient(1);
    let before = group.waits();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..10).for_each(|_| locks.with_lock("a", || ()).expect("runs")));
        }
    });
    assert_eq!((locks.stats().handed_off, group.waits() - before), (0, 40));
}

#[test]
fn managers_that_wait_for_replicas_lose_no_update() {
    let group = Group::start(1);
    let managers = [group.patient(1), group.patient(1)];
    thread::scope(|scope| {
        for locks in &managers {
            scope.spawn(|| count_with(locks, &group.master.bare_url(), 4, 25, How::Locked));
        }
    });
    assert_eq!(total(&group.master), 200);
    assert_eq!(group.value_of("a"), None);
}

#[test]
fn row_23_without_the_right_to_wait_no_lock_is_taken() {
    let (server, url) = server_for(&least_rights());
    let locks = LockManager::builder(&url)
        .replicas(Replicas::at_least(1), WAIT)
        .build()
        .expect("connects");
    let error = within(SOON, "the refusal", || locks.lock("a")).expect_err("no right");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "NOPERM"),
        "{error:?}"
    );
    assert!(error.to_string().contains("wait"), "{error}");
    assert!(!server.exists("lock:a"));
    grant(&server, &[&*least_rights(), &["+wait"]].concat());
    let error = locks.try_lock("a").expect_err("no replica");
    assert!(chain(&error).contains(NOBODY), "{error:?}");
}

/// A proxy that knows no `WAIT` may say so in its own words.
#[test]
fn a_proxy_without_wait_is_an_error_that_says_so() {
    let group = Group::start(1);
    let locks = group.hasty(1);
    for (said, is_final) in [
        ("-ERR unknown command 'WAIT'", true),
        ("-ERR command WAIT is blocked", false),
    ] {
        group
            .proxy
            .always("WAIT", Fault::Answer(format!("{said}\r\n").into_bytes()));
        let error = within(LONG, "the end of the wait", || locks.lock("a")).expect_err("no lock");
        assert_eq!(
            matches!(error, Error::Refused { .. }),
            is_final,
            "{error:?}"
        );
        assert!(chain(&error).contains(&said[1..]), "{error:?}");
        assert_eq!(group.value_of("a"), None);
        group.proxy.clear();
    }
}

#[test]
fn a_lock_on_disk_needs_a_server_that_can_tell() {
    let take = |server: &Server, replicas: u32| {
        let disks = Replicas::at_least(replicas).on_disk();
        let locks = patient(builder(&server.bare_url())).replicas(disks, LONG / 2);
        let locks = locks.build().expect("connects");
        let taken = within(LONG / 4, "an answer", || locks.lock("a"));
        let error = taken
            .map(|guard| assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released))
            .err();
        assert!(!server.exists("lock:a"));
        error
    };
    let without = take(&Server::start(), 0).expect("there is no append-only file");
    assert!(matches!(without, Error::Refused { .. }), "{without:?}");
    let on_disk = [
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--repl-diskless-sync-delay",
        "0",
    ];
    let master = Server::with(&on_disk);
    let with = take(&master, 0);
    if server_version() >= (7, 2) {
        assert!(
            without.to_string().contains("appendonly is disabled"),
            "{without}"
        );
        assert!(with.is_none(), "{with:?}");
        let port = master.port().to_string();
        let _replica = Server::with(&[&on_disk[..], &["--replicaof", "127.0.0.1", &port]].concat());
        eventually(LONG, "the replica acknowledges from its disk", || {
            take(&master, 1).is_none()
        });
    } else {
        for error in [Some(without), with] {
            let told = error.expect("`WAITAOF` is not known").to_string();
            assert!(
                told.contains("`on_disk` needs Redis 7.2 or Valkey"),
                "{told}"
            );
        }
    }
}

#[test]
fn row_35_replicas_that_cannot_work_are_refused() {
    let nobody = || LockManager::builder("redis://127.0.0.1:1/");
    for (replicas, timeout, told) in [
        (
            Replicas::all(),
            WAIT,
            "cannot be all(): only sentinels know how many there are",
        ),
        (
            Replicas::all().on_disk(),
            WAIT,
            "cannot be all().on_disk(): only sentinels know",
        ),
        (
            Replicas::at_least(0),
            WAIT,
            "cannot be at_least(0): leave the option out",
        ),
        (
            Replicas::at_least(1),
            Duration::ZERO,
            "cannot be 0ns: its timeout has to be",
        ),
        (
            Replicas::at_least(1),
            Duration::from_secs(2),
            "cannot be 2s: its timeout has to be",
        ),
    ] {
        let error = nobody()
            .replicas(replicas, timeout)
            .build()
            .expect_err("it cannot work");
        assert!(
            matches!(
                &error,
                Error::InvalidOption {
                    option: "replicas",
                    ..
                }
            ),
            "{error:?}"
        );
        assert!(error.to_string().contains(told), "{error}");
    }
    nobody()
        .replicas(Replicas::at_least(1), ANSWER)
        .build_lazily()
        .expect("it can work");
}
