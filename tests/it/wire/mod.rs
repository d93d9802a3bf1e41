//! Faults on the wire, between a program and a server that is well. What virtual time can show is
//! in `src/simulation/rows`.

// The login: one batch, credentials that change, and what is at the other end.
mod login;
// Black holes, broken replies, and a Redis that is not up yet, with and without TLS.
mod outages;
// TLS: which servers are trusted, and why a connection is refused.
#[cfg(feature = "tls")]
pub(crate) mod tls;
