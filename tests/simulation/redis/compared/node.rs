//! A real node of a cluster.

use super::*;

/// A node of a cluster, which has the lower half of the slots, and its neighbour, which does not
/// exist.
pub(super) fn start() -> (Server, View, TempDir) {
    let ids = ["1", "2", "3"].map(|digit| digit.repeat(40));
    let state = format!(
        "{} :1@1 myself,slave {} 0 1 0 connected\n\
         {} 127.0.0.1:1@1 master - 0 1 1 connected 0-8191\n\
         {} 127.0.0.1:2@2 master - 0 1 2 connected 8192-16383\n\
         vars currentEpoch 2 lastVoteEpoch 0\n",
        ids[0], ids[1], ids[1], ids[2]
    );
    let dir = tempfile::tempdir().expect(WORKS);
    let path = dir.path().join("nodes.conf");
    std::fs::write(&path, state).expect(WORKS);
    let bus = std::net::TcpListener::bind("127.0.0.1:0")
        .expect(WORKS)
        .local_addr()
        .expect(WORKS)
        .port()
        .to_string();
    let server = Server::with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-config-file",
        path.to_str().expect(WORKS),
        "--cluster-port",
        &bus,
        "--cluster-announce-ip",
        "127.0.0.1",
        "--cluster-require-full-coverage",
        "no",
    ]);
    eventually(Duration::from_secs(20), "the node is a master", || {
        let _ = server.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        let _ = server.command(&["CLUSTER", "FORGET", &ids[1]]);
        let info = server.command(&["CLUSTER", "INFO"]).ok();
        let info = info
            .and_then(|it| redis::from_redis_value::<String>(it).ok())
            .unwrap_or_default();
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
    });
    let member = |id: &String, port| Member {
        id: id.clone(),
        host: "127.0.0.1".to_owned(),
        port,
        master: None,
    };
    let nodes = vec![member(&ids[0], server.port()), member(&ids[2], 2)];
    (
        server,
        View {
            nodes,
            slots: vec![(0, 8191, 0), (8192, 16383, 1)],
            ..View::default()
        },
        dir,
    )
}
