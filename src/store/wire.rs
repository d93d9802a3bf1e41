//! The bytes of a connection, sent and received by a deadline.
//!
//! A reply is whole by the deadline and of bounded length, or there is an error. The `redis` crate
//! bounds each call of the socket instead, and no reply: so it is used for TLS only.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
#[cfg(unix)]
use std::os::unix::net::UnixStream;
use std::time::Duration;

use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo};

use crate::base::clock::Moment;
use crate::store::resp::{Reader, Reply};
use crate::store::tls::Tls;

/// Every call of a socket is given what is left until the deadline; but no less than this, since zero would mean for ever.
pub(super) const SHORTEST: Duration = Duration::from_millis(1);

/// When the system asks the other end of a silent connection whether it is there: so that no
/// firewall drops the flow for being idle, and a connection whose other end is gone ends.
const ASKED_AFTER: Duration = Duration::from_secs(30);

/// A connection, as far as it carries bytes.
pub(super) enum Wire {
    /// TCP or a unix socket.
    Plain(Box<Plain>),
    /// TLS.
    Tls(Box<Tls>),
}

/// What comes on a connection that has subscribed.
pub(super) enum Message {
    Payload(Reply),
    /// The reply to a `PING`, be it an error.
    Life,
}

pub(super) struct Plain {
    stream: Stream,
    reader: Reader,
}

struct Stream {
    socket: Box<dyn Socket>,
    /// What the socket's timeout is set to.
    timeout: Duration,
}

/// How the system looks after a connection over TCP.
pub(super) fn keepalive() -> TcpKeepalive {
    let keepalive = TcpKeepalive::new().with_time(ASKED_AFTER);
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    let keepalive = {
        const EVERY: Duration = Duration::from_secs(10);
        const TIMES: u32 = 3;
        keepalive.with_interval(EVERY).with_retries(TIMES)
    };
    keepalive
}

/// Ends a connection, whatever another thread does with it.
pub(crate) type Ender = Box<dyn FnOnce() + Send>;

/// What TCP and unix sockets have in common.
trait Socket: Read + Write + Send {
    /// The same, to set what the system does with it.
    fn raw(&self) -> SockRef<'_>;
}

impl Socket for TcpStream {
    fn raw(&self) -> SockRef<'_> {
        SockRef::from(self)
    }
}

#[cfg(unix)]
impl Socket for UnixStream {
    fn raw(&self) -> SockRef<'_> {
        SockRef::from(self)
    }
}

impl Wire {
    /// Connects, within `limit`, to an address that is no name any more.
    pub(super) fn open(way: &ConnectionInfo, limit: Duration) -> io::Result<Wire> {
        let socket: Box<dyn Socket> = match way.addr() {
            ConnectionAddr::Tcp(host, port) => {
                let ip: IpAddr =
                    host.parse().map_err(|error| io::Error::new(ErrorKind::InvalidInput, error))?;
                let stream = TcpStream::connect_timeout(&SocketAddr::from((ip, *port)), limit)?;
                // Else a clean-up that is written behind an unanswered command would wait for that answer.
                stream.set_nodelay(true)?;
                SockRef::from(&stream).set_tcp_keepalive(&keepalive())?;
                Box::new(stream)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path)?),
            _ => return Ok(Wire::Tls(Box::new(Tls::open(way.clone(), limit)?))),
        };
        let stream = Stream { socket, timeout: Duration::ZERO };
        Ok(Wire::Plain(Box::new(Plain { stream, reader: Reader::new() })))
    }

    /// Writes all of it. After an error, nobody knows how much of it.
    pub(super) fn send(&mut self, bytes: &[u8], deadline: Moment) -> io::Result<()> {
        match self {
            Wire::Plain(plain) => plain.stream.by(deadline).write_all(bytes),
            Wire::Tls(tls) => tls.send(bytes, deadline),
        }
    }

    /// The next reply. What Redis says is wrong is a reply, too.
    pub(super) fn receive(&mut self, deadline: Moment) -> io::Result<Reply> {
        match self {
            Wire::Plain(plain) => plain.receive(deadline),
            Wire::Tls(tls) => tls.receive(deadline),
        }
    }

    /// True where a reply that did not come in time is not received when it comes. (The `redis` crate leaves it out.)
    pub(super) fn skips_late_replies(&self) -> bool {
        matches!(self, Wire::Tls(_))
    }

    /// True where the connection has ended or says what nobody asked for; found out without
    /// waiting. (Not over TLS.)
    pub(super) fn has_ended(&mut self) -> bool {
        match self {
            Wire::Plain(plain) => !plain.reader.is_empty() || plain.stream.has_ended(),
            Wire::Tls(_) => false,
        }
    }

    /// What another thread can end the connection with. (Not over TLS.)
    pub(super) fn ender(&self) -> Option<Ender> {
        match self {
            Wire::Plain(plain) => {
                let twin = plain.stream.socket.raw().try_clone().ok()?;
                Some(Box::new(move || _ = twin.shutdown(Shutdown::Both)))
            }
            Wire::Tls(_) => None,
        }
    }

    /// True where [`message`](Self::message) returns the reply to a `PING`, too. (Over TLS, the
    /// `redis` crate skips it.)
    pub(super) fn shows_life(&self) -> bool {
        matches!(self, Wire::Plain(_))
    }

    /// What comes next on a connection that has subscribed. It may as well come later.
    pub(super) fn message(&mut self, deadline: Moment) -> io::Result<Message> {
        match self {
            Wire::Plain(plain) => match plain.receive(deadline)? {
                Reply::Array(mut parts) if parts.len() == 3 && is(&parts[0], "message") => {
                    Ok(Message::Payload(parts.pop().unwrap_or(Reply::Nil)))
                }
                Reply::Array(parts) if parts.len() == 2 && is(&parts[0], "pong") => Ok(Message::Life),
                // Such as LOADING: Redis is there.
                Reply::Error(_) => Ok(Message::Life),
                // A connection that has not subscribed says PONG in another way.
                _ => Err(io::Error::new(ErrorKind::InvalidData, "what came is no message")),
            },
            Wire::Tls(tls) => tls.message(deadline).map(Message::Payload),
        }
    }
}

impl Plain {
    fn receive(&mut self, deadline: Moment) -> io::Result<Reply> {
        let mut socket = self.stream.by(deadline);
        self.reader.reply(|buffer| socket.read(buffer))
    }
}

impl Stream {
    /// (What is read here is lost: a connection that says something unasked is of no use either
    /// way.)
    fn has_ended(&mut self) -> bool {
        let looked = self.socket.raw().set_nonblocking(true).and_then(|()| self.socket.read(&mut [0]));
        let is_quiet = matches!(&looked, Err(error) if error.kind() == ErrorKind::WouldBlock);
        self.socket.raw().set_nonblocking(false).is_err() || !is_quiet
    }

    fn by(&mut self, deadline: Moment) -> By<'_> {
        By { stream: self, deadline, begun: false }
    }
}

struct By<'a> {
    stream: &'a mut Stream,
    deadline: Moment,
    begun: bool,
}

impl By<'_> {
    /// Calls the socket with what is left until the deadline: once in any case, so that what is here
    /// already can be had. A signal is no answer.
    ///
    /// The timeout of the socket may be shorter than what is left: then it is called again. So that
    /// costs no system call for most commands, though their deadlines differ.
    fn call<T>(&mut self, mut call: impl FnMut(&mut dyn Socket) -> io::Result<T>) -> io::Result<T> {
        loop {
            let left = self.deadline.since(Moment::now());
            if self.begun && left.is_zero() {
                return Err(io::Error::new(ErrorKind::TimedOut, "there was no answer in time"));
            }
            self.begun = true;
            let timeout = left.max(SHORTEST);
            let set = self.stream.timeout;
            if set > timeout.saturating_add(SHORTEST) || set < timeout / 4 {
                let socket = self.stream.socket.raw();
                socket.set_read_timeout(Some(timeout))?;
                socket.set_write_timeout(Some(timeout))?;
                self.stream.timeout = timeout;
            }
            match call(&mut *self.stream.socket) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // Nothing came for as long as the socket was told to wait: the deadline is looked
                // at again.
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

    fn flush(&mut self) -> io::Result<()> {
        self.call(|socket| socket.flush())
    }
}

fn is(kind: &Reply, name: &str) -> bool {
    matches!(kind, Reply::Bytes(kind) if kind == name.as_bytes())
}

#[cfg(test)]
pub(super) mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use redis::{IntoConnectionInfo, RedisConnectionInfo};

    use super::*;
    use crate::store::failure;
    use crate::store::resp::LONGEST_REPLY;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    /// A wire of either kind, over TCP both of them, and its other end.
    pub(in crate::store) fn wires() -> [(Wire, TcpStream); 2] {
        [false, true].map(|sealed| {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let way = format!("redis://{}", listener.local_addr().unwrap()).into_connection_info().unwrap();
            let way = way.set_redis_settings(RedisConnectionInfo::default().set_skip_set_lib_name());
            let wire = if sealed {
                Wire::Tls(Box::new(Tls::open(way, LONG).unwrap()))
            } else {
                Wire::open(&way, LONG).unwrap()
            };
            (wire, listener.accept().unwrap().0)
        })
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

    #[test]
    fn the_end_of_a_connection_is_seen_without_waiting() {
        let [(mut quiet, redis), _] = wires();
        assert!(!quiet.has_ended());
        drop(redis);
        assert!(quiet.has_ended(), "it is closed");
        let [(mut talks, mut redis), _] = wires();
        talks.send(b"x", within(LONG)).unwrap();
        redis.write_all(b"+the reply\r\n").unwrap();
        assert_eq!(text(talks.receive(within(LONG))), "the reply");
        assert!(!talks.has_ended());
        redis.write_all(b"+unasked\r\n").unwrap();
        let deadline = within(LONG);
        while !talks.has_ended() {
            assert!(Moment::now() < deadline, "what nobody asked for is noticed");
        }
    }

    #[test]
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn the_system_asks_whether_the_other_end_of_an_idle_connection_is_there() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let way = format!("redis://{}", listener.local_addr().unwrap()).into_connection_info().unwrap();
        let _wire = Wire::open(&way, LONG).unwrap();
        let timers = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let remote = format!("0100007F:{:04X} 01 ", listener.local_addr().unwrap().port());
        let line = timers.lines().find(|line| line.contains(&remote)).expect("the connection");
        // The kind of timer (2 is keepalive), and when it goes off, in hundredths of a second.
        let timer = line.split_whitespace().nth(5).unwrap();
        let (kind, after) = timer.split_once(':').unwrap();
        assert_eq!(kind, "02", "{line}");
        assert!(u64::from_str_radix(after, 16).unwrap() <= 3000, "{line}");
    }

    #[test]
    fn a_message_may_come_after_silence() {
        for (mut wire, mut redis) in wires() {
            assert!(wire.message(within(SHORT)).is_err_and(|error| failure::leaves_link_standing(&error)));
            redis.write_all(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n").unwrap();
            let Ok(Message::Payload(payload)) = wire.message(within(LONG)) else { panic!("no message") };
            assert_eq!(text(Ok(payload)), "x");
        }
    }

    #[test]
    fn a_connection_has_room_for_any_number_of_replies() {
        let [(mut wire, mut redis), _] = wires();
        let half = format!("+{}\r\n", "x".repeat(LONGEST_REPLY / 2));
        let says = std::thread::spawn(move || (0..5).for_each(|_| redis.write_all(half.as_bytes()).unwrap()));
        for _ in 0..5 {
            assert_eq!(text(wire.receive(within(LONG))).len(), LONGEST_REPLY / 2);
        }
        says.join().unwrap();
    }

    #[test]
    fn a_sign_of_life_is_what_a_subscriber_is_answered_with() {
        let [(mut wire, mut redis), _] = wires();
        assert!(wire.shows_life());
        redis.write_all(b"*2\r\n$4\r\npong\r\n$0\r\n\r\n-LOADING Redis is loading\r\n+PONG\r\n").unwrap();
        for _ in 0..2 {
            assert!(matches!(wire.message(within(LONG)), Ok(Message::Life)));
        }
        let error = wire.message(within(LONG)).err().expect("it has not subscribed");
        assert!(!failure::leaves_link_standing(&error));
    }

    /// A socket that counts how often it is set up: reading needs that for its timeout alone.
    struct Counting(TcpStream, Arc<AtomicUsize>);

    impl Read for Counting {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.0.read(buffer)
        }
    }

    impl Write for Counting {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.0.flush()
        }
    }

    impl Socket for Counting {
        fn raw(&self) -> SockRef<'_> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.raw()
        }
    }

    /// A lock waits for its answer for a second, its release for half of that.
    #[test]
    fn deadlines_that_differ_a_little_set_no_timeout_and_are_kept_all_the_same() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        let sets = Arc::<AtomicUsize>::default();
        let socket = Box::new(Counting(near, Arc::clone(&sets)));
        let mut stream = Stream { socket, timeout: Duration::ZERO };
        let mut reads = |limit| stream.by(within(limit)).read(&mut [0; 1]);
        for _ in 0..10 {
            for limit in [LONG, LONG / 2] {
                far.write_all(b"x").unwrap();
                assert_eq!(reads(limit).unwrap(), 1);
            }
        }
        assert!(sets.load(Ordering::Relaxed) <= 2);
        for limit in [SHORT, 3 * SHORT] {
            let begun = Moment::now();
            assert_eq!(reads(limit).unwrap_err().kind(), ErrorKind::TimedOut);
            let waited = Moment::now().since(begun);
            assert!(limit <= waited && waited < LONG / 2, "{waited:?}");
        }
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
