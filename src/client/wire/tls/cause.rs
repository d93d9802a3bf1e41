//! Why there is no TLS connection, from rustls's errors.

use std::io::{self, ErrorKind};

use rustls::{AlertDescription, CertificateError, Error as TlsError};

use crate::base::error::TlsCause;
use crate::client::wire::io_error::{plain_redis, tls_refused};

/// The error of a handshake. `head` is what the server sent first.
pub(crate) fn in_handshake(error: TlsError, head: &[u8], agreed_on_cipher: bool) -> io::Error {
    let cause = match &error {
        TlsError::AlertReceived(
            AlertDescription::InternalError | AlertDescription::UserCanceled,
        ) => {
            return io::Error::new(ErrorKind::ConnectionAborted, error);
        }
        // Before TLS 1.3, OpenSSL says only "handshake failure" if a certificate is missing. The
        // same alert comes in place of the server's first reply if there is no cipher in common.
        TlsError::AlertReceived(AlertDescription::HandshakeFailure) if agreed_on_cipher => {
            TlsCause::ClientCertificate
        }
        TlsError::AlertReceived(alert) if is_about_certificate(*alert) => {
            TlsCause::ClientCertificate
        }
        TlsError::InvalidCertificate(error) => of_certificate(error),
        _ if !head.is_empty() && !is_tls(head) => {
            // Without TLS, Redis takes the first message for a command that it does not know.
            let is_redis = matches!(head, [b'-', b'A'..=b'Z', ..]);
            return if is_redis {
                plain_redis()
            } else {
                tls_refused(TlsCause::NotTls, "its first bytes are not TLS")
            };
        }
        _ => TlsCause::Other,
    };
    tls_refused(cause, error)
}

/// An error after the handshake. `is_first` says that the server has sent no data yet.
///
/// With TLS 1.3, a server checks the client's certificate after the client's handshake. It has not
/// read any command then.
pub(crate) fn after_handshake(error: TlsError, is_first: bool) -> io::Error {
    match error {
        TlsError::AlertReceived(alert) if is_first && is_about_certificate(alert) => {
            tls_refused(TlsCause::ClientCertificate, error)
        }
        TlsError::AlertReceived(_) => io::Error::new(ErrorKind::ConnectionAborted, error),
        _ => io::Error::new(ErrorKind::InvalidData, error),
    }
}

fn is_tls(head: &[u8]) -> bool {
    // The type of a record, and the first digit of its version.
    matches!(head, [0x14..=0x18] | [0x14..=0x18, 3, ..])
}

/// True if the server says that it does not accept the client's certificate.
fn is_about_certificate(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::CertificateRequired
            // OpenSSL answers this if the issuer of our certificate only has the name of an
            // authority that it trusts.
            | AlertDescription::DecryptError
    )
}

fn of_certificate(error: &CertificateError) -> TlsCause {
    match error {
        // A bad signature: an untrusted authority has the name of a trusted one.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsCause::UnknownIssuer,
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            TlsCause::WrongName
        }
        CertificateError::Expired
        | CertificateError::ExpiredContext { .. }
        | CertificateError::NotValidYet
        | CertificateError::NotValidYetContext { .. } => TlsCause::Expired,
        _ => TlsCause::Other,
    }
}
