//! Limits: how many tests run at a time, and how long each may take. One that hangs ends the run,
//! and is named.

use std::io::{self, Write};
use std::sync::Once;
use std::thread::{self, Builder};
use std::time::{Duration, Instant};
use std::{env, process};

use parking_lot::{Condvar, Mutex};

/// The variable with the limit, in seconds, for tests that take long.
const VARIABLE: &str = "RELATCH_TEST_LIMIT";

/// The limit without that variable, in seconds. Longer than a test waits for anything, so that a
/// test which waits in vain can still say for what.
const USUAL: u64 = 300;

/// How often the limits are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The most tests at a time. Most have to be answered within some 300 ms: with more of them, each
/// step of client, proxy and server waits too long for its turn.
const AT_A_TIME: usize = 10;

/// The tests that run, and when each has to be done.
static RUNNING: Mutex<Vec<(&str, Instant)>> = Mutex::new(Vec::new());

/// A test has ended.
static ENDED: Condvar = Condvar::new();

/// A test that runs. If this still exists at the limit, the whole process ends with its children,
/// because nothing can end one thread.
///
/// Each test of `tests/it` has one: see `tests/limit`.
#[derive(Debug)]
#[must_use = "the test ends when this is dropped"]
pub struct Limit(&'static str);

impl Limit {
    /// The test `name` begins, as soon as the machine has room for it. The variable
    /// `RELATCH_TEST_LIMIT` says how many seconds it may take; without it, 300.
    pub fn begin(name: &'static str) -> Limit {
        static WATCH: Once = Once::new();
        WATCH.call_once(|| {
            let watch = Builder::new().name("test-limit".to_owned()).spawn(watch);
            watch.expect("a thread can be started");
        });
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let mut running = RUNNING.lock();
        ENDED.wait_while(&mut running, |it| it.len() >= AT_A_TIME.min(5 * cores));
        running.push((name, Instant::now() + limit()));
        Limit(name)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        RUNNING.lock().retain(|(name, _)| *name != self.0);
        ENDED.notify_one();
    }
}

fn limit() -> Duration {
    let wanted = env::var(VARIABLE).map_or(USUAL, |it| it.parse().expect("a number of seconds"));
    Duration::from_secs(wanted)
}

fn watch() {
    loop {
        thread::sleep(LOOK);
        let now = Instant::now();
        let late: Vec<_> = RUNNING
            .lock()
            .iter()
            .filter(|it| it.1 <= now)
            .map(|it| it.0)
            .collect();
        if !late.is_empty() {
            // The test harness would keep what the macros print.
            let _ = writeln!(
                io::stderr(),
                "\nnot done within {:?}, so that the whole run ends: {late:?}\n({VARIABLE} is the limit in seconds)",
                limit()
            );
            #[cfg(target_os = "linux")]
            end_children(process::id());
            // Nothing that runs at the exit of a process can keep this one.
            process::abort();
        }
    }
}

/// Ends the servers and workers that a process has started, and theirs.
#[cfg(target_os = "linux")]
fn end_children(parent: u32) {
    use rustix::process::{Pid, Signal, kill_process};

    let tasks = std::fs::read_dir(format!("/proc/{parent}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let children = tasks.filter_map(|it| std::fs::read_to_string(it.path().join("children")).ok());
    for child in children.collect::<Vec<_>>().concat().split_whitespace() {
        let child: i32 = child.parse().expect("a process id");
        end_children(child.unsigned_abs());
        // An error says that it has ended.
        let _ = Pid::from_raw(child).map(|it| kill_process(it, Signal::KILL));
    }
}
