//! The processes of a job: its process group and, on Linux, all that descend from it.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group, test_kill_process_group};

/// How soon the end of a group is noticed.
pub(crate) const POLL: Duration = Duration::from_millis(20);

/// A job's processes, by the number of the first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    pub(crate) leader: Pid,
    /// The group of the process that called this one, if the job is in it. It is not alone there.
    pub(crate) shared: Option<Pid>,
}

impl Group {
    /// Sends a signal to each process of the group. If others are in the group, only to the first
    /// process.
    pub(crate) fn signal(self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else {
            return;
        };
        // What fails here has ended already.
        let _ = if self.shared.is_some() {
            kill_process(self.leader, signal)
        } else {
            kill_process_group(self.leader, signal)
        };
    }

    /// Kills the group, and what descends from `root` on Linux, but not `spared`. New processes may
    /// come up meanwhile: the caller repeats this until the group is empty.
    pub(crate) fn kill(self, root: Pid, spared: Option<Pid>) {
        self.signal(signal_hook::consts::SIGKILL);
        Group::kill_descendants(root, spared);
    }

    /// Kills what descends from `root` on Linux, but not `spared`. True if there was something.
    pub(crate) fn kill_descendants(root: Pid, spared: Option<Pid>) -> bool {
        let mut is_any = false;
        for process in descendants(root) {
            if let Some(pid) = Pid::from_raw(process.pid)
                && Some(pid) != spared
            {
                is_any = true;
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        is_any
    }

    /// True if no process of the group is left. The first process has been waited for.
    ///
    /// Its number is not given to another process while the group has a member. After that, it is
    /// given away after thousands of others only, and nobody asks again.
    pub(crate) fn is_empty(self, root: Pid) -> bool {
        match self.shared {
            Some(group) => descendants(root)
                .iter()
                .all(|process| process.group != group.as_raw_nonzero().get()),
            None => test_kill_process_group(self.leader).is_err(),
        }
    }
}

/// A process of the system that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: i32,
    parent: i32,
    group: i32,
}

/// The processes that descend from one, as far as the system tells.
#[cfg(target_os = "linux")]
fn descendants(root: Pid) -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let stats = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Process::read(pid, &std::fs::read(entry.path().join("stat")).ok()?)
    });
    let all: Vec<_> = stats.collect();
    let mut family: Vec<Process> = Vec::new();
    let mut parents = vec![root.as_raw_nonzero().get()];
    while let Some(parent) = parents.pop() {
        let children = all.iter().filter(|process| process.parent == parent);
        parents.extend(children.clone().map(|process| process.pid));
        family.extend(children);
    }
    family
}

#[cfg(not(target_os = "linux"))]
fn descendants(_root: Pid) -> Vec<Process> {
    Vec::new()
}

#[cfg(target_os = "linux")]
impl Process {
    /// Reads a line of `/proc/N/stat`: `N (name) state parent group ...`. The name may have
    /// anything in it. `None` if the process has ended.
    fn read(pid: i32, stat: &[u8]) -> Option<Process> {
        let name_ends = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = str::from_utf8(&stat[name_ends + 1..])
            .ok()?
            .split_whitespace();
        let state = fields.next()?;
        let parent = fields.next()?.parse().ok()?;
        let group = fields.next()?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Process { pid, parent, group })
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn a_parent_is_found_behind_any_name() {
        let read = Process::read(7, b"7 (a) b) S) S 3 5 1");
        assert_eq!(
            read,
            Some(Process {
                pid: 7,
                parent: 3,
                group: 5
            })
        );
        assert_eq!(Process::read(7, b"7 (\xff) Z 3 1 1"), None);
        assert_eq!(Process::read(7, b""), None);
    }

    #[test]
    fn a_child_descends_from_us() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let found = descendants(rustix::process::getpid());
        child.kill().unwrap();
        child.wait().unwrap();
        let id = i32::try_from(child.id()).unwrap();
        assert!(found.iter().any(|process| process.pid == id));
    }
}
