//! The commands of a lock over a connection to a server: what is sent, and what a reply means.
//!
//! [`seam`] is what any store can do, also one in memory: [`claim`] takes a lock, [`compare`] has
//! what its holder does, [`look`] what anybody may do, [`survey`] what finds all locks, and
//! [`inspect`] what a server says about itself. They go over a [`connection`], which follows
//! redirects; `runs` is how a script goes over it. [`wanted`] is a lock that is to be taken,
//! [`script`] has the Lua scripts, [`reply`] reads what comes back, and `replicas` says which
//! replicas have to acknowledge. This room may use `servers`, `wire` and `base`.

pub(crate) mod seam;
pub(crate) mod claim;
pub(crate) mod compare;
pub(crate) mod look;
pub(crate) mod survey;
pub(crate) mod inspect;
mod runs;
mod replicas;
pub(crate) mod connection;
pub(crate) mod wanted;
pub(crate) mod script;
pub(crate) mod reply;
