//! Which server has a key, and where it is.
//!
//! [`topology`] is the map that says which node has a slot: a node is a server with all its
//! connections. Its thread asks a [`source`] for the map: one server, a cluster, or sentinels.
//! `map` is which node has which slot, and `slots` the slot of a key. Over the connection in
//! [`tracking`], a server sends invalidations. This room may use `url`, `wire` and `base`.

pub(crate) mod topology;
mod source;
mod map;
pub(crate) mod node;
pub(crate) mod slots;
pub(crate) mod tracking;
