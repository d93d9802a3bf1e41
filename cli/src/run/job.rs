//! The job, as the wrapper sees it: with the guard process, and without it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, WaitOptions, kill_process};
use signal_hook::consts::SIGKILL;

use crate::run::family::{Family, Scope};
use crate::run::guard::{Orders, adopt_orphans, ended};
use crate::run::life::{ENDS, Ended, Event, NotStarted};
use crate::run::line::{FromGuard, ToGuard, Until, hear, say};
use crate::run::{signals, spawn};

pub(crate) struct Job {
    socket: UnixStream,
    family: Family,
    is_childless: bool,
    /// The guard has said whether the job was started.
    has_heard: bool,
    /// Everything that the guard had to say has arrived.
    has_heard_all: bool,
    /// The exit code of a guard that ended by itself. Zero means that no process of the job is
    /// left.
    guard_code: Option<i32>,
}

impl Job {
    /// Starts the guard, which starts the job. Everything that happens to them becomes an event.
    pub(crate) fn start(
        command: &[OsString],
        environment: &BTreeMap<&str, OsString>,
        orders: &Orders,
        events: &Sender<Event>,
    ) -> io::Result<Job> {
        adopt_orphans();
        let mut family = Family::new(orders.group == 0);
        let (socket, theirs) = UnixStream::pair()?;
        // Start the threads before the job, which needs them.
        let (listening, telling) = (socket.try_clone()?, events.clone());
        thread::Builder::new().spawn(move || listen(&listening, &telling))?;
        let (reaper, started) = channel();
        let telling = events.clone();
        thread::Builder::new().spawn(move || {
            if let Ok(guard) = started.recv() {
                reap(guard, &telling);
            }
        })?;
        let orders = orders.arguments();
        let mut arguments = vec!["relatch".as_ref()];
        arguments.extend(orders.iter().map(OsStr::new));
        arguments.extend(command.iter().map(|argument| &**argument));
        let mut variables = spawn::environment();
        // These may come from an outer run.
        variables.remove(OsStr::new("RELATCH_FENCE"));
        variables.remove(OsStr::new("RELATCH_SLOT"));
        variables.remove(OsStr::new("RELATCH_REDIS_FILE"));
        let named = environment.iter();
        variables.extend(named.map(|(name, value)| ((*name).into(), value.clone())));
        let program = this_program()?;
        let guard = spawn::spawn(program.as_os_str(), &arguments, &variables, theirs, 0)?;
        let _ = reaper.send(guard);
        family.set_guard(guard);
        let job = Job {
            socket,
            family,
            is_childless: false,
            has_heard: false,
            has_heard_all: false,
            guard_code: None,
        };
        if pass_stdin(&job.socket).is_err() {
            job.kill_guard(); // The guard has no standard input for the job.
        }
        Ok(job)
    }

    /// Processes an event, and returns what it means for the life of the run.
    pub(crate) fn on(&mut self, event: Event) -> Event {
        match event {
            Event::Started(leader) => {
                self.has_heard = true;
                self.family.set_leader(leader);
            }
            Event::NotStarted(_) => self.has_heard = true,
            Event::LeaderEnded(_) => self.family.leader_ended(),
            Event::Childless => self.is_childless = true,
            Event::GuardEnded => {
                self.has_heard_all = true;
                return self.without_a_word().unwrap_or(event);
            }
            Event::Reaped(pid, ended) => {
                let is_guard = self.family.guard() == Some(pid);
                let is_leader = self.family.is_leader(pid);
                self.family.reaped(pid);
                if is_leader {
                    return Event::LeaderEnded(ended);
                }
                match ended {
                    Ended::Code(code) if is_guard => {
                        self.guard_code = Some(code);
                        return self.without_a_word().unwrap_or(event);
                    }
                    // The guard handles these signals before it starts the job. (A signal to a
                    // whole service may arrive even earlier.)
                    Ended::Signal(number) if is_guard && signals::FOR_THE_JOB.contains(&number) => {
                        return Event::NotStarted(NotStarted::Interrupted(number));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        event
    }

    /// A guard that ends by itself with an error, and has said nothing, did not start the job: once
    /// it has, it cannot fail.
    fn without_a_word(&self) -> Option<Event> {
        let code = self.guard_code.filter(|code| *code != 0)?;
        let is_silent = self.has_heard_all && !self.has_heard;
        is_silent.then_some(Event::NotStarted(NotStarted::Guard(code)))
    }

    /// A process that is part of the job because of its parent stays so, even if the signal ends
    /// the parent first.
    pub(crate) fn signal(&mut self, number: i32, scope: Scope) {
        let others = self.family.in_other_sessions();
        for name in others.into_iter().filter(|_| ENDS.contains(&number)) {
            self.family.keep(name);
            let _ = say(&self.socket, &ToGuard::Keep(name).word());
        }
        self.family.signal(number, scope);
    }

    /// Kills every process in the scope, and the guard, which might be about to start the job. New
    /// processes may appear in the meantime, so this is repeated until none is left.
    pub(crate) fn kill(&self, scope: Scope) {
        self.family.signal(SIGKILL, scope);
        self.kill_guard();
    }

    fn kill_guard(&self) {
        if let Some(guard) = self.family.guard() {
            let _ = kill_process(guard, Signal::KILL);
        }
    }

    /// True once the guard has ended and its exit status and its last words are known. (These come
    /// from two threads. Without both, there is no telling whether the job ever ran.)
    pub(crate) fn is_alone(&self) -> bool {
        self.has_heard_all && self.family.guard().is_none()
    }

    /// True if nothing in the scope is left. This is certain, and needs no scan of the processes.
    pub(crate) fn is_gone(&self, scope: Scope) -> bool {
        self.is_childless || (self.guard_code == Some(0) && scope == Scope::Job)
    }

    /// Checks whether a process in the scope is left. Used when there is no guard.
    pub(crate) fn look(&self, scope: Scope) -> Event {
        if self.is_gone(scope) || self.family.is_empty(scope) {
            Event::Empty
        } else {
            Event::Orphaned
        }
    }

    /// Tells the guard until when the lock is valid. A guard that does not listen is useless, so it
    /// is killed: its end becomes an event.
    pub(crate) fn good_until(&self, until: Until) {
        if say(&self.socket, &ToGuard::Until(until).word()).is_err() {
            self.kill_guard();
        }
    }
}

/// This program's file, even if it has been replaced since.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") {
        Ok(PathBuf::from("/proc/self/exe"))
    } else {
        std::env::current_exe()
    }
}

/// Sends the guard this process's standard input, for the job.
fn pass_stdin(socket: &UnixStream) -> io::Result<()> {
    let stdin = io::stdin();
    let descriptors = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let one = [IoSlice::new(b"i")];
    sendmsg(socket, &one, &mut control, SendFlags::DONTWAIT)?;
    Ok(())
}

/// Passes on what the guard says.
fn listen(socket: &UnixStream, events: &Sender<Event>) {
    while let Some(word) = hear(socket) {
        let event = match FromGuard::read(word) {
            Some(FromGuard::Started(leader)) => Event::Started(leader),
            Some(FromGuard::Failed(number)) => Event::NotStarted(NotStarted::Failed(number)),
            Some(FromGuard::Late) => Event::NotStarted(NotStarted::Late),
            Some(FromGuard::Ended(ended)) => Event::LeaderEnded(ended),
            Some(FromGuard::Got(number)) => Event::Got(number),
            None => continue,
        };
        let _ = events.send(event);
    }
    let _ = events.send(Event::GuardEnded);
}

/// Waits for every child: the guard, and on Linux the processes that this one adopts after the
/// guard's end. (As process 1 of a container, this process also adopts other orphans.)
///
/// A stopped guard could not say that the job is over, and this process would renew the lock
/// forever. So the guard is continued at once.
fn reap(guard: Pid, events: &Sender<Event>) {
    loop {
        let event = match rustix::process::wait(WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) if status.stopped() => {
                if pid == guard {
                    let _ = kill_process(guard, Signal::CONT);
                }
                continue;
            }
            Ok(Some((pid, status))) => Event::Reaped(pid, ended(status)),
            Ok(None) | Err(Errno::INTR) => continue,
            Err(_) if cfg!(target_os = "linux") => Event::Childless,
            Err(_) => return,
        };
        if events.send(event).is_err() || event == Event::Childless {
            return;
        }
    }
}
