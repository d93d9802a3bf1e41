//! The processes of the system, as `/proc` shows them.

#[cfg(target_os = "linux")]
use rustix::io::Errno;
use rustix::process::{Pid, getpgrp, getpid};

/// The number of this process's session. Zero, if it began outside of this process's container.
/// `None`: the system does not tell.
pub(crate) fn own_session() -> Option<i32> {
    this_process().map(|process| process.session)
}

/// Whether a process has started this one, or one that has, from another session: a service
/// manager, which may have sent the same signal to all of the service.
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

/// The number of this process's group. Zero, if it began outside of this process's container.
pub(crate) fn own_group() -> i32 {
    this_process().map_or_else(|| raw(getpgrp()), |process| process.group)
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

/// The number of a process and the time of its start: another process may have the number one day.
pub(crate) type Name = (Pid, u64);

/// A process of the system that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: i32,
    pub(crate) group: i32,
    pub(crate) session: i32,
    /// The time of its start, in ticks of the system.
    since: u64,
}

impl Process {
    pub(crate) fn name(&self) -> Name {
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
            since: fields.get(19)?.parse().ok()?,
        })
    }
}

/// All processes that can be seen. `None` if the system does not tell, or is short of memory or of
/// files just now: one that is left out could be one of the job.
#[cfg(target_os = "linux")]
pub(crate) fn processes() -> Option<Vec<Process>> {
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
pub(crate) fn processes() -> Option<Vec<Process>> {
    None
}

/// Those that descend from one, and not by one that is spared.
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
