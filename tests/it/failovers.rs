//! What failovers do to locks, and what acknowledged replicas change about that.

use std::env;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use relatch::{Builder, LockManager, Replicas};
use relatch_rig::{LONG, Sentinels, SetOnDrop, Setup, eventually, throughout, unique_key};

use crate::sentinel::{patient, port_of, sentinel_that_names};
use crate::support::{ANSWER, SOON, chain};

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
fn take_locks(locks: &LockManager, ended: &AtomicBool, taken: &AtomicU64, done: &Receiver<()>) -> Toll {
    let mut guards = Vec::new();
    while !ended.load(Ordering::SeqCst) {
        // Without enough replicas, or without a master, there is no lock.
        if let Ok(Some(guard)) = locks.try_lock(unique_key("a")) {
            taken.fetch_add(1, Ordering::SeqCst);
            guards.push(guard);
        }
        thread::sleep(Duration::from_millis(2)); // A thousand locks would show no more than a hundred.
    }
    done.recv().expect("the master is replaced");
    let is_lost = |guard: &&relatch::LockGuard| {
        let mut kept = None;
        eventually(LONG, "the new master answers", || {
            kept = match guard.verify() {
                Ok(()) => Some(true),
                Err(relatch::Error::Lost { .. }) => Some(false),
                Err(_) => None,
            };
            kept.is_some()
        });
        kept == Some(false)
    };
    Toll { taken: guards.len() as u64, lost: guards.iter().filter(is_lost).count() as u64 }
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
        eventually(LONG, "locks are taken", || taken.load(Ordering::SeqCst) > 20);
        sentinels.cut_off(1 - old);
        throughout(Duration::from_millis(50), || {});
        sentinels.server(old).kill();
        drop(stop);
        assert_eq!(sentinels.until_replaced(old), 1 - old);
        replaced.send(()).expect("awaited");
        // The killed master comes back as a replica, which acknowledges.
        sentinels.restart(old);
        sentinels.server(1 - old).query::<()>(&["CONFIG", "SET", "masterauth", ""]);
        sentinels.until_in_sync();
        taking.join().expect("no panic")
    })
}

/// Many such failovers: two, or as many as the variable says.
fn lossy_failovers(builder: fn(&str) -> Builder) -> Toll {
    let wanted = env::var("RELATCH_FAILOVERS").map_or(2, |it| it.parse().expect("a number"));
    let deployments = if wanted > AT_A_TIME { AT_A_TIME } else { 1 };
    let run = || {
        let sentinels = Sentinels::with(Setup { replicas: 1, ..Setup::default() });
        let locks = builder(&sentinels.url()).build().expect("connects");
        let tolls = (0..wanted.div_ceil(deployments)).map(|_| lossy_failover(&sentinels, &locks));
        tolls.fold(Toll::default(), |sum, it| Toll { taken: sum.taken + it.taken, lost: sum.lost + it.lost })
    };
    thread::scope(|scope| {
        let running: Vec<_> = (0..deployments).map(|_| scope.spawn(run)).collect();
        let tolls = running.into_iter().map(|it| it.join().expect("no panic"));
        tolls.fold(Toll::default(), |sum, it| Toll { taken: sum.taken + it.taken, lost: sum.lost + it.lost })
    })
}

#[test]
fn lossy_failovers_lose_no_lock_that_all_replicas_acknowledged() {
    let toll = lossy_failovers(acknowledged);
    println!("failovers | replicas(all) | {} locks taken, {} lost", toll.taken, toll.lost);
    assert!(toll.taken > 0 && toll.lost == 0, "{toll:?}");
}

#[test]
fn lossy_failovers_lose_locks_that_no_replica_acknowledged() {
    let toll = lossy_failovers(plain);
    println!("failovers | without replicas | {} locks taken, {} lost", toll.taken, toll.lost);
    assert!(toll.lost > 0, "the other test proves nothing: {toll:?}");
}

#[test]
fn a_sentinel_that_names_the_old_master_leads_to_no_acknowledged_lock() {
    let sentinels = Sentinels::with(Setup { demoted_after: Duration::from_secs(8), ..Setup::default() });
    sentinels.fail_over();
    // All replicas follow the new master; the old one still takes writes.
    let stale = sentinel_that_names(sentinels.server(0).port());
    let url = sentinels.url_with(&[port_of(&stale)]);
    let locks = acknowledged(&url).build().expect("connects");
    let refused = locks.try_lock_for("a", 2 * ANSWER).expect_err("no replica acknowledges");
    assert!(chain(&refused).contains("0 of 2 replicas acknowledged the lock"), "{}", chain(&refused));
    eventually(SOON, "the key is removed", || !sentinels.server(0).exists("lock:a"));
    let careless = plain(&url).build().expect("connects");
    drop(careless.lock("a").expect("the old master grants what it is asked for"));
    assert!(sentinels.is_master(0), "the test came too late");
}

/// Threads of three managers count, with a lost update wherever two of them have the lock.
#[test]
fn no_update_is_lost_over_failovers() {
    let sentinels = Sentinels::start();
    let (counter, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let count = |locks: &LockManager| {
        let mut counted = 0;
        while !ended.load(Ordering::SeqCst) {
            // During a failover there may be no lock, or a release may not be confirmed.
            let _ = locks.with_lock("a", || {
                let found = counter.load(Ordering::SeqCst);
                thread::sleep(Duration::from_millis(1));
                counter.store(found + 1, Ordering::SeqCst);
                counted += 1;
            });
        }
        counted
    };
    let managers = [(); 3].map(|()| {
        // A release that the failover loses leaves the lock without a holder until its lease ends.
        let builder = acknowledged(&sentinels.url()).lease(2 * SOON).tolerate_outage(2 * ANSWER);
        builder.build().expect("connects")
    });
    let counted: u64 = thread::scope(|scope| {
        let threads: Vec<_> =
            managers.iter().flat_map(|it| [it, it]).map(|it| scope.spawn(move || count(it))).collect();
        let stop = SetOnDrop(&ended);
        let goes_on = || {
            let before = counter.load(Ordering::SeqCst);
            eventually(LONG, "locks are taken again", || counter.load(Ordering::SeqCst) > before + 10);
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
        threads.into_iter().map(|it| it.join().expect("no panic")).sum()
    });
    assert_eq!(counter.load(Ordering::SeqCst), counted);
}
