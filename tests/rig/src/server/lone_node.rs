//! A server that is the only node of a cluster.
//!
//! It starts in the way of `cluster::start`, as the replica of a master that does not exist.

use std::fs;
use std::path::{Path, PathBuf};

use super::Server;
use crate::{LONG, eventually};

/// The id of the master that does not exist.
const GHOST: &str = "0000000000000000000000000000000000000001";

#[derive(Debug)]
pub(super) struct LoneNode {
    state: PathBuf,
    id: String,
}

/// Whether a server with these arguments can be no such node.
pub(super) fn excludes_cluster(args: &[String]) -> bool {
    args.iter()
        .any(|arg| ["--cluster-enabled", "--replicaof"].contains(&&**arg))
}

impl LoneNode {
    /// A node at this port, with its files in `dir`.
    pub(super) fn new(dir: &Path, port: u16) -> LoneNode {
        let id = format!("{:032x}{port:08x}", std::process::id());
        LoneNode {
            state: dir.join("nodes.conf"),
            id,
        }
    }

    /// Writes what the node knows before it starts. Returns its arguments.
    pub(super) fn begin(&self) -> Vec<String> {
        let id = &self.id;
        // Without a host: managers use the one that they asked.
        let state = format!(
            "{id} :1@1 myself,slave {GHOST} 0 1 0 connected\n\
             {GHOST} 127.0.0.1:1@1 master - 0 1 1 connected 0-16383\n\
             vars currentEpoch 1 lastVoteEpoch 0\n"
        );
        fs::write(&self.state, state).expect("a file can be written");
        ["--cluster-enabled", "yes"].map(str::to_owned).to_vec()
    }

    /// Makes it the master that owns all slots.
    pub(super) fn take_over(server: &Server) {
        // While it loads its data, it refuses this.
        eventually(LONG, "the node has taken over", || {
            let _ = server.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
            let _ = server.command(&["CLUSTER", "FORGET", GHOST]);
            let info = server.command(&["CLUSTER", "INFO"]).ok();
            let info = info
                .and_then(|it| redis::from_redis_value::<String>(it).ok())
                .unwrap_or_default();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:1")
        });
        server.reset_stats();
    }
}
