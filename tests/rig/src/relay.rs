//! A proxy that passes bytes on without understanding them: for connections that are encrypted.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use crate::ports::listen;

/// A proxy on 127.0.0.1 in front of a port; gone, with its threads, when this is dropped.
pub struct Relay {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    target: u16,
    rules: Mutex<Rules>,
    changed: Condvar,
    connections: Mutex<Vec<Connection>>,
    accepted: AtomicU64,
    passed: AtomicU64,
}

#[derive(Default)]
struct Rules {
    /// How many bytes still pass, for each direction.
    allowed: [Option<usize>; 2],
    /// The pause before each byte to the client.
    drip: Option<Duration>,
    stopped: bool,
}

struct Connection {
    streams: [TcpStream; 2],
    threads: [JoinHandle<()>; 2],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToClient,
    ToServer,
}

impl Relay {
    /// Starts a proxy in front of `target`, a port of 127.0.0.1.
    pub fn start(target: u16) -> Relay {
        let listener = listen();
        let port = listener.local_addr().expect("a bound listener").port();
        let shared = Arc::new(Shared {
            target,
            rules: Mutex::default(),
            changed: Condvar::new(),
            connections: Mutex::default(),
            accepted: AtomicU64::new(0),
            passed: AtomicU64::new(0),
        });
        let host = Arc::clone(&shared);
        let acceptor = Some(thread::spawn(move || host.accept(&listener)));
        Relay { shared, port, acceptor }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many connections were accepted so far.
    pub fn connections_accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many bytes were passed on to clients so far.
    pub fn bytes_to_clients(&self) -> u64 {
        self.shared.passed.load(Ordering::SeqCst)
    }

    /// Lets `bytes` more pass to clients, and holds back what follows.
    pub fn hold_after(&self, bytes: usize) {
        self.change(|rules| rules.allowed[0] = Some(bytes));
    }

    /// Holds back all bytes in both directions: the connections are half-open.
    pub fn hold_all(&self) {
        self.change(|rules| rules.allowed = [Some(0); 2]);
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
        for connection in &*self.shared.connections.lock() {
            connection.shut_down();
        }
    }

    fn change(&self, change: impl FnOnce(&mut Rules)) {
        change(&mut self.shared.rules.lock());
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.rules.lock().stopped {
                return;
            }
            let (Ok(client), Ok(server)) = (client, TcpStream::connect((Ipv4Addr::LOCALHOST, self.target)))
            else {
                continue;
            };
            self.accepted.fetch_add(1, Ordering::SeqCst);
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let twin = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
            let pump = |from: &TcpStream, to: &TcpStream, direction| {
                let (host, from, to) = (Arc::clone(self), twin(from), twin(to));
                thread::spawn(move || host.pump(from, to, direction))
            };
            let threads =
                [pump(&server, &client, Direction::ToClient), pump(&client, &server, Direction::ToServer)];
            self.connections.lock().push(Connection { streams: [client, server], threads });
        }
    }

    fn pump(&self, mut from: TcpStream, mut to: TcpStream, direction: Direction) {
        let mut buffer = [0; 4096];
        'all: while let Ok(count @ 1..) = from.read(&mut buffer) {
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let Some(part) = self.may_pass(direction, rest.len()) else { break 'all };
                if to.write_all(&rest[..part]).is_err() {
                    break 'all;
                }
                if direction == Direction::ToClient {
                    self.passed.fetch_add(part as u64, Ordering::SeqCst);
                }
                rest = &rest[part..];
            }
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    /// Waits until bytes may pass, and returns how many; `None` at the end of the proxy.
    fn may_pass(&self, direction: Direction, count: usize) -> Option<usize> {
        let mut rules = self.rules.lock();
        if let (Direction::ToClient, Some(pause)) = (direction, rules.drip) {
            self.changed.wait_for(&mut rules, pause);
        }
        let count = if direction == Direction::ToClient && rules.drip.is_some() { 1 } else { count };
        loop {
            if rules.stopped {
                return None;
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

impl Connection {
    fn shut_down(&self) {
        for stream in &self.streams {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.change(|rules| rules.stopped = true);
        // The acceptor checks whether it has to stop only when a client connects, so connect once.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for connection in self.shared.connections.lock().drain(..) {
            connection.shut_down();
            for thread in connection.threads {
                let _ = thread.join();
            }
        }
    }
}

impl fmt::Debug for Relay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Relay").field("port", &self.port).finish_non_exhaustive()
    }
}
