//! The options of a manager's locks, where a lock does not set its own.

use std::time::Duration;

use crate::manager::builder::Builder;

impl Builder {
    /// The lease of every lock that does not set its own: see [`Lock::lease`](crate::Lock::lease).
    /// Defaults to 30 seconds.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder_in_memory()
    ///     .lease(Duration::from_secs(10))
    ///     .build()?;
    /// assert!(locks.lock("orders:42")?.remaining() < Duration::from_secs(10));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn lease(mut self, lease: Duration) -> Builder {
        self.settings.options.lease = lease;
        self
    }

    /// The longest lease that is accepted. Defaults to 24 hours.
    ///
    /// This limit catches a lease that is too long by mistake: after a crash, other processes would
    /// have to wait until that lease ends.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let minute = Duration::from_secs(60);
    /// let locks = relatch::LockManager::builder_in_memory().max_lease(minute).build()?;
    /// assert!(locks.named("orders:42").lease(2 * minute).lock().is_err());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn max_lease(mut self, cap: Duration) -> Builder {
        self.settings.max_lease = cap;
        self
    }

    /// The wait of every lock that does not set its own: see [`Lock::wait`](crate::Lock::wait).
    /// Defaults to no limit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let limit = Duration::from_millis(5);
    /// let locks = relatch::LockManager::builder_in_memory().wait(limit).build()?;
    /// let busy = locks.lock("orders:42")?.detach()?;
    /// assert!(locks.lock("orders:42").is_err_and(|error| error.is_timeout()));
    /// drop(busy);
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn wait(mut self, limit: impl Into<Option<Duration>>) -> Builder {
        self.settings.options.wait = limit.into();
        self
    }

    /// Whether leases are renewed while locks are held: see [`Lock::renew`](crate::Lock::renew).
    /// Defaults to yes.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let lease = Duration::from_millis(20);
    /// let locks = relatch::LockManager::builder_in_memory().renew(false).lease(lease).build()?;
    /// let guard = locks.lock("orders:42")?;
    /// std::thread::sleep(lease);
    /// assert!(!guard.is_valid(), "its lease is over");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn renew(mut self, on: bool) -> Builder {
        self.settings.options.renewal.on = on;
        self
    }

    /// The time from one renewal to the next: see [`Lock::renew_every`](crate::Lock::renew_every).
    /// Defaults to a third of the lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder_in_memory()
    ///     .renew_every(Duration::from_secs(5))
    ///     .build()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn renew_every(mut self, period: Duration) -> Builder {
        self.settings.options.renewal.every = Some(period);
        self
    }

    /// The longest time for which a lock is renewed: see [`Lock::max_hold`](crate::Lock::max_hold).
    /// Defaults to no limit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder_in_memory()
    ///     .max_hold(Duration::from_secs(600))
    ///     .build()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn max_hold(mut self, limit: Duration) -> Builder {
        self.settings.options.renewal.max_hold = Some(limit);
        self
    }

    /// Whether a waiter takes a lock over from a dead process on the same machine. Defaults to no.
    ///
    /// The locks of a process that was killed stay in Redis until their leases end. A waiter on the
    /// same machine can find out that the process is dead. The token has to name this host and, by
    /// the first eight digits of its nonce, this boot and this pid namespace. If there is no longer
    /// a process with the token's process id, the waiter deletes exactly that token and takes the
    /// lock. In any doubt it waits as usual. Only Linux provides enough information for this.
    ///
    /// Work that the dead process had begun stays half done, and one of its child processes may
    /// still be running. A program whose children carry on says so with
    /// [`reclaimable(false)`](Builder::reclaimable).
    ///
    /// Leave this option off where processes or machines are copied while they run (snapshots of
    /// virtual machines, CRIU). A copy has the host name, boot and pid namespace of its original,
    /// but other processes. A process that runs on only one of the two machines looks dead to the
    /// other machine.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .reclaim_dead(true)
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn reclaim_dead(mut self, on: bool) -> Builder {
        self.settings.options.reclaim_dead = on;
        self
    }

    /// Whether others may find out that this process is dead and [reclaim](Builder::reclaim_dead)
    /// its locks. Defaults to yes.
    ///
    /// Switch it off in a program whose child processes carry on under its locks after it is
    /// killed, or which [hands locks over](crate::LockGuard::hand_over) and exits. Its locks then
    /// stay taken until their leases end. (The first eight digits of its tokens' nonces do not name
    /// a machine.) Its own waiters may still reclaim the locks of others.
    ///
    /// ```
    /// # use std::time::Duration;
    /// let locks = relatch::LockManager::builder("redis://127.0.0.1/")
    ///     .reclaimable(false)
    ///     .lease(Duration::from_secs(30)) // as long as `backup` may need to notice, and to end
    ///     .build_lazily()?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn reclaimable(mut self, on: bool) -> Builder {
        self.settings.reclaimable = on;
        self
    }

    /// Whether holds get fencing tokens: see [`Lock::fenced`](crate::Lock::fenced). Defaults to no.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder_in_memory().fenced(true).build()?;
    /// assert!(locks.lock("orders:42")?.fence().is_some());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn fenced(mut self, on: bool) -> Builder {
        self.settings.options.fenced = on;
        self
    }

    /// Whether a thread may take a lock that it already has: see
    /// [`Lock::reentrant`](crate::Lock::reentrant). Defaults to yes.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder_in_memory().reentrant(false).build()?;
    /// let _guard = locks.lock("orders:42")?;
    /// assert!(matches!(locks.lock("orders:42"), Err(relatch::Error::AlreadyHeld { .. })));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn reentrant(mut self, on: bool) -> Builder {
        self.settings.options.reentrant = on;
        self
    }
}
