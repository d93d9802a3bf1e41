//! Faults on the wire, between a program and a server that is well.

// The login: one batch, credentials that change, and what is at the other end.
mod login;
// A command is executed, or will be, and its answer is lost.
mod lost_answers;
// An answer to a `SET` that comes after the lease, or takes most of it.
mod answers_after_the_lease;
// An answer, an invalidation or Redis itself comes too late while a thread waits.
mod late_while_waiting;
// Black holes, broken replies, and a Redis that is not up yet: every call ends by its deadline.
mod outages;
// TLS: which servers are trusted, and that deadlines, late replies and wake-ups hold there, too.
#[cfg(feature = "tls")]
pub(crate) mod tls;
// The exclusion and the faults once more, over TLS.
#[cfg(feature = "tls")]
mod faults_over_tls;
// Connections that are dead while Redis is well: forgotten by a firewall, or closed while idle.
mod dead_connections;
// Half-open connections. A slow connection must not be taken for half-open.
mod half_open_connections;
// A proxy that forwards a command and then answers with an error of its own.
mod proxy_errors;
// What remains of an earlier fault shortens no lease and prolongs no wait.
mod what_faults_leave;
