//! The streams of writes from a master to its replicas.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::time::Duration;

use crate::base::sync::scheduler::{below, later, now};
use crate::simulation::redis::{Snapshot, Write};
use crate::simulation::world::engine::Servers;
use crate::simulation::world::server::Server;

/// What goes from a master to a replica, in its order.
pub(crate) struct Stream {
    replica: Weak<RefCell<Server>>,
    /// The number of the stream, see [`Server::follows`].
    number: u64,
    /// When the last writes arrive.
    last: u64,
    /// How long writes take at most, beside a short time.
    pub(crate) lag: u64,
    /// Nothing more arrives.
    pub(crate) is_cut: bool,
}

enum News {
    All(Box<Snapshot>),
    Write(Write),
}

impl Stream {
    fn send(&mut self, master: &Weak<RefCell<Server>>, news: News) {
        let due = now() + 20_000 + below(100_000) + below(self.lag + 1);
        self.last = due.max(self.last + 1);
        let (master, number) = (master.clone(), self.number);
        let Some(replica) = self.replica.upgrade().filter(|_| !self.is_cut) else {
            return;
        };
        later(Duration::from_nanos(self.last - now()), move || {
            replica
                .borrow_mut()
                .event(move |replica| replica.hears(&master, number, news));
        });
    }
}

impl Server {
    /// Sends what was written to the replicas.
    pub(crate) fn replicate(&mut self) {
        let writes = self.redis.take_writes();
        for stream in &mut self.streams {
            for write in &writes {
                stream.send(&self.me, News::Write(write.clone()));
            }
        }
    }

    /// A replica hears from the master that it follows.
    fn hears(&mut self, master: &Weak<RefCell<Server>>, number: u64, news: News) {
        if self.follows != number {
            return; // It follows another one by now.
        }
        let offset = self.act(|redis, now| {
            match news {
                News::All(snapshot) => redis.load(*snapshot, now),
                News::Write(write) => redis.apply(&write, now),
            }
            redis.offset()
        });
        let Some(master) = master.upgrade() else {
            return;
        };
        later(Duration::from_nanos(20_000 + below(100_000)), move || {
            master.borrow_mut().event(move |master| {
                if master.streams.iter().any(|it| it.number == number) {
                    master.act(|redis, now| redis.acknowledge(number, offset, now));
                }
            });
        });
    }
}

impl Servers {
    /// Writes take up to so many milliseconds to get to replicas.
    pub(crate) fn lag(&self, millis: u64) {
        for node in &self.nodes {
            node.borrow_mut()
                .streams
                .iter_mut()
                .for_each(|stream| stream.lag = millis * 1_000_000);
        }
    }
}

/// The server becomes a replica of `master`, or begins anew as one, with all its data.
pub(crate) fn follow(master: &Rc<RefCell<Server>>, replica: &Rc<RefCell<Server>>) {
    leave(master, replica);
    let number = {
        let mut replica = replica.borrow_mut();
        replica.act(|redis, now| {
            if !redis.is_replica() {
                redis.demote(now);
            }
        });
        replica.follows
    };
    let mut master = master.borrow_mut();
    let snapshot = master.act(|redis, _| redis.snapshot());
    let mut stream = Stream {
        replica: Rc::downgrade(replica),
        number,
        last: 0,
        lag: 0,
        is_cut: false,
    };
    stream.send(&master.me, News::All(Box::new(snapshot)));
    master.streams.push(stream);
}

/// The server hears nothing of `master` any more. What is under way is lost.
pub(crate) fn leave(master: &Rc<RefCell<Server>>, replica: &Rc<RefCell<Server>>) {
    let (mut master, mut replica) = (master.borrow_mut(), replica.borrow_mut());
    master.redis.forget_replica(replica.follows);
    master
        .streams
        .retain(|stream| stream.number != replica.follows);
    replica.follows += 1;
}
