//! One connection over TLS: the handshake, and the bytes in both directions.

use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read, Write};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Error, IoState};

use super::{Layer, cause};
use crate::base::error::TlsCause;
use crate::client::wire::io_error;
use crate::client::wire::resp::LONGEST_REPLY;
use crate::client::wire::socket::Socket;

/// How much is encrypted before it is sent: one record at most. If that record leaves only in part,
/// the server cannot read it. So a command whose last record has not left whole is not executed.
const RECORD: usize = 16 * 1024;

/// How many bytes may come without any data in them. (After the handshake, a server sends a few
/// hundred bytes with which a later handshake is shorter.)
const MOST_WITHOUT_DATA: usize = LONGEST_REPLY;

/// The configuration of TLS, ready for any number of connections. Cheap to clone.
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
                    "the host is no name that a certificate can have",
                )
            })?,
        };
        let connection = contain(|| ClientConnection::new(Arc::clone(&self.config), name))
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
    fn try_to_shake_hands(&mut self, socket: &mut Socket) -> io::Result<()> {
        while self.connection.is_handshaking() {
            self.flush(socket)
                .map_err(|error| self.reason(error, socket))?;
            self.pull(|buffer| socket.read(buffer))
                .inspect_err(|_| self.tell_why(socket))?;
        }
        self.flush(socket)
            .map_err(|error| self.reason(error, socket))
    }

    /// Reads from the socket once, and decrypts all records that are whole.
    fn pull(&mut self, read: impl FnMut(&mut [u8]) -> io::Result<usize>) -> io::Result<IoState> {
        let is_handshaking = self.connection.is_handshaking();
        let count = self.connection.read_tls(&mut Receiver {
            read,
            head: &mut self.head,
        })?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.without_data += count;
        if self.without_data > MOST_WITHOUT_DATA {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "the server sends bytes without any data",
            ));
        }
        contain(|| self.connection.process_new_packets()).map_err(|error| {
            if is_handshaking {
                let agreed_on_cipher = self.connection.negotiated_cipher_suite().is_some();
                cause::in_handshake(error, &self.head, agreed_on_cipher)
            } else {
                cause::after_handshake(error, !self.has_answered)
            }
        })
    }

    /// Sends what has been encrypted.
    fn flush(&mut self, socket: &mut Socket) -> io::Result<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(socket)? == 0 {
                return Err(ErrorKind::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Tells the server why this side ends the connection, if rustls has something to tell.
    fn tell_why(&mut self, socket: &mut Socket) {
        let _ = self.flush(socket); // The error that led here says more.
    }

    /// Why the server has closed the connection, if it has told; or else `error`, which the write
    /// met. A server that refuses the client's certificate may have closed the connection before
    /// all is written.
    fn reason(&mut self, error: io::Error, socket: &mut Socket) -> io::Error {
        if self.has_answered || !io_error::ends_link(&error) {
            return error;
        }
        loop {
            match self.pull(|buffer| socket.read(buffer)) {
                Ok(state) if state.plaintext_bytes_to_read() == 0 => {}
                Err(refused) if io_error::tls_cause_of(&refused).is_some() => return refused,
                _ => return error,
            }
        }
    }
}

impl Layer for Channel {
    fn shake_hands(&mut self, socket: &mut Socket) -> io::Result<()> {
        let shaken = self.try_to_shake_hands(socket);
        let words = |error: &io::Error| match error.kind() {
            ErrorKind::TimedOut if self.is_silent() => Some(
                "the server sent nothing in the time for the TLS handshake, and may not speak TLS",
            ),
            ErrorKind::TimedOut => Some("the TLS handshake was not done in time"),
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
        for part in bytes.chunks(RECORD) {
            self.connection.writer().write_all(part)?;
            self.flush(socket)
                .map_err(|error| self.reason(error, socket))?;
        }
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], socket: &mut Socket) -> io::Result<usize> {
        loop {
            match self.connection.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Ok(count) => {
                    self.has_answered |= count > 0;
                    self.without_data = 0;
                    return Ok(count);
                }
                Err(error) => return Err(error),
            }
            self.pull(|buffer| socket.read(buffer))
                .inspect_err(|_| self.tell_why(socket))?;
            // The server may have asked for new keys.
            self.flush(socket)?;
        }
    }

    fn probe(&mut self, socket: &Socket) -> bool {
        loop {
            if let Err(error) = self.pull(|buffer| socket.read_now(buffer)) {
                return error.kind() != ErrorKind::WouldBlock;
            }
        }
    }

    fn unread(&mut self) -> bool {
        self.connection
            .reader()
            .fill_buf()
            .is_ok_and(|data| !data.is_empty())
    }
}

/// Has rustls do what may call code of the program: a verifier, a key log, a logger. If that
/// panics, the connection ends, and the thread of the manager or the drop of a guard goes on.
fn contain<T>(call: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let panicked = |_| {
        Err(Error::General(
            "a verifier, a key log or a logger panicked".to_owned(),
        ))
    };
    panic::catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(panicked)
}

/// Passes on what a socket receives, and keeps the beginning.
struct Receiver<'a, F> {
    read: F,
    head: &'a mut Vec<u8>,
}

impl<F: FnMut(&mut [u8]) -> io::Result<usize>> Read for Receiver<'_, F> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = (self.read)(buffer)?;
        let missing = 2_usize.saturating_sub(self.head.len());
        self.head.extend(buffer[..count].iter().take(missing));
        Ok(count)
    }
}
