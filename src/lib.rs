//! A reentrant distributed lock on Redis, for programs that block.
//!
//! A thread takes a named lock, may take it again as often as it likes, and the lock is released in Redis when
//! the outermost hold ends. No async, no runtime.
//!
//! # What is not promised
//!
//! - A lease is a promise by Redis, not by the network. The lock lasts for the [lease](Lock::lease), 30 seconds unless
//!   set; work that takes longer loses it. A process that was paused may wake up past the end of its lease:
//!   ask [`LockGuard::is_valid`] before the point of no return.
//! - Redis can forget: a failover to a replica that had not caught up, an eviction policy other than `noeviction`, a
//!   flush, a restart without persistence, a step of the server's clock. The release finds out, and says
//!   [`Error::Lost`].
//! - One server: this is not Redlock.
//! - Resolving a host name is up to the system, and may block for longer than a timeout says. So may a server that sends
//!   an answer one byte at a time: a timeout counts from the last byte.
//!
//! # A program, step by step
//!
//! Connect once, and share the handle: it is cheap to clone, `Send` and `Sync`.
//!
//! ```no_run
//! # fn main() -> Result<(), relatch::Error> {
//! let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
//! # Ok(())
//! # }
//! ```
//!
//! Run what must not run twice under a lock. Functions that lock may call each other: the same thread takes the same
//! lock again, and nothing is sent.
//!
//! ```no_run
//! use relatch::{Error, LockManager};
//!
//! fn refund(locks: &LockManager) -> Result<(), Error> {
//!     locks.with_lock("orders:42", || note(locks, "refunded"))?
//! }
//!
//! fn note(locks: &LockManager, what: &str) -> Result<(), Error> {
//!     locks.with_lock("orders:42", || println!("{what}"))
//! }
//! ```
//!
//! Where a closure does not fit, keep a guard. Dropping it releases the lock; [`LockGuard::unlock`] does the same and tells
//! what came of it.
//!
//! ```no_run
//! # fn charge_card() {}
//! # fn main() -> Result<(), relatch::Error> {
//! # let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
//! let guard = locks.lock("orders:42")?;
//! if guard.is_valid() {
//!     charge_card();
//! }
//! guard.unlock()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//!
//! *Busy*, *unreachable* and *lost* are three different answers, everywhere: see [`Error`].
//!
//! # About threads
//!
//! A hold belongs to its thread, and so do its guards. One thread is started per manager, `relatch-pool-0`, which
//! looks after idle connections. After a `fork`, the child holds nothing, and its operations say [`Error::Forked`].
//!
//! # Log levels
//!
//! Through the [`log`] crate: `warn` for what somebody should look into (a lock that was lost, a release without an
//! answer, a forced unlock), `debug` for each failed attempt. No password, and no whole command, is ever logged.

// The modules in reading order, which is the order of the layers: each uses only those below it.
mod installed;
mod builder;
mod manager;
mod lock;
mod request;
mod guard;
mod upkeep;
mod session;
mod release;
mod acquire;
mod bid;
mod keeper;
mod teller;
mod watch;
mod held_lock;
mod leases;
mod holds;
mod queue;
mod hold;
mod store;
mod stats;
mod machine;
mod backoff;
mod options;
mod key;
mod error;
mod holder;
mod owner;
mod process;
mod clock;

pub use crate::builder::Builder;
pub use crate::error::{Error, LostCause};
pub use crate::guard::{LockGuard, Unlocked};
pub use crate::held_lock::HeldLock;
pub use crate::holder::Holder;
pub use crate::installed::{install, installed, with_lock};
pub use crate::lock::Lock;
pub use crate::manager::LockManager;
pub use crate::owner::Owner;
pub use crate::stats::{Histogram, Stats};
pub use crate::teller::LostHold;
pub use crate::watch::LockWatch;

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
