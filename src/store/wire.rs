//! The bytes of a connection, sent and received by a deadline.
//!
//! The connection of the `redis` crate bounds each call of the socket, so whoever sends a byte now and then keeps its caller for as
//! long as he likes; and it holds whatever comes until a reply is whole. Here, a reply is whole by the deadline and
//! within [`LONGEST_REPLY`], or there is an error. Of that crate, only the parser is used: but for TLS, which is its own, and
//! where both stay as they are there.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

use redis::{Connection, ConnectionAddr, ConnectionInfo, Parser, RedisResult, Value};

use crate::clock::Moment;

/// Every call of a socket is given what is left until the deadline; but no less than this, since zero would mean for ever.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);

/// What Redis may say at once. A token is a hundred bytes, a key at most 64 KiB.
const LONGEST_REPLY: usize = 256 * 1024;

/// A connection, as far as it carries bytes.
pub(super) enum Wire {
    /// TCP or a unix socket.
    Plain(Box<Plain>),
    /// TLS.
    Sealed(Box<Sealed>),
}

pub(super) struct Plain {
    stream: Stream,
    parser: Parser,
    /// Replies that somebody gave up on, and that are still to come.
    late: usize,
}

struct Stream {
    socket: Box<dyn Socket>,
    /// What the socket's timeout is set to.
    timeout: Duration,
    /// How long the rest of the reply that is being received may be.
    room: usize,
}

pub(super) struct Sealed {
    connection: Connection,
    timeout: Duration,
}

/// What TCP and unix sockets have in common.
trait Socket: Read + Write + Send {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()>;
}

impl Socket for TcpStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

#[cfg(unix)]
impl Socket for UnixStream {
    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(timeout))?;
        self.set_write_timeout(Some(timeout))
    }
}

impl Wire {
    /// Connects, within `limit`, to an address that is no name any more.
    pub(super) fn open(way: &ConnectionInfo, limit: Duration) -> RedisResult<Wire> {
        let socket: Box<dyn Socket> = match way.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let ip: IpAddr =
                    host.parse().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
                let stream = TcpStream::connect_timeout(&SocketAddr::from((ip, *port)), limit)?;
                // Else a clean-up that is written behind an unanswered command would wait for that answer.
                stream.set_nodelay(true)?;
                Box::new(stream)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path)?),
            _ => {
                let connection = redis::Client::open(way.clone())?.get_connection_with_timeout(limit)?;
                return Ok(Wire::Sealed(Box::new(Sealed { connection, timeout: Duration::ZERO })));
            }
        };
        let stream = Stream { socket, timeout: Duration::ZERO, room: LONGEST_REPLY };
        Ok(Wire::Plain(Box::new(Plain { stream, parser: Parser::new(), late: 0 })))
    }

    /// Writes all of it. After an error, nobody knows how much of it.
    pub(super) fn send(&mut self, bytes: &[u8], deadline: Moment) -> RedisResult<()> {
        match self {
            Wire::Plain(plain) => Ok(plain.stream.by(deadline).write_all(bytes)?),
            Wire::Sealed(sealed) => {
                sealed.set_timeout(deadline)?;
                sealed.connection.send_packed_command(bytes)
            }
        }
    }

    /// The next reply that is not late. One that does not come is late from then on, and is skipped when it comes.
    ///
    /// What Redis says is wrong is a reply, too.
    pub(super) fn receive(&mut self, deadline: Moment) -> RedisResult<Value> {
        match self {
            Wire::Plain(plain) => {
                let reply = plain.receive(deadline);
                plain.late += usize::from(reply.is_err());
                reply
            }
            Wire::Sealed(sealed) => {
                sealed.set_timeout(deadline)?;
                sealed.connection.recv_response()
            }
        }
    }

    /// The next message on a connection that has subscribed: its payload. It may as well come later.
    pub(super) fn message(&mut self, deadline: Moment) -> RedisResult<Value> {
        match self {
            Wire::Plain(plain) => match plain.receive(deadline)? {
                Value::Array(mut parts) if parts.len() == 3 && is_message(&parts[0]) => {
                    Ok(parts.pop().unwrap_or(Value::Nil))
                }
                _ => Err(io::Error::new(ErrorKind::InvalidData, "what came is no message").into()),
            },
            Wire::Sealed(sealed) => {
                sealed.set_timeout(deadline)?;
                // Not dropped: it would say goodbye to Redis, and wait for the answer.
                let mut channel = std::mem::ManuallyDrop::new(sealed.connection.as_pubsub());
                channel.get_message().map(|message| message.get_payload().unwrap_or(Value::Nil))
            }
        }
    }
}

impl Sealed {
    fn set_timeout(&mut self, deadline: Moment) -> RedisResult<()> {
        let left = deadline.since(Moment::now()).max(SHORTEST);
        if left.abs_diff(self.timeout) >= SHORTEST {
            self.connection.set_read_timeout(Some(left))?;
            self.connection.set_write_timeout(Some(left))?;
            self.timeout = left;
        }
        Ok(())
    }
}

impl Plain {
    fn receive(&mut self, deadline: Moment) -> RedisResult<Value> {
        loop {
            let reply = self.parser.parse_value(self.stream.by(deadline))?;
            self.stream.room = LONGEST_REPLY;
            if self.late == 0 {
                return Ok(reply);
            }
            self.late -= 1;
        }
    }
}

impl Stream {
    fn by(&mut self, deadline: Moment) -> By<'_> {
        By { stream: self, deadline, begun: false }
    }
}

/// A stream, until a deadline.
struct By<'a> {
    stream: &'a mut Stream,
    deadline: Moment,
    begun: bool,
}

impl By<'_> {
    /// Calls the socket with what is left until the deadline: once in any case, so that what is here already can be had. A signal
    /// is no answer.
    ///
    /// Without a system call for the timeout where that changes little: an ordinary command finds the full response timeout set.
    fn call<T>(&mut self, mut call: impl FnMut(&mut dyn Socket) -> io::Result<T>) -> io::Result<T> {
        loop {
            let left = self.deadline.since(Moment::now());
            if self.begun && left.is_zero() {
                return Err(too_late());
            }
            self.begun = true;
            let timeout = left.max(SHORTEST);
            if timeout.abs_diff(self.stream.timeout) >= SHORTEST {
                self.stream.socket.set_timeout(timeout)?;
                self.stream.timeout = timeout;
            }
            match call(&mut *self.stream.socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The system's own words for it are "resource temporarily unavailable".
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(too_late()),
                other => return other,
            }
        }
    }
}

impl Read for By<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let room = self.stream.room.min(buffer.len());
        if room == 0 {
            let what = format!("a reply of more than {LONGEST_REPLY} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, what));
        }
        let read = self.call(|socket| socket.read(&mut buffer[..room]))?;
        self.stream.room -= read;
        Ok(read)
    }
}

impl Write for By<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|socket| socket.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.call(|socket| socket.flush())
    }
}

fn too_late() -> io::Error {
    io::Error::new(ErrorKind::TimedOut, "there was no answer in time")
}

/// What the first part of a message is.
fn is_message(kind: &Value) -> bool {
    matches!(kind, Value::BulkString(kind) if kind == b"message")
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use redis::{IntoConnectionInfo, RedisConnectionInfo};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    /// A wire of either kind, over TCP both of them, and its other end.
    fn wires() -> [(Wire, TcpStream); 2] {
        [false, true].map(|sealed| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let way = format!("redis://{}", listener.local_addr().unwrap()).into_connection_info().unwrap();
            let way = way.set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name());
            let wire = if sealed {
                let connection = redis::Client::open(way).unwrap().get_connection_with_timeout(LONG).unwrap();
                Wire::Sealed(Box::new(Sealed { connection, timeout: Duration::ZERO }))
            } else {
                Wire::open(&way, LONG).unwrap()
            };
            (wire, listener.accept().unwrap().0)
        })
    }

    fn within(span: Duration) -> Moment {
        Moment::now().after(span)
    }

    fn word(reply: RedisResult<Value>) -> String {
        match reply.unwrap() {
            Value::SimpleString(word) => word,
            Value::BulkString(word) => String::from_utf8(word).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reply_that_was_given_up_on_is_skipped_when_it_comes() {
        for (mut wire, mut redis) in wires() {
            wire.send(b"*1\r\n$4\r\nPING\r\n", within(LONG)).unwrap();
            let mut sent = [0; 14];
            redis.read_exact(&mut sent).unwrap();
            redis.write_all(b"+the first").unwrap();
            assert!(wire.receive(within(SHORT)).unwrap_err().is_timeout());
            redis.write_all(b" reply\r\n+the second\r\n").unwrap();
            assert_eq!(word(wire.receive(within(LONG))), "the second");
            drop(redis);
            assert!(!wire.receive(within(LONG)).unwrap_err().is_timeout(), "that is its end");
        }
    }

    #[test]
    fn a_message_may_come_after_silence() {
        for (mut wire, mut redis) in wires() {
            assert!(wire.message(within(SHORT)).unwrap_err().is_timeout());
            redis.write_all(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n").unwrap();
            assert_eq!(word(wire.message(within(LONG))), "x");
        }
    }

    #[test]
    fn a_connection_has_room_for_any_number_of_replies() {
        let [(mut wire, mut redis), _] = wires();
        let half = [b"+", &[b'x'; LONGEST_REPLY / 2][..], b"\r\n"].concat();
        let says = std::thread::spawn(move || (0..5).for_each(|_| redis.write_all(&half).unwrap()));
        for _ in 0..5 {
            assert_eq!(word(wire.receive(within(LONG))).len(), LONGEST_REPLY / 2);
        }
        says.join().unwrap();
    }

    #[test]
    fn what_never_ends_is_no_reply() {
        let [(mut wire, mut redis), _] = wires();
        let deadline = within(SHORT);
        let drip = std::thread::spawn(move || while redis.write_all(b"+").is_ok() {});
        assert!(wire.receive(deadline).is_err());
        assert!(Moment::now() < deadline.after(LONG), "or when there is too much of it");
        drop(wire);
        drip.join().unwrap();
    }
}
