//! What a program names: a URL, and what it says about the servers.
//!
//! [`target`] is all that is needed to connect. [`parse`] turns a URL into an [`address`]:
//! `several` takes apart a URL that names sentinels or nodes of a cluster, and `one` gives a URL
//! that names a single server to the `redis` crate. This room may use `wire` and `base`.

pub(crate) mod target;
mod parse;
mod several;
mod one;
pub(crate) mod address;
