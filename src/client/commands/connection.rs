//! A borrowed connection to a node: how a batch goes there, and on to the node to which that one
//! redirects. (`claim`, `compare` and `look` have the commands.)

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::client::commands::replicas::Wait;
use crate::client::commands::reply::{Tracking, read_tracking};
use crate::client::commands::script::Script;
use crate::client::servers::node::Node;
use crate::client::servers::router::Router;
use crate::client::wire::failure::{Failure, check_change, nonsense};
use crate::client::wire::pool::Lent;
use crate::client::wire::refusal::{Refusal, comes_from_wrong_server};
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
    router: Arc<Router>,
    /// The node has not got the slot yet: each command for it needs an `ASKING` in front.
    pub(super) asking: bool,
    /// How many more redirects are followed.
    redirects: u8,
    /// A redirect has led to another node than the one that the borrower knows.
    redirected: bool,
}

impl ServerConnection {
    /// To the node that has this key, over a connection of the pool.
    pub(crate) fn lent(
        router: &Arc<Router>,
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
        router: &Arc<Router>,
        key: &str,
        deadline: Moment,
    ) -> Result<ServerConnection, Failure> {
        let (link, node) = router.reach(key, deadline, Node::own)?;
        Ok(ServerConnection::new(link, node, router))
    }

    /// To this node, over a connection of its own. The route stays with the node, and follows no
    /// redirect.
    pub(crate) fn pinned(
        router: &Arc<Router>,
        node: &Arc<Node>,
        deadline: Moment,
    ) -> Result<ServerConnection, Failure> {
        let link = router.noting(node.own(deadline))?;
        Ok(ServerConnection {
            redirects: 0,
            ..ServerConnection::new(link, Arc::clone(node), router)
        })
    }

    fn new(link: Lent, node: Arc<Node>, router: &Arc<Router>) -> ServerConnection {
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

    /// The node at the other end.
    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
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
    pub(crate) fn has_ended(&mut self) -> bool {
        self.link.as_mut().is_none_or(|link| link.has_ended())
    }

    fn invalidates_to(&self, listener: u64) -> bool {
        let link = self.link.as_ref();
        link.is_some_and(|link| link.invalidates_to(listener))
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
        let Some(refusal) = redirection(reply).filter(|_| self.redirects > 0) else {
            return Ok(false);
        };
        let Some((node, asking)) = self.router.redirected(&refusal, &self.node) else {
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
        self.link = Some(self.router.noting(link)?);
        self.node = node;
        self.asking = asking;
        self.redirected = true;
        Ok(true)
    }

    /// Runs a script for `keys` keys: `add` puts the command for the key of a number into a batch,
    /// with the script's hash or with its whole text. What Redis refuses because it does not know
    /// the script is sent once more. The first of these commands then has the text, and makes the
    /// script known to the others. (It is one that this node executes, and does not redirect.) If
    /// the script is unknown even then, the answer is the second copy of another one, and the
    /// script may have been executed.
    ///
    /// With `wait`, the last reply is that of the `Wait`.
    ///
    /// If `listener` is given, the batch first asks Redis, once per connection, to send that
    /// listener the invalidations of keys that are read over this connection. The listener is one
    /// of this node: after a redirect, the other node sends no invalidations.
    ///
    /// A batch with more than one key follows no redirect.
    pub(crate) fn run_for_all(
        &mut self,
        listener: Option<u64>,
        keys: usize,
        add: impl Fn(Batch, usize, bool) -> Batch,
        wait: Option<&Wait>,
        deadline: Moment,
    ) -> Result<(Vec<Reply>, Tracking), Failure> {
        let listener = listener.filter(|_| !self.redirected);
        let link = self.link.as_ref().map_or(0, |link| link.id);
        let mut result = listener.map_or(Tracking::Off, |_| Tracking::On { link });
        let mut to_ask = listener.filter(|listener| !self.invalidates_to(*listener));
        let mut all = vec![Reply::Nil; keys];
        let mut open = (0..keys).collect::<Vec<_>>();
        let mut teach = false;
        loop {
            let begun = self.ask(begin(to_ask));
            let batch = open
                .iter()
                .fold(begun, |batch, n| add(batch, *n, teach && *n == open[0]));
            let batch = match wait {
                Some(wait) => wait.behind(batch),
                None => batch,
            };
            let mut replies = self.exchange(&batch, deadline)?.into_iter();
            if let Some(listener) = to_ask.take() {
                result = read_tracking(next(&mut replies), link);
                if let (Tracking::On { .. }, Some(link)) = (&result, &mut self.link) {
                    link.set_listener(listener);
                }
            }
            if self.asking {
                next(&mut replies);
            }
            for n in &open {
                all[*n] = next(&mut replies);
            }
            if keys == 1 && self.follow(&all[0], deadline)? {
                result = Tracking::Off;
                continue;
            }
            let taught = open[0];
            if teach && all[taught].is_noscript() {
                return self.retire_if_nonsense(Err(nonsense(&all[taught])));
            }
            open.retain(|n| all[*n].is_noscript());
            if teach || open.is_empty() {
                all.extend(replies);
                return Ok((all, result));
            }
            teach = true;
        }
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
        if answer
            .as_ref()
            .is_ok_and(|replies| replies.iter().any(comes_from_wrong_server))
        {
            self.node.refused_by_replica(link);
        }
        self.router.heard(&answer, Moment::now().since(began));
        answer
    }

    /// Runs a script for one key.
    pub(super) fn run_script(
        &mut self,
        script: &Script,
        key: &str,
        args: &[&str],
        deadline: Moment,
    ) -> Result<Reply, Failure> {
        let add = |batch: Batch, _, teach| batch.and(&script.command(teach, key, args));
        let (replies, _) = self.run_for_all(None, 1, add, None, deadline)?;
        self.retire_if_nonsense(check_change(next(&mut replies.into_iter())))
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

/// The error by which a node of a cluster says that another node has the slot of a key.
pub(crate) fn redirection(reply: &Reply) -> Option<Refusal> {
    // A full `Refusal` is made for errors only.
    let Reply::Error(error) = reply else {
        return None;
    };
    Some(Refusal::new(error)).filter(Refusal::is_redirect)
}

/// An empty batch or, if `listener` is given, a batch that asks for invalidations. With `NOLOOP`,
/// changes over this connection cause no invalidations, so that an uncontended release costs no
/// extra message.
fn begin(listener: Option<u64>) -> Batch {
    let Some(listener) = listener else {
        return Batch::default();
    };
    Batch::of(&[
        "CLIENT",
        "TRACKING",
        "ON",
        "REDIRECT",
        &listener.to_string(),
        "NOLOOP",
    ])
}

/// The next reply. (A link returns as many replies as it sent commands, or an error.)
pub(crate) fn next(replies: &mut impl Iterator<Item = Reply>) -> Reply {
    replies.next().unwrap_or(Reply::Nil)
}
