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
//! - `replicas`: which replicas have to acknowledge a lock.
//! - `failure`: why a command has no result, and whether Redis executed it.
//!
//! There is one node. Support for several servers would begin here: [`Store::checkout`] gets the
//! key, and can choose the node by it. [`Fate::Elsewhere`] says that another node has to be asked.
//! Sending and collecting are two steps (`Link::send`, `Link::collect`), so that a batch can go to
//! each node before a thread waits for the first answer.

mod address;
mod connection;
mod endpoint;
mod epochs;
mod failure;
mod link;
mod login;
mod master;
mod node;
mod pool;
mod replicas;
mod reply;
mod resp;
mod script;
mod sentinels;
mod subscription;
mod tls;
mod tracking;
mod wire;

use std::fmt;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Settings;
use crate::store::address::Servers;
use crate::store::endpoint::Endpoint;
use crate::store::login::{Access, Credentials, Expected};
use crate::store::master::Master;
use crate::store::node::{Location, Node};
use crate::store::sentinels::Sentinels;

pub(crate) use crate::store::address::{Address, Target};
pub(crate) use crate::store::connection::{Connection, Extension};
pub(crate) use crate::store::endpoint::Login;
pub(crate) use crate::store::failure::{Cause, Failure, Fate, Refusal};
pub(crate) use crate::store::link::FAIR_TRY;
pub(crate) use crate::store::login::AskCredentials;
pub(crate) use crate::store::reply::{ClaimReply, Compared, Seen, Tracking};
#[cfg(not(feature = "tls-no-provider"))]
pub(crate) use crate::store::tls::Tls;
#[cfg(feature = "tls-no-provider")]
pub use crate::store::tls::Tls;
pub(crate) use crate::store::tracking::{Heard, TrackingConnection};

/// The server, and the connections to it.
pub(crate) struct Store {
    node: Node,
}

impl Store {
    pub(crate) fn new(target: Target, settings: &Settings) -> Result<Store, Error> {
        script::prepare();
        let Target { servers, credentials, db, tls, sentinel_login, sentinel_tls } = target;
        let location = match servers {
            Servers::One(place) => Location::At(Endpoint::new(place, tls)),
            Servers::Sentinels { hosts, name } => {
                let counts_replicas = settings.replicas.is_some_and(|(replicas, _)| replicas.count.is_none());
                let access = Access::new(sentinel_login.map(Credentials::Fixed), 0, Expected::Sentinel);
                let sentinels = Sentinels::new(name, hosts, access, sentinel_tls, counts_replicas);
                Location::Master(Arc::new(Master::new(sentinels, tls)))
            }
        };
        let expected = if matches!(location, Location::At(_)) { Expected::Server } else { Expected::Master };
        Ok(Store { node: Node::new(location, Access::new(credentials, db, expected), settings)? })
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

    /// Registers `call`, which is called after another server has become the master. All
    /// connections to the old one have been ended by then.
    pub(crate) fn on_switch(&self, call: impl Fn() + Send + Sync + 'static) {
        self.node.on_switch(call);
    }

    /// Ends the store's thread, if there is one.
    pub(crate) fn stop(&self) {
        self.node.stop();
    }

    /// Closes the idle connections that have ended or may be dead. Does not wait.
    pub(crate) fn sweep(&self) {
        self.node.pool.sweep();
    }

    /// The error that the caller sees.
    pub(crate) fn error(&self, action: String, failure: Failure) -> Error {
        let server = self.node.name();
        match failure {
            Failure::Refused(refusal) if !refusal.can_pass() => {
                Error::Refused { server, action, code: refusal.code, message: refusal.message }
            }
            Failure::Tls { cause, source } => Error::Tls { server, cause, source },
            other => Error::Unavailable { server, action, source: other.into_cause() },
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("node", &self.node).finish_non_exhaustive()
    }
}
