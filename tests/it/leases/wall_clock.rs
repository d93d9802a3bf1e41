//! Time: a wall clock that jumps changes nothing that a program sees of its locks.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use relatch::{LockGuard, LockManager};
use relatch_rig::{LONG, Server, Worker, compile_preload, eventually, role};
use tempfile::TempDir;

use crate::support::trusted;

/// The lease of a worker's hold, and how long it waits.
const LEASE: Duration = Duration::from_secs(1);

/// By how much the wall clock jumps, in seconds.
const HOUR: i64 = 3600;

#[test]
fn row_05_holds_and_waits_end_on_time_whatever_the_wall_clock_says() {
    let server = Server::start();
    server.query::<()>(&["SET", "lock:busy", "somebody", "PX", "60000"]);
    for jump in [HOUR, -HOUR] {
        let mut child = Clocked::start(&server);
        assert_eq!(child.ask("hold"), "held");
        for (what, begun, over) in [("outlive", "taken", "over"), ("wait", "waiting", "timeout")] {
            let start = Instant::now();
            assert_eq!(child.ask(what), begun);
            child.jump(jump);
            assert_eq!(child.next_report(), over);
            let took = start.elapsed();
            let in_time = trusted(LEASE)..LEASE + LONG / 2;
            assert!(in_time.contains(&took), "{what}: {took:?} of {LEASE:?}");
            child.jump(0);
        }
        child.jump(jump);
        let looked = child.ask("look");
        let remaining: u128 = looked.parse().expect(&looked);
        assert!((1..20_000).contains(&remaining), "{remaining} ms of 20 s");
        assert_eq!(child.ask("unlock"), "Ok(Released)");
    }
}

/// The test above changes the time that the C library returns. This test is for code that reads the
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
        // The simulated server is compared with a real one.
        let may_read =
            file.ends_with("base/clock.rs") || file.ends_with("simulation/redis/compared/mod.rs");
        // The store in memory numbers its fences by the wall clock, as a server does. `check`
        // compares it with the server's.
        let may_ask = may_read
            || file.ends_with("store/memory/keys.rs")
            || file.ends_with("session/looking/health.rs");
        let text = fs::read_to_string(&file).unwrap().to_lowercase();
        for (name, may) in [
            ("systemtime", may_read),
            ("unix_epoch", may_read),
            ("realtime", may_read),
            ("since_1970", may_ask),
        ] {
            assert!(
                may || !text.contains(name),
                "{} names {name}",
                file.display()
            );
        }
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
                    .lease(LEASE)
                    .renew(false)
                    .lock()
                    .expect("locks");
                role::report("taken");
                eventually(LONG, "the hold is over", || !guard.is_valid());
                role::report("over");
            }),
            "wait" => on_its_own(&locks, |locks| {
                role::report("waiting");
                let taken = locks.named("busy").wait(LEASE).lock();
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
