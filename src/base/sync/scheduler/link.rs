//! What is between the processes of a run and an address, and what can go wrong with it.

use std::net::SocketAddr;

use super::network::{Connection, End, HERE, THERE, end_here, tell_the_server};
use super::world;

/// What is between the processes and an address. Times are nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    /// The time that bytes take one way: shortest and longest.
    pub(crate) latency: (u64, u64),
    /// Until then, nothing arrives there, or here. It arrives later, since the systems send it
    /// again.
    pub(crate) silent_until: [u64; 2],
    /// Connects hang until then. Open connections go on.
    pub(crate) hangs_until: u64,
    /// Connects are refused until then.
    pub(crate) refuses_until: u64,
    /// One in this many answers is sent twice. Zero: never.
    pub(crate) repeats: u32,
    /// A connection is reset in the middle of what it carries, one in this many times. Zero: never.
    pub(crate) resets: u32,
}

impl Default for Link {
    fn default() -> Link {
        Link {
            latency: (20_000, 60_000),
            silent_until: [0; 2],
            hangs_until: 0,
            refuses_until: 0,
            repeats: 0,
            resets: 0,
        }
    }
}

impl Link {
    pub(super) fn hangs(&self, now: u64) -> bool {
        self.silent_until[THERE]
            .max(self.silent_until[HERE])
            .max(self.hangs_until)
            > now
    }
}

/// Changes what is between the processes and `address`.
pub(crate) fn change_link(address: SocketAddr, change: impl FnOnce(&mut Link)) {
    world(|world| change(world.network.links.entry(address).or_default()));
}

/// The name has this address as well, before its others.
pub(crate) fn add_address(name: &str, address: SocketAddr) {
    world(|world| {
        let known = world.network.names.entry(name.to_owned()).or_default();
        known.insert(0, address);
    });
}

/// From now on, what listens at `from` is at `to`, under the same name.
pub(crate) fn readdress(from: SocketAddr, to: SocketAddr) {
    world(|world| {
        if let Some(answerer) = world.network.listening.remove(&from) {
            world.network.listening.insert(to, answerer);
        }
        let known = world.network.names.values_mut().flatten();
        known
            .filter(|address| **address == from)
            .for_each(|address| *address = to);
    });
}

/// All connections to `address` are reset.
pub(crate) fn reset_all(address: SocketAddr) {
    let open = world(|world| {
        let at = |it: &(&u64, &Connection)| it.1.address == address;
        world
            .network
            .connections
            .iter()
            .filter(at)
            .map(|it| *it.0)
            .collect::<Vec<_>>()
    });
    for connection in open.unwrap_or_default() {
        end_here(connection, End::Reset);
        tell_the_server(connection);
    }
}

/// All open connections to `address` are half-open from now on: what is sent vanishes, and neither
/// end learns of that. A new connection works.
pub(crate) fn lose_all(address: SocketAddr) {
    world(|world| {
        let open = world.network.connections.values_mut();
        open.filter(|it| it.address == address)
            .for_each(|it| it.is_lost = true);
    });
}
