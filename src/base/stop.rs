//! The handle with which a program ends waits.

use crate::base::sync::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Ends waits for locks: what `lockInterruptibly` is in Java.
///
/// Give it to locks with [`Lock::stopped_by`](crate::Lock::stopped_by), clone it, and call
/// [`stop`](StopHandle::stop) from any thread.
/// [`LockManager::shutdown`](crate::LockManager::shutdown) does the same for all waits of a
/// manager.
///
/// ```
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::in_memory();
/// let stop = relatch::StopHandle::new();
/// let job = std::thread::spawn({
///     let (lock, stop) = (locks.named("orders:42"), stop.clone());
///     move || lock.stopped_by(&stop).with_lock(|| ())
/// });
/// stop.stop(); // If the job still waits, its `with_lock` returns `Error::Stopped`.
/// # let _ = job;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct StopHandle {
    shared: Arc<Handles>,
}

#[derive(Default)]
struct Handles {
    stopped: AtomicBool,
    /// What wakes the waiters of each manager that has waits with this handle, by the manager's
    /// number. The manager has the other end.
    managers: Mutex<Vec<(u64, Weak<Wake>)>>,
}

/// Wakes the waiters of a manager.
pub(crate) type Wake = dyn Fn() + Send + Sync;

impl StopHandle {
    /// A handle that has not stopped anything yet.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let stop = relatch::StopHandle::new();
    /// locks.named("orders:42").stopped_by(&stop).with_lock(|| println!("nobody has stopped it"))?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn new() -> StopHandle {
        StopHandle::default()
    }

    /// Ends the waits that have this handle, now and later: they return
    /// [`Error::Stopped`](crate::Error::Stopped). What is held stays held. This cannot be undone.
    ///
    /// Wakes the waiters and returns, without waiting for them. A waiter that sleeps returns within
    /// milliseconds. One that has just asked Redis returns after the answer: after the connect
    /// timeout and the response timeout together at the latest, and as much again if Redis has to
    /// be asked once more (a script that it does not know, a redirect). If that answer gives it the
    /// lock, it has the lock. A waiter for which the pool has no connection left returns when it
    /// gets one, and sends nothing.
    ///
    /// Do not call this in a signal handler, since it locks a mutex. Let the handler set a flag,
    /// and call it in a thread that watches the flag, as
    /// [`examples/worker.rs`](https://github.com/relatch/relatch/blob/main/examples/worker.rs) does
    /// with [`shutdown`](crate::LockManager::shutdown).
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let stop = relatch::StopHandle::new();
    /// let lock = locks.named("orders:42").stopped_by(&stop);
    /// # let busy = locks.lock("orders:42")?.detach()?;
    /// std::thread::scope(|scope| {
    ///     let waiter = scope.spawn(|| lock.lock().map(drop));
    ///     stop.stop();
    ///     let stopped = waiter.join().expect("no panic");
    ///     assert!(matches!(stopped, Err(relatch::Error::Stopped { .. })));
    /// });
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn stop(&self) {
        // The flag comes first. A thread in a queue looks at it while it holds the mutex that its
        // sleep releases, and each call below locks that mutex. So a thread that saw no flag is
        // asleep when the call gets the mutex, and is woken. (A thread that sleeps until the key
        // changes has a flag of its own under such a mutex, which the call sets.)
        self.shared.stopped.store(true, Ordering::Release);
        let managers = self.shared.managers.lock();
        managers
            .iter()
            .filter_map(|(_, wake)| wake.upgrade())
            .for_each(|wake| wake());
    }

    /// Whether [`stop`](StopHandle::stop) was called.
    pub(crate) fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }

    /// Makes `stop` call `wake`, for as long as the manager keeps it.
    pub(crate) fn wakes(&self, manager: u64, wake: &Arc<Wake>) {
        let mut managers = self.shared.managers.lock();
        managers.retain(|(_, wake)| wake.strong_count() > 0);
        if managers.iter().all(|(number, _)| *number != manager) {
            managers.push((manager, Arc::downgrade(wake)));
        }
    }
}

impl fmt::Debug for StopHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopHandle")
            .field("is_stopped", &self.is_stopped())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_keeps_nothing_of_a_manager_that_is_gone() {
        let stop = StopHandle::new();
        for manager in 0..100 {
            let wake: Arc<Wake> = Arc::new(|| ());
            stop.wakes(manager, &wake);
            stop.wakes(manager, &wake);
        }
        assert_eq!(
            stop.shared.managers.lock().len(),
            1,
            "the last one went after it was noted"
        );
    }
}
