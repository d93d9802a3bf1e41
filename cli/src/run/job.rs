//! The job, as the wrapper sees it: through the guard process.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process};

use crate::exit::{Failure, code};
use crate::run::group::{Group, POLL};
use crate::run::guard::{Orders, adopt_orphans, ended};
use crate::run::life::Event;
use crate::run::line::{FromGuard, ToGuard};

pub(crate) struct Job {
    socket: UnixStream,
    guard: Pid,
    group: Group,
}

impl Job {
    /// Starts the guard, and the guard the job. What happens to them becomes events.
    pub(crate) fn start(
        command: &[OsString],
        environment: &BTreeMap<&str, OsString>,
        orders: &Orders,
        events: &Sender<Event>,
    ) -> Result<Job, Failure> {
        let fail = |error: io::Error| {
            Failure::new(
                code::SOFTWARE,
                format!("the guard process cannot be started: {error}"),
            )
        };
        adopt_orphans();
        let (socket, theirs) = UnixStream::pair().map_err(fail)?;
        let guard = Command::new(this_program().map_err(fail)?)
            .arg0("relatch")
            .args(orders.arguments())
            .args(command)
            .env_remove("RELATCH_FENCE") // It may be that of a run around this one.
            .env_remove("RELATCH_REDIS_FILE")
            .envs(environment)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .process_group(0)
            .spawn()
            .map_err(fail)?;
        let guard = Pid::from_child(&guard);
        pass_stdin(&socket).map_err(fail)?;
        let mut said = BufReader::new(socket.try_clone().map_err(fail)?);
        let mut line = String::new();
        said.read_line(&mut line).map_err(fail)?;
        let leader = match FromGuard::read(line.trim_end()) {
            Some(FromGuard::Started(leader)) => leader,
            Some(FromGuard::Failed(number)) => return Err(not_started(&command[0], number)),
            _ => return Err(fail(io::ErrorKind::UnexpectedEof.into())),
        };
        let sender = events.clone();
        thread::spawn(move || read(said, &sender));
        let sender = events.clone();
        thread::spawn(move || reap(guard, leader, &sender));
        let group = Group {
            leader,
            shared: orders.foreground.and_then(Pid::from_raw),
        };
        Ok(Job {
            socket,
            guard,
            group,
        })
    }

    pub(crate) fn signal(&self, number: i32) {
        self.group.signal(number);
    }

    pub(crate) fn kill(&self) {
        self.group.kill(getpid(), Some(self.guard));
    }

    /// Kills what has left the group, where it can be found. The group is empty.
    pub(crate) fn kill_those_who_left(&self) {
        while Group::kill_descendants(getpid(), Some(self.guard)) {
            thread::sleep(POLL);
        }
    }

    pub(crate) fn kill_guard(&self) {
        let _ = kill_process(self.guard, Signal::KILL); // It may have ended.
    }

    /// True if no process of the group is left. For when the guard cannot say it.
    pub(crate) fn is_empty(&self) -> bool {
        self.group.is_empty(getpid())
    }

    /// Tells the guard until when the lock is good.
    pub(crate) fn good_until(&self, time: Duration) {
        // If the guard has ended, the reader says so.
        let _ = (&self.socket).write_all(ToGuard::Until(time).line().as_bytes());
    }

    /// The job is done, and so is the guard.
    pub(crate) fn done(&self) {
        let _ = (&self.socket).write_all(ToGuard::Done.line().as_bytes());
    }
}

/// This program's file, also if it was replaced since.
fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe()
    }
}

/// Sends the guard the standard input, which is the job's.
fn pass_stdin(socket: &UnixStream) -> io::Result<()> {
    let stdin = io::stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(
        socket,
        &[IoSlice::new(b"i")],
        &mut control,
        SendFlags::empty(),
    )?;
    Ok(())
}

fn not_started(command: &OsString, number: i32) -> Failure {
    let code = if number == Errno::NOENT.raw_os_error() {
        code::NOT_FOUND
    } else {
        code::NOT_EXECUTABLE
    };
    let error = io::Error::from_raw_os_error(number);
    Failure::new(code, format!("{}: {error}", command.display()))
}

/// Passes on what the guard says.
fn read(said: BufReader<UnixStream>, events: &Sender<Event>) {
    for line in said.lines().map_while(Result::ok) {
        let event = match FromGuard::read(&line) {
            Some(FromGuard::Ended(ended)) => Event::JobEnded(ended),
            Some(FromGuard::Empty) => Event::Empty,
            _ => continue,
        };
        let _ = events.send(event);
    }
    let _ = events.send(Event::GuardEnded);
}

/// Waits for every child: the guard, and on Linux what comes to this process after the guard's end.
/// (As process 1 of a container, this process also gets the orphans of others.)
fn reap(guard: Pid, leader: Pid, events: &Sender<Event>) {
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((pid, _))) if pid == guard => _ = events.send(Event::GuardEnded),
            Ok(Some((pid, status))) if pid == leader => {
                let _ = events.send(Event::JobEnded(ended(status)));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
    }
}
