//! What keeps the locks of a scene, and how programs reach it.

use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::scheduler::readdress;
use crate::simulation::judge::Judge;
pub(crate) use crate::simulation::plan::{Copies, Engine};
use crate::simulation::redis::{Redis, Settings};
use crate::simulation::world::cluster::Cluster;
use crate::simulation::world::replication::follow;
use crate::simulation::world::sentinels::{self, Sentinels};
use crate::simulation::world::server::Server;
use crate::{Builder, LockManager, Replicas};

impl Engine {
    pub(crate) fn builder(self) -> Builder {
        let (url, wanted) = match self {
            Engine::Memory => return LockManager::builder_in_memory(),
            Engine::Server => ("redis://redis:6379/", None),
            Engine::Replicas(copies) => ("redis://redis:6379/", Some(copies)),
            Engine::Sentinel(copies) => (
                "redis+sentinel://sentinel1:6379,sentinel2:6379,sentinel3:6379/main",
                Some(copies),
            ),
            Engine::Cluster(copies) => (
                "redis+cluster://node1:6379,node2:6379,node3:6379",
                Some(copies),
            ),
        };
        let builder = LockManager::builder(url);
        match wanted {
            Some(copies) if copies.wanted > 0 => {
                let is_all = copies.are_safe() && matches!(self, Engine::Sentinel(_));
                let some = Replicas::at_least(u32::try_from(copies.wanted).expect("a few"));
                builder.replicas(
                    if is_all { Replicas::all() } else { some },
                    Duration::from_millis(100),
                )
            }
            _ => builder,
        }
    }

    /// Starts one of the nodes.
    fn node(self, number: usize, judge: &Arc<Judge>) -> Node {
        let name = match self {
            Engine::Server | Engine::Replicas(_) if number == 0 => "redis".to_owned(),
            _ => format!("node{}", number + 1),
        };
        let settings = Settings {
            replicates: self.copies().count > 0,
            ..Settings::default()
        };
        Server::start(address(number), &name, Redis::new(settings), judge)
    }
}

pub(crate) type Node = Rc<RefCell<Server>>;

/// The servers of a scene.
pub(crate) struct Servers {
    pub(crate) judge: Arc<Judge>,
    /// Where something listens. The nodes come first.
    pub(crate) addresses: RefCell<Vec<SocketAddr>>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) shards: RefCell<Vec<Shard>>,
    pub(crate) sentinels: Option<Sentinels>,
    pub(crate) cluster: Option<Cluster>,
    /// No failover loses what a program was told to have.
    pub(crate) are_safe: bool,
}

/// A master and its replicas, by the numbers of the nodes.
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    pub(crate) master: usize,
    pub(crate) replicas: Vec<usize>,
    /// A failover, or the move of a slot, is under way.
    pub(crate) is_busy: bool,
    /// Keys that came here from another shard: no replica was asked for them.
    pub(crate) moved: Vec<usize>,
}

impl Servers {
    pub(crate) fn start(engine: Engine, judge: &Arc<Judge>) -> Servers {
        let (copies, masters) = (engine.copies(), engine.masters());
        let mut addresses: Vec<_> = (0..engine.nodes()).map(address).collect();
        let nodes: Vec<_> = (0..engine.nodes())
            .map(|number| engine.node(number, judge))
            .collect();
        let shard = |master: usize| {
            let replicas = (0..copies.count)
                .map(|it| masters + master * copies.count + it)
                .collect();
            Shard {
                master,
                replicas,
                is_busy: false,
                moved: Vec::new(),
            }
        };
        let shards: Vec<_> = (0..masters).map(shard).collect();
        for shard in &shards {
            shard
                .replicas
                .iter()
                .for_each(|replica| follow(&nodes[shard.master], &nodes[*replica]));
        }
        let sentinels =
            matches!(engine, Engine::Sentinel(_)).then(|| Sentinels::start(copies.count, judge));
        if sentinels.is_some() {
            addresses.extend(sentinels::addresses());
        }
        let cluster = matches!(engine, Engine::Cluster(_)).then(|| Cluster::start(&nodes, &shards));
        let (addresses, shards) = (RefCell::new(addresses), RefCell::new(shards));
        Servers {
            judge: Arc::clone(judge),
            addresses,
            nodes,
            shards,
            sentinels,
            cluster,
            are_safe: copies.are_safe(),
        }
    }

    /// The address of one of the servers.
    pub(crate) fn address(&self, number: usize) -> SocketAddr {
        let addresses = self.addresses.borrow();
        addresses[number % addresses.len()]
    }

    /// One of the nodes, or of the sentinels.
    pub(crate) fn server(&self, number: usize) -> Node {
        let sentinels = self.sentinels.iter().flat_map(|it| &it.servers);
        let all: Vec<_> = self.nodes.iter().chain(sentinels).collect();
        Rc::clone(all[number % all.len()])
    }

    /// The server has another address from now on, behind the same name.
    pub(crate) fn move_to_another_address(&self, number: usize) {
        let mut addresses = self.addresses.borrow_mut();
        let IpAddr::V4(ip) = addresses[number].ip() else {
            unreachable!("all have such addresses")
        };
        let [a, b, c, d] = ip.octets();
        let (old, new) = (
            addresses[number],
            SocketAddr::from(([a, b, c.wrapping_add(1), d], 6379)),
        );
        addresses[number] = new;
        readdress(old, new);
        if let Some(cluster) = &self.cluster {
            cluster.moved(&self.nodes, number, new);
        }
    }

    /// The number of the shard to which a node belongs.
    pub(crate) fn shard_of(&self, node: usize) -> Option<usize> {
        let shards = self.shards.borrow();
        shards
            .iter()
            .position(|it| it.master == node || it.replicas.contains(&node))
    }
}

/// The address of a node.
pub(crate) fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, u8::try_from(number + 1).expect("a few")], 6379))
}
