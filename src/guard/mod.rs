//! A hold in the caller's hands.
//!
//! The guard, by which a thread holds a lock, is here. `several` is the one of several locks, and
//! `watch` the watch, by which other threads observe the hold. `detached` is a hold that belongs to
//! no thread, and `handing_over` has the ways out of a thread.
//! This room may use `session`, `waiting`, `hold` and `base`.

mod handing_over;
mod detached;
mod several;
mod watch;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::hold::{Hold, Unlocked};
use crate::session::Session;
use crate::session::thread_map::Held;

pub use crate::guard::detached::DetachedHold;
pub use crate::guard::several::MultiLockGuard;
pub use crate::guard::watch::LockWatch;

/// A lock that this thread holds, until the guard is dropped or [unlocked](LockGuard::unlock).
///
/// A thread may have several guards of one lock, and drop them in any order. Dropping the last
/// guard releases the lock in Redis: it sends the release and waits for the answer, at most for the
/// response timeout. Dropping a guard never panics, and logs errors. [`unlock`](LockGuard::unlock)
/// returns the error instead.
///
/// A guard stays in the thread that took it: it is neither `Send` nor `Sync`. To go on with the
/// hold in another thread, [`detach`](LockGuard::detach) it; in another process,
/// [`hand_over`](LockGuard::hand_over).
///
/// ```compile_fail,E0277
/// fn to_another_thread(guard: relatch::LockGuard) {
///     std::thread::spawn(move || drop(guard));
/// }
/// ```
///
/// # Is the lock still mine?
///
/// | question | method | what it costs |
/// |---|---|---|
/// | Does this thread hold it, in a function that did not take it? | [`assert_held`](crate::Lock::assert_held), [`current`](crate::Lock::current) | nothing |
/// | May the hold be trusted, by the clock? | [`is_valid`](LockGuard::is_valid); for how long: [`remaining`](LockGuard::remaining) | nothing |
/// | Is it good for a while longer, between two steps of long work? | [`ensure`](LockGuard::ensure) | nothing, or a renewal if too little of the lease is left |
/// | Does Redis say that it is mine, for so long, before a step that cannot be undone? | [`confirm`](LockGuard::confirm) | a renewal: one round trip |
/// | Does Redis say that it is mine, though the lease shall not be extended, or cannot be (`max_hold`, too few replicas)? | [`verify`](LockGuard::verify) | a read: one round trip |
/// | Has another thread to stop when it is lost, or before? | [`watch`](LockGuard::watch), [`on_lost`](crate::Builder::on_lost) | nothing |
/// | Was it mine until the end? | [`unlock`](LockGuard::unlock) | the release |
///
/// While a thread has a guard of a hold that is lost, it takes no other lock: see
/// [`Error::OuterLost`]. So drop a guard that is kept for long, such as a leader's, when its lock
/// is lost.
///
/// A forgotten guard ([`std::mem::forget`]) keeps the lock while its thread lives and for a lease
/// longer: the keeper renews the hold like any other, at most for
/// [`max_hold`](crate::Lock::max_hold). Without renewal, the guard keeps the lock for one lease. If
/// the thread takes the lock again after that lease, it gets [`Error::Lost`].
#[must_use = "the lock is released as soon as the guard is dropped"]
#[clippy::has_significant_drop]
pub struct LockGuard {
    session: Arc<Session>,
    held: Rc<Held>,
    /// Whether `leave_` has run.
    left: bool,
}

impl LockGuard {
    pub(crate) fn new(session: Arc<Session>, held: Rc<Held>) -> LockGuard {
        LockGuard {
            session,
            held,
            left: false,
        }
    }

    fn hold(&self) -> &Hold {
        &self.held.hold
    }

    /// The lock's key, as it was given.
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold().key.name()
    }

    /// The value of the Redis key while this hold lasts: the owner and a nonce.
    ///
    /// All guards of a hold have the same token, and no other hold ever has it. It is not a fencing
    /// token: nothing in two tokens says which is the later one. [`fence`](LockGuard::fence) does.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.hold().token
    }

    /// The fencing token of this hold: larger than that of every earlier hold of this lock. `None`
    /// if the lock is not [`fenced`](crate::Lock::fenced).
    ///
    /// A lease cannot stop a holder that was paused for longer than the lease. The resource can:
    /// send the fence with each write, and let the resource keep the largest one that it has seen,
    /// and refuse smaller ones, and none at all.
    ///
    /// All guards of a hold have the same fence. The next hold's fence is larger, but hardly ever
    /// by one: it is the server's time in microseconds, or one more than the last fence if that is
    /// larger. So it also grows after Redis has lost the counter. It always fits into 53 bits.
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.hold().fence
    }

    /// How many guards of this hold are alive in this thread.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.hold().depth()
    }

    /// Whether this process may still trust the hold. `true` means that no other process can have
    /// the lock, as far as this one knows.
    ///
    /// Compares the clock with the end of the lease. Sends nothing and does not block. The answer
    /// is also right in a process that was stopped and then continues. It turns `false` before
    /// another process can take the lock, unless Redis forgot the key early ([what is not
    /// promised](crate#what-is-not-promised)). `true` may be out of date when the program acts upon
    /// it.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.session.trusts(self.hold())
    }

    /// For how long the hold may still be trusted; zero if it is lost. Sends nothing.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_valid() {
            self.hold().remaining(Moment::now())
        } else {
            Duration::ZERO
        }
    }

    /// Returns `Ok` only if Redis has just said that the lock is this hold's, and at least `span`
    /// of the lease is left by this machine's clock. Call it before a step that cannot be undone.
    ///
    /// Renews the lease, whatever is left of it, and waits for the answer, at most for the response
    /// timeout. So it notices that Redis has forgotten the key (by a flush, a failover), or that
    /// somebody has replaced it. Redis may still forget the key within `span`: what no lease can
    /// prevent, a [fence](LockGuard::fence) can.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the hold can no longer be trusted. The error names the first cause that
    ///   was found.
    /// - [`Error::Unavailable`], [`Error::Refused`]: Redis did not renew the lease, or answered so
    ///   late that less than `span` is left. The hold is as valid as before.
    /// - [`Error::InvalidOption`]: `span` is longer than the lease less 1 % and 2 ms.
    /// - [`Error::InvalidOption`] for `max_hold`: the hold has lasted for nearly as long as
    ///   [`max_hold`](crate::Lock::max_hold) allows, so no lease extends it. Nothing was sent.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn confirm(&self, span: Duration) -> Result<(), Error> {
        self.session.confirm(&self.held.hold, span)
    }

    /// Returns `Ok` only if at least `span` of the lease is left, by this machine's clock. For long
    /// work, between its steps: it costs nothing as long as the lease is renewed.
    ///
    /// If less is left, `ensure` renews the lease now and waits for the answer, at most for the
    /// response timeout. Otherwise it sends nothing, and cannot notice that Redis has forgotten the
    /// key. Before a step that cannot be undone, call [`confirm`](LockGuard::confirm).
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the hold can no longer be trusted. The error names the first cause that
    ///   was found.
    /// - [`Error::Unavailable`], [`Error::Refused`]: the hold can be trusted, but not for `span`,
    ///   and Redis did not renew it.
    /// - [`Error::InvalidOption`]: `span` is longer than the lease less 1 % and 2 ms.
    /// - [`Error::InvalidOption`] for `max_hold`: less than `span` is left, and the hold has lasted for
    ///   nearly as long as [`max_hold`](crate::Lock::max_hold) allows, so no lease extends it.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn ensure(&self, span: Duration) -> Result<(), Error> {
        self.session.ensure(&self.held.hold, span)
    }

    /// Asks Redis whether the key still has this hold's token: with a script, in one
    /// round trip. Extends nothing, so it also answers when [`confirm`](LockGuard::confirm) cannot:
    /// at the end of [`max_hold`](crate::Lock::max_hold), or if too few
    /// [replicas](crate::Builder::replicas) acknowledge a renewal.
    ///
    /// Finds out at once what the next renewal would find out: that the key was deleted, has
    /// another value, or expires too early. Blocks for the answer, at most the connect timeout and
    /// the response timeout together.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the key is gone or has another value. The error names the first cause
    ///   that was found.
    /// - [`Error::Unavailable`], [`Error::Refused`]: Redis did not answer the question. The hold is
    ///   as valid as before.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn verify(&self) -> Result<(), Error> {
        self.session.verify(&self.held.hold)
    }

    /// The lease with which the lock was taken.
    #[cfg(test)]
    pub(crate) fn first_lease(&self) -> Duration {
        self.hold().first_lease.time()
    }

    /// Sets a new lease, renews the hold with it now, and keeps renewing with it.
    ///
    /// Blocks for the answer, at most for the response timeout. A longer lease counts once Redis
    /// has answered; a shorter one counts from the call. But Redis does not shorten the earlier
    /// lease, so after a crash other processes may have to wait until the earlier lease ends.
    /// `set_lease` never creates the key again.
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`]: the lease is too short or too long. Nothing was sent.
    /// - [`Error::InvalidOption`] for `max_hold`: the hold has lasted for nearly as long as
    ///   [`max_hold`](crate::Lock::max_hold) allows, so no lease extends it. Nothing was sent.
    /// - [`Error::Lost`]: the hold can no longer be trusted. The error names the first cause that
    ///   was found.
    /// - [`Error::Unavailable`], [`Error::Refused`]: the hold can be trusted for the rest of its
    ///   lease. The next renewal, if there is one, tries again.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn set_lease(&self, lease: Duration) -> Result<(), Error> {
        self.session.set_lease(&self.held.hold, lease)
    }

    /// A view of the hold for another thread, for example to stop a helper when the lock is lost.
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch::new(Arc::clone(&self.held.hold), self.session.pid())
    }

    /// Drops the guard, and returns the result.
    ///
    /// The last guard of a hold sends the compare-and-delete and waits for its answer, at most for
    /// the [response timeout](crate::Builder::response_timeout). That time includes connecting.
    /// Other guards send nothing.
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: before this call, the lease ran out, or the key was deleted or replaced.
    /// - [`Error::OuterLost`]: this lock is released, but another one, which this thread holds
    ///   around it, was lost.
    /// - [`Error::Unconfirmed`]: no answer came, or the lease ran out while the release was on its
    ///   way. The hold was valid until this call. The key may exist for a while longer.
    /// - [`Error::Forked`]: the process was forked since the lock was taken. Nothing was sent.
    pub fn unlock(mut self) -> Result<Unlocked, Error> {
        let unlocked = self.leave_()?;
        if let Unlocked::StillHeld { .. } = unlocked {
            self.session.trust(self.hold())?;
        }
        Ok(unlocked)
    }

    /// [`unlock`](LockGuard::unlock) for a lock that would be [kept](crate::Lock::keep_at_least), and
    /// is not to be: for a job that has failed, so that another process can try at once.
    ///
    /// If other guards of the hold are alive, the last one keeps nothing either, unless a reentry
    /// asks for that after this call. Sends and blocks as `unlock`, with the same errors.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn run() -> bool { false }
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let nightly = locks.named("nightly").keep_at_least(Duration::from_secs(60));
    /// let guard = nightly.lock()?;
    /// match run() {
    ///     true => guard.unlock()?, // Nobody runs it again within a minute.
    ///     false => guard.unlock_now()?,
    /// };
    /// assert!(nightly.try_lock()?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    #[expect(
        clippy::missing_errors_doc,
        reason = "they are those of `unlock`, which lists them"
    )]
    pub fn unlock_now(self) -> Result<Unlocked, Error> {
        self.hold().keep_nothing();
        self.unlock()
    }

    /// What `unlock` and `drop` share. Returns how deep the lock is still held.
    fn leave_(&mut self) -> Result<Unlocked, Error> {
        self.left = true;
        self.session.leave(&self.held, self.session.one_release())
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if self.left {
            return;
        }
        if let Err(error) = self.leave_() {
            // The code that finds a loss or a release without an answer logs it at a higher level.
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
            .field("owner", &self.hold().owner)
            .field("depth", &self.depth())
            .field("remaining", &self.remaining())
            .finish_non_exhaustive()
    }
}
