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

/// Listens on a port of 127.0.0.1 that this process has not used and will not use again.
pub(crate) fn listen() -> TcpListener {
    static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut taken = TAKEN.lock();
    let taken = taken.get_or_insert_default();
    loop {
        let port = rand::rng().random_range(PORTS);
        if !taken.insert(port) {
            continue;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener;
        }
    }
}

/// A port that nothing listens on, and that this process has not used and will not use again.
pub(crate) fn free_port() -> u16 {
    listen().local_addr().expect("a bound listener").port()
}
