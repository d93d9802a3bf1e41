//! The crate `redlock`, over one server, with its defaults: three tries, up to 200 ms apart, a
//! connection per command.

use anyhow::Result;
use redlock::RedLock;

use super::{LEASE_MS, Lock};

/// The lock manager of that crate, which keeps no connections.
pub(crate) struct Redlock {
    locks: RedLock,
}

impl Redlock {
    pub(crate) fn open(url: &str) -> Redlock {
        Redlock {
            locks: RedLock::new(vec![url]),
        }
    }
}

impl Lock for Redlock {
    /// Calls `lock` again and again, as the crate's `acquire` does. The loop is here, so that it
    /// can count how often `lock` gave up.
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let mut gave_up = 0;
        let lock = loop {
            match self.locks.lock(key.as_bytes(), LEASE_MS as usize)? {
                Some(lock) => break lock,
                None => gave_up += 1,
            }
        };
        inside();
        // `unlock` returns nothing, so a failure goes unnoticed.
        self.locks.unlock(&lock);
        Ok(gave_up)
    }
}
