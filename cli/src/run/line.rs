//! What the wrapper and its guard process say to each other: words of a fixed length, over a
//! socket. Neither ever waits for the other: if the socket does not take a word, that is an error.

use std::io::{self, ErrorKind, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{SendFlags, send};
use rustix::process::Pid;

use crate::run::life::Ended;
use crate::run::process::Name;

/// The lock is valid until this time on the machine's clock. If no later time arrives, the job is
/// killed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Until(pub(crate) Duration);

/// From the wrapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ToGuard {
    Until(Until),
    /// This process remains part of the job.
    Keep(Name),
}

/// From the guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FromGuard {
    Started(Pid),
    /// The system could not start the job; this is the error.
    Failed(i32),
    /// The lock was no longer valid when the job was about to start.
    Late,
    Ended(Ended),
    /// The guard has received this signal too.
    Got(i32),
}

impl Until {
    pub(crate) fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl ToGuard {
    pub(crate) const LENGTH: usize = 12;

    pub(crate) fn word(self) -> [u8; ToGuard::LENGTH] {
        let (pid, number) = match self {
            ToGuard::Until(until) => (0, until.millis()),
            ToGuard::Keep((pid, since)) => (pid.as_raw_nonzero().get(), since),
        };
        let mut word = [0; ToGuard::LENGTH];
        word[..4].copy_from_slice(&pid.to_ne_bytes());
        word[4..].copy_from_slice(&number.to_ne_bytes());
        word
    }

    pub(crate) fn read([a, b, c, d, number @ ..]: [u8; ToGuard::LENGTH]) -> ToGuard {
        let number = u64::from_ne_bytes(number);
        match Pid::from_raw(i32::from_ne_bytes([a, b, c, d])) {
            None => ToGuard::Until(Until(Duration::from_millis(number))),
            Some(pid) => ToGuard::Keep((pid, number)),
        }
    }
}

impl FromGuard {
    pub(crate) const LENGTH: usize = 5;

    pub(crate) fn word(self) -> [u8; FromGuard::LENGTH] {
        let (kind, number) = match self {
            FromGuard::Started(pid) => (b's', pid.as_raw_nonzero().get()),
            FromGuard::Failed(number) => (b'f', number),
            FromGuard::Late => (b'l', 0),
            FromGuard::Ended(Ended::Code(code)) => (b'c', code),
            FromGuard::Ended(Ended::Signal(number)) => (b'k', number),
            FromGuard::Got(number) => (b'g', number),
        };
        let [a, b, c, d] = number.to_ne_bytes();
        [kind, a, b, c, d]
    }

    pub(crate) fn read([kind, number @ ..]: [u8; FromGuard::LENGTH]) -> Option<FromGuard> {
        let number = i32::from_ne_bytes(number);
        match kind {
            b's' => Pid::from_raw(number).map(FromGuard::Started),
            b'f' => Some(FromGuard::Failed(number)),
            b'l' => Some(FromGuard::Late),
            b'c' => Some(FromGuard::Ended(Ended::Code(number))),
            b'k' => Some(FromGuard::Ended(Ended::Signal(number))),
            b'g' => Some(FromGuard::Got(number)),
            _ => None,
        }
    }
}

/// Says a word, at once or not at all.
pub(crate) fn say(socket: &UnixStream, word: &[u8]) -> io::Result<()> {
    // (If the other process has ended, that is an error too: this program ignores `SIGPIPE`.)
    if send(socket, word, SendFlags::DONTWAIT)? == word.len() {
        Ok(())
    } else {
        Err(ErrorKind::WouldBlock.into())
    }
}

/// Waits for the next word. `None` if the other process has ended.
pub(crate) fn hear<const LENGTH: usize>(mut socket: &UnixStream) -> Option<[u8; LENGTH]> {
    let mut word = [0; LENGTH];
    socket.read_exact(&mut word).ok()?;
    Some(word)
}

/// The time on a clock that all processes on this machine share. Where possible, the clock keeps
/// running while the machine is suspended.
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
        for said in [
            ToGuard::Until(Until(Duration::from_millis(7))),
            ToGuard::Keep((rustix::process::getpid(), 1 << 40)),
        ] {
            assert_eq!(ToGuard::read(said.word()), said);
        }
        for said in [
            FromGuard::Started(rustix::process::getpid()),
            FromGuard::Failed(2),
            FromGuard::Late,
            FromGuard::Ended(Ended::Code(255)),
            FromGuard::Ended(Ended::Signal(9)),
            FromGuard::Got(15),
        ] {
            assert_eq!(FromGuard::read(said.word()), Some(said));
        }
        assert_eq!(FromGuard::read(*b"s\0\0\0\0"), None);
    }

    #[test]
    fn nobody_waits_for_one_who_does_not_listen() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let said = (0..1_000_000).find(|_| say(&ours, b"12345678").is_err());
        assert!(said.is_some(), "the socket is full");
        drop(theirs);
        assert!(say(&ours, b"12345678").is_err());
    }
}
