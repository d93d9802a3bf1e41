//! Free ports.

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

use parking_lot::Mutex;
use rand::RngExt;

/// The range of the ports: below the ephemeral ports of Linux, macOS and Windows. If a server's
/// port were ephemeral, an outgoing connection could take that port while the server restarts, and
/// could even connect to itself.
const PORTS: Range<u16> = 10_000..30_000;

/// How far the port of a cluster's bus is above the one for clients, if nothing else is set.
pub(crate) const BUS: u16 = 10_000;

/// Listens on a port of 127.0.0.1 that this process has not used and will not use again.
pub(crate) fn listen() -> TcpListener {
    loop {
        if let Some(listener) = take(rand::rng().random_range(PORTS)) {
            return listener;
        }
    }
}

/// A port that nothing listens on, and that this process has not used and will not use again.
pub(crate) fn free_port() -> u16 {
    listen().local_addr().expect("a bound listener").port()
}

/// Like [`free_port`], for a node of a cluster: the port of its bus is free as well.
pub(crate) fn free_node_port() -> u16 {
    loop {
        let port = rand::rng().random_range(PORTS.start..PORTS.end - BUS);
        if take(port).is_some() && take(port + BUS).is_some() {
            return port;
        }
    }
}

/// Listens on `port`; `None` if this or another process has used it.
fn take(port: u16) -> Option<TcpListener> {
    static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let is_new = TAKEN.lock().get_or_insert_default().insert(port);
    is_new
        .then(|| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok())
        .flatten()
}
