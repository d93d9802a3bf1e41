//! Simulated servers on the network of a run.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::scheduler::{Answerer, close, later, listen, now, one_in, send};
use crate::simulation::judge::Judge;
use crate::simulation::redis::{Client, Output, Redis, commands};
use crate::simulation::world::replication::Stream;

/// A server, and its connections: each has a number on the network, and one at the server.
pub(crate) struct Server {
    pub(crate) redis: Redis,
    judge: Arc<Judge>,
    /// The number of the node. (Sentinels have others.)
    number: usize,
    clients: BTreeMap<u64, Client>,
    connections: BTreeMap<Client, u64>,
    /// When this server is looked after next.
    due: Option<u64>,
    pub(crate) me: Weak<RefCell<Server>>,
    /// What goes to each replica.
    pub(crate) streams: Vec<Stream>,
    /// The number of the stream that this server follows as a replica. No two streams have the
    /// same.
    pub(crate) follows: u64,
    /// What has come while the process was stopped. `None`: it runs.
    stopped: Option<Vec<Event>>,
    is_dead: bool,
    /// The proxy in front of the server answers some commands with errors until then.
    pub(crate) proxy_fails_until: u64,
}

type Event = Box<dyn FnOnce(&mut Server)>;

impl Server {
    /// Starts a server at this address.
    pub(crate) fn start(
        address: SocketAddr,
        name: &str,
        redis: Redis,
        judge: &Arc<Judge>,
    ) -> Rc<RefCell<Server>> {
        let IpAddr::V4(ip) = address.ip() else {
            unreachable!("all have such addresses")
        };
        let number = usize::from(ip.octets()[3]) - 1;
        let server = Rc::new_cyclic(|me| {
            RefCell::new(Server {
                redis,
                judge: Arc::clone(judge),
                number,
                clients: BTreeMap::new(),
                connections: BTreeMap::new(),
                due: None,
                me: me.clone(),
                streams: Vec::new(),
                follows: (number as u64) << 32,
                stopped: None,
                is_dead: false,
                proxy_fails_until: 0,
            })
        });
        listen(
            address,
            name,
            Rc::clone(&server) as Rc<RefCell<dyn Answerer>>,
        );
        server
    }

    /// Something happens to the server: once its process goes on, if it is stopped, and never if it
    /// is dead.
    pub(crate) fn event(&mut self, event: impl FnOnce(&mut Server) + 'static) {
        match &mut self.stopped {
            _ if self.is_dead => {}
            Some(events) => events.push(Box::new(event)),
            None => event(self),
        }
    }

    /// Does something with the server, and sends what comes of it.
    pub(crate) fn act<T>(&mut self, act: impl FnOnce(&mut Redis, u64) -> T) -> T {
        let result = act(&mut self.redis, now());
        self.judge.saw(self.number, &self.redis);
        for (client, output) in self.redis.take_output() {
            let Some(connection) = self.connections.get(&client).copied() else {
                continue;
            };
            match output {
                Output::Bytes(bytes) => send(connection, &bytes),
                Output::Close => {
                    self.connections.remove(&client);
                    self.clients.remove(&connection);
                    close(connection);
                }
            }
        }
        self.replicate();
        let due = self.redis.next_due();
        if let Some(at) = due
            && self.due.is_none_or(|due| at < due)
        {
            self.due = Some(at);
            let me = self.me.clone();
            later(Duration::from_nanos(at.saturating_sub(now())), move || {
                let Some(server) = me.upgrade() else { return };
                server.borrow_mut().event(move |server| {
                    server.due = server.due.filter(|due| *due != at);
                    server.act(Redis::advance);
                });
            });
        }
        result
    }

    /// Nothing is executed until the process goes on. The system accepts connections and bytes.
    pub(crate) fn stop(&mut self) {
        if !self.is_dead {
            self.stopped.get_or_insert_default();
        }
    }

    pub(crate) fn go_on(&mut self) {
        for event in self.stopped.take().into_iter().flatten() {
            self.event(event);
        }
    }

    /// The process ends. What is on its disk is there when it begins again.
    pub(crate) fn die(&mut self) {
        self.stopped = None;
        self.act(|redis, now| redis.restart(true, now));
        self.due = None;
        self.is_dead = true;
    }

    pub(crate) fn revive(&mut self) {
        self.is_dead = false;
        self.act(Redis::advance);
    }

    pub(crate) fn runs(&self) -> bool {
        !self.is_dead && self.stopped.is_none()
    }

    /// The proxy in front of the server answers in its place. Some commands were executed before.
    fn fails(&mut self, connection: u64, client: Client, bytes: &[u8]) -> bool {
        let Some(count) = commands(bytes).filter(|_| one_in(4)) else {
            return false;
        };
        let executes = one_in(2);
        if executes {
            self.connections.remove(&client);
            self.act(|redis, now| redis.receive(client, bytes, now));
        }
        for _ in 0..if executes { 1 } else { count } {
            send(connection, b"-ERR upstream failure\r\n");
        }
        if executes {
            close(connection);
            self.clients.remove(&connection);
            self.act(|redis, now| redis.close(client, now));
        }
        true
    }
}

impl Answerer for Server {
    fn connected(&mut self, connection: u64) {
        if self.is_dead {
            return close(connection);
        }
        self.event(move |server| {
            let client = server.act(Redis::connect);
            server.clients.insert(connection, client);
            server.connections.insert(client, connection);
        });
    }

    fn received(&mut self, connection: u64, bytes: &[u8]) {
        if self.stopped.is_some() {
            let bytes = bytes.to_vec();
            return self.event(move |server| server.received(connection, &bytes));
        }
        if let Some(client) = self.clients.get(&connection).copied()
            && !(self.proxy_fails_until > now() && self.fails(connection, client, bytes))
        {
            self.act(|redis, now| redis.receive(client, bytes, now));
        }
    }

    fn closed(&mut self, connection: u64) {
        self.event(move |server| {
            if let Some(client) = server.clients.remove(&connection) {
                server.connections.remove(&client);
                server.act(|redis, now| redis.close(client, now));
            }
        });
    }
}
