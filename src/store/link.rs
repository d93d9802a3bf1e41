//! One connection: opened, logged in and answered within a deadline, and never trusted after it broke.

use std::io;

use redis::{Cmd, RedisError, Value};

use crate::clock::Moment;
use crate::store::address::Address;
use crate::store::reply::agreed;
use crate::store::trouble::{self, Trouble};
use crate::store::wire::{SHORTEST, Wire};

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
    wire: Wire,
    opened: Moment,
    /// Replies of earlier batches that nobody tried to read.
    owed: usize,
    /// Redis, or the way to it, ended the connection.
    broken: bool,
    /// In order, but not to be used again.
    retired: bool,
    /// The last answer since it was lent: only then is it known that the other end is there.
    answered: Option<Moment>,
    /// An answer is late: whoever waited for it may go on here, but it is not the trouble of anybody else.
    behind: bool,
}

impl Link {
    /// Connects and logs in.
    pub(super) fn open(address: &Address, deadline: Moment) -> Result<Link, Trouble> {
        let opened = Moment::now();
        let wire = connect(address, deadline)?;
        let mut link = Link {
            wire,
            opened,
            owed: 0,
            broken: false,
            retired: false,
            answered: Some(opened),
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

    /// The connection alone, to listen on.
    pub(super) fn into_wire(self) -> Wire {
        self.wire
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

    /// When it was last answered, or opened, since it was lent.
    pub(super) fn answered(&self) -> Option<Moment> {
        self.answered
    }

    /// It goes back to the pool: by the time it is lent again, the other end may be gone.
    pub(super) fn doubt(&mut self) {
        self.answered = None;
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
        let mut replies = Vec::with_capacity(batch.count);
        while self.owed > 0 {
            // Read now or, where that fails, late, and skipped when it comes.
            self.owed -= 1;
            let reply = self.wire.receive(deadline).map_err(|error| self.lost(error))?;
            self.broken |= trouble::comes_from_wrong_server(&reply);
            if self.owed < batch.count {
                replies.push(reply);
            }
        }
        self.behind = false;
        self.answered = Some(Moment::now());
        Ok(replies)
    }

    /// Writes a batch and does not wait for its replies.
    pub(super) fn post(&mut self, batch: &Batch, deadline: Moment) -> Result<(), Trouble> {
        self.send(batch, deadline)?;
        self.owed += batch.count;
        Ok(())
    }

    fn send(&mut self, batch: &Batch, deadline: Moment) -> Result<(), Trouble> {
        self.wire.send(&batch.bytes, deadline).map_err(|error| {
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
        // (What makes no sense, or never ends, says something of this connection only.)
        self.broken |= error.is_connection_dropped();
        self.behind = true;
        Trouble::Unanswered { link_stands, cause: error.into() }
    }
}

fn connect(address: &Address, deadline: Moment) -> Result<Wire, Trouble> {
    let ways = address.ways().map_err(Trouble::not_sent)?;
    let mut last = None;
    for way in ways {
        let left = deadline.since(Moment::now());
        if left < SHORTEST {
            break;
        }
        match Wire::open(&way, left) {
            Ok(wire) => return Ok(wire),
            Err(error) => last = Some(Trouble::not_sent(error)),
        }
    }
    Err(last.unwrap_or_else(|| {
        Trouble::not_sent(io::Error::new(io::ErrorKind::TimedOut, "no time was left to connect"))
    }))
}
