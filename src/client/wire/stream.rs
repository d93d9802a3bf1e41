//! Sends and receives the bytes of a connection by a deadline, over TCP, a Unix socket, or TLS.
//!
//! If a reply is not whole by the deadline, or is too long, the result is an error.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Weak};
use std::time::Duration;

#[cfg(unix)]
use redis::io::tcp::socket2::{self, Domain, SockAddr, Type};
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};

use crate::base::clock::Moment;
#[cfg(test)]
use crate::base::sync::scheduler;
use crate::client::wire::endpoint::Way;
use crate::client::wire::resp::{Reader, Reply};
use crate::client::wire::{io_error, tls};

/// The shortest timeout that is set on a socket. Zero would mean no timeout.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

/// How long a connection may be silent before the system sends TCP keepalive probes. The probes
/// keep firewalls from dropping an idle connection, and end a connection whose other end is gone.
const ASKED_AFTER: Duration = Duration::from_secs(30);

/// The transport of a connection.
pub(crate) struct Wire {
    stream: Stream,
    tls: Option<Box<tls::Session>>,
    reader: Reader,
    /// Whether nothing was received yet.
    is_new: bool,
}

/// A message on a connection that has subscribed.
pub(crate) enum Message {
    Payload(Reply),
    /// The reply to a `PING`, even if it is an error.
    Life,
}

pub(crate) struct Stream {
    socket: Arc<Socket>,
    /// The current timeout of the socket.
    timeout: Duration,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(test)]
    Simulated(scheduler::Socket),
}

/// Ends a connection, even while another thread is blocked in it. Keeps no connection open.
#[derive(Clone, Debug)]
pub(crate) struct Ender(Weak<Socket>);

impl PartialEq for Ender {
    /// True if both end the same connection.
    fn eq(&self, other: &Ender) -> bool {
        Weak::ptr_eq(&self.0, &other.0)
    }
}

impl Ender {
    /// Ends the connection, if it is still open. Does not wait.
    pub(crate) fn end(&self) {
        if let Some(socket) = self.0.upgrade() {
            // An error means that the connection has ended already.
            let _ = socket.shutdown();
        }
    }

    /// True if the connection is no longer in use, so that there is nothing to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Socket {
    /// The socket itself, to set its options.
    fn raw(&self) -> SockRef<'_> {
        match self {
            Socket::Tcp(stream) => SockRef::from(stream),
            #[cfg(unix)]
            Socket::Unix(stream) => SockRef::from(stream),
            #[cfg(test)]
            Socket::Simulated(_) => unreachable!("there is no socket of the system"),
        }
    }

    fn shutdown(&self) -> io::Result<()> {
        #[cfg(test)]
        if let Socket::Simulated(socket) = self {
            socket.shutdown();
            return Ok(());
        }
        self.raw().shutdown(Shutdown::Both)
    }

    fn set_timeout(&self, timeout: Duration) -> io::Result<()> {
        #[cfg(test)]
        if let Socket::Simulated(socket) = self {
            socket.set_timeout(timeout);
            return Ok(());
        }
        self.raw().set_read_timeout(Some(timeout))?;
        self.raw().set_write_timeout(Some(timeout))
    }

    fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).read(buffer),
            #[cfg(unix)]
            Socket::Unix(stream) => (&*stream).read(buffer),
            #[cfg(test)]
            Socket::Simulated(socket) => socket.read(buffer),
        }
    }

    /// Reads what has arrived. Does not wait.
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        #[cfg(test)]
        if let Socket::Simulated(socket) = self {
            return socket.read_now(buffer);
        }
        Ok(rustix::net::recv(&*self.raw(), buffer, rustix::net::RecvFlags::DONTWAIT)?.1)
    }

    /// Reads what has arrived. Does not wait.
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        self.raw().set_nonblocking(true)?;
        let read = self.read(buffer);
        self.raw().set_nonblocking(false).and(read)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => (&*stream).write(bytes),
            #[cfg(unix)]
            Socket::Unix(stream) => (&*stream).write(bytes),
            #[cfg(test)]
            Socket::Simulated(socket) => socket.write(bytes),
        }
    }
}

impl Wire {
    /// Connects within `limit`. With `tls`, which names the host, the handshake is part of that.
    pub(crate) fn open(
        way: &Way,
        tls: Option<(&tls::Client, &str)>,
        limit: Duration,
    ) -> io::Result<Wire> {
        let began = Moment::now();
        let mut stream = Stream::open(way, limit)?;
        let tls = match tls {
            Some((client, host)) => {
                let mut session = Box::new(client.session(host)?);
                // After so long a silence, no login would be answered within the limit: it takes
                // half as long again.
                match session.shake_hands(&mut stream.by(began.after(limit * 3 / 4))) {
                    Err(error) if error.kind() == ErrorKind::TimedOut => {
                        let left = began.after(limit).since(Moment::now());
                        if session.is_silent() && answers_in_plain(way, left / 2) {
                            return Err(io_error::plain_redis());
                        }
                        session.shake_hands(&mut stream.by(began.after(limit)))?;
                    }
                    shaken => shaken?,
                }
                Some(session)
            }
            None => None,
        };
        Ok(Wire {
            stream,
            tls,
            reader: Reader::new(),
            is_new: true,
        })
    }

    /// From now on, a reply may be as long as the map of a large cluster.
    pub(crate) fn expect_map(&mut self) {
        self.reader.expect_map();
    }

    /// Writes all bytes. After an error, it is unknown how many bytes were written, but some were
    /// not.
    pub(crate) fn send(&mut self, bytes: &[u8], deadline: Moment) -> io::Result<()> {
        let mut socket = self.stream.by(deadline);
        match &mut self.tls {
            Some(tls) => tls.write(bytes, &mut socket),
            None => socket.write_all(bytes),
        }
    }

    /// The next reply, which may be an error. After a time-out, the part that has come stays here,
    /// and the next call continues with the rest.
    pub(crate) fn receive(&mut self, deadline: Moment) -> io::Result<Reply> {
        let mut socket = self.stream.by(deadline);
        let tls = &mut self.tls;
        let reply = self.reader.reply(|buffer| match tls {
            Some(tls) => tls.read(buffer, &mut socket),
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
    pub(crate) fn has_ended(&mut self) -> bool {
        let socket = &*self.stream.socket;
        let has_ended = match &mut self.tls {
            Some(tls) => tls.has_ended(|buffer| socket.read_now(buffer)),
            // The byte is dropped: a connection that receives unasked bytes is not used again.
            None => {
                !matches!(socket.read_now(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock)
            }
        };
        has_ended || self.has_unasked()
    }

    /// True if bytes were received that nobody asked for.
    pub(crate) fn has_unasked(&mut self) -> bool {
        !self.reader.is_empty() || self.tls.as_mut().is_some_and(|tls| tls.has_unread())
    }

    /// A handle by which another thread can end the connection.
    pub(crate) fn ender(&self) -> Ender {
        Ender(Arc::downgrade(&self.stream.socket))
    }

    /// The next message on a connection that has subscribed. After a time-out, the caller can call
    /// this again.
    pub(crate) fn message(&mut self, deadline: Moment) -> io::Result<Message> {
        match self.receive(deadline)? {
            Reply::Array(mut parts) if parts.len() == 3 && is(&parts[0], "message") => {
                Ok(Message::Payload(parts.pop().unwrap_or(Reply::Nil)))
            }
            Reply::Array(parts) if parts.len() == 2 && is(&parts[0], "pong") => Ok(Message::Life),
            // An error such as LOADING also shows that Redis is alive.
            Reply::Error(_) => Ok(Message::Life),
            // A plain `PONG` also ends here: it means that the connection has not subscribed.
            _ => Err(io::Error::new(
                ErrorKind::InvalidData,
                "the server sent no message",
            )),
        }
    }
}

impl Stream {
    fn open(way: &Way, limit: Duration) -> io::Result<Stream> {
        let of = |socket| Stream {
            socket: Arc::new(socket),
            timeout: Duration::ZERO,
        };
        match way {
            Way::Tcp(address) => {
                #[cfg(test)]
                if let Some(socket) = scheduler::connect(*address, limit) {
                    return Ok(of(Socket::Simulated(socket?)));
                }
                let stream = TcpStream::connect_timeout(address, limit)?;
                // With Nagle's algorithm, a clean-up that is written behind an unanswered command
                // would wait for that answer.
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
                Ok(of(Socket::Tcp(stream)))
            }
            #[cfg(unix)]
            Way::Unix(path) => {
                // While the other end accepts nothing, and its queue is full, `connect` blocks, and
                // would do so for ever. It blocks no longer than a write may.
                let (address, deadline) = (SockAddr::unix(path)?, Moment::now().after(limit));
                let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
                let mut stream = of(Socket::Unix(socket.into()));
                stream
                    .by(deadline)
                    .call(|socket| socket.raw().connect(&address))?;
                Ok(stream)
            }
        }
    }

    fn by(&mut self, deadline: Moment) -> By<'_> {
        By {
            stream: self,
            deadline,
            begun: false,
        }
    }
}

/// A socket that reads and writes until a deadline.
pub(crate) struct By<'a> {
    stream: &'a mut Stream,
    deadline: Moment,
    begun: bool,
}

impl By<'_> {
    /// Calls the socket until the deadline, and at least once: even after the deadline, bytes that
    /// have arrived are read. A signal does not end the wait.
    ///
    /// The timeout of the socket is set only if the old one is longer than the time that is left,
    /// or much shorter. If the old timeout ends too soon, the socket is called again. So most
    /// commands need no system call to set a timeout, although their deadlines differ.
    fn call<T>(&mut self, mut call: impl FnMut(&Socket) -> io::Result<T>) -> io::Result<T> {
        loop {
            let left = self.deadline.since(Moment::now());
            if self.begun && left.is_zero() {
                return Err(io::Error::new(
                    ErrorKind::TimedOut,
                    "there was no answer in time",
                ));
            }
            self.begun = true;
            let timeout = left.max(SHORTEST);
            let set = self.stream.timeout;
            if set > timeout.saturating_add(SHORTEST) || set < timeout / 4 {
                self.stream.socket.set_timeout(timeout)?;
                self.stream.timeout = timeout;
            }
            match call(&self.stream.socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The timeout of the socket has passed, but the deadline may be later.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

impl Read for By<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(|socket| socket.read(buffer))
    }
}

impl Write for By<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|socket| socket.write(bytes))
    }

    /// The socket keeps nothing back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// True if the server answers a command that is not encrypted. A Redis that does not use TLS may
/// wait for the rest of what it takes for a command, and give no answer to a handshake.
fn answers_in_plain(way: &Way, limit: Duration) -> bool {
    let deadline = Moment::now().after(limit);
    let ask = || -> io::Result<[u8; 1]> {
        let mut stream = Stream::open(way, limit)?;
        let mut socket = stream.by(deadline);
        socket.write_all(b"PING\r\n")?;
        let mut first = [0];
        socket.read_exact(&mut first).map(|()| first)
    };
    matches!(ask(), Ok([b'+' | b'-']))
}

/// The settings of TCP keepalive: see [`ASKED_AFTER`].
fn keepalive() -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(ASKED_AFTER);
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    let keepalive = {
        const EVERY: Duration = Duration::from_secs(10);
        const TIMES: u32 = 3;
        keepalive.with_interval(EVERY).with_retries(TIMES)
    };
    keepalive
}

fn is(kind: &Reply, name: &str) -> bool {
    matches!(kind, Reply::Bytes(kind) if kind == name.as_bytes())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;
    use crate::client::wire::resp::LONGEST_REPLY;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    /// The other end of a wire. What is written to it arrives in plain text.
    pub(in crate::client) type Far = Box<dyn Write + Send>;

    /// A wire of each kind, and its other end.
    pub(in crate::client) fn wires() -> Vec<(Wire, Far)> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let wire = Wire::open(&Way::Tcp(listener.local_addr().unwrap()), None, LONG).unwrap();
        vec![
            (wire, Box::new(listener.accept().unwrap().0)),
            #[cfg(feature = "tls")]
            crate::client::wire::tls::tests::wire(),
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
        let (listener, limit) = (
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
            10 * SHORT,
        );
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
            let error = Wire::open(&way, Some((&client, "localhost")), limit)
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
        for (mut quiet, redis) in wires() {
            assert!(!quiet.has_ended());
            drop(redis);
            assert!(quiet.has_ended(), "it is closed");
        }
        for (mut talks, mut redis) in wires() {
            talks.send(b"x", within(LONG)).unwrap();
            redis.write_all(b"+the reply\r\n").unwrap();
            assert_eq!(text(talks.receive(within(LONG))), "the reply");
            assert!(!talks.has_ended() && !talks.has_unasked());
            redis.write_all(b"+unasked\r\n").unwrap();
            let deadline = within(LONG);
            while !talks.has_ended() {
                assert!(Moment::now() < deadline, "unasked bytes count as its end");
            }
        }
    }

    /// The process that listens is stopped, or too busy to accept connections.
    #[test]
    #[cfg(unix)]
    fn a_unix_socket_that_accepts_nothing_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("full.sock");
        let address = SockAddr::unix(&path).unwrap();
        let unix = || socket2::Socket::new(Domain::UNIX, Type::STREAM, None).unwrap();
        let listener = unix();
        listener.bind(&address).unwrap();
        listener.listen(0).unwrap();
        let mut waiting = Vec::new();
        let mut is_full = false;
        while !is_full {
            let next = unix();
            next.set_nonblocking(true).unwrap();
            is_full = next.connect(&address).is_err();
            waiting.push(next);
        }
        let (says, said) = std::sync::mpsc::channel();
        let opens = std::thread::spawn(move || {
            let opened = Wire::open(&Way::Unix(path), None, SHORT);
            says.send(opened.map(|_| ()).map_err(|error| error.kind()))
        });
        let opened = said.recv_timeout(LONG);
        drop((listener, waiting)); // Ends the attempt, in any case.
        opens.join().unwrap().unwrap();
        if cfg!(target_os = "linux") {
            assert_eq!(opened, Ok(Err(ErrorKind::TimedOut)));
        } else {
            assert!(matches!(opened, Ok(Err(_))), "{opened:?}");
        }
    }

    #[test]
    fn another_thread_ends_a_connection() {
        for (mut wire, _redis) in wires() {
            let ender = wire.ender();
            std::thread::scope(|scope| {
                let reads = scope.spawn(|| wire.receive(within(LONG)).map(|_| ()).unwrap_err());
                ender.end();
                assert_eq!(reads.join().unwrap().kind(), ErrorKind::UnexpectedEof);
            });
            assert!(!ender.is_closed());
            drop(wire);
            assert!(ender.is_closed());
            ender.end();
        }
    }

    #[test]
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn an_idle_connection_is_kept_alive_by_the_system() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _wire = Wire::open(&Way::Tcp(listener.local_addr().unwrap()), None, LONG).unwrap();
        let timers = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let remote = format!("0100007F:{:04X} 01 ", listener.local_addr().unwrap().port());
        let line = timers
            .lines()
            .find(|line| line.contains(&remote))
            .expect("the connection");
        // The kind of timer (2 is keepalive), and the time until it fires, in hundredths of a
        // second.
        let timer = line.split_whitespace().nth(5).unwrap();
        let (kind, after) = timer.split_once(':').unwrap();
        assert_eq!(kind, "02", "{line}");
        assert!(u64::from_str_radix(after, 16).unwrap() <= 3000, "{line}");
    }

    #[test]
    fn a_message_may_come_after_a_time_out() {
        for (mut wire, mut redis) in wires() {
            assert!(
                wire.message(within(SHORT))
                    .is_err_and(|error| io_error::leaves_link_standing(&error))
            );
            redis
                .write_all(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n")
                .unwrap();
            let Ok(Message::Payload(payload)) = wire.message(within(LONG)) else {
                panic!("no message")
            };
            assert_eq!(text(Ok(payload)), "x");
        }
    }

    #[test]
    fn the_longest_reply_counts_for_each_reply_alone() {
        let (mut wire, mut redis) = wires().remove(0);
        let half = format!("+{}\r\n", "x".repeat(LONGEST_REPLY / 2));
        let sends = std::thread::spawn(move || {
            (0..5).for_each(|_| redis.write_all(half.as_bytes()).unwrap());
        });
        for _ in 0..5 {
            assert_eq!(text(wire.receive(within(LONG))).len(), LONGEST_REPLY / 2);
        }
        sends.join().unwrap();
    }

    #[test]
    fn a_subscriber_takes_the_reply_to_a_ping_as_a_sign_of_life() {
        let (mut wire, mut redis) = wires().remove(0);
        redis
            .write_all(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n-LOADING Redis is loading\r\n+PONG\r\n")
            .unwrap();
        for _ in 0..2 {
            assert!(matches!(wire.message(within(LONG)), Ok(Message::Life)));
        }
        let error = wire
            .message(within(LONG))
            .err()
            .expect("it has not subscribed");
        assert!(!io_error::leaves_link_standing(&error));
    }

    /// The deadlines differ as those of a lock and its release do: by a factor of two.
    #[test]
    fn a_deadline_that_differs_little_is_kept_without_setting_the_timeout() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let socket = Arc::new(Socket::Tcp(near));
        let mut stream = Stream {
            socket,
            timeout: Duration::ZERO,
        };
        let mut timeouts = Vec::new();
        for _ in 0..10 {
            for limit in [LONG, LONG / 2] {
                far.write_all(b"x").unwrap();
                assert_eq!(stream.by(within(limit)).read(&mut [0; 1]).unwrap(), 1);
                timeouts.push(stream.timeout);
            }
        }
        timeouts.dedup();
        assert!(timeouts.len() <= 2, "{timeouts:?}");
        for limit in [SHORT, 3 * SHORT] {
            let begun = Moment::now();
            assert_eq!(
                stream
                    .by(within(limit))
                    .read(&mut [0; 1])
                    .unwrap_err()
                    .kind(),
                ErrorKind::TimedOut
            );
            let waited = Moment::now().since(begun);
            assert!(limit <= waited && waited < LONG / 2, "{waited:?}");
        }
    }

    #[test]
    fn a_reply_that_never_ends_is_an_error() {
        let (mut wire, mut redis) = wires().remove(0);
        let deadline = within(SHORT);
        let drips = std::thread::spawn(move || while redis.write_all(b"+").is_ok() {});
        assert!(wire.receive(deadline).is_err());
        assert!(
            Moment::now() < deadline.after(LONG),
            "it ends by the deadline, or when it is too long"
        );
        drop(wire);
        drips.join().unwrap();
    }
}
