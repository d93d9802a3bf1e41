//! What the integration tests stand on: real servers, a proxy that misbehaves on request, processes of our own.
//!
//! - [`Server`]: a `redis-server` that belongs to one test, and can be stopped, killed and started again.
//! - [`Proxy`] and [`Fault`]: a TCP proxy that understands RESP well enough to lose exactly the reply it is told to.
//! - [`Fake`] and [`Say`]: a server that is none, and says whatever it is told to.
//! - [`Child`] and [`role`]: the test binary run again as another process.
//! - [`least_rights`]: what the user needs as whom all tests can be run.
//! - [`compile_shim`]: what such a process can be made to believe.
//! - [`eventually`] and [`within`]: the two ways of waiting; no test sleeps.

#![allow(dead_code, unused_imports, reason = "a toolbox: which tools are in use changes with the tests")]

use std::collections::HashSet;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rand::RngExt;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

mod child;
mod fake;
mod journal;
mod link;
mod proxy;
mod resp;
mod rights;
mod server;
mod shim;

pub(crate) use self::child::{Child, role};
pub(crate) use self::fake::{Fake, Say};
pub(crate) use self::journal::{Deed, now};
pub(crate) use self::proxy::{Fault, Proxy};
pub(crate) use self::resp::{CLAIM, by_deed, claim_hash};
pub(crate) use self::rights::{least_rights, rights_to_hear, rights_to_work, user};
pub(crate) use self::server::{Server, server_version};
pub(crate) use self::shim::compile_shim;

/// How often [`eventually`] looks again.
const POLL: Duration = Duration::from_millis(2);

/// Where ports are drawn from: below the ephemeral ports of Linux, macOS and Windows, so that no outgoing connection
/// can take a port while the server or proxy that owns it is down, or, worse, connect to itself.
const PORTS: std::ops::Range<u16> = 10_000..30_000;

/// A signal that [`signal`] can send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sig {
    /// `SIGSTOP`
    Stop,
    /// `SIGCONT`
    Cont,
    /// `SIGKILL`
    Kill,
    /// `SIGTERM`
    Term,
}

/// Waits until `ready` returns true, looking every 2 ms; panics with `what` when `limit` has passed.
#[track_caller]
pub(crate) fn eventually(limit: Duration, what: &str, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !ready() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        thread::sleep(POLL);
    }
}

/// Sets a flag when it is dropped, also by a panic.
///
/// A thread of a scope that works until the flag is set would else outlive a panic of the scope's closure: the scope
/// waits for that thread, and the test hangs with its message.
pub(crate) struct SetOnDrop<'a>(pub(crate) &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs `action` and returns what it returned; panics with `what` if it took longer than `limit`.
///
/// The bound is checked when `action` returns: one that never returns hangs the test.
#[track_caller]
pub(crate) fn within<T>(limit: Duration, what: &str, action: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = action();
    let took = start.elapsed();
    assert!(took <= limit, "took {took:?}, longer than {limit:?}: {what}");
    value
}

/// Returns a key that no other call in this or another process returns.
pub(crate) fn unique_key(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}:{}:{number}", std::process::id())
}

/// Sends `sig` to the process `pid`; panics if there is none.
///
/// Give it only the id of a child that has not been waited for yet, which cannot have become somebody else's.
#[track_caller]
pub(crate) fn signal(pid: u32, sig: Sig) {
    let signal = match sig {
        Sig::Stop => Signal::STOP,
        Sig::Cont => Signal::CONT,
        Sig::Kill => Signal::KILL,
        Sig::Term => Signal::TERM,
    };
    if let Err(error) = kill_process(raw(pid), signal) {
        panic!("cannot send {sig:?} to process {pid}: {error}");
    }
}

/// Stops a child of this process, and returns once it no longer runs: `SIGSTOP` alone only asks.
#[track_caller]
pub(crate) fn freeze(pid: u32) {
    let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    signal(pid, Sig::Stop);
    eventually(Duration::from_secs(5), "the process is stopped", || {
        matches!(waitid(WaitId::Pid(raw(pid)), look), Ok(Some(_)))
    });
}

/// Listens on a port of 127.0.0.1 that nobody else in this process was or will be given.
pub(crate) fn listen() -> TcpListener {
    static TAKEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut taken = TAKEN.lock();
    let taken = taken.get_or_insert_default();
    loop {
        let port = rand::rng().random_range(PORTS);
        if !taken.insert(port) {
            continue;
        }
        if let Ok(listener) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            return listener;
        }
    }
}

/// Returns `pid` as rustix wants it.
fn raw(pid: u32) -> Pid {
    let pid = i32::try_from(pid).expect("a process id is a positive i32");
    Pid::from_raw(pid).expect("a process id is not 0")
}
