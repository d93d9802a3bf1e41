//! TLS in front of a port that has none, so that a [`Proxy`](crate::Proxy), which has to understand
//! what passes, can cause its faults on connections that are encrypted.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection};

use crate::bridge::{Bridge, Pump, Streams};
use crate::{Authority, Identity, rights};

/// Speaks TLS with clients on `localhost`, and passes on the plain text to a port and back; gone,
/// with its threads, when this is dropped.
pub struct Terminator {
    bridge: Bridge,
    roots: String,
}

/// One connection.
struct Session {
    tls: Mutex<ServerConnection>,
    streams: Streams,
    /// Whether a client may do without TLS.
    takes_plain: bool,
    /// Whether the client does without TLS. Known as soon as the client has sent something.
    is_plain: AtomicBool,
}

impl Terminator {
    /// Starts a terminator in front of `target`, a port of 127.0.0.1, with a certificate of an
    /// authority of its own.
    pub fn start(target: u16) -> Terminator {
        let authority = Authority::new();
        let identity = authority.issue(&["localhost"]);
        Terminator::open(target, &authority, &identity, false)
    }

    /// Starts one in front of a server that sentinels watch. Its certificate names 127.0.0.1, which
    /// is what the sentinels say. Clients that begin with a command in RESP are connected without
    /// TLS: the sentinels and the replicas. (On a busy machine, a manager whose handshake takes
    /// long asks in plain text, by an inline command, whether the server uses TLS at all. This one
    /// does.)
    pub fn beside_plain(target: u16, authority: &Authority) -> Terminator {
        Terminator::open(target, authority, &authority.issue(&["127.0.0.1"]), true)
    }

    fn open(
        target: u16,
        authority: &Authority,
        identity: &Identity,
        takes_plain: bool,
    ) -> Terminator {
        let config = Arc::new(config(identity));
        let bridge = Bridge::start("terminator", target, move |streams| {
            let tls =
                ServerConnection::new(Arc::clone(&config)).expect("a configuration that can work");
            let (tls, is_plain) = (Mutex::new(tls), AtomicBool::new(false));
            let session = Arc::new(Session {
                tls,
                streams,
                takes_plain,
                is_plain,
            });
            let twin = Arc::clone(&session);
            // A broken connection is not the terminator's fault: both sides see that it ends.
            let (up, down): (Pump, Pump) = (
                Box::new(move || _ = session.pump_up()),
                Box::new(move || _ = twin.pump_down()),
            );
            [up, down]
        });
        Terminator {
            bridge,
            roots: authority.pem().to_owned(),
        }
    }

    /// The port that clients connect to.
    pub fn port(&self) -> u16 {
        self.bridge.port()
    }

    /// The address for a manager, with the login if there is one (see [`rights`]).
    pub fn url(&self) -> String {
        format!("rediss://{}localhost:{}/", rights::login(), self.port())
    }

    /// The certificate of the authority, for managers to trust.
    pub fn roots(&self) -> &str {
        &self.roots
    }
}

impl Session {
    /// Decrypts what the client sends, until it closes its side or sends what is no TLS.
    fn pump_up(&self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        if self.takes_plain {
            let count = self.streams.client.peek(&mut buffer)?;
            self.is_plain
                .store(buffer[..count].first() == Some(&b'*'), Ordering::SeqCst);
        }
        if self.is_plain.load(Ordering::SeqCst) {
            return io::copy(&mut &*self.streams.client, &mut &*self.streams.server).map(|_| ());
        }
        loop {
            let count = (&*self.streams.client).read(&mut buffer)?;
            if count == 0 {
                return Ok(());
            }
            let mut rest = &buffer[..count];
            while !rest.is_empty() {
                let plain = self.decrypt(&mut rest)?;
                (&*self.streams.server).write_all(&plain)?;
            }
        }
    }

    /// Returns the plain text in the next bytes of the client, and answers those of a handshake.
    fn decrypt(&self, bytes: &mut &[u8]) -> io::Result<Vec<u8>> {
        let mut tls = self.tls.lock();
        tls.read_tls(bytes)?;
        let state = tls.process_new_packets();
        // Sent also if the bytes are no TLS: the client then gets an alert.
        self.flush(&mut tls)?;
        let mut plain = vec![0; state.map_err(io::Error::other)?.plaintext_bytes_to_read()];
        tls.reader().read_exact(&mut plain)?;
        Ok(plain)
    }

    /// Encrypts what the server sends, until it closes its side. A server says nothing before the
    /// client does.
    fn pump_down(&self) -> io::Result<()> {
        let mut buffer = [0; 4096];
        loop {
            let count = (&*self.streams.server).read(&mut buffer)?;
            if self.is_plain.load(Ordering::SeqCst) && count > 0 {
                (&*self.streams.client).write_all(&buffer[..count])?;
                continue;
            }
            let mut tls = self.tls.lock();
            if count == 0 {
                tls.send_close_notify();
                return self.flush(&mut tls);
            }
            tls.writer().write_all(&buffer[..count])?;
            self.flush(&mut tls)?;
        }
    }

    fn flush(&self, tls: &mut ServerConnection) -> io::Result<()> {
        while tls.wants_write() {
            tls.write_tls(&mut &*self.streams.client)?;
        }
        Ok(())
    }
}

fn config(identity: &Identity) -> ServerConfig {
    let certificate = CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("PEM");
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).expect("PEM");
    ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has all versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("the key fits")
}

impl fmt::Debug for Terminator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Terminator")
            .field("port", &self.port())
            .finish_non_exhaustive()
    }
}
