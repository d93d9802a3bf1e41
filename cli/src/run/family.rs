//! The processes of a job: those that descend from one process, on Linux.
//!
//! A process cannot leave its family: the root is a child subreaper, which adopts each orphan of
//! the family. A process can leave the session (`setsid`). Once its parent has ended by itself,
//! such a process is a daemon, and no longer part of the job. So there are two [scopes](Scope).
//!
//! Other systems do not show which process descends from which, so there the job is its process
//! group. The same holds where `/proc` belongs to a different container.

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

/// How long to wait before the next look at a family. The pause grows, since a look reads all of
/// `/proc`. The first pause is long enough that usually no look is needed: by then, the last child
/// has been waited for.
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

/// Which processes of a family are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The job: the processes in the session in which it was started, and their descendants in
    /// other sessions whose parents still live.
    Job,
    /// The processes of the job that are not in this process's group.
    OtherGroups,
    /// The whole family, including daemons in other sessions.
    All,
}

#[derive(Debug)]
pub(crate) struct Family {
    root: Pid,
    /// Zero if the session began outside this process's container. `None` if the system does not
    /// show which process descends from which.
    session: Option<i32>,
    /// Processes that descend from the root, but are not part of the job. The number of a process
    /// that has ended is eventually reused, so a name includes the start time.
    spared: Vec<Name>,
    /// Processes in other sessions that stay part of the job, even when a signal has ended their
    /// parents.
    kept: HashSet<Name>,
    /// The job descends from the guard, which is not part of it. `None` once the guard was waited
    /// for: its number may be reused from then on.
    guard: Option<Pid>,
    /// The first process of the job.
    leader: Option<Pid>,
    /// The leader has ended, and was waited for.
    leader_has_ended: bool,
    /// The leader's number is also that of a process group, which belongs to the job as a whole.
    has_group: bool,
}

impl Family {
    /// The family of this process. Its present members are not part of the job: a shell may have
    /// had children before it replaced itself with this program.
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

    /// The processes that are part of the job only as long as their parents live.
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

    /// Called after this process has waited for a child.
    pub(crate) fn reaped(&mut self, pid: Pid) {
        self.guard = self.guard.filter(|guard| *guard != pid);
        self.leader_has_ended |= self.is_leader(pid);
    }

    /// Sends a signal to the job's whole process group at once, and then to each process outside
    /// it.
    ///
    /// The group is signaled only if a living process is in it. So nothing is sent to the leader's
    /// number when it may have been reused: the system does not reuse a number while it names a
    /// group. (A process may end between the look and the signal. For its number to be reused in
    /// these microseconds, the system would have to go through all other numbers first.)
    ///
    /// If a signal cannot be sent, the process has ended or belongs to another user. Nothing can be
    /// done about either.
    ///
    /// A run inside the job passes on the signals that it gets. So that run gets the signal, and
    /// the processes below its guard do not.
    pub(crate) fn signal(&self, number: i32, scope: Scope) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        let Some(mut members) = self.members(scope) else {
            // The terminal has already signaled its foreground group.
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

    /// Sends a signal where processes cannot be listed, or not at the moment.
    fn signal_unseen(&self, signal: Signal) {
        let _ = match self.leader {
            Some(group) if self.has_group => kill_process_group(group, signal),
            Some(leader) if !self.leader_has_ended => kill_process(leader, signal),
            _ => return,
        };
    }

    /// True if no process is left. Call this only after the leader or the guard has ended.
    ///
    /// A look at `/proc` is not a snapshot: processes start and end while it is read. As long as
    /// process numbers grow, a child is read after its parent, so none is missed. But at some point
    /// the numbers wrap around to 300. Then a child may be read before its parent, and if the
    /// parent ends in between, the child seems to belong to nobody. So this looks twice, and the
    /// same thing would have to happen twice in a row. The lock would then be released while that
    /// child still lives. (If this process has no children, there is no doubt, and nobody calls
    /// this.)
    ///
    /// If a look fails, the family does not count as empty.
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

    /// All descendants of the guard or of this process, each parent before its children. `None` if
    /// the system does not show them.
    ///
    /// As long as the guard has descendants, only these are part of the job: earlier children of
    /// this process may still leave orphans to it.
    fn descendants(&self) -> Option<Vec<Process>> {
        let all = processes()?;
        let below_guard = self.guard.map(|guard| descendants(&all, guard, &[]));
        let below_guard = below_guard.filter(|found| !found.is_empty());
        Some(below_guard.unwrap_or_else(|| descendants(&all, self.root, &self.spared)))
    }

    /// The living members. `None` if the system does not show them.
    fn members(&self, scope: Scope) -> Option<Vec<Process>> {
        let session = self.session?;
        let mut found = self.descendants()?;
        let mut of_job = HashSet::new();
        for process in &found {
            // (A child of an inner run's guard may be a daemon that left that run's job.)
            let is_waited_for =
                || of_job.contains(&process.parent) && !guard::is_guard(process.parent);
            // (The first process is part of the job even if it has called `setsid`.)
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

    /// The guards of runs inside the job, and all their descendants. With [`Scope::All`], this
    /// excludes anything that has left the session, since no inner run passes signals on to it.
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

/// True if this process has no children, and so no descendants.
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
        // (Other tests' children may be there too.)
        assert!(has(&of_others, &other) && !has(&of_others, &later));
    }
}
