//! Processes of our own: the test binary run again, to be one of the roles in `tests/it/roles.rs`.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{self, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::{POLL, Sig, eventually, freeze, rights, signal};
use crate::roles::run_role;

/// The variable that tells a process which role it has.
const ROLE: &str = "RELATCH_TEST_ROLE";

/// What a line that is meant for the parent begins with: libtest prints lines too.
const MARK: &str = "@";

/// A process in a role. Killed, if it still runs, when this is dropped.
pub(crate) struct Child {
    process: process::Child,
    lines: Receiver<String>,
    /// All that it printed, for the message of a panic.
    printed: Arc<Mutex<String>>,
    readers: Vec<JoinHandle<()>>,
}

impl Child {
    /// Starts a process in `role`, where `role::arg(name)` returns what `args` says.
    pub(crate) fn spawn(role: &str, args: &[(&str, &str)]) -> Self {
        // `env` alone runs what follows, in its own place.
        Self::spawn_under(&["env"], role, args)
    }

    /// The same, run by another program: `launcher` is what stands in front of the command.
    pub(crate) fn spawn_under(launcher: &[&str], role: &str, args: &[(&str, &str)]) -> Self {
        let entry = concat!(module_path!(), "::child_entry");
        let (_crate, entry) = entry.split_once("::").expect("a path with a crate");
        let binary = std::env::current_exe().expect("the path of this binary");
        let mut process = Command::new(launcher[0])
            .args(&launcher[1..])
            .arg(binary)
            .args([entry, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .envs(args.iter().map(|(name, value)| (variable(name), value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("this binary can be started");
        let printed = Arc::new(Mutex::new(String::new()));
        let (sender, lines) = mpsc::channel();
        let stdout = process.stdout.take().expect("a piped stdout");
        let stderr = process.stderr.take().expect("a piped stderr");
        let readers = vec![
            collect("child-stdout", stdout, &printed, Some(sender)),
            collect("child-stderr", stderr, &printed, None),
        ];
        Self { process, lines, printed, readers }
    }

    /// Gives it a line to [`role::hear`].
    #[track_caller]
    pub(crate) fn say(&mut self, line: &str) {
        let stdin = self.process.stdin.as_mut().expect("not waited for yet");
        if let Err(error) = writeln!(stdin, "{line}") {
            panic!("cannot say {line:?}: {error}; {}", self.printed());
        }
    }

    /// Gives it a line and returns the next that it tells.
    #[track_caller]
    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.say(line);
        self.expect_line("", Duration::from_secs(20))
    }

    /// Waits for a line of [`role::tell`] that begins with `prefix`, skipping others, and returns it whole; panics with
    /// all that was printed when `limit` has passed or the process has ended.
    #[track_caller]
    pub(crate) fn expect_line(&self, prefix: &str, limit: Duration) -> String {
        let end = Instant::now() + limit;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.starts_with(prefix) => return line,
                Ok(_other) => {}
                Err(error) => {
                    if error == RecvTimeoutError::Disconnected {
                        self.hear_it_out();
                    }
                    panic!("no line {prefix:?} within {limit:?}: {error}; {}", self.printed());
                }
            }
        }
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Stops it with `SIGSTOP`, and returns when it has stopped.
    #[track_caller]
    pub(crate) fn stop(&self) {
        freeze(self.pid());
    }

    /// Lets it go on after [`stop`](Self::stop).
    #[track_caller]
    pub(crate) fn cont(&self) {
        signal(self.pid(), Sig::Cont);
    }

    /// Kills it with `SIGKILL`, stopped or not, and returns when it is gone.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("the child can be killed");
        self.process.wait().expect("the child can be waited for");
    }

    /// Ends its input, so that [`role::hear`] returns `None`, and waits for it to end; panics after `limit`.
    #[track_caller]
    pub(crate) fn wait(&mut self, limit: Duration) -> ExitStatus {
        drop(self.process.stdin.take());
        let mut status = None;
        let printed = Arc::clone(&self.printed);
        let end = Instant::now() + limit;
        eventually(2 * limit, "the child ends", || {
            status = self.process.try_wait().expect("the child can be waited for");
            let late = status.is_none() && Instant::now() >= end;
            assert!(!late, "runs after {limit:?}; it printed:\n{}", printed.lock());
            status.is_some()
        });
        status.expect("just set")
    }

    /// Waits until both of its streams have ended, or for 5 s: its errors may be read later than the end of its output,
    /// and what a process prints last says why it ended.
    fn hear_it_out(&self) {
        let end = Instant::now() + Duration::from_secs(5);
        while !self.readers.iter().all(JoinHandle::is_finished) && Instant::now() < end {
            thread::sleep(POLL);
        }
    }

    /// All that it printed so far.
    pub(crate) fn printed(&self) -> String {
        format!("it printed:\n{}", self.printed.lock())
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Neither can fail in a way that matters here, and a panic in a drop would hide the one that led to it.
        let _ = self.process.kill();
        let _ = self.process.wait();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

/// Where a child process begins; in a run of the tests there is no role, and nothing to do.
#[test]
fn child_entry() {
    if let Ok(role) = std::env::var(ROLE) {
        run_role(&role);
    }
}

/// What a role can do, in the child process.
pub(crate) mod role {
    use std::io::{self, Write};

    use super::{MARK, variable};

    /// The argument called `name`; panics if the parent gave none.
    pub(crate) fn arg(name: &str) -> String {
        let value = std::env::var(variable(name));
        value.unwrap_or_else(|error| panic!("the argument {name:?}: {error}"))
    }

    /// Tells the parent a line.
    pub(crate) fn tell(line: &str) {
        // The line end in front ends whatever libtest has begun.
        let line = format!("\n{MARK}{line}\n");
        let mut stdout = io::stdout().lock();
        let told = stdout.write_all(line.as_bytes()).and(stdout.flush());
        told.expect("the parent reads");
    }

    /// Waits for a line from the parent; `None` when there will be no more.
    pub(crate) fn hear() -> Option<String> {
        let mut line = String::new();
        let read = io::stdin().read_line(&mut line).expect("the parent writes");
        (read > 0).then(|| line.trim_end_matches('\n').to_owned())
    }
}

/// The variable that carries the argument `name`.
fn variable(name: &str) -> String {
    format!("RELATCH_TEST_{}", name.to_uppercase().replace('-', "_"))
}

/// Reads until the end, on a thread of its own.
fn collect(
    name: &str,
    stream: impl Read + Send + 'static,
    printed: &Arc<Mutex<String>>,
    marked: Option<Sender<String>>,
) -> JoinHandle<()> {
    let printed = Arc::clone(printed);
    let read = move || {
        for line in BufReader::new(stream).lines().map_while(Result::ok) {
            // A `String` can always be written to, and the test may have stopped listening.
            let _ = writeln!(printed.lock(), "{line}");
            rights::note_printed(&line);
            if let (Some(line), Some(marked)) = (line.strip_prefix(MARK), &marked) {
                let _ = marked.send(line.to_owned());
            }
        }
    };
    let thread = Builder::new().name(name.to_owned()).spawn(read);
    thread.expect("a thread can be started")
}
