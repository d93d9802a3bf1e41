//! A replica takes the place of its master.

use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{below, change_link, later, now, trace};
use crate::simulation::judge::excuses::Excuse;
use crate::simulation::plan::{Failover, Master, path};
use crate::simulation::redis::{Redis, slot};
use crate::simulation::world::engine::{Node, Servers};
use crate::simulation::world::replication::{follow, leave};

/// A failover that is under way.
pub(crate) struct Failing {
    servers: Rc<Servers>,
    /// The shard, and what happens to its master.
    it: Failover,
    old: usize,
}

impl Failing {
    pub(crate) fn begin(servers: &Rc<Servers>, it: Failover) {
        let mut shards = servers.shards.borrow_mut();
        let shard = it.shard % shards.len();
        if std::mem::replace(&mut shards[shard].is_busy, true) {
            return;
        }
        let failing = Failing {
            servers: Rc::clone(servers),
            it: Failover { shard, ..it },
            old: shards[shard].master,
        };
        drop(shards);
        failing.strike();
    }

    fn strike(self) {
        let mut master = self.old().borrow_mut();
        match self.it.how {
            Master::Dies => {
                change_link(self.servers.address(self.old), |link| {
                    link.refuses_until = u64::MAX;
                });
                master.die();
            }
            Master::Stops => master.stop(),
            Master::CutOff => master
                .streams
                .iter_mut()
                .for_each(|stream| stream.is_cut = true),
            Master::Planned if self.servers.cluster.is_some() => {
                master.event(|server| {
                    server.act(|redis, now| redis.pause_until(now + 200_000_000, true));
                });
            }
            Master::Planned => {}
        }
        drop(master);
        let is_planned = self.it.how == Master::Planned;
        let after = if is_planned { 50 } else { self.it.after };
        later(Duration::from_millis(after), move || self.promote());
    }

    fn node(&self, number: usize) -> &Node {
        &self.servers.nodes[number]
    }

    fn old(&self) -> &Node {
        self.node(self.old)
    }

    /// A planned failover of a cluster waits until the replica has everything.
    fn loses_nothing(&self) -> bool {
        self.it.how == Master::Planned && self.servers.cluster.is_some()
    }

    fn come_back_later(self) {
        later(Duration::from_millis(self.it.back), move || {
            self.come_back();
        });
    }

    fn promote(self) {
        let replicas = self.servers.shards.borrow()[self.it.shard].replicas.clone();
        let offset = self.old().borrow().redis.offset();
        let can = |it: &usize| {
            let replica = self.node(*it).borrow();
            replica.runs() && (!self.loses_nothing() || replica.redis.offset() == offset)
        };
        let able: Vec<_> = replicas.iter().copied().filter(can).collect();
        if able.is_empty() || (self.it.how == Master::Planned && !self.old().borrow().runs()) {
            return self.come_back_later();
        }
        let new = able[usize::try_from(below(able.len() as u64)).expect("small")];
        trace(|| format!("*** {new} becomes the master in the place of {}", self.old));
        self.tell_judge(new);
        for replica in &replicas {
            leave(self.old(), self.node(*replica));
        }
        self.node(new).borrow_mut().act(Redis::promote);
        let mut others: Vec<_> = replicas.into_iter().filter(|it| *it != new).collect();
        for other in &others {
            follow(self.node(new), self.node(*other));
        }
        others.push(self.old);
        let mut shards = self.servers.shards.borrow_mut();
        let shard = &mut shards[self.it.shard];
        (shard.master, shard.replicas) = (new, others);
        drop(shards);
        self.tell_programs(new);
        if self.loses_nothing() {
            self.demote();
        } else {
            self.come_back_later();
        }
    }

    /// What programs ask says that there is another master.
    fn tell_programs(&self, new: usize) {
        if let Some(sentinels) = &self.servers.sentinels {
            sentinels.switch(new);
        }
        if let Some(cluster) = &self.servers.cluster {
            cluster.promoted(&self.servers.nodes, self.old, new);
            if self.it.how == Master::CutOff {
                self.old()
                    .borrow_mut()
                    .event(|it| it.redis.view().map_or((), |view| view.is_down = true));
            }
        }
    }

    /// What a failover loses: what the new master lacks, and what the old one grants until it is
    /// told, unless replicas have to acknowledge it.
    fn tell_judge(&self, new: usize) {
        let (is_cluster, is_safe) = (self.servers.cluster.is_some(), self.servers.are_safe);
        let grants = match self.it.how {
            Master::Dies => false,
            // (A process that goes on after a stop executes what has come before it notices
            // anything.)
            Master::Planned | Master::CutOff => !is_cluster || !self.old().borrow().runs(),
            Master::Stops => true,
        };
        let [old, new] = [self.old, new].map(|it| self.node(it).borrow());
        let judge = &self.servers.judge;
        for key in self.servers.keys_of(self.it.shard) {
            let is_moved = self.servers.shards.borrow()[self.it.shard]
                .moved
                .contains(&key);
            let had = old.redis.get(path(key));
            if had.is_some() && had != new.redis.get(path(key)) && (!is_safe || is_moved) {
                trace(|| format!("*** {key} is lost"));
                judge.removed(Excuse::NotReplicated, key, now());
            }
            if grants && !is_safe {
                let until = now() + (self.it.back + self.it.learns) * 1_000_000;
                judge.removed(Excuse::OldMaster, key, until);
            }
        }
    }

    /// The old master is back, and takes itself for a master.
    fn come_back(self) {
        trace(|| format!("*** {} is back", self.old));
        change_link(self.servers.address(self.old), |link| {
            link.refuses_until = 0;
        });
        let is_master = self.servers.shards.borrow()[self.it.shard].master == self.old;
        let mut server = self.old().borrow_mut();
        server.go_on();
        server.revive();
        drop(server);
        let has_died = self.it.how == Master::Dies;
        if is_master || has_died && self.servers.cluster.is_some() {
            return self.demote();
        }
        if has_died && !self.servers.are_safe {
            let until = now() + self.it.learns * 1_000_000;
            self.servers.judge.all_removed(Excuse::OldMaster, until);
        }
        later(Duration::from_millis(self.it.learns), move || self.demote());
    }

    /// The old master becomes a replica. If nobody has taken its place, it goes on.
    fn demote(self) {
        let shard = self.servers.shards.borrow()[self.it.shard].clone();
        if shard.master == self.old {
            if self.it.how == Master::Dies {
                // Also if it was told to be a replica before: that is in no file.
                self.old().borrow_mut().act(Redis::promote);
            }
            for replica in &shard.replicas {
                follow(self.old(), self.node(*replica));
            }
        } else {
            if self.servers.sentinels.is_some() {
                self.old().borrow_mut().act(Redis::kill_clients);
            }
            follow(self.node(shard.master), self.old());
            if let Some(cluster) = &self.servers.cluster {
                if let Some(view) = self.old().borrow_mut().redis.view() {
                    view.is_down = false;
                }
                cluster.returned(&self.servers.nodes, self.old, shard.master);
            }
        }
        self.servers.shards.borrow_mut()[self.it.shard].is_busy = false;
    }
}

impl Servers {
    /// The keys that a shard has.
    pub(crate) fn keys_of(&self, shard: usize) -> Vec<usize> {
        let is_there = |key: &usize| self.shard_of_key(*key) == shard;
        (0..self.judge.keys()).filter(is_there).collect()
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
