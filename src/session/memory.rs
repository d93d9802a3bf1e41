//! What is different for a manager without a Redis: in memory, or disabled; and the controls that
//! tests have over a store in memory.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Taken;
use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::key::Key;
use crate::base::options::{Options, Renewal, Settings};
use crate::base::owner::{Owner, host_name};
use crate::hold::Hold;
use crate::keeping::losses::OnLost;
use crate::session::Session;
use crate::store::Store;

/// The controls of a manager [in memory](crate::LockManager::in_memory), for tests: what a Redis,
/// its operators and its network do to locks. [`LockManager::memory`](crate::LockManager::memory)
/// returns them.
///
/// *How time works:* [`advance`](Memory::advance) makes each lease older, and nothing else. Waits,
/// timeouts and `held_for` go by the real clock.
///
/// ```
/// use std::time::Duration;
/// use relatch::{Error, LockManager, LostCause};
///
/// # fn main() -> Result<(), Error> {
/// let locks = LockManager::in_memory();
/// let memory = locks.memory().expect("it is in memory");
/// let lock = locks.named("orders:42").renew(false).lease(Duration::from_secs(30));
/// let guard = lock.lock()?;
/// memory.advance(Duration::from_secs(29));
/// assert!(guard.is_valid());
/// memory.advance(Duration::from_secs(1));
/// assert!(matches!(guard.unlock(), Err(Error::Lost { cause: LostCause::Expired, .. })));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Memory {
    session: Arc<Session>,
}

impl Memory {
    pub(crate) fn of(session: &Arc<Session>) -> Option<Memory> {
        let memory = session.store.memory().filter(|memory| memory.excludes);
        memory.map(|_| Memory { session: Arc::clone(session) })
    }

    /// The lease of a lock runs out now: its key is gone, and the hold is lost with
    /// [`LostCause::Expired`]. False if nobody has the lock. Does not wait.
    ///
    /// This is what happens to a process that was stopped for longer than the lease.
    #[allow(clippy::must_use_candidate, reason = "a test calls it for what it does")]
    pub fn expire(&self, key: impl AsRef<str>) -> bool {
        self.end(key.as_ref(), LostCause::Expired)
    }

    /// Somebody deletes the key of a lock: the hold is lost with [`LostCause::Deleted`]. False if
    /// nobody has the lock. Does not wait.
    ///
    /// This is what happens by a `DEL` or `FLUSHALL`, or by a failover that loses the lock.
    #[allow(clippy::must_use_candidate, reason = "a test calls it for what it does")]
    pub fn lose(&self, key: impl AsRef<str>) -> bool {
        self.end(key.as_ref(), LostCause::Deleted)
    }

    /// Makes each lease older by `span`, as if that time had passed at once. Does not wait.
    ///
    /// A hold that is renewed stays, since its renewals would have come in that time, until
    /// [`max_hold`](crate::Lock::max_hold) ends it. Other holds whose leases are over are lost. The
    /// time for which a lock is [kept](crate::Lock::keep_at_least) and the time of an
    /// [outage](Memory::go_away) pass as well.
    pub fn advance(&self, span: Duration) {
        self.session.keeper.change_memory(span, |memory| memory.age(span));
    }

    /// From now on, nothing answers for `span`: what would ask Redis fails with
    /// [`Error::Unavailable`] or, in a release, with [`Error::Unconfirmed`]. Does not wait.
    ///
    /// A renewed hold lives on for its lease. If the outage lasts that long, it is lost then;
    /// otherwise it goes on. [`advance`](Memory::advance) makes the outage pass. A second call
    /// during an outage makes it longer, never shorter.
    pub fn go_away(&self, span: Duration) {
        self.session.keeper.change_memory(Duration::ZERO, |memory| memory.go_away(span));
    }

    fn end(&self, name: &str, cause: LostCause) -> bool {
        let Session { store, keeper, settings, .. } = &*self.session;
        let (Some(memory), Ok(key)) = (store.memory(), Key::new(&settings.prefix, name)) else {
            return false;
        };
        let deleted = memory.delete(key.in_redis());
        if let Some(holder) = &deleted {
            keeper.lose_token(holder.raw(), cause, self.session.one_answer(Moment::now()));
        }
        deleted.is_some()
    }
}

impl Session {
    /// A session without a Redis. Without `excludes`, each lock is granted at once.
    pub(crate) fn in_memory(excludes: bool, settings: Settings, on_lost: Option<OnLost>) -> Session {
        // No other process can want a lock, so threads need not leave it free for one.
        let settings = Settings { local_handoff: Duration::MAX, ..settings };
        let machine = "0".repeat(8);
        Session::over(Store::in_memory(excludes), host_name(), machine, None, settings, on_lost)
    }

    fn is_disabled(&self) -> bool {
        self.store.memory().is_some_and(|memory| !memory.excludes)
    }

    /// The options of a hold. If the manager is disabled, the hold never ends by itself, and
    /// nothing is kept after it.
    pub(super) fn suited(&self, options: &Options) -> Options {
        if !self.is_disabled() {
            return *options;
        }
        let renewal = Renewal { on: true, every: None, max_hold: None };
        Options { renewal, keep_at_least: Duration::ZERO, ..*options }
    }

    /// The key of a hold. If the manager is disabled, each hold has a key of its own, so that all
    /// that is said of locks here holds without another word. (A key for each thread would not do:
    /// a thread that has detached its hold would wait for it.)
    pub(super) fn suited_key(&self, key: Key) -> Key {
        let disabled = self.store.memory().filter(|memory| !memory.excludes);
        match disabled {
            Some(memory) => key.numbered(memory.fresh_number()),
            None => key,
        }
    }

    /// By which name the threads that want this key queue. If the manager is disabled, no other
    /// thread has that name. `own` has room for a name that is made.
    pub(super) fn name_in_queue<'a>(&self, key: &'a Key, own: &'a mut Option<Arc<str>>) -> &'a Arc<str> {
        if self.is_disabled() { own.insert(key.in_redis().into()) } else { key.name() }
    }

    /// A hold of a lock that was just taken.
    pub(super) fn new_hold(&self, key: Key, owner: Owner, taken: Taken, options: &Options) -> Arc<Hold> {
        let (Taken { token, fence, at }, memory) = (taken, self.store.memory().cloned());
        Arc::new(Hold::new(key, owner, token, fence, &self.suited(options), at, memory))
    }
}
