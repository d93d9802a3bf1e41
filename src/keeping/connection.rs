//! The keeper's own connection to a node.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::keeping::shared::Shared;
use crate::store::{Compared, Connection, Extension, Failure, Node, Tracking};

/// The longest time for which a batch waits for keys that another node has.
const CHASE: Duration = Duration::from_millis(100);

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
/// There is one connection to each node, so answers are read in the order of the commands.
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
        self.shared.invalidated(None, &self.node);
    }

    /// Sends commands again for keys that another node has: their slots have moved since the map was
    /// read, or are on their way.
    ///
    /// The answers of the other keys are here already, and wait for this. So it ends after
    /// [`CHASE`], and at the first command without an answer. What is left is due again soon, and
    /// goes to the thread of the other node as soon as the map names it.
    fn ask_elsewhere(
        answers: &mut [Result<Compared, Failure>],
        until: Moment,
        mut ask: impl FnMut(usize, Moment) -> Result<Compared, Failure>,
    ) {
        let until = until.min(Moment::now().after(CHASE));
        for (n, answer) in answers.iter_mut().enumerate() {
            if matches!(answer, Err(Failure::Refused(refusal)) if refusal.is_redirect()) {
                *answer = ask(n, until);
                if !matches!(answer, Ok(_) | Err(Failure::Refused(_))) {
                    return;
                }
            }
        }
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
            Self::ask_elsewhere(&mut all.answers, until, |n, until| {
                let mut connection = self.shared.store.checkout(leases[n].key, until)?;
                let (answers, _) = connection.extend_all(&leases[n..=n], None, until)?;
                answers.into_iter().next().unwrap_or_else(|| Err(Failure::not_sent("no answer")))
            });
            all
        })
    }

    fn remove_all(&mut self, removals: &[(&str, &str)], until: Moment) -> Removed {
        let mut answers = self.exchange(until, |connection| connection.remove_all(removals, until))?;
        Self::ask_elsewhere(&mut answers, until, |n, until| {
            let (key, token) = removals[n];
            self.shared.store.checkout(key, until)?.remove(key, token, until)
        });
        Ok(answers)
    }
}
