//! The map that says which node has a key, and what shows that it is out of date.
//!
//! The map of one server never changes. Any other map is read by the thread in `thread`, and by no
//! other thread: at the beginning, every ten seconds, when a change is reported, and whenever
//! something shows that the map may be out of date (`MOVED`, a node that cannot be reached or is
//! silent, `READONLY`, `CLUSTERDOWN`). If a node is in no map any more, its connections end.
//!
//! A thread whose map is out of date follows the redirects of the nodes, or tries again. A question
//! to all nodes waits if the map is not fresh.
//!
//! A program may give the address of one node of a cluster as that of a server. The first login
//! there, or the first `MOVED`, shows what the server is. From then on the map has a source.

mod thread;
mod turns;
mod shared;
mod nodes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Settings;
use crate::client::servers::map::Map;
use crate::client::servers::node::{Common, Node};
use crate::client::servers::slots::{Redirect, slot};
use crate::client::servers::source::cluster::Cluster;
use crate::client::servers::source::sentinel::Sentinels;
use crate::client::servers::source::{News, Source, View};
use crate::client::servers::topology::nodes::Nodes;
use crate::client::servers::topology::shared::Shared;
use crate::client::servers::topology::thread::{LEAST_INTERVAL, Reader};
use crate::client::url::address::Servers;
use crate::client::url::target::Target;
use crate::client::wire::endpoint::Endpoint;
use crate::client::wire::failure::Failure;
use crate::client::wire::link::LONG_SILENCE;
use crate::client::wire::login::{self, Access, Credentials, Expected};
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;

/// How many maps a thread uses to connect for one command.
const MOST_MAPS: usize = 4;

pub(crate) struct Topology {
    shared: Arc<Shared>,
    pub(crate) common: Arc<Common>,
}

impl Topology {
    pub(crate) fn new(target: Target, settings: &Settings) -> Result<Topology, Error> {
        let expected = match &target.servers {
            Servers::One(_) => Expected::Server,
            Servers::Sentinels { .. } => Expected::Master,
            Servers::Cluster { .. } => Expected::ClusterNode,
        };
        let access = Access::new(target.credentials, target.db, expected);
        let common = Arc::new(Common::new(access, settings)?);
        let new = |source: Option<Box<dyn Source>>| {
            let nodes = Nodes::new(target.tls.clone(), Arc::clone(&common));
            Topology {
                shared: Arc::new(Shared::new(source, nodes, Arc::clone(&common))),
                common: Arc::clone(&common),
            }
        };
        Ok(match target.servers {
            Servers::One(place) => {
                let one = new(None);
                let view = View::of_one(place.clone(), place);
                one.shared.state.lock().nodes.take_in(&view);
                one
            }
            Servers::Sentinels { hosts, name } => {
                let replicas = settings.replicas;
                let counts = replicas.is_some_and(|(replicas, _)| replicas.count.is_none());
                let login = target.sentinel_login.map(Credentials::Fixed);
                let access = Access::new(login, 0, Expected::Sentinel);
                let tls = target.sentinel_tls;
                new(Some(Box::new(Sentinels::new(
                    name, hosts, access, tls, counts,
                ))))
            }
            Servers::Cluster { hosts } => {
                let seed = |place| Arc::new(Endpoint::new(place, target.tls.clone()));
                let seeds = hosts.into_iter().map(seed).collect();
                let common = Arc::clone(&common);
                new(Some(Box::new(Cluster { seeds, common })))
            }
        })
    }

    /// Registers `call`: see [`OnMove`](crate::client::servers::node::OnMove).
    pub(crate) fn on_move(&self, call: impl Fn(&dyn Fn(&[u8]) -> bool) + Send + Sync + 'static) {
        let _ = self.shared.on_move.set(Box::new(call)); // The keeper sets it once.
    }

    /// True if each key may be on a different node.
    pub(crate) fn is_cluster(&self) -> bool {
        self.common.is_cluster()
    }

    /// Speaks to Redis once. In a cluster, reads the map, and speaks to one node that it names,
    /// unless that node sent the map: a map may name nodes that only its cluster can reach. A
    /// failure comes with the name of the server that could not be reached.
    pub(crate) fn ping(&self, deadline: Moment) -> Result<(), (Failure, String)> {
        if !self.is_cluster() {
            let answer = self.reach("", deadline, Node::ping);
            if answer.is_err() || !self.is_cluster() {
                return answer.map_err(|it| (it, self.name(None)));
            }
        }
        let mut last = Failure::not_sent("no node of the cluster has a slot");
        let mut name = self.name(None);
        let map = match self.fresh_map(deadline) {
            Ok(map) => map,
            Err(failure) => return Err((failure, name)),
        };
        if self.shared.state.lock().nodes.is_from_a_master() {
            return Ok(());
        }
        let mut nodes = map.masters.iter();
        while let Some(node) = nodes.next() {
            // A node that is silent leaves time for another one.
            let left = deadline.since(Moment::now());
            let share = if nodes.len() == 0 { left } else { left / 2 };
            let until = Moment::now().after(share);
            match node.ping(until) {
                Ok(()) => return Ok(()),
                Err(failure) => (last, name) = (failure, node.name().to_owned()),
            }
        }
        Err((last, name))
    }

    /// Connects to the node that has this key. If that fails, and another node turns out to have
    /// the key, connects there.
    pub(crate) fn reach<T>(
        &self,
        key: &str,
        deadline: Moment,
        connect: impl Fn(&Arc<Node>, Moment) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut maps = 1..MOST_MAPS;
        loop {
            let node = self.node_of(key, deadline)?;
            let failure = match connect(&node, deadline) {
                Err(failure) => failure,
                connected => return connected,
            };
            if maps.next().is_none() || !self.knows_better(&node, &failure, deadline) {
                return Err(failure);
            }
        }
    }

    /// Handles a failure to connect to a node. True if the map has a different node by now, or this
    /// node is to be used differently.
    fn knows_better(&self, node: &Node, failure: &Failure, deadline: Moment) -> bool {
        match failure {
            Failure::OutOfTime(_) => return false,
            Failure::Refused(refusal) if refusal.code == login::CLUSTER_NODE => {
                self.join_cluster();
                return true;
            }
            _ => {}
        }
        let reading = self.doubt(node);
        let waits = self.shared.source().is_some_and(Source::is_quick);
        let limit = Moment::now().after(self.common.connect_timeout);
        self.shared
            .has_left(node, if waits { reading } else { 0 }, deadline.min(limit))
    }

    /// Notes that the server is a node of a cluster. Its map stays in use until there is another
    /// one: the node names the owners of the slots that it does not have.
    fn join_cluster(&self) {
        let only = || self.shared.state.lock().nodes.endpoints().pop();
        if self.shared.source.get().is_none()
            && let Some(seed) = only()
            && self.common.join_cluster()
        {
            let cluster = Cluster {
                seeds: vec![seed],
                common: Arc::clone(&self.common),
            };
            let _ = self.shared.source.set(Box::new(cluster)); // This is the only thread that does so.
            self.want_map();
        }
    }

    /// The node that has the slot of this key. If there is no map yet, waits for one: until the
    /// deadline, but no longer than for a connection.
    fn node_of(&self, key: &str, deadline: Moment) -> Result<Arc<Node>, Failure> {
        let map = self.map(deadline)?;
        map.owner(slot(key.as_bytes())).cloned().ok_or_else(|| {
            self.want_map();
            let message = "CLUSTERDOWN no known node has the slot of the key";
            Failure::Refused(Refusal::found("CLUSTERDOWN", message))
        })
    }

    /// All nodes that have keys. Connects to one of them, to learn whether there are others. The
    /// map of a cluster must be fresh: keys on a node that it lacks would not be found.
    pub(crate) fn masters(&self, deadline: Moment) -> Result<Vec<Arc<Node>>, Failure> {
        if !self.is_cluster() {
            let lent = self.reach("", deadline, Node::lend)?;
            if !self.is_cluster() {
                return Ok(vec![Arc::clone(&lent.node)]);
            }
        }
        Ok(self.fresh_map(deadline)?.masters.clone())
    }

    /// True if this node has the key, or no node is known to have it.
    pub(crate) fn may_be_at(&self, node: &Node, redis_key: &[u8]) -> bool {
        let owner = self.shared.state.lock().nodes.owner(redis_key);
        owner.is_none_or(|owner| owner.number == node.number)
    }

    /// The node that has the slot of this key, if a map is at hand. Does not wait: if there is no
    /// map or no such node, asks for a reading of the map.
    pub(crate) fn known_node_of(&self, key: &str) -> Option<Arc<Node>> {
        let node = self.shared.state.lock().nodes.owner(key.as_bytes());
        if node.is_none() {
            self.want_map();
        }
        node
    }

    /// Where to resend a command that `node` answered with `refusal`, and whether after `ASKING`.
    /// `None` if the error is no redirect.
    pub(crate) fn redirected(&self, refusal: &Refusal, node: &Node) -> Option<(Arc<Node>, bool)> {
        let Redirect { to, asks } = Redirect::read(refusal, node.endpoint.place())?;
        self.join_cluster();
        if !self.is_cluster() {
            return None;
        }
        if !asks {
            self.want_map();
        }
        let node = self
            .shared
            .state
            .lock()
            .nodes
            .node_at(to, Some(Moment::now()));
        Some((node, asks))
    }

    /// Notes whether a connection to a node could be opened.
    pub(crate) fn noting<T>(&self, node: &Node, opened: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(failure) = &opened
            && !matches!(failure, Failure::OutOfTime(_))
        {
            let _ = self.doubt(node); // The caller tries again by itself.
        }
        opened
    }

    /// Notes what a node answered: silence and some errors show that the map may be out of date.
    /// `waited` is the time that the node had.
    pub(crate) fn heard(
        &self,
        node: &Node,
        answer: &Result<Vec<Reply>, Failure>,
        waited: Duration,
    ) {
        let is_misplaced = |reply: &Reply| {
            let codes = ["MOVED", "CLUSTERDOWN"];
            matches!(reply, Reply::Error(error) if codes.contains(&&*error.code))
        };
        match answer {
            Ok(replies) if replies.iter().any(Reply::comes_from_wrong_server) => {
                let _ = self.doubt(node); // The caller tries again by itself.
            }
            Ok(replies) if !replies.iter().any(is_misplaced) => {}
            // After a shorter wait, the silence says nothing about the node.
            Err(Failure::Unanswered {
                link_stands: true, ..
            }) if waited < LONG_SILENCE => {}
            Err(Failure::OutOfTime(_)) => {}
            _ if node.is_retired() => {}
            _ => self.want_map(),
        }
    }

    /// A key of this node, made from `stem`. `None` if there is none, or it is not found.
    pub(crate) fn key_at(&self, node: &Node, stem: &str) -> Option<String> {
        let map = self.shared.state.lock().nodes.map().cloned();
        map?.key_at(node, stem)
    }

    /// The server that has this key, as errors name it.
    pub(crate) fn name(&self, key: Option<&str>) -> String {
        let key = key.or((!self.is_cluster()).then_some(""));
        let node = key.and_then(|key| self.shared.state.lock().nodes.owner(key.as_bytes()));
        let node = node.as_ref().map(|node| node.name());
        match self.shared.source() {
            Some(source) => source.name(node),
            None => node.unwrap_or_default().to_owned(),
        }
    }

    /// The map may be out of date. Does not wait.
    fn want_map(&self) {
        self.shared.want(&mut self.shared.state.lock());
        let _ = self.start(); // If no thread can start, the next command says so.
    }

    /// The same, because the node that the map names cannot be used. Returns the number of the
    /// reading that heeds this.
    fn doubt(&self, node: &Node) -> u64 {
        let reading = self.shared.doubt(node);
        let _ = self.start();
        reading
    }

    /// The map. Waits for the first one as long as for a connection, however many servers are asked
    /// for it.
    pub(crate) fn map(&self, deadline: Moment) -> Result<Arc<Map>, Failure> {
        if let Some(map) = self.shared.state.lock().nodes.map() {
            return Ok(Arc::clone(map)); // Each command passes through here.
        }
        let limit = Moment::now().after(self.common.connect_timeout);
        self.map_since(Moment::PAST, deadline.min(limit))
    }

    /// The map as it is, or was up to a second ago: for callers that ask all nodes.
    fn fresh_map(&self, deadline: Moment) -> Result<Arc<Map>, Failure> {
        self.map_since(Moment::now().before(LEAST_INTERVAL), deadline)
    }

    /// When the last map was asked for.
    pub(crate) fn asked(&self) -> Moment {
        self.shared.state.lock().began
    }

    /// A map that was asked for at this moment or later. Starts the thread that asks, and waits.
    pub(crate) fn map_since(&self, since: Moment, deadline: Moment) -> Result<Arc<Map>, Failure> {
        self.start()?;
        self.shared.map_since(since, deadline)
    }

    /// Starts the thread, if there is somebody to ask.
    fn start(&self) -> Result<(), Failure> {
        let thread = &self.shared.thread;
        let Some(source) = self.shared.source().filter(|_| !thread.was_started()) else {
            return Ok(());
        };
        let shared = Arc::clone(&self.shared);
        let run = move || Reader::new(&shared).run();
        thread
            .start(source.thread(), run)
            .map_err(Failure::not_sent)
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        let stopped = self.shared.thread.stop(self.common.response_timeout);
        if let (Err(what), Some(source)) = (stopped, self.shared.source()) {
            source.tell(News::Stuck(what));
        }
    }
}

impl fmt::Debug for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // (No mutex: the copy of a forked child may stay locked.)
        f.debug_struct("Topology").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::url::address::Address;

    fn of(url: &str) -> Topology {
        let target = Address::parse(url).unwrap().with_tls(None).unwrap();
        Topology::new(target, &Settings::default()).unwrap()
    }

    #[test]
    fn the_server_that_is_a_node_of_a_cluster_has_all_keys_until_there_is_a_map() {
        let topology = of("redis://127.0.0.1:7001");
        let one = topology.known_node_of("a").unwrap();
        topology.join_cluster();
        assert!(topology.is_cluster() && !one.is_retired());
        assert_eq!(topology.known_node_of("a").unwrap().number, one.number);
        topology.stop();
    }

    /// They get the password.
    #[cfg(feature = "tls")]
    #[test]
    fn with_tls_to_one_node_of_a_cluster_the_others_are_spoken_to_over_tls() {
        let topology = of("rediss://:password@127.0.0.1:7000");
        let one = topology.known_node_of("a").unwrap();
        let moved = Refusal::new("MOVED 1 127.0.0.1:7001", "");
        let (other, _) = topology.redirected(&moved, &one).unwrap();
        for node in [one, other] {
            assert!(node.endpoint.tls().is_some(), "{node:?}");
        }
        topology.stop();
    }
}
