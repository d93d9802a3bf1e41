//! What a program names: a URL, and what it says of the servers.
//!
//! [`target`] is all that is needed to connect. [`parse`] turns a URL into an [`address`]:
//! `several` takes one apart that names sentinels or nodes of a cluster, and `one` has the `redis`
//! crate read one that names a single server. This room may use `wire` and `base`.

pub(crate) mod target;
mod parse;
mod several;
mod one;
pub(crate) mod address;
