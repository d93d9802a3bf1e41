//! The locks that are written in Rust, each behind the same call.

mod by_hand;
mod floor;
mod redlock;
mod relatch;
mod rlock;

use anyhow::{Result, bail};

use crate::peer::Peer;

/// The lease: the same for all peers, and relatch's default.
pub(crate) const LEASE_MS: u32 = 30_000;

/// The server's time for this script is part of the figures, so all locks that are given a script
/// get this one.
const COMPARE_AND_DELETE: &str = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Something that can be locked, shared by the threads of a worker.
pub(crate) trait Lock: Send + Sync {
    /// Takes the lock, calls `inside`, releases the lock. Returns how often the lock gave up after
    /// its last retry, and was tried again.
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64>;
}

/// Connects the peer.
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
