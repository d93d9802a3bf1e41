//! TLS: the settings, and the bytes of an encrypted connection.
//!
//! rustls does the cryptography, and moves its bytes through the calls of [`Socket`]. So the
//! handshake and each read and write end by the same deadlines as without TLS. Without the feature
//! `tls-no-provider`, none of this is compiled: a type without values stands in for it.

#[cfg(not(feature = "tls-no-provider"))]
mod absent;
#[cfg(feature = "tls-no-provider")]
mod options;
#[cfg(feature = "tls-no-provider")]
mod channel;
#[cfg(feature = "tls-no-provider")]
mod cause;

#[cfg(not(feature = "tls-no-provider"))]
pub(crate) use self::absent::{Client, Tls};
#[cfg(feature = "tls-no-provider")]
pub(crate) use self::channel::Client;
#[cfg(feature = "tls-no-provider")]
pub use self::options::Tls;

use std::io;

use crate::client::wire::socket::Socket;

/// The bytes of an encrypted connection.
pub(crate) trait Layer: Send + Sync {
    /// Does the handshake. After a time-out, the caller can call this again.
    fn shake_hands(&mut self, socket: &mut Socket) -> io::Result<()>;

    /// True if the server has sent nothing.
    fn is_silent(&self) -> bool;

    /// Writes all bytes. After an error, at least the last of them cannot be read by the server.
    fn write(&mut self, bytes: &[u8], socket: &mut Socket) -> io::Result<()>;

    /// Reads some bytes. Zero means that the server has ended the connection. After a time-out, the
    /// part of a record that has arrived stays here.
    fn read(&mut self, buffer: &mut [u8], socket: &mut Socket) -> io::Result<usize>;

    /// True if the connection has ended. Does not wait. A server may send messages without data at
    /// any time: they do not end the connection. Data is kept, and found by
    /// [`unread`](Self::unread).
    fn probe(&mut self, socket: &mut Socket) -> bool;

    /// True if data has come that was not read.
    fn unread(&mut self) -> bool;
}

#[cfg(feature = "tls")]
#[cfg(test)]
pub(crate) mod tests {
    use std::io::{self, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::thread;
    use std::time::Duration;

    use relatch_rig::Authority;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ServerConfig, ServerConnection};

    use super::*;
    use crate::base::clock::Moment;
    use crate::client::wire::io_error;
    use crate::client::wire::resp::Reply;
    use crate::client::wire::socket::Way;
    use crate::client::wire::stream::Stream;
    use crate::client::wire::stream::tests::Far;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(20);

    /// The other end of a connection over TLS.
    struct Server {
        tls: ServerConnection,
        socket: TcpStream,
    }

    impl Server {
        /// The records that wait to be sent.
        fn records(&mut self) -> Vec<u8> {
            let mut records = Vec::new();
            while self.tls.wants_write() {
                self.tls.write_tls(&mut records).unwrap();
            }
            records
        }

        fn encrypt(&mut self, text: &str) -> Vec<u8> {
            self.tls.writer().write_all(text.as_bytes()).unwrap();
            self.records()
        }
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let count = self.tls.writer().write(bytes)?;
            let records = self.records();
            self.socket.write_all(&records).map(|()| count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn configs() -> (ServerConfig, Client) {
        let authority = Authority::new();
        let identity = authority.issue(&["localhost"]);
        let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = config
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        (
            config,
            Client::new(Some(Tls::new().roots(authority.pem())), "tls").unwrap(),
        )
    }

    pub(in crate::client) fn client() -> Client {
        configs().1
    }

    /// Does a server's handshake, and sends what a server sends after that.
    fn accept(listener: &TcpListener, config: ServerConfig) -> io::Result<Server> {
        let mut tls = ServerConnection::new(Arc::new(config)).unwrap();
        let mut socket = listener.accept().unwrap().0;
        while tls.is_handshaking() || tls.wants_write() {
            tls.complete_io(&mut socket)?;
        }
        Ok(Server { tls, socket })
    }

    fn open(listener: &TcpListener, client: &Client) -> Stream {
        let way = Way::Tcp(listener.local_addr().unwrap());
        Stream::open(&way, Some((client, "localhost")), LONG).unwrap()
    }

    fn listen() -> TcpListener {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()
    }

    fn connect() -> (Stream, Server) {
        let listener = listen();
        let (config, client) = configs();
        thread::scope(|scope| {
            let server = scope.spawn(|| accept(&listener, config).unwrap());
            let stream = open(&listener, &client);
            (stream, server.join().unwrap())
        })
    }

    /// A stream over TLS, and its other end.
    pub(in crate::client) fn stream() -> (Stream, Far) {
        let (stream, server) = connect();
        (stream, Box::new(server))
    }

    fn within(span: Duration) -> Moment {
        Moment::now().after(span)
    }

    fn line(text: &str) -> Reply {
        Reply::Line(text.to_owned())
    }

    #[test]
    fn a_record_that_is_cut_at_the_deadline_is_read_on() {
        let (mut stream, mut server) = connect();
        let late = server.encrypt("+late\r\n");
        let next = server.encrypt("+next\r\n");
        let (first, rest) = late.split_at(late.len() / 2);
        server.socket.write_all(first).unwrap();
        let error = stream.receive(within(SHORT)).unwrap_err();
        assert!(io_error::leaves_link_standing(&error), "{error:?}");
        server.socket.write_all(&[rest, &next].concat()).unwrap();
        assert_eq!(stream.receive(within(LONG)).unwrap(), line("late"));
        assert_eq!(stream.receive(within(LONG)).unwrap(), line("next"));
    }

    #[test]
    fn what_a_server_sends_without_data_ends_no_idle_connection() {
        let (mut stream, mut server) = connect();
        for _ in 0..3 {
            server.tls.refresh_traffic_keys().unwrap();
            let records = server.records();
            let (first, rest) = records.split_at(records.len() / 2);
            for part in [first, rest] {
                server.socket.write_all(part).unwrap();
                assert!(!stream.probe());
            }
        }
        server.write_all(b"+OK\r\n").unwrap();
        assert_eq!(stream.receive(within(LONG)).unwrap(), Reply::Ok);
        server.tls.send_close_notify();
        let records = server.records();
        server.socket.write_all(&records).unwrap();
        let deadline = within(LONG);
        while !stream.probe() {
            assert!(
                Moment::now() < deadline,
                "the server says that it ends the connection"
            );
        }
    }

    #[test]
    fn a_reply_that_comes_with_another_is_not_asked_for() {
        let (mut stream, mut server) = connect();
        let both = [server.encrypt("+one\r\n"), server.encrypt("+two\r\n")].concat();
        server.socket.write_all(&both).unwrap();
        assert_eq!(stream.receive(within(LONG)).unwrap(), line("one"));
        assert!(stream.unasked());
        assert!(stream.probe());
    }

    /// After the handshake, a server may send any number of tickets for later handshakes.
    #[test]
    fn bytes_without_data_are_bounded() {
        let listener = listen();
        let (mut config, client) = configs();
        config.send_tls13_tickets = 2_000;
        thread::scope(|scope| {
            scope.spawn(|| accept(&listener, config));
            let mut stream = open(&listener, &client);
            let error = stream.receive(within(LONG)).unwrap_err();
            // For tickets, rustls has a limit of its own, which is below that of a session.
            assert!(!io_error::leaves_link_standing(&error), "{error:?}");
        });
    }

    /// A record is written whole or not at all, and a long command is several records.
    #[test]
    fn a_long_command_arrives() {
        let (mut stream, mut server) = connect();
        let command: &[u8] = &vec![b'x'; 100_000];
        thread::scope(|scope| {
            let sends = scope.spawn(move || stream.send(command, within(LONG)).map(|()| stream));
            let mut arrived = Vec::new();
            while arrived.len() < command.len() {
                assert!(
                    server.tls.read_tls(&mut server.socket).unwrap() > 0,
                    "the stream sends all"
                );
                server.tls.process_new_packets().unwrap();
                let mut part = [0; 10_000];
                while let Ok(count) = io::Read::read(&mut server.tls.reader(), &mut part) {
                    arrived.extend_from_slice(&part[..count]);
                }
            }
            assert!(arrived == command);
            sends.join().unwrap().unwrap();
        });
    }
}
