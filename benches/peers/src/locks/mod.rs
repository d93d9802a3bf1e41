//! The locks of this language, each behind the same call.

mod by_hand;
mod floor;
mod redlock;
mod relatch;
mod rlock;

use anyhow::{Result, bail};

use crate::peer::Peer;

/// For how long Redis keeps a lock whose holder does not come back: the same for all peers,
/// relatch's default.
pub(crate) const LEASE_MS: u32 = 30_000;

/// The Redis server's time for this is part of the measure, so all that compare and delete do it
/// alike.
const COMPARE_AND_DELETE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Something that can be locked, shared by the threads of a worker.
pub(crate) trait Lock: Send + Sync {
    /// Takes the lock, runs `inside`, gives the lock back. Returns how often the lock said that its
    /// retries were exhausted, and had to be asked again.
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64>;
}

/// The peer, connected.
pub(crate) fn open(peer: Peer, url: &str) -> Result<Box<dyn Lock>> {
    Ok(match peer {
        Peer::Ping => Box::new(floor::Ping::open(url)?),
        Peer::Floor => Box::new(floor::Floor::open(url)?),
        Peer::Relatch => Box::new(relatch::Relatch::open(url)?),
        Peer::Rlock => Box::new(rlock::Rlock::open(url)?),
        Peer::Redlock => Box::new(redlock::Redlock::open(url)),
        Peer::ByHand => Box::new(by_hand::ByHand::open(url)?),
        _ => bail!("{} has a worker of its own", peer.title()),
    })
}
