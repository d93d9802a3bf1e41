//! What is logged, and under which target. The tests run processes of their own, since a process
//! has one logger.

use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use log::{LevelFilter, Log, Metadata, Record};
use relatch::{DetachedHold, LockGuard, LockManager, LostCause, Unlocked};
use relatch_rig::rights::login;
use relatch_rig::{
    Cluster, Fault, LONG, Proxy, Server, SetOnDrop, Worker, eventually, is_alone, role,
    server_version, within,
};

use crate::support::{ANSWER, MINUTE, PERIOD, Rig, delete, renewals};

const CANARY: &str = "canary-7f3a";

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

#[test]
fn each_fault_is_logged_under_its_target_and_without_secrets() {
    let server = Server::with(&["--requirepass", CANARY]);
    let mut child = Worker::spawn("logger", &[("port", &server.port().to_string())]);
    let mut lines = Vec::new();
    loop {
        let line = child.expect_line("", LONG);
        if line == "end" {
            break;
        }
        lines.push(line);
    }
    assert!(child.wait(LONG).success());
    for expected in [
        "DEBUG relatch::acquire taking lock \"a\"",
        "WARN relatch::keeper 1 leases were not renewed",
        "WARN relatch::lost lock \"a\" was lost: its key was deleted",
        "WARN relatch::release the release of lock \"b\" is not confirmed",
        "WARN relatch::force_unlock lock \"a\" was force-unlocked",
        "ERROR relatch::lost the on_lost callback panicked",
    ] {
        assert!(
            lines.iter().any(|line| line.starts_with(expected)),
            "no {expected:?} in {lines:#?}"
        );
    }
    let connected = "DEBUG relatch::connection 127.0.0.1:";
    let told = lines
        .iter()
        .find(|line| line.starts_with(connected))
        .expect("each connection is logged");
    let told: Vec<_> = told
        .split_once(" is ")
        .expect("what the server is")
        .1
        .split(' ')
        .collect();
    let [kind, version, mode, role] = told[..] else {
        panic!("{told:?}")
    };
    assert!(
        ["redis", "valkey"].contains(&kind) && ["standalone,", "cluster,"].contains(&mode),
        "{told:?}"
    );
    assert_eq!(
        (
            version.starts_with(&format!("{}.", server_version().0)),
            role
        ),
        (true, "master"),
        "{told:?}"
    );
    for line in &lines {
        assert!(
            !line.contains(CANARY) && !line.contains("EVALSHA") && !line.contains("PX"),
            "{line}"
        );
    }
}

/// A role: causes one fault of each kind, and reports what was logged meanwhile.
pub(crate) fn logger() {
    log::set_logger(&LINES).expect("the only logger");
    log::set_max_level(LevelFilter::Trace);
    let proxy = Proxy::start(role::arg("port").parse().expect("a port"));
    let builder = LockManager::builder(&proxy.bare_url().replace("//", &format!("//:{CANARY}@")));
    let builder = builder
        .lease(Duration::from_secs(1))
        .response_timeout(Duration::from_millis(200));
    let locks = builder
        .on_lost(|_| panic!("as the test wants it"))
        .build()
        .expect("connects");
    drop(locks.lock("warm-up").expect("locks"));

    proxy.on("SET", Fault::CutBeforeReply);
    let guard = locks.lock("a").expect("locks at the second attempt");
    proxy.always("EVALSHA", Fault::CutBeforeReply);
    eventually(LONG, "a renewal has no answer", || {
        logged("were not renewed")
    });
    proxy.clear();
    eventually(LONG, "the hold is renewed in spite of an error", || {
        locks.stats().renewed > 0
    });
    locks.named("a").force_unlock().expect("deletes it");
    eventually(LONG, "the hold is lost", || !guard.is_valid());
    drop(guard);
    let other = locks.lock("b").expect("locks");
    proxy.black_hole(true);
    other.unlock().expect_err("no answer");
    eventually(LONG, "the callback is called", || {
        logged("callback panicked")
    });
    proxy.black_hole(false);
    drop(locks);
    for line in LINES.0.lock().expect("no panic").iter() {
        role::report(line);
    }
    role::report("end");
    process::exit(0);
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
    let lease = Duration::from_secs(1);
    let builder = LockManager::builder(&role::arg("url"))
        .lease(lease)
        .renew_every(lease / 10);
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
    let builder = LockManager::builder(&role::arg("url")).lease(Duration::from_secs(1));
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
    let rig = Rig::renewing();
    logs("a lost answer", &mut || {
        rig.proxy.on("SET", Fault::CutBeforeReply);
        assert_eq!(
            rig.locks
                .lock("a")
                .expect("locks")
                .unlock()
                .expect("unlocks"),
            Unlocked::Released
        );
    });
    logs("a thread waits", &mut || {
        let guard = rig.locks.lock("a").expect("locks");
        thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(rig.locks.lock("a").expect("locks")));
            eventually(LONG, "a thread waits", || rig.locks.stats().waiting == 1);
            drop(guard);
            waiter.join().expect("no panic");
        });
    });
    logs("a lock is lost", &mut || {
        let guard = rig.locks.lock("a").expect("locks");
        eventually(LONG, "it is renewed", || rig.locks.held()[0].renewals > 0);
        delete(&rig.server, "a");
        assert_eq!(guard.watch().wait_lost(LONG), Some(LostCause::Deleted));
    });
    logs("a drop has no answer", &mut || {
        let guard = rig.locks.lock("a").expect("locks");
        rig.proxy.black_hole(true);
        drop(guard);
        rig.proxy.black_hole(false);
    });
    let guard = rig
        .locks
        .named("a")
        .try_lock_for(LONG)
        .expect("answers")
        .expect("it is free");
    let renewed = rig.locks.stats().renewed;
    eventually(LONG, "the keeper lives", || {
        rig.locks.stats().renewed > renewed
    });
    assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
}

/// A logger that uses the manager whose lines it gets.
struct Uses(OnceLock<LockManager>, AtomicU64);

static USES: Uses = Uses(OnceLock::new(), AtomicU64::new(0));

impl Log for Uses {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() == "relatch::cluster" {
            // An error, too, is an answer.
            let _ = self
                .0
                .get()
                .expect("it was made before")
                .named("of the logger")
                .try_lock_for(ANSWER);
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_may_use_a_cluster_without_a_map() {
    if !is_alone(module_path!(), "a_logger_may_use_a_cluster_without_a_map") {
        return;
    }
    log::set_logger(&USES).expect("the only logger");
    let cluster = Cluster::without_replicas();
    let proxy = Proxy::start(cluster.server(0).port());
    proxy.refuse(true);
    let url = format!("redis+cluster://{}127.0.0.1:{}", login(), proxy.port());
    let locks = LockManager::builder(&url)
        .build_lazily()
        .expect("sends nothing");
    assert!(USES.0.set(locks.clone()).is_ok());
    log::set_max_level(LevelFilter::Info);
    // On threads of their own: if the logger blocked them, they would never return.
    let locks_on_a_thread = || {
        let (locks, (tell, told)) = (locks.clone(), mpsc::channel());
        thread::spawn(move || tell.send(locks.try_lock("a").is_ok()));
        told.recv_timeout(LONG).expect("the lock returns")
    };
    let returned = |times| move || USES.1.load(Ordering::SeqCst) == times;
    assert!(!locks_on_a_thread(), "there is no map");
    eventually(
        LONG,
        "the logger has used the manager without a map",
        returned(1),
    );
    proxy.refuse(false);
    eventually(LONG, "a node has sent a map", locks_on_a_thread);
    eventually(
        LONG,
        "the logger has used the manager with a map",
        returned(2),
    );
}

/// A logger that has the last handles of a manager, and drops them in the thread that logs for
/// those that renew leases.
struct Drops(Mutex<Option<(LockManager, DetachedHold)>>, AtomicU64);

static DROPS: Drops = Drops(Mutex::new(None), AtomicU64::new(0));

impl Log for Drops {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        if record.target() == "relatch::lost" && thread::current().name() == Some("relatch-log") {
            drop(self.0.lock().expect("no panic").take());
            self.1.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn flush(&self) {}
}

#[test]
fn a_logger_may_drop_the_last_handle() {
    if !is_alone(module_path!(), "a_logger_may_drop_the_last_handle") {
        return;
    }
    log::set_logger(&DROPS).expect("the only logger");
    log::set_max_level(LevelFilter::Warn);
    let server = Server::start();
    let locks = LockManager::connect(&server.url()).expect("connects");
    let hold = locks.lock("a").expect("locks").detach().expect("one guard");
    *DROPS.0.lock().expect("no panic") = Some((locks, hold));
    delete(&server, "a");
    eventually(LONG, "the drop returns", || {
        DROPS.1.load(Ordering::SeqCst) == 1
    });
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
        builder
            .lease(Duration::from_secs(3))
            .renew_every(PERIOD)
            .on_lost(move |lost| tell.send(lost.key.clone()).expect("somebody listens"))
    });
    let names: Vec<_> = (0..10).map(|n| n.to_string()).collect();
    let take = |name: &String| {
        let lock = rig.locks.named(name);
        if name == "1" {
            lock.renew(false).lease(MINUTE).lock()
        } else {
            lock.lock()
        }
    };
    let guards: Vec<_> = names.iter().map(|it| take(it).expect("locks")).collect();
    let renewed = |more: u32| {
        let before: Vec<_> = names.iter().map(|it| renewals(&rig.locks, it)).collect();
        eventually(LONG, "the holds are renewed", || {
            let mut all = names.iter().zip(&before).skip(2);
            all.all(|(it, before)| renewals(&rig.locks, it) >= before + more)
        });
    };
    renewed(1);
    let stands = |times| STANDS_STILL.stands.load(Ordering::SeqCst) == times;
    delete(&rig.server, "0");
    assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("0"));
    eventually(LONG, "the logger stands still", || stands(1));
    // A thread of the program that finds a loss itself, and has to wait for the logger. (No renewal
    // finds it.)
    thread::scope(|scope| {
        let _goes_on = SetOnDrop(&STANDS_STILL.goes_on);
        scope.spawn(|| rig.locks.named("1").force_unlock().expect("Redis works"));
        assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("1"));
        eventually(LONG, "the logger stands still there, too", || stands(2));
        renewed(40); // For longer than a lease.
        assert!(guards[2..].iter().all(LockGuard::is_valid));
        delete(&rig.server, "2");
        assert_eq!(told.recv_timeout(LONG).as_deref(), Ok("2"));
        assert!(guards[3..].iter().all(LockGuard::is_valid));
    });
    eventually(LONG, "each loss is logged", || stands(3));
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
    let rig = Rig::renewing();
    let guard = rig.locks.lock("a").expect("locks");
    eventually(LONG, "it is renewed", || renewals(&rig.locks, "a") > 0);
    delete(&rig.server, "a");
    eventually(LONG, "the logger stands still", || {
        STANDS_STILL.stands.load(Ordering::SeqCst) == 1
    });
    let _goes_on = SetOnDrop(&STANDS_STILL.goes_on);
    drop(guard);
    within(LONG, "dropping the last handle", || drop(rig.locks));
}
