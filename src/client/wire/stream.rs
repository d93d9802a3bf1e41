//! Sends and receives the bytes of a connection by a deadline, over TCP, a Unix socket, or TLS.
//!
//! If a reply is not complete by the deadline, or is too long, the result is an error.

use std::io::{self, ErrorKind, Read, Write};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::wire::io_error;
use crate::client::wire::resp::{Reader, Reply};
use crate::client::wire::socket::{Ender, Socket, Way};
use crate::client::wire::tls;

/// The bytes of a connection, as replies.
pub(crate) struct Stream {
    socket: Socket,
    tls: Option<Box<dyn tls::Layer>>,
    reader: Reader,
    /// Whether no whole reply has come yet.
    is_new: bool,
}

impl Stream {
    /// Connects within `limit`. With `tls`, which names the host, the handshake is part of that.
    pub(crate) fn open(
        way: &Way,
        tls: Option<(&tls::Client, &str)>,
        limit: Duration,
    ) -> io::Result<Stream> {
        let began = Moment::now();
        let mut socket = Socket::open(way, limit)?;
        let tls = match tls {
            Some((client, host)) => {
                let mut channel = client.channel(host)?;
                // After so long a silence, no login would be answered within the limit: it takes
                // half as long again.
                match channel.shake_hands(socket.until(began.after(limit * 3 / 4))) {
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        let left = began.after(limit).since(Moment::now());
                        if channel.is_silent() && answers_in_plain(way, left / 2) {
                            return Err(io_error::plain_redis());
                        }
                        channel.shake_hands(socket.until(began.after(limit)))?;
                    }
                    shaken => shaken?,
                }
                Some(channel)
            }
            None => None,
        };
        Ok(Stream {
            socket,
            tls,
            reader: Reader::new(),
            is_new: true,
        })
    }

    /// From now on, a reply may be as long as the map of a large cluster, or a list of many keys.
    pub(crate) fn expect_list(&mut self) {
        self.reader.expect_list();
    }

    /// From now on, no error that the server sends shows this password.
    pub(crate) fn hide(&mut self, password: String) {
        self.reader.password = password;
    }

    /// Writes all bytes. After an error, it is unknown how many bytes were written, but some were
    /// not.
    pub(crate) fn send(&mut self, bytes: &[u8], deadline: Moment) -> io::Result<()> {
        let socket = self.socket.until(deadline);
        match &mut self.tls {
            Some(tls) => tls.write(bytes, socket),
            None => socket.write_all(bytes),
        }
    }

    /// The next reply, which may be an error. After a time-out, the part that has arrived stays
    /// here, and the next call continues with the rest.
    pub(crate) fn receive(&mut self, deadline: Moment) -> io::Result<Reply> {
        let socket = self.socket.until(deadline);
        let tls = &mut self.tls;
        let reply = self.reader.reply(|buffer| match tls {
            Some(tls) => tls.read(buffer, socket),
            None => socket.read(buffer),
        });
        match reply {
            Err(error) if self.is_new && self.tls.is_none() && io_error::ends_link(&error) => Err(
                io::Error::new(error.kind(), format!("{error}: the server may expect TLS")),
            ),
            reply => {
                self.is_new &= reply.is_err();
                reply
            }
        }
    }

    /// True if the connection has ended, or has received bytes that nobody asked for. Does not
    /// wait: this is one system call.
    pub(crate) fn probe(&mut self) -> bool {
        let socket = &mut self.socket;
        let probe = match &mut self.tls {
            Some(tls) => tls.probe(socket),
            // The byte is dropped: a connection that receives bytes that nobody asked for is not
            // used again.
            None => {
                !matches!(socket.read_now(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
            }
        };
        probe || self.unasked()
    }

    /// True if bytes were received that nobody asked for.
    pub(crate) fn unasked(&mut self) -> bool {
        !self.reader.is_empty() || self.tls.as_mut().is_some_and(|tls| tls.unread())
    }

    /// A handle by which another thread can end the connection.
    pub(crate) fn ender(&self) -> Ender {
        self.socket.ender()
    }
}

/// True if the server answers a command that is not encrypted. A Redis that does not use TLS may
/// wait for the rest of what it takes for a command, and give no answer to a handshake.
fn answers_in_plain(way: &Way, limit: Duration) -> bool {
    let ask = || -> io::Result<[u8; 1]> {
        let mut socket = Socket::open(way, limit)?;
        socket.write_all(b"PING\r\n")?;
        let mut first = [0];
        socket.read_exact(&mut first).map(|()| first)
    };
    matches!(ask(), Ok([b'+' | b'-']))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::client::wire::resp::LONGEST_REPLY;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    /// The other end of a stream. What is written to it arrives in plain text.
    pub(in crate::client) type Far = Box<dyn Write + Send>;

    /// A stream of each kind, and its other end.
    pub(in crate::client) fn streams() -> Vec<(Stream, Far)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = Stream::open(&Way::Tcp(listener.local_addr().unwrap()), None, LONG).unwrap();
        vec![
            (stream, Box::new(listener.accept().unwrap().0)),
            #[cfg(feature = "tls")]
            crate::client::wire::tls::tests::stream(),
        ]
    }

    fn within(span: Duration) -> Moment {
        Moment::now().after(span)
    }

    fn text(reply: io::Result<Reply>) -> String {
        match reply.unwrap() {
            Reply::Line(text) => text,
            Reply::Bytes(text) => String::from_utf8(text).unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// The time that the question takes is taken from a server that may be far away.
    #[test]
    #[cfg(feature = "tls")]
    fn a_silent_server_is_asked_in_plain_text_once_no_login_would_be_in_time() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let limit = 10 * SHORT;
        let way = Way::Tcp(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            let mut open = Vec::new();
            for mut stream in listener.incoming().map(Result::unwrap) {
                let mut first = [0];
                if stream.read_exact(&mut first).is_ok() && first == *b"P" {
                    let _ = stream.write_all(b"+PONG\r\n");
                }
                open.push(stream);
            }
        });
        let client = crate::client::wire::tls::tests::client();
        let answered_after = || {
            let began = Moment::now();
            let error = Stream::open(&way, Some((&client, "localhost")), limit)
                .err()
                .unwrap();
            (error.kind() != ErrorKind::TimedOut).then(|| Moment::now().since(began))
        };
        // On a busy machine, no time may be left for the question.
        let time = (0..50)
            .find_map(|_| answered_after())
            .expect("it was not asked");
        assert!(time >= limit * 3 / 4, "{time:?}");
    }

    #[test]
    fn the_end_of_a_connection_is_found_out_without_waiting() {
        for (mut quiet, redis) in streams() {
            assert!(!quiet.probe());
            drop(redis);
            assert!(quiet.probe(), "it is closed");
        }
        for (mut talks, mut redis) in streams() {
            talks.send(b"x", within(LONG)).unwrap();
            redis.write_all(b"+the reply\r\n").unwrap();
            assert_eq!(text(talks.receive(within(LONG))), "the reply");
            assert!(!talks.probe() && !talks.unasked());
            redis.write_all(b"+unasked\r\n").unwrap();
            let deadline = within(LONG);
            while !talks.probe() {
                assert!(Moment::now() < deadline, "unasked bytes count as its end");
            }
        }
    }

    #[test]
    fn another_thread_ends_a_connection() {
        for (mut stream, _redis) in streams() {
            let ender = stream.ender();
            std::thread::scope(|scope| {
                let reads = scope.spawn(|| stream.receive(within(LONG)).map(|_| ()).unwrap_err());
                ender.end();
                assert_eq!(reads.join().unwrap().kind(), ErrorKind::UnexpectedEof);
            });
            assert!(!ender.is_closed());
            drop(stream);
            assert!(ender.is_closed());
            ender.end();
        }
    }

    #[test]
    fn the_longest_reply_counts_for_each_reply_alone() {
        let (mut stream, mut redis) = streams().remove(0);
        let half = format!("+{}\r\n", "x".repeat(LONGEST_REPLY / 2));
        let sends = std::thread::spawn(move || {
            (0..5).for_each(|_| redis.write_all(half.as_bytes()).unwrap());
        });
        for _ in 0..5 {
            assert_eq!(text(stream.receive(within(LONG))).len(), LONGEST_REPLY / 2);
        }
        sends.join().unwrap();
    }

    #[test]
    fn a_reply_that_never_ends_is_an_error() {
        let (mut stream, mut redis) = streams().remove(0);
        let deadline = within(SHORT);
        let drips = std::thread::spawn(move || while redis.write_all(b"+").is_ok() {});
        assert!(stream.receive(deadline).is_err());
        assert!(
            Moment::now() < deadline.after(LONG),
            "it ends by the deadline, or when it is too long"
        );
        drop(stream);
        drips.join().unwrap();
    }
}
