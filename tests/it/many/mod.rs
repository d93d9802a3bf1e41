//! More than one server.

// Replicas that have to acknowledge a lock, and failovers that lose what they lack.
mod replicas;
// Sentinel: the master dies, hangs or is replaced, and what sentinels and their users may say.
pub(crate) mod sentinel;
// TLS to the master that sentinels name, and to the sentinels.
#[cfg(feature = "tls")]
mod sentinel_tls;
// Redis Cluster: which node a command goes to, how a cluster is found, and what errors say.
pub(crate) mod cluster;
// Redis Cluster: slots that move, and masters that are replaced.
pub(crate) mod cluster_moves;
