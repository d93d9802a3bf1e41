//! Worker processes of a test: the test binary run again, in a role.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read};
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::role::MARK;
use crate::wait::POLL;
use crate::{LONG, Process, eventually, rights, role};
#[cfg(unix)]
use crate::{Sig, freeze, signal};

/// The test in which a worker begins. Each test binary that starts workers has it in its `main.rs`,
/// and runs there the role that [`role::name`] returns; without a role the test does nothing.
const ENTRY: &str = "worker_entry";

/// A process in a role. It is killed, if it still runs, when this is dropped.
#[derive(Debug)]
pub struct Worker {
    process: Process,
    reports: Receiver<String>,
    /// All that it printed, for the message of a panic.
    printed: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Worker {
    /// Starts a process in `role`, where [`role::arg`] returns what `args` says.
    pub fn spawn(role: &str, args: &[(&str, &str)]) -> Self {
        Self::spawn_under(&[], role, args)
    }

    /// Starts the same process through another program: `launcher` is put in front of the command.
    pub fn spawn_under(launcher: &[&str], role: &str, args: &[(&str, &str)]) -> Self {
        let mut command = role::command_under(launcher, role, args);
        command
            .args([ENTRY, "--exact", "--nocapture", "--test-threads=1"])
            .stderr(Stdio::piped());
        let mut process = Process::start(&mut command).expect("this binary can be started");
        let printed = Arc::new(Mutex::new(String::new()));
        let (sender, reports) = mpsc::channel();
        let stdout = process.take_stdout().expect("a piped stdout");
        let stderr = process.take_stderr().expect("a piped stderr");
        let readers = vec![
            collect("worker-stdout", stdout, &printed, Some(sender)),
            collect("worker-stderr", stderr, &printed, None),
        ];
        Self {
            process,
            reports,
            printed,
            readers,
        }
    }

    /// Sends it a line, which [`role::next_line`] returns there.
    #[track_caller]
    pub fn send(&mut self, line: &str) {
        if let Err(error) = self.process.send(line) {
            let ended = self.process.ended();
            self.read_to_the_end();
            panic!(
                "cannot send {line:?}: {error}, ended: {ended:?}; {}",
                self.printed()
            );
        }
    }

    /// Sends it a line, and returns the next line that it reports.
    #[track_caller]
    pub fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.expect_line("", LONG)
    }

    /// Waits for a line of [`role::report`] that begins with `prefix`, skipping others, and returns
    /// the whole line; panics with all that was printed when `limit` has passed or the process has
    /// ended.
    #[track_caller]
    pub fn expect_line(&self, prefix: &str, limit: Duration) -> String {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.reports.recv_timeout(left) {
                Ok(line) if line.starts_with(prefix) => return line,
                Ok(_other) => {}
                Err(error) => {
                    if error == RecvTimeoutError::Disconnected {
                        self.read_to_the_end();
                    }
                    panic!(
                        "no line {prefix:?} within {limit:?}: {error}; {}",
                        self.printed()
                    );
                }
            }
        }
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Stops it with `SIGSTOP`, and returns when it has stopped.
    #[cfg(unix)]
    #[track_caller]
    pub fn stop(&self) {
        freeze(self.pid());
    }

    /// Continues it after [`stop`](Self::stop).
    #[cfg(unix)]
    #[track_caller]
    pub fn cont(&self) {
        signal(self.pid(), Sig::Cont);
    }

    /// Kills it with `SIGKILL`, stopped or not, and returns when it is gone.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Closes its input, so that [`role::next_line`] returns `None`, and waits until it ends;
    /// panics after `limit`.
    #[track_caller]
    pub fn wait(&mut self, limit: Duration) -> ExitStatus {
        self.process.close_input();
        let mut status = None;
        let printed = Arc::clone(&self.printed);
        let end = Instant::now() + limit;
        eventually(2 * limit, "the worker ends", || {
            status = self.process.ended();
            let late = status.is_none() && Instant::now() >= end;
            assert!(
                !late,
                "runs after {limit:?}; it printed:\n{}",
                printed.lock()
            );
            status.is_some()
        });
        status.expect("just set")
    }

    /// Waits until both of its streams have ended, or for 5 s. Its errors may arrive after the end
    /// of its output, and what a process prints last says why it ended.
    fn read_to_the_end(&self) {
        let end = Instant::now() + Duration::from_secs(5);
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < end {
            thread::sleep(POLL);
        }
    }

    /// All that it printed so far.
    pub fn printed(&self) -> String {
        format!("it printed:\n{}", self.printed.lock())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.process.end();
        // Its streams have ended now.
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// Runs a test once more, in a process where nothing else runs. Returns true in that process, and
/// false in the first one, after the second run has passed. `module` is the test's
/// `module_path!()`.
#[track_caller]
pub fn is_alone(module: &str, test: &str) -> bool {
    const ALONE: &str = "alone";
    if role::name().as_deref() == Some(ALONE) {
        return true;
    }
    let (_crate, module) = module.split_once("::").expect("a module of a test binary");
    let mut again = role::command(ALONE, &[]);
    let output = again
        .args([&*format!("{module}::{test}"), "--exact"])
        .output();
    let output = output.expect("this binary can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && printed.contains("1 passed"),
        "{printed}"
    );
    false
}

/// Reads `stream` until its end, on a thread of its own.
fn collect(
    name: &str,
    stream: impl Read + Send + 'static,
    printed: &Arc<Mutex<String>>,
    reports: Option<Sender<String>>,
) -> JoinHandle<()> {
    let printed = Arc::clone(printed);
    let read = move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // A `String` can always be written to, and the test may have dropped the receiver.
            let _ = writeln!(printed.lock(), "{line}");
            rights::note_printed(&line);
            if let (Some(line), Some(reports)) = (line.strip_prefix(MARK), &reports) {
                let _ = reports.send(line.to_owned());
            }
        }
    };
    let thread = Builder::new().name(name.to_owned()).spawn(read);
    thread.expect("a thread can be started")
}
