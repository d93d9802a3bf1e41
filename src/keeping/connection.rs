//! The keeper's own connection to Redis.

use crate::base::clock::Moment;
use crate::keeping::shared::Shared;
use crate::store::{Compared, Connection, Extension, Failure, Tracking};

/// The keeper's commands. [`KeeperConnection`] sends them to Redis. Unit tests have a fake.
///
/// `extend_all` and `remove_all` are one round trip each. The answers have the order of the
/// arguments.
pub(crate) trait KeeperCommands {
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
    connection: Option<Connection<'a>>,
}

impl<'a> KeeperConnection<'a> {
    pub(crate) fn new(shared: &'a Shared) -> KeeperConnection<'a> {
        KeeperConnection { shared, connection: None }
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
    /// all holds that were renewed before are due again.
    fn invalidate_all(&self) {
        self.shared.work.lock().leases.all_invalidated(Moment::now());
    }

    /// Runs an exchange over the connection. If there is none, opens it first.
    ///
    /// A connection that was used before may be dead, though Redis is well. So an exchange over it
    /// gets only a part of the time, and the rest is left for another attempt over a fresh
    /// connection.
    fn exchange<T>(
        &mut self,
        deadline: Moment,
        exchange: impl FnOnce(&mut Connection<'a>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (mut connection, is_used) = match self.connection.take() {
            Some(mut connection) => {
                connection.doubt();
                (connection, true)
            }
            None => (self.shared.store.connect(deadline)?, false),
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
    fn is_open(&self) -> bool {
        self.connection.is_some()
    }

    fn extend_all(&mut self, leases: &[Extension<'_>], listener: Option<u64>, until: Moment) -> Extended {
        self.exchange(until, |connection| {
            let sent = Moment::now(); // Now that the connection is open: leases count from here.
            let (answers, tracking) = connection.extend_all(leases, listener, until)?;
            Ok(ExtendAnswers { sent, answers, tracking })
        })
    }

    fn remove_all(&mut self, removals: &[(&str, &str)], until: Moment) -> Removed {
        self.exchange(until, |connection| connection.remove_all(removals, until))
    }
}
