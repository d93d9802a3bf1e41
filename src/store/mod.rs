//! Where the keys are: in Redis, or in the memory of this process. The seam between the lock and
//! the client.
//!
//! [`Store`] is the way in for the rooms above. It lends a [`Connection`], which has the commands
//! of a lock. [`memory`] has the keys of this process. Results are small enums. Only `keeping`
//! above knows that there are servers: a thread renews for each node. `third` shows what one more
//! store needs: a file with [`Commands`], a variant of [`Store`], and its arm in [`Store::local`].
//! This room may use `client` and `base`.

mod memory;
#[cfg(test)]
pub(crate) mod third;

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::key::Key;
use crate::base::options::Settings;
use crate::base::owner::holder::Holder;
use crate::client::{self, Topology};

#[cfg(not(feature = "tls-no-provider"))]
pub(crate) use crate::client::Tls;
#[cfg(feature = "tls-no-provider")]
pub use crate::client::Tls;
pub(crate) use crate::client::{
    Address, AdoptReply, AskCredentials, Cause, ClaimReply, Commands, Compared, Extension,
    FAIR_TRY, Failure, Goal, Heard, Holds, Info, Login, Looks, Missing, Node, Refusal, Seen,
    ServerConnection, Target, Tracking, TrackingConnection, Wanted,
};
pub(crate) use crate::store::memory::MemoryStore;

/// The way to the store that has a key.
pub(crate) type Connection<'a> = Box<dyn Commands + 'a>;

/// Where the keys are.
#[derive(Debug)]
pub(crate) enum Store {
    Servers(Arc<Topology>),
    Memory(Arc<MemoryStore>),
    #[cfg(test)]
    Third(third::Third),
}

impl Store {
    pub(crate) fn in_memory() -> Store {
        Store::Memory(Arc::default())
    }

    pub(crate) fn memory(&self) -> Option<&Arc<MemoryStore>> {
        let Store::Memory(memory) = self else {
            return None;
        };
        Some(memory)
    }

    fn router(&self) -> Option<&Arc<Topology>> {
        let Store::Servers(router) = self else {
            return None;
        };
        Some(router)
    }

    /// The commands of a store without servers: it answers at once.
    pub(crate) fn local(&self) -> Option<Connection<'_>> {
        match self {
            Store::Servers(_) => None,
            Store::Memory(memory) => Some(Box::new(&**memory)),
            #[cfg(test)]
            Store::Third(third) => Some(Box::new(third)),
        }
    }

    pub(crate) fn new(target: Target, settings: &Settings) -> Result<Store, Error> {
        client::prepare();
        let router = Topology::new(target, settings)?;
        Ok(Store::Servers(Arc::new(router)))
    }

    /// Speaks to Redis once. In a cluster, any node will do.
    pub(crate) fn ping(&self, action: &'static str, deadline: Moment) -> Result<(), Error> {
        match self.router() {
            Some(router) => {
                let answer = router.ping(deadline);
                answer.map_err(|(failure, server)| error_of(server, None, action, failure))
            }
            None => self
                .answers_at_once()
                .map_err(|failure| self.error(None, action, failure)),
        }
    }

    /// An error if a store without servers is away.
    fn answers_at_once(&self) -> Result<(), Failure> {
        let looked = |mut it: Connection<'_>| it.look("", None, Moment::NEVER).map(drop);
        self.local().map_or_else(|| Err(no_server()), looked)
    }

    /// Borrows a connection to the server that has this key. Waits for one and connects if
    /// necessary, until the deadline.
    pub(crate) fn checkout(&self, key: &str, deadline: Moment) -> Result<Connection<'_>, Failure> {
        match self.router() {
            Some(servers) => {
                let reached = servers.reach(key, deadline, Node::lend)?;
                Ok(Box::new(ServerConnection::new(servers, reached)))
            }
            None => self.local().ok_or_else(no_server),
        }
    }

    /// Opens a connection outside the pool, for a command that must not go over a connection that
    /// may be dead.
    pub(crate) fn connect(&self, key: &str, deadline: Moment) -> Result<Connection<'_>, Failure> {
        match self.router() {
            Some(servers) => {
                let reached = servers.reach(key, deadline, Node::own)?;
                Ok(Box::new(ServerConnection::new(servers, reached)))
            }
            None => self.local().ok_or_else(no_server),
        }
    }

    /// Opens a connection outside the pool to this node, for a thread that serves no other.
    pub(crate) fn connect_to(
        &self,
        node: &Arc<Node>,
        deadline: Moment,
    ) -> Result<ServerConnection, Failure> {
        let router = self.router().ok_or_else(no_server)?;
        ServerConnection::pinned(router, node, deadline)
    }

    /// All nodes that have keys. None in memory.
    pub(crate) fn masters(&self, deadline: Moment) -> Result<Vec<Arc<Node>>, Failure> {
        self.router()
            .map_or(Ok(Vec::new()), |router| router.masters(deadline))
    }

    /// What the keys with this prefix hold, if they are in memory.
    pub(crate) fn all_in_memory(&self, prefix: &str) -> Result<Vec<(String, Holder)>, Failure> {
        self.memory()
            .map_or(Ok(Vec::new()), |memory| memory.all(prefix))
    }

    /// The node that has this key, as far as is known. `None` if the cluster's map has not been
    /// read yet or names no node for the key, or if the keys are in memory. Does not wait.
    pub(crate) fn node_of(&self, key: &str) -> Option<Arc<Node>> {
        self.router()?.known_node_of(key)
    }

    /// Makes the attempt of a caller that asks once. In a cluster, a node that is not where the
    /// last map says cannot be reached, and the first to speak to it would be told that Redis is
    /// unavailable although the cluster is well. So an attempt that has sent nothing is made again
    /// with a newer map, if one comes before the deadline. (A wait for a lock tries again anyway.
    /// `try_lock` does not wait: meanwhile, other threads would be told that the lock is busy.)
    pub(crate) fn again_with_new_map<T>(
        &self,
        deadline: Moment,
        attempt: impl Fn() -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let cluster = || self.router().filter(|router| router.is_cluster());
        let used = match cluster() {
            // If there is no map yet, the attempt would wait for it.
            Some(cluster) => cluster.map(deadline).map(|_| cluster.asked())?,
            None => Moment::PAST,
        };
        let answer = attempt();
        // The next map may be there already: another thread has asked for it.
        if matches!(answer, Err(Failure::NotSent(_)))
            && cluster().is_some_and(|it| it.map_since(used.after_nanos(1), deadline).is_ok())
        {
            return attempt();
        }
        answer
    }

    /// True if this node has the key, as far as is known.
    pub(crate) fn may_be_at(&self, node: &Node, redis_key: &[u8]) -> bool {
        self.router()
            .is_none_or(|router| router.may_be_at(node, redis_key))
    }

    /// Opens a connection for the invalidations of a node. `probe` is a key that nobody else uses,
    /// or the beginning of one: it is changed, to make sure that its invalidation comes.
    pub(crate) fn listen(
        &self,
        node: &Arc<Node>,
        probe: &str,
    ) -> Result<TrackingConnection, Failure> {
        client::listen(self.router().ok_or_else(no_server)?, node, probe)
    }

    /// When the node that has this key last answered any thread, over a connection that has gone
    /// back to the pool. A store without servers answers at once, unless it is away.
    pub(crate) fn answered_at(&self, key: &str) -> Moment {
        match self.node_of(key) {
            Some(node) => node.answered_at(),
            None if self.answers_at_once().is_ok() => Moment::now(),
            None => Moment::PAST,
        }
    }

    /// Registers `call`, which gets the number of each pooled connection that is closed. Redis then
    /// sends no invalidations of keys that were read over that connection.
    pub(crate) fn on_close(&self, call: impl Fn(u64) + Send + Sync + 'static) {
        if let Some(router) = self.router() {
            let _ = router.common.on_close.set(Box::new(call)); // `Listeners::new` sets it once.
        }
    }

    /// Registers `call`, which is called after keys have moved to other servers, with a function
    /// that says which keys those are. With sentinels, all connections to the old master have ended
    /// by then.
    pub(crate) fn on_move(&self, call: impl Fn(&dyn Fn(&[u8]) -> bool) + Send + Sync + 'static) {
        if let Some(router) = self.router() {
            router.on_move(call);
        }
    }

    /// Ends the store's thread, if there is one.
    pub(crate) fn stop(&self) {
        if let Some(router) = self.router() {
            router.stop();
        }
    }

    /// The error that the caller sees for a command on this key.
    pub(crate) fn error(&self, key: Option<&Key>, action: &'static str, failure: Failure) -> Error {
        let server = self
            .router()
            .map_or_else(|| "memory".to_owned(), |it| it.name(key.map(Key::in_redis)));
        error_of(server, key, action, failure)
    }
}

fn error_of(server: String, key: Option<&Key>, action: &'static str, failure: Failure) -> Error {
    let key = key.map(|key| Box::from(&**key.name()));
    match failure {
        Failure::Refused(refusal) if !refusal.can_pass() => Error::Refused {
            server,
            action,
            key,
            code: refusal.code,
            message: refusal.message.into(),
            held: Vec::new(),
        },
        Failure::Tls { cause, source } => Error::Tls {
            server,
            cause,
            source,
            held: Vec::new(),
        },
        other => Error::Unavailable {
            server,
            action,
            key,
            cause: other.into_cause(),
            held: Vec::new(),
        },
    }
}

fn no_server() -> Failure {
    Failure::not_sent("there is no server: the locks are in memory")
}
