//! A reentrant distributed lock on Redis, for programs that block.
//!
//! ```no_run
//! use relatch::{Error, LockManager};
//!
//! fn main() -> Result<(), Error> {
//!     let locks = LockManager::connect("redis://127.0.0.1/")?;
//!     locks.with_lock_result("orders:42", |_guard| refund(&locks)) // for a closure that can fail
//! }
//!
//! fn refund(locks: &LockManager) -> Result<(), Error> {
//!     // The same thread has the lock already: this sends nothing to Redis.
//!     locks.with_lock("orders:42", || println!("refunded"))
//! }
//! ```
//!
//! A thread takes a named lock and may take it again as often as it likes. The lock is released in
//! Redis when the thread's last guard is dropped. There is no async code and no runtime.
//!
//! [A program, step by step](guide::hello) is where to begin. The [guide] has a page for each
//! larger question, among them [every option](guide::defaults), what a program sees [whatever
//! fails](guide::guarantees), how to [set up Redis](guide::operations), and what to do in
//! [trouble](guide::trouble). The [words](guide::words) are explained there, too.
//!
#![doc = include_str!("../docs/guide-links.md")]
#![doc = include_str!("../docs/calls.md")]
//!
//! # Errors
//!
//! Every method distinguishes *busy*, *unreachable* and *lost*: see [`Error`]. [The page on
//! errors](guide::errors) says what to do about each. Before a program repeats a call that runs a
//! closure, it asks [`Error::body_ran`].
//!
#![doc = include_str!("../docs/not-promised.md")]
//!
//! # Sentinel and Cluster
//!
//! The URL decides: `redis+sentinel://user:password@s1:26379,s2:26379/mymaster/0` leads to the
//! master that the sentinels know by that name, and `redis+cluster://user:password@n1:6379,n2:6379`
//! to the master of each lock's slot. (With `rediss`, both use TLS.) [Engines](guide::engines)
//! helps you choose, and says what a failover does to a lock.
//!
//! # Features
//!
//! None is on by default. `tls` adds TLS (rustls, with *ring* for the cryptography) for URLs that
//! begin with `rediss`. `tls-no-provider` adds the same without any cryptography: the program then
//! supplies its own, in `Tls::provider`. `metrics` also sends the counts of [`Stats`] to the
//! recorder of the [`metrics`](https://docs.rs/metrics) crate, under the names of
//! [`Stats::prometheus`], summed over all managers in the process. `tracing` makes each wait and
//! each hold a span of the [`tracing`](https://docs.rs/tracing) crate.
//!
//! # About threads
//!
//! A hold belongs to its thread, and so do its guards. If a thread exits without releasing a lock,
//! the keeper stops renewing the lease, and the lease runs out. After a `fork`, the child holds
//! nothing: through its parent's manager, [`current`](Lock::current) and
//! [`held`](LockManager::held) find nothing, guards are not valid, and each operation that can fail
//! returns [`Error::Forked`].
//!
//! [Threads](guide::threads) is about thread pools, rayon, async code, forks, exits and
//! thread-locals.
//!
//! [Each manager has threads of its own](guide::running): they renew leases, listen for
//! invalidations and report losses. The same page explains how a waiter waits, and what each log
//! target gets.

pub mod guide {
    //! The pages of the guide. They are also in the folder `docs` of the
    //! [repository](https://github.com/relatch/relatch).
    //!
    //! | to start | |
    //! |---|---|
    //! | [hello] | a program, step by step |
    //! | [which call](crate#which-call) | for what: on the first page |
    //! | [defaults] | every option, its default, and why |
    //! | [errors] | what to do about each error, and what to tell the user |
    //! | [threads] | thread pools, rayon, async code, forks and exits |
    //! | [testing] | tests without a Redis |
    //! | [words] | the words of the docs, the log and the errors |
    //!
    //! | to operate | |
    //! |---|---|
    //! | [operations] | the Redis user, settings, monitoring |
    //! | [running] | a manager's threads, how a waiter waits, log targets and levels |
    //! | [trouble] | on call: a stuck lock; and by symptom: why, and what to do |
    //! | [engines] | one server, Sentinel, replicas, Cluster: what each survives, and how to set it up |
    //! | [managed] | Redis and Valkey as a cloud service, by name |
    //!
    //! | to decide | |
    //! |---|---|
    //! | [choosing] | a lock with a lease, or something else; when a fence |
    //! | [coming_from] | from Redisson, Spring, ShedLock, redis-py, `flock` or a `SETNX` by hand |
    //! | [not promised](crate#what-is-not-promised) | on the first page |
    //! | [guarantees] | what a program sees of its locks, whatever fails |
    //! | [fencing] | how a resource refuses a holder that comes back too late |

    // The prose names products, such as PostgreSQL.
    #![allow(clippy::doc_markdown)]

    // Before each page, `guide-links.md` redefines its links: in `docs`, they lead to files. The
    // first definition of a link counts.

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/hello.md")]
    pub mod hello {}

    pub mod running {
        //! Threads, waiting and log lines in a program that has a manager.
        //!
        //! # Threads
        //!
        //! Each manager has threads of its own:
        //!
        //! | thread | what it does | starts with |
        //! |---|---|---|
        //! | `relatch-probe` | ends at once: it shows that the system can start threads | the manager |
        //! | `relatch-pool-0` | tends idle connections | the manager |
        //! | `relatch-keeper` | knows when each lease is due for renewal, and reports losses | the first hold that is renewed (by default, every hold is) or extended; with [`Builder::on_lost`](crate::Builder::on_lost), the first hold; or the first orphan (a key that a lost answer may have left behind); with [`Builder::warn_after`](crate::Builder::warn_after), the manager |
        //! | `relatch-renewer`, for each server | renews leases, and finishes late releases | the first renewal, or the first orphan |
        //! | `relatch-on-lost` | calls [`Builder::on_lost`](crate::Builder::on_lost)'s callback | a loss, until no call is due |
        //! | `relatch-log`, one in the process | logs and counts for the other threads, which must not hang when the program's logger does | a line, until none is left |
        //! | `relatch-login` | asks [`Builder::credentials`](crate::Builder::credentials) | each connection, until it returns |
        //! | `relatch-listen`, for each server | receives invalidations from Redis | the first wait for a busy lock, or the first renewal |
        //! | `relatch-sentinel` | receives the sentinels' reports of a new master | with sentinels: the first connection |
        //! | `relatch-cluster` | reads the map of the cluster | in a cluster: the first command |
        //!
        //! In this table, only a cluster has more than one server: each master that has locks of
        //! this manager. These threads end when the program drops the last handle or guard. The
        //! drop [waits](crate::LockManager) for all but the first two and `relatch-login`.
        //!
        //! # Waiting
        //!
        //! A waiter sleeps until Redis reports that the lock's key has changed: by a release (also
        //! by another library), an expiry, a `DEL` by hand, or a flush. This needs Redis 6 or later
        //! and the rights `+client|id +client|tracking +subscribe &__redis__:invalidate`. If these
        //! are missing, or the listener's connection is down, waiters poll with pauses of 0.5 to 64
        //! ms ([or another limit](crate::Builder::poll_every)), and the manager logs one warning.
        //! Waiters also poll behind a proxy that does not forward invalidations. To detect such a
        //! proxy, the manager first changes a key of its own and waits for the invalidation. A
        //! waiter never depends on invalidations alone: it also asks when the holder's lease ends,
        //! and every 10 to 15 seconds.
        //!
        //! Threads of one process get a lock in the order in which they asked for it. They hand it
        //! off among themselves in one round trip, [for a few
        //! milliseconds](crate::Builder::local_handoff). Then other processes have a chance.
        //!
        //! Between processes there is no order. From the holders that it has seen, each waiter
        //! estimates how many processes want the lock. Before it asks, it sleeps for a few round
        //! trips per process, but for at most 250 ms in all. Without this sleep, each release would
        //! cost as many commands as there are waiting processes. A woken waiter that saw one other
        //! process asks at once three times out of four. A woken waiter that saw none always asks
        //! at once.
        //!
        //! # Log targets and levels
        //!
        //! relatch logs through the [`log`](https://docs.rs/log) crate. It never logs a password or
        //! a whole command.
        //!
        //! | target | `error` | `warn` | `info` | `debug` |
        //! |---|---|---|---|---|
        //! | `relatch::acquire` | | an answer that came after the lease had ended | a lock taken over from a dead process | each failed attempt |
        //! | `relatch::listener` | | waiters have to poll (logged once, until invalidations come again); the thread panicked, or is still connecting when the last handle is dropped | invalidations come again | |
        //! | `relatch::sentinel` | | no sentinel reports a new master (logged once, until reports come again); the thread panicked, or is still connecting when the last handle is dropped | a new master; reports come again | |
        //! | `relatch::cluster` | | no node sends a map (logged once, until one does); the thread panicked, or is still asking when the last handle is dropped | a node sends a map again | a node without a map, or with an old one; how many slots have moved to another node |
        //! | `relatch::connection` | | | | each new connection: version, mode and role of the server |
        //! | `relatch::keeper` | | each try that left leases unrenewed, unless Redis permanently refuses it; the thread panicked | | |
        //! | `relatch::refused` | Redis permanently refuses to renew a lease, or to delete the key of a release: once for each | | | |
        //! | `relatch::lost` | a callback that panics or does not return | each hold that was lost | | |
        //! | `relatch::log` | | how many lines were dropped because the logger was slow | | |
        //! | `relatch::slow` | | a wait or a hold that lasts longer than [`Builder::warn_after`](crate::Builder::warn_after) says | | |
        //! | `relatch::wait` | | | a wait that has lasted for 5 s, 10 s, 20 s and so on: who has the lock, and how much of the lease is left | a thread is about to sleep until it has a lock; how that wait ended |
        //! | `relatch::release` | | a release without an answer; a key that is not deleted and stays until its lease ends | | each failed attempt |
        //! | `relatch::force_unlock` | | a lock that was force-unlocked, and its holder | | |
    }

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/choosing.md")]
    pub mod choosing {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/guarantees.md")]
    pub mod guarantees {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/defaults.md")]
    pub mod defaults {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/errors.md")]
    pub mod errors {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/threads.md")]
    pub mod threads {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/fencing.md")]
    pub mod fencing {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/engines.md")]
    pub mod engines {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/managed.md")]
    pub mod managed {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/operations.md")]
    pub mod operations {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/trouble.md")]
    pub mod trouble {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/testing.md")]
    pub mod testing {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/coming-from.md")]
    pub mod coming_from {}

    #[doc = include_str!("../docs/guide-links.md")]
    #[doc = include_str!("../docs/words.md")]
    pub mod words {}
}

// The modules, the top layer first: each uses only those below. (`docs/architecture.md` has a map.)
#[cfg(test)]
#[path = "../tests/simulation/mod.rs"]
mod simulation;
#[cfg(test)]
mod interleavings;
mod manager;
mod lock;
mod guard;
mod session;
mod acquire;
mod keeping;
mod waiting;
mod wakeups;
mod hold;
mod store;
mod client;
mod base;

pub use crate::base::error::{BlockedThread, Error, LostCause, SetupCause, SystemCause, TlsCause};
pub use crate::base::options::Replicas;
pub use crate::base::owner::Owner;
pub use crate::base::owner::holder::Holder;
pub use crate::base::stats::{Histogram, Stats};
pub use crate::base::stop::StopHandle;
pub use crate::guard::{DetachedHold, LockGuard, LockWatch, MultiLockGuard};
pub use crate::hold::{HeldLock, LockParcel, Unlocked};
pub use crate::keeping::losses::LostLock;
pub use crate::lock::Lock;
pub use crate::lock::read_write::ReadWriteLock;
pub use crate::lock::several::MultiLock;
pub use crate::manager::LockManager;
pub use crate::manager::builder::Builder;
pub use crate::manager::installed::{
    InstalledForTest, install, install_for_test, installed, named, try_with_lock, with_lock,
    with_lock_result,
};
pub use crate::session::MemoryControls;
pub use crate::session::looking::findings::{Finding, Verdict};
pub use crate::session::looking::health::Health;
pub use crate::session::looking::survey::{Found, Survey, SurveyedLock};
#[cfg(feature = "tls-no-provider")]
pub use crate::store::Tls;
pub use crate::waiting::waiter::WaitingThread;

/// The README's code, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
