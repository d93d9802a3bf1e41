//! A node of a cluster, whose slots stay, go and come.

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
    let dir = tempfile::tempdir().expect("the real server and this test work");
    let path = dir.path().join("nodes.conf");
    std::fs::write(&path, state).expect("the real server and this test work");
    let bus = std::net::TcpListener::bind("127.0.0.1:0")
        .expect("the real server and this test work")
        .local_addr()
        .expect("the real server and this test work")
        .port()
        .to_string();
    let server = Server::with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-config-file",
        path.to_str().expect("the real server and this test work"),
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

impl Comparison {
    /// Slots stay, go, come, or are nobody's.
    pub(super) fn cluster(&mut self, seed: u64) {
        self.random = StdRng::seed_from_u64(seed);
        self.told = vec![format!("cluster, seed {seed}")];
        let neighbour = self
            .redis
            .view()
            .expect("the real server and this test work")
            .nodes[1]
            .id
            .clone();
        let [here, there] = ["b", "a"].map(|key| slot(key.as_bytes()));
        let [here_text, there_text] = [here, there].map(|slot| slot.to_string());
        for moving in [&here_text, &there_text] {
            self.direct(&["CLUSTER", "SETSLOT", moving, "STABLE"]);
        }
        let view = self
            .redis
            .view()
            .expect("the real server and this test work");
        (view.migrating, view.importing) = Default::default();
        if seed % 2 == 1 {
            view.migrating.insert(here, 1);
            view.importing.insert(there, 1);
            self.direct(&["CLUSTER", "SETSLOT", &here_text, "MIGRATING", &neighbour]);
            self.direct(&["CLUSTER", "SETSLOT", &there_text, "IMPORTING", &neighbour]);
        }
        for _ in 0..self.random.random_range(4..16) {
            let at = self.random.random_range(0..self.connections.len());
            let words = self.words();
            if self.random.random_range(0..3) == 0 {
                self.send(at, &["ASKING"]);
            }
            self.told.push(format!(
                "{at}: {:?}",
                words.iter().map(|it| show(it)).collect::<Vec<_>>()
            ));
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            self.step(at, &command(&words));
        }
        self.settle();
    }
}
