//! More than one server.

// Replicas that have to acknowledge a lock and its renewals before these count.
mod replicas;
// Sentinel: the master dies, hangs or is replaced; sentinels are silent, wrong or gone.
pub(crate) mod sentinel;
// Sentinels that a test plays: reports to the millisecond, and sentinels that disagree.
mod sentinel_reports;
// TLS to the master that sentinels name, and to the sentinels.
#[cfg(feature = "tls")]
mod sentinel_tls;
// Failovers that lose what replicas lack, and the exclusion over failovers.
mod failovers;
// Redis Cluster: which node a command goes to, how a cluster is found, and what errors say.
pub(crate) mod cluster;
// Redis Cluster: slots that move, and nodes that come and go.
pub(crate) mod cluster_moves;
// Redis Cluster: nodes that die, are silent or are failed over.
mod cluster_faults;
