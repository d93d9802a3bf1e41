//! A process-wide manager, for codebases where passing a handle around is not possible.

use std::sync::OnceLock;

use crate::base::error::Error;
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
