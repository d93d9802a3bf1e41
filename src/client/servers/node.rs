//! One server and all connections to it: the pool's, the keeper's, the listener's.
//! (The topology chooses the server.)

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::{Replicas, Settings, invalid_option};
use crate::base::sync::{Mutex, PerProcess};
use crate::client::servers::tracking::TrackingConnection;
use crate::client::wire::endpoint::Endpoint;
use crate::client::wire::failure::{Failure, expect_pong};
use crate::client::wire::link::Link;
use crate::client::wire::login::{Access, Expected, NO_NODE};
use crate::client::wire::pool::{BorrowedSlot, OnClose, Pool, Worker};
use crate::client::wire::resp::{Batch, Reply};
use crate::client::wire::socket::Ender;

/// How many nodes were made.
static COUNT: PerProcess<AtomicU64> = PerProcess::new(AtomicU64::new(0), || AtomicU64::new(0));

/// Called when keys have moved to other servers, with a function that says which keys those are.
pub(crate) type OnMove = OnceLock<Box<dyn Fn(&dyn Fn(&[u8]) -> bool) + Send + Sync>>;

pub(crate) struct Node {
    /// No other node of this process has the same number.
    pub(crate) number: u64,
    pub(crate) endpoint: Arc<Endpoint>,
    pub(crate) common: Arc<Common>,
    pool: Pool,
    /// The connections that are open or being opened. Some may have been closed.
    connections: Mutex<Vec<Ender>>,
    /// See [`Self::is_retired`]. Set while `connections` is locked.
    retired: AtomicBool,
}

/// What all nodes of a store have in common.
pub(crate) struct Common {
    access: Access,
    /// How to begin a connection once the one server has turned out to be a node of a cluster.
    as_node: OnceLock<Access>,
    /// How many replicas the master has, including those that are down. [`UNKNOWN`] if nobody has
    /// reported it.
    copies: AtomicU32,
    worker: Arc<Worker>,
    pool_size: u32,
    pub(crate) on_close: Arc<OnClose>,
    /// Which replicas have to acknowledge a lock, and how long Redis waits for them.
    pub(crate) replicas: Option<(Replicas, Duration)>,
    pub(crate) connect_timeout: Duration,
    pub(crate) response_timeout: Duration,
}

/// The value of `copies` while the number is not known.
const UNKNOWN: u32 = u32::MAX;

impl Common {
    /// # Errors
    ///
    /// [`Error::InvalidOption`] if all replicas are to acknowledge a lock and no sentinel says how
    /// many there are; a system error if the pools' thread cannot be started.
    pub(crate) fn new(access: Access, settings: &Settings) -> Result<Common, Error> {
        let &Settings {
            connect_timeout,
            response_timeout,
            pool_size,
            replicas,
            ..
        } = settings;
        if let Some((all @ Replicas { count: None, .. }, _)) = replicas
            && !access.expects(Expected::Master)
        {
            let reason = "only sentinels know how many there are; without them, write the number: \
                          `Replicas::at_least(n)`";
            return Err(invalid_option("replicas", all, reason));
        }
        let worker = Arc::new(Worker::start()?);
        let on_close = Arc::default();
        Ok(Common {
            access,
            as_node: OnceLock::new(),
            copies: AtomicU32::new(UNKNOWN),
            worker,
            pool_size,
            on_close,
            replicas,
            connect_timeout,
            response_timeout,
        })
    }

    /// How to begin a connection to a node.
    pub(crate) fn access(&self) -> &Access {
        self.as_node.get().unwrap_or(&self.access)
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.access().expects(Expected::ClusterNode)
    }

    /// Notes that the one server is a node of a cluster. False if that was already known.
    pub(crate) fn join_cluster(&self) -> bool {
        let as_node = self.access.clone().expecting(Expected::ClusterNode);
        self.as_node.set(as_node).is_ok()
    }

    /// How many replicas the master has, if anybody has reported it.
    pub(crate) fn known_replicas(&self) -> Option<u32> {
        Some(self.copies.load(Ordering::Relaxed)).filter(|copies| *copies != UNKNOWN)
    }

    pub(crate) fn has_replicas(&self, copies: u32) {
        self.copies.store(copies, Ordering::Relaxed);
    }
}

impl Node {
    pub(crate) fn new(endpoint: Endpoint, common: Arc<Common>) -> Node {
        // One server has no thread that sweeps its pool.
        let is_swept = !common.access().expects(Expected::Server);
        let on_close = Arc::clone(&common.on_close);
        let pool = Pool::new(common.pool_size, is_swept, &common.worker, on_close);
        Node {
            number: COUNT.with(|it| it.fetch_add(1, Ordering::Relaxed)),
            endpoint: Arc::new(endpoint),
            common,
            pool,
            connections: Mutex::default(),
            retired: AtomicBool::new(false),
        }
    }

    /// The server, as errors name it.
    pub(crate) fn name(&self) -> &str {
        self.endpoint.name()
    }

    /// When Redis last answered, over a connection that has gone back to the pool.
    pub(crate) fn answered_at(&self) -> Moment {
        self.pool.answered_at()
    }

    /// Closes the idle connections that have ended or may be dead. Does not wait.
    pub(crate) fn sweep(&self) {
        self.pool.sweep();
    }

    /// The node has no slot any more: its threads have nothing left to do, and all its connections
    /// end, including those in use. A thread that is blocked in one gets an error, and asks the
    /// node that has the slot now.
    pub(crate) fn retire(&self) {
        let mut connections = self.connections.lock();
        self.retired.store(true, Ordering::Relaxed);
        let ended = mem::take(&mut *connections);
        drop(connections);
        self.pool.condemn(Moment::NEVER);
        ended.iter().for_each(Ender::end);
        self.pool.sweep();
    }

    /// Notes a connection before the login.
    fn opened(&self, ender: Ender) -> Result<(), Failure> {
        let mut connections = self.connections.lock();
        if self.is_retired() {
            let why = "the server was replaced while the connection was opened";
            return Err(Failure::not_sent(why));
        }
        if connections.len() == connections.capacity() {
            connections.retain(|it| !it.is_closed());
        }
        connections.push(ender);
        Ok(())
    }

    /// Speaks to the server once.
    pub(crate) fn ping(self: &Arc<Node>, deadline: Moment) -> Result<(), Failure> {
        let mut lent = self.lend(deadline)?;
        let limit = deadline.min(Moment::now().after(self.common.response_timeout));
        let mut replies = lent.link()?.exchange(&Batch::of(&["PING"]), limit)?;
        expect_pong(replies.pop().unwrap_or(Reply::Nil))
    }

    /// True if this node has no keys any more.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Relaxed)
    }

    /// Borrows a connection of the pool. Waits for one and connects if necessary, until the
    /// deadline.
    pub(crate) fn lend(self: &Arc<Node>, deadline: Moment) -> Result<Lent, Failure> {
        let (link, slot) = self.pool.checkout(deadline, || self.open(deadline))?;
        Ok(Lent {
            link: Some(link),
            slot: Some(slot),
            node: Arc::clone(self),
        })
    }

    /// Opens a connection outside the pool.
    pub(crate) fn own(self: &Arc<Node>, deadline: Moment) -> Result<Lent, Failure> {
        Ok(Lent {
            link: Some(Box::new(self.open(deadline)?)),
            slot: None,
            node: Arc::clone(self),
        })
    }

    pub(crate) fn open(&self, deadline: Moment) -> Result<Link, Failure> {
        let ways = self.endpoint.ways()?;
        let deadline = deadline.min(Moment::now().after(self.common.connect_timeout));
        let access = self.common.access();
        let opened = access.open(&self.endpoint, &ways, &[], deadline, |it| self.opened(it));
        opened
            .map(|(link, _)| link)
            .map_err(|failure| match failure {
                // A node has left, and a server that is not a node has its address. This answer is
                // not final: the caller tries again, and the next map has the right node.
                Failure::Refused(refusal) if refusal.code == NO_NODE => {
                    Failure::NotSent(refusal.into())
                }
                other => other,
            })
    }

    /// Opens the connection on which invalidations arrive.
    pub(crate) fn open_tracking(&self) -> Result<TrackingConnection, Failure> {
        // A refused connection may succeed soon. (A later command that is refused will be refused
        // again.)
        let link = self.open(Moment::NEVER).map_err(Failure::of_an_attempt)?;
        TrackingConnection::open(link, Moment::now().after(self.common.connect_timeout))
    }
}

/// A link to send commands over.
pub(crate) struct Lent {
    /// `None` once it has been given back.
    pub(crate) link: Option<Box<Link>>,
    /// The slot in the pool that it came from. `None` if it belongs to one thread: the keeper, or a
    /// caller whose command must not go over a connection that may be dead.
    pub(crate) slot: Option<BorrowedSlot>,
    pub(crate) node: Arc<Node>,
}

impl Lent {
    pub(crate) fn link(&mut self) -> Result<&mut Link, Failure> {
        let gone = || Failure::not_sent("the redirect failed");
        self.link.as_deref_mut().ok_or_else(gone)
    }

    /// Gives the link back to the pool, or closes it if it came from none.
    pub(crate) fn give_back(&mut self) {
        if let (Some(link), Some(slot)) = (self.link.take(), self.slot.take()) {
            self.node.pool.give_back(link, slot);
        }
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.give_back();
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node")
            .field("name", &self.name())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread;

    use relatch_rig::{FakeServer, Reply as Say};

    use super::*;
    use crate::client::wire::endpoint::Place;

    fn node(address: &str, settings: &Settings) -> Arc<Node> {
        let common = Common::new(Access::new(None, 0, Expected::Server), settings).unwrap();
        let (host, port) = address.split_once(':').unwrap();
        let place = Place::Tcp {
            host: host.to_owned(),
            port: port.parse().unwrap(),
        };
        Arc::new(Node::new(Endpoint::new(place, None), Arc::new(common)))
    }

    /// One is in use, one is lent, one is logging in.
    #[test]
    fn all_connections_to_a_node_that_is_retired_end() {
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let asked = Arc::new(AtomicBool::new(false));
        let tells = Arc::clone(&asked);
        let server = FakeServer::start(move |command| {
            let word = command.first().map(String::as_str);
            tells.fetch_or(word == Some("PING"), Ordering::Relaxed);
            Say::Bytes(match word {
                None | Some("PING") => Vec::new(),
                Some("HELLO") => b"-ERR unknown command\r\n".to_vec(),
                Some(_) => b"+OK\r\n".to_vec(),
            })
        });
        let settings = Settings {
            connect_timeout: Duration::from_secs(60),
            ..Settings::default()
        };
        let deadline = Moment::now().after(Duration::from_secs(60));
        let node = node(&server.address(), &settings);
        let mut lent = node.lend(deadline).unwrap();
        let mut used = node.own(deadline).unwrap();
        let other = self::node(&silent.local_addr().unwrap().to_string(), &settings);
        thread::scope(|scope| {
            let waits = scope.spawn(|| used.link()?.exchange(&Batch::of(&["PING"]), deadline));
            let opens = scope.spawn(|| other.open(deadline).err());
            while !asked.load(Ordering::Relaxed) || other.connections.lock().is_empty() {
                thread::yield_now();
            }
            node.retire();
            other.retire();
            assert!(waits.join().unwrap().is_err() && opens.join().unwrap().is_some());
        });
        assert!(lent.link().unwrap().probe() && node.lend(deadline).is_err());
        assert!(Moment::now() < deadline);
    }

    /// A proxy may accept `CLIENT TRACKING` but not pass it on.
    #[test]
    fn a_node_that_sends_no_invalidation_refuses() {
        let subscribed = "*3\r\n$9\r\nsubscribe\r\n$20\r\n__redis__:invalidate\r\n:1\r\n";
        let proxy = FakeServer::start(move |command| {
            let says = match command.first().map(String::as_str) {
                None => "",
                Some("HELLO") => "-ERR unknown command\r\n",
                Some("SUBSCRIBE") => subscribed,
                Some("CLIENT") if command[1] == "ID" => ":7\r\n",
                Some(_) => "+OK\r\n",
            };
            Say::Bytes(says.into())
        });
        let settings = Settings {
            connect_timeout: Duration::from_secs(10),
            ..Settings::default()
        };
        let node = node(&proxy.address(), &settings);
        let mut tracking = node.open_tracking().unwrap();
        let limit = Moment::now().after(Duration::from_millis(100));
        let heard = tracking.expect("a", limit);
        assert!(matches!(heard, Err(Failure::Refused(_))), "{heard:?}");
    }
}
