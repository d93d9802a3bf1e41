//! A named lock with options of its own.

use std::fmt;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::holder::Holder;
use crate::base::options::Options;
use crate::guard::LockGuard;
use crate::request::Request;
use crate::session::Session;

/// A named lock, with options of its own.
///
/// Made by [`LockManager::named`](crate::LockManager::named). Cheap to clone; it holds nothing by itself, and two locks of one name from one
/// manager are the same lock.
///
/// ```no_run
/// use std::time::Duration;
///
/// # fn report() {}
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
/// let nightly = locks.named("nightly").lease(Duration::from_secs(60)).wait(Duration::from_secs(5));
/// nightly.with_lock(|| report())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "a lock does nothing until it is locked"]
pub struct Lock {
    session: Arc<Session>,
    name: Arc<str>,
    options: Options,
}

impl Lock {
    pub(crate) fn new(session: Arc<Session>, name: Arc<str>) -> Lock {
        let options = session.settings.options;
        Lock { session, name, options }
    }

    /// How long Redis keeps the lock for a holder that does not come back. Between 10 ms and 24 hours (see
    /// [`max_lease`](crate::Builder::max_lease)), in whole milliseconds. Defaults to the manager's, which is 30 seconds.
    ///
    /// It is [renewed](Lock::renew) while the lock is held, so it need not be as long as the work: it is how long others
    /// wait after a crash, and how long an outage of Redis a holder survives. Counted from the moment the command is sent, and
    /// trusted for 1 % and 2 ms less than it lasts.
    pub fn lease(self, lease: Duration) -> Lock {
        self.set(|options| options.lease = lease)
    }

    /// How long [`lock`](Lock::lock) and [`with_lock`](Lock::with_lock) wait for a busy lock before they say
    /// [`Error::Timeout`]. Defaults to the manager's, which is no limit. Zero means one attempt.
    pub fn wait(self, wait: Duration) -> Lock {
        self.set(|options| options.wait = Some(wait))
    }

    /// Whether the lease is pushed out while the lock is held. Defaults to the manager's, which is yes.
    ///
    /// Without renewal, what is done under the lock must be done within the lease.
    pub fn renew(self, on: bool) -> Lock {
        self.set(|options| options.renewal.on = on)
    }

    /// The time from one renewal to the next: 1 ms to half the lease. Defaults to the manager's, which is a third of it.
    pub fn renew_every(self, period: Duration) -> Lock {
        self.set(|options| options.renewal.every = Some(period))
    }

    /// For how long the lock is renewed at most. Defaults to the manager's, which is no limit.
    ///
    /// When it has passed, the lease runs out and the hold is lost like any other. Against work
    /// that hangs, and guards that are forgotten. It ends a deadlock, too, but by taking locks
    /// away: a [`wait`](Lock::wait) with a limit takes none.
    pub fn max_hold(self, limit: Duration) -> Lock {
        self.set(|options| options.renewal.max_hold = Some(limit))
    }

    /// Whether a waiter takes the lock away from a process of this machine that is dead. Defaults to the manager's,
    /// which is no. See [`Builder::reclaim_dead`](crate::Builder::reclaim_dead).
    pub fn reclaim_dead(self, on: bool) -> Lock {
        self.set(|options| options.reclaim_dead = on)
    }

    /// The lock's key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.name
    }

    /// Takes the lock, and blocks until it is free: without limit, unless [`wait`](Lock::wait) is set.
    ///
    /// A thread that has the lock already gets another guard of it at once, and nothing is sent.
    /// Otherwise threads of this process get the lock in the order in which they asked, and the first of them asks
    /// Redis: once if the lock is free (`SET key token NX PX lease`), else once more (`CLIENT TRACKING`, and a script
    /// that does `SET` and, where that fails, `GET` and `PTTL`; in one round trip), and then when Redis says that
    /// the key has changed, when the holder's lease ends, and every 10 to 15 seconds. Where other
    /// processes were seen lately, it sleeps before each of these, and the first is that script, too.
    /// Without word from Redis (see [Waiting](crate#waiting)), it asks with growing pauses of up to 64 ms,
    /// or [as long as you say](crate::Builder::poll_every).
    ///
    /// Two threads that each hold a lock and wait for the other's wait for ever, since both are
    /// renewed: unless one of these waits has a [limit](Lock::wait), or
    /// [`max_hold`](Lock::max_hold) is set.
    ///
    /// # Errors
    ///
    /// - [`Error::Timeout`]: it was busy for the whole wait. Names the holder. (Or the limit was too short to find that out:
    ///   then it has a source.)
    /// - [`Error::Lost`]: this thread has it already, and the hold was lost. The depth is unchanged.
    /// - [`Error::Unavailable`], [`Error::Refused`]: Redis could not be asked, or said no.
    /// - [`Error::NotALock`]: the Redis key holds something else, or stays without expiry for a quarter of a second. (A token of this
    ///   crate, which its holder may yet repair: for half of this lock's lease.)
    /// - [`Error::WouldDeadlock`]: this thread has it already, through another manager.
    /// - [`Error::InvalidKey`], [`Error::InvalidOption`], [`Error::DepthOverflow`], [`Error::Forked`], [`Error::NoThread`],
    ///   [`Error::NoRandomness`].
    pub fn lock(&self) -> Result<LockGuard, Error> {
        self.request().lock()
    }

    /// Takes the lock if it is free now; `Ok(None)` if it is busy.
    ///
    /// Sends one `SET` and, where the lock is busy, a `GET` and a `PTTL` that say who has it. Sends
    /// nothing if a thread of this process has the lock or waits for it. Blocks for the answers
    /// only: at most the connect timeout and the response timeout together. (A key that stands
    /// there without expiry is looked at again after a quarter of a second: perhaps its holder is
    /// about to put that right.)
    ///
    /// # Errors
    ///
    /// As for [`lock`](Lock::lock), but for `Timeout`.
    pub fn try_lock(&self) -> Result<Option<LockGuard>, Error> {
        self.request().try_lock_for(Duration::ZERO)
    }

    /// Takes the lock, waiting for `limit` at most; `Ok(None)` if it was busy for so long.
    ///
    /// The limit covers everything: other threads of this process, the pool, connecting, Redis. A limit of zero is
    /// [`try_lock`](Lock::try_lock).
    ///
    /// # Errors
    ///
    /// As for [`lock`](Lock::lock), but for `Timeout`.
    pub fn try_lock_for(&self, limit: Duration) -> Result<Option<LockGuard>, Error> {
        self.request().try_lock_for(limit)
    }

    /// Runs a closure under the lock, and gives its result.
    ///
    /// The lock is released when the closure returns or panics; a panic goes on after the release.
    ///
    /// # Errors
    ///
    /// As for [`lock`](Lock::lock), and then the closure has not run. After the closure has run there is one error left,
    /// [`Error::Lost`]: it was not under the lock the whole time. (A release without an answer is none, since the
    /// closure was done by then; it is logged.)
    pub fn with_lock<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.request().with_lock(body)
    }

    /// Runs a closure that can fail under the lock: one error type for both.
    ///
    /// The closure gets the guard, to [`ensure`](LockGuard::ensure) that the lock is still held
    /// before what cannot be undone.
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn charge_card() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::connect("redis://127.0.0.1/")?;
    /// locks.named("orders:42").with_lock_result(|guard| {
    ///     guard.ensure(Duration::from_secs(5))?;
    ///     charge_card();
    ///     Ok::<_, relatch::Error>(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The closure's own error, whatever became of the lock; else as for
    /// [`with_lock`](Lock::with_lock). [`Error`] turns into [`std::io::Error`], too, so a closure
    /// may return [`std::io::Result`].
    pub fn with_lock_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.request().with_lock_result(body)
    }

    /// Who holds the lock now, by asking Redis: `GET` and `PTTL` in one round trip. `None` if nobody does.
    ///
    /// Waits for the answer, at most the connect timeout and the response timeout together.
    ///
    /// # Errors
    ///
    /// [`Error::NotALock`] where the Redis key holds something else than a string; [`Error::Unavailable`],
    /// [`Error::Refused`], [`Error::InvalidKey`], [`Error::Forked`].
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        self.session.holder(&self.name)
    }

    /// Deletes whatever stands at the lock's Redis key, and says what it was. For operators.
    ///
    /// The holder loses the lock. Nobody waits for it to notice: it may still be at work.
    /// A hold of this manager is lost when this returns, and the next thread in line has the lock;
    /// a hold of another manager is lost within milliseconds if it was renewed once, and at its
    /// next renewal otherwise. Waits for the answer, at most the connect timeout and the response
    /// timeout together.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] (the key may be deleted or not), [`Error::Refused`], [`Error::InvalidKey`],
    /// [`Error::Forked`].
    pub fn force_unlock(&self) -> Result<Option<Holder>, Error> {
        self.session.force_unlock(&self.name)
    }

    /// Refuses nothing yet: an option that cannot work is the error of taking the lock.
    fn set(mut self, change: impl FnOnce(&mut Options)) -> Lock {
        self.options.change(self.session.settings.max_lease, change);
        self
    }

    fn request(&self) -> Request<'_> {
        Request { session: &self.session, name: &self.name, options: &self.options }
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("key", &self.name)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// As for [`LockManager`](crate::LockManager).
impl UnwindSafe for Lock {}
impl RefUnwindSafe for Lock {}
