//! Time: answers that come late, and a wall clock that jumps.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use relatch::{LockGuard, LockManager};
use relatch_rig::{Fault, LONG, Server, Worker, compile_preload, eventually, role, within};
use tempfile::TempDir;

use crate::support::{Rig, trusted};

/// A lease that is shorter than a slow answer.
const LEASE: Duration = Duration::from_millis(300);

/// By how much the wall clock jumps, in seconds.
const HOUR: i64 = 3600;

/// A rig whose holds are not renewed.
fn rig(lease: Duration) -> Rig {
    Rig::with_defaults(|builder| builder.lease(lease).renew(false).response_timeout(LONG))
}

/// Checks that a hold of `a` came from a later attempt than the first.
fn assert_taken_anew(rig: &Rig, guard: &LockGuard) {
    assert!(guard.is_valid());
    assert_eq!(rig.value_of("a").as_deref(), Some(guard.token()));
    assert_ne!(
        rig.tokens_sent("a")[0],
        guard.token(),
        "the token of the first attempt"
    );
}

#[test]
fn row_03_a_lock_answered_after_its_lease_is_taken_anew() {
    let rig = rig(LEASE);
    rig.proxy.on("SET lock:a", Fault::DelayReply(2 * LEASE));
    let start = Instant::now();
    let guard = rig
        .locks
        .named("a")
        .wait(LONG)
        .lock()
        .expect("locks within the wait");
    assert!(start.elapsed() >= 2 * LEASE);
    assert_taken_anew(&rig, &guard);
}

#[test]
fn row_03_a_key_set_too_late_is_removed_and_taken_anew() {
    let rig = rig(LEASE);
    // The `SET` is executed late and answered at once, so the key still has its whole lease.
    rig.proxy.on("SET lock:a", Fault::DelayCommand(2 * LEASE));
    let start = Instant::now();
    let guard = rig
        .locks
        .try_lock_for("a", LONG)
        .expect("answers")
        .expect("locks within the wait");
    assert!(
        start.elapsed() < LEASE * 29 / 10,
        "the call waited for the late key to expire"
    );
    assert_taken_anew(&rig, &guard);
}

/// The removal of a key that was set too late gets no answer. The key that remains has no holder.
#[test]
fn row_03_a_key_set_too_late_is_not_reported_as_busy() {
    let rig = rig(LEASE);
    rig.proxy.on("SET lock:a", Fault::DelayCommand(2 * LEASE));
    rig.proxy.on("EVALSHA * 1 lock:a", Fault::CutBeforeForward);
    let taken = rig.locks.try_lock("a");
    assert_eq!(rig.proxy.fired(), 2);
    assert!(
        matches!(taken, Ok(Some(_))),
        "{taken:?}, though no other holder has the lock"
    );
}

#[test]
fn row_03_a_try_that_is_always_answered_too_late_takes_nothing() {
    let rig = rig(LEASE);
    rig.proxy.always("SET lock:a", Fault::DelayCommand(LEASE));
    let error = rig.locks.try_lock("a").expect_err("no answer in time");
    assert!(error.is_unavailable(), "{error:?}");
    assert!(!rig.server.exists("lock:a"), "left behind");
}

#[test]
fn row_03_a_set_that_is_executed_after_its_caller_gave_up_leaves_no_key() {
    let rig = rig(LONG);
    rig.server.reset_stats();
    rig.proxy
        .on_times("SET lock:a", 2, Fault::DelayCommand(2 * LEASE));
    let taken = within(2 * LEASE, "the caller's wait", || {
        rig.locks.try_lock_for("a", LEASE)
    });
    let error = taken.expect_err("no answer in time");
    assert!(error.is_unavailable(), "{error:?}");
    eventually(LONG, "both late SETs are executed", || {
        rig.server.calls("set") > 1
    });
    eventually(Duration::from_secs(1), "the key is removed", || {
        !rig.server.exists("lock:a")
    });
}

#[test]
fn row_04_the_time_of_a_slow_answer_is_subtracted_from_the_lease() {
    let lease = Duration::from_secs(3);
    let rig = rig(lease);
    rig.proxy
        .on("SET lock:a", Fault::DelayReply(lease * 9 / 10));
    let guard = rig.locks.lock("a").expect("locks");
    let remaining = guard.remaining();
    assert!(
        remaining + lease * 9 / 10 <= trusted(lease),
        "{remaining:?}"
    );
    assert!(guard.is_valid() && !remaining.is_zero(), "{remaining:?}");
    assert_eq!(rig.tokens_sent("a"), [guard.token()]);
    let (asked, remaining) = (Instant::now(), guard.remaining());
    let key_left = u64::try_from(rig.server.pttl("lock:a")).expect("the key exists and expires");
    let key_left = Duration::from_millis(key_left) + asked.elapsed();
    assert!(
        remaining < key_left,
        "{remaining:?}, {key_left:?}: the hold ends before its key does"
    );
    eventually(lease, "the hold runs out by the clock", || {
        !guard.is_valid()
    });
}

#[test]
fn row_05_a_hold_outlives_a_jump_of_the_wall_clock() {
    each_jump(|child, _, jump| {
        assert_eq!(child.ask("hold"), "held");
        child.jump(jump);
        let looked = child.ask("look");
        let remaining: u128 = looked.parse().expect(&looked);
        assert!((1..20_000).contains(&remaining), "{remaining} ms of 20 s");
        assert_eq!(child.ask("unlock"), "Ok(Released)");
    });
}

#[test]
fn row_05_a_hold_runs_out_on_time_whatever_the_wall_clock_says() {
    each_jump(|child, _, jump| {
        let start = Instant::now();
        assert_eq!(child.ask("outlive"), "taken");
        child.jump(jump);
        assert_eq!(child.next_report(), "over");
        let took = start.elapsed();
        assert!(
            (trusted(2 * LEASE)..4 * LEASE).contains(&took),
            "{took:?} for a lease of {:?}",
            2 * LEASE
        );
    });
}

#[test]
fn row_05_a_wait_ends_on_time_whatever_the_wall_clock_says() {
    each_jump(|child, server, jump| {
        let start = Instant::now();
        assert_eq!(child.ask("wait"), "waiting");
        let asked = server.calls("set");
        eventually(LONG, "the waiter asks again", || {
            server.calls("set") > asked
        });
        child.jump(jump);
        assert_eq!(child.next_report(), "timeout");
        let took = start.elapsed();
        assert!(
            (2 * LEASE..4 * LEASE).contains(&took),
            "{took:?} for a wait of {:?}",
            2 * LEASE
        );
    });
}

/// The tests above change the time that the C library returns. This test is for code that reads the
/// clock in another way.
#[test]
fn row_05_the_source_does_not_use_the_wall_clock() {
    let mut files = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
    while let Some(file) = files.pop() {
        if file.is_dir() {
            files.extend(
                fs::read_dir(&file)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
            continue;
        }
        // The store in memory numbers its fences by the wall clock, as a server does. (The
        // simulated server is compared with a real one.)
        if file.ends_with("store/keys.rs") || file.ends_with("simulation/redis/compared.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap().to_lowercase();
        for name in ["systemtime", "unix_epoch", "realtime"] {
            assert!(!text.contains(name), "{} names {name}", file.display());
        }
    }
}

/// Runs `check` for a jump in each direction, each time with a new worker whose clock is right.
fn each_jump(check: impl Fn(&mut Clocked, &Server, i64)) {
    let server = Server::start();
    server.query::<()>(&["SET", "lock:busy", "somebody", "PX", "60000"]);
    for jump in [HOUR, -HOUR] {
        check(&mut Clocked::start(&server), &server, jump);
    }
}

/// A worker with a wall clock that can be set.
struct Clocked {
    worker: Worker,
    dir: TempDir,
}

impl Clocked {
    fn start(server: &Server) -> Clocked {
        let dir = TempDir::new().expect("a temporary directory");
        let preload = format!(
            "LD_PRELOAD={}",
            compile_preload("wall_clock", dir.path()).display()
        );
        let offset = format!("WALL_CLOCK_OFFSET={}", dir.path().join("offset").display());
        let launcher = ["env", &preload, &offset];
        let worker = Worker::spawn_under(&launcher, "wall clock", &[("url", &*server.url())]);
        worker.expect_line("ready", LONG);
        Clocked { worker, dir }
    }

    /// Moves the worker's wall clock by `seconds`, and checks that the worker sees the jump.
    #[track_caller]
    fn jump(&mut self, seconds: i64) {
        let (new, offset) = (self.dir.path().join("new"), self.dir.path().join("offset"));
        fs::write(&new, seconds.to_string()).expect("a file can be written");
        fs::rename(new, offset).expect("a file can be renamed");
        let seen: i64 = self.ask("wall").parse().expect("a number");
        assert!(
            (seen - wall_clock() - seconds).abs() < 60,
            "the clock did not jump: {seen}"
        );
    }

    #[track_caller]
    fn ask(&mut self, line: &str) -> String {
        self.worker.ask(line)
    }

    #[track_caller]
    fn next_report(&self) -> String {
        self.worker.expect_line("", LONG)
    }
}

fn wall_clock() -> i64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time after 1970");
    i64::try_from(now.as_secs()).expect("a time in this age")
}

/// The role of a process whose wall clock jumps.
pub(crate) fn wall_clock_as_told() {
    let locks = LockManager::connect(&role::arg("url")).expect("connects");
    let mut held = None;
    role::report("ready");
    while let Some(line) = role::next_line() {
        match line.as_str() {
            "wall" => role::report(wall_clock()),
            "hold" => {
                held = Some(locks.named("held").lease(LONG).lock().expect("locks"));
                role::report("held");
            }
            "look" => {
                let remaining = held
                    .as_ref()
                    .filter(|it| it.is_valid())
                    .map(LockGuard::remaining);
                role::report(remaining.map_or(0, |it| it.as_millis()));
            }
            "unlock" => role::report(format!("{:?}", held.take().expect("held").unlock())),
            "outlive" => on_its_own(&locks, |locks| {
                let guard = locks
                    .named("short")
                    .lease(2 * LEASE)
                    .renew(false)
                    .lock()
                    .expect("locks");
                role::report("taken");
                eventually(LONG, "the hold is over", || !guard.is_valid());
                role::report("over");
            }),
            "wait" => on_its_own(&locks, |locks| {
                role::report("waiting");
                let taken = locks.named("busy").wait(2 * LEASE).lock();
                let timed_out = taken.is_err_and(|error| error.is_timeout());
                role::report(if timed_out {
                    "timeout"
                } else {
                    "something else"
                });
            }),
            other => panic!("not understood: {other}"),
        }
    }
}

/// Runs `action` on another thread, so that the worker can answer `wall` meanwhile.
fn on_its_own(locks: &LockManager, action: fn(&LockManager)) {
    let locks = locks.clone();
    drop(thread::spawn(move || action(&locks)));
}
