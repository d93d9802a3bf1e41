//! A server that is no Redis: a script decides what it answers.

use std::fmt;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::ports::listen;
use crate::resp::{Splitter, args};
use crate::road;

/// What is sent in the place of a reply.
#[derive(Clone, Debug)]
pub enum Reply {
    /// These bytes, and nothing more.
    Bytes(Vec<u8>),
    /// The first bytes, and the others after a pause.
    Paused(Vec<u8>, Duration, Vec<u8>),
    /// The first bytes, then the others over and over for the given time, as fast as the client
    /// reads them. Then the connection ends.
    Endless(Vec<u8>, Vec<u8>, Duration),
    /// These bytes. From then on, the connection gets what [`FakeServer::push`] sends.
    Subscribed(Vec<u8>),
    /// The end of the connection.
    Close,
}

type Script = dyn Fn(&[String]) -> Reply + Send + Sync;

/// A server on 127.0.0.1 that asks `script` what to reply to each command; gone, with its threads,
/// when this is dropped.
///
/// When a connection begins, the script is asked what to send first, with a command of no
/// arguments.
pub struct FakeServer {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Option<JoinHandle<()>>,
}

struct Shared {
    script: Box<Script>,
    stopped: AtomicBool,
    clients: Mutex<Vec<(TcpStream, JoinHandle<()>)>>,
    subscribers: Mutex<Vec<TcpStream>>,
}

impl FakeServer {
    /// Starts the server.
    pub fn start(script: impl Fn(&[String]) -> Reply + Send + Sync + 'static) -> FakeServer {
        let listener = listen();
        let port = listener.local_addr().expect("a bound listener").port();
        let shared = Arc::new(Shared {
            script: Box::new(script),
            stopped: AtomicBool::new(false),
            clients: Mutex::default(),
            subscribers: Mutex::default(),
        });
        let host = Arc::clone(&shared);
        let acceptor = Some(thread::spawn(move || host.accept(&listener)));
        FakeServer {
            shared,
            port,
            acceptor,
        }
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Sends bytes that nobody asked for, over each connection that has
    /// [subscribed](Reply::Subscribed). Returns how many connections they were written to.
    pub fn push(&self, bytes: &[u8]) -> usize {
        let mut subscribers = self.shared.subscribers.lock();
        subscribers.retain_mut(|stream| stream.write_all(bytes).is_ok());
        subscribers.len()
    }
}

impl fmt::Debug for FakeServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FakeServer")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            if self.stopped.load(Ordering::SeqCst) {
                return;
            }
            let Ok(client) = client else { continue };
            let (host, stream) = (Arc::clone(self), client.try_clone().expect("a descriptor"));
            let thread = thread::spawn(move || host.serve(stream));
            self.clients.lock().push((client, thread));
        }
    }

    fn serve(&self, mut stream: TcpStream) {
        let port = stream.local_addr().map_or(0, |address| address.port());
        let _ = stream.set_nodelay(true);
        let mut splitter = Splitter::default();
        let mut bytes = [0; 4096];
        let mut goes_on = self.reply(&mut stream, &[]);
        while goes_on {
            goes_on = match stream.read(&mut bytes) {
                Ok(0) | Err(_) => false,
                Ok(count) => {
                    splitter.push(&bytes[..count]);
                    splitter.by_ref().all(|command| {
                        let command = args(&command);
                        match road::of_cluster(&command, port) {
                            Some(reply) => stream.write_all(&reply).is_ok(),
                            None => self.reply(&mut stream, &command),
                        }
                    })
                }
            };
        }
        let _ = stream.shutdown(Shutdown::Both);
    }

    /// Sends the reply to a command; returns false if the connection has to end.
    fn reply(&self, stream: &mut TcpStream, args: &[String]) -> bool {
        match (self.script)(args) {
            // A script that answers all commands alike need not know this one, whose answer is a
            // map.
            Reply::Bytes(bytes)
                if bytes == b"+OK\r\n" && args.first().is_some_and(|it| it == "HELLO") =>
            {
                stream.write_all(b"*0\r\n").is_ok()
            }
            Reply::Bytes(bytes) => stream.write_all(&bytes).is_ok(),
            Reply::Paused(first, pause, rest) => {
                let began = stream.write_all(&first);
                thread::sleep(pause);
                began.and_then(|()| stream.write_all(&rest)).is_ok()
            }
            Reply::Endless(first, again, time) => {
                let (end, block) = (Instant::now() + time, again.repeat(4096 / again.len()));
                let mut goes_on = stream.write_all(&first).is_ok();
                while goes_on && Instant::now() < end && !self.stopped.load(Ordering::SeqCst) {
                    goes_on = stream.write_all(&block).is_ok();
                }
                false
            }
            Reply::Subscribed(bytes) => {
                // Locked first, so that no push comes before the reply.
                let mut subscribers = self.subscribers.lock();
                let goes_on = stream.write_all(&bytes).is_ok();
                subscribers.extend(stream.try_clone());
                goes_on
            }
            Reply::Close => false,
        }
    }
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        // The acceptor checks whether it has to stop only when a client connects, so connect once.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        for (stream, thread) in self.shared.clients.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
            let _ = thread.join();
        }
    }
}
