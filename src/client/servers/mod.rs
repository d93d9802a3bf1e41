//! Which server has a key, and where it is.
//!
//! [`router`] chooses the node: a server with all its connections. [`cluster`] is the thread that
//! reads the map of a cluster, `view` whom it believes, `map` which node has which slot, and `slots`
//! the slot of a key. [`master`] is the server that sentinels name, `sentinels` how they are asked,
//! `epochs` which of their answers are out of date. Over the connection in [`tracking`], a server
//! sends invalidations. [`address`] is the URL.
//! This room may use `wire` and `base`.

pub(crate) mod router;
mod cluster;
mod map;
pub(crate) mod node;
mod master;
mod view;
pub(crate) mod slots;
mod sentinels;
mod epochs;
pub(crate) mod tracking;
pub(crate) mod address;
