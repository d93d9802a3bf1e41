//! The processes of the system, as `/proc` shows them.

#[cfg(target_os = "linux")]
use rustix::io::Errno;
use rustix::process::{Pid, getpgrp, getpid};

/// The number of this process's session. Zero if the session began outside this process's
/// container. `None` if the system does not show it.
pub(crate) fn own_session() -> Option<i32> {
    this_process().map(|process| process.session)
}

/// Whether a process is an ancestor of this one in a different session: a service manager, which
/// may have sent the same signal to the whole service.
pub(crate) fn is_manager(pid: i32) -> bool {
    let Some(own) = this_process() else {
        return false;
    };
    let mut next = own.parent;
    while next > 0 {
        let Some(process) = look_at(next) else {
            return false;
        };
        if next == pid {
            return process.session != own.session;
        }
        next = process.parent;
    }
    false
}

/// The number of this process's group. Zero if the group began outside this process's container.
pub(crate) fn own_group() -> i32 {
    this_process().map_or_else(|| raw(getpgrp()), |process| process.group)
}

/// This process, as `/proc` shows it. `None` also if `/proc` belongs to a different container,
/// whose process numbers are not the ones that our signals use.
#[cfg(target_os = "linux")]
fn this_process() -> Option<Process> {
    let pid = raw(getpid());
    let shown = std::fs::read_link("/proc/self").ok()?;
    if shown.to_str()?.parse() != Ok(pid) {
        return None;
    }
    Process::read(pid, &std::fs::read("/proc/self/stat").ok()?)
}

#[cfg(target_os = "linux")]
fn look_at(pid: i32) -> Option<Process> {
    Process::read(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

#[cfg(not(target_os = "linux"))]
fn this_process() -> Option<Process> {
    None
}

#[cfg(not(target_os = "linux"))]
fn look_at(_pid: i32) -> Option<Process> {
    None
}

pub(crate) fn raw(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

/// The number of a process and its start time, since the number may be reused.
pub(crate) type Name = (Pid, u64);

/// A process of the system that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// The start time, in the system's ticks.
    since: u64,
}

impl Process {
    pub(crate) fn name(&self) -> Name {
        (self.pid, self.since)
    }

    /// Reads `/proc/N/stat`: `N (name) state parent group session ...`. The name may contain any
    /// character. `None` if the process has ended.
    #[cfg(target_os = "linux")]
    fn read(pid: i32, stat: &[u8]) -> Option<Process> {
        let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
        let rest = str::from_utf8(&stat[name_ends + 1..]).ok()?;
        let fields: Vec<_> = rest.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
        let threads = number(17)?;
        // A zombie with other living threads has not ended: `main` called `pthread_exit`.
        if matches!(*fields.first()?, "Z" | "X") && threads <= 1 {
            return None;
        }
        Some(Process {
            pid: Pid::from_raw(pid)?,
            parent: number(1)?,
            group: number(2)?,
            session: number(3)?,
            since: fields.get(19)?.parse().ok()?,
        })
    }
}

/// All visible processes. `None` if the system does not show them, or is short of memory or file
/// descriptors at the moment: a process left out could be part of the job.
#[cfg(target_os = "linux")]
pub(crate) fn processes() -> Option<Vec<Process>> {
    // The process has ended, or is hidden from us.
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
pub(crate) fn processes() -> Option<Vec<Process>> {
    None
}

/// The descendants of one process, except those that descend through a spared one.
pub(crate) fn descendants(all: &[Process], root: Pid, spared: &[Name]) -> Vec<Process> {
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
}
