//! A TCP proxy in front of a server that loses, delays and forges what a test names.

mod connection;
mod journal;
mod rules;
mod shared;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::connection::ProxiedConnection;
pub use self::journal::Exchange;
use self::rules::{matches, split};
use self::shared::{Acceptor, Shared, listen_again};
use crate::ports::listen;
use crate::road;

/// What happens to one command or its reply.
///
/// A fault of the command (`SwallowCommand`, `CutBeforeForward`, `DelayCommand`, `Answer`) fires
/// when the command arrives. A fault of the reply fires when the server's reply has arrived, so
/// that the command has been executed. The client sees no effect of a fault before the fault fires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The server executes the command; the reply is lost, the connection stays open.
    DropReply,
    /// The server executes the command; instead of its reply the client gets the end of the
    /// connection.
    CutBeforeReply,
    /// The client gets the first half of the reply's bytes, then the end of the connection.
    HalfReply,
    /// The server never gets the command, the client never gets a reply, the connection stays open.
    SwallowCommand,
    /// The server never gets the command; the client gets the end of the connection.
    CutBeforeForward,
    /// The server executes the command; the client gets the reply, and those after it, later.
    DelayReply(Duration),
    /// The server gets the command, and those after it, later: even if the client has closed the
    /// connection by then.
    DelayCommand(Duration),
    /// The client gets the reply byte by byte, with a pause after each.
    ByteByByte(Duration),
    /// The server executes the command; the client gets these bytes instead of the reply.
    Replace(Vec<u8>),
    /// The server never gets the command; the client gets these bytes as its reply.
    Answer(Vec<u8>),
}

/// A proxy on 127.0.0.1 that passes everything on until a test says otherwise; gone, with its
/// threads, when this is dropped.
///
/// A rule's `command` names the first arguments of a command, such as `SET` or
/// `EVALSHA * 1 lock:a`, in upper or lower case. `*` matches any argument, and every other word a
/// whole argument: `SET` does not match `SETEX`. A waiter's attempt, which is a script, is a `SET`
/// here, and a renewal is an `EVALSHA`, also if it has the text of the script.
///
/// All settings are for connections present and future. Each rule sees every command, except for
/// those that a [black hole](Self::black_hole) swallows. If several rules could fire for the same
/// command, the one that was armed first does; those of [`always`](Self::always) come after all
/// others.
///
/// What a replica and its master exchange passes as it is, once the replica has sent `PSYNC`: no
/// rule, no black hole and no other setting changes it, but the connection can be ended.
///
/// The connection to the server is opened with the first command that is forwarded. If that fails,
/// the client's connection ends.
pub struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    acceptor: Mutex<Option<Acceptor>>,
}

impl Proxy {
    /// Starts a proxy in front of the server at `target_port` of 127.0.0.1.
    pub fn start(target_port: u16) -> Self {
        let listener = listen();
        let port = listener.local_addr().expect("a bound listener").port();
        let shared = Arc::new(Shared::new(port, target_port));
        let acceptor = Mutex::new(Some(Acceptor::start(listener, &shared)));
        Self {
            shared,
            port,
            acceptor,
        }
    }

    /// The address for a manager, with the login if there is one (see [`rights`](crate::rights)).
    pub fn url(&self) -> String {
        road::url(self.port)
    }

    /// The address without a login: see [`Server::bare_url`](crate::Server::bare_url).
    pub fn bare_url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port, the same for as long as this lives.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Applies `fault` to the next `command`.
    pub fn on(&self, command: &str, fault: Fault) {
        self.arm(command, 0, Some(1), fault);
    }

    /// Applies `fault` to the `nth` `command` from now, the next being the first. (For
    /// `benches/peers`.)
    pub fn on_nth(&self, command: &str, nth: u64, fault: Fault) {
        self.arm(command, nth - 1, Some(1), fault);
    }

    /// Applies `fault` to each of the next `times` `command`s.
    pub fn on_times(&self, command: &str, times: u64, fault: Fault) {
        self.arm(command, 0, Some(times), fault);
    }

    /// Applies `fault` to every `command` that no other rule fires for.
    pub fn always(&self, command: &str, fault: Fault) {
        self.arm(command, 0, None, fault);
    }

    /// Forgets all rules. A fault whose command has arrived already still happens.
    pub fn clear(&self) {
        self.shared.rules.lock().clear();
    }

    /// While on, nothing passes in either direction, not even the end of a connection; new
    /// connections are accepted.
    ///
    /// Commands that arrive meanwhile are lost for good, and so are replies that would be delivered
    /// meanwhile. Lost commands are seen by [`commands`](Self::commands) but not by any rule.
    pub fn black_hole(&self, on: bool) {
        self.shared.black_hole.store(on, Ordering::SeqCst);
        self.shared.for_each_connection(ProxiedConnection::wake);
    }

    /// While on, nothing listens, so that connects are refused; present connections stay. Returns
    /// when the change has taken effect.
    pub fn refuse(&self, on: bool) {
        let mut acceptor = self.acceptor.lock();
        match acceptor.take() {
            Some(running) if on => running.stop(self.port),
            None if !on => *acceptor = Some(Acceptor::start(listen_again(self.port), &self.shared)),
            unchanged => *acceptor = unchanged,
        }
    }

    /// Ends all present connections, on both sides. What a client sends after that is answered with
    /// a reset.
    pub fn cut_all(&self) {
        self.shared.for_each_connection(ProxiedConnection::close);
    }

    /// While on, replies are held, in order, and their faults do not fire; commands pass. All
    /// replies are delivered when this is turned off.
    pub fn hold_replies(&self, on: bool) {
        self.shared.holding.store(on, Ordering::SeqCst);
        self.shared.for_each_connection(ProxiedConnection::wake);
    }

    /// Ends the delays of commands and replies that have [fired](Self::wait_fired).
    pub fn end_delays(&self) {
        self.shared.delays_ended.fetch_add(1, Ordering::SeqCst);
        self.shared.for_each_connection(ProxiedConnection::wake);
    }

    /// While on, the messages of subscriptions that arrive from the server are lost. Replies pass.
    pub fn lose_messages(&self, on: bool) {
        self.shared.loses_messages.store(on, Ordering::SeqCst);
    }

    /// How many connections were accepted since the start.
    pub fn connections_accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many commands that match the pattern `command` (as in a rule) have arrived since the
    /// start.
    pub fn commands(&self, command: &str) -> u64 {
        let pattern = split(command);
        let seen = self.shared.seen.lock();
        seen.iter().map(|it| u64::from(matches(&pattern, it))).sum()
    }

    /// The names of all commands since the start, in order of arrival, in capitals.
    pub fn log(&self) -> Vec<String> {
        let seen = self.shared.seen.lock();
        let names = seen.iter().filter_map(|args| args.first());
        names.map(|name| name.to_uppercase()).collect()
    }

    /// All commands since the start with their arguments, in order of arrival.
    pub fn log_in_full(&self) -> Vec<Vec<String>> {
        self.shared.seen.lock().clone()
    }

    /// The commands since the start that can change a lock and were forwarded to the server, with
    /// the server's replies.
    pub fn journal(&self) -> Vec<Exchange> {
        self.shared.journal.exchanges()
    }

    /// How often a fault has happened since the start.
    pub fn fired(&self) -> u64 {
        *self.shared.fired.lock()
    }

    /// How many commands arrived since the start over a connection on which a fault had happened
    /// before.
    pub fn commands_after_faults(&self) -> u64 {
        self.shared.after_faults.load(Ordering::SeqCst)
    }

    /// Waits until a fault has happened `count` times since the start; panics after `limit`.
    #[track_caller]
    pub fn wait_fired(&self, count: u64, limit: Duration) {
        let end = Instant::now() + limit;
        let mut fired = self.shared.fired.lock();
        while *fired < count {
            let timeout = self.shared.fired_changed.wait_until(&mut fired, end);
            assert!(
                *fired >= count || !timeout.timed_out(),
                "{fired} of {count} faults within {limit:?}; commands: {:?}",
                self.log()
            );
        }
    }

    fn arm(&self, command: &str, skip: u64, left: Option<u64>, fault: Fault) {
        self.shared.rules.lock().arm(command, skip, left, fault);
    }
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse(true);
        self.cut_all();
        self.shared.join();
    }
}
