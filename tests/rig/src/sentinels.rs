//! A master with replicas, and the sentinels that watch them.

use std::collections::HashMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{FromRedisValue, Value};

use crate::ports::free_port;
use crate::{Authority, LONG, Proxy, Server, Terminator, eventually, rights, server_version};

/// The name under which the sentinels know the master.
pub const MASTER: &str = "mymaster";

/// How many sentinels there are. Two of them are a majority.
const SENTINELS: usize = 3;

/// The shortest time of silence before Redis 7, whose sentinels ask once a second. With half a
/// second, a sentinel that has just turned to a new master could miss its first answer. It then
/// replaced a master that was well by one that was empty, and that one again.
const LEAST_DOWN_AFTER: Duration = Duration::from_secs(2);

/// How a deployment of [`Sentinels`] is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many replicas the master has.
    pub replicas: usize,
    /// How long a master has to be silent until a sentinel takes it for dead; before Redis 7, at
    /// least two seconds.
    pub down_after: Duration,
    /// How long a server that wrongly believes itself to be the master may go on, until the
    /// sentinels make it a replica: the master that a planned failover has replaced, or a killed
    /// one that was started again. Redis's own value is 8 s, which Redis before 7 always uses.
    pub demoted_after: Duration,
    /// The password of the sentinels. (The servers have none.)
    pub password: Option<String>,
    /// Whether there is a proxy in front of each server, and the sentinels name the proxies. The
    /// replicas and the sentinels use them, too.
    pub proxied: bool,
    /// Whether clients reach the servers over TLS, by the proxies if there are any. The replicas
    /// and the sentinels do without.
    pub tls: bool,
}

impl Default for Setup {
    fn default() -> Setup {
        let [down_after, demoted_after] = [500, 2000].map(Duration::from_millis);
        Setup {
            replicas: 2,
            down_after,
            demoted_after,
            password: None,
            proxied: false,
            tls: false,
        }
    }
}

/// A master, its replicas, and three sentinels, all on 127.0.0.1; gone when this is dropped.
///
/// The servers are known by their place: 0 is the first master, the replicas follow. A server that
/// is restarted is empty, and a master, until the sentinels make it a replica.
pub struct Sentinels {
    setup: Setup,
    /// Dropped before the servers, so that no sentinel sees them die.
    guards: Vec<Server>,
    nodes: Vec<Node>,
    authority: Authority,
}

struct Node {
    server: Server,
    proxy: Option<Proxy>,
    terminator: Option<Terminator>,
}

impl Node {
    /// The port by which the sentinels know it.
    fn port(&self) -> u16 {
        let behind = || {
            self.proxy
                .as_ref()
                .map_or_else(|| self.server.port(), Proxy::port)
        };
        self.terminator
            .as_ref()
            .map_or_else(behind, Terminator::port)
    }

    /// Has the server say under which port it can be reached.
    fn announce(&self) {
        if self.port() != self.server.port() {
            let port = self.port().to_string();
            self.server
                .query::<()>(&["CONFIG", "SET", "replica-announce-ip", "127.0.0.1"]);
            self.server
                .query::<()>(&["CONFIG", "SET", "replica-announce-port", &port]);
        }
    }
}

impl Sentinels {
    /// Starts a master with two replicas, and returns when the replicas are in sync and the
    /// sentinels could replace the master.
    pub fn start() -> Sentinels {
        Sentinels::with(Setup::default())
    }

    /// Like [`start`](Self::start), set up in another way.
    pub fn with(setup: Setup) -> Sentinels {
        // Six servers that start keep two cores busy for a second. If several deployments started
        // at a time, tests beside them would measure the machine.
        static STARTING: Mutex<()> = Mutex::new(());
        let _one_at_a_time = STARTING.lock();
        let authority = Authority::new();
        let nodes = start_nodes(&setup, &authority);
        let mut attempts = (0..10).map(|_| try_sentinels(&setup, &nodes));
        let guards = attempts
            .find_map(|it| it)
            .expect("the sentinels can be started");
        let sentinels = Sentinels {
            setup,
            guards,
            nodes,
            authority,
        };
        (0..SENTINELS).for_each(|place| sentinels.hurry(place));
        sentinels.until_in_sync();
        sentinels
    }

    /// The address for a manager, with the login to the servers if there is one (see
    /// [`rights`]).
    pub fn url(&self) -> String {
        self.url_with(
            &(0..SENTINELS)
                .map(|place| self.sentinel(place).port())
                .collect::<Vec<_>>(),
        )
    }

    /// The address for a manager, naming these ports as those of the sentinels.
    pub fn url_with(&self, ports: &[u16]) -> String {
        let hosts: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        let scheme = if self.setup.tls {
            "rediss+sentinel"
        } else {
            "redis+sentinel"
        };
        format!("{scheme}://{}{}/{MASTER}", rights::login(), hosts.join(","))
    }

    /// The certificate of the authority that managers have to trust; empty without TLS.
    pub fn roots(&self) -> &str {
        if self.setup.tls {
            self.authority.pem()
        } else {
            ""
        }
    }

    /// A sentinel; there are three.
    pub fn sentinel(&self, place: usize) -> &Server {
        &self.guards[place]
    }

    /// Master or replica. To restart one, use [`restart`](Self::restart).
    pub fn server(&self, place: usize) -> &Server {
        &self.nodes[place].server
    }

    /// How many servers there are, master and replicas.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The proxy in front of a server.
    #[track_caller]
    pub fn proxy(&self, place: usize) -> &Proxy {
        self.nodes[place]
            .proxy
            .as_ref()
            .expect("set up with proxies")
    }

    /// The place of the master, once all sentinels that answer agree on it and it agrees, too.
    #[track_caller]
    pub fn master(&self) -> usize {
        self.until_master("the sentinels agree on a master", |_| true)
    }

    /// Waits until another server than `old` is the master, and returns its place.
    #[track_caller]
    pub fn until_replaced(&self, old: usize) -> usize {
        self.until_master("another server is the master", |place| place != old)
    }

    /// Replaces the master as an operator does, with `SENTINEL FAILOVER`, and returns the place of
    /// the new one. The old master goes on as a master until it is demoted (see [`Setup`]).
    #[track_caller]
    pub fn fail_over(&self) -> usize {
        let old = self.master();
        let leader = self
            .awake_sentinels()
            .next()
            .expect("a sentinel that answers");
        eventually(LONG, "a sentinel replaces the master", || {
            // It gives up if it has not heard of a replica for a while. It may refuse to try again
            // soon.
            if Self::flags(leader) == "master" && self.named_by(leader) == Some(old) {
                let _ = leader.command(&["SENTINEL", "FAILOVER", MASTER]);
            }
            self.named_by(leader) != Some(old)
        });
        self.until_replaced(old)
    }

    /// Waits until every server that answers, but for the master, is a replica in sync, and the
    /// sentinels would promote it.
    ///
    /// The sentinels demote a server that wrongly believes itself to be the master. But they wait
    /// until it has not been silent for a while, and on a busy machine that may never be. So after
    /// [`LONG`] this does it, as an operator would.
    #[track_caller]
    pub fn until_in_sync(&self) {
        let patient = Instant::now() + LONG;
        eventually(
            4 * LONG,
            "all replicas follow the master, and the sentinels know",
            || {
                // Anew each time: a master that a busy machine stops for a while is replaced.
                let master = self.master();
                let others =
                    (0..self.count()).filter(|&it| it != master && self.server(it).is_awake());
                let others: Vec<_> = others.collect();
                if Instant::now() > patient {
                    others
                        .iter()
                        .filter(|&&it| self.is_master(it))
                        .for_each(|&it| self.demote(it, master));
                }
                others.iter().all(|&place| self.is_in_sync(place, master))
                    && self.awake_sentinels().all(|it| Self::flags(it) == "master")
                    && self
                        .awake_sentinels()
                        .all(|it| others.iter().all(|&place| self.is_fit(it, place)))
            },
        );
    }

    /// Makes a server a replica of `master`, without waiting for the sentinels to do so.
    pub fn demote(&self, place: usize, master: usize) {
        let port = self.nodes[master].port().to_string();
        self.server(place)
            .query::<()>(&["REPLICAOF", "127.0.0.1", &port]);
    }

    /// Starts a server again, killing it first if need be. It is empty, and a master, until the
    /// sentinels demote it; if they still take it for the master, it remains that.
    pub fn restart(&self, place: usize) {
        self.server(place).restart();
        self.nodes[place].announce();
    }

    /// Cuts a replica off from its master, and from no other process. Returns when it is cut off.
    #[track_caller]
    pub fn cut_off(&self, place: usize) {
        let replica = self.server(place);
        // The master refuses the password, because it has none.
        replica.query::<()>(&["CONFIG", "SET", "masterauth", "wrong"]);
        replica.query::<i64>(&["CLIENT", "KILL", "TYPE", "master"]);
        eventually(LONG, "the replica is cut off", || {
            !role(replica).is_connected
        });
    }

    /// Ends what [`cut_off`](Self::cut_off) began, and returns when the replica follows its master.
    #[track_caller]
    pub fn heal(&self, place: usize) {
        let replica = self.server(place);
        replica.query::<()>(&["CONFIG", "SET", "masterauth", ""]);
        eventually(LONG, "the replica is connected", || {
            role(replica).is_connected
        });
    }

    /// The sentinels that run and are not paused.
    fn awake_sentinels(&self) -> impl Iterator<Item = &Server> {
        self.guards.iter().filter(|it| it.is_awake())
    }

    #[track_caller]
    fn until_master(&self, what: &str, is_wanted: impl Fn(usize) -> bool) -> usize {
        let mut master = None;
        eventually(2 * LONG, what, || {
            let mut named = self.awake_sentinels().map(|it| self.named_by(it));
            master = named.next().expect("a sentinel that answers");
            let is_agreed = named.all(|other| other == master);
            is_agreed && master.is_some_and(|place| is_wanted(place) && self.is_master(place))
        });
        master.expect("just found")
    }

    /// The place of the server that a sentinel names as the master.
    fn named_by(&self, sentinel: &Server) -> Option<usize> {
        let named = sentinel
            .command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER])
            .ok()?;
        let (_, port): (String, u16) = redis::from_redis_value(named).ok()?;
        self.nodes.iter().position(|it| it.port() == port)
    }

    /// Whether a server runs and believes itself to be the master.
    #[track_caller]
    pub fn is_master(&self, place: usize) -> bool {
        let server = self.server(place);
        server.is_awake() && role(server).is_master
    }

    fn is_in_sync(&self, place: usize, master: usize) -> bool {
        let [replica, wanted] = [place, master].map(|place| role(self.server(place)));
        let follows = replica.follows == self.nodes[master].port();
        follows && replica.is_connected && replica.offset >= wanted.offset
    }

    /// What a sentinel says of the master: no more than `master`, if it finds nothing wrong with it
    /// and no failover is under way.
    fn flags(sentinel: &Server) -> String {
        let mut master = sentinel.query::<HashMap<String, String>>(&["SENTINEL", "MASTER", MASTER]);
        master.remove("flags").expect("flags")
    }

    /// Whether a sentinel would promote this server.
    fn is_fit(&self, sentinel: &Server, place: usize) -> bool {
        let port = self.nodes[place].port().to_string();
        let replicas =
            sentinel.query::<Vec<HashMap<String, String>>>(&["SENTINEL", "REPLICAS", MASTER]);
        let known = replicas.into_iter().find(|it| it["port"] == port);
        known.is_some_and(|it| {
            it["flags"] == "slave"
                && it["role-reported"] == "slave"
                && it["master-link-status"] == "ok"
        })
    }

    /// Makes a sentinel look, ask and talk more often than it does by itself. Where that is not
    /// possible, everything works, and takes seconds longer.
    fn hurry(&self, place: usize) {
        if server_version() >= (7, 0) {
            // A sentinel waits four times the period in which it publishes what it knows. And one
            // that was paused does nothing for the "tilt" period, by default 30 s.
            let publish = (self.setup.demoted_after.as_millis() / 4).to_string();
            // It promotes no replica that it has not heard of for three and five of these periods.
            let often = [
                "INFO-PERIOD",
                "500",
                "PING-PERIOD",
                "250",
                "ASK-PERIOD",
                "100",
            ];
            let rest = ["PUBLISH-PERIOD", &*publish, "TILT-PERIOD", "500"];
            self.sentinel(place)
                .query::<Value>(&[&["SENTINEL", "DEBUG"], &often[..], &rest].concat());
        }
    }
}

impl fmt::Debug for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinels")
            .field("setup", &self.setup)
            .finish_non_exhaustive()
    }
}

/// What the sentinels logged says why a failover did not come, or came uncalled.
impl Drop for Sentinels {
    fn drop(&mut self) {
        if thread::panicking() {
            for sentinel in &self.guards {
                eprintln!(
                    "sentinel {}:\n{}",
                    sentinel.port(),
                    sentinel.log().unwrap_or_default()
                );
            }
        }
    }
}

/// Starts the servers, all at a time, and makes all but the first replicas of the first.
fn start_nodes(setup: &Setup, authority: &Authority) -> Vec<Node> {
    let start = || {
        // By default a master waits 5 s for more replicas before it sends its data to the first.
        let server = Server::with(&[
            "--repl-diskless-sync-delay",
            "0",
            "--repl-ping-replica-period",
            "1",
        ]);
        let proxy = setup.proxied.then(|| Proxy::start(server.port()));
        let port = proxy.as_ref().map_or_else(|| server.port(), Proxy::port);
        let terminator = setup.tls.then(|| Terminator::beside_plain(port, authority));
        let node = Node {
            server,
            proxy,
            terminator,
        };
        node.announce();
        node
    };
    let nodes: Vec<Node> = thread::scope(|scope| {
        let starting: Vec<_> = (0..=setup.replicas).map(|_| scope.spawn(start)).collect();
        starting
            .into_iter()
            .map(|it| it.join().expect("the server starts"))
            .collect()
    });
    for replica in &nodes[1..] {
        replica
            .server
            .query::<()>(&["REPLICAOF", "127.0.0.1", &nodes[0].port().to_string()]);
    }
    nodes
}

/// Starts the sentinels, all at a time, and each knows all others and all servers from the start.
/// `None` if one of the ports was taken meanwhile.
fn try_sentinels(setup: &Setup, nodes: &[Node]) -> Option<Vec<Server>> {
    let ports = [(); SENTINELS].map(|()| free_port());
    let start = |port: u16| {
        let config = config_of(port, &ports, setup, nodes);
        let password = setup
            .password
            .iter()
            .flat_map(|it| ["--requirepass".to_owned(), it.clone()]);
        Server::try_sentinel(port, &config, password.collect())
    };
    thread::scope(|scope| {
        let starting = ports.map(|port| scope.spawn(move || start(port)));
        starting
            .into_iter()
            .map(|it| it.join().expect("the sentinel starts"))
            .collect()
    })
}

/// The configuration of the sentinel at `port`.
fn config_of(port: u16, ports: &[u16], setup: &Setup, nodes: &[Node]) -> String {
    let id = |port: u16| format!("{port:040x}");
    let least = if server_version() < (7, 0) {
        LEAST_DOWN_AFTER
    } else {
        Duration::ZERO
    };
    let down_after = setup.down_after.max(least).as_millis();
    let mut lines = vec![
        format!("sentinel myid {}", id(port)),
        format!("sentinel monitor {MASTER} 127.0.0.1 {} 2", nodes[0].port()),
        format!("sentinel down-after-milliseconds {MASTER} {down_after}"),
        format!("sentinel failover-timeout {MASTER} 2000"),
        format!("sentinel parallel-syncs {MASTER} {}", setup.replicas.max(1)),
    ];
    lines.extend(
        setup
            .password
            .iter()
            .map(|it| format!("sentinel sentinel-pass {it}")),
    );
    let replicas = nodes[1..].iter().map(Node::port);
    lines.extend(replicas.map(|port| format!("sentinel known-replica {MASTER} 127.0.0.1 {port}")));
    let others = ports.iter().filter(|&&other| other != port);
    lines.extend(others.map(|&other| {
        format!(
            "sentinel known-sentinel {MASTER} 127.0.0.1 {other} {}",
            id(other)
        )
    }));
    lines.join("\n") + "\n"
}

/// What a server says of itself.
struct Role {
    is_master: bool,
    /// The port of the master that a replica follows.
    follows: u16,
    /// Whether a replica is connected to its master and has its data.
    is_connected: bool,
    /// How much it has of the stream of all changes.
    offset: i64,
}

fn role(server: &Server) -> Role {
    let reply: Vec<Value> = server.query(&["ROLE"]);
    let is_master = field::<String>(&reply, 0) == "master";
    if is_master {
        return Role {
            is_master,
            follows: 0,
            is_connected: false,
            offset: field(&reply, 1),
        };
    }
    let is_connected = field::<String>(&reply, 3) == "connected";
    Role {
        is_master,
        follows: field(&reply, 2),
        is_connected,
        offset: field(&reply, 4),
    }
}

fn field<T: FromRedisValue>(reply: &[Value], place: usize) -> T {
    redis::from_redis_value(reply[place].clone()).expect("a reply to ROLE")
}
