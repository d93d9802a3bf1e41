//! The exit codes, and the code for each error.

use relatch::Error;
use rustix::process::{Pid, Resource, Rlimit, getpid, setrlimit};

use crate::connect;

/// The exit codes. (`docs/command.md` has the table.)
pub(crate) mod code {
    pub(crate) const OK: u8 = 0;
    /// `holder`: the lock is free. `force-unlock`: nothing was deleted.
    pub(crate) const NOTHING: u8 = 1;
    pub(crate) const USAGE: u8 = 64;
    pub(crate) const UNAVAILABLE: u8 = 69;
    pub(crate) const SOFTWARE: u8 = 70;
    pub(crate) const BUSY: u8 = 75;
    pub(crate) const LOST: u8 = 76;
    pub(crate) const REFUSED: u8 = 77;
    pub(crate) const CONFIG: u8 = 78;
    pub(crate) const MAX_HOLD: u8 = 124;
    pub(crate) const NOT_EXECUTABLE: u8 = 126;
    pub(crate) const NOT_FOUND: u8 = 127;
    /// A signal's number is added to this.
    pub(crate) const SIGNAL: u8 = 128;
}

/// Why a command fails: the exit code, and the line for standard error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Into<String>) -> Failure {
        Failure {
            code,
            message: message.into(),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let message = connect::with_hint(error.to_string());
        Failure::new(code_of(&error), message)
    }
}

/// The code for a failed operation. (`run` handles a busy lock itself.)
pub(crate) fn code_of(error: &Error) -> u8 {
    match error {
        // After a timeout with a source and without a holder, nobody knows whether the lock was
        // busy.
        Error::Timeout { holder, source, .. } if holder.is_some() || source.is_none() => code::BUSY,
        Error::Lost { .. } | Error::OuterLost { .. } => code::LOST,
        Error::Timeout { .. } | Error::Unavailable { .. } | Error::Unconfirmed { .. } => {
            code::UNAVAILABLE
        }
        Error::Refused { .. } | Error::Tls { .. } => code::REFUSED,
        Error::InvalidKey { .. } => code::USAGE,
        Error::InvalidOption { .. } | Error::NotALock { .. } | Error::NoFence { .. } => {
            code::CONFIG
        }
        _ => code::SOFTWARE,
    }
}

/// Ends this process with the signal that ended its job. So a shell that got Ctrl-C does not run
/// its next line, and systemd sees that a service ended by `SIGTERM` was stopped. Returns if the
/// signal does not end this process; then the exit code has to tell.
pub(crate) fn by_signal(number: i32) {
    // The job has already dumped core. (With zero, a program that receives core dumps through a
    // pipe would still get this one.)
    let no_image = || {
        [1, 0].into_iter().map(Some).any(|most| {
            let limit = Rlimit {
                current: most,
                maximum: most,
            };
            setrlimit(Resource::Core, limit).is_ok()
        })
    };
    // The kernel does not kill the first process of a container this way.
    if getpid() != Pid::INIT && no_image() {
        let _ = signal_hook::low_level::emulate_default_handler(number);
    }
}

/// The code that shells report for a process that a signal has ended.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(number)
        .ok()
        .and_then(|number| code::SIGNAL.checked_add(number))
        .unwrap_or(code::SOFTWARE)
}
