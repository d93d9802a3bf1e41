//! Several readers at a time, or one writer alone.

use std::fmt;
use std::sync::Arc;

use crate::base::error::Error;
use crate::base::key::UncheckedKey;
use crate::guard::LockGuard;
use crate::lock::Lock;
use crate::session::Session;

/// A lock that several readers hold at a time, or one writer alone, across all processes.
///
/// [`LockManager::read_write`](crate::LockManager::read_write) returns one. It is cheap to clone
/// and holds nothing by itself.
///
/// It is made of two [`Lock`]s: [`read_lock`](ReadWriteLock::read_lock), which has a
/// [slot](crate::LockManager::slots) for each reader, and
/// [`write_lock`](ReadWriteLock::write_lock), which is the *gate* of those slots, `{cfg}#0`. A
/// writer takes the gate, and waits until no reader is left. Meanwhile new readers wait at the
/// gate. So a writer waits only for the readers that are already there, however many more come.
///
/// A thread that reads may read again, even while a writer waits. A thread that writes may write
/// again, and may read. A reader that wants to write gets [`Error::WouldDeadlock`] at once.
///
/// Redis does not know the limit. Each caller states its own number of readers.
/// There is no order between processes. Deadlocks that involve readers are not detected. The lock
/// named `cfg` is a different lock, and excludes nobody here. The slots named `cfg` have the same
/// keys, and no gate: use a name for one of them.
///
/// ```
/// # fn look_up() {}
/// # fn rebuild() {}
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::in_memory();
/// let cache = locks.read_write("cache", 32);
/// cache.with_read(|| look_up())?;
/// cache.with_write(|| rebuild())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "the lock does nothing until it is locked"]
pub struct ReadWriteLock {
    read: Lock,
    write: Lock,
}

impl ReadWriteLock {
    pub(crate) fn new(session: &Arc<Session>, name: &str, readers: usize) -> ReadWriteLock {
        let keys = UncheckedKey::of_read_write(&session.core.settings.prefix, name, readers);
        let [read, write] = keys.map(|key| Lock::with_key(Arc::clone(session), key));
        ReadWriteLock { read, write }
    }

    /// Runs a closure alongside other readers, and returns its result: see [`Lock::with_lock`].
    ///
    /// ```
    /// # fn look_up() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.read_write("cache", 32).with_read(|| look_up())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`Lock::with_lock`], and [`Error::InvalidOption`] if the number of readers is not
    /// between 1 and 64.
    pub fn with_read<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.read.with_lock(body)
    }

    /// Runs a fallible closure alongside other readers: see [`Lock::with_lock_result`].
    ///
    /// ```
    /// # fn look_up() -> Result<u32, relatch::Error> { Ok(5) }
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let found = locks.read_write("cache", 32).with_read_result(|_| look_up())?;
    /// # assert_eq!(found, 5);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the closure fails, its own error. Otherwise as for [`with_read`](Self::with_read).
    pub fn with_read_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.read.with_lock_result(body)
    }

    /// Runs a closure alongside other readers if no writer holds or awaits the lock now: see
    /// [`Lock::try_with_lock`].
    ///
    /// ```
    /// # fn look_up() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// if locks.read_write("cache", 32).try_with_read(|| look_up())?.is_none() {
    ///     println!("a writer has it");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`with_read`](Self::with_read), with `Timeout` as for [`Lock::try_lock`].
    pub fn try_with_read<T>(&self, body: impl FnOnce() -> T) -> Result<Option<T>, Error> {
        self.read.try_with_lock(body)
    }

    /// Runs a closure alone, and returns its result: see [`Lock::with_lock`]. First waits for other
    /// writers, then for the readers that are there.
    ///
    /// ```
    /// # fn rebuild() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.read_write("cache", 32).with_write(|| rebuild())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`with_read`](Self::with_read). [`Error::WouldDeadlock`] if this thread reads.
    pub fn with_write<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.write.with_lock(body)
    }

    /// Runs a fallible closure alone: see [`Lock::with_lock_result`].
    ///
    /// ```
    /// # fn rebuild() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.read_write("cache", 32).with_write_result(|guard| {
    ///     guard.confirm(std::time::Duration::from_secs(5))?;
    ///     rebuild();
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// If the closure fails, its own error. Otherwise as for [`with_write`](Self::with_write).
    pub fn with_write_result<T, E: From<Error>>(
        &self,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.write.with_lock_result(body)
    }

    /// Runs a closure alone if nobody reads or writes now: see [`Lock::try_with_lock`].
    ///
    /// ```
    /// # fn rebuild() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// if locks.read_write("cache", 32).try_with_write(|| rebuild())?.is_none() {
    ///     println!("somebody has it");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`with_write`](Self::with_write), with `Timeout` as for [`Lock::try_lock`].
    pub fn try_with_write<T>(&self, body: impl FnOnce() -> T) -> Result<Option<T>, Error> {
        self.write.try_with_lock(body)
    }

    /// The lock of a reader, for its guards and its options. It has a
    /// [slot](crate::LockManager::slots) for each reader.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let cache = locks.read_write("cache", 32);
    /// let reading = cache.read_lock().wait(Duration::from_secs(5)).lock()?;
    /// println!("{} of 32 readers", cache.read_lock().holders()?.len());
    /// # drop(reading);
    /// # Ok(())
    /// # }
    /// ```
    pub fn read_lock(&self) -> Lock {
        self.read.clone()
    }

    /// The lock of a writer, for its guards and its options.
    ///
    /// ```
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let cache = locks.read_write("cache", 32);
    /// let writing = cache.write_lock().fenced(true).lock()?;
    /// println!("write number {:?}", writing.fence());
    /// cache.with_read(|| println!("a writer may read"))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn write_lock(&self) -> Lock {
        self.write.clone()
    }
}

impl fmt::Debug for ReadWriteLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadWriteLock")
            .field("read", &self.read)
            .field("write", &self.write)
            .finish()
    }
}
