//! One proxied connection: three threads between a client and the server.
//!
//! ```text
//! client --bytes--> [up] --commands--> server --bytes--> [down] --replies--> queue --> [out] --bytes--> client
//!                     \---------------- what each reply is for -------------> queue ---/
//! ```
//!
//! `up` asks the rules about each command and notes, in order, what is to become of its reply; `down` only cuts the
//! server's bytes into replies; `out` brings the two together, and is the only one that writes to the client. So a
//! delayed or held reply never keeps the next command from reaching the server.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::journal::Open;
use super::proxy::{Fault, Shared, Verdict};
use super::resp::{Splitter, by_deed, is_unsolicited, replies_to, words};

/// How long connecting to the server may take.
const CONNECT: Duration = Duration::from_secs(5);

/// A client's connection and, once there was a command to forward, the one to the server that belongs to it.
pub(crate) struct Link {
    client: TcpStream,
    /// A fault has struck one of its commands.
    struck: AtomicBool,
    /// Nothing passes any more, on this connection alone.
    stranded: AtomicBool,
    lane: Mutex<Lane>,
    /// Notified when the lane changes, and when one of the proxy's switches does.
    changed: Condvar,
}

/// What is under way.
#[derive(Default)]
struct Lane {
    server: Option<Arc<TcpStream>>,
    expected: VecDeque<Expected>,
    replies: VecDeque<Vec<u8>>,
    /// The places in the journal that the server's next replies belong to.
    open: VecDeque<Open>,
    server_ended: bool,
    closed: bool,
}

/// What the client is to get next.
enum Expected {
    /// The server's next reply, less or more.
    Reply(Option<Fault>),
    /// These bytes, of which the server knows nothing.
    Answer(Vec<u8>),
}

impl Link {
    /// Serves `client` on threads of its own.
    pub(crate) fn open(client: TcpStream, shared: &Arc<Shared>) -> Arc<Self> {
        let link = Arc::new(Self {
            client,
            struck: AtomicBool::new(false),
            stranded: AtomicBool::new(false),
            lane: Mutex::default(),
            changed: Condvar::new(),
        });
        let (up, out) = (Arc::clone(&link), Arc::clone(&link));
        shared.spawn("proxy-up", move |shared| up.pump_up(shared));
        shared.spawn("proxy-out", move |shared| out.pump_out(shared));
        link
    }

    /// Ends both connections. All threads end soon, whatever they are waiting for.
    pub(crate) fn close(&self) {
        let mut lane = self.lane.lock();
        lane.closed = true;
        // A socket whose other end is gone cannot be shut down, and need not be.
        let _ = self.client.shutdown(Shutdown::Both);
        if let Some(server) = &lane.server {
            let _ = server.shutdown(Shutdown::Both);
        }
        self.changed.notify_all();
    }

    /// From now on nothing passes, not even the end of the connection.
    pub(crate) fn strand(&self) {
        self.stranded.store(true, Ordering::SeqCst);
        self.wake();
    }

    /// Whether nothing passes, for all connections or for this one.
    fn is_hole(&self, shared: &Shared) -> bool {
        shared.is_black_hole() || self.stranded.load(Ordering::SeqCst)
    }

    /// Makes the threads look at the proxy's switches again.
    pub(crate) fn wake(&self) {
        // Taken so that a thread has either not looked yet or is waiting already.
        let _lane = self.lane.lock();
        self.changed.notify_all();
    }

    /// Client to server, until the client ends its side.
    fn pump_up(self: &Arc<Self>, shared: &Arc<Shared>) {
        let mut splitter = Splitter::default();
        let mut buffer = [0; 16 * 1024];
        while let Ok(read @ 1..) = (&self.client).read(&mut buffer) {
            splitter.push(&buffer[..read]);
            for command in splitter.by_ref() {
                if !self.pass_on(&command, shared) {
                    return;
                }
            }
        }
        self.end_upstream(shared);
    }

    /// Deals with one command; returns false when the connection has ended with it.
    fn pass_on(self: &Arc<Self>, command: &[u8], shared: &Arc<Shared>) -> bool {
        let words = by_deed(words(command));
        if self.struck.load(Ordering::SeqCst) {
            shared.count_after_fault();
        }
        let fault = match shared.judge(&words) {
            Verdict::Discard => return true,
            _ if self.is_hole(shared) => return true,
            Verdict::Forward => None,
            Verdict::Spoil(fault) => Some(fault),
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
                shared.count_fired();
                return self.pause(delay) && self.forward(command, &words, None, shared);
            }
            fault => return self.forward(command, &words, fault, shared),
        }
        true
    }

    /// Sends a command to the server; returns false when that is impossible.
    fn forward(
        self: &Arc<Self>,
        command: &[u8],
        words: &[String],
        mut fault: Option<Fault>,
        shared: &Arc<Shared>,
    ) -> bool {
        let Some(server) = self.server(shared) else {
            self.close();
            return false;
        };
        // Before the command, whose reply may be here sooner than this thread.
        let mut open = shared.journal().note(words);
        self.lane.lock().open.extend((0..replies_to(words)).map(|_| open.take()));
        self.expect((0..replies_to(words)).map(|_| Expected::Reply(fault.take())));
        // If it cannot be written, then `down` finds the same and ends the connection.
        let _ = (&*server).write_all(command);
        true
    }

    /// Returns the connection to the server, opening it first if need be: `None` if it cannot be had.
    fn server(self: &Arc<Self>, shared: &Arc<Shared>) -> Option<Arc<TcpStream>> {
        if let Some(server) = &self.lane.lock().server {
            return Some(Arc::clone(server));
        }
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, shared.target()));
        let server = Arc::new(TcpStream::connect_timeout(&address, CONNECT).ok()?);
        server.set_nodelay(true).ok()?;
        let mut lane = self.lane.lock();
        if lane.closed {
            return None;
        }
        lane.server = Some(Arc::clone(&server));
        let (link, from) = (Arc::clone(self), Arc::clone(&server));
        shared.spawn("proxy-down", move |shared| link.pump_down(&from, shared));
        Some(server)
    }

    /// Tells the server that the client has ended, as soon as there is no black hole to keep it from knowing.
    fn end_upstream(&self, shared: &Shared) {
        let mut lane = self.lane.lock();
        while self.is_hole(shared) && !lane.closed {
            self.changed.wait(&mut lane);
        }
        let Some(server) = &lane.server else {
            drop(lane); // `close` takes it.
            return self.close();
        };
        // Only this direction: what was sent before still counts, and a hard close could take it back.
        let _ = server.shutdown(Shutdown::Write);
    }

    /// Server to queue, until the server ends its side.
    fn pump_down(&self, mut server: &TcpStream, shared: &Shared) {
        let mut splitter = Splitter::default();
        let mut buffer = [0; 16 * 1024];
        while let Ok(read @ 1..) = server.read(&mut buffer) {
            splitter.push(&buffer[..read]);
            let mut lane = self.lane.lock();
            for reply in splitter.by_ref() {
                if !is_unsolicited(&reply) {
                    shared.journal().answer(lane.open.pop_front().flatten(), &reply);
                }
                lane.replies.push_back(reply);
            }
            drop(lane);
            self.changed.notify_all();
        }
        self.lane.lock().server_ended = true;
        self.changed.notify_all();
    }

    /// Queue to client, until there is nothing more to come.
    fn pump_out(&self, shared: &Shared) {
        while let Some((reply, fault)) = self.next_reply(shared) {
            if !self.is_hole(shared) {
                self.deliver(&reply, fault, shared);
            }
        }
        self.close();
    }

    /// Waits for the next thing to give to the client; `None` when the connection is at its end.
    fn next_reply(&self, shared: &Shared) -> Option<(Vec<u8>, Option<Fault>)> {
        let mut lane = self.lane.lock();
        loop {
            if lane.closed {
                return None;
            }
            if !shared.is_holding() {
                if let Some(next) = lane.take_next() {
                    return Some(next);
                }
                if lane.server_ended && !self.is_hole(shared) {
                    return None;
                }
            }
            self.changed.wait(&mut lane);
        }
    }

    /// Gives a reply to the client, or what `fault` leaves of it.
    fn deliver(&self, reply: &[u8], fault: Option<Fault>, shared: &Shared) {
        // Counted first: what the client sees of a fault never comes before its count.
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
                if self.pause(delay) {
                    self.write(reply);
                }
            }
            Some(Fault::ByteByByte(gap)) => {
                for byte in reply.chunks(1) {
                    self.write(byte);
                    self.pause(gap);
                }
            }
            Some(Fault::Replace(bytes)) => self.write(&bytes),
            _ => self.write(reply),
        }
    }

    /// Writes to the client. If it is gone, then `up` finds the same and ends the connection in good order.
    fn write(&self, bytes: &[u8]) {
        let _ = (&self.client).write_all(bytes);
    }

    fn expect(&self, more: impl IntoIterator<Item = Expected>) {
        self.lane.lock().expected.extend(more);
        self.changed.notify_all();
    }

    /// Waits for `delay`; returns false if the connection was closed meanwhile, at once.
    fn pause(&self, delay: Duration) -> bool {
        let end = Instant::now() + delay;
        let mut lane = self.lane.lock();
        while !lane.closed && !self.changed.wait_until(&mut lane, end).timed_out() {}
        !lane.closed
    }
}

impl Lane {
    /// Takes what the client is to get next, if it is here.
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
