//! The options of one lock.

use std::time::Duration;

use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::lock::Lock;

impl Lock {
    /// How long Redis keeps the lock after its holder has crashed. Between 10 ms and 24 hours
    /// ([`max_lease`](crate::Builder::max_lease)), in whole milliseconds. Defaults to the
    /// manager's, which is 30 seconds.
    ///
    /// The lease is [renewed](Lock::renew) while the lock is held, so it need not be as long as the
    /// work. The lease decides how long other processes wait after a crash, and how long a Redis
    /// outage a hold survives. For the holder, the lease begins when the command is sent, and ends
    /// 1 % of the lease and 2 ms early.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.named("orders:42").lease(Duration::from_secs(60)).lock()?;
    /// assert!(guard.remaining() > Duration::from_secs(50));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn lease(self, lease: Duration) -> Lock {
        self.set(|options| options.lease = lease)
    }

    /// Sets how long [`lock`](Lock::lock) and [`with_lock`](Lock::with_lock) wait for a busy lock
    /// before they return [`Error::Timeout`](crate::Error::Timeout). `None` means no limit. Zero
    /// means one attempt, which may take the connect timeout and the response timeout (2 s).
    /// Defaults to the manager's, which is no limit.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// # let busy = locks.lock("orders:42")?.detach()?;
    /// let hasty = locks.named("orders:42").wait(Duration::from_millis(5));
    /// assert!(hasty.lock().is_err_and(|error| error.is_timeout()));
    /// let patient = hasty.wait(None);
    /// # drop(busy);
    /// patient.with_lock(|| println!("at last"))?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn wait(self, limit: impl Into<Option<Duration>>) -> Lock {
        self.set(|options| options.wait = limit.into())
    }

    /// Whether the lease is renewed while the lock is held. Defaults to the manager's, which is
    /// yes.
    ///
    /// Without renewal, the work under the lock must be done within the lease.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let short = locks.named("orders:42").lease(Duration::from_secs(10)).renew(false);
    /// short.with_lock(|| println!("done within ten seconds"))?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn renew(self, on: bool) -> Lock {
        self.set(|options| options.renewal.on = on)
    }

    /// The time from one renewal to the next, from 1 ms to half the lease. Defaults to the
    /// manager's, which is a third of the lease. The first renewal comes after this time, too, but
    /// no later than after one second: see [what is not promised](crate#what-is-not-promised).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let lock = locks.named("orders:42").renew_every(Duration::from_secs(5));
    /// lock.with_lock(|| println!("alone"))?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn renew_every(self, period: Duration) -> Lock {
        self.set(|options| options.renewal.every = Some(period))
    }

    /// The longest time for which the lock is renewed, counted from when it was taken; not less
    /// than the lease. The last lease then runs out: the hold lasts at most one lease longer, and
    /// is lost. Defaults to the manager's, which is no limit.
    ///
    /// Once this time is over (or earlier, by the difference, if the lease was made longer),
    /// [`confirm`](crate::LockGuard::confirm), [`ensure`](crate::LockGuard::ensure) (if it would
    /// have to renew), [`set_lease`](crate::LockGuard::set_lease) and
    /// [`hand_over`](crate::LockGuard::hand_over) return
    /// [`Error::InvalidOption`](crate::Error::InvalidOption) with the option `max_hold`: finish
    /// now, or stop. [`verify`](crate::LockGuard::verify) still answers.
    ///
    /// This limit protects against work that hangs and guards that are forgotten. It also ends a
    /// deadlock between two processes, but by taking locks away. A limited [`wait`](Lock::wait)
    /// ends a deadlock without that.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let lock = locks.named("orders:42").lease(Duration::from_millis(20));
    /// let guard = lock.max_hold(Duration::from_millis(40)).lock()?;
    /// std::thread::sleep(Duration::from_millis(60));
    /// assert!(!guard.is_valid(), "it was forgotten");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn max_hold(self, limit: Duration) -> Lock {
        self.set(|options| options.renewal.max_hold = Some(limit))
    }

    /// Whether a waiter takes the lock over from a dead process on the same machine. Defaults to
    /// the manager's setting, which is off by default. See
    /// [`Builder::reclaim_dead`](crate::Builder::reclaim_dead).
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.named("orders:42").reclaim_dead(true).with_lock(|| println!("alone"))?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn reclaim_dead(self, on: bool) -> Lock {
        self.set(|options| options.reclaim_dead = on)
    }

    /// Whether each hold gets a [fencing token](crate::LockGuard::fence). Defaults to the manager's
    /// setting, which is no. A resource that compares fences refuses a holder that comes back too
    /// late. [The page on fencing](crate::guide::fencing) has examples.
    ///
    /// With this, a script takes the place of the `SET`, still in one round trip. The script needs
    /// the right `+time` and a second key, the lock's counter: the prefix, `fence:`, and the Redis
    /// key in braces, such as `lock:fence:{lock:orders:42}`. (A key that has braces of its own gets
    /// no others.) The counter holds the last fence. It expires a day (or two leases, if that is
    /// longer) after the lock was last taken. If it holds anything other than a number, no lock is
    /// taken: [`Error::Refused`](crate::Error::Refused) with the code `NOFENCE`.
    ///
    /// Take a given lock either always with a fence or never: a resource cannot tell how old a hold
    /// without a fence is.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let lock = locks.named("orders:42").fenced(true);
    /// let earlier = lock.lock()?.fence();
    /// assert!(lock.lock()?.fence() > earlier);
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn fenced(self, on: bool) -> Lock {
        self.set(|options| options.fenced = on)
    }

    /// The shortest time for which the lock stays taken, counted from when it was taken. Zero by
    /// default: no longer than it is held. For a reentry with this option, the time counts from
    /// that reentry, and the latest end that any of them asked for applies.
    ///
    /// This is for a job that several processes start at about the same time, and that only one of
    /// them should run: if the job takes less time than the machines' clocks differ by, a process
    /// that is late would find the lock free, and run the job again.
    ///
    /// An outermost release before that time does not delete the key. It lets the key expire when
    /// the time is over, by compare-and-set in one script, just as a release is compare-and-delete.
    /// This thread and this process no longer hold the lock: nothing renews it, the process may
    /// exit, and [`unlock`](crate::LockGuard::unlock) returns
    /// [`Unlocked::Kept`](crate::Unlocked::Kept). If the thread takes the lock again before that
    /// time, it waits like any other. The key's new value is `kept:` and the token. That is not
    /// itself a token, so no late renewal keeps the key longer, and no process deletes it because
    /// its holder is gone.
    ///
    /// A release because of a panic keeps the lock, too, and so does
    /// [`with_lock_result`](Lock::with_lock_result) if the closure returns an error. A job that has
    /// failed, and that another process should try at once, ends with
    /// [`unlock_now`](crate::LockGuard::unlock_now). If the manager could not start its thread
    /// ([`Error::System`](crate::Error::System)), nobody got the lock, and it is not kept.
    ///
    /// If the process dies before the release, the lock is free when its lease ends. So make the
    /// [`lease`](Lock::lease) at least as long. If the release gets no answer
    /// ([`Error::Unconfirmed`](crate::Error::Unconfirmed)), Redis may or may not have kept the lock
    /// until that time. If it has not, the key stays until its lease ends, or until the manager
    /// deletes it after that time.
    ///
    /// Replicas are not asked to acknowledge that the lock is kept: after a failover, it may be
    /// free when the lease that they have acknowledged ends.
    ///
    /// Cannot be combined with [`reclaim_dead`](Lock::reclaim_dead), which concerns the hold: while
    /// the job runs, another process could end the hold early.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let minutely = locks.named("report").keep_at_least(Duration::from_secs(30));
    /// minutely.try_with_lock(|| println!("written"))?;
    /// // A process whose clock is late finds it taken. (By `with_lock`, it would wait, and write
    /// // the report once more.)
    /// assert!(minutely.try_with_lock(|| println!("written"))?.is_none());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn keep_at_least(self, least: Duration) -> Lock {
        self.set(|options| options.keep_at_least = least)
    }

    /// Whether a thread that has the lock may take it again. Defaults to the manager's setting,
    /// which is yes. If not, the second attempt is
    /// [`Error::AlreadyHeld`](crate::Error::AlreadyHeld), and nothing is sent.
    ///
    /// Set this to `false` where one thread runs several jobs at a time: a job in a rayon pool that
    /// waits for others may run another job in the meantime, on the same thread. To the lock, both
    /// jobs are the same holder.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let once = locks.named("orders:42").reentrant(false);
    /// let _guard = once.lock()?;
    /// assert!(matches!(once.lock(), Err(relatch::Error::AlreadyHeld { .. })));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn reentrant(self, on: bool) -> Lock {
        self.set(|options| options.reentrant = on)
    }

    /// Lets `stop` end waits for this lock: they return [`Error::Stopped`](crate::Error::Stopped).
    /// By default, nothing but a [shutdown](crate::LockManager::shutdown) of the manager ends them.
    ///
    /// Once it is stopped, the lock cannot be taken through this `Lock` or its clones. A thread
    /// that holds it still re-enters it.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let stop = relatch::StopHandle::new();
    /// let lock = locks.named("orders:42").stopped_by(&stop);
    /// stop.stop();
    /// assert!(matches!(lock.lock(), Err(relatch::Error::Stopped { .. })));
    /// ```
    pub fn stopped_by(mut self, stop: &StopHandle) -> Lock {
        self.session.woken_by(stop);
        self.stop = Some(stop.clone());
        self
    }

    /// Changes an option. If the value cannot work, `lock` reports the error.
    fn set(mut self, change: impl FnOnce(&mut Options)) -> Lock {
        self.options
            .change(self.session.core.settings.max_lease, change);
        self
    }
}
