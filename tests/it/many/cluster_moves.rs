//! Redis Cluster: slots that move and masters that are replaced, while locks are held, free and
//! waited for.

use std::thread;
use std::time::Instant;

use relatch::{LockManager, Replicas, Unlocked};
use relatch_rig::{
    Cluster, ClusterSetup, LONG, eventually, server_version, throughout, unique_key, within,
};

use crate::many::cluster::{assert_works, connect, redirects};
use crate::many::sentinel::patient;
#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{MINUTE, PERIOD, SOON, assert_unavailable, chain, renewals, take};

/// Waits until a hold was renewed twice more.
#[track_caller]
fn until_renewed(locks: &LockManager, name: &str) {
    let before = renewals(locks, name);
    eventually(LONG, "the hold is renewed", || {
        renewals(locks, name) >= before + 2
    });
}

/// Checks that none of these nodes has a key left.
#[track_caller]
fn assert_no_key_is_left(cluster: &Cluster, places: impl IntoIterator<Item = usize>) {
    for place in places {
        let what = format!("no key is left on node {place}");
        let keys = || {
            cluster
                .server(place)
                .query::<Vec<String>>(&["KEYS", "lock:*"])
        };
        // The counters of locks with a fence stay.
        let is_lock = |it: &String| !it.starts_with("lock:fence:");
        eventually(LONG, &what, || !keys().iter().any(is_lock));
    }
}

/// A thread has a lock of this name, and hands it to the next, if the server lets it.
fn hand_off(locks: &LockManager, name: &str) {
    let guard = locks.lock(name).expect("locks");
    #[cfg(target_os = "linux")]
    thread::scope(|scope| {
        let next = behind(scope, || take(locks, name));
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        within(5 * SOON, "the next turn", || next.join().expect("no panic"));
    });
    #[cfg(not(target_os = "linux"))]
    drop(guard);
}

/// A slot goes round, and the locks of its keys are held and renewed, taken, released, handed off
/// and waited for. A script with two keys, as a fence needs it, runs nowhere meanwhile.
#[test]
fn locks_work_in_every_phase_of_a_move() {
    let cluster = Cluster::without_replicas();
    // (If an answer could come after the end of a wait, nothing would be handed off.)
    let unhurried = || patient(&cluster.url()).response_timeout(LONG / 4);
    let renewing = unhurried().renew_every(PERIOD).local_handoff(MINUTE);
    let locks = renewing.build().expect("connects");
    let others = unhurried().poll_every(LONG).build().expect("connects");
    let mut tags = std::iter::repeat_with(|| format!("{{{}}}", unique_key("tag")));
    let tag = tags.find(|tag| cluster.node_of(tag) == 0).expect("endless");
    let name = |what: &str| format!("{tag}{what}");
    let (held, waited, slot) = (name("held"), name("waited"), cluster.slot_of(&tag));
    let guard = locks.lock(&held).expect("locks");
    let began = Instant::now();
    for to in [1, 2, 0] {
        let mut early = ["begun", "moved", "ended"]
            .map(|it| locks.lock(name(it)).expect("locks"))
            .into_iter();
        let parcel = locks
            .lock(name("parcel"))
            .expect("locks")
            .hand_over()
            .expect("hands over");
        let awaited = locks.lock(&waited).expect("locks");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&others, &waited));
            let from = cluster.node_of(&tag);
            eventually(LONG, "the waiter waits", || {
                cluster.server(from).listeners().len() == 2
            });
            let mut phase = |is_moving: bool| {
                until_renewed(&locks, &held);
                guard.verify().expect("valid");
                guard.set_lease(MINUTE).expect("extends");
                let seen = others.named(&held).fenced(true).holder().expect("answers");
                assert_eq!(seen.expect("held").raw, guard.token());
                let early = early.next().expect("one for each phase");
                let again = early.key().to_owned();
                assert_eq!(early.unlock().expect("unlocks"), Unlocked::Released);
                hand_off(&locks, &again);
                let fenced = others.named(name("fenced")).fenced(true).try_lock();
                if is_moving {
                    let told = fenced.as_ref().err().map(chain).unwrap_or_default();
                    assert!(told.contains("TRYAGAIN"), "{told}");
                    assert_unavailable(&fenced);
                } else {
                    assert!(fenced.expect("answers").is_some());
                }
            };
            let moving = cluster.begin_move(slot, to);
            phase(true);
            moving.move_keys();
            phase(true);
            moving.end();
            phase(false);
            eventually(LONG, "both listen there", || {
                cluster.server(to).listeners().len() == 2
            });
            throughout(PERIOD, || assert!(!waiter.is_finished()));
            assert_eq!(awaited.unlock().expect("unlocks"), Unlocked::Released);
            within(5 * SOON, "a wake-up", || waiter.join().expect("no panic"));
        });
        drop(others.adopt(&parcel).expect("adopts"));
    }
    assert_eq!((locks.stats().renewal_errors, locks.stats().lost), (0, 0));
    assert!(locks.stats().handed_off > 0 || cfg!(not(target_os = "linux")));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_no_key_is_left(&cluster, 0..3);
    // Of two managers. Before Redis 7, `INFO` does not tell which subcommand was called.
    let maps = (0..3)
        .map(|place| cluster.server(place).calls("cluster|slots"))
        .sum::<u64>();
    let (most, redirects) = (2 * (began.elapsed().as_secs() + 5), redirects(&cluster));
    let is_known = server_version() >= (7, 0);
    assert!(
        !is_known || maps < most && maps < redirects,
        "{maps} maps, {redirects} redirects"
    );
}

/// A master is silent, dies, or is replaced by an operator. The lock that a replica has is kept and
/// waited for, and the holds on other nodes are renewed in time.
#[test]
fn the_death_of_a_master_loses_no_acknowledged_lock_and_disturbs_no_other_node() {
    let cluster = Cluster::with(ClusterSetup {
        args: vec!["--cluster-require-full-coverage", "no"],
        ..ClusterSetup::default()
    });
    // Who waited for the dead node would wait for long, and a busy machine costs no renewal.
    let brief = patient(&cluster.url())
        .lease(3 * SOON)
        .renew_every(3 * PERIOD);
    let brief = brief.response_timeout(LONG).build().expect("connects");
    let near = [1, 2].map(|place| brief.lock(cluster.key_on(place)).expect("locks"));
    let acknowledged = patient(&cluster.url()).replicas(Replicas::at_least(1), PERIOD);
    let (locks, waiter) = (
        acknowledged.build().expect("connects"),
        connect(&cluster.url()),
    );
    let name = cluster.key_on(0);
    let mut kept = None;
    eventually(LONG, "a replica acknowledges in time", || {
        kept = locks.try_lock(&name).ok().flatten();
        kept.is_some()
    });
    let kept = kept.expect("just seen");
    let strikes: [fn(&Cluster); 3] = [
        |cluster| {
            cluster.server(0).pause();
            assert_eq!(cluster.until_replaced(0), 3);
            cluster.server(0).resume();
        },
        |cluster| {
            cluster.server(3).kill();
            assert_eq!(cluster.until_replaced(3), 0);
            cluster.server(3).restart();
        },
        |cluster| cluster.fail_over(3),
    ];
    thread::scope(|scope| {
        let waiting = scope.spawn(|| take(&waiter, &name));
        for strike in strikes {
            eventually(LONG, "the waiter waits", || waiter.stats().waited > 0);
            strike(&cluster);
            cluster.until_well();
            until_renewed(&locks, &name);
            kept.verify().expect("a replica had it");
            assert!(near.iter().all(|it| it.verify().is_ok()) && !waiting.is_finished());
        }
        assert_works(&cluster, &waiter, &[3, 1, 2]);
        assert_eq!(kept.unlock().expect("unlocks"), Unlocked::Released);
        within(5 * SOON, "a wake-up", || waiting.join().expect("no panic"));
    });
    let (stats, near_stats) = (locks.stats(), brief.stats());
    assert_eq!(
        (stats.lost, near_stats.lost, near_stats.renewal_errors),
        (0, 0, 0)
    );
    drop(near);
    assert_no_key_is_left(&cluster, [3, 1, 2]);
}
