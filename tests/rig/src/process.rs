//! Child processes, which end with their owner, the signals that they are sent, and a clock that
//! all processes of the machine share.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, ExitStatus};
use std::time::Duration;

#[cfg(unix)]
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

#[cfg(unix)]
use crate::eventually;
use crate::role::MARK;

/// A child process. It is killed, if it still runs, when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    stdout: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts `command`.
    pub fn start(command: &mut Command) -> io::Result<Process> {
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().map(BufReader::new);
        Ok(Process { child, stdout })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether the process exists; a stopped one does.
    pub fn is_running(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Writes a line to its standard input, which must be piped.
    pub fn send(&mut self, line: &str) -> io::Result<()> {
        let stdin = self.child.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        writeln!(stdin, "{line}")
    }

    /// Closes its standard input.
    pub fn close_input(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for the next line that it [reports](crate::role::report) on its standard output, which
    /// must be piped; `None` when the output has ended.
    pub fn next_report(&mut self) -> Option<String> {
        let mut lines = self.stdout.as_mut()?.lines().map_while(Result::ok);
        lines.find_map(|line| line.strip_prefix(MARK).map(str::to_owned))
    }

    /// Its standard output, for a reader of the caller's own.
    pub(crate) fn take_stdout(&mut self) -> Option<BufReader<ChildStdout>> {
        self.stdout.take()
    }

    /// Its standard error, if that is piped.
    pub(crate) fn take_stderr(&mut self) -> Option<std::process::ChildStderr> {
        self.child.stderr.take()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child can be waited for")
    }

    /// Closes its standard input, and waits until the process ends.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Kills it if it still runs. Ignores errors, because this is for drops: a panic there would
    /// hide the panic that led to the drop.
    pub(crate) fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Kills it with `SIGKILL`, stopped or not, and returns when it is gone.
    pub fn kill(&mut self) {
        self.child.kill().expect("a child can be killed");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A signal that [`signal`] can send.
#[cfg(unix)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sig {
    /// `SIGSTOP`
    Stop,
    /// `SIGCONT`
    Cont,
    /// `SIGKILL`
    Kill,
    /// `SIGTERM`
    Term,
}

/// Sends `sig` to the process `pid`; panics if there is none.
///
/// Pass only the id of a child that has not been waited for: such an id cannot have been given to
/// another process.
#[cfg(unix)]
#[track_caller]
pub fn signal(pid: u32, sig: Sig) {
    let signal = match sig {
        Sig::Stop => Signal::STOP,
        Sig::Cont => Signal::CONT,
        Sig::Kill => Signal::KILL,
        Sig::Term => Signal::TERM,
    };
    if let Err(error) = kill_process(raw(pid), signal) {
        panic!("cannot send {sig:?} to process {pid}: {error}");
    }
}

/// Stops a child of this process, and returns once the child no longer runs: `SIGSTOP` only
/// requests the stop.
#[cfg(unix)]
#[track_caller]
pub fn freeze(pid: u32) {
    let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    signal(pid, Sig::Stop);
    eventually(Duration::from_secs(5), "the process is stopped", || {
        matches!(waitid(WaitId::Pid(raw(pid)), look), Ok(Some(_)))
    });
}

/// Returns `pid` as rustix wants it.
#[cfg(unix)]
fn raw(pid: u32) -> Pid {
    let pid = i32::try_from(pid).expect("a process id is a positive i32");
    Pid::from_raw(pid).expect("a process id is not 0")
}

/// The time on a clock that all processes of this machine share: on Linux, the time since it
/// started, suspend included.
pub fn now() -> Duration {
    #[cfg(target_os = "linux")]
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime).try_into();
    #[cfg(all(unix, not(target_os = "linux")))]
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic).try_into();
    #[cfg(not(unix))]
    let time = std::time::UNIX_EPOCH.elapsed();
    time.expect("a clock that counts upwards from zero")
}
