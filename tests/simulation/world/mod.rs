//! The servers of a scene, and what goes wrong with them.
//!
//! `engine` starts `server`s, alone or with `replication`, `sentinels` or as a `cluster`. `faults`
//! makes happen what a plan says, and `failover` replaces a master.

pub(crate) mod cluster;
pub(crate) mod engine;
pub(crate) mod failover;
pub(crate) mod faults;
pub(crate) mod replication;
pub(crate) mod sentinels;
pub(crate) mod server;
