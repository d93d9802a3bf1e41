//! Redis Cluster: slots that move, and nodes that come and go, while locks are held, free and
//! waited for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{LockManager, Unlocked};
use relatch_rig::{
    Cluster, ClusterSetup, Fault, LONG, SetOnDrop, eventually, is_alone, throughout, time, unique_key, within,
};

use crate::cluster::{connect, patient, redirects, small};
use crate::failovers::increment;
use crate::sentinel::{clients_of, threads};
#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{LEASE, MINUTE, PERIOD, SOON, assert_unavailable, chain, renewals, take};

/// How soon after a redirect the new map must be in use: it is read at most once a second, and a
/// silent node that is asked first takes half a second.
pub(crate) const NEW_MAP: Duration = Duration::from_secs(3);

/// A manager with short leases that are renewed often.
fn renewing(cluster: &Cluster) -> LockManager {
    let builder = patient(&cluster.url()).lease(4 * LEASE).renew_every(PERIOD);
    builder.build().expect("connects")
}

/// A tag in a slot of this node: names that begin with it are of one slot.
pub(crate) fn tag_on(cluster: &Cluster, place: usize) -> String {
    let mut tags = std::iter::repeat_with(|| format!("{{{}}}", unique_key("tag")));
    tags.find(|tag| cluster.node_of(tag) == place).expect("some slot is there")
}

pub(crate) fn key(name: &str) -> String {
    format!("lock:{name}")
}

/// Waits until a hold was renewed `times` more.
#[track_caller]
pub(crate) fn until_renewed(locks: &LockManager, name: &str, times: u32) {
    let before = renewals(locks, name);
    eventually(LONG, "the hold is renewed", || renewals(locks, name) >= before + times);
}

/// Waits until the manager, which renews its holds all the time, is redirected no more.
#[track_caller]
fn until_map_is_read(cluster: &Cluster, locks: &LockManager, name: &str, places: &[usize]) -> Duration {
    let (took, ()) = time(|| {
        eventually(NEW_MAP, "the new map is used", || {
            let before = redirects(cluster, places.iter().copied());
            until_renewed(locks, name, 2);
            redirects(cluster, places.iter().copied()) == before
        });
    });
    took
}

/// Checks that no node has a key left.
#[track_caller]
fn assert_no_key_is_left(cluster: &Cluster, places: &[usize]) {
    for &place in places {
        let count = || cluster.server(place).query::<u64>(&["DBSIZE"]);
        eventually(5 * SOON, "no key is left", || count() == 0);
    }
}

/// Threads of all managers count under each of these locks until `body` has returned. No update may
/// be lost, and each lock is taken within `LONG`. Returns the longest wait.
pub(crate) fn while_counting(
    managers: &[LockManager],
    names: &[String],
    body: impl FnOnce(&dyn Fn()),
) -> Duration {
    let counters: Vec<_> = names.iter().map(|_| (AtomicU64::new(0), AtomicU64::new(0))).collect();
    let (ended, longest) = (AtomicBool::new(false), Mutex::new(Duration::ZERO));
    let count = |locks: &LockManager, name: &str, (counter, counted): &(AtomicU64, AtomicU64)| {
        while !ended.load(Ordering::SeqCst) {
            let (took, taken) = time(|| locks.try_lock_for(name, LONG));
            let guard = taken.expect("answers").expect("the lock becomes free");
            increment(counter);
            counted.fetch_add(1, Ordering::SeqCst);
            drop(guard);
            let mut longest = longest.lock();
            *longest = took.max(*longest);
        }
    };
    thread::scope(|scope| {
        let _stop = SetOnDrop(&ended);
        for locks in managers {
            for (name, counts) in names.iter().zip(&counters) {
                let count = &count;
                scope.spawn(move || count(locks, name, counts));
            }
        }
        let goes_on = || {
            for (_, counted) in &counters {
                let before = counted.load(Ordering::SeqCst);
                let enough = before + 5 * managers.len() as u64;
                eventually(LONG, "locks are taken", || counted.load(Ordering::SeqCst) > enough);
            }
        };
        goes_on();
        body(&goes_on);
        goes_on();
    });
    for (name, (counter, counted)) in names.iter().zip(counters) {
        assert_eq!(counter.into_inner(), counted.into_inner(), "updates under {name} were lost");
    }
    longest.into_inner()
}

#[test]
fn a_hold_goes_on_while_its_slot_moves() {
    let cluster = Cluster::without_replicas();
    let locks = renewing(&cluster);
    let name = cluster.key_on(0);
    let guard = locks.lock(&name).expect("locks");
    let others = connect(&cluster.url());
    let is_held = || {
        until_renewed(&locks, &name, 3);
        guard.verify().expect("valid");
        guard.extend(4 * LEASE).expect("extends");
        thread::scope(|scope| {
            let busy = || others.try_lock(&name).expect("answers").is_none();
            assert!(scope.spawn(busy).join().expect("no panic"), "another manager finds it busy");
        });
        let seen = others.named(&name).holder().expect("answers").expect("held");
        assert_eq!(seen.raw(), guard.token());
    };
    is_held();
    for to in [1, 2, 0] {
        let moving = cluster.begin_move(cluster.slot_of(&name), to);
        is_held();
        moving.move_keys();
        is_held();
        moving.end();
        is_held();
        let took = until_map_is_read(&cluster, &locks, &name, &[0, 1, 2]);
        println!("the new map was used after {took:?}");
        let mut least = cluster.server(to).pttl(&key(&name));
        eventually(LONG, "the lease falls, and grows at the new owner", || {
            let left = cluster.server(to).pttl(&key(&name));
            let grows = left > least;
            least = least.min(left);
            grows
        });
        assert!(guard.is_valid() && least > 0);
    }
    assert_eq!((locks.stats().renewal_errors, locks.stats().lost), (0, 0));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// Each step of a move comes between taking a lock and its release.
#[test]
fn a_lock_is_taken_and_released_in_every_phase_of_a_move() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&cluster.url());
    let tag = tag_on(&cluster, 0);
    let names = ["begun", "moved", "ended"].map(|phase| format!("{tag}{phase}"));
    for to in [1, 0] {
        let mut early =
            names.iter().map(|name| locks.lock(name).expect("locks")).collect::<Vec<_>>().into_iter();
        let moving = cluster.begin_move(cluster.slot_of(&tag), to);
        let mut phase = |name: &String| {
            let early = early.next().expect("one for each phase");
            assert_eq!(early.unlock().expect("unlocks"), Unlocked::Released);
            let again = locks.try_lock(name).expect("answers").expect("a free lock");
            assert_eq!(again.unlock().expect("unlocks"), Unlocked::Released);
        };
        phase(&names[0]);
        moving.move_keys();
        phase(&names[1]);
        moving.end();
        phase(&names[2]);
    }
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// A script with two keys runs neither at the old nor at the new owner of a slot while one of the
/// keys is not there. The key of a free lock is nowhere, so such a lock is taken after the move.
#[test]
fn a_fenced_lock_waits_for_the_end_of_a_move_and_its_fence_grows() {
    let cluster = Cluster::without_replicas();
    let [locks, others] = [(); 2].map(|()| patient(&cluster.url()).fenced(true).build().expect("connects"));
    let name = cluster.key_on(0);
    let turn = || {
        let guard = locks.lock(&name).expect("locks");
        let fence = guard.fence();
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        fence
    };
    let mut fences = vec![turn()];
    for to in [1, 2, 0] {
        let moving = cluster.begin_move(cluster.slot_of(&name), to);
        let waits = || {
            let error = others.try_lock(&name).map(drop).expect_err("the slot moves");
            assert!(chain(&error).contains("TRYAGAIN"), "{}", chain(&error));
            assert_unavailable(&Err(error));
        };
        waits();
        thread::scope(|scope| {
            let waiter = scope.spawn(turn);
            throughout(PERIOD, || assert!(!waiter.is_finished()));
            moving.move_keys();
            waits();
            moving.end();
            fences.push(within(5 * SOON, "the wait", || waiter.join().expect("no panic")));
        });
        fences.push(turn());
    }
    assert!(fences.is_sorted_by(|before, after| before < after), "{fences:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_lock_is_handed_off_in_every_phase_of_a_move() {
    let cluster = Cluster::without_replicas();
    let locks = patient(&cluster.url()).local_handoff(MINUTE).build().expect("connects");
    let name = cluster.key_on(0);
    let hand_off = || {
        let guard = locks.lock(&name).expect("locks");
        thread::scope(|scope| {
            let next = behind(scope, || take(&locks, &name));
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            within(5 * SOON, "the next turn", || next.join().expect("no panic"));
        });
    };
    let guard = locks.lock(&name).expect("locks");
    let moving = cluster.begin_move(cluster.slot_of(&name), 1);
    // The key is still at the old owner, which sends the claim behind its removal elsewhere.
    thread::scope(|scope| {
        let next = behind(scope, || take(&locks, &name));
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        within(5 * SOON, "the next turn", || next.join().expect("no panic"));
    });
    hand_off();
    moving.move_keys();
    let handed_off = locks.stats().handed_off;
    hand_off();
    moving.end();
    hand_off();
    assert_eq!(locks.stats().handed_off, handed_off + 2, "the hand-off follows redirects");
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// Waits that end at the new owner of the slot, and waiters that sleep for long without a wake-up.
#[test]
fn a_waiter_follows_its_slot_and_is_woken_by_the_new_owner() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&cluster.url());
    let others = patient(&cluster.url()).poll_every(LONG).build().expect("connects");
    let name = cluster.key_on(0);
    for to in [1, 2, 0] {
        // Nothing but the waiter's own attempts shows that the slot has moved.
        let guard = locks.named(&name).lease(3 * MINUTE).lock().expect("locks");
        let from = cluster.node_of(&name);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&others, &name));
            eventually(LONG, "the wait is tracked", || cluster.server(from).tracked_keys() == 1);
            cluster.move_slot(cluster.slot_of(&name), to);
            let (took, ()) = time(|| {
                eventually(NEW_MAP, "the wait is tracked at the new owner", || {
                    cluster.server(to).tracked_keys() == 1
                });
            });
            println!("tracked at the new owner after {took:?}");
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            let released = Instant::now();
            let woken = waiter.join().expect("no panic").saturating_duration_since(released);
            assert!(woken < SOON, "woken after {woken:?}");
        });
    }
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// A slot goes round while a lock of it is held and renewed, another is taken again and again, and
/// a third is waited for.
#[test]
fn no_update_wake_up_or_hold_is_lost_while_slots_go_round() {
    let cluster = Cluster::without_replicas();
    let managers = [(); 3].map(|()| patient(&cluster.url()).poll_every(LONG).build().expect("connects"));
    let holder = renewing(&cluster);
    let tag = tag_on(&cluster, 0);
    let (held, slot) = (format!("{tag}held"), cluster.slot_of(&tag));
    let guard = holder.lock(&held).expect("locks");
    let names = [format!("{tag}busy"), cluster.key_on(1)];
    let mut moves = 0;
    let longest = while_counting(&managers, &names, |goes_on| {
        for to in [1, 2, 0, 1, 0, 2, 1, 0] {
            cluster.move_slot(slot, to);
            moves += 1;
            if moves % 2 == 0 {
                goes_on();
            }
        }
        let moving = cluster.begin_move(slot, 2);
        goes_on();
        moving.move_keys();
        goes_on();
        moving.move_keys();
        moving.end();
    });
    println!("the longest wait: {longest:?}");
    assert!(longest < 5 * SOON, "{longest:?}");
    guard.verify().expect("valid");
    assert_eq!(holder.stats().lost, 0);
    assert!(managers.iter().all(|it| it.stats().lost == 0));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

#[test]
#[cfg(target_os = "linux")]
fn the_threads_and_connections_of_a_node_end_when_it_leaves() {
    if !is_alone(module_path!(), "the_threads_and_connections_of_a_node_end_when_it_leaves") {
        return;
    }
    let cluster = small(ClusterSetup { spares: 1, ..ClusterSetup::default() });
    let locks = renewing(&cluster);
    let names = [0, 1, 2].map(|place| cluster.key_on(place));
    let guards = names.each_ref().map(|name| locks.lock(name).expect("locks"));
    let count = |what: &str| threads().iter().filter(|it| it.trim_end() == what).count();
    let until_are = |number: usize| {
        // If no lock is in the slot that moves last, nothing shows for 10 s that the map is old.
        eventually(LONG, "as many threads as nodes", || {
            count("relatch-listen") == number && count("relatch-renewer") == number
        });
    };
    for _ in 0..2 {
        cluster.join(3);
        cluster.move_slot(cluster.slot_of(&names[0]), 3);
        // Node 0 has slots left, but no lock: its threads stay.
        until_are(4);
        until_renewed(&locks, &names[0], 5);
        assert!(clients_of(cluster.server(3)) > 0);
        cluster.remove(3);
        until_are(3);
        eventually(NEW_MAP, "no connection is left", || clients_of(cluster.server(3)) == 0);
        for guard in &guards {
            guard.verify().expect("valid");
        }
    }
    cluster.remove(2);
    until_are(2);
    eventually(NEW_MAP, "no connection is left", || clients_of(cluster.server(2)) == 0);
    for guard in guards {
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
    within(2 * SOON, "the end of the manager", || drop(locks));
    eventually(SOON, "all threads have ended", || threads().is_empty());
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// Redis executes a `SET`, the answer is lost, and the slot moves before the key can be deleted.
#[test]
fn the_key_of_a_lost_answer_is_deleted_at_the_new_owner() {
    // The first is a clean-up that the old owner never gets, the second one that it answers with
    // `MOVED`.
    for clean_up in [Fault::SwallowCommand, Fault::DelayCommand(SOON)] {
        let cluster = small(ClusterSetup { proxied: true, ..ClusterSetup::default() });
        let locks = patient(&cluster.url()).response_timeout(2 * SOON).build().expect("connects");
        let name = cluster.key_on(0);
        cluster.proxy(0).always(&format!("SET {}", key(&name)), Fault::CutBeforeReply);
        for script in ["EVAL", "EVALSHA"] {
            cluster.proxy(0).always(&format!("{script} * 1 {}", key(&name)), clean_up.clone());
        }
        assert_unavailable(&locks.try_lock(&name));
        cluster.move_slot(cluster.slot_of(&name), 1);
        let (took, ()) = time(|| {
            eventually(LONG, "the key is deleted", || !cluster.server(1).exists(&key(&name)));
        });
        println!("deleted after {took:?}");
        let others = connect(&cluster.url());
        drop(within(LONG, "a free lock", || others.lock(&name)).expect("locks"));
        eventually(LONG, "the clean-up is counted", || locks.stats().late_releases > 0);
        assert_no_key_is_left(&cluster, &[0, 1, 2]);
    }
}

/// While the slot moves, the counter is at the new owner already, or nowhere.
#[test]
fn the_holder_of_a_lock_is_seen_although_its_counter_is_elsewhere() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&cluster.url());
    let name = cluster.key_on(0);
    let guard = locks.lock(&name).expect("locks");
    let moving = cluster.begin_move(cluster.slot_of(&name), 1);
    let seen = locks.named(&name).fenced(true).holder().expect("answers").expect("it is held");
    assert_eq!((seen.raw(), seen.fence()), (guard.token(), None));
    moving.move_keys();
    moving.end();
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// The holder has nothing to do with Redis for a while. The map is looked at nevertheless, and the
/// hold is tracked at the new owner.
#[test]
fn the_map_is_looked_at_now_and_then_though_nothing_shows_that_it_is_old() {
    let cluster = Cluster::without_replicas();
    let locks = patient(&cluster.url()).renew_every(MINUTE / 3).build().expect("connects");
    let name = cluster.key_on(0);
    let guard = locks.lock(&name).expect("locks");
    cluster.move_slot(cluster.slot_of(&name), 1);
    eventually(LONG, "the hold is tracked there", || cluster.server(1).tracked_keys() == 1);
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}
