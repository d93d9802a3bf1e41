//! The state that all handles of a manager share: how the manager begins and ends, and whether it
//! may be used.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::base::clock::Moment;
use crate::base::error::{Error, SystemCause};
use crate::base::key::Key;
use crate::base::options::Settings;
use crate::base::owner::identity::Identity;
use crate::base::owner::process as this_process;
use crate::base::stop::{StopHandle, Wake};
use crate::base::sync::{PerProcess, process};
use crate::hold::Hold;
use crate::keeping::losses::{LossNotifier, OnLost};
use crate::keeping::work::Keeper;
use crate::session::thread_map;
use crate::store::{Failure, Store, Target};
use crate::waiting::core::Core;

/// The state that all handles of a manager share.
pub(crate) struct Session {
    /// Distinguishes managers in a thread's map.
    pub(super) id: u64,
    pub(crate) core: Arc<Core>,
    pub(super) keeper: Arc<Keeper>,
    /// Ends all waits, and refuses new locks, once the manager is shut down.
    pub(super) end: StopHandle,
    /// Wakes all waiters of this manager, for the stop handles that can end their waits.
    pub(super) wake: Arc<Wake>,
}

impl Session {
    pub(crate) fn new(
        target: Target,
        settings: Settings,
        on_lost: Option<OnLost>,
    ) -> Result<Session, Error> {
        let store = Arc::new(Store::new(target, &settings)?);
        let identity = Identity::of_this_process(settings.reclaimable).map_err(no_randomness)?;
        let unused = identity
            .fresh_token(&identity.this_thread())
            .map_err(no_randomness)?;
        let probe = settings
            .client_tracking
            .then(|| settings.prefix.clone() + &unused);
        Session::over(Core::new(identity, store, settings, probe), on_lost).started()
    }

    pub(super) fn over(core: Arc<Core>, on_lost: Option<OnLost>) -> Session {
        static NEXT: PerProcess<AtomicU64> =
            PerProcess::new(AtomicU64::new(1), || AtomicU64::new(1));
        let waits = Arc::clone(&core);
        let wake = move || {
            // A forked child has no waiters, and its copies of the mutexes may stay locked.
            if process::id() == waits.identity.pid {
                waits.wake_waiters();
            }
        };
        let session = Session {
            id: NEXT.with(|it| it.fetch_add(1, Ordering::Relaxed)),
            keeper: Keeper::new(Arc::clone(&core), on_lost.map(LossNotifier::new)),
            core,
            end: StopHandle::new(),
            wake: Arc::new(wake),
        };
        session.woken_by(&session.end);
        session
    }

    /// Starts the threads that the settings ask for.
    pub(crate) fn started(self) -> Result<Session, Error> {
        if let Some(limits) = self.core.settings.warn_after {
            self.keeper.warn_after(limits)?;
        }
        Ok(self)
    }

    /// Sends a `PING`, so that a wrong address or login is discovered now.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let deadline = Moment::now().after(self.core.settings.connect_timeout);
        self.core.store.ping("connecting", deadline)
    }

    /// Returns an error if a hold can no longer be trusted, or belongs to another process.
    pub(crate) fn trust(&self, hold: &Hold) -> Result<(), Error> {
        let now = Moment::now();
        self.core.own_process(now)?;
        hold.check(now)
    }

    /// True if a hold can be trusted, and belongs to this process.
    pub(crate) fn trusts(&self, hold: &Hold) -> bool {
        let now = Moment::now();
        hold.is_valid(now) && this_process::id(now) == self.core.identity.pid
    }

    /// Counts a failed call, and returns its error. (`enter` counts its own.)
    pub(super) fn call_failed(&self, action: &'static str, key: &Key, failure: Failure) -> Error {
        let error = self.core.store.error(Some(key), action, failure);
        let error = error.while_holding(thread_map::names());
        self.core.counters.of(key.name()).failed(&error);
        error
    }
}

pub(super) fn no_randomness(source: io::Error) -> Error {
    Error::System {
        cause: SystemCause::NoRandomness,
        source,
    }
}

impl Drop for Session {
    /// Ends the manager's threads. A forked child has none of them, and must not wait for mutexes
    /// that they had locked.
    fn drop(&mut self) {
        if process::id() == self.core.identity.pid {
            self.keeper.stop();
        }
    }
}

/// Shows the server and the settings, and nothing that changes.
impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("store", &self.core.store)
            .field("settings", &self.core.settings)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::base::sync::{mpsc, thread};

    /// A thread of the parent had the mutex at the fork, so the child's copy is locked forever.
    #[test]
    fn a_stop_in_a_forked_child_locks_no_mutex_of_the_parents_manager() {
        let mut parent = Identity::in_memory();
        parent.pid += 1;
        let store = Arc::new(Store::in_memory());
        let session = Session::over(Core::new(parent, store, Settings::default(), None), None);
        let stop = StopHandle::new();
        session.woken_by(&stop);
        let wakeups = &session.core.listeners.wakeups;
        let _waits = wakeups.register("a");
        let (tell, told) = mpsc::channel();
        wakeups.wake_those(|_| {
            let (stop, tell) = (stop.clone(), tell.clone());
            thread::spawn(move || {
                stop.stop();
                let _ = tell.send(());
            });
            let told = told.recv_timeout(Duration::from_secs(10));
            told.expect("it waits for the mutex");
            false
        });
    }
}
