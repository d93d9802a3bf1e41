//! A TCP proxy in front of a server that loses, delays and forges what it is told to.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::journal::{Deed, Journal};
use super::link::Link;
use super::{eventually, listen, rights};

/// What happens to one command or its reply.
///
/// A fault of the command (`SwallowCommand`, `CutBeforeForward`, `DelayCommand`, `Answer`) fires when the command
/// arrives; a fault of the reply fires when the server's reply is here, so that the command has been executed. Both
/// fire before the client can see anything of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server executes the command; the reply is lost, the connection stays open.
    DropReply,
    /// The server executes the command; instead of its reply the client gets the end of the connection.
    CutBeforeReply,
    /// The client gets the first half of the reply's bytes, then the end of the connection.
    HalfReply,
    /// The server never gets the command, the client never gets a reply, the connection stays open.
    SwallowCommand,
    /// The server never gets the command; the client gets the end of the connection.
    CutBeforeForward,
    /// The server executes the command; the client gets the reply, and those after it, later.
    DelayReply(Duration),
    /// The server gets the command, and those after it, later: even if the client has closed the connection by then.
    DelayCommand(Duration),
    /// The client gets the reply byte by byte, with a pause after each.
    ByteByByte(Duration),
    /// The server executes the command; the client gets these bytes instead of the reply.
    Replace(Vec<u8>),
    /// The server never gets the command; the client gets these bytes as its reply.
    Answer(Vec<u8>),
}

/// A proxy on 127.0.0.1 that passes everything on until told otherwise; gone, with its threads, when this is dropped.
///
/// A rule's `command` is one or more words, such as `SET` or `EVALSHA 6b1bf486`: it matches a command that begins with
/// these, whatever their case; `*` matches any word. `SET` does not match `SETEX`, nor `EVALSHA 6b` a longer digest.
/// A waiter's attempt, which is a script, is a `SET` here.
///
/// All settings are for connections present and future. Each rule sees every command; if several want to fire for the
/// same one, the one armed first does, and those of [`always`](Self::always) come after all others.
///
/// The connection to the server is opened with the first command that is forwarded. If that fails the client's
/// connection ends.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    port: u16,
    door: Mutex<Option<Door>>,
}

/// The thread that accepts.
struct Door {
    shut: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

/// What all threads of a proxy know.
pub(crate) struct Shared {
    target: u16,
    black_hole: AtomicBool,
    holding: AtomicBool,
    accepted: AtomicU64,
    rules: Mutex<Vec<Rule>>,
    seen: Mutex<Vec<Vec<String>>>,
    journal: Journal,
    fired: Mutex<u64>,
    fired_changed: Condvar,
    after_faults: AtomicU64,
    links: Mutex<Vec<Weak<Link>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// What is to become of a command.
pub(crate) enum Verdict {
    /// It is lost in the black hole.
    Discard,
    /// Nothing special.
    Forward,
    /// A rule fires.
    Spoil(Fault),
}

struct Rule {
    pattern: Vec<String>,
    /// Matches to let pass first.
    skip: u64,
    /// Matches to fire at after that; `None` for all.
    left: Option<u64>,
    fault: Fault,
}

impl Proxy {
    /// Starts a proxy in front of the server at `target_port` of 127.0.0.1.
    pub(crate) fn start(target_port: u16) -> Self {
        let listener = listen();
        let port = listener.local_addr().expect("a bound listener").port();
        let shared = Arc::new(Shared {
            target: target_port,
            black_hole: AtomicBool::new(false),
            holding: AtomicBool::new(false),
            accepted: AtomicU64::new(0),
            rules: Mutex::default(),
            seen: Mutex::default(),
            journal: Journal::default(),
            fired: Mutex::new(0),
            fired_changed: Condvar::new(),
            after_faults: AtomicU64::new(0),
            links: Mutex::default(),
            threads: Mutex::default(),
        });
        let door = Mutex::new(Some(Door::open(listener, &shared)));
        Self { shared, port, door }
    }

    /// The address for a manager, as whom it is to log in included.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}/", rights::login(), self.port)
    }

    /// The address for what the least rights do not cover: see [`Server::bare_url`](super::Server::bare_url).
    pub(crate) fn bare_url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port, the same for as long as this lives.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Applies `fault` to the next `command`.
    pub(crate) fn on(&self, command: &str, fault: Fault) {
        self.arm(command, 0, Some(1), fault);
    }

    /// Applies `fault` to the `nth` `command` from now, the next being the first.
    pub(crate) fn on_nth(&self, command: &str, nth: u64, fault: Fault) {
        self.arm(command, nth - 1, Some(1), fault);
    }

    /// Applies `fault` to each of the next `times` `command`s.
    pub(crate) fn on_times(&self, command: &str, times: u64, fault: Fault) {
        self.arm(command, 0, Some(times), fault);
    }

    /// Applies `fault` to every `command` that no other rule fires for.
    pub(crate) fn always(&self, command: &str, fault: Fault) {
        self.arm(command, 0, None, fault);
    }

    /// Forgets all rules. A fault whose command has arrived already still happens.
    pub(crate) fn clear(&self) {
        self.shared.rules.lock().clear();
    }

    /// While on, nothing passes in either direction, not even the end of a connection; new ones are accepted.
    ///
    /// Commands that arrive meanwhile are lost for good, and so are replies that would be delivered meanwhile. Lost
    /// commands are seen by [`commands`](Self::commands) but not by any rule.
    pub(crate) fn black_hole(&self, on: bool) {
        self.shared.black_hole.store(on, Ordering::SeqCst);
        self.shared.for_each_link(Link::wake);
    }

    /// From now on nothing passes over the connections that are open, in either direction, not even their end: as after a
    /// firewall has dropped them. New connections work.
    pub(crate) fn strand_all(&self) {
        self.shared.for_each_link(Link::strand);
    }

    /// While on, nothing listens, so that connects are refused; present connections stay. Returns when it is so.
    pub(crate) fn refuse(&self, on: bool) {
        let mut door = self.door.lock();
        match door.take() {
            Some(open) if on => open.close(self.port),
            None if !on => *door = Some(Door::open(bind_again(self.port), &self.shared)),
            unchanged => *door = unchanged,
        }
    }

    /// Ends all present connections, on both sides. What a client sends after that is answered with a reset.
    pub(crate) fn cut_all(&self) {
        self.shared.for_each_link(Link::close);
    }

    /// While on, replies are kept, in order, and so is what their faults do; commands pass. All come when turned off.
    pub(crate) fn hold_replies(&self, on: bool) {
        self.shared.holding.store(on, Ordering::SeqCst);
        self.shared.for_each_link(Link::wake);
    }

    /// How many connections were accepted since the start.
    pub(crate) fn connections_accepted(&self) -> u64 {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// How many commands arrived since the start that begin with the words of `command`, as in a rule.
    pub(crate) fn commands(&self, command: &str) -> u64 {
        let pattern = split(command);
        let seen = self.shared.seen.lock();
        seen.iter().map(|it| u64::from(matches(&pattern, it))).sum()
    }

    /// The names of all commands since the start, in order of arrival, in capitals.
    pub(crate) fn log(&self) -> Vec<String> {
        let seen = self.shared.seen.lock();
        let names = seen.iter().filter_map(|words| words.first());
        names.map(|name| name.to_uppercase()).collect()
    }

    /// All commands since the start with their arguments, in order of arrival.
    pub(crate) fn log_in_full(&self) -> Vec<Vec<String>> {
        self.shared.seen.lock().clone()
    }

    /// What the server was sent since the start that can change a lock, and what it answered.
    pub(crate) fn journal(&self) -> Vec<Deed> {
        self.shared.journal.deeds()
    }

    /// How often a fault has happened since the start.
    pub(crate) fn fired(&self) -> u64 {
        *self.shared.fired.lock()
    }

    /// How many commands arrived since the start over a connection on which a fault had struck one before.
    pub(crate) fn commands_after_faults(&self) -> u64 {
        self.shared.after_faults.load(Ordering::SeqCst)
    }

    /// Waits until a fault has happened `count` times since the start; panics after `limit`.
    #[track_caller]
    pub(crate) fn wait_fired(&self, count: u64, limit: Duration) {
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
        let pattern = split(command);
        let rule = Rule { pattern, skip, left, fault };
        let mut rules = self.shared.rules.lock();
        rules.push(rule);
        rules.sort_by_key(|rule| rule.left.is_none());
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.refuse(true);
        self.cut_all();
        // One at a time: those that remain may still start the last of their own.
        while let Some(thread) = self.shared.next_thread() {
            let _ = thread.join();
        }
    }
}

impl Door {
    fn open(listener: TcpListener, shared: &Arc<Shared>) -> Self {
        let shut = Arc::new(AtomicBool::new(false));
        let (told, shared) = (Arc::clone(&shut), Arc::clone(shared));
        let accept = move || {
            for client in listener.incoming() {
                if told.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(client) = client {
                    shared.welcome(client);
                }
            }
        };
        let thread = Builder::new().name("proxy-accept".into()).spawn(accept);
        let thread = thread.expect("a thread can be started");
        Self { shut, thread }
    }

    fn close(self, port: u16) {
        let is_refused = || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err();
        self.shut.store(true, Ordering::SeqCst);
        // Whoever connects next makes it look; it is this one at the latest.
        let _ = is_refused();
        let _ = self.thread.join();
        // A process that another test is just starting may have a copy of the listener until it becomes a program.
        eventually(Duration::from_secs(5), "connects are refused", is_refused);
    }
}

impl Shared {
    /// The port of the server.
    pub(crate) fn target(&self) -> u16 {
        self.target
    }

    /// Where is noted what the server is asked.
    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Whether nothing passes.
    pub(crate) fn is_black_hole(&self) -> bool {
        self.black_hole.load(Ordering::SeqCst)
    }

    /// Whether replies are kept.
    pub(crate) fn is_holding(&self) -> bool {
        self.holding.load(Ordering::SeqCst)
    }

    /// Notes a command that arrived, and decides what is to become of it.
    pub(crate) fn judge(&self, words: &[String]) -> Verdict {
        self.seen.lock().push(words.to_vec());
        if self.is_black_hole() {
            return Verdict::Discard;
        }
        let mut rules = self.rules.lock();
        let mut verdict = Verdict::Forward;
        for rule in rules.iter_mut().filter(|it| matches(&it.pattern, words)) {
            if rule.skip > 0 {
                rule.skip -= 1;
            } else if matches!(verdict, Verdict::Forward) {
                verdict = Verdict::Spoil(rule.fault.clone());
                rule.left = rule.left.map(|left| left - 1);
            }
        }
        rules.retain(|rule| rule.left != Some(0));
        verdict
    }

    /// Notes that a fault happens now.
    pub(crate) fn count_fired(&self) {
        *self.fired.lock() += 1;
        self.fired_changed.notify_all();
    }

    /// Notes a command that arrived over a connection on which a fault had struck.
    pub(crate) fn count_after_fault(&self) {
        self.after_faults.fetch_add(1, Ordering::SeqCst);
    }

    /// Runs `body` on a thread that is joined when the proxy is dropped, if not before.
    pub(crate) fn spawn(self: &Arc<Self>, name: &str, body: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let shared = Arc::clone(self);
        let run = move || body(&shared);
        let thread = Builder::new().name(name.to_owned()).spawn(run);
        let mut threads = self.threads.lock();
        for ended in threads.extract_if(.., |it| it.is_finished()) {
            let _ = ended.join();
        }
        threads.push(thread.expect("a thread can be started"));
    }

    fn welcome(self: &Arc<Self>, client: TcpStream) {
        let _ = client.set_nodelay(true);
        self.accepted.fetch_add(1, Ordering::SeqCst);
        // Locked first: a client that was served is one that `cut_all` finds.
        let mut links = self.links.lock();
        links.retain(|link| link.strong_count() > 0);
        links.push(Arc::downgrade(&Link::open(client, self)));
    }

    fn for_each_link(&self, action: impl Fn(&Link)) {
        let links = self.links.lock().clone();
        links.iter().filter_map(Weak::upgrade).for_each(|link| action(&link));
    }

    fn next_thread(&self) -> Option<JoinHandle<()>> {
        self.threads.lock().pop()
    }
}

fn bind_again(port: u16) -> TcpListener {
    let mut bound = None;
    eventually(Duration::from_secs(5), "the port is free again", || {
        bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        bound.is_some()
    });
    bound.expect("just bound")
}

fn split(command: &str) -> Vec<String> {
    command.split_whitespace().map(String::from).collect()
}

fn matches(pattern: &[String], words: &[String]) -> bool {
    let same = |(want, is): (&String, &String)| want == "*" || want.eq_ignore_ascii_case(is);
    pattern.len() <= words.len() && pattern.iter().zip(words).all(same)
}
