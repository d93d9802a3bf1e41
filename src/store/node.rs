//! One server and all connections to it: the pool's, the keeper's, the listener's.
//! (`Store::checkout` chooses the server.)

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Settings;
use crate::store::connection::Connection;
use crate::store::endpoint::Endpoint;
use crate::store::failure::{Failure, Refusal};
use crate::store::link::Link;
use crate::store::pool::{LinkRef, Pool};
use crate::store::tracking::TrackingConnection;

pub(super) struct Node {
    pub(super) endpoint: Endpoint,
    pub(super) pool: Pool,
    connect_timeout: Duration,
    response_timeout: Duration,
}

impl Node {
    pub(super) fn new(endpoint: Endpoint, settings: &Settings) -> Result<Node, Error> {
        let &Settings { connect_timeout, response_timeout, pool_size, .. } = settings;
        Ok(Node { endpoint, pool: Pool::new(pool_size)?, connect_timeout, response_timeout })
    }

    /// Borrows a connection of the pool. Waits for one and connects if necessary, until the
    /// deadline.
    pub(super) fn checkout(&self, deadline: Moment) -> Result<Connection<'_>, Failure> {
        let lent = self.pool.checkout(deadline, || self.open(deadline))?;
        Ok(Connection::new(LinkRef::Lent(lent), self.response_timeout))
    }

    /// Opens a connection outside the pool.
    pub(super) fn connect(&self, deadline: Moment) -> Result<Connection<'_>, Failure> {
        Ok(Connection::new(LinkRef::Own(Box::new(self.open(deadline)?)), self.response_timeout))
    }

    fn open(&self, deadline: Moment) -> Result<Link, Failure> {
        let ways = self.endpoint.ways()?;
        Link::open(&self.endpoint, &ways, deadline.min(Moment::now().after(self.connect_timeout)))
    }

    /// Opens a connection for invalidations, and makes sure that they come: it changes `probe`, a
    /// key that nobody else uses, over a second connection. If no invalidation comes, the result is
    /// `Refused`: a proxy may accept `CLIENT TRACKING` without passing it on.
    pub(super) fn listen(&self, probe: &str) -> Result<TrackingConnection, Failure> {
        let mut tracking = TrackingConnection::open(&self.endpoint, self.connect_timeout)?;
        let mut other = self.connect(Moment::NEVER)?;
        other.change(probe, tracking.id, Moment::now().after(self.response_timeout))?;
        if tracking.hears(probe, Moment::now().after(self.response_timeout))? {
            Ok(tracking)
        } else {
            Err(Failure::Refused(Refusal::no_invalidation()))
        }
    }
}
