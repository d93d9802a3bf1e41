//! A manager without a Redis: what is different in memory, and the controls that tests have over a
//! store in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::base::error::LostCause;
use crate::base::key::Key;
use crate::base::options::Settings;
use crate::base::owner::identity::Identity;
use crate::keeping::losses::OnLost;
use crate::session::Session;
use crate::store::Store;
use crate::waiting::core::Core;

/// The controls of a manager [in memory](crate::LockManager::in_memory), for tests: they do to
/// locks what a Redis, its operators and its network do.
/// [`LockManager::memory`](crate::LockManager::memory) returns them.
///
/// A lease ends by the real clock, as everything else does. A test that does not want to wait can
/// end it with [`lose`](MemoryControls::lose).
///
/// ```
/// use relatch::{Error, LockManager, LostCause};
///
/// # fn main() -> Result<(), Error> {
/// let locks = LockManager::in_memory();
/// let memory = locks.memory().expect("it is in memory");
/// let guard = locks.lock("orders:42")?;
/// assert!(memory.lose("orders:42", LostCause::Expired));
/// assert!(!guard.is_valid());
/// assert!(matches!(guard.unlock(), Err(Error::Lost { cause: LostCause::Expired, .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct MemoryControls {
    session: Arc<Session>,
}

impl MemoryControls {
    pub(crate) fn of(session: &Arc<Session>) -> Option<MemoryControls> {
        session.core.store.memory().map(|_| MemoryControls {
            session: Arc::clone(session),
        })
    }

    /// Takes a lock away from its holder, with this cause, and deletes its key, even that of a lock
    /// that is only [kept](crate::Lock::keep_at_least). False if nobody has the lock. Does not
    /// wait.
    ///
    /// [`LostCause::Expired`] is the cause in a process that was stopped for longer than the lease,
    /// and [`LostCause::Deleted`] after a `DEL` or `FLUSHALL`, or a failover that loses the lock.
    ///
    /// ```
    /// # let locks = relatch::LockManager::in_memory();
    /// use relatch::LostCause;
    ///
    /// let memory = locks.memory().expect("it is in memory");
    /// let guard = locks.lock("orders:42")?;
    /// assert!(memory.lose("orders:42", LostCause::Deleted));
    /// assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    /// # Ok::<(), relatch::Error>(())
    /// ```
    #[allow(
        clippy::must_use_candidate,
        reason = "a test calls it for what it does"
    )]
    pub fn lose(&self, key: impl AsRef<str>, cause: LostCause) -> bool {
        let Session { core, keeper, .. } = &*self.session;
        let (Some(memory), Ok(key)) = (
            core.store.memory(),
            Key::new(&core.settings.prefix, key.as_ref()),
        ) else {
            return false;
        };
        let Some(holder) = memory.delete(key.in_redis()) else {
            return false;
        };
        keeper.lose_token(&holder.raw, cause);
        holder.owner().is_some()
    }

    /// Makes the store unreachable for `span`: a call that would ask Redis fails with
    /// [`Error::Unavailable`](crate::Error::Unavailable) or, in a release, with
    /// [`Error::Unconfirmed`](crate::Error::Unconfirmed). Does not wait.
    ///
    /// Renewals fail, too. A renewed hold lives on for the rest of its lease, and is lost if the
    /// outage lasts longer. Renewals and deletions that failed are done half a second after the
    /// outage at the latest. A second call replaces the first one: [`Duration::ZERO`] ends the
    /// outage.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let locks = relatch::LockManager::in_memory();
    /// let memory = locks.memory().expect("it is in memory");
    /// memory.go_away(Duration::from_secs(5));
    /// assert!(locks.try_lock("orders:42").is_err_and(|error| error.is_redis_failure()));
    /// memory.go_away(Duration::ZERO);
    /// assert!(locks.try_lock("orders:42").is_ok());
    /// ```
    pub fn go_away(&self, span: Duration) {
        if let Some(memory) = self.session.core.store.memory() {
            memory.go_away(span);
        }
    }
}

impl Session {
    /// A session without a Redis.
    pub(crate) fn in_memory(settings: Settings, on_lost: Option<OnLost>) -> Session {
        // No other process can want a lock, so threads need not leave it free for one.
        let settings = Settings {
            local_handoff: Duration::MAX,
            ..settings
        };
        Session::without_servers(Store::in_memory(), settings, on_lost)
    }

    /// A session over a store without servers.
    pub(crate) fn without_servers(
        store: Store,
        settings: Settings,
        on_lost: Option<OnLost>,
    ) -> Session {
        let core = Core::new(Identity::in_memory(), Arc::new(store), settings, None);
        Session::over(core, on_lost)
    }
}
