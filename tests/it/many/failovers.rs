//! What failovers do to locks, and what acknowledged replicas change about that.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use relatch::{Builder, Error, LockManager, LostCause, Replicas};
use relatch_rig::{
    Fault, LONG, MASTER, Proxy, Sentinels, Server, SetOnDrop, Setup, eventually, throughout,
    unique_key,
};

use crate::many::sentinel::{patient, port_of, sentinel_that_names};
use crate::support::{ANSWER, SOON, assert_lost, assert_unavailable, before_the_demotion, chain};

/// For how long Redis waits for replicas.
const WAIT: Duration = Duration::from_millis(100);

/// How long a lock is taken for that nobody gives back meanwhile.
const HELD: Duration = Duration::from_secs(120);

/// How many deployments there are at a time, if there are many failovers.
const AT_A_TIME: u64 = 4;

fn plain(url: &str) -> Builder {
    patient(url).lease(HELD)
}

fn acknowledged(url: &str) -> Builder {
    plain(url).replicas(Replicas::all(), WAIT)
}

/// How many locks were reported as taken, and how many of those are gone.
#[derive(Debug, Default)]
struct Toll {
    taken: u64,
    lost: u64,
}

/// Takes one lock after the other and keeps all, until `master` tells that another server is the
/// master. Returns how many of them the new master has not.
fn take_locks(
    locks: &LockManager,
    ended: &AtomicBool,
    taken: &AtomicU64,
    done: &Receiver<()>,
) -> Toll {
    let mut guards = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        // Without enough replicas, or without a master, there is no lock.
        if let Ok(Some(guard)) = locks.try_lock(unique_key("a")) {
            taken.fetch_add(1, Ordering::SeqCst);
            guards.push(guard);
        }
        // A thousand locks would show no more than a hundred.
        thread::sleep(Duration::from_millis(2));
    }
    done.recv().expect("the master is replaced");
    let is_lost = |guard: &&relatch::LockGuard| {
        let mut kept = None;
        eventually(LONG, "the new master answers", || {
            kept = match guard.verify() {
                Ok(()) => Some(true),
                Err(Error::Lost { .. }) => Some(false),
                Err(_) => None,
            };
            kept.is_some()
        });
        kept == Some(false)
    };
    Toll {
        taken: guards.len() as u64,
        lost: guards.iter().filter(is_lost).count() as u64,
    }
}

/// The replica is cut off, locks are taken, and the master is killed: the replica becomes the
/// master, and lacks what it did not get.
fn lossy_failover(sentinels: &Sentinels, locks: &LockManager) -> Toll {
    let old = sentinels.master();
    let (ended, taken) = (AtomicBool::new(false), AtomicU64::new(0));
    let (replaced, done) = mpsc::channel();
    thread::scope(|scope| {
        let taking = scope.spawn(|| take_locks(locks, &ended, &taken, &{ done }));
        let stop = SetOnDrop(&ended);
        eventually(LONG, "locks are taken", || {
            taken.load(Ordering::SeqCst) > 20
        });
        sentinels.cut_off(1 - old);
        throughout(Duration::from_millis(50), || {});
        sentinels.server(old).kill();
        drop(stop);
        assert_eq!(sentinels.until_replaced(old), 1 - old);
        replaced.send(()).expect("awaited");
        // The killed master comes back as a replica, which acknowledges.
        sentinels.restart(old);
        sentinels.demote(old, 1 - old);
        sentinels
            .server(1 - old)
            .query::<()>(&["CONFIG", "SET", "masterauth", ""]);
        sentinels.until_in_sync();
        taking.join().expect("no panic")
    })
}

/// Many such failovers, each with its toll: two, or as many as the variable says.
fn lossy_failovers(builder: fn(&str) -> Builder) -> Vec<Toll> {
    let wanted = env::var("RELATCH_FAILOVERS").map_or(2, |it| it.parse().expect("a number"));
    let deployments = if wanted > AT_A_TIME { AT_A_TIME } else { 1 };
    let run = || {
        let sentinels = Sentinels::with(Setup {
            replicas: 1,
            ..Setup::default()
        });
        let locks = builder(&sentinels.url()).build().expect("connects");
        let tolls = (0..wanted.div_ceil(deployments)).map(|_| lossy_failover(&sentinels, &locks));
        tolls.collect::<Vec<_>>()
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..deployments).map(|_| scope.spawn(run)).collect();
        running
            .into_iter()
            .flat_map(|it| it.join().expect("no panic"))
            .collect()
    })
}

fn sum(tolls: &[Toll]) -> Toll {
    let taken = tolls.iter().map(|it| it.taken).sum();
    Toll {
        taken,
        lost: tolls.iter().map(|it| it.lost).sum(),
    }
}

#[test]
fn lossy_failovers_lose_no_lock_that_all_replicas_acknowledged() {
    let toll = sum(&lossy_failovers(acknowledged));
    println!(
        "failovers | replicas(all) | {} locks taken, {} lost",
        toll.taken, toll.lost
    );
    assert!(toll.taken > 0 && toll.lost == 0, "{toll:?}");
}

#[test]
fn lossy_failovers_lose_locks_that_no_replica_acknowledged() {
    let tolls = lossy_failovers(plain);
    let toll = sum(&tolls);
    println!(
        "failovers | without replicas | {} locks taken, {} lost",
        toll.taken, toll.lost
    );
    assert!(
        tolls.iter().all(|it| it.lost > 0),
        "the other test proves nothing: {tolls:?}"
    );
}

/// One of two replicas has the lock, and the sentinels promote the other.
#[test]
fn a_failover_to_a_replica_without_the_lock_loses_it_unless_all_had_to_acknowledge() {
    let sentinels = Sentinels::start();
    let some = plain(&sentinels.url())
        .replicas(Replicas::at_least(1), WAIT)
        .tolerate_outage(LONG);
    let (some, all) = (some.build(), acknowledged(&sentinels.url()).build());
    let (some, all) = (some.expect("connects"), all.expect("connects"));
    sentinels
        .server(1)
        .query::<()>(&["CONFIG", "SET", "replica-priority", "0"]);
    eventually(
        LONG,
        "the sentinels know that they cannot promote it",
        || {
            let port = sentinels.server(1).port().to_string();
            (0..3).all(|place| {
                let replicas: Vec<HashMap<String, String>> = sentinels
                    .sentinel(place)
                    .query(&["SENTINEL", "REPLICAS", MASTER]);
                replicas
                    .iter()
                    .any(|it| it["port"] == port && it["slave-priority"] == "0")
            })
        },
    );
    sentinels.cut_off(2);
    eventually(LONG, "one of two replicas acknowledges", || {
        let refused = all.try_lock("all");
        assert_unavailable(&refused);
        refused.is_err_and(|it| chain(&it).contains("1 of 2 replicas acknowledged the lock"))
    });
    let guard = some.lock("some").expect("one replica has it");
    sentinels.server(0).kill();
    assert_eq!(sentinels.until_replaced(0), 2);
    assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
    assert_lost(&guard.verify(), LostCause::Deleted);
}

/// `Replicas::all` follows what the sentinels say, but a lock without any copy is never enough.
#[test]
fn all_replicas_are_at_least_one_and_also_those_that_come_later() {
    let down_after = LONG;
    let sentinels = Sentinels::with(Setup {
        replicas: 0,
        down_after,
        ..Setup::default()
    });
    // A keeper would ask the sentinels, too, when it connects.
    let locks = acknowledged(&sentinels.url())
        .renew(false)
        .build()
        .expect("connects");
    let is_short = |counts: &str| {
        let taken = locks.try_lock("a");
        taken.is_err_and(|error| {
            chain(&error).contains(&format!("{counts} replicas acknowledged the lock"))
        })
    };
    assert!(is_short("0 of 1"), "nobody has a copy");
    assert_unavailable(&locks.try_lock("a"));
    let master = sentinels.server(0).port().to_string();
    let replica = || Server::with(&["--replicaof", "127.0.0.1", &master]);
    let first = replica();
    eventually(LONG, "the replica acknowledges", || {
        let taken = locks.try_lock("a").ok().flatten();
        taken.is_some_and(|guard| first.get("lock:a").as_deref() == Some(guard.token()))
    });
    let second = replica();
    eventually(LONG, "the master has two replicas", || {
        sentinels
            .server(0)
            .query::<String>(&["INFO", "replication"])
            .matches("state=online")
            .count()
            == 2
    });
    second.pause();
    eventually(LONG, "the second replica is missed", || is_short("1 of 2"));
    second.resume();
    eventually(LONG, "both have it", || {
        let taken = locks.try_lock("a").ok().flatten();
        taken.is_some_and(|guard| second.get("lock:a").as_deref() == Some(guard.token()))
    });
}

/// Without the number of replicas, nobody knows when all of them have a lock.
#[test]
fn all_replicas_need_the_right_to_ask_how_many_there_are() {
    let sentinels = Sentinels::with(Setup {
        down_after: LONG,
        replicas: 1,
        ..Setup::default()
    });
    let proxy = Proxy::start(sentinels.sentinel(0).port());
    proxy.always("SENTINEL SENTINELS", Fault::Answer(b"*0\r\n".to_vec()));
    let url = sentinels.url_with(&[proxy.port()]);
    let build = |builder: Builder| builder.connect_timeout(LONG).build();
    build(acknowledged(&url)).expect("may ask");
    proxy.always(
        "SENTINEL MASTER",
        Fault::Answer(b"-NOPERM this user may not ask\r\n".to_vec()),
    );
    build(plain(&url)).expect("need not know");
    let error = build(acknowledged(&url)).expect_err("may not ask");
    assert!(
        matches!(&error, Error::Refused { code, .. } if code == "NOPERM"),
        "{error:?}"
    );
}

#[test]
fn a_sentinel_that_names_the_old_master_leads_to_no_acknowledged_lock() {
    before_the_demotion(an_old_master_grants_no_acknowledged_lock);
}

/// False if the old master was demoted too soon.
fn an_old_master_grants_no_acknowledged_lock() -> bool {
    let sentinels = Sentinels::with(Setup {
        demoted_after: Duration::from_secs(8),
        ..Setup::default()
    });
    sentinels.fail_over();
    // All replicas follow the new master; the old one still takes writes.
    let stale = sentinel_that_names(sentinels.server(0).port());
    let url = sentinels.url_with(&[port_of(&stale)]);
    let build = |builder: Builder| builder.build_lazily().expect("an address");
    let (locks, careless) = (build(acknowledged(&url)), build(plain(&url)));
    let refused = locks.named("a").try_lock_for(2 * ANSWER);
    eventually(SOON, "the key is removed", || {
        !sentinels.server(0).exists("lock:a")
    });
    let granted = careless.named("a").try_lock_for(2 * ANSWER);
    if !sentinels.is_master(0) {
        return false;
    }
    let refused = refused.expect_err("no replica acknowledges");
    assert!(
        chain(&refused).contains("0 of 2 replicas acknowledged the lock"),
        "{}",
        chain(&refused)
    );
    drop(
        granted
            .expect("the old master grants what it is asked for")
            .expect("a free lock"),
    );
    true
}

/// Counts one up. If another thread does so meanwhile, an update is lost.
pub(crate) fn increment(counter: &AtomicU64) {
    let found = counter.load(Ordering::SeqCst);
    thread::sleep(Duration::from_millis(1));
    counter.store(found + 1, Ordering::SeqCst);
}

/// The control: without a lock, six threads lose updates.
#[test]
fn updates_are_lost_without_a_lock() {
    let counter = AtomicU64::new(0);
    thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| (0..20).for_each(|_| increment(&counter)));
        }
    });
    assert!(
        counter.load(Ordering::SeqCst) < 120,
        "the other test proves nothing"
    );
}

/// Threads of three managers count, with a lost update wherever two of them have the lock. (They
/// take no lock while two masters take writes: the old master is one of the replicas that have to
/// acknowledge it. The next test counts at such a time.)
#[test]
fn no_update_is_lost_over_failovers() {
    let sentinels = Sentinels::start();
    let (counter, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let count = |locks: &LockManager| {
        let mut counted = 0;
        while !ended.load(Ordering::SeqCst) {
            // During a failover there may be no lock, or a release may not be confirmed.
            let _ = locks.with_lock("a", || {
                increment(&counter);
                counted += 1;
            });
        }
        counted
    };
    let managers = [(); 3].map(|()| {
        // A release that the failover loses leaves the lock without a holder until its lease ends.
        let builder = acknowledged(&sentinels.url())
            .lease(2 * SOON)
            .tolerate_outage(2 * ANSWER);
        builder.build().expect("connects")
    });
    let counted: u64 = thread::scope(|scope| {
        let threads: Vec<_> = managers
            .iter()
            .flat_map(|it| [it, it])
            .map(|it| scope.spawn(move || count(it)))
            .collect();
        let stop = SetOnDrop(&ended);
        let goes_on = || {
            let before = counter.load(Ordering::SeqCst);
            eventually(LONG, "locks are taken again", || {
                counter.load(Ordering::SeqCst) > before + 10
            });
        };
        goes_on();
        let old = sentinels.master();
        sentinels.server(old).kill();
        sentinels.until_replaced(old);
        sentinels.restart(old);
        goes_on();
        sentinels.until_in_sync();
        sentinels.fail_over();
        goes_on();
        sentinels.until_in_sync();
        let old = sentinels.master();
        sentinels.server(old).pause();
        sentinels.until_replaced(old);
        sentinels.server(old).resume();
        goes_on();
        drop(stop);
        threads
            .into_iter()
            .map(|it| it.join().expect("no panic"))
            .sum()
    });
    assert_eq!(counter.load(Ordering::SeqCst), counted);
}

/// A manager that knows one of two masters, and what came of its tries.
struct Side {
    locks: LockManager,
    counted: AtomicU64,
    refused: AtomicU64,
}

impl Side {
    fn new(builder: Builder) -> Side {
        let locks = builder.build().expect("connects");
        Side {
            locks,
            counted: AtomicU64::new(0),
            refused: AtomicU64::new(0),
        }
    }

    fn count(&self, counter: &AtomicU64, ended: &AtomicBool) {
        while !ended.load(Ordering::SeqCst) {
            match self.locks.named("a").try_lock_for(ANSWER) {
                Ok(Some(guard)) => {
                    increment(counter);
                    self.counted.fetch_add(1, Ordering::SeqCst);
                    drop(guard);
                }
                Ok(None) => {}
                Err(_) => _ = self.refused.fetch_add(1, Ordering::SeqCst),
            }
        }
    }
}

/// Has two threads of each manager count until `is_enough`. Returns how many updates were lost.
fn lost_updates(sides: &[Side; 2], is_enough: impl Fn() -> bool) -> u64 {
    let (counter, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let _stop = SetOnDrop(&ended);
        for side in sides.iter().flat_map(|it| [it, it]) {
            scope.spawn(|| side.count(&counter, &ended));
        }
        eventually(LONG, "enough is counted", is_enough);
    });
    let counted: u64 = sides
        .iter()
        .map(|it| it.counted.load(Ordering::SeqCst))
        .sum();
    counted - counter.load(Ordering::SeqCst)
}

/// Some clients know the new master, others still the old one, which takes writes until it is
/// demoted. One replica is enough for a lock here, and that replica follows the new master.
#[test]
fn no_update_is_lost_while_two_masters_take_writes() {
    before_the_demotion(two_masters_take_writes);
}

/// False if the old master was demoted too soon.
fn two_masters_take_writes() -> bool {
    let sentinels = Sentinels::with(Setup {
        demoted_after: Duration::from_secs(24),
        ..Setup::default()
    });
    let old = sentinels.master();
    let new = sentinels.fail_over();
    let online = |place: usize| {
        sentinels
            .server(place)
            .query::<String>(&["INFO", "replication"])
            .matches("state=online")
            .count()
    };
    // Until then, the replica acknowledges locks of the old master, and loses them when it turns to
    // the new one.
    eventually(LONG, "the replica follows the new master", || {
        (online(old), online(new)) == (0, 1)
    });
    let stale = sentinel_that_names(sentinels.server(old).port());
    let urls = [sentinels.url(), sentinels.url_with(&[port_of(&stale)])];
    let had = |side: &Side| side.counted.load(Ordering::SeqCst);
    let sides = |builder: fn(&str) -> Builder| urls.each_ref().map(|url| Side::new(builder(url)));

    let both = sides(|url| plain(url).replicas(Replicas::at_least(1), WAIT));
    let is_enough = || had(&both[0]) >= 50 && both[1].refused.load(Ordering::SeqCst) >= 4;
    let lost = lost_updates(&both, is_enough);
    assert_eq!(
        lost,
        0,
        "of {} at the new master and {} at the old",
        had(&both[0]),
        had(&both[1])
    );
    if !sentinels.is_master(old) {
        return false;
    }

    // The control: without acknowledgements, both masters grant the lock.
    let both = sides(plain);
    let lost = lost_updates(&both, || both.iter().all(|it| had(it) >= 50));
    if !sentinels.is_master(old) {
        return false;
    }
    assert!(lost > 0, "the test proves nothing");
    true
}
