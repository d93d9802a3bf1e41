//! The roles of worker processes. A worker is the test binary, started again, and a role is the
//! function that it runs.
//!
//! A role reads its arguments with [`role::arg`] and the lines of its parent with
//! [`role::next_line`], and answers with [`role::report`]. It ends by returning.

use std::mem::forget;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use relatch::{DetachedHold, Error, LockGuard, LockManager, LockParcel, MultiLockGuard, Unlocked};
use relatch_rig::{eventually, role, within};
use rustix::process::{WaitOptions, wait};

/// Runs the role `name`, on the main test thread of a worker process.
pub(crate) fn run_role(name: &str) {
    match name {
        "count" => crate::turns::mutual_exclusion::count_as_told(),
        "install" => crate::calls::public_api::install_as_told(),
        "huge" => crate::servers::hostile_server::huge_as_told(),
        "worker" => worker(),
        "forker" => forker(),
        "forker-in-memory" => forker_in_memory(),
        "waiter" => crate::calls::logs::waiter(),
        "holder" => crate::calls::logs::holder(),
        "refused" => crate::calls::logs::refused(),
        "drawer" => drawer(),
        "builder" => crate::turns::processes::build_as_told(),
        "two waiters" => crate::turns::processes::wait_as_told(),
        "resolver" => crate::turns::processes::resolve_as_told(),
        "ender" => crate::turns::thread_exit::end_as_told(),
        "wall clock" => crate::leases::wall_clock::wall_clock_as_told(),
        "fencer" => crate::turns::fence_growth::take_as_told(),
        "spiller" => crate::calls::secrets::spill(),
        "embracer" => crate::turns::deadlocks::embrace_as_told(),
        "writer" => crate::slots::read_write::write_as_told(),
        "readers" => crate::slots::read_write::read_and_write_as_told(),
        "slots" => crate::slots::semaphore::use_slots_as_told(),
        "one shot" => crate::leases::keep_at_least::run_once_as_told(),
        "hander" => crate::calls::moved_holds::hand_over_as_told(),
        "from env" => crate::calls::input_validation::connect_as_told(),
        #[cfg(feature = "tls")]
        "connector" => crate::wire::tls::connect_as_told(),
        other => panic!("no role is called {other:?}; add it to tests/it/support/worker_roles.rs"),
    }
}

/// Does with the lock `a` what each line says.
fn worker() {
    let lease = Duration::from_millis(role::arg("lease").parse().expect("a number"));
    let builder = LockManager::builder(&role::arg("url")).lease(lease);
    let locks = builder
        .reclaim_dead(role::arg("reclaim") == "yes")
        .build()
        .expect("connects");
    let mut held = None;
    role::report("ready");
    while let Some(line) = role::next_line() {
        let guard: Option<&LockGuard> = held.as_ref();
        let answer = match (line.as_str(), guard) {
            ("lock", _) => held
                .insert(locks.lock("a").expect("locks"))
                .token()
                .to_owned(),
            ("again", _) => format!("{:?}", locks.lock("a").map(drop)),
            ("valid", Some(guard)) => guard.is_valid().to_string(),
            ("remaining", Some(guard)) => guard.remaining().as_millis().to_string(),
            ("watch", Some(guard)) => watch(guard, lease).to_string(),
            ("unlock", _) => format!("{:?}", held.take().expect("held").unlock()),
            ("exit", _) => process::exit(7),
            (other, _) => panic!("not understood: {other}"),
        };
        role::report(answer);
    }
    // The input ends when the process is about to be killed. So the lock must not be released here.
    forget(held);
}

/// Checks the guard again and again, until the hold is not valid or a lease has passed between two
/// checks. Returns the last result.
fn watch(guard: &LockGuard, lease: Duration) -> bool {
    role::report("watching");
    let mut before = Instant::now();
    loop {
        let now = Instant::now();
        let valid = guard.is_valid();
        if !valid || now - before > lease {
            return valid;
        }
        before = now;
    }
}

/// Forks with the lock `a` held twice, or not held. The C library's `sync` forks (see
/// `tests/rig/preload/fork.c`).
fn forker() {
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    let hold = || {
        (
            locks.lock("a").expect("locks"),
            locks.lock("a").expect("locks again"),
        )
    };
    let guards = (role::arg("holding") == "yes").then(hold);
    if let Some((guard, _)) = &guards {
        // Opens the keeper's connection.
        guard.set_lease(Duration::from_secs(20)).expect("extends");
    }
    let set = (guards.is_some()).then(|| locks.several(["x", "y"]).lock().expect("locks"));
    let detached =
        (guards.is_some()).then(|| locks.lock("d").expect("locks").detach().expect("detaches"));
    let parcel = (guards.is_some()).then(|| {
        locks
            .lock("p")
            .expect("locks")
            .hand_over()
            .expect("hands over")
    });
    drop(locks.lock("warm-up").expect("locks"));
    role::report("forking");
    role::next_line();
    let parent = process::id();
    rustix::fs::sync();
    if process::id() != parent {
        let forked = catch_unwind(AssertUnwindSafe(|| {
            let guards = stay_in_their_process(&locks, guards, parcel.as_ref());
            forked(locks, guards, set, detached);
        }));
        process::exit(i32::from(forked.is_err()));
    }
    let (_, status) = wait(WaitOptions::empty())
        .expect("waits")
        .expect("there is a child");
    role::report(format!("the copy: {:?}", status.exit_status()));
    role::next_line();
    if let Some(set) = set {
        set.confirm(Duration::ZERO).expect("held");
        set.unlock().expect("unlocks");
    }
    if let Some(parcel) = parcel {
        drop(locks.adopt(&parcel).expect("nobody else has adopted it"));
    }
    if let Some(hold) = detached {
        assert_eq!(
            hold.attach().expect("attaches").unlock().expect("unlocks"),
            Unlocked::Released
        );
    }
    if let Some((outer, inner)) = guards {
        assert!(outer.is_valid() && inner.is_valid());
        assert_eq!(locks.held().len(), 1);
        outer
            .set_lease(Duration::from_millis(300))
            .expect("extends");
        eventually(Duration::from_secs(5), "the hold is renewed", || {
            locks.stats().renewed >= 4
        });
        assert!(outer.is_valid());
        assert_eq!(
            outer.unlock().expect("unlocks"),
            Unlocked::StillHeld { depth: 1 }
        );
        assert_eq!(inner.unlock().expect("unlocks"), Unlocked::Released);
    }
    assert_eq!(
        locks.lock("a").expect("locks").unlock().expect("unlocks"),
        Unlocked::Released
    );
    role::report("fine");
}

/// Holds a lock in memory, and forks again and again while another thread takes and releases locks.
/// Each copy ends at once.
fn forker_in_memory() {
    let locks = LockManager::in_memory();
    let guard = locks.lock("a").expect("locks");
    let (ends, mut copies_hang) = (AtomicBool::new(false), false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                drop(locks.lock("b").expect("locks"));
            }
        });
        let parent = process::id();
        for _ in 0..100 {
            rustix::fs::sync();
            if process::id() != parent {
                process::exit(0);
            }
            let (_, status) = wait(WaitOptions::empty())
                .expect("waits")
                .expect("there is a child");
            if status.exit_status() != Some(0) {
                copies_hang = true; // The alarm has ended it.
                break;
            }
        }
        ends.store(true, Ordering::Relaxed);
    });
    assert!(guard.is_valid());
    role::report(if copies_hang { "a copy hangs" } else { "fine" });
}

/// Draws a token, drops its manager, and forks. Then each of the two processes draws a token and
/// reports it.
fn drawer() {
    let url = role::arg("url");
    let draw = |key: &str| {
        let locks = LockManager::connect(&url).expect("connects");
        locks.lock(key).expect("locks").token().to_owned()
    };
    draw("before");
    let parent = process::id();
    rustix::fs::sync();
    let copy = process::id() != parent;
    let drawn = catch_unwind(|| draw(if copy { "copy" } else { "original" }));
    role::report(drawn.expect("no panic"));
    if copy {
        process::exit(0);
    }
    let (_, status) = wait(WaitOptions::empty())
        .expect("waits")
        .expect("there is a child");
    assert_eq!(status.exit_status(), Some(0));
}

#[track_caller]
fn is_forked(error: Option<Error>) {
    match error {
        Some(Error::Forked { child, .. }) if child == process::id() => {}
        other => panic!("{other:?}"),
    }
}

/// Checks that the forked copy can neither hand a lock over nor adopt one. Returns the guards.
fn stay_in_their_process(
    locks: &LockManager,
    guards: Option<(LockGuard, LockGuard)>,
    parcel: Option<&LockParcel>,
) -> Option<(LockGuard, LockGuard)> {
    within(Duration::from_secs(1), "what a copy may not do", || {
        if let Some(parcel) = parcel {
            is_forked(locks.adopt(parcel).err());
        }
        let (outer, inner) = guards?;
        let (inner, error) = inner.try_hand_over().expect_err("forked");
        is_forked(Some(error));
        Some((outer, inner))
    })
}

/// Checks, in the forked copy, what the parent's manager and guards do.
fn forked(
    locks: LockManager,
    guards: Option<(LockGuard, LockGuard)>,
    set: Option<MultiLockGuard>,
    detached: Option<DetachedHold>,
) {
    let second = Duration::from_secs(1);
    if let Some((outer, inner)) = &guards {
        assert!(!outer.is_valid() && !inner.is_valid() && !outer.watch().is_valid());
        let watch = outer.watch();
        let waits = || {
            (
                watch.remaining(),
                watch.wait_at_risk(Duration::ZERO),
                watch.wait_lost(second),
            )
        };
        assert_eq!(
            within(second / 2, "a watch of the copy", waits),
            (Duration::ZERO, None, None)
        );
        is_forked(outer.verify().err());
        is_forked(outer.confirm(second).err());
        is_forked(outer.ensure(second).err());
        is_forked(inner.set_lease(second).err());
    }
    if let Some(set) = &set {
        assert!(set.remaining().is_zero());
        is_forked(set.ensure(second).err());
        is_forked(set.confirm(second).err());
        is_forked(locks.several(["x", "z"]).lock().err());
    }
    is_forked(locks.several(["p", "q"]).lock().err());
    for key in ["a", "b"] {
        is_forked(locks.lock(key).err());
        is_forked(locks.try_lock(key).err());
        is_forked(locks.named(key).try_lock_for(second).err());
        is_forked(locks.with_lock(key, || unreachable!("not held")).err());
        assert!(locks.named(key).current().is_none());
        is_forked(locks.named(key).assert_held().err());
        is_forked(locks.named(key).holder().err());
        is_forked(locks.named(key).force_unlock().err());
    }
    assert!(locks.held().is_empty());
    assert!(locks.waiting().is_empty());
    assert_eq!((locks.stats().waiting, locks.stats().held), (0, 0));
    within(second, "giving back what is the parent's", || {
        assert!(locks.shutdown(second).is_empty() && locks.shutdown_and_release(second).is_empty());
        if let Some(set) = set {
            is_forked(set.unlock().err());
        }
        if let Some((outer, inner)) = guards {
            is_forked(outer.unlock().err());
            is_forked(inner.detach().err());
        }
        if let Some(hold) = detached {
            let (hold, error) = hold.try_attach().expect_err("forked");
            is_forked(Some(error));
            drop(hold);
        }
        drop(locks);
    });
}
