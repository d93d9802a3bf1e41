//! A reentrant distributed lock on Redis, for programs that block.
//!
//! A thread takes a named lock, may take it again as often as it likes, and the lock is released in Redis when
//! the outermost hold ends. No async, no runtime.
//!
//! # What is not promised
//!
//! - A lease is a promise by Redis, not by the network. The lease is pushed out [while the lock is held](Lock::renew), but a
//!   process that was paused, or cut off from Redis, for longer than that has lost the lock, and others may have it: use
//!   [`LockGuard::ensure`] before the point of no return, and let the resource itself refuse latecomers where it matters.
//! - Redis can forget: a failover to a replica that had not caught up, an eviction policy other than `noeviction`, a
//!   flush, a restart without persistence, a step of the server's clock. A hold that was renewed once, which is a third of a
//!   lease after it began unless set otherwise, is told of that within milliseconds; before, the first renewal finds out,
//!   and without renewal the release does. The hold is [lost](Error::Lost).
//! - One server: this is not Redlock.
//! - Time that the machine sleeps counts against a lease on Linux, Android and Apple's systems. Elsewhere the clock may stand still
//!   meanwhile, and a hold be trusted for too long.
//! - Resolving a host name is up to the system, and may block for longer than a timeout says. So may, over TLS, a server that
//!   sends an answer one byte at a time: there, a timeout counts from the last byte.
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
//! what came of it. Before what cannot be undone, make sure that enough of the lease is left for it. That is a look at the clock; what
//! Redis has lost meanwhile, [`LockGuard::verify`] asks.
//!
//! ```no_run
//! # fn prepare() {}
//! # fn charge_card() {}
//! # use std::time::Duration;
//! # fn main() -> Result<(), relatch::Error> {
//! # let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
//! let guard = locks.lock("orders:42")?;
//! prepare();
//! guard.ensure(Duration::from_secs(5))?; // by the clock, so much of the lease is left, or it is renewed
//! guard.verify()?; // Redis still knows of it
//! charge_card();
//! guard.unlock()?;
//! # Ok(())
//! # }
//! ```
//!
//! Ask what is held, by whom, and how it goes: [`Lock::holder`], [`LockManager::held`], [`LockManager::stats`]; and be
//! told of losses: [`LockGuard::watch`], [`Builder::on_lost`].
//!
//! # Errors
//!
//! *Busy*, *unreachable* and *lost* are three different answers, everywhere: see [`Error`].
//!
//! # About threads
//!
//! A hold belongs to its thread, and so do its guards. A thread that ends without giving a lock back leaves it to its lease,
//! which is not renewed any more. After a `fork`, the child holds nothing, and its operations say [`Error::Forked`].
//!
//! A thread's locals are dropped when it ends, and one of them may hold a guard or the manager, or take a lock as it is dropped: all of
//! that works, and sends what it has to. But the map in which the thread's holds are kept is such a local itself, and may be gone
//! before. From then on a lock that the thread has is not taken once more but waited for; a lock that it takes is not renewed; and the
//! release of either is [`Error::Unconfirmed`]: the keeper's thread deletes the key or, where the manager goes at the same time, it
//! stands until its lease ends.
//!
//! Threads of the crate's own, per manager: `relatch-pool-0` looks after idle connections (from the start),
//! `relatch-keeper` renews leases and finishes late releases (from the first hold on that is renewed, extended or told of), `relatch-on-lost` calls
//! back (from the first loss on), and `relatch-listen` hears from Redis when a lock may be free or lost (from the first wait for
//! a busy lock, or the first renewal, on). The last three are joined when the last handle goes, guards included.
//!
//! # Waiting
//!
//! A waiter sleeps until Redis says that the lock's key has changed, whoever changed it and however: a release, also by another
//! library, an expiry, a `DEL` by hand, a flush. That takes Redis 6 or later and the rights `+client|id +client|tracking
//! +subscribe &__redis__:invalidate`; without them, or while the connection for it is down, waiters ask again after 1 to 64 ms
//! (or [another limit](Builder::poll_every)), and that is logged once. So it is where a proxy keeps these messages back: before a manager relies on them, it has Redis tell of a
//! change of its own. Word from Redis is a hint and no more: a waiter asks again in any case when the holder's lease
//! ends, and every 10 to 15 seconds.
//!
//! Threads of one process are served in the order in which they asked. They hand a lock on to each other in one round trip, for a
//! few milliseconds on end; then other processes are [let in](Builder::hand_on).
//!
//! Where many processes want one lock, a waiter estimates how many from the holders that it has seen,
//! and sleeps for a few round trips for each of them before it asks, up to a quarter of a second at a
//! time: else each release would cost as many commands as processes wait. A waiter that has seen
//! one other at most asks at once when it is woken, three times out of four. Order between processes is not promised.
//!
//! # Log targets and levels
//!
//! Through the [`log`](https://docs.rs/log) crate. No password, and no whole command, is ever logged.
//!
//! | target | `error` | `warn` | `info` | `debug` |
//! |---|---|---|---|---|
//! | `relatch::acquire` | | an answer that came after the lease | a lock taken over from a dead process | each failed attempt |
//! | `relatch::listener` | | waiters have to poll, once until it works again; it had panicked; it still connects when the last handle goes | it works again | |
//! | `relatch::keeper` | | leases that could not be renewed, at each try; it had panicked | | |
//! | `relatch::lost` | a callback that panics or does not return | each hold that was lost | | |
//! | `relatch::release` | | a release without an answer; a key that is left to its lease | | each failed attempt |
//! | `relatch::force_unlock` | | whose lock was deleted | | |

// The rooms and files in reading order, which is the order of the layers: each uses only those
// below it.
mod installed;
mod builder;
mod manager;
mod lock;
mod request;
mod guard;
mod session;
#[cfg(test)]
mod interleavings;
mod release;
mod acquire;
mod keeping;
mod waiting;
mod hold;
mod store;
mod base;

pub use crate::base::error::{Error, LostCause};
pub use crate::base::holder::Holder;
pub use crate::base::owner::Owner;
pub use crate::base::stats::{Histogram, Stats};
pub use crate::builder::Builder;
pub use crate::guard::LockWatch;
pub use crate::guard::{LockGuard, Unlocked};
pub use crate::hold::HeldLock;
pub use crate::installed::{install, installed, with_lock};
pub use crate::keeping::losses::LostLock;
pub use crate::lock::Lock;
pub use crate::manager::LockManager;

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The code of the guide for people who come from another lock, compiled.
#[cfg(doctest)]
#[doc = include_str!("../docs/coming-from.md")]
struct ComingFrom;
