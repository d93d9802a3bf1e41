//! The guard: the process between the wrapper and the job. It is this program, run again.
//!
//! The wrapper may be killed, and then nobody renews the lock. The guard sees the end of the socket
//! that leads to the wrapper, and ends the job: the signal, the time that it has, and the kill,
//! until no process is left. If the wrapper is stopped instead, the time passes until which the
//! lock is known to be good, and the guard kills the job then.
//!
//! The guard is the job's parent, and on Linux adopts what the job leaves behind: so a process that
//! leaves the group is still found. If the guard itself is killed, the wrapper adopts them.
//!
//! The socket is the guard's standard input. The job's comes over the socket as a descriptor: so
//! the job has no descriptor that it would not have without us.

use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead, BufReader, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{Pid, WaitOptions, WaitStatus, getpid};

use crate::run::group::{Group, POLL};
use crate::run::life::Ended;
use crate::run::line::{FromGuard, ToGuard, now};
use crate::run::signals;

/// The first argument of the process.
pub(crate) const COMMAND: &str = "__guard";

/// What the wrapper tells it at the start, as arguments.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Orders {
    pub(crate) signal: i32,
    pub(crate) kill_after: Duration,
    /// The group of the job. `None`: one of its own.
    pub(crate) foreground: Option<i32>,
}

impl Orders {
    pub(crate) fn arguments(&self) -> [String; 4] {
        [
            COMMAND.to_owned(),
            self.signal.to_string(),
            self.kill_after.as_millis().to_string(),
            self.foreground.unwrap_or(0).to_string(),
        ]
    }

    fn read(arguments: &[OsString]) -> Option<Orders> {
        let number = |at: usize| arguments.get(at)?.to_str()?.parse::<u32>().ok();
        Some(Orders {
            signal: i32::try_from(number(0)?).ok()?,
            kill_after: Duration::from_millis(number(1)?.into()),
            foreground: Some(i32::try_from(number(2)?).ok()?).filter(|group| *group != 0),
        })
    }
}

enum Event {
    Said(ToGuard),
    /// The wrapper has ended.
    Alone,
    Ended(Ended),
    /// No child is left.
    Childless,
}

/// Runs the guard. `arguments` are those behind its name.
pub(crate) fn main(arguments: &[OsString]) -> io::Result<()> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    let orders = Orders::read(arguments).ok_or_else(invalid)?;
    let (command, rest) = arguments[3..].split_first().ok_or_else(invalid)?;
    // A handler that does nothing, and that the job does not inherit.
    for number in signals::FOR_THE_JOB {
        if !signals::is_ignored(number) {
            signal_hook::flag::register(number, Arc::new(AtomicBool::new(false)))?;
        }
    }
    adopt_orphans();
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    let stdin = receive(&socket)?;
    let started = start(command, rest, stdin, orders.foreground);
    let leader = match started {
        Ok(leader) => leader,
        Err(error) => {
            let number = error.raw_os_error().unwrap_or(Errno::IO.raw_os_error());
            return (&socket).write_all(FromGuard::Failed(number).line().as_bytes());
        }
    };
    // The wrapper may have ended: the next read says so.
    let _ = (&socket).write_all(FromGuard::Started(leader).line().as_bytes());
    let (sender, events) = channel();
    let reader = (socket.try_clone()?, sender.clone());
    thread::spawn(move || read(&reader.0, &reader.1));
    thread::spawn(move || reap(leader, &sender));
    let group = Group {
        leader,
        shared: orders.foreground.and_then(Pid::from_raw),
    };
    watch(&socket, &events, group, &orders);
    Ok(())
}

/// What the job leaves behind comes to this process.
pub(crate) fn adopt_orphans() {
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_child_subreaper(Some(getpid())); // Every Linux since 3.4 can.
}

/// Receives the job's standard input.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::empty();
    #[cfg(target_os = "linux")]
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    recvmsg(socket, &mut parts, &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into()) // The wrapper has ended.
}

/// Starts the job in its group.
fn start(
    command: &OsStr,
    rest: &[OsString],
    stdin: OwnedFd,
    foreground: Option<i32>,
) -> io::Result<Pid> {
    let again = stdin.try_clone()?;
    let spawn = |program: &OsStr, before: &[&OsStr], stdin| {
        Command::new(program)
            .args(before)
            .args(rest)
            .stdin(Stdio::from(stdin))
            .process_group(foreground.unwrap_or(0))
            .spawn()
    };
    let child = match spawn(command, &[], stdin) {
        // A script that does not name its shell.
        Err(error) if error.raw_os_error() == Some(Errno::NOEXEC.raw_os_error()) => {
            let script = found(command);
            spawn("/bin/sh".as_ref(), &[script.as_os_str()], again)?
        }
        other => other?,
    };
    Ok(Pid::from_child(&child))
}

/// The file of a command.
fn found(command: &OsStr) -> OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path);
    let mut files = places.map(|folder| folder.join(command));
    if Path::new(command).components().count() > 1 {
        return command.to_owned();
    }
    files
        .find(|file| file.is_file())
        .map_or_else(|| command.to_owned(), Into::into)
}

/// Passes on what the wrapper says.
fn read(socket: &UnixStream, sender: &Sender<Event>) {
    for line in BufReader::new(socket).lines().map_while(Result::ok) {
        if let Some(said) = ToGuard::read(&line) {
            let _ = sender.send(Event::Said(said));
        }
    }
    let _ = sender.send(Event::Alone);
}

/// Waits for every child: the job, and what it has left behind.
fn reap(leader: Pid, sender: &Sender<Event>) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == leader => {
                let _ = sender.send(Event::Ended(ended(status)));
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

/// Tells the wrapper what becomes of the job, and ends the job if the wrapper does not look after
/// it any more. Returns when nothing is left to guard.
fn watch(socket: &UnixStream, events: &Receiver<Event>, group: Group, orders: &Orders) {
    let tell = |what: FromGuard| _ = (&*socket).write_all(what.line().as_bytes());
    let mut until = Duration::MAX;
    let mut has_ended = false;
    let mut is_empty = false;
    let mut pause = Duration::from_millis(1);
    loop {
        let time = now();
        if until <= time {
            group.kill(getpid(), None);
            until = time + POLL;
        }
        let limit = if has_ended && !is_empty {
            pause = (pause * 2).min(POLL);
            pause
        } else {
            // Not longer, since this clock may stand still while the machine is suspended.
            until.saturating_sub(time).min(Duration::from_secs(1))
        };
        match events.recv_timeout(limit) {
            Ok(Event::Said(ToGuard::Until(later))) => until = later,
            Ok(Event::Alone) if is_empty => return,
            Ok(Event::Alone) => return end(events, group, orders, until),
            Ok(Event::Ended(ended)) => {
                has_ended = true;
                tell(FromGuard::Ended(ended));
            }
            Ok(Event::Childless) if !is_empty => {
                // No child, so no descendant: on Linux, all of them come to this process.
                is_empty = cfg!(target_os = "linux") || group.shared.is_some();
                if is_empty {
                    tell(FromGuard::Empty);
                }
            }
            Ok(Event::Childless) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Event::Said(ToGuard::Done)) | Err(RecvTimeoutError::Disconnected) => return,
        }
        if has_ended && !is_empty && group.is_empty(getpid()) {
            is_empty = true;
            tell(FromGuard::Empty);
        }
    }
}

/// Ends the job, because the wrapper has ended. Nobody renews the lock now.
fn end(events: &Receiver<Event>, group: Group, orders: &Orders, until: Duration) {
    let kill_at = (now() + orders.kill_after).min(until);
    if now() < kill_at {
        group.signal(orders.signal);
        group.signal(signal_hook::consts::SIGCONT);
    }
    loop {
        let time = now();
        let limit = if time < kill_at {
            kill_at.saturating_sub(time)
        } else {
            group.kill(getpid(), None);
            POLL
        };
        if let Ok(Event::Childless) | Err(RecvTimeoutError::Disconnected) =
            events.recv_timeout(limit)
        {
            // Elsewhere than on Linux, others than our children may be in the group.
            group.kill(getpid(), None);
            return;
        }
    }
}
