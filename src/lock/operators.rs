//! Who has a lock, and what an operator may do about it.

use crate::base::error::Error;
use crate::base::key::Name;
use crate::base::owner::holder::Holder;
use crate::lock::Lock;
use crate::session::looking::Looking;

impl Lock {
    /// The process and thread that hold the lock now, according to Redis. `None` if it is free.
    ///
    /// Sends a script that reads the key and its TTL (`GET` and `PTTL`). For a
    /// [`fenced`](Lock::fenced) lock, it also reads the counter, so that the answer has the
    /// [fence](Holder::fence). Blocks for the answer, at
    /// most the connect timeout and the response timeout together.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let lock = locks.named("orders:42");
    /// assert!(lock.holder()?.is_none());
    /// let _guard = lock.lock()?;
    /// println!("{}", lock.holder()?.expect("this thread")); // worker-7-4242-4243 (29.9s left)
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NotALock`] if the Redis key holds a value that is not a string;
    /// [`Error::Unavailable`] (also for a key that is not there, if the server is a replica),
    /// [`Error::Refused`], [`Error::Tls`], [`Error::InvalidKey`], [`Error::NoFence`],
    /// [`Error::Forked`].
    pub fn holder(&self) -> Result<Option<Holder>, Error> {
        self.looking()?.holder(self.options.fenced)
    }

    /// Who holds the [slots](crate::LockManager::slots) now, according to Redis: the number of each
    /// slot that is taken, and its holder. A lock that is no set of slots counts as one with one
    /// slot.
    ///
    /// Asks about one slot after another, as [`holder`](Lock::holder) does. So two of the answers
    /// may name the same thread, if it moved from one slot to another in the meantime.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let mail = locks.slots("mail", 3);
    /// let _guard = mail.lock()?;
    /// for (slot, holder) in mail.holders()? {
    ///     println!("{slot}: {holder}"); // 1: worker-7-4242-4243 (29.9s left)
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`holder`](Lock::holder), except that a slot whose key is not a lock is left out,
    /// and [`Error::InvalidOption`].
    pub fn holders(&self) -> Result<Vec<(u32, Holder)>, Error> {
        let each = Looking::at_each(&self.session, Name::Of(&self.key))?;
        let mut holders = Vec::new();
        for (number, slot) in (1..).zip(each) {
            match slot.holder(self.options.fenced) {
                Ok(holder) => holders.extend(holder.map(|holder| (number, holder))),
                Err(Error::NotALock { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(holders)
    }

    /// Deletes the lock's Redis key, whatever its value, and returns who held it. This is for
    /// operators.
    ///
    /// The holder loses the lock, and its work may still go on. If the holder uses this manager,
    /// its hold is lost when this method returns, and the next thread in this process's queue asks
    /// for the lock. Another manager notices the loss within milliseconds if it has renewed the
    /// hold before, and otherwise at the next renewal. Blocks for the answer, at most the connect
    /// timeout and the response timeout together.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// let holder = locks.named("orders:42").force_unlock()?.expect("this thread");
    /// assert_eq!(holder.raw, guard.token());
    /// assert!(!guard.is_valid());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] (Redis may have deleted the key or not), [`Error::Refused`],
    /// [`Error::Tls`], [`Error::InvalidKey`], [`Error::Forked`].
    pub fn force_unlock(&self) -> Result<Option<Holder>, Error> {
        self.looking()?.force_unlock()
    }

    /// [`force_unlock`](Lock::force_unlock) if the key still has this value. This is for operators
    /// who have looked at the [`holder`](Lock::holder) first, and who mean that hold and no later
    /// one.
    ///
    /// `Ok(true)` means that the key had this value and is deleted, and `Ok(false)` that it had a
    /// different value or was not there. Redis compares and deletes in one step. Blocks as
    /// `force_unlock` does, and likewise does not try again if no answer comes.
    ///
    /// The value may be another program's, if it has fewer than 256 bytes: [`Holder::bytes`], or
    /// else [`Holder::raw`].
    ///
    /// ```
    /// # fn main() -> Result<(), relatch::Error> {
    /// # let locks = relatch::LockManager::in_memory();
    /// let lock = locks.named("nightly");
    /// if let Some(holder) = lock.holder()? {
    ///     println!("held by {holder}: end it?");
    ///     lock.force_unlock_if(&holder.raw)?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`force_unlock`](Lock::force_unlock), and [`Error::InvalidOption`] if `token` may
    /// be only a part of a value.
    pub fn force_unlock_if(&self, token: impl AsRef<[u8]>) -> Result<bool, Error> {
        self.looking()?.force_unlock_if(token.as_ref())
    }

    fn looking(&self) -> Result<Looking<'_>, Error> {
        Looking::at(&self.session, Name::Of(&self.key))
    }
}
