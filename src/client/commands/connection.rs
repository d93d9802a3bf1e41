//! A borrowed connection to a node: how a batch goes there, and on to the node that it is
//! redirected to. (`claim`, `compare` and `look` have the commands.)

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::client::servers::node::{Lent, Node};
use crate::client::servers::topology::Topology;
use crate::client::wire::failure::Failure;
use crate::client::wire::resp::{Batch, Reply};

/// The most redirects that a borrower follows. More than that means that the nodes do not agree.
const MOST_REDIRECTS: u8 = 5;

/// A borrowed connection.
///
/// Each command waits for its reply until the deadline, but no longer than the response timeout.
/// The first command may have less time (`Link::limit`).
///
/// If the node answers that another node of a cluster has the slot of the key, this becomes a
/// connection to that node, and the command is sent again. A command that was redirected was not
/// executed, so the last node to which a command was sent is the only one that may execute it.
pub(crate) struct ServerConnection {
    pub(super) lent: Lent,
    topology: Arc<Topology>,
    /// The node does not have the slot yet: each command for it needs an `ASKING` in front.
    pub(super) asking: bool,
    /// How many more redirects are followed.
    redirects: u8,
    /// A redirect has led to a node other than the one that the borrower knows.
    pub(super) redirected: bool,
}

impl ServerConnection {
    pub(crate) fn new(topology: &Arc<Topology>, lent: Lent) -> ServerConnection {
        ServerConnection {
            lent,
            topology: Arc::clone(topology),
            asking: false,
            redirects: MOST_REDIRECTS,
            redirected: false,
        }
    }

    /// Connects to this node, outside the pool. The connection stays with the node, and follows no
    /// redirect.
    pub(crate) fn pinned(
        topology: &Arc<Topology>,
        node: &Arc<Node>,
        deadline: Moment,
    ) -> Result<ServerConnection, Failure> {
        let lent = topology.noting(node, node.own(deadline))?;
        Ok(ServerConnection {
            redirects: 0,
            ..ServerConnection::new(topology, lent)
        })
    }

    /// Notes that Redis may have ended the connection before its next use.
    pub(crate) fn doubt(&mut self) {
        self.lent.link.iter_mut().for_each(|link| link.doubt());
    }

    /// True if the connection must not be used again.
    pub(crate) fn is_over(&self) -> bool {
        self.lent.link.as_ref().is_none_or(|link| link.is_over())
    }

    /// True if the idle connection is known to have ended. Does not wait.
    pub(crate) fn probe(&mut self) -> bool {
        self.lent.link.as_mut().is_none_or(|link| link.probe())
    }

    /// A batch whose first command is for the key of this connection.
    pub(super) fn begin(&self, batch: Batch) -> Batch {
        if self.asking {
            batch.and(&["ASKING"])
        } else {
            batch
        }
    }

    /// If the reply says that another node has the slot, goes on with a connection to that node.
    /// The command was not executed then. False for any other reply, and if this follows no
    /// redirect.
    pub(crate) fn follow(&mut self, reply: &Reply, deadline: Moment) -> Result<bool, Failure> {
        let redirected = match reply {
            Reply::Error(error) if self.redirects > 0 => {
                self.topology.redirected(error, &self.lent.node)
            }
            _ => None,
        };
        let Some((node, asking)) = redirected else {
            return Ok(false);
        };
        self.redirects -= 1;
        let connect = match self.lent.slot {
            Some(_) => Node::lend,
            None => Node::own,
        };
        // The old link goes back first. If threads kept it while they wait for another node's, they
        // could wait for each other, and a dead node would use up the connections of the others.
        self.lent.give_back();
        self.lent = self.topology.noting(&node, connect(&node, deadline))?;
        self.asking = asking;
        self.redirected = true;
        Ok(true)
    }

    pub(crate) fn exchange(
        &mut self,
        batch: &Batch,
        deadline: Moment,
    ) -> Result<Vec<Reply>, Failure> {
        let timeout = self.lent.node.common.response_timeout;
        let link = self.lent.link()?;
        let began = Moment::now();
        let answer = link.exchange(batch, link.limit(deadline, timeout, batch.blocks_for));
        self.topology
            .heard(&self.lent.node, &answer, Moment::now().since(began));
        answer
    }

    /// Sends a batch, and returns the reply to its first command.
    pub(super) fn ask(&mut self, batch: &Batch, deadline: Moment) -> Result<Reply, Failure> {
        Ok(next(&mut self.exchange(batch, deadline)?.into_iter()))
    }

    /// Returns what was read. After a reply that made no sense, the connection is not used again.
    pub(super) fn judged<T>(&mut self, read: Result<T, Failure>) -> Result<T, Failure> {
        if let Err(Failure::Unanswered { link_stands, .. }) = &read
            && !link_stands
        {
            self.lent.link.iter_mut().for_each(|link| link.retire());
        }
        read
    }
}

/// The next reply. (A link returns as many replies as it sent commands, or an error.)
pub(crate) fn next(replies: &mut impl Iterator<Item = Reply>) -> Reply {
    replies.next().unwrap_or(Reply::Nil)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::thread;
    use std::time::Duration;

    use relatch_rig::{FakeServer, Reply as Say};

    use super::*;
    use crate::base::options::Settings;
    use crate::client::commands::claim::Claims as _;
    use crate::client::commands::reply::{ClaimReply, Tracking};
    use crate::client::commands::wanted::Goal;
    use crate::client::commands::wanted::Wanted;
    use crate::client::url::address::Address;
    use crate::client::wire::resp::tests::said;

    /// Redis keeps the listener for as long as the link lasts.
    #[test]
    fn a_link_asks_for_invalidations_once() {
        let deadline = Moment::now().after(Duration::from_secs(10));
        let asked = Arc::new(AtomicU64::new(0));
        let counts = Arc::clone(&asked);
        let server = FakeServer::start(move |command| {
            let is_asked = command.get(1).is_some_and(|it| it == "TRACKING");
            counts.fetch_add(u64::from(is_asked), Ordering::Relaxed);
            Say::Bytes(match command.first().map(String::as_str) {
                None => Vec::new(),
                Some("HELLO") => b"-ERR unknown command\r\n".to_vec(),
                Some("EVALSHA") => b"*2\r\n$5\r\nother\r\n:1000\r\n".to_vec(),
                Some(_) => b"+OK\r\n".to_vec(),
            })
        });
        let address = Address::parse(&format!("redis://{}", server.address())).unwrap();
        let settings = Settings {
            connect_timeout: Duration::from_secs(10),
            response_timeout: Duration::from_secs(10),
            ..Settings::default()
        };
        let router = Topology::new(address.with_tls(None).unwrap(), &settings).unwrap();
        let router = Arc::new(router);
        let reached = router.reach("key", deadline, Node::lend).unwrap();
        let mut connection = ServerConnection::new(&router, reached);
        let wanted = Wanted {
            key: "key",
            goal: Goal::Key,
            token: "token",
            lease: 1000,
            counter: None,
        };
        for _ in 0..2 {
            let answer = connection.claim_or_look(wanted, Some(5), deadline);
            let (reply, tracking) = answer.unwrap();
            assert!(matches!(reply, ClaimReply::Busy(Some(_))));
            assert!(matches!(tracking, Tracking::On { .. }));
        }
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    }

    /// Threads whose keys go to each other's nodes would otherwise wait for each other.
    #[test]
    fn a_redirect_gives_the_old_link_back_before_it_waits_for_another_node() {
        let within = |seconds| Moment::now().after(Duration::from_secs(seconds));
        let here = FakeServer::start(|command| {
            Say::Bytes(match command.first().map(String::as_str) {
                None => Vec::new(),
                Some("HELLO") => b"-ERR unknown command\r\n".to_vec(),
                Some(_) => b"+OK\r\n".to_vec(),
            })
        });
        let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = Address::parse(&format!("redis://{}", here.address())).unwrap();
        let settings = Settings {
            pool_size: 1,
            connect_timeout: Duration::from_secs(60),
            ..Settings::default()
        };
        let router = Topology::new(address.with_tls(None).unwrap(), &settings).unwrap();
        let router = Arc::new(router);
        let reached = router.reach("key", within(60), Node::lend).unwrap();
        let mut connection = ServerConnection::new(&router, reached);
        let node = Arc::clone(&connection.lent.node);
        let moved = said(&format!("MOVED 0 {}", silent.local_addr().unwrap()));
        thread::scope(|scope| {
            let follows = scope.spawn(|| connection.follow(&moved, within(60)));
            let lent = node.lend(within(10));
            drop(silent); // Ends the attempt, in any case.
            assert!(lent.is_ok(), "another thread still has the only link");
            assert!(follows.join().unwrap().is_err(), "the other node is silent");
        });
    }
}
