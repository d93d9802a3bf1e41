//! One connection: how it is opened, its bytes, its deadlines, and why a command has no result.
//!
//! [`pool`] lends connections. [`login`] opens one. [`link`] counts its replies, [`stream`] has its
//! bytes and deadlines, [`resp`] the bytes of commands and replies. [`subscription`] is one that
//! receives messages. [`failure`] says why a command has no result, and whether Redis executed it;
//! `io_error` what an error of the socket or of TLS says of the connection.
//! This room may use `base`.

pub(crate) mod pool;
pub(crate) mod subscription;
pub(crate) mod login;
pub(crate) mod link;
pub(crate) mod stream;
pub(crate) mod endpoint;
pub(crate) mod refusal;
pub(crate) mod failure;
mod io_error;
pub(crate) mod resp;
pub(crate) mod tls;
