//! The server that sentinels name as the master.
//!
//! [`master`] has the connections to it, and `watch` the thread that hears of another one.
//! [`sentinels`] is how sentinels are asked, `poll` which of their answers are believed, `named`
//! what an answer says, and `epochs` which answers are out of date. This room may use `wire` and
//! `base`.

mod watch;
pub(crate) mod master;
pub(crate) mod sentinels;
mod poll;
mod named;
mod epochs;
