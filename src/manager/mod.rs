//! The handle that a program keeps.
//!
//! [`builder`] has its settings, [`locks`] the locks that it makes, and [`installed`] the one
//! manager of a process. This room may use `lock`, `guard`, `session`, `keeping`, `waiting`,
//! `hold`, `store` and `base`.

pub(crate) mod installed;
pub(crate) mod builder;
mod locks;

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use crate::base::error::Error;
use crate::base::stats::Stats;
use crate::guard::LockGuard;
use crate::hold::{HeldLock, LockParcel};
use crate::lock::request::Request;
use crate::session::looking::health::Health;
use crate::session::looking::survey::Survey;
use crate::session::{MemoryControls, Session};
use crate::waiting::waiter::WaitingThread;

/// Locks on one Redis: a pool of connections, and the holds of this process.
///
/// Make a manager with [`connect`](LockManager::connect) or [`builder`](LockManager::builder), then
/// clone and share it: all clones are the same manager. Two managers of one process do not share
/// their holds. A thread that waits for a key that it holds through another manager gets
/// [`Error::WouldDeadlock`].
///
/// Dropping the last handle or guard ends the manager's threads. The drop waits for the keeper,
/// renewer, callback, log, listener, sentinel and cluster threads, for each of them at most 0.1 s
/// longer than the response timeout (a timeout below 0.1 s counts as 0.1 s).
///
/// The methods that take a lock exist here, with a key, and on a [`Lock`](crate::Lock). A `Lock`
/// also has options, [`holder`](crate::Lock::holder) and
/// [`force_unlock`](crate::Lock::force_unlock).
///
/// ```
/// # fn charge_card() {}
/// # fn main() -> Result<(), relatch::Error> {
/// let locks = relatch::LockManager::in_memory();
/// locks.with_lock("orders:42", || charge_card())?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockManager {
    session: Arc<Session>,
}

#[expect(
    clippy::missing_errors_doc,
    reason = "they are those of the methods of `Lock`, which lists them"
)]
impl LockManager {
    pub(crate) fn new(session: Arc<Session>) -> LockManager {
        LockManager { session }
    }

    /// [`Lock::lock`](crate::Lock::lock) on the lock named `key`, with the same errors.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// println!("alone until the end of the scope, or of {guard:?}");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn lock(&self, key: impl AsRef<str>) -> Result<LockGuard, Error> {
        self.request(key.as_ref()).lock()
    }

    /// [`Lock::try_lock`](crate::Lock::try_lock) on the lock named `key`, with the same errors.
    ///
    /// **`if locks.try_lock(key)?.is_some() { .. }` runs its block without the lock.** Write
    /// `if let Some(_guard) = locks.try_lock(key)? { .. }` or, better,
    /// [`try_with_lock`](LockManager::try_with_lock).
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// if let Some(_guard) = locks.try_lock("orders:42")? {
    ///     println!("it was free, and is mine until the end of this block");
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn try_lock(&self, key: impl AsRef<str>) -> Result<Option<LockGuard>, Error> {
        self.request(key.as_ref()).try_lock_for(Duration::ZERO)
    }

    /// [`Lock::with_lock`](crate::Lock::with_lock) on the lock named `key`, with the same errors.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let sum = locks.with_lock("orders:42", || 2 + 2)?;
    /// assert_eq!(sum, 4);
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn with_lock<T>(&self, key: impl AsRef<str>, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.request(key.as_ref()).with_lock(body)
    }

    /// [`Lock::try_with_lock`](crate::Lock::try_with_lock) on the lock named `key`, with the same
    /// errors.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// if locks.try_with_lock("nightly", || println!("report"))?.is_none() {
    ///     println!("another thread or process writes it");
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn try_with_lock<T>(
        &self,
        key: impl AsRef<str>,
        body: impl FnOnce() -> T,
    ) -> Result<Option<T>, Error> {
        self.request(key.as_ref()).try_with_lock(body)
    }

    /// [`Lock::with_lock_result`](crate::Lock::with_lock_result) on the lock named `key`, with the
    /// same errors.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.with_lock_result("orders:42", |guard| {
    ///     guard.confirm(Duration::from_secs(5))?;
    ///     println!("charged");
    ///     Ok::<_, relatch::Error>(())
    /// })?;
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn with_lock_result<T, E: From<Error>>(
        &self,
        key: impl AsRef<str>,
        body: impl FnOnce(&LockGuard) -> Result<T, E>,
    ) -> Result<T, E> {
        self.request(key.as_ref()).with_lock_result(body)
    }

    /// [`Lock::adopt`](crate::Lock::adopt) on the lock that the parcel names, with the same errors.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let parcel = locks.lock("orders:42")?.hand_over()?;
    /// let guard = locks.adopt(&parcel)?;
    /// assert_eq!(guard.key(), "orders:42");
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn adopt(&self, parcel: &LockParcel) -> Result<LockGuard, Error> {
        self.request(parcel.key()).adopt(parcel)
    }

    /// The controls of a manager [in memory](LockManager::in_memory), for tests. `None` for any
    /// other manager.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// use relatch::LostCause;
    ///
    /// let memory = locks.memory().expect("it is in memory");
    /// let guard = locks.lock("orders:42")?;
    /// assert!(memory.lose("orders:42", LostCause::Expired));
    /// assert!(!guard.is_valid());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn memory(&self) -> Option<MemoryControls> {
        MemoryControls::of(&self.session)
    }

    /// The locks that this process holds through this manager, the oldest first. Sends nothing.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// let _guard = locks.lock("orders:42")?;
    /// for held in locks.held() {
    ///     println!("{held}"); // lock "orders:42", held by worker-7-4242-4243 for 12.0s ...
    /// }
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn held(&self) -> Vec<HeldLock> {
        self.session.held()
    }

    /// The threads of this process that wait for a lock of this manager, longest wait first. Says
    /// whom each waits for, and how long it has left. Sends nothing, and does not block.
    ///
    /// A thread is listed from its first sleep on. It may be waiting for a thread of this process,
    /// for another process, or for a Redis that gives no answer.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// for waiting in locks.waiting() {
    ///     println!("{waiting}"); // worker-7-4242-4243 has waited for lock "a" for 5.0s, ...
    /// }
    /// ```
    #[must_use]
    pub fn waiting(&self) -> Vec<WaitingThread> {
        self.session.waiting()
    }

    /// The locks with this manager's prefix that are in Redis now, of whatever program, with who
    /// has each and for how long. This is for operators and their tools.
    ///
    /// The survey sends nothing until it is iterated. Then it walks through all keys of the
    /// database, on each master of a cluster, by `SCAN` in steps of less than a millisecond, and
    /// looks at what it finds (`GETRANGE` and `PTTL`, in batches). So it takes two round trips for
    /// every 500 keys of the database, or more if the keys that it finds have long names. It needs
    /// the rights `+scan +getrange +pttl`. Each step blocks for the answer, for at most the
    /// response timeout. When `limit` is over, the next step is an error.
    ///
    /// A lock that is there from beginning to end is found; twice if Redis resizes its key table in
    /// the meantime. A lock that is taken or released in the meantime may or may not be found, and
    /// neither may one whose slot moves in a cluster. The survey remembers nothing of what it has
    /// found, so its memory does not grow. The counters of [fenced](crate::Lock::fenced) locks are
    /// left out.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), relatch::Error> {
    /// let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// for found in locks.survey(Duration::from_secs(10)) {
    ///     println!("{}", found?); // lock "orders:42": host-4242-4243 (30.0s left)
    /// }
    /// # assert_eq!(locks.survey(Duration::from_secs(10)).count(), 1);
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The survey ends with the first error: [`Error::Unavailable`] (also for a key that has the
    /// prefix and is 4 MiB or longer, and if the server is a replica), [`Error::Refused`],
    /// [`Error::Tls`], [`Error::Forked`].
    pub fn survey(&self, limit: Duration) -> Survey {
        Survey::new(&self.session, limit)
    }

    /// Whether this manager, its Redis and the way between them are fit for locks: for a readiness
    /// probe, and for people who are looking for a problem.
    ///
    /// Checks each right in docs/operations.md, and names those that the user lacks. Takes a lock
    /// with a key of its own (the prefix and `relatch-check-`), renews it, looks at it and deletes
    /// it. Then checks, for each server that can have locks (in a cluster, each master), whether an
    /// invalidation comes, and whether `INFO` says that the server evicts keys. Without the right
    /// to ask, there is a warning.
    ///
    /// A failure ends the examination, since it would be the cause of others. No lock of a program
    /// is touched.
    ///
    /// Waits for some ten answers from each server, for `limit` at most. Only the test for
    /// invalidations does not keep to `limit`: if Redis does not answer it, the call may take up to
    /// three connect timeouts and two response timeouts longer.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), relatch::Error> {
    /// let locks = relatch::LockManager::in_memory();
    /// let health = locks.check(Duration::from_secs(2));
    /// assert!(health.verdict < relatch::Verdict::Failed, "{health}");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn check(&self, limit: Duration) -> Health {
        Health::of(&self.session, limit)
    }

    /// Counts what this manager has done since it was made, and what is going on now. Sends
    /// nothing.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// locks.with_lock("orders:42", || ())?;
    /// assert_eq!(locks.stats().acquired, 1);
    /// println!("{}", locks.stats());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.session.stats()
    }

    /// Ends the use of this manager: from now on, its locks can no longer be taken, and all waits
    /// for them return [`Error::Stopped`]. Then waits until other threads have given back what they
    /// hold, for `limit` at most, and returns what is held after that: an empty list means that no
    /// thread holds a lock of this manager.
    ///
    /// Call this at the end of a program, before it returns from `main` or calls
    /// [`process::exit`](std::process::exit). Without it, other processes would have to wait until
    /// the leases end. Threads that hold locks can finish their work, and re-enter what they hold;
    /// a job that needs one more lock gets [`Error::Stopped`](crate::Error::Stopped) halfway. What
    /// this thread holds itself is listed, and not waited for. (Two threads that call this while
    /// each holds a lock wait for each other, up to `limit`.) Detached holds are waited for,
    /// whatever thread they are in. All clones of the manager are shut down with it, forever.
    ///
    /// Blocks for `limit` at most, or longer by one answer (the connect timeout and the response
    /// timeout together) if a command is in progress at that point. Sends nothing. Three things may
    /// be left in Redis even though the list is empty: locks that are
    /// [kept](crate::Lock::keep_at_least), locks that were [handed
    /// over](crate::LockGuard::hand_over) and not adopted yet, and keys whose claim, adoption or
    /// release got no answer. All of them expire. In a forked child, returns an empty list at once.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// for left in locks.shutdown(Duration::from_secs(10)) {
    ///     eprintln!("still held: {left}");
    /// }
    /// assert!(locks.lock("orders:42").is_err());
    /// ```
    #[must_use = "the list says what is still held"]
    pub fn shutdown(&self, limit: Duration) -> Vec<HeldLock> {
        self.session.shutdown(limit)
    }

    /// Like [`shutdown`](LockManager::shutdown), but then gives back the locks that are still held,
    /// and returns them.
    ///
    /// The threads that held these locks have lost them, with
    /// [`LostCause::ShutDown`](crate::LostCause::ShutDown), and may not know yet: if their work
    /// goes on, it runs alongside that of the next holder. So call this only if the process ends
    /// right afterwards.
    ///
    /// Sends one compare-and-delete for each lock, and blocks for at most the response timeout
    /// longer than `shutdown`, or by one answer longer if a command is in progress at that point:
    /// its thread gets no lock, and gives back what that command took. Keys that could not be
    /// deleted expire with their leases.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// let left = locks.shutdown_and_release(Duration::ZERO);
    /// assert_eq!(left[0].key, "orders:42");
    /// assert!(!guard.is_valid());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[must_use = "the list says whose work may be half done"]
    pub fn shutdown_and_release(&self, limit: Duration) -> Vec<HeldLock> {
        self.session.shutdown_and_release(limit)
    }

    fn request<'a>(&'a self, key: &'a str) -> Request<'a> {
        Request {
            session: &self.session,
            name: key.into(),
            options: &self.session.core.settings.options,
            stop: None,
        }
    }
}

/// A panic under a lock does not leave the manager half changed: unwinding drops the guard, which
/// releases the lock.
impl UnwindSafe for LockManager {}
impl RefUnwindSafe for LockManager {}
