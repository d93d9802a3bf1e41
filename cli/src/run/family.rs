//! The processes of a job: those that descend from one process, on Linux.
//!
//! A process cannot leave its family: the root is a child subreaper, to which each orphan of the
//! family comes. It can leave the session (`setsid`), and that is how a daemon says that it is not
//! of the job any more. So there are two [scopes](Scope).
//!
//! Elsewhere the system does not tell who descends from whom, and the job is its process group.
//! That is also so where `/proc` is that of another container.

use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpgrp, getpid, kill_process, kill_process_group,
    test_kill_process, test_kill_process_group, waitid,
};

/// How long to wait before the next look at a family. It grows, since a look reads all of `/proc`.
/// The first is so long that usually no look is needed: the last child was waited for by then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pause(Duration);

impl Pause {
    pub(crate) const SHORTEST: Pause = Pause(Duration::from_millis(10));
    const LONGEST: Duration = Duration::from_millis(250);

    pub(crate) fn next(&mut self) -> Duration {
        let now = self.0;
        self.0 = (now * 2).min(Pause::LONGEST);
        now
    }
}

/// Who of a family is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The job: those in the session in which it was started.
    Job,
    /// Those of the job that are not in the process group of this process.
    OtherGroups,
    /// Those in other sessions, too.
    All,
}

#[derive(Debug)]
pub(crate) struct Family {
    root: Pid,
    /// Zero, if it began outside of this process's container. `None`: the system does not tell who
    /// descends from whom.
    session: Option<i32>,
    /// They descend from the root, and are not of the job. The number of a process that has ended
    /// is given to another one day, so the time of its start belongs to its name.
    spared: Vec<(Pid, u64)>,
    /// It is not of the job, and the job descends from it. `None` once it was waited for: its
    /// number may be another's then.
    guard: Option<Pid>,
    /// The first process of the job.
    leader: Option<Pid>,
    /// It has ended, and was waited for.
    leader_has_ended: bool,
    /// The leader's number is that of a process group. All processes of the group are of the job.
    has_group: bool,
}

impl Family {
    /// The family of this process. Those who are in it now are not of the job: a shell may have
    /// had children before it executed this program in its place.
    pub(crate) fn new(has_group: bool) -> Family {
        let root = getpid();
        let session = own_session();
        let before = session.filter(|_| !has_no_child());
        let before = before.and_then(|_| Some(descendants(&processes()?, root, &[])));
        Family {
            root,
            session,
            spared: before.iter().flatten().map(Process::name).collect(),
            guard: None,
            leader: None,
            leader_has_ended: false,
            has_group,
        }
    }

    pub(crate) fn set_guard(&mut self, guard: Pid) {
        self.guard = Some(guard);
    }

    pub(crate) fn guard(&self) -> Option<Pid> {
        self.guard
    }

    pub(crate) fn set_leader(&mut self, leader: Pid) {
        self.leader = Some(leader);
    }

    pub(crate) fn leader_has_ended(&mut self) {
        self.leader_has_ended = true;
    }

    /// Takes in that this process has waited for a child. True if it was the leader.
    pub(crate) fn has_reaped(&mut self, pid: Pid) -> bool {
        self.guard = self.guard.filter(|guard| *guard != pid);
        let is_leader = self.leader == Some(pid) && !self.leader_has_ended;
        self.leader_has_ended |= is_leader;
        is_leader
    }

    /// Sends a signal: to all of the job's group at once, and then to each other process.
    ///
    /// The group is asked for among the living. So nothing is sent to the leader's number when it
    /// may be another's: a number is given to nobody as long as a process has it as its group. (A
    /// process may end between the look and the signal. Its number would have to be given away in
    /// these microseconds, after all other numbers of the system.)
    ///
    /// What fails has ended, or is another user's, and then nothing can be done.
    pub(crate) fn signal(&self, number: i32, scope: Scope) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        let Some(members) = self.members(scope) else {
            // Who is at the terminal has its signals.
            if scope != Scope::OtherGroups {
                self.signal_unseen(signal);
            }
            return;
        };
        let own = self.leader.filter(|_| self.has_group);
        let is_in_group = |process: &&Process| Some(process.group) == own.map(raw);
        if let Some(group) = own
            && members.iter().any(|process| is_in_group(&process))
        {
            let _ = kill_process_group(group, signal);
        }
        for process in members.iter().filter(|process| !is_in_group(process)) {
            let _ = kill_process(process.pid, signal);
        }
    }

    /// The same where nobody can be seen, or just now.
    fn signal_unseen(&self, signal: Signal) {
        let _ = match self.leader {
            Some(group) if self.has_group => kill_process_group(group, signal),
            Some(leader) if !self.leader_has_ended => kill_process(leader, signal),
            _ => return,
        };
    }

    /// True if nobody is left. To be asked when the leader has ended, or the guard.
    ///
    /// A look at `/proc` is no snapshot. Say that a process is read that has a child; then it ends,
    /// and its child is read, or has a child of its own and ends, too. All of them are seen as long
    /// as numbers grow, since a child is read after its parent. But they begin anew at 300 one day:
    /// then a child that is read before its parent, and whose parent ends between the two, belongs
    /// to nobody. So this looks twice: it would have to happen twice in a row. The lock would be
    /// given back too early, by the life of that child. (Nobody asks if the process has no child:
    /// then there is no doubt.)
    ///
    /// A look that fails has not seen that nobody is left.
    pub(crate) fn is_empty(&self, scope: Scope) -> bool {
        if self.session.is_none() {
            return self.is_empty_unseen();
        }
        (0..2).all(|_| {
            let members = self.members(scope);
            members.is_some_and(|members| members.is_empty())
        })
    }

    fn is_empty_unseen(&self) -> bool {
        let test = match self.leader {
            Some(group) if self.has_group => test_kill_process_group(group),
            Some(leader) if !self.leader_has_ended => test_kill_process(leader),
            _ => return true,
        };
        test == Err(Errno::SRCH) // `EPERM` is the answer for a living process of another user.
    }

    /// Those who live, if the system tells.
    ///
    /// As long as the guard has children, only they and theirs are of the job: who was here before
    /// may go on to leave processes to this one.
    fn members(&self, scope: Scope) -> Option<Vec<Process>> {
        let session = self.session?;
        let all = processes()?;
        let below_guard = self.guard.map(|guard| descendants(&all, guard, &[]));
        let mut found = below_guard
            .filter(|found| !found.is_empty())
            .unwrap_or_else(|| descendants(&all, self.root, &self.spared));
        let own_group = own_group();
        found.retain(|process| {
            // (The first process may have left with `setsid`, and is the job all the same.)
            let is_leader = Some(process.pid) == self.leader && !self.leader_has_ended;
            let is_of_job = process.session == session || is_leader;
            let is_meant = match scope {
                Scope::Job => is_of_job,
                Scope::OtherGroups => is_of_job && process.group != own_group,
                Scope::All => true,
            };
            is_meant && Some(process.pid) != self.guard
        });
        Some(found)
    }
}

/// The number of this process's session. Zero, if it began outside of this process's container.
/// `None`: the system does not tell.
pub(crate) fn own_session() -> Option<i32> {
    this_process().map(|process| process.session)
}

/// The number of this process's group. Zero, if it began outside of this process's container.
pub(crate) fn own_group() -> i32 {
    this_process().map_or_else(|| raw(getpgrp()), |process| process.group)
}

/// Whether the terminal's foreground is this process's group. (Only Linux tells.)
pub(crate) fn terminal_has_own_group() -> bool {
    let own = this_process().filter(|process| process.group != 0);
    own.is_some_and(|process| process.terminal == process.group)
}

/// This process, as others see it. `None` also if `/proc` is that of another container: its numbers
/// are not those of our signals.
#[cfg(target_os = "linux")]
fn this_process() -> Option<Process> {
    let pid = raw(getpid());
    let shown = std::fs::read_link("/proc/self").ok()?;
    if shown.to_str()?.parse() != Ok(pid) {
        return None;
    }
    Process::read(pid, &std::fs::read("/proc/self/stat").ok()?)
}

#[cfg(not(target_os = "linux"))]
fn this_process() -> Option<Process> {
    None
}

/// True if this process has no child, so that nobody descends from it.
fn has_no_child() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, look).is_err_and(|error| error == Errno::CHILD)
}

fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

/// A process of the system that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: i32,
    session: i32,
    /// The group in the foreground of its terminal.
    terminal: i32,
    /// The time of its start, in ticks of the system.
    since: u64,
}

impl Process {
    fn name(&self) -> (Pid, u64) {
        (self.pid, self.since)
    }

    /// Reads `/proc/N/stat`: `N (name) state parent group session ...`. The name may have anything
    /// in it. `None` if the process has ended.
    #[cfg(target_os = "linux")]
    fn read(pid: i32, stat: &[u8]) -> Option<Process> {
        let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = str::from_utf8(&stat[name_ends + 1..]).ok()?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
        let threads = number(17)?;
        // A zombie whose other threads live is one only by name: `pthread_exit` in `main`.
        if matches!(*fields.first()?, "Z" | "X") && threads <= 1 {
            return None;
        }
        Some(Process {
            pid: Pid::from_raw(pid)?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            terminal: number(5)?,
            since: fields.get(19)?.parse().ok()?,
        })
    }
}

/// All processes that can be seen. `None` if the system does not tell, or is short of memory or of
/// files just now: one that is left out could be one of the job.
#[cfg(target_os = "linux")]
fn processes() -> Option<Vec<Process>> {
    // It has ended, or is hidden from us.
    const GONE: [Errno; 4] = [Errno::NOENT, Errno::SRCH, Errno::PERM, Errno::ACCESS];
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc").ok()? {
        let entry = entry.ok()?;
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        match std::fs::read(entry.path().join("stat")) {
            Ok(stat) => all.extend(Process::read(pid, &stat)),
            Err(error) if Errno::from_io_error(&error).is_some_and(|it| GONE.contains(&it)) => {}
            Err(_) => return None,
        }
    }
    Some(all)
}

#[cfg(not(target_os = "linux"))]
fn processes() -> Option<Vec<Process>> {
    None
}

/// Those that descend from one, and not by one that is spared.
fn descendants(all: &[Process], root: Pid, spared: &[(Pid, u64)]) -> Vec<Process> {
    let mut family: Vec<Process> = Vec::new();
    let mut parents = vec![raw(root)];
    while let Some(parent) = parents.pop() {
        let children = all
            .iter()
            .filter(|process| process.parent == parent && !spared.contains(&process.name()));
        parents.extend(children.clone().map(|process| raw(process.pid)));
        family.extend(children);
    }
    family
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_is_read_behind_any_name() {
        let rest = "3 5 1 0 -1 0 0 0 0 0 0 0 0 0 20 0";
        let line = format!("7 (a) b) S) S {rest} 1 0 99 0");
        let read = Process::read(7, line.as_bytes()).unwrap();
        let seen = (raw(read.pid), read.parent, read.group, read.session);
        assert_eq!((seen, read.since), ((7, 3, 5, 1), 99));
        let zombie = |threads| format!("7 (\u{ff}) Z {rest} {threads} 0 99 0");
        assert_eq!(Process::read(7, zombie(1).as_bytes()), None);
        assert!(Process::read(7, zombie(2).as_bytes()).is_some());
        assert_eq!(Process::read(7, b""), None);
    }

    #[test]
    fn a_child_is_of_the_family_unless_it_was_there_before() {
        let sleep = || Command::new("sleep").arg("60").spawn().unwrap();
        let mut before = sleep();
        let family = Family::new(false);
        let mut later = sleep();
        let mut other = Command::new("sleep");
        let mut other = other.arg("60").process_group(0).spawn().unwrap();
        let of_job = family.members(Scope::Job).unwrap();
        let of_others = family.members(Scope::OtherGroups).unwrap();
        for child in [&mut before, &mut later, &mut other] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let has = |found: &[Process], child: &std::process::Child| {
            let pid = Pid::from_child(child);
            found.iter().any(|process| process.pid == pid)
        };
        assert!(has(&of_job, &later) && !has(&of_job, &before));
        // (The child of another test could be there, too.)
        assert!(has(&of_others, &other) && !has(&of_others, &later));
    }
}
