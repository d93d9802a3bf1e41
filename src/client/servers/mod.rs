//! Which server has a key, and where it is.
//!
//! [`router`] chooses the node: a server with all its connections. [`cluster`] is the thread that
//! reads the map of a cluster, `view` whom it believes, `atlas` what is known of its nodes, `map`
//! which node has which slot, and `slots` the slot of a key. `sentinel` is the server that
//! sentinels name. Over the connection in [`tracking`], a server sends invalidations. This room may
//! use `url`, `wire` and `base`.

pub(crate) mod router;
mod cluster;
mod atlas;
mod map;
pub(crate) mod node;
mod view;
pub(crate) mod slots;
mod sentinel;
pub(crate) mod tracking;
