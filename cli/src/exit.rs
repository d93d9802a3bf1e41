//! The exit codes, and which of them an error has.

use relatch::Error;
use rustix::process::{Pid, Resource, Rlimit, getpid, setrlimit};

use crate::connect;

/// All that can be said with an exit code. (`docs/command.md` has the table.)
pub(crate) mod code {
    pub(crate) const OK: u8 = 0;
    /// `holder`: it is free. `force-unlock`: nothing was deleted.
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

/// Why a command ends: the code, and the line for the standard error.
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

/// The code for a failed operation. (`run` has its own for a busy lock.)
pub(crate) fn code_of(error: &Error) -> u8 {
    match error {
        // Of a timeout with a source and without a holder, nobody knows whether it was busy.
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

/// Ends this process by a signal, as a job did that it ran. So a shell that got Ctrl-C does not go
/// on with its next line, and systemd takes a service that ended by `SIGTERM` for one that was
/// stopped. Returns if the signal ends no process, or not this one, and the code has to say it.
pub(crate) fn by_signal(number: i32) {
    // The job has left its image already.
    // (With zero, a program that takes images by a pipe would get this one.)
    let no_image = || {
        [1, 0].into_iter().map(Some).any(|most| {
            let limit = Rlimit {
                current: most,
                maximum: most,
            };
            setrlimit(Resource::Core, limit).is_ok()
        })
    };
    // The kernel spares the first process of a container.
    if getpid() != Pid::INIT && no_image() {
        let _ = signal_hook::low_level::emulate_default_handler(number);
    }
}

/// The code of a process that a signal has ended, as shells have it.
pub(crate) fn of_signal(number: i32) -> u8 {
    u8::try_from(number)
        .ok()
        .and_then(|number| code::SIGNAL.checked_add(number))
        .unwrap_or(code::SOFTWARE)
}
