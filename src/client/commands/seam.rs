//! The seam: what a store of locks can do.

use std::sync::Arc;

use crate::client::commands::claim::Claims;
use crate::client::commands::compare::Holds;
use crate::client::commands::connection::ServerConnection;
use crate::client::commands::look::Looks;
use crate::client::servers::node::Node;

/// The way to the store that has a key.
pub(crate) trait Commands: Claims + Holds + Looks {
    /// The node at the other end. `None` if there is no server.
    fn node(&self) -> Option<&Arc<Node>> {
        None
    }
}

impl Commands for ServerConnection {
    fn node(&self) -> Option<&Arc<Node>> {
        Some(&self.lent.node)
    }
}
