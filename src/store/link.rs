//! One connection: opened, logged in and answered within a deadline, and never trusted after it broke.

use std::io;
use std::time::Duration;

use redis::{Cmd, Connection, RedisError, Value};

use crate::clock::Moment;
use crate::store::address::Address;
use crate::store::reply::agreed;
use crate::store::trouble::{self, Trouble};

/// Redis counts the time of a socket call, not of a command, so every call gets what is left; but no
/// shorter than this, since zero would mean for ever.
const SHORTEST: Duration = Duration::from_millis(1);

/// One or more commands, ready to be written.
#[derive(Default)]
pub(super) struct Batch {
    bytes: Vec<u8>,
    count: usize,
}

impl Batch {
    pub(super) fn of(command: &Cmd) -> Batch {
        Batch::default().and(command)
    }

    #[must_use]
    pub(super) fn and(mut self, command: &Cmd) -> Batch {
        command.write_packed_command(&mut self.bytes);
        self.count += 1;
        self
    }
}

/// A connection to Redis.
///
/// After a lost answer the connection may live on, because Redis answers in order: the late reply is
/// counted and skipped, and what is sent next is executed after what was sent before. That order is what
/// settles a lost answer, and what makes a clean-up sure to come after the command it cleans up.
pub(crate) struct Link {
    connection: Connection,
    opened: Moment,
    /// Replies of earlier batches that nobody read and redis-rs does not count as late itself.
    owed: usize,
    /// What the socket's timeout is set to.
    timeout: Duration,
    /// Redis, or the way to it, ended the connection.
    broken: bool,
    /// In order, but not to be used again.
    retired: bool,
    /// An answer is late: whoever waited for it may go on here, but it is not the trouble of anybody else.
    behind: bool,
}

impl Link {
    /// Connects and logs in.
    pub(super) fn open(address: &Address, deadline: Moment) -> Result<Link, Trouble> {
        let opened = Moment::now();
        let connection = connect(address, deadline)?;
        let mut link = Link {
            connection,
            opened,
            owed: 0,
            timeout: Duration::ZERO,
            broken: false,
            retired: false,
            behind: false,
        };
        link.log_in(address, deadline)?;
        Ok(link)
    }

    fn log_in(&mut self, address: &Address, deadline: Moment) -> Result<(), Trouble> {
        let mut batch = Batch::default();
        if let Some(password) = &address.password {
            let mut auth = redis::cmd("AUTH");
            if let Some(username) = &address.username {
                auth.arg(username);
            }
            batch = batch.and(auth.arg(password));
        }
        if address.db != 0 {
            batch = batch.and(redis::cmd("SELECT").arg(address.db));
        }
        if batch.count == 0 {
            return Ok(());
        }
        let replies = self.exchange(&batch, deadline).map_err(|trouble| match trouble {
            // No lock's command was under way yet, whatever became of the login.
            Trouble::Unanswered { cause, .. } => Trouble::NotSent(cause),
            other => other,
        })?;
        let agreed = replies.into_iter().try_for_each(agreed);
        agreed.map_err(|trouble| match trouble {
            Trouble::Unanswered { cause, .. } => Trouble::NotSent(cause),
            other => other.without(address.password.as_deref()),
        })
    }

    /// The connection alone, for other uses.
    pub(super) fn into_connection(self) -> Connection {
        self.connection
    }

    pub(super) fn opened(&self) -> Moment {
        self.opened
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// True where the connection must not be used again.
    pub(super) fn is_over(&self) -> bool {
        self.broken || self.retired || self.behind
    }

    /// Has the connection closed, rather than lent again, when it goes back to the pool.
    pub(super) fn retire(&mut self) {
        self.retired = true;
    }

    /// Writes a batch and reads its replies.
    ///
    /// Errors that Redis answers are replies here, since the commands of a batch fare differently.
    pub(super) fn exchange(&mut self, batch: &Batch, deadline: Moment) -> Result<Vec<Value>, Trouble> {
        self.post(batch, deadline)?;
        let sent = self.owed;
        let mut replies = Vec::with_capacity(batch.count);
        while self.owed > 0 {
            // Read now or, where that fails, counted as late by redis-rs itself.
            self.owed -= 1;
            if self.owed + 1 < sent {
                // The first call has the time that was set for sending, just now.
                self.set_timeout(deadline).map_err(|error| self.lost(error))?;
            }
            let reply = self.connection.recv_response().map_err(|error| self.lost(error))?;
            self.broken |= trouble::comes_from_wrong_server(&reply);
            if self.owed < batch.count {
                replies.push(reply);
            }
        }
        self.behind = false;
        Ok(replies)
    }

    /// Writes a batch and does not wait for its replies.
    pub(super) fn post(&mut self, batch: &Batch, deadline: Moment) -> Result<(), Trouble> {
        self.send(batch, deadline)?;
        self.owed += batch.count;
        Ok(())
    }

    fn send(&mut self, batch: &Batch, deadline: Moment) -> Result<(), Trouble> {
        self.set_timeout(deadline).map_err(Trouble::not_sent)?;
        self.connection.send_packed_command(&batch.bytes).map_err(|error| {
            self.broken = true;
            if batch.count == 1 {
                Trouble::not_sent(error)
            } else {
                // The first commands of the batch may have left whole.
                Trouble::Unanswered { link_stands: false, cause: error.into() }
            }
        })
    }

    fn lost(&mut self, error: RedisError) -> Trouble {
        let link_stands = trouble::leaves_link_standing(&error);
        self.broken |= !link_stands;
        self.behind = true;
        Trouble::Unanswered { link_stands, cause: error.into() }
    }

    /// Gives the next socket call what is left until the deadline, without a system call where that changes
    /// little: an ordinary command finds the full response timeout already set.
    fn set_timeout(&mut self, deadline: Moment) -> Result<(), RedisError> {
        let left = deadline.since(Moment::now()).max(SHORTEST);
        if left.abs_diff(self.timeout) < SHORTEST {
            return Ok(());
        }
        self.connection.set_read_timeout(Some(left))?;
        self.connection.set_write_timeout(Some(left))?;
        self.timeout = left;
        Ok(())
    }
}

fn connect(address: &Address, deadline: Moment) -> Result<Connection, Trouble> {
    let ways = address.ways().map_err(Trouble::not_sent)?;
    let mut last = None;
    for way in ways {
        let left = deadline.since(Moment::now());
        if left < SHORTEST {
            break;
        }
        let client = redis::Client::open(way).map_err(Trouble::not_sent)?;
        match client.get_connection_with_timeout(left) {
            Ok(connection) => return Ok(connection),
            Err(error) => last = Some(Trouble::not_sent(error)),
        }
    }
    Err(last.unwrap_or_else(|| {
        Trouble::not_sent(io::Error::new(io::ErrorKind::TimedOut, "no time was left to connect"))
    }))
}
