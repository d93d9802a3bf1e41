//! The nodes of a cluster, each with its view of the slots, and slots that move.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{below, later, trace};
use crate::simulation::plan::path;
use crate::simulation::redis::{Member, View, slot};
use crate::simulation::world::engine::{Node, Servers, Shard, address};
use crate::simulation::world::server::Server;

/// The number of slots.
const SLOTS: usize = 16_384;

pub(crate) struct Cluster {
    /// How things are. Each node learns of it, at some time.
    truth: Rc<RefCell<View>>,
}

impl Cluster {
    pub(crate) fn start(nodes: &[Node], shards: &[Shard]) -> Cluster {
        let member = |number: usize| {
            let address = address(number);
            let (host, port) = (address.ip().to_string(), address.port());
            let master = shards
                .iter()
                .find(|it| it.replicas.contains(&number))
                .map(|it| it.master);
            Member {
                id: format!("{number:040x}"),
                host,
                port,
                master,
            }
        };
        let bound = |at: usize| u16::try_from(SLOTS * at / shards.len()).expect("a slot");
        let slots = shards.iter().enumerate();
        let slots =
            slots.map(|(at, shard)| (bound(at), bound(at + 1).wrapping_sub(1), shard.master));
        let view = View {
            nodes: (0..nodes.len()).map(member).collect(),
            slots: slots.collect(),
            epoch: 1,
            ..View::default()
        };
        for (me, node) in nodes.iter().enumerate() {
            node.borrow_mut()
                .redis
                .set_view(View { me, ..view.clone() });
        }
        Cluster {
            truth: Rc::new(RefCell::new(view)),
        }
    }

    /// The node that has a slot.
    pub(crate) fn owner(&self, slot: u16) -> usize {
        let truth = self.truth.borrow();
        let range = truth
            .slots
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.expect("each slot has an owner").2
    }

    /// A replica has taken the place of its master.
    pub(crate) fn promoted(&self, nodes: &[Node], old: usize, new: usize) {
        let mut truth = self.truth.borrow_mut();
        truth.epoch += 1;
        truth
            .slots
            .iter_mut()
            .filter(|it| it.2 == old)
            .for_each(|it| it.2 = new);
        truth
            .nodes
            .iter_mut()
            .filter(|it| it.master == Some(old))
            .for_each(|it| it.master = Some(new));
        truth.nodes[new].master = None;
        drop(truth);
        self.tell(&nodes[new], 0);
        self.tell_all(nodes);
    }

    /// A node has become a replica, and knows it.
    pub(crate) fn returned(&self, nodes: &[Node], node: usize, master: usize) {
        self.truth.borrow_mut().nodes[node].master = Some(master);
        self.tell(&nodes[node], 0);
        self.tell_all(nodes);
    }

    /// A node has another address.
    pub(crate) fn moved(&self, nodes: &[Node], node: usize, address: SocketAddr) {
        let mut truth = self.truth.borrow_mut();
        truth.epoch += 1;
        truth.nodes[node].host = address.ip().to_string();
        drop(truth);
        self.tell(&nodes[node], 0);
        self.tell_all(nodes);
    }

    fn tell_all(&self, nodes: &[Node]) {
        let slow = [20, 500, 3_000][usize::try_from(below(3)).expect("small")];
        for node in nodes {
            self.tell(node, below(slow));
        }
    }

    /// A node learns how things are.
    fn tell(&self, node: &Node, millis: u64) {
        let (node, truth) = (Rc::clone(node), Rc::clone(&self.truth));
        later(Duration::from_millis(millis), move || {
            node.borrow_mut().event(move |server| {
                let (truth, Some(view)) = (truth.borrow(), server.redis.view()) else {
                    return;
                };
                view.nodes.clone_from(&truth.nodes);
                view.slots.clone_from(&truth.slots);
                view.epoch = truth.epoch;
            });
        });
    }
}

/// A slot on its way to another shard.
struct Move {
    servers: Rc<Servers>,
    slot: u16,
    from: usize,
    to: usize,
    key: usize,
}

/// The slot of a key moves to another shard.
pub(crate) fn move_slot(servers: &Rc<Servers>, key: usize) {
    let Some(cluster) = &servers.cluster else {
        return;
    };
    let slot = slot(path(key));
    let Some(from) = servers.shard_of(cluster.owner(slot)) else {
        return;
    };
    let mut shards = servers.shards.borrow_mut();
    let to = (from + 1 + usize::try_from(below(2)).expect("small")) % shards.len();
    if shards[from].is_busy || shards[to].is_busy {
        return;
    }
    shards[from].is_busy = true;
    shards[to].is_busy = true;
    shards[to].moved.push(key);
    drop(shards);
    let it = Move {
        servers: Rc::clone(servers),
        slot,
        from,
        to,
        key,
    };
    let (source, target) = it.nodes();
    it.change(target, move |view| _ = view.importing.insert(slot, source));
    it.change(source, move |view| _ = view.migrating.insert(slot, target));
    later(Duration::from_millis(below(300)), move || it.carry());
}

impl Move {
    fn nodes(&self) -> (usize, usize) {
        let shards = self.servers.shards.borrow();
        (shards[self.from].master, shards[self.to].master)
    }

    fn change(&self, node: usize, change: impl FnOnce(&mut View) + 'static) {
        let event = move |server: &mut Server| server.redis.view().map_or((), change);
        self.servers.nodes[node].borrow_mut().event(event);
    }

    /// Carries one key over.
    fn carry(self) {
        let (source, target) = self.nodes();
        let [source, target] = [source, target].map(|node| &self.servers.nodes[node]);
        let both_run = source.borrow().runs() && target.borrow().runs();
        let next = source
            .borrow()
            .redis
            .keys()
            .find(|it| slot(it) == self.slot)
            .map(<[u8]>::to_vec);
        if let (Some(key), true) = (&next, both_run) {
            let entry = source
                .borrow()
                .redis
                .get(key)
                .cloned()
                .expect("the key is there");
            trace(|| format!("*** {} is carried over", key.escape_ascii()));
            target
                .borrow_mut()
                .act(|redis, now| redis.set(key, entry, now));
            source.borrow_mut().act(|redis, now| redis.delete(key, now));
        }
        if next.is_some() || !both_run {
            return later(Duration::from_millis(1 + below(20)), move || self.carry());
        }
        self.finish();
    }

    /// The target has the slot. The source and the others learn of it later.
    fn finish(self) {
        let (source, target) = self.nodes();
        let (slot, servers) = (self.slot, &self.servers);
        let Some(cluster) = &servers.cluster else {
            return;
        };
        trace(|| format!("*** the slot of {} has moved", self.key));
        let mut truth = cluster.truth.borrow_mut();
        let all = std::mem::take(&mut truth.slots);
        for (first, last, owner) in all {
            if (first..=last).contains(&slot) {
                let parts = [
                    (first, slot.wrapping_sub(1), owner),
                    (slot, slot, target),
                    (slot + 1, last, owner),
                ];
                let is_part =
                    |it: &(u16, u16, usize)| it.0 <= it.1 && it.0 >= first && it.1 <= last;
                truth.slots.extend(parts.into_iter().filter(is_part));
            } else {
                truth.slots.push((first, last, owner));
            }
        }
        truth.epoch += 1;
        drop(truth);
        for node in [target, source] {
            let slots = cluster.truth.borrow().slots.clone();
            self.change(node, move |view| {
                view.importing.remove(&slot);
                view.migrating.remove(&slot);
                view.slots = slots;
            });
        }
        cluster.tell_all(&servers.nodes);
        for shard in [self.from, self.to] {
            servers.shards.borrow_mut()[shard].is_busy = false;
        }
    }
}
