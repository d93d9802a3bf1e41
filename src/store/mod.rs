//! Redis, as the rest of the crate sees it: a few commands, and small enums for the replies.
//!
//! May use `base`. No other room names the crates `redis` and `r2d2`. From the outside to the wire:
//!
//! - [`Store`] is the way in for the rooms above. It lends a [`Connection`], which has the
//!   commands.
//! - `node`: a server with all its connections. `pool` lends most of them. Over the connection in
//!   `tracking`, Redis sends invalidations.
//! - `link`: a connection whose replies are counted. `wire`: the bytes of a connection. `resp`: the
//!   bytes of commands and replies. `reply`: what a reply means.
//! - `failure`: why a command has no result, and whether Redis executed it.
//!
//! There is one node. Support for several servers would begin here: [`Store::checkout`] gets the
//! key, and can choose the node by it. [`Fate::Elsewhere`] says that another node has to be asked.
//! Sending and collecting are two steps (`Link::send`, `Link::collect`), so that a batch can go to
//! each node before a thread waits for the first answer.

mod address;
mod connection;
mod endpoint;
mod failure;
mod link;
mod node;
mod pool;
mod reply;
mod resp;
mod script;
mod tls;
mod tracking;
mod wire;

use std::fmt;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Settings;
use crate::store::address::Servers;
use crate::store::endpoint::Endpoint;
use crate::store::node::Node;

pub(crate) use crate::store::address::{Address, Target};
pub(crate) use crate::store::connection::{Connection, Extension};
pub(crate) use crate::store::failure::{Cause, Failure, Fate, Refusal};
pub(crate) use crate::store::link::FAIR_TRY;
pub(crate) use crate::store::reply::{ClaimReply, Compared, Seen, Tracking};
pub(crate) use crate::store::tracking::{Heard, TrackingConnection};
pub(crate) use crate::store::wire::Ender;

/// The server, and the connections to it.
pub(crate) struct Store {
    node: Node,
}

impl Store {
    pub(crate) fn new(target: Target, settings: &Settings) -> Result<Store, Error> {
        script::prepare();
        let Target { servers, login, db, tls } = target;
        let place = match servers {
            Servers::One(place) => place,
            Servers::Sentinels { .. } => unimplemented!("SENTINEL: the lead replaces this line"),
        };
        Ok(Store { node: Node::new(Endpoint::new(place, login, db, tls), settings)? })
    }

    /// Speaks to Redis once.
    pub(crate) fn ping(&self, deadline: Moment) -> Result<(), Failure> {
        self.node.checkout(deadline)?.ping(deadline)
    }

    /// Borrows a connection to the server that has this key. Waits for one and connects if
    /// necessary, until the deadline.
    pub(crate) fn checkout(&self, key: &str, deadline: Moment) -> Result<Connection<'_>, Failure> {
        self.node_of(key).checkout(deadline)
    }

    /// The server that has this key: there is only one.
    fn node_of(&self, _key: &str) -> &Node {
        &self.node
    }

    /// Opens a connection outside the pool: for a thread that must not wait for others, or a
    /// command that must not go over a connection that may be dead.
    pub(crate) fn connect(&self, deadline: Moment) -> Result<Connection<'_>, Failure> {
        self.node.connect(deadline)
    }

    /// Opens a connection for invalidations. `probe` is a key that nobody else uses: the node
    /// changes it, to make sure that its invalidation comes.
    pub(crate) fn listen(&self, probe: &str) -> Result<TrackingConnection, Failure> {
        self.node.listen(probe)
    }

    /// True if Redis has answered since `moment`, over a connection that has gone back to the pool.
    pub(crate) fn answered_since(&self, moment: Moment) -> bool {
        self.node.pool.answered_since(moment)
    }

    /// Registers `call`, which gets the number of each pooled connection that is closed. Redis then
    /// sends no invalidations of keys that were read over that connection.
    pub(crate) fn on_close(&self, call: impl Fn(u64) + Send + Sync + 'static) {
        self.node.pool.on_close(call);
    }

    /// Closes the idle connections that have ended or may be dead. Does not wait.
    pub(crate) fn sweep(&self) {
        self.node.pool.sweep();
    }

    /// The error that the caller sees.
    pub(crate) fn error(&self, action: String, failure: Failure) -> Error {
        let server = self.node.endpoint.name().to_owned();
        match failure {
            Failure::Refused(refusal) if !refusal.can_pass() => {
                Error::Refused { server, action, code: refusal.code, message: refusal.message }
            }
            other => Error::Unavailable { server, action, source: other.into_cause() },
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("endpoint", &self.node.endpoint).finish_non_exhaustive()
    }
}
