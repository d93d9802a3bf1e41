//! What all threads of a proxy share, and the thread that accepts.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::connection::ProxiedConnection;
use super::journal::Journal;
use super::rules::{Decision, Rules};
use crate::eventually;

/// What all threads of a proxy share.
#[derive(Default)]
pub(crate) struct Shared {
    /// The port of the proxy.
    pub(crate) port: u16,
    /// The port of the server.
    pub(crate) target: u16,
    pub(crate) black_hole: AtomicBool,
    pub(crate) holding: AtomicBool,
    pub(crate) loses_messages: AtomicBool,
    pub(crate) accepted: AtomicU64,
    pub(crate) delays_ended: AtomicU64,
    pub(crate) rules: Mutex<Rules>,
    /// All commands that arrived.
    pub(crate) seen: Mutex<Vec<Vec<String>>>,
    pub(crate) journal: Journal,
    /// How many faults have happened.
    pub(crate) fired: Mutex<u64>,
    pub(crate) fired_changed: Condvar,
    pub(crate) after_faults: AtomicU64,
    connections: Mutex<Vec<Weak<ProxiedConnection>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Shared {
    /// For a proxy at `port` in front of the server at `target`.
    pub(crate) fn new(port: u16, target: u16) -> Shared {
        Shared {
            port,
            target,
            ..Shared::default()
        }
    }

    /// Whether nothing passes.
    pub(crate) fn is_black_hole(&self) -> bool {
        self.black_hole.load(Ordering::SeqCst)
    }

    /// Whether replies are held.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(Ordering::SeqCst)
    }

    /// How often the delays under way were ended.
    pub(crate) fn delays_ended(&self) -> u64 {
        self.delays_ended.load(Ordering::SeqCst)
    }

    /// Notes a command that arrived, and decides what is to happen to it.
    pub(crate) fn decide(&self, args: &[String]) -> Decision {
        self.seen.lock().push(args.to_vec());
        if self.is_black_hole() {
            return Decision::Discard;
        }
        self.rules.lock().decide(args)
    }

    /// Notes that a fault happens now.
    pub(crate) fn count_fired(&self) {
        *self.fired.lock() += 1;
        self.fired_changed.notify_all();
    }

    /// Notes a command that arrived over a connection on which a fault had happened before.
    pub(crate) fn count_after_fault(&self) {
        self.after_faults.fetch_add(1, Ordering::SeqCst);
    }

    /// Runs `body` on a thread that is joined when the proxy is dropped, if not before.
    pub(crate) fn spawn(
        self: &Arc<Self>,
        name: &str,
        body: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let shared = Arc::clone(self);
        let run = move || body(&shared);
        let thread = Builder::new().name(name.to_owned()).spawn(run);
        let mut threads = self.threads.lock();
        for ended in threads.extract_if(.., |it| it.is_finished()) {
            let _ = ended.join();
        }
        threads.push(thread.expect("a thread can be started"));
    }

    /// Joins all threads.
    pub(crate) fn join(&self) {
        // One at a time, because a thread that still runs may start another one meanwhile.
        while let Some(thread) = self.next_thread() {
            let _ = thread.join();
        }
    }

    /// Runs `action` for each connection that is open.
    pub(crate) fn for_each_connection(&self, action: impl Fn(&ProxiedConnection)) {
        let connections = self.connections.lock().clone();
        connections
            .iter()
            .filter_map(Weak::upgrade)
            .for_each(|connection| action(&connection));
    }

    fn accept(self: &Arc<Self>, client: TcpStream) {
        let _ = client.set_nodelay(true);
        self.accepted.fetch_add(1, Ordering::SeqCst);
        // Locked before the connection is served, so that `cut_all` finds every served connection.
        let mut connections = self.connections.lock();
        connections.retain(|connection| connection.strong_count() > 0);
        connections.push(Arc::downgrade(&ProxiedConnection::open(client, self)));
    }

    fn next_thread(&self) -> Option<JoinHandle<()>> {
        self.threads.lock().pop()
    }
}

/// The thread that accepts.
pub(crate) struct Acceptor {
    stopped: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Acceptor {
    /// Begins to accept.
    pub(crate) fn start(listener: TcpListener, shared: &Arc<Shared>) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let (stop, shared) = (Arc::clone(&stopped), Arc::clone(shared));
        let accept = move || {
            for client in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    shared.accept(client);
                }
            }
        };
        let thread = Builder::new().name("proxy-accept".into()).spawn(accept);
        let thread = thread.expect("a thread can be started");
        Self { stopped, thread }
    }

    /// Ends the thread, and returns when connects to `port` are refused.
    pub(crate) fn stop(self, port: u16) {
        let is_refused = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err();
        self.stopped.store(true, Ordering::SeqCst);
        // The thread checks whether it has to stop only when a client connects, so connect once.
        let _ = is_refused();
        let _ = self.thread.join();
        // Another test may be starting a process right now. Until its `exec`, that process has a
        // copy of the listener, and connects would still succeed.
        eventually(Duration::from_secs(5), "connects are refused", is_refused);
    }
}

/// Listens on a port that was listened on before.
pub(crate) fn listen_again(port: u16) -> TcpListener {
    let mut bound = None;
    eventually(Duration::from_secs(5), "the port is free again", || {
        bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        bound.is_some()
    });
    bound.expect("just bound")
}
