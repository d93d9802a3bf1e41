//! The locks that are written in Rust, each behind the same call.

mod by_hand;
mod floor;
mod redlock;
mod relatch;
mod rlock;

use std::time::Duration;

use anyhow::{Result, bail};
use serde::Serialize;

use crate::peer::Peer;

/// The server's time for this script is part of the figures, so all locks that are given a script
/// get this one.
const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Something that can be locked, shared by the threads of a worker.
pub(crate) trait Lock: Send + Sync {
    /// Takes the lock, calls `inside`, releases the lock. Returns how often the lock gave up after
    /// its last retry, and was tried again.
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64>;

    /// Takes the lock. `None` if it is still busy after `wait`.
    fn take(&self, _key: &str, _wait: Duration) -> Result<Option<Box<dyn Held + '_>>> {
        bail!("this is no lock")
    }
}

/// A lock that is held.
pub(crate) trait Held {
    /// Whether it is still held, as the lock says; `None` if it cannot say.
    fn still(&self) -> Option<bool> {
        None
    }

    /// Releases the lock, and returns what it says of that.
    fn release(self: Box<Self>) -> Said;
}

/// What a lock says of a release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Said {
    /// It was released.
    Ok,
    /// It was lost before.
    Lost,
    /// An error that is neither.
    Unknown,
    /// The lock returns nothing.
    Nothing,
}

impl Said {
    /// The word of the protocol.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Said::Ok => "ok",
            Said::Lost => "lost",
            Said::Unknown => "unknown",
            Said::Nothing => "nothing",
        }
    }

    pub(crate) fn read(word: &str) -> Option<Said> {
        let all = [Said::Ok, Said::Lost, Said::Unknown, Said::Nothing];
        all.into_iter().find(|it| it.word() == word)
    }
}

/// Connects the peer, whose leases last for so many milliseconds.
pub(crate) fn open(peer: Peer, url: &str, lease: u32) -> Result<Box<dyn Lock>> {
    Ok(match peer {
        Peer::Ping => Box::new(floor::Ping::open(url)?),
        Peer::Floor => Box::new(floor::Floor::open(url, lease)?),
        Peer::Relatch => Box::new(relatch::Relatch::open(url, lease, false)?),
        Peer::RelatchAsking => Box::new(relatch::Relatch::open(url, lease, true)?),
        Peer::RelatchSlots => Box::new(relatch::Slots::open(url, lease, peer.slots())?),
        Peer::Rlock => Box::new(rlock::Rlock::open(url, lease)?),
        Peer::Redlock => Box::new(redlock::Redlock::open(url, lease)),
        Peer::ByHand => Box::new(by_hand::ByHand::open(url, lease)?),
        _ => bail!("{} has a worker of its own", peer.title()),
    })
}
