//! The commands of a lock, one method each: to a server, or in memory.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::owner::holder::Holder;
use crate::client::{
    AdoptReply, ClaimReply, Compared, Extension, Failure, Node, Seen, ServerConnection, Tracking,
    Wanted,
};
use crate::store::memory::MemoryStore;

/// The way to the store that has a key. What the commands mean: [`ServerConnection`].
pub(crate) enum Connection<'a> {
    To(ServerConnection),
    Memory(&'a MemoryStore),
}

impl Connection<'_> {
    /// The node at the other end. `None` if there is no server.
    pub(crate) fn node(&self) -> Option<&Arc<Node>> {
        match self {
            Connection::To(server) => Some(server.node()),
            Connection::Memory(_) => None,
        }
    }

    /// True if the other end has answered since `moment`, over a connection that has gone back to
    /// the pool. What is no server answers at once.
    pub(crate) fn answered_since(&self, moment: Moment) -> bool {
        self.node().is_none_or(|node| node.answered_since(moment))
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
            Connection::Memory(memory) => Ok((memory.claim(wanted)?, Tracking::Direct)),
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

    /// Deletes a key if its value is this one, which may be another program's.
    pub(crate) fn force_if(
        &mut self,
        key: &str,
        value: &[u8],
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        match self {
            Connection::To(server) => server.force_if(key, value, deadline),
            Connection::Memory(memory) => memory.remove(key, &String::from_utf8_lossy(value)),
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
            Connection::Memory(memory) => {
                let (removed, claimed) = memory.remove_and_claim(token, wanted)?;
                Ok((Ok(removed), claimed))
            }
        }
    }

    pub(crate) fn extend(
        &mut self,
        extension: &Extension<'_>,
        deadline: Moment,
    ) -> Result<Compared, Failure> {
        match self {
            Connection::To(server) => server.extend(extension, deadline),
            Connection::Memory(memory) => memory.extend(extension),
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
        least_fence: u64,
        wanted: Wanted<'_>,
        deadline: Moment,
    ) -> Result<AdoptReply, Failure> {
        match self {
            Connection::To(server) => server.adopt(old, least_fence, wanted, deadline),
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

    /// An error if what is not there may be elsewhere.
    pub(crate) fn expect_master(&self) -> Result<(), Failure> {
        match self {
            Connection::To(server) => server.expect_master(),
            Connection::Memory(_) => Ok(()),
        }
    }

    pub(crate) fn force(&mut self, key: &str, deadline: Moment) -> Result<Option<Holder>, Failure> {
        match self {
            Connection::To(server) => server.force(key, deadline),
            Connection::Memory(memory) => memory.force(key),
        }
    }
}
