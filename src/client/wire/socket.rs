//! A socket of the system, over TCP or on a Unix path, whose calls end by a deadline.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
#[cfg(unix)]
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

#[cfg(unix)]
use redis::io::tcp::socket2::{self, Domain, SockAddr, Type};

use crate::base::clock::Moment;
use crate::client::wire::system::{self, Handle};

/// The shortest timeout that is set on a socket. Zero would mean no timeout.
pub(crate) const SHORTEST: Duration = Duration::from_millis(1);

/// One way to reach a server.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Tcp(SocketAddr),
    #[cfg(unix)]
    Unix(PathBuf),
}

/// A socket that reads and writes until a deadline: that of the last call of
/// [`until`](Self::until).
pub(crate) struct Socket {
    handle: Arc<Handle>,
    /// The current timeout of the handle.
    timeout: Duration,
    deadline: Moment,
    /// Whether the handle was called since the deadline was set.
    begun: bool,
}

/// Ends a connection, even while another thread is blocked in it. Keeps no connection open.
#[derive(Clone, Debug)]
pub(crate) struct Ender(Weak<Handle>);

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
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// True if the connection is no longer in use, so that there is nothing to end.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl Socket {
    /// Connects within `limit`.
    pub(super) fn open(way: &Way, limit: Duration) -> io::Result<Socket> {
        let deadline = Moment::now().after(limit);
        match way {
            Way::Tcp(address) => Ok(Socket::new(system::connect(*address, limit)?, deadline)),
            #[cfg(unix)]
            Way::Unix(path) => {
                // While the other end accepts nothing, and its queue is full, `connect` blocks, and
                // would do so forever. It blocks no longer than a write may.
                let address = SockAddr::unix(path)?;
                let socket = socket2::Socket::new(Domain::UNIX, Type::STREAM, None)?;
                let mut socket = Socket::new(socket, deadline);
                socket.call(|handle| handle.connect(&address))?;
                Ok(socket)
            }
        }
    }

    fn new(handle: impl Into<Handle>, deadline: Moment) -> Socket {
        Socket {
            handle: Arc::new(handle.into()),
            timeout: Duration::ZERO,
            deadline,
            begun: false,
        }
    }

    /// This socket, whose next calls end by this deadline.
    pub(super) fn until(&mut self, deadline: Moment) -> &mut Socket {
        self.deadline = deadline;
        self.begun = false;
        self
    }

    /// Reads what has arrived. Does not wait.
    pub(super) fn read_now(&self, buffer: &mut [u8]) -> io::Result<usize> {
        system::read_now(&self.handle, buffer)
    }

    /// A handle by which another thread can end the connection.
    pub(super) fn ender(&self) -> Ender {
        Ender(Arc::downgrade(&self.handle))
    }

    /// Calls the socket until the deadline, and at least once: even after the deadline, bytes that
    /// have arrived are read. A signal does not end the wait.
    ///
    /// The timeout of the socket is set only if the old one is longer than the time that is left,
    /// or much shorter. If the old timeout ends too soon, the socket is called again. So most
    /// commands need no system call to set a timeout, although their deadlines differ.
    fn call<T>(&mut self, mut call: impl FnMut(&mut &Handle) -> io::Result<T>) -> io::Result<T> {
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
            let set = self.timeout;
            if set > timeout.saturating_add(SHORTEST) || set < timeout / 4 {
                self.handle.set_read_timeout(Some(timeout))?;
                self.handle.set_write_timeout(Some(timeout))?;
                self.timeout = timeout;
            }
            match call(&mut &*self.handle) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The timeout of the socket has passed, but the deadline may be later.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.call(|handle| handle.read(buffer))
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.call(|handle| handle.write(bytes))
    }

    /// The socket keeps nothing back.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    fn within(span: Duration) -> Moment {
        Moment::now().after(span)
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
            let opened = Socket::open(&Way::Unix(path), SHORT);
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
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn an_idle_connection_is_kept_alive_by_the_system() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _socket = Socket::open(&Way::Tcp(listener.local_addr().unwrap()), LONG).unwrap();
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

    /// The deadlines differ as those of a lock and its release do: by a factor of two.
    #[test]
    fn a_deadline_that_differs_little_is_kept_without_setting_the_timeout() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut socket = Socket::open(&Way::Tcp(listener.local_addr().unwrap()), LONG).unwrap();
        let mut far = listener.accept().unwrap().0;
        let mut timeout_for = |limit| {
            far.write_all(b"x").unwrap();
            assert_eq!(socket.until(within(limit)).read(&mut [0; 1]).unwrap(), 1);
            socket.timeout
        };
        let first = timeout_for(LONG);
        for limit in [3 * LONG, 3 * LONG / 2].repeat(10) {
            assert_eq!(timeout_for(limit), first, "it is shorter, but not much");
        }
        for limit in [SHORT, 3 * SHORT] {
            let begun = Moment::now();
            assert_eq!(
                socket
                    .until(within(limit))
                    .read(&mut [0; 1])
                    .unwrap_err()
                    .kind(),
                ErrorKind::TimedOut
            );
            let waited = Moment::now().since(begun);
            assert!(limit <= waited && waited < LONG / 2, "{waited:?}");
        }
    }
}
