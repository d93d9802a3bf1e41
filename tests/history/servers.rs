//! Where the locks are: on one server, or on a cluster.

use std::thread;
use std::time::Duration;

use relatch_rig::{Cluster, ClusterSetup, Exchange, Proxy, Server, Terminator};

use crate::faults::Weather;

/// How many masters a cluster has. They come first.
pub(crate) const MASTERS: usize = 3;

/// Where the locks are.
pub(crate) enum Servers {
    One {
        server: Box<Server>,
        proxy: Proxy,
        terminator: Option<Box<Terminator>>,
    },
    Cluster(Box<Cluster>),
}

/// How a master is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is killed, together with all that it wrote for so long.
    KilledAfter(Duration),
    Stopped,
    ByOperator,
}

impl Servers {
    pub(crate) fn start(weather: Weather) -> Servers {
        if weather.needs_cluster() {
            return Servers::Cluster(Box::new(Cluster::with(ClusterSetup {
                masters: MASTERS,
                proxied: true,
                ..ClusterSetup::default()
            })));
        }
        let server = Box::new(Server::start());
        let proxy = Proxy::start(server.port());
        let is_over_tls = cfg!(feature = "tls") && weather == Weather::Messages;
        let terminator = is_over_tls.then(|| Box::new(Terminator::start(proxy.port())));
        Servers::One {
            server,
            proxy,
            terminator,
        }
    }

    /// The only server.
    pub(crate) fn server(&self) -> &Server {
        match self {
            Servers::One { server, .. } => server,
            Servers::Cluster(_) => unreachable!("a cluster has several"),
        }
    }

    /// The cluster.
    pub(crate) fn cluster(&self) -> &Cluster {
        match self {
            Servers::One { .. } => unreachable!("there is one server"),
            Servers::Cluster(cluster) => cluster,
        }
    }

    /// The proxies in front of the servers.
    pub(crate) fn proxies(&self) -> Vec<&Proxy> {
        match self {
            Servers::One { proxy, .. } => vec![proxy],
            Servers::Cluster(cluster) => (0..cluster.count()).map(|it| cluster.proxy(it)).collect(),
        }
    }

    /// What the servers were sent, in the order in which it was sent, and what they answered.
    pub(crate) fn journal(&self) -> Vec<Exchange> {
        let mut all: Vec<_> = self.proxies().iter().flat_map(|it| it.journal()).collect();
        all.sort_by_key(|exchange| exchange.sent);
        all
    }

    /// The keys of all locks.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = |server: &Server| server.query::<Vec<String>>(&["KEYS", "lock:*"]);
        match self {
            Servers::One { server, .. } => keys(server),
            Servers::Cluster(cluster) => {
                let masters = masters(cluster).into_iter();
                masters.flat_map(|it| keys(cluster.server(it))).collect()
            }
        }
    }

    /// The address, and whom the workers have to trust: empty without TLS.
    pub(crate) fn url_and_roots(&self) -> (String, &str) {
        match self {
            Servers::One {
                terminator: Some(terminator),
                ..
            } => (terminator.url(), terminator.roots()),
            Servers::One { proxy, .. } => (proxy.url(), ""),
            Servers::Cluster(cluster) => (cluster.url(), ""),
        }
    }

    /// To how many servers a manager may have connections for locks.
    pub(crate) fn nodes(&self) -> usize {
        self.proxies().len()
    }
}

/// The places of the masters.
pub(crate) fn masters(cluster: &Cluster) -> Vec<usize> {
    let places = 0..cluster.count();
    places.filter(|&it| cluster.is_master(it)).collect()
}

/// Has a replica become the master in the place of `old`, and waits until the cluster is well
/// again: only then is the next failover safe. If the replica is cut off first, calls `cut_off`
/// when it is.
pub(crate) fn fail_over(cluster: &Cluster, old: usize, way: Way, cut_off: impl FnOnce()) {
    let (server, new) = (cluster.server(old), cluster.replicas_of(old)[0]);
    match way {
        Way::KilledAfter(cut_off_for) => {
            cluster.cut_off(new);
            cut_off();
            // Locks are taken meanwhile, or refused. This waits for no event.
            thread::sleep(cut_off_for);
            server.kill();
            cluster.until_replaced(old);
            cluster.heal(new);
            server.restart();
        }
        Way::Stopped => {
            server.pause();
            cluster.until_replaced(old);
            server.resume();
        }
        Way::ByOperator => cluster.fail_over(new),
    }
    cluster.until_well();
}
