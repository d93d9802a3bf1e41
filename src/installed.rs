//! A process-wide manager, for codebases where passing a handle around is not possible.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::base::error::Error;
use crate::guard::LockGuard;
use crate::lock::Lock;
use crate::manager::LockManager;

static INSTALLED: OnceLock<LockManager> = OnceLock::new();

/// Makes `manager` the one that [`with_lock`] and [`installed`] use, for the rest of the process.
///
/// ```no_run
/// # fn charge_card() {}
/// # fn main() -> Result<(), relatch::Error> {
/// relatch::install(relatch::LockManager::connect("redis://127.0.0.1/")?)?;
///
/// // Anywhere else in the program:
/// relatch::with_lock("orders:42", || charge_card())?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`Error::AlreadyInstalled`] if a manager was installed before. The earlier manager stays.
pub fn install(manager: LockManager) -> Result<(), Error> {
    INSTALLED.set(manager).map_err(|_| Error::AlreadyInstalled)
}

/// The manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed.
pub fn installed() -> Result<&'static LockManager, Error> {
    INSTALLED.get().ok_or(Error::NotInstalled)
}

/// [`LockManager::with_lock`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed; otherwise see
/// [`Lock::with_lock`](crate::Lock::with_lock).
pub fn with_lock<T>(key: impl AsRef<str>, body: impl FnOnce() -> T) -> Result<T, Error> {
    installed()?.with_lock(key, body)
}

/// [`LockManager::with_lock_result`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// As for [`with_lock`](crate::with_lock()), and the closure's own.
pub fn with_lock_result<T, E: From<Error>>(
    key: impl AsRef<str>,
    body: impl FnOnce(&LockGuard) -> Result<T, E>,
) -> Result<T, E> {
    installed()?.with_lock_result(key, body)
}

/// [`LockManager::lock`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed; otherwise see
/// [`Lock::lock`](crate::Lock::lock).
pub fn lock(key: impl AsRef<str>) -> Result<LockGuard, Error> {
    installed()?.lock(key)
}

/// [`LockManager::try_lock`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed; otherwise see
/// [`Lock::try_lock`](crate::Lock::try_lock).
pub fn try_lock(key: impl AsRef<str>) -> Result<Option<LockGuard>, Error> {
    installed()?.try_lock(key)
}

/// [`LockManager::try_lock_for`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed; otherwise see
/// [`Lock::try_lock_for`](crate::Lock::try_lock_for).
pub fn try_lock_for(key: impl AsRef<str>, limit: Duration) -> Result<Option<LockGuard>, Error> {
    installed()?.try_lock_for(key, limit)
}

/// [`LockManager::try_lock_until`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed; otherwise see
/// [`Lock::try_lock_until`](crate::Lock::try_lock_until).
pub fn try_lock_until(key: impl AsRef<str>, deadline: Instant) -> Result<Option<LockGuard>, Error> {
    installed()?.try_lock_until(key, deadline)
}

/// [`LockManager::current`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed.
pub fn current(key: impl AsRef<str>) -> Result<Option<LockGuard>, Error> {
    Ok(installed()?.current(key))
}

/// [`LockManager::assert_held`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed; otherwise see
/// [`Lock::assert_held`](crate::Lock::assert_held).
pub fn assert_held(key: impl AsRef<str>) -> Result<(), Error> {
    installed()?.assert_held(key)
}

/// [`LockManager::named`] on the manager that was [`install`]ed.
///
/// # Errors
///
/// [`Error::NotInstalled`] if no manager was installed.
pub fn named(key: impl AsRef<str>) -> Result<Lock, Error> {
    Ok(installed()?.named(key))
}
