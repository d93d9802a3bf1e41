//! A connection over TLS, made and read by the `redis` crate.

use std::error::Error as StdError;
use std::io::{self, ErrorKind};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::Duration;

use redis::{Connection, ConnectionInfo, RedisError, RedisResult, Value};

use crate::base::clock::Moment;
use crate::store::resp::Reply;
use crate::store::wire::SHORTEST;

pub(super) struct Tls {
    connection: Connection,
    /// The current timeout of the socket.
    timeout: Duration,
}

impl Tls {
    pub(super) fn open(server: ConnectionInfo, limit: Duration) -> io::Result<Tls> {
        let connect = || redis::Client::open(server)?.get_connection_with_timeout(limit);
        Ok(Tls { connection: connect().map_err(io_error)?, timeout: Duration::ZERO })
    }

    pub(super) fn send(&mut self, bytes: &[u8], deadline: Moment) -> io::Result<()> {
        self.by(deadline, |connection| connection.send_packed_command(bytes))
    }

    pub(super) fn receive(&mut self, deadline: Moment) -> io::Result<Reply> {
        reply(self.by(deadline, Connection::recv_response)?)
    }

    /// The payload of the next message on a connection that has subscribed.
    pub(super) fn message(&mut self, deadline: Moment) -> io::Result<Reply> {
        let message = self.by(deadline, |connection| {
            // `PubSub` must not be dropped: it would unsubscribe, and wait for the answer.
            ManuallyDrop::new(connection.as_pubsub()).get_message()
        })?;
        reply(message.get_payload().unwrap_or(Value::Nil))
    }

    fn by<T>(
        &mut self,
        deadline: Moment,
        call: impl FnOnce(&mut Connection) -> RedisResult<T>,
    ) -> io::Result<T> {
        let left = deadline.since(Moment::now()).max(SHORTEST);
        if left.abs_diff(self.timeout) >= SHORTEST {
            let connection = &self.connection;
            let set = connection
                .set_read_timeout(Some(left))
                .and_then(|()| connection.set_write_timeout(Some(left)));
            set.map_err(io_error)?;
            self.timeout = left;
        }
        call(&mut self.connection).map_err(io_error)
    }
}

/// The reply in RESP2. The connection never asks for RESP3, so types of RESP3 are errors.
fn reply(value: Value) -> io::Result<Reply> {
    Ok(match value {
        Value::Okay => Reply::Ok,
        Value::SimpleString(line) => Reply::Line(line),
        Value::ServerError(error) => Reply::Error(match error.details() {
            Some(details) => format!("{} {details}", error.code()),
            None => error.code().to_owned(),
        }),
        Value::Int(number) => Reply::Int(number),
        Value::BulkString(bytes) => Reply::Bytes(bytes),
        Value::Array(values) => Reply::Array(values.into_iter().map(reply).collect::<io::Result<_>>()?),
        Value::Nil => Reply::Nil,
        _ => return Err(io::Error::new(ErrorKind::InvalidData, "the server does not speak RESP2")),
    })
}

/// The error as an `io::Error`, whose kind says what became of the connection.
fn io_error(error: RedisError) -> io::Error {
    let shared = error.source().and_then(|source| source.downcast_ref::<Arc<dyn StdError + Send + Sync>>());
    let kind = match shared.and_then(|source| source.downcast_ref::<io::Error>()) {
        Some(io) => io.kind(),
        None if error.is_connection_dropped() => ErrorKind::ConnectionAborted,
        None => ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}
