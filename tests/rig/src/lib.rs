//! What the tests and benchmarks of relatch share.
//!
//! - [`Server`]: a `redis-server` of the caller's own, which can be paused, killed and restarted.
//! - [`Sentinels`]: a master with replicas, watched by sentinels, which can be failed over and cut
//!   off from each other.
//! - [`Cluster`]: masters and their replicas that share the slots, whose slots can be moved, and
//!   whose masters can be failed over.
//! - [`Proxy`] and [`Fault`]: a TCP proxy that understands enough of RESP to lose exactly the reply
//!   that a test names.
//! - [`Relay`]: a proxy that passes on, holds back, drips or cuts bytes that it does not
//!   understand.
//! - [`Authority`] and [`Identity`]: certificates for a server with TLS.
//! - [`Terminator`]: TLS in front of a proxy, whose faults then strike encrypted connections.
//! - [`FakeServer`] and [`Reply`]: a server that is no Redis, and whose replies a script decides.
//! - [`Worker`] and [`role`]: this program, run again as another process.
//! - [`rights`]: the ACL user with the least rights; all tests can run as that user.
//! - [`compile_preload`]: a library that changes what the C library tells a process.
//! - [`Limit`]: how long a test may take. One that hangs ends the run.
//! - [`eventually`], [`throughout`] and [`within`]: how a test waits. No test only sleeps.

#![allow(
    clippy::missing_errors_doc,
    clippy::missing_panics_doc,
    clippy::must_use_candidate,
    reason = "a fixture that cannot do what it should panics, and says why"
)]

mod bridge;
mod certificates;
mod cluster;
mod fake_server;
mod limit;
mod ports;
mod preload;
mod process;
mod proxy;
mod relay;
mod resp;
pub mod rights;
mod road;
pub mod role;
mod sentinels;
mod server;
mod terminator;
mod wait;
mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub use self::certificates::{Authority, Identity};
pub use self::cluster::{Cluster, ClusterSetup, SlotMove};
pub use self::fake_server::{FakeServer, Reply};
pub use self::limit::Limit;
pub use self::preload::compile_preload;
pub use self::process::{Process, now};
#[cfg(unix)]
pub use self::process::{Sig, freeze, signal};
pub use self::proxy::{Exchange, Fault, Proxy};
pub use self::relay::Relay;
pub use self::resp::{CLAIM, as_set, by_hash, claim_hash};
pub use self::sentinels::{MASTER, Sentinels, Setup};
pub use self::server::{Server, is_server_installed, server_version};
pub use self::terminator::Terminator;
pub use self::wait::{eventually, throughout, time, within};
pub use self::worker::{Worker, is_alone};

/// Longer than anything takes that a test waits for.
pub const LONG: Duration = Duration::from_secs(20);

/// Sets a flag when it is dropped, also by a panic.
///
/// Without this, a panic in the closure of a scope could hang the test: the scope waits for its
/// threads, and a thread that works until the flag is set would never end.
#[derive(Debug)]
pub struct SetOnDrop<'a>(pub &'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Returns a key that no other call in this or another process returns.
pub fn unique_key(prefix: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}:{}:{number}", std::process::id())
}
