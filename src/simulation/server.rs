//! Simulated servers on the network of a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::base::scheduler::{Answerer, close, later, listen, now, send};
use crate::simulation::ledger;
use crate::simulation::redis::{Client, Output, Redis};

/// A server, and its connections: each has a number on the network, and one at the server.
pub(super) struct Server {
    pub(super) redis: Redis,
    clients: BTreeMap<u64, Client>,
    connections: BTreeMap<Client, u64>,
    /// When this server is looked after next.
    due: Option<u64>,
    me: std::rc::Weak<RefCell<Server>>,
}

impl Server {
    /// Starts a server at this address.
    pub(super) fn start(address: SocketAddr, name: &str, redis: Redis) -> Rc<RefCell<Server>> {
        let server = Rc::new_cyclic(|me| {
            let (clients, connections) = (BTreeMap::new(), BTreeMap::new());
            RefCell::new(Server { redis, clients, connections, due: None, me: me.clone() })
        });
        listen(address, name, Rc::clone(&server) as Rc<RefCell<dyn Answerer>>);
        server
    }

    /// Does something with the server, and sends what comes of it.
    pub(super) fn act<T>(&mut self, act: impl FnOnce(&mut Redis, u64) -> T) -> T {
        let result = act(&mut self.redis, now());
        ledger::saw(&self.redis);
        for (client, output) in self.redis.take_output() {
            let Some(connection) = self.connections.get(&client).copied() else { continue };
            match output {
                Output::Bytes(bytes) => send(connection, &bytes),
                Output::Close => {
                    self.connections.remove(&client);
                    self.clients.remove(&connection);
                    close(connection);
                }
            }
        }
        let due = self.redis.next_due();
        if let Some(at) = due
            && self.due.is_none_or(|due| at < due)
        {
            self.due = Some(at);
            let me = self.me.clone();
            later(Duration::from_nanos(at.saturating_sub(now())), move || {
                if let Some(server) = me.upgrade() {
                    let mut server = server.borrow_mut();
                    server.due = server.due.filter(|due| *due != at);
                    server.act(Redis::advance);
                }
            });
        }
        result
    }
}

impl Answerer for Server {
    fn connected(&mut self, connection: u64) {
        let client = self.act(Redis::connect);
        self.clients.insert(connection, client);
        self.connections.insert(client, connection);
    }

    fn received(&mut self, connection: u64, bytes: &[u8]) {
        if let Some(client) = self.clients.get(&connection).copied() {
            self.act(|redis, now| redis.receive(client, bytes, now));
        }
    }

    fn closed(&mut self, connection: u64) {
        if let Some(client) = self.clients.remove(&connection) {
            self.connections.remove(&client);
            self.act(|redis, now| redis.close(client, now));
        }
    }
}
