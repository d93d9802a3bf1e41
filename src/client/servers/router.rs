//! Which node has a key: the one server, or that of a cluster.
//!
//! A program may give the address of one node of a cluster as that of a server. The first login
//! there, or the first `MOVED`, shows what the server is, and makes that node the first of a
//! cluster.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Settings;
use crate::client::servers::cluster::Cluster;
use crate::client::servers::node::{Common, Location, Node, OnMove};
use crate::client::servers::sentinel::master::Master;
use crate::client::servers::sentinel::sentinels::Sentinels;
use crate::client::servers::slots::Redirect;
use crate::client::url::address::Servers;
use crate::client::url::target::Target;
use crate::client::wire::endpoint::Endpoint;
use crate::client::wire::failure::Failure;
use crate::client::wire::link::LONG_SILENCE;
use crate::client::wire::login::{self, Access, Credentials, Expected};
use crate::client::wire::pool::Lent;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::resp::Reply;

pub(crate) struct Router {
    named: Nodes,
    /// The cluster, if the one server has turned out to be a node of it.
    joined: OnceLock<Nodes>,
    pub(crate) common: Arc<Common>,
    on_move: Arc<OnMove>,
}

enum Nodes {
    /// The server of the URL, or the master that the sentinels name.
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
}

impl Router {
    pub(crate) fn new(target: Target, settings: &Settings) -> Result<Router, Error> {
        let Target {
            servers,
            credentials,
            db,
            tls,
            sentinel_login,
            sentinel_tls,
        } = target;
        let common =
            |expected| Common::new(Access::new(credentials, db, expected), settings).map(Arc::new);
        Ok(match servers {
            Servers::One(place) => {
                let location = Location::At(Endpoint::new(place, tls));
                Router::to_one(Arc::new(Node::new(location, common(Expected::Server)?)))
            }
            Servers::Sentinels { hosts, name } => {
                let counts_replicas = settings
                    .replicas
                    .is_some_and(|(replicas, _)| replicas.count.is_none());
                let access = Access::new(
                    sentinel_login.map(Credentials::Fixed),
                    0,
                    Expected::Sentinel,
                );
                let sentinels = Sentinels::new(name, hosts, access, sentinel_tls, counts_replicas);
                let location = Location::Master(Arc::new(Master::new(sentinels, tls)));
                Router::to_one(Arc::new(Node::new(location, common(Expected::Master)?)))
            }
            Servers::Cluster { hosts } => {
                let cluster = |common, on_move| Cluster::new(hosts, tls, common, on_move);
                Router::to_cluster(common(Expected::ClusterNode)?, cluster)
            }
        })
    }

    fn to_one(node: Arc<Node>) -> Router {
        let common = Arc::clone(&node.common);
        let on_move = Arc::<OnMove>::default();
        let moves = Arc::clone(&on_move);
        node.on_switch(move || {
            if let Some(call) = moves.get() {
                call(&|_| true);
            }
        });
        Router {
            named: Nodes::One(node),
            joined: OnceLock::new(),
            common,
            on_move,
        }
    }

    fn to_cluster(
        common: Arc<Common>,
        cluster: impl FnOnce(Arc<Common>, Arc<OnMove>) -> Cluster,
    ) -> Router {
        let on_move = Arc::<OnMove>::default();
        let cluster = cluster(Arc::clone(&common), Arc::clone(&on_move));
        Router {
            named: Nodes::Cluster(Arc::new(cluster)),
            joined: OnceLock::new(),
            common,
            on_move,
        }
    }

    /// Registers `call`: see [`OnMove`].
    pub(crate) fn on_move(&self, call: impl Fn(&dyn Fn(&[u8]) -> bool) + Send + Sync + 'static) {
        let _ = self.on_move.set(Box::new(call)); // The keeper sets it once.
    }

    fn nodes(&self) -> &Nodes {
        self.joined.get().unwrap_or(&self.named)
    }

    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self.nodes() {
            Nodes::One(_) => None,
            Nodes::Cluster(cluster) => Some(cluster),
        }
    }

    /// Speaks to Redis once. In a cluster, the nodes are tried one after the other.
    /// A failure comes with the name of the server.
    pub(crate) fn ping(&self, deadline: Moment) -> Result<(), (Failure, String)> {
        if let Nodes::One(one) = self.nodes() {
            let answer = one.ping(deadline);
            let is_cluster = self.learn(&answer);
            if !is_cluster {
                return answer.map_err(|failure| (failure, one.name()));
            }
        }
        self.cluster()
            .map_or(Ok(()), |cluster| cluster.ping(deadline))
    }

    /// Opens a link to the node that has this key.
    pub(crate) fn reach(
        &self,
        key: &str,
        deadline: Moment,
        open: impl Fn(&Node, Moment) -> Result<Lent, Failure>,
    ) -> Result<(Lent, Arc<Node>), Failure> {
        let mut node = self.node_of(key, deadline)?;
        let mut link = open(&node, deadline);
        let is_cluster = self.learn(&link);
        if is_cluster {
            node = self.node_of(key, deadline)?;
            link = open(&node, deadline);
        }
        Ok((self.noting(link)?, node))
    }

    /// If the login shows that the one server is a node of a cluster, this router becomes one of a
    /// cluster. True if so.
    fn learn<T>(&self, opened: &Result<T, Failure>) -> bool {
        matches!(opened, Err(Failure::Refused(refusal)) if refusal.code == login::CLUSTER_NODE)
            && self.become_cluster().is_some()
    }

    /// The node that has this key. In a cluster whose map is not known yet, waits for it until the
    /// deadline.
    fn node_of(&self, key: &str, deadline: Moment) -> Result<Arc<Node>, Failure> {
        match self.nodes() {
            Nodes::One(one) => Ok(Arc::clone(one)),
            Nodes::Cluster(cluster) => cluster.node_of(key, deadline),
        }
    }

    /// All nodes that have keys. Connects to one of them, to learn whether there are others. The
    /// map of a cluster must be fresh: what a node has that it lacks would not be found.
    pub(crate) fn masters(&self, deadline: Moment) -> Result<Vec<Arc<Node>>, Failure> {
        if let Nodes::One(one) = self.nodes() {
            let opened = one.lend(deadline);
            let is_cluster = self.learn(&opened);
            if !is_cluster {
                return opened.map(|_| vec![Arc::clone(one)]);
            }
        }
        match self.cluster() {
            Some(cluster) => Ok(cluster.fresh_map(deadline)?.masters.clone()),
            None => Ok(Vec::new()),
        }
    }

    /// The node that has this key, as far as is known. Does not wait.
    pub(crate) fn known_node_of(&self, key: &str) -> Option<Arc<Node>> {
        match self.nodes() {
            Nodes::One(one) => Some(Arc::clone(one)),
            Nodes::Cluster(cluster) => cluster.known_node_of(key),
        }
    }

    /// Where to send a command again that was answered by `refusal` at `node`, and whether behind
    /// `ASKING`. `None` if the error is no redirect.
    pub(crate) fn redirected(&self, refusal: &Refusal, node: &Node) -> Option<(Arc<Node>, bool)> {
        let Redirect { to, asks } = Redirect::read(refusal, node.place()?)?;
        let cluster = self.become_cluster()?;
        if !asks {
            cluster.want_map();
        }
        Some((cluster.node_at(to), asks))
    }

    /// The cluster. If the URL names a single server, and that is a node of a cluster: the first
    /// call makes the cluster, which asks that server first, and retires the `Node` that was used
    /// for it so far. `None` if sentinels name the server.
    fn become_cluster(&self) -> Option<&Arc<Cluster>> {
        if let Nodes::One(one) = self.nodes() {
            let endpoint = one.endpoint()?;
            let place = endpoint.place().clone();
            let tls = endpoint.tls().map(|(tls, _)| tls.clone());
            let common = Arc::new(self.common.of_cluster());
            let cluster = Cluster::of_one(place, tls, common, Arc::clone(&self.on_move));
            self.joined
                .get_or_init(|| Nodes::Cluster(Arc::new(cluster)));
            one.retire();
        }
        self.cluster()
    }

    /// Notes whether a connection to a node could be opened.
    pub(crate) fn noting<T>(&self, opened: Result<T, Failure>) -> Result<T, Failure> {
        if let (Err(failure), Some(cluster)) = (&opened, self.cluster())
            && !matches!(failure, Failure::OutOfTime(_))
        {
            cluster.want_map();
        }
        opened
    }

    /// Notes what a node answered: silence and some errors show that the map may be out of date.
    /// `waited` is the time that the node had.
    pub(crate) fn heard(&self, answer: &Result<Vec<Reply>, Failure>, waited: Duration) {
        let Some(cluster) = self.cluster() else {
            return;
        };
        let is_misplaced = |reply: &Reply| {
            let codes = ["MOVED", "READONLY", "CLUSTERDOWN", "MASTERDOWN"];
            matches!(reply, Reply::Error(error) if codes.contains(&&*error.code))
        };
        let shows_an_old_map = match answer {
            Ok(replies) => replies.iter().any(is_misplaced),
            // After a shorter wait, the silence says nothing about the node.
            Err(Failure::Unanswered {
                link_stands: true, ..
            }) => waited >= LONG_SILENCE,
            Err(Failure::OutOfTime(_)) => false,
            Err(_) => true,
        };
        if shows_an_old_map {
            cluster.want_map();
        }
    }

    /// A key of this node, made from `stem`: `stem` itself, unless the node is one of a cluster.
    /// `None` if the node has no slots.
    pub(crate) fn key_at(&self, node: &Node, stem: &str) -> Option<String> {
        match self.cluster() {
            Some(cluster) => cluster.key_at(node, stem),
            None => Some(stem.to_owned()),
        }
    }

    /// The server that has this key, as errors name it.
    pub(crate) fn name(&self, key: Option<&str>) -> String {
        match self.nodes() {
            Nodes::One(one) => one.name(),
            Nodes::Cluster(cluster) => {
                let node = key.and_then(|key| cluster.known_node_of(key));
                node.map_or_else(|| cluster.describe(), |node| node.name())
            }
        }
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        if let Nodes::One(one) = &self.named {
            one.stop();
        }
        if let Some(cluster) = self.cluster() {
            cluster.stop(self.common.response_timeout);
        }
    }
}

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("name", &self.name(None))
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "tls")]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::url::address::Address;

    /// They get the password.
    #[test]
    fn with_tls_to_one_node_of_a_cluster_the_others_are_spoken_to_over_tls() {
        let address = Address::parse("rediss://:password@127.0.0.1:7000").unwrap();
        let router = Router::new(address.with_tls(None).unwrap(), &Settings::default()).unwrap();
        let one = router.known_node_of("a").unwrap();
        let moved = Refusal::new("MOVED 1 127.0.0.1:7001", "");
        let (other, _) = router.redirected(&moved, &one).unwrap();
        for node in [one, other] {
            assert!(node.endpoint().unwrap().tls().is_some(), "{node:?}");
        }
    }
}
