//! Starts a process that inherits everything that this one was given: ignored signals, the signal
//! mask, limits.
//!
//! `std::process::Command` clears the mask, and restores the default action of `SIGPIPE`. Rust's
//! runtime ignores `SIGPIPE` before `main`.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use nix::spawn::{PosixSpawnAttr, PosixSpawnFileActions, PosixSpawnFlags, posix_spawnp};
use nix::sys::signal::{SigSet, Signal};
use rustix::process::Pid;
use signal_hook::consts::SIGPIPE;

use crate::run::signals;

/// This process's environment, for the new process.
pub(crate) fn environment() -> BTreeMap<OsString, OsString> {
    std::env::vars_os().collect()
}

/// Starts a program in a process group; zero means a new one. Signals that this process handles
/// have their default action in the new process.
pub(crate) fn spawn(
    program: &OsStr,
    arguments: &[&OsStr],
    environment: &BTreeMap<OsString, OsString>,
    stdin: impl AsFd,
    group: i32,
) -> io::Result<Pid> {
    let mut attributes = PosixSpawnAttr::init()?;
    attributes.set_flags(
        PosixSpawnFlags::POSIX_SPAWN_SETPGROUP | PosixSpawnFlags::POSIX_SPAWN_SETSIGDEF,
    )?;
    attributes.set_pgroup(nix::unistd::Pid::from_raw(group))?;
    let mut default = SigSet::empty();
    if !signals::is_ignored(SIGPIPE) {
        default.add(Signal::SIGPIPE);
    }
    attributes.set_sigdefault(&default)?;
    let mut actions = PosixSpawnFileActions::init()?;
    actions.add_dup2(stdin.as_fd().as_raw_fd(), 0)?;
    let arguments = arguments
        .iter()
        .map(|argument| CString::new(argument.as_bytes()))
        .collect::<Result<Vec<_>, _>>()?;
    let variables = environment.iter().map(|(name, value)| {
        let variable = [name.as_bytes(), b"=", value.as_bytes()].concat();
        CString::new(variable)
    });
    let variables = variables.collect::<Result<Vec<_>, _>>()?;
    let program = CString::new(program.to_owned().into_vec())?;
    let pid = posix_spawnp(&program, &actions, &attributes, &arguments, &variables)?;
    Pid::from_raw(pid.as_raw()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}
