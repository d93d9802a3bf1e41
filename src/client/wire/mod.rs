//! One connection: how it is opened, its bytes, its deadlines, and why a command has no result.
//!
//! [`pool`] lends links. [`login`] opens one. [`link`] counts its replies, [`stream`] has its
//! bytes, [`socket`] its deadlines, and [`tls`] its cryptography. [`subscription`] is one that
//! receives messages. [`endpoint`] is where it leads, [`resp`] the bytes of commands and replies.
//! [`failure`] says why a command has no result, and whether Redis executed it; [`refusal`] is an
//! error that the server sent, and `io_error` says what a socket or TLS error means for the
//! connection. [`system`] has the system's sockets. This room may use `base`.

pub(crate) mod pool;
pub(crate) mod login;
pub(crate) mod subscription;
pub(crate) mod link;
pub(crate) mod stream;
pub(crate) mod endpoint;
pub(crate) mod tls;
pub(crate) mod socket;
pub(crate) mod failure;
pub(crate) mod resp;
pub(crate) mod refusal;
mod io_error;
#[cfg_attr(test, path = "system/simulated.rs")]
mod system;
