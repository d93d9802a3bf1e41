//! One server and all connections to it: the pool's, the keeper's, the listener's.
//! (`Store::checkout` chooses the server.)

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::{Replicas, Settings, invalid_option};
use crate::store::connection::Connection;
use crate::store::endpoint::Endpoint;
use crate::store::failure::{Failure, Refusal};
use crate::store::link::Link;
use crate::store::login::Access;
use crate::store::master::Master;
use crate::store::pool::{LinkRef, Pool};
use crate::store::tracking::TrackingConnection;

pub(super) struct Node {
    location: Location,
    access: Access,
    pub(super) pool: Arc<Pool>,
    /// Which replicas have to acknowledge a lock, and how long Redis waits for them.
    pub(super) replicas: Option<(Replicas, Duration)>,
    connect_timeout: Duration,
    pub(super) response_timeout: Duration,
}

/// Where the server is.
pub(super) enum Location {
    At(Endpoint),
    /// Where the sentinels say.
    Master(Arc<Master>),
}

impl Node {
    pub(super) fn new(location: Location, access: Access, settings: &Settings) -> Result<Node, Error> {
        let &Settings { connect_timeout, response_timeout, pool_size, replicas, .. } = settings;
        if let (Some((all @ Replicas { count: None, .. }, _)), Location::At(_)) = (replicas, &location) {
            let reason = "only sentinels know how many there are; with one address, write the number: \
                          `Replicas::at_least(n)`";
            return Err(invalid_option("replicas", all, reason));
        }
        let pool = Arc::new(Pool::new(pool_size)?);
        Ok(Node { location, access, pool, replicas, connect_timeout, response_timeout })
    }

    /// How many replicas the sentinels know, also those that are down. `None` if there are no
    /// sentinels, or if they have not said so.
    pub(super) fn known_replicas(&self) -> Option<u32> {
        match &self.location {
            Location::At(_) => None,
            Location::Master(master) => master.sentinels.replicas(),
        }
    }

    /// The server, as errors name it.
    pub(super) fn name(&self) -> String {
        match &self.location {
            Location::At(endpoint) => endpoint.name().to_owned(),
            Location::Master(master) => master.describe(),
        }
    }

    /// Registers `call`, which is called after the sentinels have named another master. All
    /// connections to the old one have been ended by then.
    pub(super) fn on_switch(&self, call: impl Fn() + Send + Sync + 'static) {
        if let Location::Master(master) = &self.location {
            let pool = Arc::clone(&self.pool);
            master.on_switch(move || {
                pool.condemn(Moment::now());
                call();
            });
        }
    }

    /// Ends the threads of this node.
    pub(super) fn stop(&self) {
        if let Location::Master(master) = &self.location {
            master.stop(self.response_timeout);
        }
    }

    /// Borrows a connection of the pool. Waits for one and connects if necessary, until the
    /// deadline.
    pub(super) fn checkout(&self, deadline: Moment) -> Result<Connection<'_>, Failure> {
        let lent = self.pool.checkout(deadline, || self.open(deadline))?;
        Ok(Connection::new(LinkRef::Lent(lent), self))
    }

    /// Opens a connection outside the pool.
    pub(super) fn connect(&self, deadline: Moment) -> Result<Connection<'_>, Failure> {
        Ok(Connection::new(LinkRef::Own(Box::new(self.open(deadline)?)), self))
    }

    fn open(&self, deadline: Moment) -> Result<Link, Failure> {
        let in_time = || deadline.min(Moment::now().after(self.connect_timeout));
        match &self.location {
            Location::At(endpoint) => {
                let ways = endpoint.ways()?;
                let opened = Link::open(endpoint, &ways, &self.access, &[], in_time(), |_| Ok(()));
                opened.map(|(link, _)| link)
            }
            Location::Master(master) => {
                master.watch(self.connect_timeout);
                let deadline = in_time();
                master.connect(deadline, |endpoint, connected| {
                    let ways = endpoint.ways()?;
                    let opened = Link::open(endpoint, &ways, &self.access, &[], deadline, connected);
                    opened.map(|(link, _)| link)
                })
            }
        }
    }

    /// Opens a connection for invalidations, and makes sure that they come: it changes `probe`, a
    /// key that nobody else uses, over a second connection. If no invalidation comes, the result is
    /// `Refused`: a proxy may accept `CLIENT TRACKING` without passing it on.
    pub(super) fn listen(&self, probe: &str) -> Result<TrackingConnection, Failure> {
        let answer = || Moment::now().after(self.response_timeout);
        // A refusal of the connection may pass soon. (A refusal of what follows comes again.)
        let link = self.open(Moment::NEVER).map_err(Failure::of_an_attempt)?;
        let mut tracking = TrackingConnection::open(link, Moment::now().after(self.connect_timeout))?;
        let mut other = self.connect(Moment::NEVER).map_err(Failure::of_an_attempt)?;
        if let Err(failure) = other.change(probe, tracking.id, answer()) {
            // If the master was replaced in between, the new one does not know the listener.
            return Err(if tracking.has_ended() { failure.of_an_attempt() } else { failure });
        }
        if tracking.hears(probe, answer())? {
            Ok(tracking)
        } else {
            Err(Failure::Refused(Refusal::no_invalidation()))
        }
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Node").field("name", &self.name()).finish_non_exhaustive()
    }
}
