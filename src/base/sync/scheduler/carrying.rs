//! How bytes cross a link: when they arrive, and what is lost on the way.

use super::link::Link;
use super::network::{Answerer, Connection, End, HERE, THERE, end_here};
use super::{Due, World, trace, wake, world};
use rand::RngExt;
use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Bytes arrive, at the server or here; no bytes mean the end of the connection.
fn arrive(connection: u64, address: SocketAddr, way: usize, bytes: Vec<u8>) {
    let late = world(|world| {
        let (now, link) = (world.now, world.link(address));
        link.silent_until[way]
            .checked_sub(now)
            .filter(|left| *left > 0)
    });
    if let Some(Some(nanos)) = late {
        // The system sends them again. Later bytes have been held back as well, and stay after
        // them.
        let again = move || arrive(connection, address, way, bytes);
        return super::later(Duration::from_nanos(nanos), again);
    }
    if way == HERE {
        return arrive_here(connection, &bytes);
    }
    let Some(Some(answerer)) = world(|world| world.answerer(address)) else {
        return;
    };
    if bytes.is_empty() {
        answerer.borrow_mut().closed(connection);
    } else {
        answerer.borrow_mut().received(connection, &bytes);
    }
}

fn arrive_here(number: u64, bytes: &[u8]) {
    if bytes.is_empty() {
        trace(|| format!("({number}) is closed by the server"));
        return end_here(number, End::Closed);
    }
    trace(|| format!("({number}) <- {}", legible(bytes)));
    let reader = world(|world| {
        let connection = world.connection(number)?;
        connection.received.extend(bytes);
        connection.reader.take()
    });
    if let Some(Some(reader)) = reader {
        wake(reader);
    }
}

impl World {
    pub(super) fn link(&self, address: SocketAddr) -> Link {
        self.network
            .links
            .get(&address)
            .copied()
            .unwrap_or_default()
    }

    pub(super) fn latency(&mut self, link: &Link) -> u64 {
        self.chance.random_range(link.latency.0..=link.latency.1)
    }

    pub(super) fn answerer(&self, address: SocketAddr) -> Option<Rc<RefCell<dyn Answerer>>> {
        self.network.listening.get(&address).cloned()
    }

    pub(super) fn connection(&mut self, number: u64) -> Option<&mut Connection> {
        self.network.connections.get_mut(&number)
    }

    /// Sets the time at which `bytes` arrive. A part of them may arrive later than the rest, or
    /// never: then the connection is reset.
    pub(super) fn carry(&mut self, number: u64, way: usize, mut bytes: Vec<u8>) {
        let Some(open) = self.connection(number).filter(|it| !it.is_lost) else {
            return;
        };
        let address = open.address;
        let link = self.link(address);
        let cut = bytes.len() > 1 && self.chance.random_ratio(1, 16);
        if cut {
            let rest = bytes.split_off(self.chance.random_range(1..bytes.len()));
            self.carry_part(number, address, way, bytes, &link);
            bytes = rest;
        }
        if link.resets > 0 && self.chance.random_ratio(1, link.resets) {
            // What is sent from now on, either way, does not arrive: no bytes follow a gap.
            let due = self
                .arrival(number, way, &link)
                .max(self.arrival(number, THERE, &link));
            if let Some(open) = self.connection(number) {
                (open.is_lost, open.server_knows) = (true, false);
            }
            let reset = move || {
                end_here(number, End::Reset);
                arrive(number, address, THERE, Vec::new());
            };
            return self.set_timer(due, Due::Call(Box::new(reset)));
        }
        self.carry_part(number, address, way, bytes, &link);
    }

    pub(super) fn carry_part(
        &mut self,
        number: u64,
        address: SocketAddr,
        way: usize,
        bytes: Vec<u8>,
        link: &Link,
    ) {
        let due = self.arrival(number, way, link);
        self.set_timer(
            due,
            Due::Call(Box::new(move || arrive(number, address, way, bytes))),
        );
    }

    pub(super) fn arrival(&mut self, number: u64, way: usize, link: &Link) -> u64 {
        let due = self.now + self.latency(link);
        let due = due + link.silent_until[way].saturating_sub(self.now);
        let Some(connection) = self.connection(number) else {
            return due;
        };
        let last = &mut connection.last[way];
        *last = due.max(*last + 1);
        *last
    }
}

/// The bytes, for a trace.
pub(super) fn legible(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\r\\n", " ")
}
