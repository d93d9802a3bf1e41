//! The guard: a hold in the caller's hands.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use log::debug;

use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::owner::Owner;
use crate::base::process;
use crate::hold::Hold;
use crate::keeping::thread_map::Held;
use crate::session::Session;

/// A lock that this thread holds, until the guard is dropped or [unlocked](LockGuard::unlock).
///
/// A thread may have several guards of one lock: the lock is released in Redis when the last of them goes, in
/// whatever order they go. Dropping the last one sends the release and waits for its answer, at most for the
/// response timeout; it never panics, and what goes wrong is logged. Call [`unlock`](LockGuard::unlock) to be told.
///
/// A guard stays in the thread that took it: it is neither `Send` nor `Sync`.
///
/// ```compile_fail,E0277
/// fn to_another_thread(guard: relatch::LockGuard) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
///
/// A guard that is forgotten ([`std::mem::forget`]) keeps the lock for as long as its thread lives, and a lease longer: the hold is
/// renewed like any other, until [`max_hold`](crate::Lock::max_hold) if that is set. Without renewal, it keeps the lock for a lease. When
/// that is over, this thread is told [`Error::Lost`] if it takes the lock again, as long as it lives.
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    session: Arc<Session>,
    held: Rc<Held>,
    /// It has been taken off its hold.
    left: bool,
}

/// What [`LockGuard::unlock`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unlocked {
    /// It was the last guard: the lock is released in Redis.
    Released,
    /// Other guards of this thread are alive: the lock is still held.
    StillHeld {
        /// How many guards are left.
        depth: u32,
    },
}

impl LockGuard {
    pub(crate) fn new(session: Arc<Session>, held: Rc<Held>) -> LockGuard {
        LockGuard { session, held, left: false }
    }

    fn hold(&self) -> &Hold {
        &self.held.hold
    }

    /// The lock's key, as it was given.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold().key.name()
    }

    /// Who holds the lock: this host, process and thread.
    #[must_use]
    pub fn owner(&self) -> &Owner {
        &self.hold().owner
    }

    /// The string that stands in Redis for this hold: owner and nonce. The same for all guards of a hold, and
    /// never used again.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.hold().token
    }

    /// How many guards of this hold are alive in this thread.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.hold().depth()
    }

    /// True while nobody else can have the lock, as far as this process knows.
    ///
    /// A comparison of the clock with the end of the lease: nothing is sent, nothing blocks, and it is true to
    /// a process that was stopped and goes on. `false` is certain to come before another process can take the lock, unless
    /// Redis lost the key early ([what is not promised](crate#what-is-not-promised)); `true` may be out of date by the time
    /// it is acted upon.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.session.trusts(self.hold())
    }

    /// How long the hold may still be trusted: zero once it is lost. Nothing is sent.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_valid() { self.hold().remaining(Moment::now()) } else { Duration::ZERO }
    }

    /// Returns only if at least `span` of the lease is left, by this process's clock: the line
    /// before the point of no return.
    ///
    /// Sends nothing if that much is left already; else has the lease pushed out now, and waits for
    /// the answer, at most for the response timeout. Where nothing is sent, a key that Redis has
    /// lost meanwhile (a flush, a failover) goes unnoticed: [`verify`](LockGuard::verify) asks.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the hold can no longer be trusted, with the first cause.
    /// - [`Error::Unavailable`], [`Error::Refused`]: it still can, but not for that long, and Redis would not push it out.
    /// - [`Error::InvalidOption`]: the lease, less 1 % and 2 ms, is shorter than that.
    /// - [`Error::NoThread`], [`Error::Forked`].
    pub fn ensure(&self, span: Duration) -> Result<(), Error> {
        self.session.ensure(&self.held.hold, span)
    }

    /// Asks Redis whether it still knows of the hold: one round trip, `GET` and `PTTL`.
    ///
    /// Finds out at once what a renewal would find out later: a key that was deleted, replaced or cut short. Waits for the answer, at
    /// most the connect timeout and the response timeout together.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: it does not, with the first cause.
    /// - [`Error::Unavailable`], [`Error::Refused`]: Redis did not say; the hold is as valid as it was.
    /// - [`Error::NoThread`], [`Error::Forked`].
    pub fn verify(&self) -> Result<(), Error> {
        self.session.verify(&self.held.hold)
    }

    /// Gives the hold another lease, from now on: this one is pushed out at once, and renewals keep to it.
    ///
    /// Waits for the answer, at most for the response timeout. A longer lease is believed when it was answered, a shorter one
    /// from the call on; in Redis, a lease is never cut short, so after a crash others may still wait for what was left of the
    /// longer one. Never re-creates a key.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`]: a lease as short, or as long, is not let through; nothing was sent.
    /// - [`Error::Lost`]: the hold can no longer be trusted, with the first cause.
    /// - [`Error::Unavailable`], [`Error::Refused`]: it still can, for what is left of it. The next renewal, if
    ///   there is one, tries again.
    /// - [`Error::NoThread`], [`Error::Forked`].
    pub fn extend(&self, lease: Duration) -> Result<(), Error> {
        self.session.extend(&self.held.hold, lease)
    }

    /// An eye on the hold that another thread can keep: to stop a helper when the lock is lost.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch::new(Arc::clone(&self.held.hold), self.session.born)
    }

    /// Gives the guard back and tells what came of it.
    ///
    /// The last guard of a hold sends the compare-and-delete and waits for its answer, at most for the
    /// [response timeout](crate::Builder::response_timeout), connecting included. Others send nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the hold ran out before this call, or its key was deleted or taken.
    /// - [`Error::Unconfirmed`]: no answer came, or the lease ran out while the release was on its
    ///   way. The hold was valid until now; the key may stand a while longer.
    /// - [`Error::Forked`]: the process was forked since the lock was taken; nothing was sent.
    pub fn unlock(mut self) -> Result<Unlocked, Error> {
        match self.leave_()? {
            0 => Ok(Unlocked::Released),
            depth => self.session.trust(self.hold()).map(|()| Unlocked::StillHeld { depth }),
        }
    }

    /// What `unlock` and `drop` share: how deep the lock is still held.
    fn leave_(&mut self) -> Result<u32, Error> {
        self.left = true;
        self.session.leave(&self.held)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if let Err(error) = self.leave_() {
            // A loss, or a release without an answer, is logged louder where it is found out.
            debug!(target: "relatch::release", "dropping the guard of lock {:?}: {error}", self.key());
        }
    }
}

/// As for [`LockManager`](crate::LockManager).
impl UnwindSafe for LockGuard {}
impl RefUnwindSafe for LockGuard {}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("key", &self.key())
            .field("owner", &self.owner())
            .field("depth", &self.depth())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}

/// Watches a hold from any thread: by [`LockGuard::watch`](crate::LockGuard::watch).
///
/// For handing to a helper thread that has to stop when the lock is lost. It keeps nothing locked: when the guards are
/// gone, so is the hold, and the watch says so.
#[derive(Clone, Debug)]
pub struct LockWatch {
    hold: Arc<Hold>,
    born: u32,
}

impl LockWatch {
    pub(crate) fn new(hold: Arc<Hold>, born: u32) -> LockWatch {
        LockWatch { hold, born }
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold.key.name()
    }

    /// As [`LockGuard::is_valid`](crate::LockGuard::is_valid): false too once the lock is being released.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let now = Moment::now();
        self.hold.is_valid(now) && process::id(now) == self.born
    }

    /// Blocks until the hold is lost, at most for so long: how it was lost.
    ///
    /// `None` if it was not lost within that time, and at once if it was given back. Sends nothing; wakes up when the
    /// lease runs out, or as soon as a renewal finds that the key is gone.
    #[must_use = "`None` means that it was not lost"]
    pub fn wait_lost(&self, limit: Duration) -> Option<LostCause> {
        let now = Moment::now();
        if process::id(now) != self.born {
            return None; // A forked child's copy: nobody would ever wake it up.
        }
        self.hold.wait_lost(now.after(limit))
    }
}
