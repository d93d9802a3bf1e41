//! Redis Cluster: slots that move, and nodes that come and go, while locks are held, free and
//! waited for.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use relatch::{Error, LockGuard, LockManager, Unlocked};
use relatch_rig::{
    CLAIM, Cluster, ClusterSetup, Fault, LONG, SetOnDrop, eventually, is_alone, throughout, time,
    unique_key, within,
};

use crate::many::cluster::{connect, patient, redirects, small};
use crate::many::failovers::increment;
use crate::many::sentinel::{clients_of, threads};
#[cfg(target_os = "linux")]
use crate::support::behind;
use crate::support::{
    ANSWER, LEASE, MINUTE, PERIOD, SOON, assert_unavailable, chain, renewals, take,
};
use crate::turns::fence::fence_of;

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
    tags.find(|tag| cluster.node_of(tag) == place)
        .expect("some slot is there")
}

pub(crate) fn key(name: &str) -> String {
    format!("lock:{name}")
}

/// Waits until a hold was renewed `times` more.
#[track_caller]
pub(crate) fn until_renewed(locks: &LockManager, name: &str, times: u32) {
    let before = renewals(locks, name);
    eventually(LONG, "the hold is renewed", || {
        renewals(locks, name) >= before + times
    });
}

/// Waits until the manager, which renews its holds all the time, is redirected no more.
#[track_caller]
fn until_map_is_read(
    cluster: &Cluster,
    locks: &LockManager,
    name: &str,
    places: &[usize],
) -> Duration {
    let (took, ()) = time(|| {
        eventually(NEW_MAP, "the new map is used", || {
            let before = redirects(cluster, places.iter().copied());
            until_renewed(locks, name, 2);
            redirects(cluster, places.iter().copied()) == before
        });
    });
    took
}

/// Checks that none of these nodes has a key left.
#[track_caller]
pub(crate) fn assert_no_key_is_left(cluster: &Cluster, places: &[usize]) {
    for &place in places {
        let what = format!("no key is left on node {place}");
        eventually(LONG, &what, || keys_at(cluster, place).is_empty());
    }
}

/// The counter of a lock with a fence.
fn counter(name: &str) -> String {
    format!("lock:fence:{{{}}}", key(name))
}

/// All keys of a node, also those of a slot that is on its way.
fn keys_at(cluster: &Cluster, place: usize) -> Vec<String> {
    cluster.server(place).query(&["KEYS", "*"])
}

/// Threads of all managers count under each of these locks until `body` has returned. No update may
/// be lost. Each wait has `limit` as its deadline, and ends with the lock before that. Further
/// threads wait for [`ANSWER`] only: they get the lock or do not, but by their deadline.
pub(crate) fn while_counting(
    managers: &[LockManager],
    names: &[String],
    limit: Duration,
    body: impl FnOnce(&dyn Fn()),
) {
    let counters: Vec<_> = names
        .iter()
        .map(|_| (AtomicU64::new(0), AtomicU64::new(0)))
        .collect();
    let (ended, longest) = (AtomicBool::new(false), Mutex::new(Duration::ZERO));
    let hurried = Mutex::new(Duration::ZERO);
    // (A busy machine may wake a thread late.)
    let take = |locks: &LockManager, name: &str, limit: Duration, longest: &Mutex<Duration>| {
        let (took, taken) = time(|| locks.named(name).try_lock_for(limit));
        let mut longest = longest.lock();
        *longest = took.max(*longest);
        assert!(
            took < limit + SOON,
            "waited for {took:?}, with a deadline after {limit:?}"
        );
        taken
    };
    let count = |guard: LockGuard, (counter, counted): &(AtomicU64, AtomicU64)| {
        increment(counter);
        counted.fetch_add(1, Ordering::SeqCst);
        drop(guard);
    };
    thread::scope(|scope| {
        let _stop = SetOnDrop(&ended);
        let (take, count, ended, longest, hurried) = (&take, &count, &ended, &longest, &hurried);
        for (name, counts) in names.iter().zip(&counters) {
            for locks in managers {
                scope.spawn(move || {
                    while !ended.load(Ordering::SeqCst) {
                        let taken = take(locks, name, limit, longest);
                        count(
                            taken.expect("answers").expect("the lock becomes free"),
                            counts,
                        );
                    }
                });
            }
            scope.spawn(move || {
                while !ended.load(Ordering::SeqCst) {
                    match take(&managers[0], name, ANSWER, hurried) {
                        Ok(Some(guard)) => count(guard, counts),
                        Ok(None) | Err(Error::Unavailable { .. } | Error::Timeout { .. }) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
            });
        }
        let goes_on = || {
            for (_, counted) in &counters {
                let before = counted.load(Ordering::SeqCst);
                let enough = before + 5 * managers.len() as u64;
                eventually(LONG, "locks are taken", || {
                    counted.load(Ordering::SeqCst) > enough
                });
            }
        };
        goes_on();
        body(&goes_on);
        goes_on();
    });
    for (name, (counter, counted)) in names.iter().zip(counters) {
        assert_eq!(
            counter.into_inner(),
            counted.into_inner(),
            "updates under {name} were lost"
        );
    }
    println!(
        "the longest wait: {:?}, and of those in a hurry {:?}",
        longest.lock(),
        hurried.lock()
    );
}

/// Neither manager has read a new map when the slot has moved.
#[test]
fn a_parcel_is_adopted_where_its_slot_has_moved() {
    let cluster = Cluster::without_replicas();
    let (locks, others) = (connect(&cluster.url()), connect(&cluster.url()));
    for is_fenced in [false, true] {
        let name = cluster.key_on(0);
        let guard = locks
            .named(&name)
            .fenced(is_fenced)
            .lease(MINUTE)
            .lock()
            .expect("locks");
        let before = guard.fence();
        let parcel = guard.hand_over().expect("hands over");
        drop(others.lock(cluster.key_on(0)).expect("locks"));
        cluster.move_slot(cluster.slot_of(&name), 1);
        let adopted = others.adopt(&parcel).expect("adopts");
        assert_eq!(
            cluster.server(1).get(&key(&name)).as_deref(),
            Some(adopted.token())
        );
        assert_eq!(adopted.fence() > before, is_fenced);
        assert_eq!(adopted.unlock().expect("unlocks"), Unlocked::Released);
    }
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
        guard.set_lease(4 * LEASE).expect("extends");
        thread::scope(|scope| {
            let busy = || others.try_lock(&name).expect("answers").is_none();
            assert!(
                scope.spawn(busy).join().expect("no panic"),
                "another manager finds it busy"
            );
        });
        let seen = others
            .named(&name)
            .holder()
            .expect("answers")
            .expect("held");
        assert_eq!(seen.raw, guard.token());
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
        let mut early = names
            .iter()
            .map(|name| locks.lock(name).expect("locks"))
            .collect::<Vec<_>>()
            .into_iter();
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
    let [locks, others] = [(); 2].map(|()| {
        patient(&cluster.url())
            .fenced(true)
            .build()
            .expect("connects")
    });
    let name = cluster.key_on(0);
    let turn = || {
        let guard = locks.lock(&name).expect("locks");
        let fence = fence_of(&guard);
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        fence
    };
    let mut fences = vec![turn()];
    for to in [1, 2, 0] {
        let moving = cluster.begin_move(cluster.slot_of(&name), to);
        let waits = || {
            let error = others
                .try_lock(&name)
                .map(drop)
                .expect_err("the slot moves");
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
            fences.push(within(5 * SOON, "the wait", || {
                waiter.join().expect("no panic")
            }));
        });
        fences.push(turn());
    }
    assert!(
        fences.is_sorted_by(|before, after| before < after),
        "{fences:?}"
    );
}

#[test]
#[cfg(target_os = "linux")]
fn a_lock_is_handed_off_in_every_phase_of_a_move() {
    let cluster = Cluster::without_replicas();
    let locks = patient(&cluster.url())
        .local_handoff(MINUTE)
        .build()
        .expect("connects");
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
    assert_eq!(
        locks.stats().handed_off,
        handed_off + 2,
        "the hand-off follows redirects"
    );
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// Waits that end at the new owner of the slot, and waiters that sleep for long without a wake-up.
#[test]
fn a_waiter_follows_its_slot_and_is_woken_by_the_new_owner() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&cluster.url());
    let others = patient(&cluster.url())
        .poll_every(LONG)
        .build()
        .expect("connects");
    let name = cluster.key_on(0);
    for to in [1, 2, 0] {
        // Nothing but the waiter's own attempts shows that the slot has moved.
        let guard = locks.named(&name).lease(3 * MINUTE).lock().expect("locks");
        let from = cluster.node_of(&name);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| take(&others, &name));
            eventually(LONG, "the wait is tracked", || {
                cluster.server(from).tracked_keys() == 1
            });
            cluster.move_slot(cluster.slot_of(&name), to);
            let (took, ()) = time(|| {
                eventually(NEW_MAP, "the wait is tracked at the new owner", || {
                    cluster.server(to).tracked_keys() == 1
                });
            });
            println!("tracked at the new owner after {took:?}");
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            let released = Instant::now();
            let woken = waiter
                .join()
                .expect("no panic")
                .saturating_duration_since(released);
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
    let managers = [(); 3].map(|()| {
        patient(&cluster.url())
            .poll_every(LONG)
            .build()
            .expect("connects")
    });
    let holder = renewing(&cluster);
    let tag = tag_on(&cluster, 0);
    let (held, slot) = (format!("{tag}held"), cluster.slot_of(&tag));
    let guard = holder.lock(&held).expect("locks");
    let names = [format!("{tag}busy"), cluster.key_on(1)];
    let mut moves = 0;
    while_counting(&managers, &names, 5 * SOON, |goes_on| {
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
    guard.verify().expect("valid");
    assert_eq!(holder.stats().lost, 0);
    assert!(managers.iter().all(|it| it.stats().lost == 0));
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

#[test]
#[cfg(target_os = "linux")]
fn the_threads_and_connections_of_a_node_end_when_it_leaves() {
    if !is_alone(
        module_path!(),
        "the_threads_and_connections_of_a_node_end_when_it_leaves",
    ) {
        return;
    }
    let cluster = small(ClusterSetup {
        spares: 1,
        ..ClusterSetup::default()
    });
    let locks = renewing(&cluster);
    let names = [0, 1, 2].map(|place| cluster.key_on(place));
    let guards = names
        .each_ref()
        .map(|name| locks.lock(name).expect("locks"));
    let count = |what: &str| threads().iter().filter(|it| it.trim_end() == what).count();
    let until_are = |number: usize| {
        // A node to which a redirect has led stays for 10 s. If the map was read just before that,
        // it is read again 10 s later.
        eventually(2 * LONG, "as many threads as nodes", || {
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
        eventually(NEW_MAP, "no connection is left", || {
            clients_of(cluster.server(3)) == 0
        });
        for guard in &guards {
            guard.verify().expect("valid");
        }
    }
    cluster.remove(2);
    until_are(2);
    eventually(NEW_MAP, "no connection is left", || {
        clients_of(cluster.server(2)) == 0
    });
    for guard in guards {
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
    }
    within(2 * SOON, "the end of the manager", || drop(locks));
    eventually(SOON, "all threads have ended", || threads().is_empty());
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// Redis executes a claim, the answer is lost, and the slot moves, or is on its way, before the key
/// can be deleted.
#[test]
fn the_key_of_a_lost_answer_is_deleted_at_the_new_owner() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let locks = patient(&cluster.url())
        .response_timeout(2 * SOON)
        .build()
        .expect("connects");
    // The old owner answers a clean-up with `MOVED` or, if the move is not ended, with `ASK`. It
    // never gets the last one.
    for (fenced, clean_up, ends) in [
        (false, Fault::DelayCommand(SOON / 4), true),
        (true, Fault::DelayCommand(SOON / 4), true),
        (true, Fault::DelayCommand(SOON / 4), false),
        (false, Fault::SwallowCommand, true),
    ] {
        let name = cluster.key_on(0);
        let lock = locks.named(&name).fenced(fenced);
        let first = lock.lock().expect("locks").fence(); // Redis knows the script now.
        let claim = if fenced { "EVALSHA * 2" } else { "SET" };
        cluster
            .proxy(0)
            .always(&format!("{claim} {}", key(&name)), Fault::CutBeforeReply);
        for script in ["EVAL", "EVALSHA"] {
            cluster
                .proxy(0)
                .always(&format!("{script} * 1 {}", key(&name)), clean_up.clone());
        }
        let (redirected, cleaned) = (redirects(&cluster, [0]), locks.stats().late_releases);
        assert_unavailable(&lock.try_lock());
        let (took, moving) = time(|| {
            let moving = cluster.begin_move(cluster.slot_of(&name), 1);
            moving.move_keys();
            if ends {
                moving.end();
                return None;
            }
            Some(moving)
        });
        let (took_again, ()) = time(|| {
            let is_deleted = || (0..3).all(|place| !keys_at(&cluster, place).contains(&key(&name)));
            eventually(LONG, "the key is deleted", is_deleted);
        });
        println!("moved in {took:?}, deleted {took_again:?} later");
        // On a busy machine, the clean-up may have come before the move. Otherwise it comes before
        // the next map.
        let is_redirected = redirects(&cluster, [0]) > redirected;
        assert!(is_redirected || clean_up == Fault::SwallowCommand || took > SOON / 8);
        eventually(LONG, "the clean-up is counted", || {
            locks.stats().late_releases > cleaned
        });
        cluster.proxy(0).clear();
        if let Some(moving) = moving {
            moving.end();
        }
        let lost = cluster
            .server(1)
            .get(&counter(&name))
            .map(|it| it.parse().expect("a number"));
        let guard = within(LONG, "a free lock", || lock.lock()).expect("locks");
        assert!(
            !fenced || guard.fence() > lost && lost > first,
            "{:?}, {lost:?}, {first:?}",
            guard.fence()
        );
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        assert!((0..3).all(|place| !keys_at(&cluster, place).contains(&key(&name))));
    }
}

/// The key of a lock is at the new owner already, and its counter is not. The old owner answers the
/// release with `ASK` and the next thread's claim with `TRYAGAIN`. So the release follows, and the
/// claim waits for the end of the move.
#[test]
#[cfg(target_os = "linux")]
fn a_fenced_lock_is_released_while_its_counter_is_elsewhere_and_its_next_fence_is_larger() {
    let cluster = Cluster::without_replicas();
    let builder = patient(&cluster.url()).fenced(true).local_handoff(MINUTE);
    let locks = builder.build().expect("connects");
    let name = cluster.key_on(0);
    let first = locks.lock(&name).expect("locks");
    let fence = fence_of(&first);
    let moving = cluster.begin_move(cluster.slot_of(&name), 1);
    let port = cluster.server(1).port().to_string();
    cluster
        .server(0)
        .query::<()>(&["MIGRATE", "127.0.0.1", &port, &key(&name), "0", "5000"]);
    assert_eq!(keys_at(&cluster, 0), [counter(&name)]);
    assert_eq!(keys_at(&cluster, 1), [key(&name)]);
    thread::scope(|scope| {
        let next = behind(scope, || {
            let guard = locks.lock(&name).expect("locks");
            let fence = fence_of(&guard);
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            fence
        });
        assert_eq!(first.unlock().expect("unlocks"), Unlocked::Released);
        assert_eq!(keys_at(&cluster, 1), [""; 0], "it is released");
        throughout(PERIOD, || {
            assert!(!next.is_finished(), "a fence without the counter");
        });
        moving.move_keys();
        moving.end();
        let next = within(5 * SOON, "the next turn", || next.join().expect("no panic"));
        assert!(next > fence, "{next} after {fence}");
    });
    assert_eq!(keys_at(&cluster, 1), [counter(&name)]);
}

/// A waiter is asked elsewhere in the middle of a move, loses an answer there, and deletes the key
/// that this has left. It asks the other node for no invalidations: the listener that it knows is
/// one of the old owner.
#[test]
fn a_waiter_that_is_sent_elsewhere_asks_for_no_invalidations_there() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let [locks, others] = [(); 2].map(|()| connect(&cluster.url()));
    let name = cluster.key_on(0);
    let held = others.named(&name).renew(false).lock().expect("locks");
    cluster.server(1).query::<()>(&["SCRIPT", "LOAD", CLAIM]);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let guard = locks.lock(&name).expect("locks");
            let removals = cluster
                .proxy(1)
                .commands(&format!("EVALSHA * 1 {}", key(&name)));
            cluster.proxy(0).clear();
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            removals
        });
        eventually(LONG, "the wait is tracked", || {
            cluster.server(0).tracked_keys() == 1
        });
        let moving = cluster.begin_move(cluster.slot_of(&name), 1);
        // The keeper must not delete the key first.
        for script in ["EVAL", "EVALSHA"] {
            cluster.proxy(0).always(
                &format!("{script} * 1 {}", key(&name)),
                Fault::SwallowCommand,
            );
        }
        cluster
            .proxy(1)
            .on(&format!("SET {}", key(&name)), Fault::CutBeforeReply);
        cluster.server(0).query::<()>(&["DEL", &key(&name)]);
        let removals = within(5 * SOON, "the lock", || waiter.join().expect("no panic"));
        assert!(
            cluster.proxy(1).fired() == 1 && removals > 0,
            "the key was not in its way"
        );
        assert_eq!(cluster.proxy(1).commands("CLIENT TRACKING"), 0);
        moving.end();
    });
    assert!(held.unlock().expect_err("lost").is_lost());
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// No invalidation says that the slot has moved. A redirect of another lock does, for each manager,
/// and leads to a new map: those who have to do with the slot ask at once, and nobody else.
#[test]
fn a_move_wakes_the_waiters_and_renews_the_holds_of_its_slot_and_no_others() {
    let cluster = small(ClusterSetup {
        proxied: true,
        ..ClusterSetup::default()
    });
    let slow = || {
        patient(&cluster.url())
            .poll_every(LONG)
            .renew_every(MINUTE / 3)
            .lease(MINUTE)
    };
    let [locks, others] = [(); 2].map(|()| slow().build().expect("connects"));
    let tag = tag_on(&cluster, 0);
    let (moves, near, far) = (format!("{tag}moves"), cluster.key_on(0), cluster.key_on(1));
    assert_ne!(cluster.slot_of(&moves), cluster.slot_of(&near));
    let names = [&moves, &near, &far];
    let guards = names.map(|name| locks.lock(name).expect("locks"));
    for guard in &guards {
        guard.set_lease(MINUTE).expect("extends"); // From now on, Redis tracks the key.
    }
    let proxies = [0, 1, 2].map(|place| cluster.proxy(place));
    let count = |command: &str| proxies.iter().map(|it| it.commands(command)).sum::<u64>();
    // Looks of the waiter, and renewals.
    let asked = |name: &str| {
        [
            count(&format!("SET {}", key(name))),
            count(&format!("EVALSHA * 1 {}", key(name))),
        ]
    };
    thread::scope(|scope| {
        let waiters = names.map(|name| {
            let others = &others;
            scope.spawn(move || take(others, name))
        });
        eventually(LONG, "waits are tracked", || {
            cluster.server(0).tracked_keys() == 2 && cluster.server(1).tracked_keys() == 1
        });
        eventually(LONG, "all is quiet", || {
            let before = names.map(|name| asked(name));
            throughout(ANSWER, || {});
            names.map(|name| asked(name)) == before
        });
        let before = names.map(|name| asked(name));
        cluster.proxy(0).lose_messages(true);
        cluster.move_slot(cluster.slot_of(&moves), 2);
        for locks in [&locks, &others] {
            assert!(
                locks
                    .named(format!("{tag}free"))
                    .holder()
                    .expect("answers")
                    .is_none()
            );
        }
        // Of the waiter, and of the hold.
        eventually(NEW_MAP, "the new owner has listeners", || {
            cluster.server(2).listeners().len() == 2
        });
        cluster.proxy(0).lose_messages(false);
        eventually(SOON, "the new owner tracks the key", || {
            cluster.server(2).tracked_keys() == 1
        });
        throughout(ANSWER, || {});
        let [moved, rest @ ..] = names.map(|name| asked(name));
        assert!(
            moved[0] > before[0][0] && moved[1] > before[0][1],
            "{moved:?} after {before:?}"
        );
        assert_eq!(rest, before[1..], "asked for nothing");
        for (guard, waiter) in guards.into_iter().zip(waiters) {
            assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
            within(2 * SOON, "a wake-up", || waiter.join().expect("no panic"));
        }
    });
    assert_no_key_is_left(&cluster, &[0, 1, 2]);
}

/// While the slot moves, the counter is at the new owner already, or nowhere.
#[test]
fn the_holder_of_a_lock_is_seen_although_its_counter_is_elsewhere() {
    let cluster = Cluster::without_replicas();
    let locks = connect(&cluster.url());
    let name = cluster.key_on(0);
    let guard = locks.lock(&name).expect("locks");
    let moving = cluster.begin_move(cluster.slot_of(&name), 1);
    let seen = locks
        .named(&name)
        .fenced(true)
        .holder()
        .expect("answers")
        .expect("it is held");
    assert_eq!((&*seen.raw, seen.fence), (guard.token(), None));
    moving.move_keys();
    moving.end();
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// The holder has nothing to do with Redis for a while. The map is looked at nevertheless, and the
/// hold is tracked at the new owner.
#[test]
fn the_map_is_looked_at_now_and_then_though_nothing_shows_that_it_is_old() {
    let cluster = Cluster::without_replicas();
    let locks = patient(&cluster.url())
        .renew_every(MINUTE / 3)
        .build()
        .expect("connects");
    let name = cluster.key_on(0);
    let guard = locks.lock(&name).expect("locks");
    cluster.move_slot(cluster.slot_of(&name), 1);
    eventually(LONG, "the hold is tracked there", || {
        cluster.server(1).tracked_keys() == 1
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}
