//! A Redis client for locks: one server, a master that sentinels name, or a cluster; it enforces
//! deadlines, and says exactly what is known about each command that got no answer.
//!
//! [`commands`] has what a lock asks of Redis, [`servers`] which server has a key, [`url`] what
//! a program names, and [`wire`] the connections. Nothing here knows what a hold is, or a turn.
//! Only this room names the crates `redis` and `r2d2`. This room may use `base`.

mod commands;
mod servers;
mod url;
mod wire;

pub(crate) use crate::client::commands::claim::Claims;
pub(crate) use crate::client::commands::compare::{Extension, Holds};
pub(crate) use crate::client::commands::connection::ServerConnection;
pub(crate) use crate::client::commands::inspect::{Info, Missing};
pub(crate) use crate::client::commands::look::{Looks, listen};
pub(crate) use crate::client::commands::reply::{AdoptReply, ClaimReply, Compared, Seen, Tracking};
pub(crate) use crate::client::commands::script::prepare;
pub(crate) use crate::client::commands::seam::Commands;
pub(crate) use crate::client::commands::wanted::{Goal, Wanted};
pub(crate) use crate::client::servers::node::Node;
pub(crate) use crate::client::servers::topology::Topology;
pub(crate) use crate::client::servers::tracking::{Heard, TrackingConnection};
pub(crate) use crate::client::url::address::Address;
pub(crate) use crate::client::url::target::Target;
pub(crate) use crate::client::wire::endpoint::Login;
pub(crate) use crate::client::wire::failure::{Cause, Failure};
pub(crate) use crate::client::wire::link::FAIR_TRY;
pub(crate) use crate::client::wire::login::AskCredentials;
pub(crate) use crate::client::wire::refusal::Refusal;
#[cfg(not(feature = "tls-no-provider"))]
pub(crate) use crate::client::wire::tls::Tls;
#[cfg(feature = "tls-no-provider")]
pub use crate::client::wire::tls::Tls;
