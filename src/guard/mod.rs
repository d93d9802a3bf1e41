//! A hold in the caller's hands.
//!
//! `LockGuard` is here; `asking` has its questions. `several` has the guard of several locks, and
//! `watch` lets other threads observe a hold. `detached` is a hold that belongs to no thread, and
//! `handing_over` has the ways in which a hold leaves its thread. This room may use `session`,
//! `waiting`, `hold` and `base`.

mod handing_over;
mod asking;
mod detached;
mod several;
mod watch;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::sync::Arc;

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
/// guard releases the lock in Redis: it sends the release and waits for the answer, for at most the
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
/// | Does Redis say that it is mine, for a given time, before a step that cannot be undone? | [`confirm`](LockGuard::confirm) | a renewal: one round trip |
/// | Does Redis say that it is mine, if the lease must not or cannot be extended (`max_hold`, too few replicas)? | [`verify`](LockGuard::verify) | a read: one round trip |
/// | Must another thread stop when it is lost, or before? | [`watch`](LockGuard::watch), [`on_lost`](crate::Builder::on_lost) | nothing |
/// | Was it mine until the end? | [`unlock`](LockGuard::unlock) | the release |
///
/// While a thread has a guard of a hold that is lost, it takes no other lock: see
/// [`Error::OuterLost`]. So drop a guard that is kept for a long time, such as a leader's, when its
/// lock is lost.
///
/// A forgotten guard ([`std::mem::forget`]) keeps the lock while its thread lives and for one lease
/// after that: the keeper renews the hold like any other, for at most
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

    pub(crate) fn hold(&self) -> &Hold {
        &self.held.hold
    }

    /// The lock's key, as it was given.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// assert_eq!(guard.key(), "orders:42");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn key(&self) -> &str {
        self.hold().key.name()
    }

    /// The number of the [slot](crate::LockManager::slots) that this guard holds, counted from 1.
    /// `None` for a lock.
    ///
    /// As long as the hold can be trusted, no other holder has the same number.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.slots("mail", 3).lock()?;
    /// assert_eq!((guard.slot(), guard.key()), (Some(1), "{mail}#1"));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn slot(&self) -> Option<u32> {
        self.hold().key.slot().map(u32::from)
    }

    /// The value of the Redis key while this hold lasts: the owner and a nonce.
    ///
    /// All guards of a hold have the same token, and no other hold ever has it. It is not a fencing
    /// token: nothing in two tokens says which is the later one. [`fence`](LockGuard::fence) does.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// let holder = locks.named("orders:42").holder()?.expect("this thread");
    /// assert_eq!(holder.raw, guard.token());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn token(&self) -> &str {
        &self.hold().token
    }

    /// The fencing token of this hold: larger than that of every earlier hold of this lock. `None`
    /// if the lock is not [`fenced`](crate::Lock::fenced).
    ///
    /// A lease cannot stop a holder that was paused for longer than the lease. The resource can:
    /// send the fence with each write, and let the resource keep the largest one seen, and refuse a
    /// write with a smaller one, or with none.
    ///
    /// All guards of a hold have the same fence. The next hold's fence is larger, but hardly ever
    /// by one: it is the server's time in microseconds, or one more than the last fence if that is
    /// larger. So it also grows after Redis has lost the counter. It always fits into 53 bits.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.named("orders:42").fenced(true).lock()?;
    /// let fence = guard.fence().expect("it is fenced");
    /// println!("UPDATE orders SET fence = {fence} WHERE id = 42 AND fence <= {fence}");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn fence(&self) -> Option<u64> {
        self.hold().fence
    }

    /// How many guards of this hold are alive in this thread.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let outer = locks.lock("orders:42")?;
    /// let inner = locks.lock("orders:42")?;
    /// assert_eq!(outer.depth(), 2);
    /// drop(inner);
    /// assert_eq!(outer.depth(), 1);
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.hold().depth()
    }

    /// Drops the guard, and returns the result.
    ///
    /// The last guard of a hold sends the compare-and-delete and waits for its answer, for at most
    /// the [response timeout](crate::Builder::response_timeout). That time includes connecting.
    /// Other guards send nothing.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// match guard.unlock() {
    ///     Ok(unlocked) => println!("{unlocked}"),
    ///     Err(error) if error.is_lost() => println!("somebody else may have worked: {error}"),
    ///     Err(error) => println!("it was mine until the end, so the work counts: {error}"),
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: Redis no longer had this token, or had said so before. Or the lease had
    ///   run out before this call, and no answer came. (If it had run out, and Redis still had the
    ///   token, nobody else had the lock: `Ok`.)
    /// - [`Error::OuterLost`]: this lock is released, but an outer one, which this thread still
    ///   holds, was lost.
    /// - [`Error::Unconfirmed`]: no answer came, or the lease ran out while the release was on its
    ///   way. The hold was valid until this call, so the work counts. Do not repeat it;
    ///   [`with_lock`](crate::Lock::with_lock) succeeds. The key may exist for a while longer.
    /// - [`Error::Forked`]: the process was forked since the lock was taken. Nothing was sent.
    pub fn unlock(mut self) -> Result<Unlocked, Error> {
        let unlocked = self.leave_()?;
        if let Unlocked::StillHeld { .. } = unlocked {
            self.session.trust(self.hold())?;
        }
        Ok(unlocked)
    }

    /// Like [`unlock`](LockGuard::unlock), but without [keeping](crate::Lock::keep_at_least) the
    /// lock: for a job that has failed, so that another process can try at once.
    ///
    /// If other guards of the hold are alive, the last one keeps nothing either, unless a reentry
    /// asks for that after this call. Sends and blocks as `unlock` does, with the same errors.
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
        // (In a forked child, a thread of the parent may have left the hold's mutex locked
        // forever.)
        if self.session.core.own_process(Moment::now()).is_ok() {
            self.hold().keep_nothing();
        }
        self.unlock()
    }

    /// The common part of `unlock` and `drop`. Returns how deep the lock is still held.
    fn leave_(&mut self) -> Result<Unlocked, Error> {
        self.left = true;
        self.session.leave(&self.held)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        if !self.left
            && let Err(error) = self.leave_()
        {
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
