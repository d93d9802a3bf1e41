//! How the nodes of a cluster are started: with a state on their disks in which they know each
//! other, as after a restart. So they need not be introduced to each other first.
//!
//! A master that starts refuses all commands for 2 s. A replica that takes over does not. So all
//! nodes start as replicas of masters that do not exist, take over, and forget those.

use std::thread;
use std::time::{Duration, Instant};

use super::view::{current_epoch, is_ok};
use super::{ClusterSetup, NODE_TIMEOUT, Node};
use crate::ports::{BUS, free_node_port, free_port};
use crate::wait::POLL;
use crate::{Authority, Identity, LONG, Proxy, Server, eventually, server_version};

/// For how long a master that has started refuses all commands: Redis's `CLUSTER_WRITABLE_DELAY`.
const JUST_STARTED: Duration = Duration::from_secs(2);

/// How many slots a cluster has.
pub(super) const SLOTS: u16 = 16_384;

/// What a node is going to be.
struct Plan {
    id: String,
    port: u16,
    tls_port: Option<u16>,
    proxy: Option<Proxy>,
}

impl Plan {
    fn new(setup: &ClusterSetup) -> Plan {
        let node_port = free_node_port();
        let (port, tls_port) = if setup.tls {
            (free_port(), Some(node_port))
        } else {
            (node_port, None)
        };
        let proxy = setup.proxied.then(|| Proxy::start(port));
        // The same id at the same port of another cluster would make the two clusters one.
        Plan {
            id: format!("{:032x}{port:08x}", std::process::id()),
            port,
            tls_port,
            proxy,
        }
    }

    /// The port that the other nodes and the clients are told.
    fn announced(&self) -> u16 {
        self.proxy.as_ref().map_or(self.own_port(), Proxy::port)
    }

    fn bus(&self) -> u16 {
        self.own_port() + BUS
    }

    fn own_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    fn args(&self, setup: &ClusterSetup) -> Vec<String> {
        let mut args = vec![
            ("--cluster-enabled", "yes".to_owned()),
            (
                "--cluster-node-timeout",
                NODE_TIMEOUT.as_millis().to_string(),
            ),
            ("--cluster-replica-validity-factor", "0".to_owned()),
            // No replica leaves its master for another one that has none.
            ("--cluster-migration-barrier", "999".to_owned()),
            // By default a master waits 5 s for more replicas before it sends its data.
            ("--repl-diskless-sync-delay", "0".to_owned()),
            ("--repl-ping-replica-period", "1".to_owned()),
        ];
        if server_version() >= (7, 0) {
            // Without this, a master that loses its last slot becomes a replica. (Before Redis 7 it
            // always does.)
            args.push(("--cluster-allow-replica-migration", "no".to_owned()));
        }
        if let Some(password) = &setup.password {
            args.push(("--requirepass", password.clone()));
            args.push(("--masterauth", password.clone()));
        }
        if setup.tls {
            args.push(("--tls-cluster", "yes".to_owned()));
            args.push(("--tls-replication", "yes".to_owned()));
        }
        if self.proxy.is_some() {
            args.push(("--cluster-announce-ip", "127.0.0.1".to_owned()));
            args.push(("--cluster-announce-port", self.announced().to_string()));
            args.push(("--cluster-announce-bus-port", self.bus().to_string()));
        }
        let args = args
            .into_iter()
            .flat_map(|(name, value)| [name.to_owned(), value]);
        args.chain(setup.args.iter().map(|&arg| arg.to_owned()))
            .collect()
    }
}

/// Starts all nodes; `None` if one of their ports was taken meanwhile.
pub(super) fn try_start(setup: &ClusterSetup, authority: Option<&Authority>) -> Option<Vec<Node>> {
    let identity = authority.map(|it| it.issue(&["localhost", "127.0.0.1"]));
    let tls = identity.as_ref().zip(authority);
    let plans: Vec<_> = (0..setup.masters * (1 + setup.replicas))
        .map(|_| Plan::new(setup))
        .collect();
    let servers: Option<Vec<_>> = thread::scope(|scope| {
        let start = |me: usize| {
            let nodes = state(setup, &plans, me);
            let plan = &plans[me];
            scope.spawn(move || start(setup, plan, &nodes, tls))
        };
        let starting: Vec<_> = (0..plans.len()).map(start).collect();
        starting
            .into_iter()
            .map(|it| it.join().expect("the node starts"))
            .collect()
    });
    let servers = servers?;
    take_over(setup, &plans, &servers);
    let nodes = servers.into_iter().zip(plans).map(|(server, plan)| Node {
        own_port: plan.own_port(),
        server,
        proxy: plan.proxy,
        id: plan.id,
    });
    Some(nodes.collect())
}

fn start(
    setup: &ClusterSetup,
    plan: &Plan,
    nodes: &str,
    tls: Option<(&Identity, &Authority)>,
) -> Option<Server> {
    let tls = plan
        .tls_port
        .zip(tls)
        .map(|(port, (identity, clients))| (port, identity, clients));
    Server::try_node(plan.port, nodes, tls, plan.args(setup))
}

/// Makes the masters what they are to be.
fn take_over(setup: &ClusterSetup, plans: &[Plan], members: &[Server]) {
    // A node that took over before that would be a master that has just started. If the nodes start
    // so slowly that one of them takes the ghosts for dead before the last is there, they never all
    // take the cluster for working. Then they take over when no master counts as just started.
    let end = Instant::now() + JUST_STARTED;
    while !members.iter().all(is_ok) && Instant::now() < end {
        thread::sleep(POLL);
    }
    for master in &members[..setup.masters] {
        master.query::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        // A master that had not heard of this one would take the same epoch. Then one of them takes
        // another. If it died before its replica had heard of that, nobody would vote for the
        // replica.
        let epoch = current_epoch(master);
        eventually(LONG, "all nodes have heard of the master", || {
            members.iter().all(|it| current_epoch(it) == epoch)
        });
    }
    for (place, replica) in members.iter().enumerate().skip(setup.masters) {
        let master = &plans[place % setup.masters].id;
        eventually(LONG, "the replica has heard of its master", || {
            replica.command(&["CLUSTER", "REPLICATE", master]).is_ok()
        });
    }
    for ghost in (0..setup.masters).map(ghost) {
        for member in members {
            member.query::<()>(&["CLUSTER", "FORGET", &ghost]);
        }
    }
}

/// The id of a master that does not exist.
fn ghost(group: usize) -> String {
    format!("{:040x}", group + 1)
}

/// What the node `me` knows when it starts: all members, and their masters.
fn state(setup: &ClusterSetup, plans: &[Plan], me: usize) -> String {
    let nodes = plans.iter().enumerate().map(|(place, plan)| {
        let (id, port, bus) = (&plan.id, plan.announced(), plan.bus());
        let myself = if place == me { "myself," } else { "" };
        let master = ghost(place % setup.masters);
        format!("{id} 127.0.0.1:{port}@{bus} {myself}slave {master} 0 1 0 connected\n")
    });
    let border = |group: usize| usize::from(SLOTS) * group / setup.masters;
    let ghosts = (0..setup.masters).map(|group| {
        let (id, epoch) = (ghost(group), group + 1);
        let (first, last) = (border(group), border(group + 1) - 1);
        // Nothing listens at that port.
        format!("{id} 127.0.0.1:1@1 master - 0 1 {epoch} connected {first}-{last}\n")
    });
    let epoch = format!("vars currentEpoch {} lastVoteEpoch 0\n", setup.masters);
    nodes.chain(ghosts).chain([epoch]).collect()
}
