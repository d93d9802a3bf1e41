//! What the wrapper and its guard process say to each other: lines over a socket.

use std::time::Duration;

use rustix::process::Pid;

use crate::run::life::Ended;

/// From the wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToGuard {
    /// The lock is good until this time of the machine's clock. If no later time comes, the job is
    /// killed then.
    Until(Duration),
    /// The job is done: nothing is left to guard.
    Done,
}

/// From the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromGuard {
    Started(Pid),
    /// The system could not start the job, with this error.
    Failed(i32),
    Ended(Ended),
    /// No process of the group is left.
    Empty,
}

impl ToGuard {
    pub(crate) fn line(self) -> String {
        match self {
            ToGuard::Until(time) => format!("until {}\n", time.as_millis()),
            ToGuard::Done => "done\n".to_owned(),
        }
    }

    pub(crate) fn read(line: &str) -> Option<ToGuard> {
        match line.split_once(' ') {
            Some(("until", millis)) => {
                let millis = millis.parse().ok()?;
                Some(ToGuard::Until(Duration::from_millis(millis)))
            }
            None if line == "done" => Some(ToGuard::Done),
            _ => None,
        }
    }
}

impl FromGuard {
    pub(crate) fn line(self) -> String {
        match self {
            FromGuard::Started(pid) => format!("started {}\n", pid.as_raw_nonzero()),
            FromGuard::Failed(number) => format!("failed {number}\n"),
            FromGuard::Ended(Ended::Code(code)) => format!("code {code}\n"),
            FromGuard::Ended(Ended::Signal(number)) => format!("signal {number}\n"),
            FromGuard::Empty => "empty 0\n".to_owned(),
        }
    }

    pub(crate) fn read(line: &str) -> Option<FromGuard> {
        let (word, number) = line.split_once(' ')?;
        let number = number.parse().ok()?;
        match word {
            "started" => Pid::from_raw(number).map(FromGuard::Started),
            "failed" => Some(FromGuard::Failed(number)),
            "code" => Some(FromGuard::Ended(Ended::Code(number))),
            "signal" => Some(FromGuard::Ended(Ended::Signal(number))),
            "empty" => Some(FromGuard::Empty),
            _ => None,
        }
    }
}

/// The time on a clock that all processes of this machine share, and that counts while the machine
/// is suspended, where there is one.
pub(crate) fn now() -> Duration {
    #[cfg(target_os = "linux")]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let clock = rustix::time::ClockId::Monotonic;
    Duration::try_from(rustix::time::clock_gettime(clock)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_says_the_other_understands() {
        for said in [ToGuard::Until(Duration::from_millis(7)), ToGuard::Done] {
            assert_eq!(ToGuard::read(said.line().trim_end()), Some(said));
        }
        for said in [
            FromGuard::Started(rustix::process::getpid()),
            FromGuard::Failed(2),
            FromGuard::Ended(Ended::Code(255)),
            FromGuard::Ended(Ended::Signal(9)),
            FromGuard::Empty,
        ] {
            assert_eq!(FromGuard::read(said.line().trim_end()), Some(said));
        }
        assert_eq!(
            (ToGuard::read("until"), FromGuard::read("started 0")),
            (None, None)
        );
    }
}
