//! A proxy that passes bytes on without understanding them: for connections that are encrypted.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::bridge::{Bridge, Pump, Streams};
use crate::road;

/// A proxy on 127.0.0.1 in front of a port; gone, with its threads, when this is dropped.
pub struct Relay {
    shared: Arc<Shared>,
    bridge: Bridge,
}

#[derive(Default)]
struct Shared {
    rules: Mutex<Rules>,
    changed: Condvar,
    passed: AtomicU64,
    /// How many connections there were.
    opened: AtomicU64,
}

#[derive(Default)]
struct Rules {
    /// How many bytes still pass, for each direction.
    allowed: [Option<usize>; 2],
    /// The pause before each byte to the client.
    drip: Option<Duration>,
    /// How many of the first connections let nothing pass any more.
    stranded: u64,
    stopped: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToClient,
    ToServer,
}

impl Relay {
    /// Starts a proxy in front of `target`, a port of 127.0.0.1.
    pub fn start(target: u16) -> Relay {
        let shared = Arc::new(Shared::default());
        let host = Arc::clone(&shared);
        let bridge = Bridge::start("relay", target, move |streams| {
            let number = host.opened.fetch_add(1, Ordering::SeqCst);
            [Direction::ToClient, Direction::ToServer].map(|direction| {
                let (host, streams) = (Arc::clone(&host), streams.clone());
                Box::new(move || host.pump(&streams, direction, number)) as Pump
            })
        });
        Relay { shared, bridge }
    }

    /// The address for a manager, with the login if there is one (see [`rights`](crate::rights)).
    pub fn url(&self) -> String {
        road::url(self.port())
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.bridge.port()
    }

    /// How many connections were accepted so far.
    pub fn connections_accepted(&self) -> u64 {
        self.bridge.connections_accepted()
    }

    /// How many bytes were passed on to clients so far.
    pub fn bytes_to_clients(&self) -> u64 {
        self.shared.passed.load(Ordering::SeqCst)
    }

    /// Lets `bytes` more pass to clients, and holds back what follows.
    pub fn hold_after(&self, bytes: usize) {
        self.change(|rules| rules.allowed[0] = Some(bytes));
    }

    /// Lets no byte pass any more over the connections that are open now: they are half-open. Later
    /// ones work.
    pub fn strand_all(&self) {
        let opened = self.shared.opened.load(Ordering::SeqCst);
        self.change(|rules| rules.stranded = opened);
    }

    /// Passes bytes to clients one by one, with a pause before each.
    pub fn drip(&self, pause: Duration) {
        self.change(|rules| rules.drip = Some(pause));
    }

    /// Passes on everything again, first what was held back.
    pub fn release(&self) {
        self.change(|rules| (rules.allowed, rules.drip) = ([None; 2], None));
    }

    /// Ends all connections.
    pub fn cut_all(&self) {
        self.bridge.cut_all();
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.shared.rules.lock());
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn pump(&self, streams: &Streams, direction: Direction, number: u64) {
        let Streams { client, server } = streams;
        let (mut from, mut to): (&TcpStream, &TcpStream) = match direction {
            Direction::ToClient => (server, client),
            Direction::ToServer => (client, server),
        };
        let mut buffer = [0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let Some(part) = self.may_pass(direction, rest.len(), number) else {
                    return;
                };
                if to.write_all(&rest[..part]).is_err() {
                    return;
                }
                if direction == Direction::ToClient {
                    self.passed.fetch_add(part as u64, Ordering::SeqCst);
                }
                rest = &rest[part..];
            }
        }
    }

    /// Waits until bytes of this connection may pass, and returns how many; `None` at the end of
    /// the proxy.
    fn may_pass(&self, direction: Direction, count: usize, number: u64) -> Option<usize> {
        let mut rules = self.rules.lock();
        if let (Direction::ToClient, Some(pause)) = (direction, rules.drip) {
            self.changed.wait_for(&mut rules, pause);
        }
        let count = if direction == Direction::ToClient && rules.drip.is_some() {
            1
        } else {
            count
        };
        loop {
            if rules.stopped {
                return None;
            }
            if number < rules.stranded {
                self.changed.wait(&mut rules);
                continue;
            }
            match &mut rules.allowed[usize::from(direction == Direction::ToServer)] {
                None => return Some(count),
                Some(0) => self.changed.wait(&mut rules),
                Some(left) => {
                    let part = count.min(*left);
                    *left -= part;
                    return Some(part);
                }
            }
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The threads that hold back bytes end; after this, the bridge joins them.
        self.change(|rules| rules.stopped = true);
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay")
            .field("port", &self.port())
            .finish_non_exhaustive()
    }
}
