//! The listeners of a manager: one for each node that has waiters or renewed holds. (Without a
//! cluster, there is one node.)
//!
//! The first wait for a busy lock at a node, or the first renewal there, starts the listener. When
//! a node leaves the cluster, its listener ends.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::base::sync::HashMap;
use crate::base::sync::Mutex;
use crate::store::{Node, Store};
use crate::wakeups::listener::{Listener, OnInvalidation};
use crate::wakeups::table::Wakeups;

/// The most listeners that a manager has. Each takes a connection and a thread. Waiters for keys at
/// further nodes poll.
const MOST: usize = 64;

pub(crate) struct Listeners {
    store: Arc<Store>,
    response_timeout: Duration,
    /// A key that nobody else knows, to test whether invalidations arrive. `None` if there are to
    /// be no listeners.
    probe: Option<String>,
    on_invalidation: Arc<OnInvalidation>,
    pub(crate) wakeups: Arc<Wakeups>,
    /// The listener of each node, by the node's number. `None` after the end.
    running: Mutex<Option<HashMap<u64, Arc<Listener>>>>,
}

impl Listeners {
    pub(crate) fn new(
        store: Arc<Store>,
        response_timeout: Duration,
        probe: Option<String>,
    ) -> Listeners {
        let wakeups = Arc::<Wakeups>::default();
        let weak = Arc::downgrade(&wakeups);
        store.on_close(move |link| {
            if let Some(wakeups) = weak.upgrade() {
                wakeups.wake_over(link);
            }
        });
        if let Some(memory) = store.memory() {
            let weak = Arc::downgrade(&wakeups);
            memory.on_change(move |key| {
                if let Some(wakeups) = weak.upgrade() {
                    wakeups.wake(key.as_bytes());
                }
            });
        }
        Listeners {
            store,
            response_timeout,
            probe,
            on_invalidation: Arc::default(),
            wakeups,
            running: Mutex::new(Some(HashMap::default())),
        }
    }

    /// Registers `call`: see [`OnInvalidation`].
    pub(crate) fn on_invalidation(
        &self,
        call: impl Fn(Option<&[u8]>, &Node) -> bool + Send + Sync + 'static,
    ) {
        let _ = self.on_invalidation.set(Box::new(call)); // The keeper sets it once.
    }

    /// The listener of this node, if there is one.
    pub(crate) fn of(&self, node: &Node) -> Option<Arc<Listener>> {
        self.running.lock().as_ref()?.get(&node.number).cloned()
    }

    /// The listener of the node that has this key, if there is one.
    pub(crate) fn of_key(&self, redis_key: &str) -> Option<Arc<Listener>> {
        self.of(&*self.store.node_of(redis_key)?)
    }

    /// Starts the listener of this node, once. It connects on its own, and no thread waits for
    /// that.
    pub(crate) fn start(&self, node: &Arc<Node>) {
        let Some(probe) = &self.probe else { return };
        if let Some(listener) = self.add(node) {
            listener.start(probe);
        }
    }

    fn add(&self, node: &Arc<Node>) -> Option<Arc<Listener>> {
        let mut running = self.running.lock();
        let running = running.as_mut()?;
        if let Some(listener) = running.get(&node.number) {
            return Some(Arc::clone(listener));
        }
        running.retain(|_, listener| !listener.is_over());
        if node.is_retired() || running.len() >= MOST {
            return None;
        }
        let store = Arc::clone(&self.store);
        let node = Arc::clone(node);
        let number = node.number;
        let timeout = self.response_timeout;
        let pass = Arc::clone(&self.on_invalidation);
        let wakeups = Arc::clone(&self.wakeups);
        let listener = Arc::new(Listener::new(store, node, timeout, pass, wakeups));
        running.insert(number, Arc::clone(&listener));
        Some(listener)
    }

    /// Ends the threads.
    pub(crate) fn stop(&self) {
        let running = self.running.lock().take().unwrap_or_default();
        // All are told to stop before the first is waited for, so that they end together.
        for listener in running.values() {
            listener.tell_to_stop();
        }
        for listener in running.values() {
            listener.stop();
        }
    }
}

impl fmt::Debug for Listeners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listeners").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::options::Settings;
    use crate::store::Target;

    impl Listeners {
        /// The listener of the only node, without its thread.
        pub(crate) fn only(&self) -> Arc<Listener> {
            let node = self.store.node_of("").expect("there is one node");
            self.add(&node).expect("there is room")
        }
    }

    fn store() -> Arc<Store> {
        Arc::new(Store::new(Target::nowhere(), &Settings::default()).unwrap())
    }

    #[test]
    fn beyond_the_limit_a_node_has_no_listener_until_another_node_leaves() {
        let nodes: Vec<_> = (0..=MOST).map(|_| store().node_of("").unwrap()).collect();
        let listeners = Listeners::new(store(), Duration::from_millis(50), None);
        assert!(
            nodes[..MOST]
                .iter()
                .all(|node| listeners.add(node).is_some())
        );
        assert!(listeners.add(&nodes[MOST]).is_none() && listeners.of(&nodes[MOST]).is_none());
        assert!(listeners.add(&nodes[0]).is_some(), "it has one already");
        nodes[0].retire();
        assert!(listeners.add(&nodes[MOST]).is_some());
        assert!(listeners.add(&nodes[0]).is_none(), "it has left");
    }

    #[test]
    fn after_the_end_no_listener_starts() {
        let store = store();
        let node = store.node_of("").unwrap();
        let listeners = Listeners::new(store, Duration::from_millis(50), None);
        listeners.stop();
        assert!(listeners.add(&node).is_none());
    }
}
