//! The seam: what a store of locks can do.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::client::commands::claim::Claims;
use crate::client::commands::compare::Holds;
use crate::client::commands::connection::ServerConnection;
use crate::client::commands::look::Looks;
use crate::client::servers::node::Node;

/// The way to the store that has a key.
pub(crate) trait Commands: Claims + Holds + Looks {
    /// The node at the other end. `None` if there is no server.
    fn node(&self) -> Option<&Arc<Node>>;

    /// True if the other end has answered since `moment`, over a connection that has gone back to
    /// the pool. What is no server answers at once.
    fn answered_since(&self, moment: Moment) -> bool {
        self.node().is_none_or(|node| node.answered_since(moment))
    }
}

impl Commands for ServerConnection {
    fn node(&self) -> Option<&Arc<Node>> {
        Some(&self.lent.node)
    }
}
