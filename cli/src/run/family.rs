//! The processes of a job: those that descend from one process, on Linux.
//!
//! A process cannot leave its family: the root is a child subreaper, to which each orphan of the
//! family comes. It can leave the session (`setsid`), and once its parent has ended by itself, that
//! is how a daemon says that it is not of the job any more. So there are two [scopes](Scope).
//!
//! Elsewhere the system does not tell who descends from whom, and the job is its process group.
//! That is also so where `/proc` is that of another container.

use std::collections::HashSet;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group,
    test_kill_process, test_kill_process_group, waitid,
};
use signal_hook::consts::{SIGCONT, SIGKILL, SIGSTOP};

use crate::run::guard;
use crate::run::process::{Name, Process, descendants, own_group, own_session, processes, raw};

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
    /// The job: those in the session in which it was started, and what these wait for in others.
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
    spared: Vec<Name>,
    /// They are of the job in other sessions, also when their parents have ended by a signal.
    kept: HashSet<Name>,
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
            kept: HashSet::new(),
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

    pub(crate) fn keep(&mut self, name: Name) {
        self.kept.insert(name);
    }

    /// Those of the job that are of it only as long as their parents live.
    pub(crate) fn in_other_sessions(&self) -> Vec<Name> {
        let members = self.members(Scope::Job).unwrap_or_default();
        let others = members
            .iter()
            .filter(|process| Some(process.session) != self.session);
        others.map(Process::name).collect()
    }

    pub(crate) fn is_leader(&self, pid: Pid) -> bool {
        self.leader == Some(pid) && !self.leader_has_ended
    }

    pub(crate) fn leader_ended(&mut self) {
        self.leader_has_ended = true;
    }

    /// This process has waited for a child.
    pub(crate) fn reaped(&mut self, pid: Pid) {
        self.guard = self.guard.filter(|guard| *guard != pid);
        self.leader_has_ended |= self.is_leader(pid);
    }

    /// Sends a signal: to all of the job's group at once, and then to each other process.
    ///
    /// The group is asked for among the living. So nothing is sent to the leader's number when it
    /// may be another's: a number is given to nobody as long as a process has it as its group. (A
    /// process may end between the look and the signal. Its number would have to be given away in
    /// these microseconds, after all other numbers of the system.)
    ///
    /// What fails has ended, or is another user's, and then nothing can be done.
    ///
    /// A run inside of the job passes on what it gets. So it gets it, and nobody below its guard.
    pub(crate) fn signal(&self, number: i32, scope: Scope) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        let Some(mut members) = self.members(scope) else {
            // Who is at the terminal has its signals.
            if scope != Scope::OtherGroups {
                self.signal_unseen(signal);
            }
            return;
        };
        let own = self.leader.filter(|_| self.has_group);
        let is_in_group = |process: &&Process| Some(process.group) == own.map(raw);
        let mut to_group = members.iter().any(|process| is_in_group(&process));
        if ![SIGCONT, SIGKILL, SIGSTOP].contains(&number) {
            let inner = self.below_inner_guards(scope).unwrap_or_default();
            let is_left_out = |process: &Process| inner.contains(&process.name());
            let in_group = members.iter().filter(is_in_group);
            to_group &= !in_group.copied().any(|process| is_left_out(&process));
            members.retain(|process| !is_left_out(process));
        }
        if let Some(group) = own.filter(|_| to_group) {
            let _ = kill_process_group(group, signal);
        }
        for process in &members {
            if !to_group || !is_in_group(&process) {
                let _ = kill_process(process.pid, signal);
            }
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

    /// All that descend from the guard or from this process, a parent before its children, if the
    /// system tells.
    ///
    /// As long as the guard has children, only they and theirs are of the job: who was here before
    /// may go on to leave processes to this one.
    fn descendants(&self) -> Option<Vec<Process>> {
        let all = processes()?;
        let below_guard = self.guard.map(|guard| descendants(&all, guard, &[]));
        let below_guard = below_guard.filter(|found| !found.is_empty());
        Some(below_guard.unwrap_or_else(|| descendants(&all, self.root, &self.spared)))
    }

    /// Those who live, if the system tells.
    fn members(&self, scope: Scope) -> Option<Vec<Process>> {
        let session = self.session?;
        let mut found = self.descendants()?;
        let mut of_job = HashSet::new();
        for process in &found {
            // (A guard has adopted what has left the job of an inner run.)
            let is_waited_for =
                || of_job.contains(&process.parent) && !guard::is_guard(process.parent);
            // (The first process may have left with `setsid`, and is the job all the same.)
            if process.session == session
                || self.is_leader(process.pid)
                || self.kept.contains(&process.name())
                || is_waited_for()
            {
                of_job.insert(raw(process.pid));
            }
        }
        let own_group = own_group();
        found.retain(|process| {
            let is_of_job = of_job.contains(&raw(process.pid));
            let is_meant = match scope {
                Scope::Job => is_of_job,
                Scope::OtherGroups => is_of_job && process.group != own_group,
                Scope::All => true,
            };
            is_meant && Some(process.pid) != self.guard
        });
        Some(found)
    }

    /// The guards of runs inside of the job, and all that they look after. With [`Scope::All`], not
    /// what has left the session: no run passes anything on to it.
    fn below_inner_guards(&self, scope: Scope) -> Option<Vec<Name>> {
        let mut inside = HashSet::new();
        let mut found = self.descendants()?;
        found.retain(|process| {
            let pid = raw(process.pid);
            let is_guard = || Some(process.pid) != self.guard && guard::is_guard(pid);
            let is_inside = inside.contains(&process.parent) || is_guard();
            if is_inside {
                inside.insert(pid);
            }
            is_inside && (scope != Scope::All || Some(process.session) == self.session)
        });
        Some(found.iter().map(Process::name).collect())
    }
}

/// True if this process has no child, so that nobody descends from it.
fn has_no_child() -> bool {
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    waitid(WaitId::All, look).is_err_and(|error| error == Errno::CHILD)
}

#[cfg(target_os = "linux")]
#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

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
