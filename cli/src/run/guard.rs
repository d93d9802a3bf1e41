//! The guard: the process between the wrapper and the job. It is this program, run again.
//!
//! If the wrapper is killed, nobody renews the lock. The guard then sees that the socket to the
//! wrapper is closed, and ends the job: it sends the signal, waits for the grace period, and kills
//! until no process is left. If the wrapper is stopped instead, the guard kills the job when the
//! lock is no longer known to be valid.
//!
//! The guard is the job's parent, and on Linux adopts the job's orphans, so the whole job descends
//! from it. The guard ends when no process of the job is left, and that tells the wrapper so. If
//! the guard itself is killed, the wrapper adopts the job.
//!
//! The socket is the guard's standard input. The job's standard input comes over the socket as a
//! descriptor, so the job has no descriptor that it would not have without relatch.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid};
use signal_hook::consts::{SIGCONT, SIGKILL};
use signal_hook::iterator::Signals;

use crate::run::family::{Family, Pause, Scope};
use crate::run::life::Ended;
use crate::run::line::{FromGuard, ToGuard, Until, hear, now, say};
use crate::run::{signals, spawn};

/// The first argument of the process.
pub(crate) const COMMAND: &str = "__guard";

/// The longest sleep: the clock for sleeping may stand still while the machine is suspended.
const LONGEST_SLEEP: Duration = Duration::from_secs(1);

/// What the wrapper tells the guard at the start, as arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) signal: i32,
    pub(crate) kill_after: Duration,
    /// How long the lock is valid. The guard knows this from the start, because the wrapper may be
    /// stopped as soon as it has started the guard.
    pub(crate) until: Until,
    /// The job's process group. Zero means a new one.
    pub(crate) group: i32,
}

impl Orders {
    pub(crate) fn arguments(&self) -> [String; 5] {
        [
            COMMAND.to_owned(),
            self.signal.to_string(),
            self.kill_after.as_millis().to_string(),
            self.until.millis().to_string(),
            self.group.to_string(),
        ]
    }

    fn read(arguments: &[OsString]) -> Option<Orders> {
        let number = |at: usize| arguments.get(at)?.to_str()?.parse::<u64>().ok();
        Some(Orders {
            signal: i32::try_from(number(0)?).ok()?,
            kill_after: Duration::from_millis(number(1)?),
            until: Until(Duration::from_millis(number(2)?)),
            group: i32::try_from(number(3)?).ok()?,
        })
    }
}

enum Event {
    Said(ToGuard),
    /// The wrapper has ended.
    Alone,
    LeaderEnded,
    /// No child is left, and so no descendant.
    Childless,
}

/// Runs the guard. `arguments` are those after its name.
pub(crate) fn main(arguments: &[OsString]) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let orders = Orders::read(arguments).ok_or_else(invalid)?;
    let (command, rest) = arguments[4..].split_first().ok_or_else(invalid)?;
    // The job does not inherit these handlers.
    let numbers = signals::FOR_THE_JOB.iter().copied();
    let witness = Signals::new(numbers.filter(|number| !signals::is_ignored(*number)))?;
    adopt_orphans();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive(&socket)?;
    let mut family = Family::new(orders.group == 0);
    // If this cannot be sent, the wrapper finds out when this process exits.
    if orders.until.0 <= now() {
        return say(&socket, &FromGuard::Late.word());
    }
    let (sender, events) = channel();
    let threads = start_threads(&socket, witness, &sender);
    let started = threads.and_then(|reaper| {
        let leader = start(command, rest, &stdin, orders.group)?;
        Ok((leader, reaper))
    });
    let (leader, reaper) = match started {
        Ok(started) => started,
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            return say(&socket, &FromGuard::Failed(number).word());
        }
    };
    // Nothing can fail from here on.
    drop(stdin);
    let _ = say(&socket, &FromGuard::Started(leader).word());
    let _ = reaper.send(leader);
    family.set_leader(leader);
    watch(&events, family, &orders);
    drop(sender); // Kept until here, so that the channel stays open.
    Ok(())
}

/// Starts the threads before the job, which needs them. One of them waits for the job, once it has
/// been sent the job's process number.
fn start_threads(
    socket: &UnixStream,
    mut witness: Signals,
    events: &Sender<Event>,
) -> io::Result<Sender<Pid>> {
    let got = socket.try_clone()?;
    thread::Builder::new().spawn(move || {
        for number in witness.forever() {
            let _ = say(&got, &FromGuard::Got(number).word());
        }
    })?;
    let (heard, telling) = (socket.try_clone()?, events.clone());
    thread::Builder::new().spawn(move || listen(&heard, &telling))?;
    let (socket, telling) = (socket.try_clone()?, events.clone());
    let (reaper, leader) = channel();
    thread::Builder::new().spawn(move || {
        if let Ok(leader) = leader.recv() {
            reap(leader, &socket, &telling);
        }
    })?;
    Ok(reaper)
}

/// Makes this process adopt the job's orphans.
pub(crate) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid())); // Supported since Linux 3.4.
}

/// Receives the job's standard input.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(socket, &mut parts, &mut control, RecvFlags::empty())?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?; // macOS cannot set it on receipt.
            return Ok(descriptor);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into()) // The wrapper has ended.
}

/// Starts the job in its process group.
fn start(command: &OsStr, rest: &[OsString], stdin: &OwnedFd, group: i32) -> io::Result<Pid> {
    let environment = spawn::environment();
    let spawn = |program: &OsStr, before: &[&OsStr]| {
        let rest = rest.iter().map(|argument| &**argument);
        let arguments: Vec<_> = before.iter().copied().chain(rest).collect();
        spawn::spawn(program, &arguments, &environment, stdin, group)
    };
    match spawn(command, &[command]) {
        // A script without a `#!` line.
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
            let shell = "/bin/sh".as_ref();
            spawn(shell, &[shell, found(command).as_os_str()])
        }
        other => other,
    }
}

fn is_executable(file: &PathBuf) -> bool {
    let about = std::fs::metadata(file);
    about.is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0)
}

/// The executable file for a command.
fn found(command: &OsStr) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path);
    let mut files = places.map(|folder| folder.join(command));
    if Path::new(command).components().count() > 1 {
        return command.to_owned();
    }
    files
        .find(is_executable)
        .map_or_else(|| command.to_owned(), Into::into)
}

/// Passes on what the wrapper says.
fn listen(socket: &UnixStream, sender: &Sender<Event>) {
    while let Some(word) = hear(socket) {
        let _ = sender.send(Event::Said(ToGuard::read(word)));
    }
    let _ = sender.send(Event::Alone);
}

/// Waits for every child: the job's first process, and the job's orphans. Tells the wrapper how the
/// first process ended.
fn reap(leader: Pid, socket: &UnixStream, sender: &Sender<Event>) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == leader => {
                let _ = say(socket, &FromGuard::Ended(ended(status)).word());
                let _ = sender.send(Event::LeaderEnded);
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => {
                let _ = sender.send(Event::Childless);
                return;
            }
        }
    }
}

pub(crate) fn ended(status: WaitStatus) -> Ended {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Code(code),
        (None, Some(number)) => Ended::Signal(number),
        (None, None) => Ended::Code(0),
    }
}

/// Ends the job if the wrapper no longer looks after it. Returns when there is nothing left to
/// guard.
///
/// | the wrapper | what the guard does | until |
/// |---|---|---|
/// | renews the lock | nothing | the leader has ended, and no process is left in its session |
/// | says nothing, and the time is over | kills the whole family repeatedly | the same |
/// | has ended | signals the whole family, then kills it repeatedly | no process is left at all |
fn watch(events: &Receiver<Event>, mut family: Family, orders: &Orders) {
    let mut kill_at = orders.until.0;
    let mut scope = Scope::Job;
    let mut pause = Pause::SHORTEST;
    let mut has_ended = false;
    loop {
        let time = now();
        if kill_at <= time {
            family.signal(SIGKILL, Scope::All);
        }
        let limit = match kill_at.saturating_sub(time) {
            Duration::ZERO => pause.next(),
            left if has_ended => pause.next().min(left),
            left => left.min(LONGEST_SLEEP),
        };
        match events.recv_timeout(limit) {
            Ok(Event::Said(ToGuard::Keep(name))) => family.keep(name),
            Ok(Event::Said(ToGuard::Until(until))) if scope == Scope::Job => kill_at = until.0,
            Ok(Event::Alone) => {
                scope = Scope::All;
                kill_at = kill_without_wrapper(kill_at, now(), orders.kill_after);
                family.signal(orders.signal, scope);
                family.signal(SIGCONT, scope);
                pause = Pause::SHORTEST;
            }
            Ok(Event::LeaderEnded) => {
                has_ended = true;
                family.leader_ended();
                // Usually the leader was the last process. Then the next event says so, and no look
                // is needed.
                continue;
            }
            // (On other systems, processes that are not our children may be in the group.)
            Ok(Event::Childless) if cfg!(target_os = "linux") => return,
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
        }
        if has_ended && family.is_empty(scope) {
            return;
        }
    }
}

/// When to kill a job whose wrapper has just ended: after the grace period, but before the lease
/// ends. The wrapper may have been stopped for a long time before.
fn kill_without_wrapper(good_until: Duration, now: Duration, kill_after: Duration) -> Duration {
    good_until.min(now + kill_after)
}

/// Whether a process is a run's guard: `relatch __guard ...`.
pub(crate) fn is_guard(pid: i32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).nth(1) == Some(COMMAND.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_its_wrapper_is_killed_before_the_lease_ends() {
        let [now, kill_after] = [100, 5].map(Duration::from_secs);
        for (good_until, killed_at) in [(130, 105), (102, 102), (99, 99)] {
            let [good_until, killed_at] = [good_until, killed_at].map(Duration::from_secs);
            assert_eq!(kill_without_wrapper(good_until, now, kill_after), killed_at);
        }
    }
}
