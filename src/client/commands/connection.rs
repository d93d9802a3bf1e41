//! A borrowed connection to a node: how a batch goes there, and on to the node to which that one
//! redirects. (`claim`, `compare` and `look` have the commands.)

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::client::commands::script::Script;
use crate::client::servers::node::Node;
use crate::client::servers::topology::Topology;
use crate::client::wire::failure::Failure;
use crate::client::wire::pool::Lent;
use crate::client::wire::resp::{Batch, Reply};

/// The most redirects that a borrower follows. More mean that the nodes do not agree.
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
    /// `None` after a redirect to a node that could not be reached.
    pub(super) link: Option<Lent>,
    pub(super) node: Arc<Node>,
    router: Arc<Topology>,
    /// The node has not got the slot yet: each command for it needs an `ASKING` in front.
    pub(super) asking: bool,
    /// How many more redirects are followed.
    redirects: u8,
    /// A redirect has led to another node than the one that the borrower knows.
    pub(super) redirected: bool,
}

impl ServerConnection {
    /// To the node that has this key, over a connection of the pool.
    pub(crate) fn lent(
        router: &Arc<Topology>,
        key: &str,
        deadline: Moment,
    ) -> Result<ServerConnection, Failure> {
        let (link, node) = router.reach(key, deadline, Node::lend)?;
        Ok(ServerConnection::new(link, node, router))
    }

    /// Goes back to the node that has this key, if a redirect has led to another one.
    pub(crate) fn begin_anew(&mut self, key: &str, deadline: Moment) -> Result<(), Failure> {
        if self.redirected {
            self.link = None; // First, as in `follow`.
            *self = ServerConnection::lent(&Arc::clone(&self.router), key, deadline)?;
        }
        Ok(())
    }

    /// To the node that has this key, over a connection of its own.
    pub(crate) fn own(
        router: &Arc<Topology>,
        key: &str,
        deadline: Moment,
    ) -> Result<ServerConnection, Failure> {
        let (link, node) = router.reach(key, deadline, Node::own)?;
        Ok(ServerConnection::new(link, node, router))
    }

    /// To this node, over a connection of its own. The route stays with the node, and follows no
    /// redirect.
    pub(crate) fn pinned(
        router: &Arc<Topology>,
        node: &Arc<Node>,
        deadline: Moment,
    ) -> Result<ServerConnection, Failure> {
        let link = router.noting(node, node.own(deadline))?;
        Ok(ServerConnection {
            redirects: 0,
            ..ServerConnection::new(link, Arc::clone(node), router)
        })
    }

    fn new(link: Lent, node: Arc<Node>, router: &Arc<Topology>) -> ServerConnection {
        let link = Some(link);
        let router = Arc::clone(router);
        ServerConnection {
            link,
            node,
            router,
            asking: false,
            redirects: MOST_REDIRECTS,
            redirected: false,
        }
    }

    /// Notes that Redis may have ended the connection before its next use.
    pub(crate) fn doubt(&mut self) {
        if let Some(link) = &mut self.link {
            link.doubt();
        }
    }

    /// True if the connection must not be used again.
    pub(crate) fn is_over(&self) -> bool {
        self.link.as_ref().is_none_or(|link| link.is_over())
    }

    /// True if the idle connection is known to have ended. Does not wait.
    pub(crate) fn probe(&mut self) -> bool {
        self.link.as_mut().is_none_or(|link| link.probe())
    }

    /// Sends two commands for one key, each behind an `ASKING` if the node needs that.
    pub(crate) fn exchange_both(
        &mut self,
        commands: [&[&str]; 2],
        deadline: Moment,
    ) -> Result<[Reply; 2], Failure> {
        let batch = commands
            .into_iter()
            .fold(Batch::default(), |batch, command| {
                self.ask(batch).and(command)
            });
        let mut replies = self.exchange(&batch, deadline)?.into_iter();
        Ok([(); 2].map(|()| {
            if self.asking {
                next(&mut replies);
            }
            next(&mut replies)
        }))
    }

    /// The batch, whose next command is for the key of this route.
    pub(crate) fn ask(&self, batch: Batch) -> Batch {
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
            Reply::Error(error) if self.redirects > 0 => self.router.redirected(error, &self.node),
            _ => None,
        };
        let Some((node, asking)) = redirected else {
            return Ok(false);
        };
        self.redirects -= 1;
        // The old link goes back first. If threads kept it while they wait for another node's, they
        // could wait for each other, and a dead node would use up the connections of the others.
        let is_own = matches!(self.link, Some(Lent::Own(_)));
        self.link = None;
        let link = if is_own {
            node.own(deadline)
        } else {
            node.lend(deadline)
        };
        self.link = Some(self.router.noting(&node, link)?);
        self.node = node;
        self.asking = asking;
        self.redirected = true;
        Ok(true)
    }

    pub(crate) fn exchange(
        &mut self,
        batch: &Batch,
        deadline: Moment,
    ) -> Result<Vec<Reply>, Failure> {
        let Some(link) = &mut self.link else {
            return Err(Failure::not_sent("the redirect failed"));
        };
        let began = Moment::now();
        let limit = link.limit(
            deadline,
            self.node.common.response_timeout,
            batch.blocks_for,
        );
        let answer = link.exchange(batch, limit);
        self.router
            .heard(&self.node, &answer, Moment::now().since(began));
        answer
    }

    /// The result of a script. If a right was missing, the failure names those that the script
    /// needs.
    pub(super) fn conclude<T>(
        &mut self,
        script: &Script,
        read: Result<T, Failure>,
    ) -> Result<T, Failure> {
        self.retire_if_nonsense(read.map_err(|failure| script.explain(failure)))
    }

    /// Retires the connection after a reply that made no sense.
    pub(crate) fn retire_if_nonsense<T>(&mut self, read: Result<T, Failure>) -> Result<T, Failure> {
        if let (
            Err(Failure::Unanswered {
                link_stands: false, ..
            }),
            Some(link),
        ) = (&read, &mut self.link)
        {
            link.retire();
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
        let router = Topology::new(address.with_tls(None).unwrap(), &Settings::default()).unwrap();
        let connection = ServerConnection::lent(&Arc::new(router), "key", deadline);
        let mut connection = connection.unwrap();
        let wanted = Wanted {
            key: "key",
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
        let within = |millis| Moment::now().after(Duration::from_millis(millis));
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
            ..Settings::default()
        };
        let router = Topology::new(address.with_tls(None).unwrap(), &settings).unwrap();
        let connection = ServerConnection::lent(&Arc::new(router), "key", within(10_000));
        let mut connection = connection.unwrap();
        let node = Arc::clone(&connection.node);
        let moved = said(&format!("MOVED 0 {}", silent.local_addr().unwrap()));
        thread::scope(|scope| {
            let follows = scope.spawn(|| connection.follow(&moved, within(2000)));
            let lent = node.lend(within(1000));
            assert!(lent.is_ok(), "another thread still has the only link");
            assert!(follows.join().unwrap().is_err(), "the other node is silent");
        });
    }
}
