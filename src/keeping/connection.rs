//! The keeper's own connection to a node.

use std::slice;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::keeping::shared::Shared;
use crate::store::{Compared, Connection, Extension, Failure, Node, Tracking};

/// The keeper's commands. [`KeeperConnection`] sends them to Redis. Unit tests have a fake.
///
/// `extend_all` and `remove_all` are one round trip each. The answers have the order of the
/// arguments.
pub(crate) trait KeeperCommands {
    /// The node to which the commands go.
    fn node(&self) -> &Arc<Node>;

    /// True if the next command needs no new connection.
    fn is_open(&self) -> bool;

    /// Compares and extends. With a listener's `CLIENT ID`, Redis also tells that listener when one
    /// of these keys changes.
    fn extend_all(&mut self, leases: &[Extension<'_>], listener: Option<u64>, until: Moment) -> Extended;

    /// Compares and deletes. Each removal is a key and a token.
    fn remove_all(&mut self, removals: &[(&str, &str)], until: Moment) -> Removed;
}

pub(crate) type Removed = Result<Vec<Result<Compared, Failure>>, Failure>;

pub(crate) type Extended = Result<ExtendAnswers, Failure>;

pub(crate) struct ExtendAnswers {
    pub(crate) sent: Moment,
    pub(crate) answers: Vec<Result<Compared, Failure>>,
    pub(crate) tracking: Tracking,
}

/// The keeper opens the connection at its first use, and again at the first use after a failure.
///
/// The keeper has one connection, so it reads the answers in the order of its commands.
pub(crate) struct KeeperConnection<'a> {
    shared: &'a Shared,
    node: Arc<Node>,
    connection: Option<Connection>,
}

impl<'a> KeeperConnection<'a> {
    pub(crate) fn new(shared: &'a Shared, node: Arc<Node>) -> KeeperConnection<'a> {
        KeeperConnection { shared, node, connection: None }
    }

    /// Drops the connection if Redis has closed it. Does not wait.
    pub(crate) fn drop_if_closed(&mut self) {
        if self.connection.as_mut().is_some_and(Connection::has_ended) {
            self.connection = None;
            self.invalidate_all();
        }
    }

    /// Redis sends invalidations of the keys that were read over a connection only while that
    /// connection lasts. When the keeper's connection ends, invalidations may have been missed. So
    /// all holds of this node that were renewed before are due again.
    fn invalidate_all(&self) {
        let Shared { store, work, .. } = self.shared;
        let is_here = |redis_key: &[u8]| {
            let key = str::from_utf8(redis_key).unwrap_or_default();
            store.node_of(key).is_none_or(|node| node.number == self.node.number)
        };
        work.lock().leases.invalidated_those(is_here, Moment::now());
    }

    /// Sends a command again, for a key that another node has. (The map of the cluster is out of
    /// date, or the key's slot is on its way.)
    fn elsewhere<T>(
        &self,
        answer: &Result<Compared, Failure>,
        key: &str,
        until: Moment,
        ask: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Option<Result<T, Failure>> {
        let is_elsewhere = matches!(answer, Err(Failure::Refused(refusal)) if refusal.is_redirect());
        is_elsewhere.then(|| ask(&mut self.shared.store.checkout(key, until)?))
    }

    /// Runs an exchange over the connection. If there is none, opens it first.
    ///
    /// A connection that was used before may be dead, though Redis is well. So an exchange over it
    /// gets only a part of the time, and the rest is left for another attempt over a fresh
    /// connection.
    fn exchange<T>(
        &mut self,
        deadline: Moment,
        exchange: impl FnOnce(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (mut connection, is_used) = match self.connection.take() {
            Some(mut connection) => {
                connection.doubt();
                (connection, true)
            }
            None => (self.shared.store.connect_to(&self.node, deadline)?, false),
        };
        let result = exchange(&mut connection);
        if !connection.is_over() {
            self.connection = Some(connection);
        } else if is_used {
            self.invalidate_all();
        }
        result
    }
}

impl KeeperCommands for KeeperConnection<'_> {
    fn node(&self) -> &Arc<Node> {
        &self.node
    }

    fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    fn extend_all(&mut self, leases: &[Extension<'_>], listener: Option<u64>, until: Moment) -> Extended {
        self.exchange(until, |connection| {
            let sent = Moment::now(); // Now that the connection is open: leases count from here.
            let (answers, tracking) = connection.extend_all(leases, listener, until)?;
            Ok(ExtendAnswers { sent, answers, tracking })
        })
        .map(|mut all: ExtendAnswers| {
            for (answer, lease) in all.answers.iter_mut().zip(leases) {
                let extend = |connection: &mut Connection| {
                    let (answers, _) = connection.extend_all(slice::from_ref(lease), None, until)?;
                    answers.into_iter().next().unwrap_or_else(|| Err(no_answer()))
                };
                if let Some(extended) = self.elsewhere(answer, lease.key, until, extend) {
                    *answer = extended;
                }
            }
            all
        })
    }

    fn remove_all(&mut self, removals: &[(&str, &str)], until: Moment) -> Removed {
        let mut answers = self.exchange(until, |connection| connection.remove_all(removals, until))?;
        for (answer, (key, token)) in answers.iter_mut().zip(removals) {
            let remove = |connection: &mut Connection| connection.remove(key, token, until);
            if let Some(removed) = self.elsewhere(answer, key, until, remove) {
                *answer = removed;
            }
        }
        Ok(answers)
    }
}

fn no_answer() -> Failure {
    Failure::Unanswered { link_stands: false, cause: "no answer".into() }
}
