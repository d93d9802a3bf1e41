//! The state that all threads of a manager share: the store, the queues, the listeners, the counts.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::options::Settings;
use crate::base::owner::identity::Identity;
use crate::base::owner::process as this_process;
use crate::base::stats::counters::{ClassCounters, Counters};
use crate::store::Store;
use crate::waiting::queues::WaitQueues;
use crate::wakeups::listeners::Listeners;

/// The parts of a manager that all of its threads use: those that take locks, give them back, or
/// keep them.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) identity: Identity,
    pub(crate) store: Arc<Store>,
    /// The threads of this process that wait for a lock.
    pub(crate) queues: Arc<WaitQueues>,
    pub(crate) listeners: Listeners,
    pub(crate) counters: Arc<Counters>,
    pub(crate) settings: Settings,
}

impl Core {
    /// `probe` is a key that nobody else knows, to test whether invalidations arrive. `None` if
    /// there are to be no listeners.
    pub(crate) fn new(
        identity: Identity,
        store: Arc<Store>,
        settings: Settings,
        probe: Option<String>,
    ) -> Arc<Core> {
        let listeners = Listeners::new(Arc::clone(&store), settings.response_timeout, probe);
        let counters = Arc::new(Counters::new(&settings.classes));
        Arc::new(Core {
            identity,
            store,
            queues: Arc::new(WaitQueues::new(Arc::clone(&counters))),
            listeners,
            counters,
            settings,
        })
    }

    /// Returns an error in a forked child.
    pub(crate) fn own_process(&self, now: Moment) -> Result<(), Error> {
        let (parent, child) = (self.identity.pid, this_process::id(now));
        if parent == child {
            Ok(())
        } else {
            Err(Error::Forked { parent, child })
        }
    }

    /// Wakes all threads of this manager that wait for a lock. Those whose wait was stopped leave.
    /// The others look again: the first of each queue asks Redis once more.
    pub(crate) fn wake_waiters(&self) {
        self.queues.wake_all();
        self.listeners.wakeups.wake_those(|_| true);
    }

    /// The counters for the lock that has this key in Redis.
    pub(crate) fn counters_of(&self, redis_key: &str) -> &ClassCounters {
        let name = redis_key.strip_prefix(&*self.settings.prefix);
        self.counters.of(name.unwrap_or_default())
    }

    /// Ends the threads of the listeners and of the store.
    pub(crate) fn stop(&self) {
        self.listeners.stop();
        self.store.stop();
    }
}
