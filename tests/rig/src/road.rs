//! How the managers of the tests reach a server: directly or, if the environment says so, by a
//! sentinel that names it. Then all tests show what they show for a master that a sentinel names.

use std::sync::LazyLock;

use crate::{FakeServer, Reply, rights};

/// If this variable is set, managers ask a sentinel for each connection.
const BY_SENTINEL: &str = "RELATCH_TEST_BY_SENTINEL";

/// It answers for any number of masters: the name of each is its port. A real sentinel would send
/// commands of its own to a master, and the tests count commands.
static SENTINEL: LazyLock<Option<FakeServer>> =
    LazyLock::new(|| std::env::var_os(BY_SENTINEL).map(|_| FakeServer::start(answer)));

/// The address, for a manager, of what listens at this port. With the login if there is one.
pub(crate) fn url(port: u16) -> String {
    let login = rights::login();
    match &*SENTINEL {
        Some(sentinel) => format!("redis+sentinel://{login}{}/{port}", sentinel.address()),
        None => format!("redis://{login}127.0.0.1:{port}/"),
    }
}

fn answer(command: &[String]) -> Reply {
    let command: Vec<_> = command.iter().map(String::as_str).collect();
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let reply = match command[..] {
        [] => String::new(),
        ["SENTINEL", "get-master-addr-by-name", port] => format!("*2\r\n{}{}", bulk("127.0.0.1"), bulk(port)),
        ["SENTINEL", "sentinels", _] => "*0\r\n".to_owned(),
        ["SENTINEL", "master", _] => format!("*2\r\n{}{}", bulk("config-epoch"), bulk("0")),
        ["SUBSCRIBE", channel] => format!("*3\r\n{}{}:1\r\n", bulk("subscribe"), bulk(channel)),
        ["PING"] => format!("*2\r\n{}{}", bulk("pong"), bulk("")),
        _ => "+OK\r\n".to_owned(),
    };
    Reply::Bytes(reply.into_bytes())
}
