//! Whether this thread holds a lock.

use crate::base::error::Error;
use crate::guard::LockGuard;
use crate::lock::Lock;

impl Lock {
    /// Another guard of the lock if this thread holds it, and `None` if it does not, or if its hold
    /// can no longer be trusted. Never takes the lock, sends nothing, and does not block.
    ///
    /// For code that is called with the lock held and needs the guard, for its
    /// [`fence`](LockGuard::fence), or [`confirm`](LockGuard::confirm).
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let lock = locks.named("orders:42");
    /// let outer = lock.lock()?;
    /// let inner = lock.current().expect("this thread holds it");
    /// assert_eq!(inner.token(), outer.token());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn current(&self) -> Option<LockGuard> {
        self.request().current()
    }

    /// Returns `Ok` if this thread holds the lock, as far as this process knows. Sends nothing, and
    /// does not block.
    ///
    /// Meant for the beginning of a function that must be called with the lock held.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// # use relatch::{Error, LockManager};
    /// fn book(locks: &LockManager) -> Result<(), Error> {
    ///     locks.named("stock").assert_held()?; // the caller has it
    ///     println!("booked");
    ///     Ok(())
    /// }
    ///
    /// assert!(book(&locks).is_err());
    /// locks.with_lock_result("stock", |_| book(&locks))?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - [`Error::NotHeld`]: this thread does not hold the lock.
    /// - [`Error::Lost`]: its hold can no longer be trusted.
    /// - [`Error::Forked`].
    pub fn assert_held(&self) -> Result<(), Error> {
        self.request().assert_held()
    }
}
