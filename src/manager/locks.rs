//! The locks that a manager makes.

use std::sync::Arc;

use crate::lock::Lock;
use crate::lock::read_write::ReadWriteLock;
use crate::lock::several::MultiLock;
use crate::manager::LockManager;

impl LockManager {
    /// A named lock, whose options can be set. Takes nothing and sends nothing.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let nightly = locks.named("nightly").lease(Duration::from_secs(60));
    /// nightly.with_lock(|| println!("report"))?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn named(&self, key: impl AsRef<str>) -> Lock {
        Lock::new(Arc::clone(&self.session), key.as_ref())
    }

    /// A lock with `count` slots, 1 to 64: at most that many threads hold it at a time, across all
    /// processes. (Others call this a semaphore, and a slot a permit.) Takes nothing and sends
    /// nothing.
    ///
    /// It is used like any other [`Lock`]: [`with_lock`](Lock::with_lock) waits for a free slot,
    /// and runs its closure with that slot. The guard says [which](crate::LockGuard::slot). So the
    /// holder of slot 2 can use the second of three connections, devices or ports. A thread that
    /// has a slot re-enters it.
    ///
    /// The slots of `mail` are the locks `{mail}#1`, `{mail}#2` and so on, each a key of its own in
    /// Redis: each has a lease, is renewed, can be lost, and can be looked up, or force-unlocked,
    /// under this name. The lowest that is free is taken, by one script. (The braces keep them on
    /// one node of a cluster. If the prefix or the name has braces, none are added.) Errors and
    /// logs call a set of three `{mail}#1-3`.
    ///
    /// This is not promised: that Redis knows the number of slots. Each caller has its own. If
    /// callers have different numbers, the largest counts. There is no order between processes, and
    /// [`try_lock`](Lock::try_lock) asks Redis even if others are waiting.
    /// [`reclaim_dead`](Lock::reclaim_dead) looks at the slot whose lease ends first. Deadlocks
    /// that involve slots are not detected, and slots have no [fences](Lock::fenced)
    /// ([`Error::NoFence`](crate::Error::NoFence)).
    ///
    /// ```
    /// # fn send() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let mail = locks.slots("mail", 3);
    /// mail.with_lock(|| send())?; // at most three at a time, across all processes
    /// # Ok(())
    /// # }
    /// ```
    pub fn slots(&self, name: impl AsRef<str>, count: usize) -> Lock {
        Lock::slots(Arc::clone(&self.session), name.as_ref(), count)
    }

    /// A lock for up to `readers` readers at a time (1 to 64), or one writer alone. Takes nothing
    /// and sends nothing.
    ///
    /// ```
    /// # fn look_up() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.read_write("cache", 32).with_read(|| look_up())
    /// # }
    /// ```
    pub fn read_write(&self, name: impl AsRef<str>, readers: usize) -> ReadWriteLock {
        ReadWriteLock::new(&self.session, name.as_ref(), readers)
    }

    /// Several named locks that are taken together: all of them, or none. Takes nothing and sends
    /// nothing.
    ///
    /// ```
    /// # fn transfer() {}
    /// # fn main() -> Result<(), relatch::Error> {
    /// let locks = relatch::LockManager::in_memory();
    /// locks.several(["account:7", "account:3"]).with_lock(|| transfer())
    /// # }
    /// ```
    pub fn several<K: AsRef<str>>(&self, keys: impl AsRef<[K]>) -> MultiLock {
        let names = keys.as_ref().iter().map(|key| key.as_ref().to_owned());
        MultiLock::new(Arc::clone(&self.session), names.collect())
    }
}
