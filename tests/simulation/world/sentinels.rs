//! Three sentinels, which say who is the master, each as far as it knows.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::scheduler::{below, later};
use crate::simulation::judge::Judge;
use crate::simulation::redis::{Redis, Settings, Watched};
use crate::simulation::world::engine::{Node, address};
use crate::simulation::world::server::Server;

/// The number of the first sentinel's address.
const FIRST: usize = 50;

pub(crate) struct Sentinels {
    pub(crate) servers: Vec<Node>,
    /// The true epoch and master, and what each sentinel knows of it.
    newest: Rc<Cell<(u64, usize)>>,
    known: Rc<[Cell<u64>; 3]>,
}

pub(crate) fn addresses() -> impl Iterator<Item = SocketAddr> {
    (0..3).map(|number| address(FIRST + number))
}

/// The IP address of a node, and its port.
fn place(address: SocketAddr) -> (String, u16) {
    (address.ip().to_string(), address.port())
}

impl Sentinels {
    pub(crate) fn start(replicas: usize, judge: &Arc<Judge>) -> Sentinels {
        let start = |(number, address)| {
            let mut redis = Redis::new(Settings::default());
            redis.watch(Watched {
                name: "main".to_owned(),
                master: place(self::address(0)),
                epoch: 1,
                replicas: u32::try_from(replicas).expect("a few"),
                others: addresses()
                    .filter(|other| *other != address)
                    .map(place)
                    .collect(),
            });
            Server::start(address, &format!("sentinel{}", number + 1), redis, judge)
        };
        let servers = addresses().enumerate().map(start).collect();
        Sentinels {
            servers,
            newest: Rc::new(Cell::new((1, 0))),
            known: Rc::default(),
        }
    }

    /// Another node is the master: one sentinel knows at once, the others learn of it.
    pub(crate) fn switch(&self, master: usize) {
        self.newest.set((self.newest.get().0 + 1, master));
        let first = below(3);
        for (number, server) in self.servers.iter().enumerate() {
            let slow = [5, 1_000, 12_000][usize::try_from(below(3)).expect("small")];
            let delay = if number as u64 == first {
                0
            } else {
                below(slow)
            };
            let (server, newest, known) = (
                Rc::clone(server),
                Rc::clone(&self.newest),
                Rc::clone(&self.known),
            );
            later(Duration::from_millis(delay), move || {
                let (epoch, master) = newest.get();
                if known[number].replace(epoch) != epoch {
                    server.borrow_mut().event(move |server| {
                        server.act(|redis, now| {
                            redis.switch_master(place(address(master)), epoch, now);
                        });
                    });
                }
            });
        }
    }
}
