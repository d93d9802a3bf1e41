//! A named lock.
//!
//! [`Lock`] and how it is taken are here; `asking` says whether this thread has it, `options` has
//! the setters of its options, `operators` what an operator needs to look at other holders,
//! `several` has locks that are taken together, and `read_write` has locks with readers and a
//! writer. This room may use `guard`, `session`, `hold` and `base`.

mod asking;
mod operators;
mod options;
pub(crate) mod read_write;
pub(crate) mod several;
pub(crate) mod request;

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::key::{Name, UncheckedKey};
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::guard::LockGuard;
use crate::hold::LockParcel;
use crate::lock::request::Request;
use crate::session::Session;

/// A named lock, with options of its own.
///
/// [`LockManager::named`](crate::LockManager::named) returns one. A `Lock` is cheap to clone and
/// holds nothing by itself. Two `Lock`s with one name, from one manager, are the same lock.
///
/// ```
/// use std::time::Duration;
///
/// # fn report() {}
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::in_memory();
/// let (lease, wait) = (Duration::from_secs(60), Duration::from_secs(5));
/// let nightly = locks.named("nightly").lease(lease).wait(wait);
/// nightly.with_lock(|| report())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is locked"]
pub struct Lock {
    session: Arc<Session>,
    key: UncheckedKey,
    options: Options,
    /// Ends waits for this lock.
    stop: Option<StopHandle>,
}

impl Lock {
    pub(crate) fn new(session: Arc<Session>, name: &str) -> Lock {
        let key = UncheckedKey::new(&session.core.settings.prefix, name);
        Lock::with_key(session, key)
    }

    /// A set of slots: see [`LockManager::slots`](crate::LockManager::slots).
    pub(crate) fn slots(session: Arc<Session>, name: &str, count: usize) -> Lock {
        let key = UncheckedKey::of_slots(&session.core.settings.prefix, name, count);
        Lock::with_key(session, key)
    }

    fn with_key(session: Arc<Session>, key: UncheckedKey) -> Lock {
        let options = session.core.settings.options;
        Lock {
            session,
            key,
            options,
            stop: None,
        }
    }

    /// The lock's key.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// assert_eq!(locks.named("orders:42").key(), "orders:42");
    /// ```
    #[must_use]
    pub fn key(&self) -> &str {
        self.key.name()
    }

    /// Takes the lock, and blocks while it is busy, for [`wait`](Lock::wait) at most. Without that
    /// limit, the thread waits until the lock is free, or until an error ends the wait, such as [an
    /// outage](crate::Builder::tolerate_outage) that lasts too long.
    ///
    /// A thread that has the lock already gets another guard at once, and nothing is sent.
    /// Otherwise the threads of this manager get the lock in the order in which they asked for it.
    /// The first of them asks Redis:
    ///
    /// 1. `SET key token NX PX lease`. If the lock is free, that is all.
    /// 2. If the lock is busy: `CLIENT TRACKING` (once the manager receives invalidations) and, in
    ///    the same round trip, a script that does the `SET` again and, if that fails, `GET` and
    ///    `PTTL`.
    /// 3. The same script again when an invalidation of the key arrives, when the holder's lease
    ///    ends, and every 10 to 15 seconds.
    ///
    /// A thread that has lately seen other processes hold the lock begins with the script, and
    /// sleeps a little before each try. A thread that receives no invalidations (see
    /// [Waiting](crate::guide::running#waiting)) polls with growing pauses of up to 64 ms, or
    /// [another limit](crate::Builder::poll_every).
    ///
    /// If two threads of a process each hold a lock and wait for the lock of the other, one of them
    /// gets [`Error::WouldDeadlock`] at once: the one whose limit would come first or, without
    /// limits, the one that was last to begin waiting. Between two processes, nobody knows of both
    /// waits, and they last forever, because both locks are renewed. A limited [`wait`](Lock::wait)
    /// or [`max_hold`](Lock::max_hold) ends such a deadlock.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.named("orders:42").lock()?;
    /// println!("alone, as {}", guard.token());
    /// guard.unlock()?; // or the end of the scope
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Timeout`]: the wait ended before this thread got the lock. The error names the
    ///   holder, if an answer from Redis did. If the deadline cut the last attempt short, the error
    ///   has a source.
    /// - [`Error::Lost`]: this thread has the lock already, but its hold is lost. The depth is
    ///   unchanged. Or this manager's `force_unlock` deleted the key while this call was still
    ///   taking the lock.
    /// - [`Error::OuterLost`]: this thread holds a different lock, and has lost it. A loss during
    ///   the wait ends the wait.
    /// - [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`]: Redis gave no answer, or
    ///   refused.
    /// - [`Error::NotALock`]: the Redis key holds a value that is not a string, or has held the
    ///   same string for 250 ms and never expires. If that string is a token of this crate, the
    ///   next renewal of its holder sets an expiry again. So `lock` waits for half of this lock's
    ///   lease if that is longer than 250 ms.
    /// - [`Error::AlreadyHeld`]: this thread has the lock already, and it is not
    ///   [`reentrant`](Lock::reentrant).
    /// - [`Error::WouldDeadlock`]: the holder waits for a lock of this thread, directly or through
    ///   others. Or this thread has the lock already, through another manager.
    /// - [`Error::Stopped`]: [`stopped_by`](Lock::stopped_by), or a
    ///   [shutdown](crate::LockManager::shutdown).
    /// - [`Error::NoFence`]: the lock is meant to be [`fenced`](Lock::fenced), but cannot be.
    /// - [`Error::InvalidKey`], [`Error::InvalidOption`], [`Error::DepthOverflow`],
    ///   [`Error::Forked`], [`Error::System`].
    pub fn lock(&self) -> Result<LockGuard, Error> {
        self.request().lock()
    }

    /// Takes the lock if it is free now. `Ok(None)` means that it is busy.
    ///
    /// **`if lock.try_lock()?.is_some() { .. }` runs its block without the lock**: the guard is
    /// dropped before the block begins, and no lint says so. Write `if let Some(_guard) =
    /// lock.try_lock()? { .. }` or, better, [`try_with_lock`](Lock::try_with_lock).
    ///
    /// Sends one `SET` and, if the lock is busy, a script that says which process has it (`GET` and
    /// `PTTL`). Sends nothing if another thread of this manager has the lock. If another thread of
    /// this manager is waiting for it, that thread asks. Blocks only for the answers: at most the
    /// connect timeout and the response timeout together (100 ms more if the lock is given back
    /// because of an error). If the key never expires, the thread looks at it again after a quarter
    /// of a second, since the holder's renewal may set an expiry in the meantime. (If the two
    /// timeouts are shorter, such a key is just busy.)
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// if let Some(_guard) = locks.named("orders:42").try_lock()? {
    ///     println!("it was free, and is mine until the end of this block");
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock`](Lock::lock). `Timeout` only if nobody knows whether the lock is busy: no
    /// pooled connection was free to ask Redis.
    pub fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.request().try_lock_for(Duration::ZERO)
    }

    /// Takes the lock, waiting for `limit` at most. `Ok(None)` means that it was busy until then.
    ///
    /// **Keep the guard in a variable with a name**, as for [`try_lock`](Lock::try_lock): a block
    /// after `.is_some()` runs without the lock.
    ///
    /// The limit covers each wait: for other threads, for a connection, and for Redis. (It may take
    /// 100 ms more if the lock is given back because of an error.) Zero is
    /// [`try_lock`](Lock::try_lock).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// match locks.named("orders:42").try_lock_for(Duration::from_secs(1))? {
    ///     Some(_guard) => println!("mine until the end of this arm"),
    ///     None => println!("busy for a second"),
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`lock`](Lock::lock). `Timeout` only if nobody knows whether the lock was busy: no
    /// pooled connection was free, or Redis had less than 20 ms to answer (100 ms if it had
    /// answered this thread before). [`Error::WouldDeadlock`] stays an error and does not become
    /// `Ok(None)`: asking again would not help as long as this thread keeps what it holds.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        self.request().try_lock_for(limit)
    }

    /// Takes over a lock that its holder has [handed over](LockGuard::hand_over), and goes on with
    /// its work. The parcel has to be for this lock, and for managers with the same prefix.
    ///
    /// If several threads or processes adopt a parcel, only one gets the lock. It has a token of
    /// its own, this lock's options, and a depth of one. Its lease counts from this call. If the
    /// hold had a [fence](LockGuard::fence), or if this lock is [`fenced`](Lock::fenced), the hold
    /// gets a new fence, larger than the sender's, so that a resource refuses late writes from the
    /// sender.
    ///
    /// Does not wait for the lock, nor for other threads of this process that do: sends one script,
    /// and sends it again if there is no answer. Blocks for the answer, at most the connect timeout
    /// and the response timeout together, and 100 ms more if the lock is given back because of an
    /// error.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let parcel = locks.lock("orders:42")?.hand_over()?;
    /// let lock = locks.named("orders:42").lease(Duration::from_secs(60));
    /// let guard = lock.adopt(&parcel)?;
    /// assert!(guard.is_valid());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::NothingToAdopt`]: the lease ended, the key was deleted, the lock was adopted and
    ///   released, or it is on another server or under another prefix.
    /// - [`Error::Lost`] with [`Taken`](crate::LostCause::Taken): somebody else has adopted the
    ///   lock or, after that, taken it. With [`Expired`](crate::LostCause::Expired): the answer
    ///   came after the lease.
    /// - [`Error::AlreadyHeld`], [`Error::Stopped`]: this thread holds the lock, or the manager or
    ///   the handle was stopped. Nothing was sent.
    /// - [`Error::OuterLost`]: this thread holds a different lock, which was lost. If that happened
    ///   while the answer was due, the parcel is used up, and the lock is given back.
    /// - [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`]: Redis could not be asked, or
    ///   it refused. If the script was sent, Redis may have executed it, and the parcel may be used
    ///   up. The manager then deletes the key in the background.
    /// - [`Error::System`]: the system could not start a thread to renew the lease. The parcel is
    ///   used up, and the lock is given back.
    /// - [`Error::InvalidOption`]: an option is invalid, or the parcel is for another lock.
    /// - [`Error::NoFence`], [`Error::Forked`]; [`Error::System`], if there were no random bits.
    pub fn adopt(&self, parcel: &LockParcel) -> Result<LockGuard, Error> {
        self.request().adopt(parcel)
    }

    /// Runs a closure under the lock and returns its result.
    ///
    /// The lock is released when the closure returns or panics. A panic continues after the
    /// release.
    ///
    /// # Errors
    ///
    /// If the lock was not taken, the errors of [`lock`](Lock::lock): the closure did not run.
    /// After the closure, [`Error::Lost`]: the closure did not have the lock the whole time, or
    /// [`Error::OuterLost`]: it had this lock throughout, but not an outer lock that this thread
    /// holds. (If the lock was already held, the call that took it reports a loss. If the closure
    /// forks the process, and the child returns from it, the child gets [`Error::Forked`].) A
    /// release without an answer is logged and is no error, because the closure was already done.
    ///
    /// If there is an error, the closure's return value is gone. [`Error::body_ran`] says whether
    /// the closure may have begun. To keep a value, let the closure store it in a variable:
    ///
    /// ```
    /// # fn charge_card() -> u32 { 7 }
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let mut receipt = None;
    /// match locks.named("orders:42").with_lock(|| receipt = Some(charge_card())) {
    ///     Err(error) if error.body_ran() => println!("{error}; the receipt is {receipt:?}"),
    ///     Err(error) => println!("{error}; nothing was done"),
    ///     Ok(()) => {}
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.request().with_lock(body)
    }

    /// Runs a closure under the lock if the lock is free now, and returns its result. `Ok(None)`
    /// means that the lock is busy, and that the closure did not run. It sends the same commands
    /// and may block for as long as [`try_lock`](Lock::try_lock); otherwise it is like
    /// [`with_lock`](Lock::with_lock).
    ///
    /// ```
    /// # fn write_report() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// if locks.named("nightly").try_with_lock(|| write_report())?.is_none() {
    ///     println!("another process writes it");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`with_lock`](Lock::with_lock), with `Timeout` as for [`try_lock`](Lock::try_lock).
    pub fn try_with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<Option<T>, Error> {
        self.request().try_with_lock(body)
    }

    /// Runs a closure that can fail, under the lock. One error type serves for the closure's errors
    /// and the lock's.
    ///
    /// The closure gets the guard, so that it can [`confirm`](LockGuard::confirm) that the lock is
    /// still held before a step that cannot be undone.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # fn charge_card() {}
    /// locks.named("orders:42").with_lock_result(|guard| {
    ///     guard.confirm(Duration::from_secs(5))?;
    ///     charge_card();
    ///     Ok::<_, relatch::Error>(())
    /// })?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If the closure fails, its own error, even if the lock was lost, too. That may be an
    /// [`Error`] from a different lock, such as a [`Timeout`](Error::Timeout): [`Error::body_ran`]
    /// tells it apart from this lock's. Otherwise as for [`with_lock`](Lock::with_lock). [`Error`]
    /// converts into [`std::io::Error`], so a closure may return [`std::io::Result`].
    pub fn with_lock_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.request().with_lock_result(body)
    }

    fn request(&self) -> Request<'_> {
        let Lock {
            session,
            key,
            options,
            stop,
        } = self;
        Request {
            session,
            name: Name::Of(key),
            options,
            stop: stop.as_ref(),
        }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.key())
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// As for [`LockManager`](crate::LockManager).
impl UnwindSafe for Lock {}
impl RefUnwindSafe for Lock {}
