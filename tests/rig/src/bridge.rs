//! What a proxy that copies bytes consists of: a listener, a connection to a port for each client,
//! and a thread for each direction.

use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};

use parking_lot::Mutex;

use crate::ports::listen;
use crate::road;

/// What one thread does with a connection. When it returns, the connection is ended.
pub(crate) type Pump = Box<dyn FnOnce() + Send>;

/// Connects each client on 127.0.0.1 to a port; gone, with its threads, when this is dropped.
pub(crate) struct Bridge {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stopped: AtomicBool,
    connections: Mutex<Vec<Connection>>,
}

struct Connection {
    streams: Streams,
    threads: [JoinHandle<()>; 2],
}

/// The two sides of a connection.
#[derive(Clone)]
pub(crate) struct Streams {
    pub(crate) client: Arc<TcpStream>,
    pub(crate) server: Arc<TcpStream>,
}

impl Bridge {
    /// Connects clients to `target`, a port of 127.0.0.1. `open` returns what the two threads of a
    /// connection do.
    pub(crate) fn start(
        name: &'static str,
        target: u16,
        open: impl Fn(Streams) -> [Pump; 2] + Send + 'static,
    ) -> Bridge {
        let listener = listen();
        let port = listener.local_addr().expect("a bound listener").port();
        road::leads(port, target);
        let shared = Arc::new(Shared::default());
        let host = Arc::clone(&shared);
        let acceptor = spawn(name, move || host.accept(name, &listener, target, &open));
        Bridge {
            shared,
            port,
            acceptor: Some(acceptor),
        }
    }

    /// The port that clients connect to.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Ends all connections.
    fn cut_all(&self) {
        self.shared
            .connections
            .lock()
            .iter()
            .for_each(|connection| connection.streams.shut_down());
    }
}

impl Shared {
    fn accept(
        &self,
        name: &str,
        listener: &TcpListener,
        target: u16,
        open: &impl Fn(Streams) -> [Pump; 2],
    ) {
        for client in listener.incoming() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let (Ok(client), Ok(server)) =
                (client, TcpStream::connect((Ipv4Addr::LOCALHOST, target)))
            else {
                continue;
            };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let streams = Streams {
                client: Arc::new(client),
                server: Arc::new(server),
            };
            let threads = open(streams.clone()).map(|pump| {
                let streams = streams.clone();
                spawn(name, move || {
                    pump();
                    streams.shut_down();
                })
            });
            let mut connections = self.connections.lock();
            // The files of a connection that has ended are closed here. A test may open thousands.
            connections.retain(|it| !it.threads.iter().all(JoinHandle::is_finished));
            connections.push(Connection { streams, threads });
        }
    }
}

impl Streams {
    fn shut_down(&self) {
        // If the other end is gone, shutting down fails; then it is not needed.
        let _ = (
            self.client.shutdown(Shutdown::Both),
            self.server.shutdown(Shutdown::Both),
        );
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // The acceptor checks whether it has to stop only when a client connects, so connect once.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        self.cut_all();
        for connection in self.shared.connections.lock().drain(..) {
            connection
                .threads
                .into_iter()
                .for_each(|thread| _ = thread.join());
        }
    }
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    Builder::new()
        .name(name.to_owned())
        .spawn(body)
        .expect("a thread can be started")
}
