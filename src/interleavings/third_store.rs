//! A store that is neither Redis nor the memory store.

use std::sync::Arc;
use std::time::Duration;

use crate::base::options;
use crate::base::sync::scheduler::{in_orders, thread};
use crate::session::Session;
use crate::store::Store;
use crate::store::third::Third;
use crate::{LockManager, Unlocked};

/// A new store takes only a file, a variant of `Store` and its arm in `Store::local`.
#[test]
fn a_third_store_has_locks_that_are_renewed_waited_for_and_lost() {
    in_orders(20, 0, Duration::MAX, || {
        let settings = options::Settings::default();
        let session = Session::without_servers(Store::Third(Third::default()), settings, None);
        let locks = LockManager::new(Arc::new(session));
        let guard = locks.lock("a").expect("locks");
        thread::sleep(Duration::from_secs(100));
        assert!(guard.is_valid(), "the keeper renews it");
        let waiter = locks.clone();
        let waits = thread::spawn(move || drop(waiter.lock("a").expect("locks")));
        assert_eq!(guard.unlock().expect("unlocks"), Unlocked::Released);
        waits.join().expect("no panic");
        let lock = locks.named("a");
        let guard = lock.lock().expect("locks");
        let forced = lock.force_unlock().expect("a store").expect("a holder");
        assert_eq!(forced.raw, guard.token());
        assert!(guard.unlock().is_err_and(|error| error.is_lost()));
    });
}
