//! The result of a run: the exit code and the messages.

use std::error::Error as _;
use std::ffi::OsStr;
use std::io;

use relatch::{Error, Holder};
use rustix::io::Errno;
use signal_hook::consts::SIGKILL;

use crate::args::{Common, Run};
use crate::exit::{self, Failure, code};
use crate::output::tell;
use crate::run::held::Held;
use crate::run::life::{Ended, Life, NotStarted, Reason};
use crate::run::report::{Outcome, Report};
use crate::run::taking::Back;
use crate::run::wanted::Wanted;
use crate::span;
use crate::whose;

/// Why the lock was not taken.
pub(crate) enum Failed {
    Busy(String),
    Lock(Box<Error>),
    Other(Failure),
    /// A signal ended the wait.
    Interrupted(i32),
}

impl Failed {
    /// The error message, if Redis was unavailable.
    pub(crate) fn outage(&self) -> Option<String> {
        let (code, message) = match self {
            Failed::Lock(error) => (exit::code_of(error), error.to_string()),
            Failed::Other(failure) => (failure.code, failure.message.clone()),
            Failed::Busy(_) | Failed::Interrupted(_) => return None,
        };
        (code == code::UNAVAILABLE).then_some(message)
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Failed {
        Failed::Lock(Box::new(error))
    }
}

impl From<Failure> for Failed {
    fn from(failure: Failure) -> Failed {
        Failed::Other(failure)
    }
}

/// The outcome if the lock was not taken.
pub(crate) fn not_taken(
    common: &Common,
    options: &Run,
    wanted: &Wanted,
    failed: Failed,
    report: &mut Report,
) -> (Outcome, u8) {
    let failure = match failed {
        Failed::Busy(message) => return busy(common, options, message, "", report),
        Failed::Interrupted(number) => return interrupted(number, report),
        Failed::Other(failure) => failure,
        Failed::Lock(error) => {
            let message = error.to_string();
            let code = exit::code_of(&error);
            match *error {
                Error::Timeout {
                    key,
                    holder,
                    waited,
                    source: None,
                    ..
                } => {
                    let (message, advice) = if options.nonblock {
                        let advice = ". To wait, use --wait instead of -n; to treat a busy lock as success, add -x";
                        (is_busy(wanted, &key, "", holder.as_deref()), advice)
                    } else {
                        let advice = ": to wait longer, raise --wait; to treat a busy lock as success, add -x";
                        let after = format!(" after {}", span::show(waited));
                        (is_busy(wanted, &key, &after, holder.as_deref()), advice)
                    };
                    report.holder = holder.map(|holder| *holder);
                    return busy(common, options, message, advice, report);
                }
                _ => Failure::new(code, message),
            }
        }
    };
    tell(&failure.message);
    report.cause = Some(failure.message);
    let outcome = match failure.code {
        code::UNAVAILABLE => Outcome::Unavailable,
        code::REFUSED => Outcome::Refused,
        code::LOST => Outcome::Lost,
        _ => Outcome::NotStarted,
    };
    (outcome, failure.code)
}

/// The outcome if somebody else holds the lock.
fn busy(
    common: &Common,
    options: &Run,
    message: String,
    advice: &str,
    report: &mut Report,
) -> (Outcome, u8) {
    if !common.quiet && !options.busy_ok {
        tell(&format!("{message}{advice}"));
    }
    report.cause = Some(message);
    let code = match (options.conflict_exit_code, options.busy_ok) {
        (Some(code), _) => code,
        (None, true) => code::OK,
        (None, false) => code::BUSY,
    };
    (Outcome::Busy, code)
}

/// The message about a lock that somebody else holds.
fn is_busy(wanted: &Wanted, key: &str, after: &str, holder: Option<&Holder>) -> String {
    let has_it = holder.map_or_else(String::new, |holder| {
        format!(": {} {}", whose::shown(holder), wanted.has_it())
    });
    format!("{} is busy{after}{has_it}", wanted.shown(key))
}

/// The outcome if a signal has ended the wait.
fn interrupted(number: i32, report: &mut Report) -> (Outcome, u8) {
    report.ended = Some(Ended::Signal(number));
    (Outcome::Interrupted, exit::of_signal(number))
}

/// Releases the locks. Fails if one was lost. Otherwise returns the reason if the release may not
/// have reached Redis.
fn give_back(life: &Life, held: Held) -> Result<Option<String>, Error> {
    // A job that never ran keeps nothing: another machine may have the command that is missing
    // here.
    let back = if life.not_started().is_some() {
        Back::Unused
    } else {
        Back::Kept
    };
    match held.give_back(back) {
        None => {
            let why = "the release took too long: the lock ends with its lease";
            tell(why);
            Ok(Some(why.to_owned()))
        }
        Some(Err(error)) if !error.is_lost() => {
            // The job was protected; the key expires with its lease.
            let source = error.source().map(ToString::to_string);
            let why = source.iter().map(|why| format!(" ({why})"));
            tell(&format!("{error}{}", why.collect::<String>()));
            Ok(source)
        }
        Some(given_back) => given_back.map(|()| None),
    }
}

/// Releases the locks, and returns the exit code.
pub(crate) fn over(
    life: &Life,
    held: Held,
    options: &Run,
    wanted: &Wanted,
    report: &mut Report,
) -> (Outcome, u8) {
    report.ended = life.ended();
    report.held = held.at().held_for;
    let cause = held.lost_cause();
    let given_back = give_back(life, held);
    let is_lost = life.is_lost() || given_back.is_err();
    let cause = cause.or(match &given_back {
        Err(Error::Lost { cause, .. }) => Some(cause.to_string()),
        _ => None,
    });
    match life.not_started() {
        Some(NotStarted::Failed(number)) => {
            return not_started(&wanted.command[0], number, report);
        }
        Some(NotStarted::Interrupted(number)) => return interrupted(number, report),
        Some(NotStarted::Guard(number)) => {
            let message =
                format!("the job was not started: its guard process exited with {number} first");
            tell(&message);
            report.cause = Some(message);
            return (Outcome::NotStarted, code::SOFTWARE);
        }
        Some(NotStarted::Late) | None => {}
    }
    let why = match (life.reason(), life.not_started()) {
        (Some(Reason::AtRisk), _) => {
            Some("no renewal succeeded; the job was terminated before the lease ended")
        }
        (_, Some(_)) => Some("too little of the lease was left to start the job"),
        _ if is_lost => Some("the lease ran out"),
        _ => None,
    };
    if let Some(why) = why {
        let lock = wanted.shown(&report.keys.join(", "));
        let doubt = given_back.ok().flatten();
        let doubt = doubt.map_or_else(String::new, |doubt| format!(" ({doubt})"));
        let cause = cause.unwrap_or_else(|| format!("{why}{doubt}"));
        tell(&format!("{lock} was lost while the job ran: {cause}"));
        report.cause = Some(cause);
        return (Outcome::Lost, code::LOST);
    }
    if options.verbose {
        let held = span::show(report.held);
        tell(&format!("the lock was held for {held}"));
    }
    if life.reason() == Some(Reason::TooLong) {
        tell("the job was terminated: it ran longer than --max-hold");
        return (Outcome::MaxHold, code::MAX_HOLD);
    }
    (Outcome::Ended, code_of_job(life, report))
}

/// The exit code of a job that ended by itself, or because its guard did.
fn code_of_job(life: &Life, report: &mut Report) -> u8 {
    if life.reason().is_some() || life.ended().is_none() {
        let cause = "its guard process was killed";
        tell(&format!("the job was terminated: {cause}"));
        report.cause = Some(cause.to_owned());
    }
    match life.ended() {
        Some(Ended::Code(code)) => u8::try_from(code).unwrap_or(code::SOFTWARE),
        Some(Ended::Signal(number)) => exit::of_signal(number),
        // The guard was killed before it could report how the job ended, and then the job was
        // killed.
        None => exit::of_signal(SIGKILL),
    }
}

/// The outcome if the system could not start the job.
fn not_started(command: &OsStr, number: i32, report: &mut Report) -> (Outcome, u8) {
    let error = io::Error::from_raw_os_error(number);
    let message = format!("{}: {error}", command.display());
    tell(&message);
    report.cause = Some(message);
    let code = match Errno::from_raw_os_error(number) {
        Errno::NOENT => code::NOT_FOUND,
        // At another time, the system might start it.
        Errno::AGAIN | Errno::NOMEM | Errno::MFILE | Errno::NFILE => code::SOFTWARE,
        _ => code::NOT_EXECUTABLE,
    };
    (Outcome::NotStarted, code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_cannot_start_it_now_does_not_say_that_nobody_can() {
        for (error, code) in [
            (Errno::NOENT, 127),
            (Errno::ACCESS, 126),
            (Errno::NOEXEC, 126),
            (Errno::AGAIN, 70),
            (Errno::NOMEM, 70),
        ] {
            let number = error.raw_os_error();
            let (_, seen) = not_started("job".as_ref(), number, &mut Report::default());
            assert_eq!(seen, code, "{error}");
        }
    }
}
