//! One proxied connection: three threads between a client and the server.
//!
//! ```text
//! client --bytes--> [up] --commands--> server --bytes--> [down] --replies--> queue --> [out]
//!                     \---------------- what each reply is for -------------> queue ---/  |
//! client <------------------------------------ bytes ------------------------------------/
//! ```
//!
//! `up` asks the rules about each command and notes, in order, what is to happen to its reply;
//! `down` cuts the server's bytes into replies; `out` matches these notes with the replies, and is
//! the only thread that writes to the client. So a reply that is delayed or held never keeps the
//! next command from the server.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::Fault;
use super::journal::Open;
use super::rules::Decision;
use super::shared::Shared;
use crate::resp::{Splitter, args, as_set, by_hash, is_unsolicited, replies_to};
use crate::road;

/// How long connecting to the server may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A client's connection and, once there was a command to forward, its connection to the server.
pub(crate) struct ProxiedConnection {
    client: TcpStream,
    /// Whether a fault has struck one of its commands.
    struck: AtomicBool,
    /// Whether the client is a replica, which has asked for the stream of all changes. That stream
    /// has no replies, and not even whole frames: what is left passes as it is.
    is_replica: AtomicBool,
    pending: Mutex<Pending>,
    /// Notified when `pending` or one of the proxy's switches changes.
    changed: Condvar,
}

/// The replies that are under way.
#[derive(Default)]
struct Pending {
    server: Option<Arc<TcpStream>>,
    expected: VecDeque<Expected>,
    replies: VecDeque<Vec<u8>>,
    /// The places in the journal for the server's next replies.
    open: VecDeque<Open>,
    server_ended: bool,
    closed: bool,
}

/// What the client is to get next.
enum Expected {
    /// The server's next reply, or what a fault makes of it.
    Reply(Option<Fault>),
    /// These bytes, which the server did not send.
    Answer(Vec<u8>),
}

impl ProxiedConnection {
    /// Serves `client` on threads of its own.
    pub(crate) fn open(client: TcpStream, shared: &Arc<Shared>) -> Arc<Self> {
        let connection = Arc::new(Self {
            client,
            struck: AtomicBool::new(false),
            is_replica: AtomicBool::new(false),
            pending: Mutex::default(),
            changed: Condvar::new(),
        });
        let (up, out) = (Arc::clone(&connection), Arc::clone(&connection));
        shared.spawn("proxy-up", move |shared| up.pump_up(shared));
        shared.spawn("proxy-out", move |shared| out.pump_out(shared));
        connection
    }

    /// Ends both connections. All threads end soon, even those that wait for something.
    pub(crate) fn close(&self) {
        let mut pending = self.pending.lock();
        pending.closed = true;
        // If the other end is gone, shutting down fails; then it is not needed.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &pending.server {
            let _ = server.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// Makes the threads check the proxy's switches again.
    pub(crate) fn wake(&self) {
        // Threads check the switches and begin to wait under this lock. Without it, the
        // notification could come between a thread's check and its wait. Then it would be lost, and
        // the thread would sleep on.
        let _pending = self.pending.lock();
        self.changed.notify_all();
    }

    /// Passes commands from the client to the server, until the client closes its side.
    fn pump_up(self: &Arc<Self>, shared: &Arc<Shared>) {
        let mut splitter = Splitter::default();
        let mut buffer = [0; 16 * 1024];
        while let Ok(read @ 1..) = (&self.client).read(&mut buffer) {
            if self.is_replica() {
                self.write_up(&buffer[..read]);
                continue;
            }
            splitter.push(&buffer[..read]);
            for command in splitter.by_ref() {
                if !self.pass_on(&command, shared) {
                    return;
                }
            }
        }
        self.end_upstream(shared);
    }

    /// Deals with one command; returns false if no further command can be passed on.
    fn pass_on(self: &Arc<Self>, command: &[u8], shared: &Arc<Shared>) -> bool {
        let args = by_hash(as_set(args(command)));
        if args
            .first()
            .is_some_and(|name| name.eq_ignore_ascii_case("PSYNC"))
        {
            self.is_replica.store(true, Ordering::SeqCst);
            return self.server(shared).is_some() && self.write_up(command);
        }
        if let Some(reply) =
            road::of_cluster(&args, shared.port).filter(|_| !shared.is_black_hole())
        {
            // No test counts this command, and no fault strikes it.
            self.expect([Expected::Answer(reply)]);
            return true;
        }
        if self.struck.load(Ordering::SeqCst) {
            shared.count_after_fault();
        }
        let fault = match shared.decide(&args) {
            Decision::Discard => return true,
            _ if shared.is_black_hole() => return true,
            Decision::Forward => None,
            Decision::Spoil(fault) => Some(fault),
        };
        self.struck.fetch_or(fault.is_some(), Ordering::SeqCst);
        match fault {
            Some(Fault::SwallowCommand) => shared.count_fired(),
            Some(Fault::CutBeforeForward) => {
                shared.count_fired();
                self.close();
                return false;
            }
            Some(Fault::Answer(bytes)) => {
                shared.count_fired();
                self.expect([Expected::Answer(bytes)]);
            }
            Some(Fault::DelayCommand(delay)) => {
                let ended = shared.delays_ended();
                shared.count_fired();
                return self.pause(delay, || shared.delays_ended() > ended)
                    && self.forward(command, &args, None, shared);
            }
            fault => return self.forward(command, &args, fault, shared),
        }
        true
    }

    /// Sends a command to the server; returns false when that is impossible.
    fn forward(
        self: &Arc<Self>,
        command: &[u8],
        args: &[String],
        mut fault: Option<Fault>,
        shared: &Arc<Shared>,
    ) -> bool {
        let Some(server) = self.server(shared) else {
            self.close();
            return false;
        };
        // Noted before the command is sent: its reply may arrive before this thread goes on.
        let mut open = shared.journal.note(args);
        self.pending
            .lock()
            .open
            .extend((0..replies_to(args)).map(|_| open.take()));
        self.expect((0..replies_to(args)).map(|_| Expected::Reply(fault.take())));
        // If this fails, `down` sees the same error and ends the connection.
        let _ = (&*server).write_all(command);
        true
    }

    /// Whether the client is a replica.
    fn is_replica(&self) -> bool {
        self.is_replica.load(Ordering::SeqCst)
    }

    /// Sends bytes of a replica to the server; returns false if that fails.
    fn write_up(&self, bytes: &[u8]) -> bool {
        let server = self.pending.lock().server.clone();
        server.is_some_and(|server| (&*server).write_all(bytes).is_ok())
    }

    /// Returns the connection to the server, opening it first if need be; `None` if that fails.
    fn server(self: &Arc<Self>, shared: &Arc<Shared>) -> Option<Arc<TcpStream>> {
        if let Some(server) = &self.pending.lock().server {
            return Some(Arc::clone(server));
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, shared.target));
        let server = Arc::new(TcpStream::connect_timeout(&address, CONNECT).ok()?);
        server.set_nodelay(true).ok()?;
        let mut pending = self.pending.lock();
        if pending.closed {
            return None;
        }
        pending.server = Some(Arc::clone(&server));
        let (connection, from) = (Arc::clone(self), Arc::clone(&server));
        shared.spawn("proxy-down", move |shared| {
            connection.pump_down(&from, shared);
        });
        Some(server)
    }

    /// Passes the end of the client's stream on to the server, once no black hole holds it back.
    fn end_upstream(&self, shared: &Shared) {
        let mut pending = self.pending.lock();
        while shared.is_black_hole() && !pending.closed {
            self.changed.wait(&mut pending);
        }
        let Some(server) = &pending.server else {
            drop(pending); // `close` takes this lock.
            return self.close();
        };
        // Closes only this direction: a hard close could discard what was sent before.
        let _ = server.shutdown(Shutdown::Write);
    }

    /// Passes replies from the server to the queue, until the server closes its side.
    fn pump_down(&self, mut server: &TcpStream, shared: &Shared) {
        let mut splitter = Splitter::default();
        let mut buffer = [0; 16 * 1024];
        while let Ok(read @ 1..) = server.read(&mut buffer) {
            if self.is_replica() {
                self.write(&buffer[..read]);
                continue;
            }
            splitter.push(&buffer[..read]);
            let mut pending = self.pending.lock();
            for reply in splitter.by_ref() {
                let is_message = is_unsolicited(&reply);
                if is_message && shared.loses_messages.load(Ordering::SeqCst) {
                    continue;
                }
                if !is_message {
                    shared
                        .journal
                        .answer(pending.open.pop_front().flatten(), &reply);
                }
                pending.replies.push_back(reply);
            }
            drop(pending);
            self.changed.notify_all();
        }
        self.pending.lock().server_ended = true;
        self.changed.notify_all();
    }

    /// Passes replies from the queue to the client, until nothing more can come.
    fn pump_out(&self, shared: &Shared) {
        while let Some((reply, fault)) = self.next_reply(shared) {
            if !shared.is_black_hole() {
                self.deliver(&reply, fault, shared);
            }
        }
        self.close();
    }

    /// Waits for the next reply for the client; `None` when the connection is at its end.
    fn next_reply(&self, shared: &Shared) -> Option<(Vec<u8>, Option<Fault>)> {
        let mut pending = self.pending.lock();
        loop {
            if pending.closed {
                return None;
            }
            if !shared.is_holding() {
                if let Some(next) = pending.take_next() {
                    return Some(next);
                }
                if pending.server_ended && !shared.is_black_hole() {
                    return None;
                }
            }
            self.changed.wait(&mut pending);
        }
    }

    /// Gives a reply to the client, or what `fault` leaves of it.
    fn deliver(&self, reply: &[u8], fault: Option<Fault>, shared: &Shared) {
        let ended = shared.delays_ended();
        // Counted first: a client that has seen the fault can rely on its count.
        if fault.is_some() {
            shared.count_fired();
        }
        match fault {
            Some(Fault::DropReply) => {}
            Some(Fault::CutBeforeReply) => self.close(),
            Some(Fault::HalfReply) => {
                self.write(&reply[..reply.len() / 2]);
                self.close();
            }
            Some(Fault::DelayReply(delay)) => {
                if self.pause(delay, || shared.delays_ended() > ended) {
                    self.write(reply);
                }
            }
            Some(Fault::ByteByByte(gap)) => {
                for byte in reply.chunks(1) {
                    self.write(byte);
                    self.pause(gap, || false);
                }
            }
            Some(Fault::Replace(bytes)) => self.write(&bytes),
            _ => self.write(reply),
        }
    }

    /// Writes to the client. If the client is gone, `up` sees the same error and ends the
    /// connection.
    fn write(&self, bytes: &[u8]) {
        let _ = (&self.client).write_all(bytes);
    }

    fn expect(&self, more: impl IntoIterator<Item = Expected>) {
        self.pending.lock().expected.extend(more);
        self.changed.notify_all();
    }

    /// Waits for `delay`, or until `is_ended`; returns false, at once, when the connection is
    /// closed meanwhile.
    fn pause(&self, delay: Duration, is_ended: impl Fn() -> bool) -> bool {
        let end = Instant::now() + delay;
        let mut pending = self.pending.lock();
        while !pending.closed
            && !is_ended()
            && !self.changed.wait_until(&mut pending, end).timed_out()
        {}
        !pending.closed
    }
}

impl Pending {
    /// Takes what the client is to get next, if that has arrived.
    fn take_next(&mut self) -> Option<(Vec<u8>, Option<Fault>)> {
        if self.replies.front().is_some_and(|it| is_unsolicited(it)) {
            return Some((self.replies.pop_front()?, None));
        }
        match self.expected.pop_front() {
            Some(Expected::Answer(bytes)) => Some((bytes, None)),
            Some(Expected::Reply(fault)) if self.replies.is_empty() => {
                self.expected.push_front(Expected::Reply(fault));
                None
            }
            Some(Expected::Reply(fault)) => Some((self.replies.pop_front()?, fault)),
            None => Some((self.replies.pop_front()?, None)),
        }
    }
}
