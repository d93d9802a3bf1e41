//! What is logged, and under which target. The tests run processes of their own, since a process
//! has one logger.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use relatch::{LockManager, LostCause};
use relatch_rig::{Fault, LONG, SetOnDrop, eventually, is_alone, role, within};

use crate::support::{MINUTE, Over, PERIOD, Rig, delete, renewals};

struct Lines(Mutex<Vec<String>>);

static LINES: Lines = Lines(Mutex::new(Vec::new()));

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let line = format!("{} {} {}", record.level(), record.target(), record.args());
        self.0
            .lock()
            .expect("no panic")
            .push(line.replace('\n', " "));
    }

    fn flush(&self) {}
}

/// Collects what this process logs from now on, up to this level.
#[cfg(target_os = "linux")]
pub(crate) fn collect(level: LevelFilter) {
    log::set_logger(&LINES).expect("the only logger");
    log::set_max_level(level);
}

/// What was logged under this target, and the level of each line.
#[cfg(target_os = "linux")]
pub(crate) fn lines_of(target: &str) -> Vec<String> {
    let lines = LINES.0.lock().expect("no panic");
    lines
        .iter()
        .filter(|line| line.split(' ').nth(1) == Some(target))
        .cloned()
        .collect()
}

/// A role: at the line `log`, it reports what the listener has logged; at any other line, it waits
/// for the lock `a`. It ends when its input ends.
pub(crate) fn waiter() {
    log::set_logger(&LINES).expect("the only logger");
    log::set_max_level(LevelFilter::Info);
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    while let Some(line) = role::next_line() {
        if line == "log" {
            let lines = LINES.0.lock().expect("no panic");
            let of_listener = lines
                .iter()
                .filter(|line| line.contains(" relatch::listener "));
            role::report(of_listener.cloned().collect::<Vec<_>>().join("; "));
        } else {
            role::report(format!(
                "{:?}",
                locks
                    .named("a")
                    .try_lock_for(LONG)
                    .map(|taken| taken.is_some())
            ));
        }
    }
}

/// A role: holds the lock `a` until it is lost, and reports what was logged.
pub(crate) fn holder() {
    log::set_logger(&LINES).expect("the only logger");
    log::set_max_level(LevelFilter::Info);
    let builder = LockManager::builder(&role::arg("url"))
        .lease(Duration::from_secs(3))
        .renew_every(PERIOD);
    let locks = builder.build().expect("connects");
    let guard = locks.lock("a").expect("locks");
    eventually(LONG, "the hold is renewed", || locks.stats().renewed > 0);
    role::report("renewed");
    assert!(guard.watch().wait_lost(LONG).is_some(), "the hold is lost");
    eventually(LONG, "the loss is logged", || logged("relatch::lost"));
    for line in LINES.0.lock().expect("no panic").iter() {
        role::report(line);
    }
}

/// A role: may not release what it has taken, and reports what was logged until the lease was over.
pub(crate) fn refused() {
    log::set_logger(&LINES).expect("the only logger");
    log::set_max_level(LevelFilter::Info);
    let builder = LockManager::builder(&role::arg("url")).lease(Duration::from_secs(3));
    let locks = builder.build().expect("connects");
    assert_eq!(locks.with_lock("a", || 5).expect("it was protected"), 5);
    assert_eq!(locks.stats().refused, 1);
    eventually(LONG, "the lease ends", || {
        locks.named("a").holder().expect("answers").is_none()
    });
    assert_eq!(locks.stats().refused, 1, "the tries in the background");
    for line in LINES.0.lock().expect("no panic").iter() {
        role::report(line);
    }
}

fn logged(what: &str) -> bool {
    LINES
        .0
        .lock()
        .expect("no panic")
        .iter()
        .any(|line| line.contains(what))
}

/// A logger that panics at each line, and counts them.
struct Panics(AtomicU64);

static PANICS: Panics = Panics(AtomicU64::new(0));

impl Log for Panics {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.target().starts_with("relatch::") {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("the logger");
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_that_panics_changes_nothing() {
    if !is_alone(module_path!(), "a_logger_that_panics_changes_nothing") {
        return;
    }
    log::set_logger(&PANICS).expect("the only logger");
    log::set_max_level(LevelFilter::Trace);
    let logs = |what: &str, act: &mut dyn FnMut()| {
        let before = PANICS.0.load(Ordering::SeqCst);
        act();
        eventually(LONG, what, || PANICS.0.load(Ordering::SeqCst) > before);
    };
    let rig = Rig::over(Over::Tcp, |builder| builder.renew_every(PERIOD));
    let take = || rig.locks.lock("a").expect("locks");
    logs("a lost answer", &mut || {
        rig.proxy.on("SET", Fault::CutBeforeReply);
        drop(take());
    });
    logs("a thread waits", &mut || {
        let guard = take();
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(take()));
            eventually(LONG, "it waits", || rig.locks.stats().waiting == 1);
            drop(guard);
            waiter.join().expect("no panic");
        });
    });
    logs("a lock is lost", &mut || {
        let guard = take();
        eventually(LONG, "it is renewed", || renewals(&rig.locks, "a") > 0);
        delete(&rig.server, "a");
        assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
    });
    logs("a drop has no answer", &mut || {
        let guard = take();
        rig.proxy.black_hole(true);
        drop(guard);
        rig.proxy.black_hole(false);
    });
    let guard = rig.locks.named("a").try_lock_for(LONG).expect("answers");
    let renewed = rig.locks.stats().renewed;
    eventually(LONG, "the keeper lives", || {
        rig.locks.stats().renewed > renewed
    });
    drop(guard.expect("it is free"));
}

/// A logger that stands still at each line of a loss, as one does whose pipe is full.
struct StandsStill {
    stands: AtomicU64,
    goes_on: AtomicBool,
}

static STANDS_STILL: StandsStill = StandsStill {
    stands: AtomicU64::new(0),
    goes_on: AtomicBool::new(false),
};

impl Log for StandsStill {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() == "relatch::lost" {
            self.stands.fetch_add(1, Ordering::SeqCst);
            eventually(10 * LONG, "the test is done", || {
                self.goes_on.load(Ordering::SeqCst)
            });
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_that_stands_still_costs_no_other_hold_and_delays_no_report() {
    if !is_alone(
        module_path!(),
        "a_logger_that_stands_still_costs_no_other_hold_and_delays_no_report",
    ) {
        return;
    }
    log::set_logger(&STANDS_STILL).expect("the only logger");
    log::set_max_level(LevelFilter::Debug);
    let (tell, told) = mpsc::channel();
    let rig = Rig::with(|builder| {
        let builder = builder.lease(Duration::from_secs(3)).renew_every(PERIOD);
        builder.on_lost(move |lost| tell.send(lost.key.clone()).expect("somebody listens"))
    });
    let stands = |times| STANDS_STILL.stands.load(Ordering::SeqCst) == times;
    let by_hand = rig.locks.named("by hand").renew(false).lease(MINUTE);
    let by_hand = by_hand.lock().expect("locks");
    let [a, b, c] = ["a", "b", "c"].map(|name| rig.locks.lock(name).expect("locks"));
    let renewed = |more: u32| {
        let before = renewals(&rig.locks, "c");
        eventually(LONG, "it is renewed", || {
            renewals(&rig.locks, "c") >= before + more
        });
    };
    renewed(1);
    delete(&rig.server, "a");
    assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("a"));
    eventually(LONG, "the logger stands still", || stands(1));
    // A thread of the program that finds a loss itself, and has to wait for the logger. (No renewal
    // finds it.)
    thread::scope(|scope| {
        let _goes_on = SetOnDrop(&STANDS_STILL.goes_on);
        scope.spawn(|| rig.locks.named("by hand").force_unlock().expect("answers"));
        assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("by hand"));
        eventually(LONG, "the logger stands still there, too", || stands(2));
        renewed(40); // For longer than a lease.
        assert!(b.is_valid());
        delete(&rig.server, "b");
        assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("b"));
        assert!(c.is_valid());
    });
    eventually(LONG, "each loss is logged", || stands(3));
    drop((a, b, c, by_hand));
}

#[test]
fn a_logger_that_stands_still_does_not_hold_up_the_last_handle() {
    if !is_alone(
        module_path!(),
        "a_logger_that_stands_still_does_not_hold_up_the_last_handle",
    ) {
        return;
    }
    log::set_logger(&STANDS_STILL).expect("the only logger");
    log::set_max_level(LevelFilter::Warn);
    let _goes_on = SetOnDrop(&STANDS_STILL.goes_on);
    let builder = LockManager::builder_in_memory().renew(false).lease(PERIOD);
    let locks = builder.on_lost(|_| ()).build().expect("it works");
    let guard = locks.lock("a").expect("locks");
    eventually(LONG, "the logger stands still", || {
        STANDS_STILL.stands.load(Ordering::SeqCst) == 1
    });
    drop(guard);
    within(LONG, "dropping the last handle", || drop(locks));
}
