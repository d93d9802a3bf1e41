//! A process-wide manager, for codebases where passing a handle around is not possible.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ptr;
use std::sync::OnceLock;

use crate::base::error::{Error, SetupCause};
use crate::guard::LockGuard;
use crate::lock::Lock;
use crate::manager::LockManager;

static INSTALLED: OnceLock<LockManager> = OnceLock::new();

thread_local! {
    /// The test managers of this thread, the latest at the end.
    static FOR_TESTS: RefCell<Vec<&'static LockManager>> = const { RefCell::new(Vec::new()) };
}

/// Makes `manager` the one that [`with_lock`] and [`installed`] use, for the rest of the process.
///
/// ```
/// relatch::install(relatch::LockManager::in_memory())?; // or `connect`
///
/// // Anywhere else in the program:
/// relatch::with_lock("orders:42", || println!("alone"))?;
/// # Ok::<(), relatch::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Setup`] (`AlreadyInstalled`) if a manager was installed before. The earlier one stays.
pub fn install(manager: LockManager) -> Result<(), Error> {
    INSTALLED.set(manager).map_err(|_| Error::Setup {
        cause: SetupCause::AlreadyInstalled,
    })
}

/// The manager that this thread has installed [for a test](install_for_test) or, if there is none,
/// the one that was [`install`]ed.
///
/// ```
/// # let _until_then = relatch::install_for_test(relatch::LockManager::in_memory());
/// let guard = relatch::installed()?.lock("orders:42")?;
/// assert!(guard.is_valid());
/// # Ok::<(), relatch::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Setup`] (`NotInstalled`) if no manager was installed.
pub fn installed() -> Result<&'static LockManager, Error> {
    // A thread that is exiting may already have lost its test managers.
    let for_test = FOR_TESTS
        .try_with(|all| all.borrow().last().copied())
        .unwrap_or(None);
    for_test.or_else(|| INSTALLED.get()).ok_or(Error::Setup {
        cause: SetupCause::NotInstalled,
    })
}

/// Makes `manager` the one that [`installed`] returns in this thread, until the result is dropped.
/// For tests of code that uses the process-wide manager. Sends nothing.
///
/// No other thread sees it: tests that run at the same time do not see each other's. If the code
/// under test starts a thread that uses the process-wide manager, give that thread a clone of the
/// manager, and let it call this function, too.
///
/// If a thread has several managers, the one that was last installed counts. When it is dropped,
/// the one before it comes back.
///
/// `installed` hands out references that last as long as the process. So each call leaks its
/// manager: a few kilobytes and, once it has held a lock that is renewed, its keeper's thread. A
/// manager with a Redis also keeps its other threads and its connections.
///
/// ```
/// use relatch::{LockManager, install_for_test, with_lock};
///
/// # fn main() -> Result<(), relatch::Error> {
/// let restore = install_for_test(LockManager::in_memory());
/// with_lock("orders:42", || println!("under a lock, without a Redis"))?;
/// drop(restore);
/// assert!(relatch::installed().is_err(), "nothing was installed before");
/// # Ok(())
/// # }
/// ```
pub fn install_for_test(manager: LockManager) -> InstalledForTest {
    let manager: &'static LockManager = Box::leak(Box::new(manager));
    // If the thread is exiting, the list may be gone already.
    let _ = FOR_TESTS.try_with(|all| all.borrow_mut().push(manager));
    InstalledForTest {
        manager,
        in_this_thread: PhantomData,
    }
}

/// Uninstalls a manager that was [installed for a test](install_for_test), when it is dropped.
#[derive(Debug)]
#[must_use = "the manager is there until this is dropped"]
pub struct InstalledForTest {
    manager: &'static LockManager,
    in_this_thread: PhantomData<*const ()>,
}

impl Drop for InstalledForTest {
    fn drop(&mut self) {
        let _ = FOR_TESTS.try_with(|all| all.borrow_mut().retain(|it| !ptr::eq(*it, self.manager)));
    }
}

/// [`LockManager::with_lock`] on the manager that was [`install`]ed.
///
/// ```
/// # let _until_then = relatch::install_for_test(relatch::LockManager::in_memory());
/// let sum = relatch::with_lock("orders:42", || 2 + 2)?;
/// assert_eq!(sum, 4);
/// # Ok::<(), relatch::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Setup`] (`NotInstalled`) if no manager was installed; otherwise see
/// [`Lock::with_lock`](crate::Lock::with_lock).
pub fn with_lock<T>(key: impl AsRef<str>, body: impl FnOnce() -> T) -> Result<T, Error> {
    installed()?.with_lock(key, body)
}

/// [`LockManager::try_with_lock`] on the manager that was [`install`]ed.
///
/// ```
/// # let _until_then = relatch::install_for_test(relatch::LockManager::in_memory());
/// if relatch::try_with_lock("nightly", || println!("report"))?.is_none() {
///     println!("another thread or process writes it");
/// }
/// # Ok::<(), relatch::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Setup`] (`NotInstalled`) if no manager was installed; otherwise see
/// [`Lock::try_with_lock`](crate::Lock::try_with_lock).
pub fn try_with_lock<T>(
    key: impl AsRef<str>,
    body: impl FnOnce() -> T,
) -> Result<Option<T>, Error> {
    installed()?.try_with_lock(key, body)
}

/// [`LockManager::with_lock_result`] on the manager that was [`install`]ed.
///
/// ```
/// # use std::time::Duration;
/// # let _until_then = relatch::install_for_test(relatch::LockManager::in_memory());
/// relatch::with_lock_result("orders:42", |guard| {
///     guard.confirm(Duration::from_secs(5))?;
///     println!("charged");
///     Ok::<_, relatch::Error>(())
/// })?;
/// # Ok::<(), relatch::Error>(())
/// ```
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

/// [`LockManager::named`] on the manager that was [`install`]ed.
///
/// ```
/// # use std::time::Duration;
/// # let _until_then = relatch::install_for_test(relatch::LockManager::in_memory());
/// let lock = relatch::named("orders:42")?.wait(Duration::from_secs(5));
/// lock.with_lock(|| println!("alone"))?;
/// # Ok::<(), relatch::Error>(())
/// ```
///
/// # Errors
///
/// [`Error::Setup`] (`NotInstalled`) if no manager was installed.
pub fn named(key: impl AsRef<str>) -> Result<Lock, Error> {
    Ok(installed()?.named(key))
}
