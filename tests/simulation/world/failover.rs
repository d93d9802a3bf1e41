//! A replica takes the place of its master.

use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{below, change_link, later, now, trace};
use crate::simulation::judge;
use crate::simulation::judge::routes;
use crate::simulation::redis::{Redis, slot};
use crate::simulation::scene::path;
use crate::simulation::world::engine::{Node, Servers};
use crate::simulation::world::replication::{follow, leave};

/// What happens to the old master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// It dies, and begins again later.
    Dies,
    /// It is silent, and goes on later.
    Stops,
    /// Nothing, until it is told.
    Planned,
    /// It hears nothing of the other servers for a time, while programs reach it.
    CutOff,
}

pub(crate) struct Failover {
    pub(crate) servers: Rc<Servers>,
    pub(crate) shard: usize,
    pub(crate) how: How,
    /// When the replica becomes the master, and when the old master is back.
    pub(crate) after: Duration,
    pub(crate) back: Duration,
    /// How long the old master, when it is back, does not know that it was replaced.
    pub(crate) learns: Duration,
    /// How many keys there are.
    pub(crate) keys: usize,
}

impl Failover {
    pub(crate) fn begin(self) {
        let mut shards = self.servers.shards.borrow_mut();
        if std::mem::replace(&mut shards[self.shard].is_busy, true) {
            return;
        }
        let old = shards[self.shard].master;
        drop(shards);
        let mut master = self.node(old).borrow_mut();
        match self.how {
            How::Dies => {
                change_link(self.servers.address(old), |link| {
                    link.refuses_until = u64::MAX;
                });
                master.die();
            }
            How::Stops => master.stop(),
            How::CutOff => master
                .streams
                .iter_mut()
                .for_each(|stream| stream.is_cut = true),
            How::Planned if self.servers.cluster.is_some() => {
                master.event(|server| {
                    server.act(|redis, now| redis.pause_until(now + 200_000_000, true));
                });
            }
            How::Planned => {}
        }
        drop(master);
        let after = if self.how == How::Planned {
            Duration::from_millis(50)
        } else {
            self.after
        };
        later(after, move || self.promote(old));
    }

    fn node(&self, number: usize) -> &Node {
        &self.servers.nodes[number]
    }

    /// A planned failover of a cluster waits until the replica has everything.
    fn loses_nothing(&self) -> bool {
        self.how == How::Planned && self.servers.cluster.is_some()
    }

    fn promote(self, old: usize) {
        let shards = self.servers.shards.borrow();
        let replicas = shards[self.shard].replicas.clone();
        drop(shards);
        let offset = self.node(old).borrow().redis.offset();
        let can = |it: &usize| {
            let replica = self.node(*it).borrow();
            replica.runs() && (!self.loses_nothing() || replica.redis.offset() == offset)
        };
        let able: Vec<_> = replicas.iter().copied().filter(can).collect();
        if able.is_empty() || (self.how == How::Planned && !self.node(old).borrow().runs()) {
            return later(self.back, move || self.come_back(old));
        }
        let new = able[usize::try_from(below(able.len() as u64)).expect("small")];
        trace(|| format!("*** {new} becomes the master in the place of {old}"));
        self.excuse(old, new);
        for replica in &replicas {
            leave(self.node(old), self.node(*replica));
        }
        self.node(new).borrow_mut().act(Redis::promote);
        let mut others: Vec<_> = replicas.into_iter().filter(|it| *it != new).collect();
        for other in &others {
            follow(self.node(new), self.node(*other));
        }
        others.push(old);
        let mut shards = self.servers.shards.borrow_mut();
        (shards[self.shard].master, shards[self.shard].replicas) = (new, others);
        drop(shards);
        if let Some(sentinels) = &self.servers.sentinels {
            sentinels.switch(new);
        }
        if let Some(cluster) = &self.servers.cluster {
            cluster.promoted(&self.servers.nodes, old, new);
            if self.how == How::CutOff {
                self.node(old)
                    .borrow_mut()
                    .event(|it| it.redis.view().map_or((), |view| view.is_down = true));
            }
        }
        for key in self.servers.keys_of(self.shard, self.keys) {
            routes::moved(key, new);
        }
        if self.loses_nothing() {
            return self.demote(old);
        }
        later(self.back, move || self.come_back(old));
    }

    /// What a failover loses is excused: what the new master lacks, and what the old one grants
    /// until it is told, unless replicas have to acknowledge it.
    fn excuse(&self, old: usize, new: usize) {
        let (is_cluster, is_safe) = (self.servers.cluster.is_some(), self.servers.are_safe);
        let grants = match self.how {
            How::Dies => false,
            // (A process that goes on after a stop executes what has come before it notices
            // anything.)
            How::Planned | How::CutOff => !is_cluster || !self.node(old).borrow().runs(),
            How::Stops => true,
        };
        let [old, new] = [old, new].map(|it| self.node(it).borrow());
        for key in self.servers.keys_of(self.shard, self.keys) {
            let is_moved = self.servers.shards.borrow()[self.shard]
                .moved
                .contains(&key);
            let had = old.redis.get(path(key));
            if had.is_some() && had != new.redis.get(path(key)) && (!is_safe || is_moved) {
                trace(|| format!("*** {key} is lost"));
                judge::removed(key, now());
            }
            if grants && !is_safe {
                let back =
                    u64::try_from((self.back + self.learns).as_nanos()).expect("a short time");
                judge::removed(key, now() + back);
            }
        }
    }

    /// The old master is back, and takes itself for a master.
    fn come_back(self, old: usize) {
        trace(|| format!("*** {old} is back"));
        change_link(self.servers.address(old), |link| link.refuses_until = 0);
        let is_master = self.servers.shards.borrow()[self.shard].master == old;
        let mut server = self.node(old).borrow_mut();
        server.go_on();
        server.revive();
        drop(server);
        let knows_at_once = self.how == How::Dies && self.servers.cluster.is_some();
        if is_master || knows_at_once {
            return self.demote(old);
        }
        if self.how == How::Dies && !self.servers.are_safe {
            let until = now() + u64::try_from(self.learns.as_nanos()).expect("a short time");
            (0..self.keys).for_each(|key| judge::removed(key, until));
        }
        later(self.learns, move || self.demote(old));
    }

    /// The old master becomes a replica. If nobody has taken its place, it goes on.
    fn demote(self, old: usize) {
        let shards = self.servers.shards.borrow();
        let (master, replicas) = (
            shards[self.shard].master,
            shards[self.shard].replicas.clone(),
        );
        drop(shards);
        if master == old {
            if self.how == How::Dies {
                // Also if it was told to be a replica before: that is in no file.
                self.node(old).borrow_mut().act(Redis::promote);
            }
            for replica in &replicas {
                follow(self.node(old), self.node(*replica));
            }
        } else {
            if self.servers.sentinels.is_some() {
                self.node(old).borrow_mut().act(Redis::kill_clients);
            }
            follow(self.node(master), self.node(old));
            if let Some(cluster) = &self.servers.cluster {
                if let Some(view) = self.node(old).borrow_mut().redis.view() {
                    view.is_down = false;
                }
                cluster.returned(&self.servers.nodes, old, master);
            }
        }
        self.servers.shards.borrow_mut()[self.shard].is_busy = false;
    }
}

impl Servers {
    /// The keys that a shard has.
    pub(crate) fn keys_of(&self, shard: usize, keys: usize) -> Vec<usize> {
        (0..keys)
            .filter(|key| self.shard_of_key(*key) == shard)
            .collect()
    }

    /// The node that has a key.
    pub(crate) fn master_of_key(&self, key: usize) -> usize {
        self.shards.borrow()[self.shard_of_key(key)].master
    }

    /// The shard that has a key.
    pub(crate) fn shard_of_key(&self, key: usize) -> usize {
        let owner = self.cluster.as_ref().map(|it| it.owner(slot(path(key))));
        owner
            .and_then(|owner| self.shard_of(owner))
            .unwrap_or_default()
    }
}
