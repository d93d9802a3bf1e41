//! Questions to a guard: whether the hold is still valid, and for how long; and its lease.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::guard::{LockGuard, LockWatch};
use crate::session::upkeep::Upkeep;

impl LockGuard {
    /// Whether this process may still trust the hold. `true` means that no other process can have
    /// the lock, as far as this process knows.
    ///
    /// Compares the clock with the end of the lease. Sends nothing and does not block. The answer
    /// is also right in a process that was stopped and then continues. It turns `false` before
    /// another process can take the lock, unless Redis forgot the key early ([what is not
    /// promised](crate#what-is-not-promised)). `true` may be out of date by the time the program
    /// acts on it.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// assert!(guard.is_valid());
    /// locks.named("orders:42").force_unlock()?;
    /// assert!(!guard.is_valid());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn is_valid(&self) -> bool {
        self.session.trusts(self.hold())
    }

    /// How long the hold may still be trusted; zero if it is lost. Sends nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.named("orders:42").lease(Duration::from_secs(10)).lock()?;
    /// assert!(guard.remaining() > Duration::from_secs(5));
    /// # Ok::<(), relatch::Error>(())
    /// ```
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
    /// Renews the lease, however much is left of it, and waits for the answer, for at most the
    /// response timeout. So it notices that Redis has forgotten the key (because of a flush or a
    /// failover), or that somebody has replaced it. Redis may still forget the key within `span`:
    /// no lease can prevent the harm of that, but a [fence](LockGuard::fence) can.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # fn charge_card() {}
    /// let guard = locks.lock("orders:42")?;
    /// guard.confirm(Duration::from_secs(5))?; // Redis says: still ours, for 5 s at least
    /// charge_card();
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the hold can no longer be trusted. The error names the first cause that
    ///   was found.
    /// - [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`]: Redis did not renew the lease,
    ///   or answered so late that less than `span` is left. The hold is as valid as before.
    /// - [`Error::InvalidOption`]: `span` is longer than the lease less 1 % and 2 ms.
    /// - [`Error::InvalidOption`] for `max_hold`: time is up, as no lease extends the hold any more
    ///   ([`max_hold`](crate::Lock::max_hold)). Nothing was sent.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn confirm(&self, span: Duration) -> Result<(), Error> {
        self.upkeep().confirm(span)
    }

    /// Returns `Ok` only if at least `span` of the lease is left, by this machine's clock. Meant
    /// for long work, between its steps: it costs nothing as long as the lease is renewed.
    ///
    /// If less is left, `ensure` renews the lease now and waits for the answer, for at most the
    /// response timeout. Otherwise it sends nothing, and cannot notice that Redis has forgotten the
    /// key. Before a step that cannot be undone, call [`confirm`](LockGuard::confirm).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # fn step(_: u32) {}
    /// let guard = locks.lock("orders:42")?;
    /// for n in 0..1000 {
    ///     guard.ensure(Duration::from_secs(2))?; // by the clock, there is time for one more
    ///     step(n);
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the hold can no longer be trusted. The error names the first cause that
    ///   was found.
    /// - [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`]: the hold can be trusted, but
    ///   not for `span`, and Redis did not renew it.
    /// - [`Error::InvalidOption`]: `span` is longer than the lease less 1 % and 2 ms.
    /// - [`Error::InvalidOption`] for `max_hold`: less than `span` is left, and no lease extends
    ///   the hold any more ([`max_hold`](crate::Lock::max_hold)).
    /// - [`Error::System`], [`Error::Forked`].
    pub fn ensure(&self, span: Duration) -> Result<(), Error> {
        self.upkeep().ensure(span)
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
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.named("orders:42").renew(false).lock()?;
    /// guard.verify()?;
    /// locks.named("orders:42").force_unlock()?;
    /// assert!(guard.verify().is_err_and(|error| error.is_lost()));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the key is gone or has another value. The error names the first cause
    ///   that was found.
    /// - [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`]: Redis did not answer the
    ///   question. The hold is as valid as before.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn verify(&self) -> Result<(), Error> {
        self.upkeep().verify()
    }

    fn upkeep(&self) -> Upkeep<'_> {
        Upkeep {
            session: &self.session,
            held: slice::from_ref(&self.held),
        }
    }

    /// Sets a new lease, renews the hold with it now, and keeps renewing with it.
    ///
    /// Blocks for the answer, for at most the response timeout. A longer lease counts once Redis
    /// has answered; a shorter one counts from the call. But Redis does not shorten the earlier
    /// lease, so after a crash other processes may have to wait until the earlier lease ends.
    /// `set_lease` never creates the key again.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// guard.set_lease(Duration::from_secs(300))?; // for a step that an outage must not end
    /// assert!(guard.remaining() > Duration::from_secs(200));
    /// guard.set_lease(Duration::from_secs(10))?;
    /// assert!(guard.remaining() < Duration::from_secs(10));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::InvalidOption`]: the lease is too short or too long, or longer than
    ///   [`max_hold`](crate::Lock::max_hold) still allows. Nothing was sent.
    /// - [`Error::InvalidOption`] for `max_hold`: time is up, as no lease extends the hold any more
    ///   ([`max_hold`](crate::Lock::max_hold)). Nothing was sent.
    /// - [`Error::Lost`]: the hold can no longer be trusted. The error names the first cause that
    ///   was found.
    /// - [`Error::Unavailable`], [`Error::Refused`], [`Error::Tls`]: the hold can be trusted for
    ///   the rest of its lease. The next renewal, if there is one, tries again.
    /// - [`Error::System`], [`Error::Forked`].
    pub fn set_lease(&self, lease: Duration) -> Result<(), Error> {
        self.upkeep().set_lease(lease)
    }

    /// A view of the hold for another thread, for example to stop a helper when the lock is lost.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// let watch = guard.watch();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || println!("still ours: {}", watch.is_valid()));
    /// });
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn watch(&self) -> LockWatch {
        LockWatch::new(Arc::clone(&self.held.hold), self.session.core.identity.pid)
    }
}
