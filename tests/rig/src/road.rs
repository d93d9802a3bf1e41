//! How the managers of the tests reach a server: directly or, if the environment says so, by a
//! sentinel that names it, or as the only node of a cluster. Then all tests show what they show for
//! a master that a sentinel names, or for a node of a cluster.

use std::collections::HashMap;
use std::sync::LazyLock;

use parking_lot::Mutex;

use crate::{FakeServer, Reply, rights};

/// If this variable is set, managers ask a sentinel for each connection.
const BY_SENTINEL: &str = "RELATCH_TEST_BY_SENTINEL";

/// If this variable is set, each server is a cluster.
const IN_CLUSTER: &str = "RELATCH_TEST_IN_CLUSTER";

/// By the port of what passes commands on: the port of what stands in front of that.
static IN_FRONT: LazyLock<Mutex<HashMap<u16, u16>>> = LazyLock::new(Mutex::default);

/// Whether each server is the only node of a cluster.
pub(crate) fn is_in_cluster() -> bool {
    static IS_SET: LazyLock<bool> = LazyLock::new(|| std::env::var_os(IN_CLUSTER).is_some());
    *IS_SET
}

/// Notes that clients connect to `port` in order to reach `target`.
pub(crate) fn leads(port: u16, target: u16) {
    IN_FRONT.lock().insert(target, port);
}

/// What is answered in the place of a node, if managers take servers for clusters: that what
/// listens at `port`, or what stands in front of that, is the only node. The node itself would name
/// its own port, and managers would go past the proxy. `None` if this is no question about the
/// cluster.
pub(crate) fn of_cluster(command: &[String], port: u16) -> Option<Vec<u8>> {
    let is = |wanted: [&str; 2]| command.iter().map(|it| it.to_uppercase()).eq(wanted);
    let reply = if !is_in_cluster() {
        return None;
    } else if is(["CLUSTER", "SLOTS"]) {
        let port = IN_FRONT.lock().get(&port).copied().unwrap_or(port);
        let id = "0".repeat(40);
        format!("*1\r\n*3\r\n:0\r\n:16383\r\n*3\r\n$0\r\n\r\n:{port}\r\n$40\r\n{id}\r\n")
    } else if is(["CLUSTER", "INFO"]) {
        "$18\r\ncluster_state:ok\r\n\r\n".to_owned()
    } else {
        return None;
    };
    Some(reply.into_bytes())
}

/// It answers for any number of masters: the name of each is its port. A real sentinel would send
/// commands of its own to a master, and the tests count commands.
static SENTINEL: LazyLock<Option<FakeServer>> =
    LazyLock::new(|| std::env::var_os(BY_SENTINEL).map(|_| FakeServer::start(answer)));

/// The address, for a manager, of what listens at this port. With the login if there is one.
pub(crate) fn url(port: u16) -> String {
    let login = rights::login();
    match &*SENTINEL {
        _ if is_in_cluster() => format!("redis+cluster://{login}127.0.0.1:{port}/"),
        Some(sentinel) => format!("redis+sentinel://{login}{}/{port}", sentinel.address()),
        None => format!("redis://{login}127.0.0.1:{port}/"),
    }
}

fn answer(command: &[String]) -> Reply {
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let reply = match command[..] {
        [] => String::new(),
        ["SENTINEL", "get-master-addr-by-name", port] => {
            format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(port))
        }
        ["SENTINEL", "sentinels", _] => "*0\r\n".to_owned(),
        ["SENTINEL", "master", _] => format!("*2\r\n{}{}", bulk("config-epoch"), bulk("0")),
        ["SUBSCRIBE", channel] => format!("*3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel)),
        ["PING"] => format!("*2\r\n{}{}", bulk("pong"), bulk("")),
        _ => "+OK\r\n".to_owned(),
    };
    Reply::Bytes(reply.into_bytes())
}
