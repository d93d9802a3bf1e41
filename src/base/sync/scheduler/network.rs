//! The network of a run: names, connections, and what can go wrong with them.
//!
//! A listener at an address is not a thread. It is called when bytes arrive, and sends its answers.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read as _};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use rand::RngExt;

use super::carrying::legible;
use super::link::Link;
use super::{World, running, step, trace, wait, wake, world};

/// What listens at an address.
pub(crate) trait Answerer {
    fn connected(&mut self, connection: u64);
    fn received(&mut self, connection: u64, bytes: &[u8]);
    fn closed(&mut self, connection: u64);
}

#[derive(Default)]
pub(crate) struct Network {
    pub(super) listening: BTreeMap<SocketAddr, Rc<RefCell<dyn Answerer>>>,
    pub(super) names: BTreeMap<String, Vec<SocketAddr>>,
    pub(super) links: BTreeMap<SocketAddr, Link>,
    pub(super) connections: BTreeMap<u64, Connection>,
    pub(super) count: u64,
}

/// A connection, seen from the process.
pub(crate) struct Connection {
    pub(super) process: usize,
    pub(super) address: SocketAddr,
    pub(super) received: VecDeque<u8>,
    pub(super) end: Option<End>,
    pub(super) reader: Option<usize>,
    pub(super) timeout: Option<Duration>,
    /// When the last bytes arrive there, and here: no bytes overtake others.
    pub(super) last: [u64; 2],
    pub(super) server_knows: bool,
    /// Whatever is sent vanishes, and neither end ever sees the other one close.
    pub(super) is_lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Closed,
    Reset,
}

pub(super) const THERE: usize = 0;
pub(super) const HERE: usize = 1;

/// A socket of a run.
#[derive(Debug)]
pub(crate) struct Socket(u64);

/// Listens at `address`, which has the name `name` as well.
pub(crate) fn listen(address: SocketAddr, name: &str, answerer: Rc<RefCell<dyn Answerer>>) {
    world(|world| {
        world.network.listening.insert(address, answerer);
        let known = world.network.names.entry(name.to_owned()).or_default();
        if !known.contains(&address) {
            known.push(address);
        }
    });
}

/// The addresses of a name. `None` outside a run.
pub(crate) fn resolve(host: &str, port: u16) -> Option<io::Result<Vec<SocketAddr>>> {
    world(|world| {
        if let Ok(address) = host.parse() {
            return Ok(vec![SocketAddr::new(address, port)]);
        }
        let known = world.network.names.get(host).cloned().unwrap_or_default();
        let known: Vec<_> = known
            .into_iter()
            .filter(|address| address.port() == port)
            .collect();
        if known.is_empty() {
            Err(io::Error::other("no such name"))
        } else {
            Ok(known)
        }
    })
}

/// Connects within `limit`. `None` outside a run.
pub(crate) fn connect(address: SocketAddr, limit: Duration) -> Option<io::Result<Socket>> {
    step();
    let (silent, refused, there) = world(|world| {
        let now = world.now;
        let link = world.link(address);
        let there = world.latency(&link) * 2;
        (
            link.hangs(now),
            link.refuses_until > now,
            Duration::from_nanos(there),
        )
    })?;
    if silent || there > limit {
        wait("a connection", Some(limit));
        return Some(Err(ErrorKind::TimedOut.into()));
    }
    wait("a connection", Some(there));
    let opened = world(|world| {
        if refused || !world.network.listening.contains_key(&address) {
            return None;
        }
        world.network.count += 1;
        let process = world.state(world.running).process;
        let (number, last) = (world.network.count, [world.now; 2]);
        let connection = Connection {
            process,
            address,
            received: VecDeque::new(),
            end: None,
            reader: None,
            timeout: None,
            last,
            server_knows: true,
            is_lost: false,
        };
        world.network.connections.insert(number, connection);
        Some((number, world.answerer(address)))
    })?;
    let Some((number, answerer)) = opened else {
        trace(|| format!("{address} refuses"));
        return Some(Err(ErrorKind::ConnectionRefused.into()));
    };
    trace(|| format!("connects to {address} ({number})"));
    if let Some(answerer) = answerer {
        answerer.borrow_mut().connected(number);
    }
    Some(Ok(Socket(number)))
}

impl Socket {
    pub(crate) fn set_timeout(&self, timeout: Duration) {
        world(|world| {
            world
                .connection(self.0)
                .map(|it| it.timeout = Some(timeout))
        });
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        step();
        match self.read_now(buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            read => return read,
        }
        // A reader is woken once: otherwise, bytes that come later would end its next sleep.
        let me = running();
        let timeout = world(|world| {
            let connection = world.connection(self.0)?;
            connection.reader = me;
            connection.timeout
        });
        wait("bytes", timeout.flatten());
        world(|world| world.connection(self.0).map(|it| it.reader = None));
        self.read_now(buffer)
    }

    /// Reads what has arrived. Does not wait.
    pub(crate) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = |world: &mut World| {
            let Some(connection) = world.connection(self.0) else {
                return Err(ErrorKind::NotConnected.into());
            };
            match (connection.received.len(), connection.end) {
                (0, None) => Err(ErrorKind::WouldBlock.into()),
                (_, Some(End::Reset)) => Err(ErrorKind::ConnectionReset.into()),
                (0, Some(End::Closed)) => Ok(0),
                _ => connection.received.read(buffer),
            }
        };
        world(read).unwrap_or_else(|| Err(ErrorKind::NotConnected.into()))
    }

    pub(crate) fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        step();
        let written = world(|world| {
            let Some(connection) = world.connection(self.0) else {
                return Err(ErrorKind::NotConnected.into());
            };
            match connection.end {
                Some(End::Reset) => return Err(ErrorKind::BrokenPipe.into()),
                Some(End::Closed) => {
                    connection.end = Some(End::Reset);
                    return Ok(bytes.len());
                }
                None => {}
            }
            world.carry(self.0, THERE, bytes.to_vec());
            Ok(bytes.len())
        });
        trace(|| format!("({}) -> {}", self.0, legible(bytes)));
        written.unwrap_or_else(|| Err(ErrorKind::NotConnected.into()))
    }

    /// Ends the connection, even for a thread that is blocked in it.
    pub(crate) fn shutdown(&self) {
        end_here(self.0, End::Closed);
        tell_the_server(self.0);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        tell_the_server(self.0);
        world(|world| world.network.connections.remove(&self.0));
    }
}

/// Sends `bytes` to the process at the other end.
pub(crate) fn send(connection: u64, bytes: &[u8]) {
    world(|world| {
        let Some(address) = world.connection(connection).map(|it| it.address) else {
            return;
        };
        let link = world.link(address);
        world.carry(connection, HERE, bytes.to_vec());
        if link.repeats > 0 && world.chance.random_ratio(1, link.repeats) {
            world.carry(connection, HERE, bytes.to_vec());
        }
    });
}

/// The server closes the connection, after what it has sent.
pub(crate) fn close(connection: u64) {
    world(|world| {
        if let Some(open) = world.connection(connection) {
            open.server_knows = false;
            world.carry(connection, HERE, Vec::new());
        }
    });
}

/// The connections that a server believes open. (Those of processes that cannot close any are left
/// out.)
pub(crate) fn open_connections() -> Vec<u64> {
    world(|world| {
        let is_open = |it: &(&u64, &Connection)| {
            it.1.server_knows && !world.processes[it.1.process].is_dead()
        };
        world
            .network
            .connections
            .iter()
            .filter(is_open)
            .map(|it| *it.0)
            .collect()
    })
    .unwrap_or_default()
}

/// The system closes the connections of a process that was killed.
pub(super) fn close_all_of(process: usize) {
    let of = |it: &(&u64, &Connection)| it.1.process == process;
    let open = world(|world| {
        world
            .network
            .connections
            .iter()
            .filter(of)
            .map(|it| *it.0)
            .collect::<Vec<_>>()
    });
    open.unwrap_or_default()
        .into_iter()
        .for_each(tell_the_server);
}

pub(super) fn end_here(connection: u64, end: End) {
    let reader = world(|world| {
        let connection = world.connection(connection)?;
        connection.end = Some(connection.end.unwrap_or(end));
        connection.reader.take()
    });
    if let Some(Some(reader)) = reader {
        wake(reader);
    }
}

/// The server learns that the connection has ended, after what was sent.
pub(super) fn tell_the_server(connection: u64) {
    world(|world| {
        let Some(open) = world.connection(connection) else {
            return;
        };
        if std::mem::take(&mut open.server_knows) {
            world.carry(connection, THERE, Vec::new());
        }
    });
}
