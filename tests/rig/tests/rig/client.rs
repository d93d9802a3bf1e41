//! Plain clients of a server or a proxy.

use std::time::Duration;

use redis::{Client, Connection, RedisResult};
use relatch_rig::LONG;

/// How long a client of [`connect_hasty`] waits for a reply.
pub(crate) const SHORT: Duration = Duration::from_millis(100);

pub(crate) fn connect(url: &str) -> Connection {
    let client = Client::open(url).expect("a valid address");
    let connection = client.get_connection_with_timeout(LONG).expect(url);
    connection.set_read_timeout(Some(LONG)).expect("a timeout");
    connection
}

/// A client that soon gives up.
pub(crate) fn connect_hasty(url: &str) -> Connection {
    let connection = connect(url);
    connection.set_read_timeout(Some(SHORT)).expect("a timeout");
    connection
}

pub(crate) fn set(connection: &mut Connection, key: &str) -> RedisResult<String> {
    redis::cmd("SET").arg(key).arg("1").query(connection)
}

pub(crate) fn ping(connection: &mut Connection) -> RedisResult<String> {
    redis::cmd("PING").query(connection)
}
