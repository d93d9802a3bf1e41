//! An address: the servers that a program names, and how to log in there.

use crate::client::wire::endpoint::{Login, Place};

/// The servers that a program names, as given by a URL.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) servers: Servers,
    /// How to log in to Redis. With sentinels: to the master that they name.
    pub(crate) login: Option<Login>,
    pub(crate) db: i64,
    /// Whether connections to Redis use TLS. With sentinels: those to the master.
    pub(crate) tls: bool,
}

/// Where Redis is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Place),
    /// Redis is where these sentinels say.
    Sentinels {
        hosts: Vec<Place>,
        /// The name by which the sentinels know the master.
        name: String,
    },
    /// Redis is a cluster, and these nodes know the others.
    Cluster {
        hosts: Vec<Place>,
    },
}
