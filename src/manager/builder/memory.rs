//! Managers without a Redis: in memory, for tests and single-process programs.

use std::sync::Arc;

use crate::base::error::Error;
use crate::base::options::Settings;
use crate::manager::LockManager;
use crate::manager::builder::Builder;
use crate::session::Session;

impl LockManager {
    /// A manager whose locks are in the memory of this process, with every option at its default.
    /// It is for tests, and for a program that runs in one process and may get a second one later.
    /// Opens no socket.
    ///
    /// Threads exclude each other, queue, re-enter, time out and lose locks as with a Redis: only
    /// the store is different. A key has its lease, and the keeper's thread renews it. A process
    /// that is stopped for longer than the lease loses its locks. [Controls](LockManager::memory)
    /// end leases, delete keys and make the store unreachable. Each call makes a store of its own,
    /// which the clones of the manager share. Other processes are not excluded.
    ///
    /// One thing is different: threads hand a lock off without a time limit, since no other process
    /// wants it.
    ///
    /// ```
    /// # fn main() -> Result<(), relatch::Error> {
    /// let locks = relatch::LockManager::in_memory();
    /// let guard = locks.lock("orders:42")?;
    /// let of_another_thread = std::thread::scope(|scope| {
    ///     scope.spawn(|| locks.try_lock("orders:42").map(|guard| guard.is_some())).join().unwrap()
    /// });
    /// assert!(!of_another_thread?);
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn in_memory() -> LockManager {
        LockManager::new(Arc::new(Session::in_memory(Settings::default(), None)))
    }

    /// A builder for a manager [in memory](LockManager::in_memory) with options of its own.
    ///
    /// [`build`](Builder::build) refuses settings that concern a server: logins, the database, TLS,
    /// sentinels, replicas. [`pool_size`](Builder::pool_size),
    /// [`connect_timeout`](Builder::connect_timeout), [`poll_every`](Builder::poll_every),
    /// [`client_tracking`](Builder::client_tracking) and [`local_handoff`](Builder::local_handoff)
    /// have no effect.
    ///
    /// ```
    /// let locks = relatch::LockManager::builder_in_memory().fenced(true).build()?;
    /// assert!(locks.lock("orders:42")?.fence().is_some());
    /// # Ok::<(), relatch::Error>(())
    /// ```
    pub fn builder_in_memory() -> Builder {
        Builder::at(Ok(None))
    }
}

impl Builder {
    /// Refuses options that only a server has, if there is none.
    pub(super) fn check_without_server(&self) -> Result<(), Error> {
        if !matches!(self.address, Ok(None)) {
            return Ok(());
        }
        let refused = [
            ("credentials", self.credentials.is_some()),
            ("sentinel_login", self.sentinel_login.is_some()),
            ("tls", self.tls.is_some()),
            (
                "sentinel_tls",
                self.sentinel_tls.is_some() || self.sentinel_plaintext,
            ),
            ("replicas", self.settings.replicas.is_some()),
        ];
        match refused.into_iter().find(|(_, is_set)| *is_set) {
            Some((option, _)) => Err(without_server(option)),
            None => Ok(()),
        }
    }
}

/// The error for an option that only a server has.
pub(super) fn without_server(option: &'static str) -> Error {
    let reason = "there is no server: the manager is in memory";
    Error::InvalidOption {
        option,
        value: None,
        reason,
    }
}
