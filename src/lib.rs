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
//! # A program, step by step
//!
//! Connect once, and share the handle. It is cheap to clone, `Send` and `Sync`.
//! [`LockManager::connect`] takes [the defaults](guide::defaults): a wait for a busy lock has no
//! limit, as that of a mutex, and a holder that hangs keeps its lock. A worker sets both.
//!
//! ```no_run
//! # use std::time::Duration;
//! # fn main() -> Result<(), relatch::Error> {
//! let locks = relatch::LockManager::builder("redis://127.0.0.1/")
//!     .wait(Duration::from_secs(30))
//!     .max_hold(Duration::from_secs(600))
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! Put code that must not run twice at the same time under a lock.
//! [`with_lock`](LockManager::with_lock) takes any closure.
//! [`with_lock_result`](LockManager::with_lock_result) takes a closure that can fail, and passes it
//! the guard.
//!
//! ```no_run
//! # fn prepare() {}
//! # fn charge_card() {}
//! # use std::time::Duration;
//! # use relatch::Error;
//! # fn main() -> Result<(), Error> {
//! # let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
//! locks.with_lock_result("orders:42", |guard| {
//!     prepare();
//!     guard.confirm(Duration::from_secs(5))?; // Redis says: still ours, for 5 s at least
//!     charge_card();
//!     Ok::<_, Error>(())
//! })
//! # }
//! ```
//!
//! Where a closure does not fit, keep the guard that [`lock`](LockManager::lock) returns. Dropping
//! it releases the lock. [`LockGuard::unlock`] also releases it, and returns an error if the lock
//! was lost, or if the release got no answer: then [the work was protected](guide::errors#guards).
//!
//! [`Lock::holder`] says which process has a lock. [`LockManager::held`] lists the locks of this
//! process, and [`LockManager::waiting`] the threads that wait for one. [`LockManager::stats`]
//! counts what the manager did, and [`Builder::warn_after`] logs what lasts long.
//! [`LockGuard::watch`] and [`Builder::on_lost`] report losses.
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
//! # Words
//!
//! - A *guard* is the value that `lock` returns. A *hold* lasts from a thread's first guard of a
//!   lock until its last one is dropped. The *token* is the value of the key in Redis: it names the
//!   thread, and no two holds have the same.
//! - A lock is *busy* if another thread or process has it. A *waiter* is a thread that waits for
//!   it. An *invalidation* is Redis's message that a key has changed: it wakes waiters. A
//!   *hand-off* gives a lock from one thread of a process to the next, without a moment in which it
//!   is free.
//! - The *lease* is how long Redis keeps a lock that is not renewed. The *keeper* is the thread
//!   that knows when leases are due; a *renewer* for each server renews them. A hold is *lost* if
//!   its lease ended before the release, or its key was deleted or replaced.
//! - A *fence* is a number that grows with each hold, by which a resource refuses an old holder.
//!
//! The [guide] has a page for each larger question, among them what a program sees
//! [whatever fails](guide::guarantees), how to [set up Redis](guide::operations), and what to do in
//! [trouble](guide::trouble).
//!
#![doc = include_str!("../docs/not-promised.md")]
//!
//! # Sentinel
//!
//! With a URL such as `redis+sentinel://user:password@s1:26379,s2:26379/mymaster/0`, the locks are
//! on the master that the sentinels know by that name; login and database are those of the master.
//! (The scheme `rediss+sentinel` uses TLS, also to the sentinels.) The sentinels have a
//! [login](Builder::sentinel_login) of their own. After a switch, waiters ask the new
//! master at once, and renewed holds are checked there. A failover can lose a lock:
//! [`Builder::replicas`] closes that. [The page on engines](guide::engines) helps to choose.
//!
//! # Redis Cluster
//!
//! With a URL such as `redis+cluster://user:password@n1:6379,n2:6379`, each lock is on the master
//! that has the slot of its key, and the nodes in the URL know the others. (The scheme
//! `rediss+cluster` uses TLS.) A `redis` URL of one node works, too. When a slot moves, commands
//! follow it, waiters ask its new master at once, and renewed holds are checked there. A node that
//! is silent delays no renewal of other nodes' locks. A failover can lose a lock, as with Sentinel.
//!
//! # Features
//!
//! None is on by default. `tls` adds TLS (by rustls, with the cryptography of *ring*) for URLs that
//! begin with `rediss`. `tls-no-provider` adds the same without any cryptography: the program then
//! gives its own, in `Tls::provider`. `metrics` also gives what [`Stats`] counts to the recorder of
//! the [`metrics`](https://docs.rs/metrics) crate, under the names of [`Stats::prometheus`], summed
//! over all managers of the process. `tracing` makes each wait and each hold a span of the
//! [`tracing`](https://docs.rs/tracing) crate.
//!
//! # About threads
//!
//! A hold belongs to its thread, and so do its guards. If a thread ends without releasing a lock,
//! the keeper stops renewing the lease, and the lease runs out. After a `fork`, the child holds
//! nothing: through a manager of its parent, [`current`](Lock::current) and
//! [`held`](LockManager::held) find nothing, guards are not valid, and each operation that can fail
//! returns [`Error::Forked`].
//!
//! [The page on threads](guide::threads) is about thread pools, rayon, async code, forks, exits and
//! thread-locals.
//!
//! Each manager has threads of its own:
//!
//! | thread | what it does | from when on |
//! |---|---|---|
//! | `relatch-probe` | ends at once: it shows that the system can start threads | the start |
//! | `relatch-pool-0` | looks after idle connections | the start |
//! | `relatch-keeper` | knows when leases are to be renewed, and reports losses | the first hold that is renewed (by default, every hold is) or extended; with [`Builder::on_lost`], the first hold; or the first orphan (a key that a lost answer may have left behind); with [`Builder::warn_after`], the start |
//! | `relatch-renewer`, for each server | renews leases, finishes late releases | the first renewal, or the first orphan |
//! | `relatch-on-lost` | calls [`Builder::on_lost`]'s callback | a loss, until no call is due |
//! | `relatch-log`, one in the process | logs and counts for the other threads, which must not stand still with the program's logger | a line, until none is left |
//! | `relatch-login` | asks [`Builder::credentials`] | each connection, until it returns |
//! | `relatch-listen`, for each server | receives invalidations from Redis | the first wait for a busy lock, or the first renewal |
//! | `relatch-sentinel` | receives the sentinels' reports of another master | with sentinels: the first connection |
//! | `relatch-cluster` | reads the map of the cluster | in a cluster: the first command |
//!
//! Only a cluster has more than one server in this table: each master with locks of this manager.
//! These threads end when the program drops the last handle or guard. The drop [waits](LockManager)
//! for all but the first two and `relatch-login`.
//!
//! # Waiting
//!
//! A waiter sleeps until Redis reports that the lock's key has changed: by a release (also by
//! another library), an expiry, a `DEL` by hand, or a flush. This needs Redis 6 or later and the
//! rights `+client|id +client|tracking +subscribe &__redis__:invalidate`. If these are missing, or
//! the listener's connection is down, waiters poll with pauses of 0.5 to 64 ms ([or another
//! limit](Builder::poll_every)), and the manager logs one warning. Waiters also poll behind a proxy
//! that does not forward invalidations. To detect such a proxy, the manager first changes a key of
//! its own and waits for the invalidation. A waiter never depends on invalidations alone: it also
//! asks when the holder's lease ends, and every 10 to 15 seconds.
//!
//! Threads of one process get a lock in the order in which they asked for it. They hand it off
//! among themselves in one round trip, [for a few milliseconds](Builder::local_handoff). Then other
//! processes have a chance.
//!
//! Between processes there is no order. From the holders that it saw, each waiter estimates how
//! many processes want the lock. Before it asks, it sleeps: for each of these processes, as long as
//! a few round trips take, but at most 250 ms in all. Without this sleep, each release would cost
//! as many commands as there are waiting processes. A woken waiter that saw one other process asks
//! at once three times out of four. A woken waiter that saw none always asks at once.
//!
//! # Log targets and levels
//!
//! relatch logs through the [`log`](https://docs.rs/log) crate. It never logs a password or a whole
//! command.
//!
//! | target | `error` | `warn` | `info` | `debug` |
//! |---|---|---|---|---|
//! | `relatch::acquire` | | an answer that came after the lease | a lock taken over from a dead process | each failed attempt |
//! | `relatch::listener` | | waiters have to poll (logged once, until invalidations come again); the thread panicked, or still connects when the last handle is dropped | invalidations come again | |
//! | `relatch::sentinel` | | no sentinel reports another master (logged once, until one does); the thread panicked, or still connects when the last handle is dropped | another master; reports come again | |
//! | `relatch::cluster` | | no node sends a map (logged once, until one does); the thread panicked, or still asks when the last handle is dropped | a node sends a map again | a node without a map, or with an old one; how many slots have another node |
//! | `relatch::connection` | | | | each new connection: version, mode and role of the server |
//! | `relatch::keeper` | | each try that left leases without renewal, unless Redis refuses it for good; the thread panicked | | |
//! | `relatch::refused` | Redis refuses for good to renew a lease, or to delete the key of a release: once for each | | | |
//! | `relatch::lost` | a callback that panics or does not return | each hold that was lost | | |
//! | `relatch::log` | | how many lines were dropped because the logger was slow | | |
//! | `relatch::slow` | | a wait or a hold that lasts longer than [`Builder::warn_after`] says | | |
//! | `relatch::wait` | | | a wait lasts for 5 s, 10 s, 20 s and so on: who has the lock, and what is left of the lease | a thread is about to sleep until it has a lock; how that wait ended |
//! | `relatch::release` | | a release without an answer; a key that is not deleted and stays until its lease ends | | each failed attempt |
//! | `relatch::force_unlock` | | a lock that was force-unlocked, and its holder | | |

pub mod guide {
    //! The pages of the guide. They are also in the folder `docs` of the
    //! [repository](https://github.com/relatch/relatch).
    //!
    //! | page | what it is about |
    //! |---|---|
    //! | [choosing] | a lock with a lease, or something else; which Redis; when a fence |
    //! | [defaults] | every option, its default, and why |
    //! | [errors] | what to do about each error, and what to tell the user |
    //! | [guarantees] | what a program sees of its locks, whatever fails |
    //! | [threads] | thread pools, rayon, async code, forks and exits |
    //! | [fencing] | how a resource refuses a holder that comes back too late |
    //! | [engines] | one server, Sentinel, replicas, Cluster: what each survives, and how to set it up |
    //! | [managed] | Redis and Valkey as a cloud service, by name |
    //! | [operations] | the Redis user, settings, monitoring, a stuck lock |
    //! | [trouble] | what you see, why, and what to do |
    //! | [testing] | tests without a Redis |
    //! | [coming_from] | from Redisson, Spring, ShedLock, redis-py or `flock` |
    //! | [words] | the words of the docs, the log and the code |
    //!
    //! [What is not promised](crate#what-is-not-promised) is on the first page.

    // Prose names products, such as PostgreSQL.
    #![allow(clippy::doc_markdown)]

    // In front of each page, `guide-links.md` defines its links anew: in `docs`, they lead to
    // files. The first definition of a link counts.

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

// The modules (the rooms, in `docs/words.md`), the top layer first: each uses only those below it.
#[cfg(test)]
mod simulation;
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
