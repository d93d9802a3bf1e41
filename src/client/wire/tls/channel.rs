//! One connection over TLS: the handshake, and the bytes in both directions.

use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error};

use super::{Layer, cause};
use crate::base::error::TlsCause;
use crate::client::wire::io_error;
use crate::client::wire::resp::LONGEST_REPLY;
use crate::client::wire::socket::Socket;

/// How much is encrypted before it is sent: one record at most. If only a part of that record is
/// sent, the server cannot read it. So a command whose last record was not sent whole is not
/// executed.
const RECORD: usize = 16 * 1024;

/// How many bytes may come without any data in them. (After the handshake, a server sends a few
/// hundred bytes that shorten a later handshake.)
const MOST_WITHOUT_DATA: usize = LONGEST_REPLY;

/// The TLS configuration, ready for any number of connections. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) config: Arc<ClientConfig>,
    /// The name that a certificate must have, if that is not the host's.
    pub(crate) name: Option<ServerName<'static>>,
}

pub(crate) struct Channel {
    connection: ClientConnection,
    /// The first bytes that came.
    head: Vec<u8>,
    /// Whether the server has sent any data.
    has_answered: bool,
    /// How many bytes have come since the last data.
    without_data: usize,
}

impl Client {
    /// Begins a connection to `host`. Sends nothing.
    pub(in crate::client) fn channel(&self, host: &str) -> io::Result<Box<dyn Layer>> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned()).map_err(|_| {
                io_error::tls_refused(
                    TlsCause::WrongName,
                    "the host is not a name that a certificate can have",
                )
            })?,
        };
        let connection = contain(|| ClientConnection::new(Arc::clone(&self.config), name))
            .and_then(|begun| begun)
            .map_err(|error| cause::in_handshake(error, &[], false))?;
        Ok(Box::new(Channel {
            connection,
            head: Vec::new(),
            has_answered: false,
            without_data: 0,
        }))
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Channel {
    /// Lets rustls move bytes in both directions. If it `waits` for nothing, it reads what has
    /// arrived, and writes nothing.
    fn run<T>(
        &mut self,
        socket: &mut Socket,
        waits: bool,
        call: impl FnOnce(rustls::Stream<'_, ClientConnection, Wire<'_>>) -> io::Result<T>,
    ) -> io::Result<T> {
        let is_handshaking = self.connection.is_handshaking();
        let mut wire = Wire {
            socket,
            waits,
            head: &mut self.head,
            without_data: &mut self.without_data,
        };
        let stream = rustls::Stream::new(&mut self.connection, &mut wire);
        let done =
            contain(|| call(stream)).unwrap_or_else(|panicked| Err(io::Error::other(panicked)));
        done.map_err(|error| match error.downcast() {
            Ok(error) if is_handshaking => {
                let agreed_on_cipher = self.connection.negotiated_cipher_suite().is_some();
                cause::in_handshake(error, &self.head, agreed_on_cipher)
            }
            Ok(error) => cause::after_handshake(error, !self.has_answered),
            Err(error) => error,
        })
    }

    /// Encrypts `bytes`, if there are any, and sends all that has been encrypted.
    fn send(&mut self, bytes: &[u8], socket: &mut Socket) -> io::Result<()> {
        let sent = self.run(socket, true, |mut tls| {
            tls.write_all(bytes)?;
            tls.flush()
        });
        sent.map_err(|error| self.reason(error, socket))
    }

    /// True if the server has ended the connection. An error of the kind `WouldBlock` says that it
    /// has not, and has sent nothing.
    fn look(&mut self, socket: &mut Socket) -> io::Result<bool> {
        self.run(socket, false, |mut tls| Ok(tls.fill_buf()?.is_empty()))
    }

    /// Why the server has closed the connection, if it has said why; or else `error`, which came
    /// first. A server that refuses the client's certificate may have closed the connection before
    /// all is written. What it said has arrived by then.
    fn reason(&mut self, error: io::Error, socket: &mut Socket) -> io::Error {
        if self.has_answered || !io_error::ends_link(&error) {
            return error;
        }
        while self.connection.wants_write() {
            // In a handshake, rustls reads nothing before all is sent. These bytes go nowhere.
            let _ = self.connection.write_tls(&mut io::sink());
        }
        match self.look(socket) {
            Err(refused) if io_error::tls_cause_of(&refused).is_some() => refused,
            _ => error,
        }
    }
}

impl Layer for Channel {
    fn shake_hands(&mut self, socket: &mut Socket) -> io::Result<()> {
        let shaken = self.send(&[], socket);
        let words = |error: &io::Error| match error.kind() {
            ErrorKind::TimedOut if self.is_silent() => Some(
                "the server sent nothing in the time for the TLS handshake, and may not speak TLS",
            ),
            ErrorKind::TimedOut => Some("the TLS handshake did not finish in time"),
            ErrorKind::UnexpectedEof => {
                Some("the server closed the connection in the TLS handshake")
            }
            _ => None,
        };
        shaken.map_err(|error| match words(&error) {
            Some(words) => io::Error::new(error.kind(), words),
            None => error,
        })
    }

    fn is_silent(&self) -> bool {
        self.head.is_empty()
    }

    fn write(&mut self, bytes: &[u8], socket: &mut Socket) -> io::Result<()> {
        let mut records = bytes.chunks(RECORD);
        records.try_for_each(|record| self.send(record, socket))
    }

    fn read(&mut self, buffer: &mut [u8], socket: &mut Socket) -> io::Result<usize> {
        let count = self.run(socket, true, |mut tls| tls.read(buffer))?;
        self.has_answered |= count > 0;
        self.without_data = 0;
        Ok(count)
    }

    fn probe(&mut self, socket: &mut Socket) -> bool {
        self.look(socket)
            .unwrap_or_else(|error| error.kind() != ErrorKind::WouldBlock)
    }

    fn unread(&mut self) -> bool {
        self.connection
            .reader()
            .fill_buf()
            .is_ok_and(|data| !data.is_empty())
    }
}

/// Lets rustls do what may call the program's code: a verifier, a key log, a logger. If that
/// panics, the connection ends, and the manager's thread or a guard's drop goes on.
fn contain<T>(call: impl FnOnce() -> T) -> Result<T, Error> {
    let panicked = |_| Error::General("a verifier, a key log or a logger panicked".to_owned());
    panic::catch_unwind(AssertUnwindSafe(call)).map_err(panicked)
}

/// The socket, as rustls may use it. Counts what comes, and keeps the beginning.
struct Wire<'a> {
    socket: &'a mut Socket,
    waits: bool,
    head: &'a mut Vec<u8>,
    without_data: &'a mut usize,
}

impl Read for Wire<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = if self.waits {
            self.socket.read(buffer)
        } else {
            self.socket.read_now(buffer)
        }?;
        let missing = 2_usize.saturating_sub(self.head.len());
        self.head.extend(buffer[..count].iter().take(missing));
        *self.without_data += count;
        if *self.without_data > MOST_WITHOUT_DATA {
            let endless = "the server sends bytes without any data";
            return Err(io::Error::new(ErrorKind::InvalidData, endless));
        }
        Ok(count)
    }
}

impl Write for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.waits {
            self.socket.write(bytes)
        } else {
            Err(ErrorKind::WouldBlock.into())
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
