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
use relatch_rig::{LONG, eventually, role, within};
use rustix::process::{WaitOptions, wait};

use crate::support::{MINUTE, PERIOD, renewals};

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
        "ender" => crate::turns::thread_exit::end_as_told(),
        "wall clock" => crate::leases::wall_clock::wall_clock_as_told(),
        "spiller" => crate::calls::secrets::spill(),
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

/// What the process holds when it forks: the lock `a` twice, a set, a detached hold and a parcel.
struct Holds {
    guards: (LockGuard, LockGuard),
    set: MultiLockGuard,
    detached: DetachedHold,
    parcel: LockParcel,
}

impl Holds {
    fn take(locks: &LockManager) -> Holds {
        let lock = |key| locks.lock(key).expect("locks");
        let guards = (lock("a"), lock("a"));
        // Opens the keeper's connection.
        let extended = guards.0.set_lease(MINUTE);
        extended.expect("extends");
        Holds {
            guards,
            set: locks.several(["x", "y"]).lock().expect("locks"),
            detached: lock("d").detach().expect("detaches"),
            parcel: lock("p").hand_over().expect("hands over"),
        }
    }

    /// Checks, in the parent, that all are as they were.
    fn are_unaffected(self, locks: &LockManager) {
        self.set.confirm(Duration::ZERO).expect("held");
        self.set.unlock().expect("unlocks");
        drop(locks.adopt(&self.parcel).expect("nobody has adopted it"));
        let attached = self.detached.attach().expect("attaches");
        assert_eq!(attached.unlock().expect("unlocks"), Unlocked::Released);
        let (outer, inner) = self.guards;
        assert!(outer.is_valid() && inner.is_valid());
        assert_eq!(locks.held().len(), 1);
        let renewed = locks.named("r").renew(true).renew_every(PERIOD).lock();
        eventually(LONG, "a hold is renewed", || renewals(locks, "r") >= 2);
        drop(renewed);
        let left = outer.unlock().expect("unlocks");
        assert_eq!(left, Unlocked::StillHeld { depth: 1 });
        assert_eq!(inner.unlock().expect("unlocks"), Unlocked::Released);
    }
}

/// Forks with several holds. The C library's `sync` forks (see `tests/rig/preload/fork.c`).
fn forker() {
    // A renewal would be sent while the parent looks whether the copy sends something.
    let builder = LockManager::builder(&role::arg("url")).renew(false);
    let locks = builder.build().expect("connects");
    let holds = Holds::take(&locks);
    drop(locks.lock("warm-up").expect("locks"));
    role::report("forking");
    role::next_line();
    let parent = process::id();
    rustix::fs::sync();
    if process::id() != parent {
        let forked = catch_unwind(AssertUnwindSafe(|| forked(locks, holds)));
        process::exit(i32::from(forked.is_err()));
    }
    let (_, status) = wait(WaitOptions::empty())
        .expect("waits")
        .expect("there is a child");
    role::report(format!("the copy: {:?}", status.exit_status()));
    role::next_line();
    holds.are_unaffected(&locks);
    drop(locks.lock("a").expect("locks"));
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

/// Checks, in the forked copy, what the parent's manager and guards do.
fn forked(locks: LockManager, holds: Holds) {
    // Nothing is waited for.
    let (second, long) = (Duration::from_secs(1), 3 * LONG);
    let Holds {
        guards: (outer, inner),
        set,
        detached,
        parcel,
    } = holds;
    is_forked(locks.adopt(&parcel).err());
    let (inner, error) = inner.try_hand_over().expect_err("forked");
    is_forked(Some(error));
    assert!(!outer.is_valid() && !inner.is_valid() && !outer.watch().is_valid());
    let watch = outer.watch();
    let waits = || {
        let at_risk = watch.wait_at_risk(Duration::ZERO);
        (watch.remaining(), at_risk, watch.wait_lost(long))
    };
    let watched = within(LONG, "a watch of the copy", waits);
    assert_eq!(watched, (Duration::ZERO, None, None));
    is_forked(outer.verify().err());
    is_forked(outer.confirm(second).err());
    is_forked(outer.ensure(second).err());
    is_forked(inner.set_lease(second).err());
    assert!(set.remaining().is_zero());
    is_forked(set.ensure(second).err());
    is_forked(set.confirm(second).err());
    is_forked(locks.several(["x", "z"]).lock().err());
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
    assert!(locks.held().is_empty() && locks.waiting().is_empty());
    assert_eq!((locks.stats().waiting, locks.stats().held), (0, 0));
    within(LONG, "giving back what is the parent's", || {
        assert!(locks.shutdown(long).is_empty() && locks.shutdown_and_release(long).is_empty());
        is_forked(set.unlock().err());
        is_forked(outer.unlock().err());
        is_forked(inner.detach().err());
        let (hold, error) = detached.try_attach().expect_err("forked");
        is_forked(Some(error));
        drop((hold, locks));
    });
}
