//! What an `io::Error` says about a connection.

use std::fmt;
use std::io::{self, ErrorKind};

use crate::base::error::TlsCause;

/// True if the connection is still in order after this error. A late answer is then skipped.
pub(crate) fn leaves_link_standing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::TimedOut | ErrorKind::WouldBlock | ErrorKind::Interrupted
    )
}

/// True if the error says that the connection has ended. (Garbage, or a reply that is too long,
/// says nothing about other connections.)
pub(crate) fn ends_link(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::BrokenPipe
            | ErrorKind::ConnectionReset
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionAborted
            | ErrorKind::UnexpectedEof
            | ErrorKind::NotConnected
            | ErrorKind::NotFound
    )
}

/// A TLS failure that would come again with the next connection. It travels inside an `io::Error`.
#[derive(Debug)]
struct Final {
    cause: TlsCause,
    text: String,
}

impl fmt::Display for Final {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Final {}

/// An error whose cause [`tls_cause_of`] finds.
pub(crate) fn tls_refused(cause: TlsCause, text: impl fmt::Display) -> io::Error {
    io::Error::new(
        ErrorKind::InvalidData,
        Final {
            cause,
            text: text.to_string(),
        },
    )
}

/// The error for a Redis that does not use TLS.
pub(crate) fn plain_redis() -> io::Error {
    tls_refused(
        TlsCause::PlainRedis,
        "it answered as Redis does, but not over TLS",
    )
}

/// Why TLS failed, if that would come again with the next connection.
pub(crate) fn tls_cause_of(error: &io::Error) -> Option<TlsCause> {
    error.get_ref()?.downcast_ref::<Final>().map(|it| it.cause)
}
