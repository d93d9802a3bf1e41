//! The keeper's own connection to a node.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::keeping::work::Keeper;
use crate::store::{
    Compared, Connection, Extension, Failure, Holds, Node, ServerConnection, Tracking,
};

/// The keeper's commands. [`KeeperConnection`] sends them to Redis. Unit tests use a fake.
///
/// `extend_all` and `remove_all` take one round trip each. The answers have the order of the
/// arguments.
pub(crate) trait KeeperCommands {
    /// The node to which the commands go. `None` in memory.
    fn node(&self) -> Option<&Arc<Node>>;

    /// Compares and extends. With a listener's `CLIENT ID`, Redis also tells that listener when one
    /// of these keys changes.
    fn extend_all(
        &mut self,
        leases: &[Extension<'_>],
        listener: Option<u64>,
        until: Moment,
    ) -> Extended;

    /// Compares and extends one lease at another node: its slot has moved since the map was read,
    /// or is on its way.
    fn extend_elsewhere(
        &mut self,
        lease: &Extension<'_>,
        until: Moment,
    ) -> Result<Compared, Failure>;

    /// Compares and deletes. Each removal has the keys of one lock, and a token.
    fn remove_all(&mut self, removals: &[(&[&str], &str)], until: Moment) -> Removed;
}

pub(crate) type Removed = Result<Vec<Result<Compared, Failure>>, Failure>;

pub(crate) type Extended = Result<ExtendAnswers, Failure>;

pub(crate) struct ExtendAnswers {
    pub(crate) sent: Moment,
    pub(crate) answers: Vec<Result<Compared, Failure>>,
    pub(crate) tracking: Tracking,
}

/// The keeper opens the connection when it first uses it, and again at the first use after a
/// failure.
///
/// There is one connection to each node, so answers are read in the order of the commands.
pub(crate) struct KeeperConnection<'a> {
    keeper: &'a Keeper,
    node: Arc<Node>,
    connection: Option<ServerConnection>,
}

impl<'a> KeeperConnection<'a> {
    pub(crate) fn new(keeper: &'a Keeper, node: Arc<Node>) -> KeeperConnection<'a> {
        KeeperConnection {
            keeper,
            node,
            connection: None,
        }
    }

    /// Drops the connection if Redis has closed it. Does not wait.
    pub(crate) fn drop_if_closed(&mut self) {
        if self
            .connection
            .as_mut()
            .is_some_and(ServerConnection::probe)
        {
            self.connection = None;
            self.invalidate_all();
        }
    }

    /// Redis sends invalidations of the keys that were read over a connection only while that
    /// connection lasts. When the keeper's connection ends, invalidations may have been missed. So
    /// all holds at this node that were renewed before are due again.
    fn invalidate_all(&self) {
        self.keeper.invalidated(None, &self.node);
    }

    /// Runs an exchange over the connection, which is opened first if there is none.
    ///
    /// No step gets all of the time, so that another attempt fits in. A connection that was used
    /// before may be dead even though Redis is well: an exchange over it gets half (`Link::limit`).
    /// Opening a connection, and an exchange over it, each get three quarters of the time that is
    /// left: even if it takes one round trip to open it, another to log in and a third for the
    /// answer, a hold whose lease is six round trips is kept.
    fn exchange<T>(
        &mut self,
        deadline: Moment,
        exchange: impl FnOnce(&mut ServerConnection, bool, Moment) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (mut connection, is_used, limit) = if let Some(mut connection) = self.connection.take()
        {
            connection.doubt();
            (connection, true, deadline)
        } else {
            let core = &self.keeper.core;
            let answered_by = Moment::now().after(core.settings.response_timeout);
            let limit = most_of_the_time(deadline).min(answered_by);
            let connection = core.store.connect_to(&self.node, limit)?;
            if self.keeper.is_stopping() {
                // The last handle waits for one response timeout.
                return Err(Failure::not_sent("the manager is gone"));
            }
            (connection, false, most_of_the_time(deadline))
        };
        let result = exchange(&mut connection, is_used, limit);
        if !connection.is_over() {
            self.connection = Some(connection);
        } else if is_used {
            self.invalidate_all();
        }
        result
    }
}

impl KeeperCommands for KeeperConnection<'_> {
    fn node(&self) -> Option<&Arc<Node>> {
        Some(&self.node)
    }

    fn extend_all(
        &mut self,
        leases: &[Extension<'_>],
        listener: Option<u64>,
        until: Moment,
    ) -> Extended {
        self.exchange(until, |connection, is_used, until| {
            let sent = Moment::now(); // The connection is open now: leases count from here.
            let (answers, tracking) = connection.extend_all(leases, listener, !is_used, until)?;
            Ok(ExtendAnswers {
                sent,
                answers,
                tracking,
            })
        })
    }

    fn extend_elsewhere(
        &mut self,
        lease: &Extension<'_>,
        until: Moment,
    ) -> Result<Compared, Failure> {
        let mut connection = self.keeper.core.store.checkout(lease.key, until)?;
        connection.extend(lease, until)
    }

    fn remove_all(&mut self, removals: &[(&[&str], &str)], until: Moment) -> Removed {
        let mut answers = self.exchange(until, |connection, _, until| {
            connection.remove_all(removals, until)
        })?;
        // A key whose slot has moved or is moving is looked for at the other node. After the first
        // silence, the rest is left for another time.
        let moved = answers
            .iter_mut()
            .zip(removals)
            .filter(|(answer, _)| is_elsewhere(answer));
        for (answer, (keys, token)) in moved {
            let Ok(mut connection) = self.keeper.core.store.checkout(keys[0], until) else {
                break;
            };
            *answer = connection.remove(keys, token, until);
            if !is_final(answer) {
                break;
            }
        }
        Ok(answers)
    }
}

fn most_of_the_time(deadline: Moment) -> Moment {
    let now = Moment::now();
    now.after(deadline.since(now) / 4 * 3)
}

/// The commands go to a store without servers.
impl KeeperCommands for Connection<'_> {
    fn node(&self) -> Option<&Arc<Node>> {
        None
    }

    fn extend_all(&mut self, leases: &[Extension<'_>], _: Option<u64>, until: Moment) -> Extended {
        let sent = Moment::now();
        let answers = leases
            .iter()
            .map(|lease| self.extend_elsewhere(lease, until))
            .collect();
        Ok(ExtendAnswers {
            sent,
            answers,
            tracking: Tracking::Off,
        })
    }

    fn extend_elsewhere(
        &mut self,
        lease: &Extension<'_>,
        until: Moment,
    ) -> Result<Compared, Failure> {
        self.extend(lease, until)
    }

    fn remove_all(&mut self, removals: &[(&[&str], &str)], until: Moment) -> Removed {
        (**self).remove_all(removals, until)
    }
}

/// True if another node has the key.
pub(crate) fn is_elsewhere(answer: &Result<Compared, Failure>) -> bool {
    matches!(answer, Err(Failure::Refused(refusal)) if refusal.is_redirect())
}

/// True unless the node was silent, or could not be reached.
pub(crate) fn is_final(answer: &Result<Compared, Failure>) -> bool {
    matches!(answer, Ok(_) | Err(Failure::Refused(_)))
}
