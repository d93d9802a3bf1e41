//! The commands of a lock, one method each: over a connection to a server, or in memory.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;
use crate::client::Extension;
use crate::client::Failure;
use crate::client::Node;
use crate::client::ServerConnection;
use crate::client::Wanted;
use crate::client::{AdoptReply, ClaimReply, Compared, Seen, Tracking};
use crate::store::memory::MemoryStore;

/// The way to the store that has a key. What the commands mean: [`ServerConnection`].
pub(crate) enum Connection<'a> {
    To(ServerConnection),
    Memory(&'a MemoryStore),
}

impl Connection<'_> {
    /// The node at the other end. `None` in memory.
    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        match self {
            Connection::To(server) => Some(server.node()),
            Connection::Memory(_) => None,
        }
    }

    /// True if the other end has answered since `moment`, over a connection that has gone back to
    /// the pool. Memory answers at once.
    pub(crate) fn answered_since(&self, moment: Moment) -> bool {
        match self {
            Connection::To(server) => server.node().answered_since(moment),
            Connection::Memory(_) => true,
        }
    }

    pub(crate) fn claim(
        &mut self,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<ClaimReply, Failure> {
        match self {
            Connection::To(server) => server.claim(wanted, deadline),
            Connection::Memory(memory) => memory.claim(wanted),
        }
    }

    pub(crate) fn claim_or_look(
        &mut self,
        wanted: Wanted<'_>,
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(ClaimReply, Tracking), Failure> {
        match self {
            Connection::To(server) => server.claim_or_look(wanted, listener, deadline),
            Connection::Memory(memory) => {
                memory.claim(wanted).map(|reply| (reply, Tracking::Direct))
            }
        }
    }

    pub(crate) fn remove(
        &mut self,
        key: &str,
        token: &str,
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        match self {
            Connection::To(server) => server.remove(key, token, deadline),
            Connection::Memory(memory) => memory.remove(key, token),
        }
    }

    pub(crate) fn keep(
        &mut self,
        key: &str,
        token: &str,
        rest: u64,
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        match self {
            Connection::To(server) => server.keep(key, token, rest, deadline),
            Connection::Memory(memory) => memory.keep(key, token, rest),
        }
    }

    pub(crate) fn remove_and_claim(
        &mut self,
        token: &str,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<(Result<Compared, Failure>, ClaimReply), Failure> {
        match self {
            Connection::To(server) => server.remove_and_claim(token, wanted, deadline),
            Connection::Memory(memory) => memory
                .remove_and_claim(token, wanted)
                .map(|(removed, claimed)| (Ok(removed), claimed)),
        }
    }

    pub(crate) fn extend_all(
        &mut self,
        extensions: &[Extension<'_>],
        listener: Option<u64>,
        deadline: Moment,
    ) -> Result<(Vec<Result<Compared, Failure>>, Tracking), Failure> {
        match self {
            Connection::To(server) => server.extend_all(extensions, listener, false, deadline),
            Connection::Memory(memory) => {
                let extend = |it: &Extension<'_>| memory.extend(it.key, it.token, it.lease);
                Ok((extensions.iter().map(extend).collect(), Tracking::Off))
            }
        }
    }

    pub(crate) fn abandon(self, key: &str, token: &str) {
        match self {
            Connection::To(server) => server.abandon(key, token),
            Connection::Memory(memory) => _ = memory.remove(key, token),
        }
    }

    pub(crate) fn adopt(
        &mut self,
        old: &str,
        least: u64,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<AdoptReply, Failure> {
        match self {
            Connection::To(server) => server.adopt(old, least, wanted, deadline),
            Connection::Memory(memory) => memory.adopt(old, wanted),
        }
    }

    pub(crate) fn look(
        &mut self,
        key: &str,
        counter: Option<&str>,
        deadline: Moment,
    ) -> Result<Seen, Failure> {
        match self {
            Connection::To(server) => server.look(key, counter, deadline),
            Connection::Memory(memory) => memory.look(key, counter.is_some()),
        }
    }

    pub(crate) fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure> {
        match self {
            Connection::To(server) => server.force(key, deadline),
            Connection::Memory(memory) => memory.force(key),
        }
    }
}
