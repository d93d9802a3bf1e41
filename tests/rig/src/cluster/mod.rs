//! A Redis Cluster: masters that share the slots, and their replicas.

mod slots;
mod start;
mod view;

use std::collections::HashMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

pub use self::slots::SlotMove;
use self::start::try_start;
use self::view::is_linked;
use crate::{Authority, LONG, Proxy, Server, eventually, rights, unique_key};

/// The prefix that managers put before a lock's name by default.
const PREFIX: &str = "lock:";

/// For how long a replica that has won an election takes its votes for valid. If it became a
/// replica and wanted to be the master again before that, it would believe itself elected already,
/// in an epoch that has passed, and the nodes would not agree for long. (Redis 7.0:
/// `auth_retry_time` in its source; four node timeouts, if that is longer.)
const VOTES: Duration = Duration::from_secs(4);

/// How long a node has to be silent until the others take it for dead.
const NODE_TIMEOUT: Duration = Duration::from_secs(1);

/// How a [`Cluster`] is set up.
#[derive(Clone, Debug)]
pub struct ClusterSetup {
    /// How many masters there are. They have about the same number of slots.
    pub masters: usize,
    /// How many replicas each master has: without any, a cluster needs half as much of the machine.
    pub replicas: usize,
    /// The password of all nodes.
    pub password: Option<String>,
    /// Whether the nodes speak TLS with each other, with replicas and with clients. They have a
    /// certificate for `localhost` and `127.0.0.1`. What a test asks them is not encrypted.
    pub tls: bool,
    /// Whether there is a proxy in front of each node, and the nodes name the proxies. The replicas
    /// use them, too. The bus has none: to each other, the nodes are alive.
    pub proxied: bool,
    /// Further arguments of the nodes, such as `["--cluster-require-full-coverage", "no"]`.
    pub args: Vec<&'static str>,
}

impl Default for ClusterSetup {
    fn default() -> ClusterSetup {
        ClusterSetup {
            masters: 3,
            replicas: 1,
            password: None,
            tls: false,
            proxied: false,
            args: Vec::new(),
        }
    }
}

/// A Redis Cluster on 127.0.0.1; gone when this is dropped.
///
/// The nodes are known by their place: first the masters, then a replica of each master in the same
/// order, and so on. A master and its replicas are a group, whatever becomes
/// of them: the places of a group differ by the number of masters.
///
/// Names are names of locks: the key in Redis is the name behind the default prefix.
pub struct Cluster {
    setup: ClusterSetup,
    authority: Option<Authority>,
    nodes: Vec<Node>,
    /// By the number of a group: when a replica last became its master.
    replaced: Mutex<HashMap<usize, Instant>>,
}

struct Node {
    server: Server,
    proxy: Option<Proxy>,
    /// By which the nodes know each other. It stays the same over a restart.
    id: String,
    /// The port where it listens for clients that speak as its cluster does: with TLS, or without.
    own_port: u16,
}

impl Node {
    /// The port that other nodes and clients are told.
    fn port(&self) -> u16 {
        self.proxy.as_ref().map_or(self.own_port, Proxy::port)
    }
}

impl Cluster {
    /// Starts three masters with a replica each, and returns when all nodes agree that the cluster
    /// works, and the replicas are in sync.
    pub fn start() -> Cluster {
        Cluster::with(ClusterSetup::default())
    }

    /// Starts three masters without replicas.
    pub fn without_replicas() -> Cluster {
        Cluster::with(ClusterSetup {
            replicas: 0,
            ..ClusterSetup::default()
        })
    }

    /// Like [`start`](Self::start), set up in another way.
    pub fn with(setup: ClusterSetup) -> Cluster {
        assert!(
            !(setup.tls && setup.proxied),
            "a proxy has to understand what passes"
        );
        let authority = setup.tls.then(Authority::new);
        let cluster = {
            // Servers that start keep two cores busy. If several clusters started at a time, tests
            // beside them would measure the machine.
            static STARTING: Mutex<()> = Mutex::new(());
            let _one_at_a_time = STARTING.lock();
            let mut attempts = (0..10).map(|_| try_start(&setup, authority.as_ref()));
            let nodes = attempts
                .find_map(|it| it)
                .expect("the nodes can be started");
            Cluster {
                setup,
                authority,
                nodes,
                replaced: Mutex::default(),
            }
        };
        cluster.until_well();
        cluster
    }

    /// The address for a manager, with the login if there is one: that of
    /// [`rights`] or, if the setup has a password, the default user's. It names the first masters.
    pub fn url(&self) -> String {
        self.url_with(&(0..self.setup.masters).collect::<Vec<_>>())
    }

    /// The address for a manager that names these nodes.
    pub fn url_with(&self, places: &[usize]) -> String {
        let login = match (&*rights::login(), &self.setup.password) {
            ("", Some(password)) => format!(":{password}@"),
            (login, _) => login.to_owned(),
        };
        let scheme = if self.setup.tls {
            "rediss+cluster"
        } else {
            "redis+cluster"
        };
        let hosts: Vec<_> = places.iter().map(|&place| self.address(place)).collect();
        format!("{scheme}://{login}{}", hosts.join(","))
    }

    /// Host and port of a node, as the other nodes tell them to clients.
    pub fn address(&self, place: usize) -> String {
        format!("127.0.0.1:{}", self.nodes[place].port())
    }

    /// The certificate that vouches for the nodes, if they speak TLS.
    #[track_caller]
    pub fn roots(&self) -> &str {
        self.authority.as_ref().expect("set up with TLS").pem()
    }

    /// A node. To restart one, use its [`restart`](Server::restart): it knows what it knew of the
    /// cluster, and has no keys.
    pub fn server(&self, place: usize) -> &Server {
        &self.nodes[place].server
    }

    /// The proxy in front of a node.
    #[track_caller]
    pub fn proxy(&self, place: usize) -> &Proxy {
        self.nodes[place]
            .proxy
            .as_ref()
            .expect("set up with proxies")
    }

    /// How many nodes there are.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The slot of a lock.
    pub fn slot_of(&self, name: &str) -> u16 {
        let asked = self.awake().next().expect("a node that answers");
        self.server(asked)
            .query(&["CLUSTER", "KEYSLOT", &format!("{PREFIX}{name}")])
    }

    /// The place of the node that has a lock, once all nodes that answer agree.
    #[track_caller]
    pub fn node_of(&self, name: &str) -> usize {
        self.owner(self.slot_of(name))
    }

    /// The name of a lock that this node has, another one each time.
    #[track_caller]
    pub fn key_on(&self, place: usize) -> String {
        let owners = self.owners();
        assert!(owners.contains(&Some(place)), "node {place} has no slots");
        loop {
            let name = unique_key("cluster");
            if owners[usize::from(self.slot_of(&name))] == Some(place) {
                return name;
            }
        }
    }

    /// The place of the node that owns a slot, once all nodes that answer agree. It may be dead.
    #[track_caller]
    pub fn owner(&self, slot: u16) -> usize {
        self.owners()[usize::from(slot)].expect("a slot with an owner")
    }

    /// The slots that a node owns.
    #[track_caller]
    pub fn slots_of(&self, place: usize) -> Vec<u16> {
        let owners = self.owners();
        (0..)
            .zip(owners)
            .filter(|(_, owner)| *owner == Some(place))
            .map(|(slot, _)| slot)
            .collect()
    }

    /// Whether a node runs and believes itself to be a master.
    #[track_caller]
    pub fn is_master(&self, place: usize) -> bool {
        self.nodes[place].server.is_awake()
            && self.view(place).is_some_and(|it| it.is_master(place))
    }

    /// The places of the replicas in the group of a master, whether they run or not.
    pub fn replicas_of(&self, master: usize) -> Vec<usize> {
        let group = master % self.setup.masters;
        let same = |place: &usize| place % self.setup.masters == group && *place != master;
        (0..self.count()).filter(same).collect()
    }

    /// Waits until a node of the same group has all slots of `old`, which was killed, paused or
    /// failed over, and returns its place.
    #[track_caller]
    pub fn until_replaced(&self, old: usize) -> usize {
        let mut new = None;
        eventually(4 * LONG, "a replica takes over", || {
            new = self
                .replicas_of(old)
                .into_iter()
                .find(|&place| self.is_master(place));
            new.is_some()
                && self.agreed().is_some_and(|it| !it.contains(&Some(old)))
                && self.are_ok()
        });
        self.note_replaced(old);
        new.expect("just found")
    }

    /// Makes a replica the master of its group as an operator does: once the cluster is well, with
    /// `CLUSTER FAILOVER`. Returns when all nodes know. The old master becomes a replica, and loses
    /// nothing. If the group got another master up to 4 s ago, this waits until that is 4 s ago.
    #[track_caller]
    pub fn fail_over(&self, replica: usize) {
        let group = replica % self.setup.masters;
        let rest = VOTES.max(4 * NODE_TIMEOUT);
        eventually(rest + LONG, "the last election is forgotten", || {
            self.replaced
                .lock()
                .get(&group)
                .is_none_or(|at| at.elapsed() > rest)
        });
        self.until_well();
        let mut asked: Option<Instant> = None;
        eventually(2 * LONG, "the replica becomes the master", || {
            // It gives up after 5 s. If it were asked sooner, it would begin anew.
            if asked.is_none_or(|at| at.elapsed() > Duration::from_secs(6)) {
                self.server(replica).query::<()>(&["CLUSTER", "FAILOVER"]);
                asked = Some(Instant::now());
            }
            self.is_master(replica)
        });
        eventually(LONG, "all nodes know the new master", || {
            let others = self.replicas_of(replica);
            self.agreed()
                .is_some_and(|it| others.iter().all(|&other| !it.contains(&Some(other))))
        });
        self.note_replaced(replica);
    }

    /// Cuts a replica off from its master, and from no other node. Returns when it is cut off.
    #[track_caller]
    pub fn cut_off(&self, replica: usize) {
        let server = self.server(replica);
        // The master refuses the password, because it has none.
        assert_eq!(self.setup.password, None, "a password would be lost");
        server.query::<()>(&["CONFIG", "SET", "masterauth", "wrong"]);
        server.query::<i64>(&["CLIENT", "KILL", "TYPE", "master"]);
        eventually(LONG, "the replica is cut off", || !is_linked(server));
    }

    /// Ends what [`cut_off`](Self::cut_off) began. The node may be a master meanwhile.
    #[track_caller]
    pub fn heal(&self, place: usize) {
        self.server(place)
            .query::<()>(&["CONFIG", "SET", "masterauth", ""]);
    }

    fn note_replaced(&self, place: usize) {
        self.replaced
            .lock()
            .insert(place % self.setup.masters, Instant::now());
    }

    /// Waits until all members that answer know each other, and take the cluster for whole, and all
    /// replicas among them are in sync.
    #[track_caller]
    pub fn until_well(&self) {
        eventually(4 * LONG, "the cluster is well", || {
            self.are_ok()
                && self
                    .agreed()
                    .is_some_and(|owners| self.awake().all(|it| self.is_well(it, &owners)))
        });
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("setup", &self.setup)
            .finish_non_exhaustive()
    }
}

/// What the nodes logged says why a failover did not come, or came uncalled.
impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            for node in &self.nodes {
                let log = node.server.log().unwrap_or_default();
                eprintln!("node {} at {}:\n{log}", node.id, node.server.port());
            }
        }
    }
}
