//! The crate `redlock`, over one server, with its defaults: three tries, up to 200 ms apart, a
//! connection per command.

use std::time::{Duration, Instant};

use anyhow::Result;
use redlock::RedLock;

use super::{Held, Lock, Said};

/// The lock manager of that crate, which keeps no connections.
pub(crate) struct Redlock {
    locks: RedLock,
    lease: usize,
}

impl Redlock {
    pub(crate) fn open(url: &str, lease: u32) -> Redlock {
        Redlock {
            locks: RedLock::new(vec![url]),
            lease: lease as usize,
        }
    }
}

impl Lock for Redlock {
    /// Calls `lock` again and again, as the crate's `acquire` does. The loop is here, so that it
    /// can count how often `lock` gave up.
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let mut gave_up = 0;
        let lock = loop {
            match self.locks.lock(key.as_bytes(), self.lease)? {
                Some(lock) => break lock,
                None => gave_up += 1,
            }
        };
        inside();
        // `unlock` returns nothing, so a failure goes unnoticed.
        self.locks.unlock(&lock);
        Ok(gave_up)
    }

    fn take(&self, key: &str, wait: Duration) -> Result<Option<Box<dyn Held + '_>>> {
        let end = Instant::now() + wait;
        loop {
            if let Some(lock) = self.locks.lock(key.as_bytes(), self.lease)? {
                let valid = Duration::from_millis(lock.validity_time as u64);
                let until = Instant::now() + valid;
                return Ok(Some(Box::new(Taken { lock, until })));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
        }
    }
}

/// A lock, and the time until which it says that it is valid.
struct Taken<'a> {
    lock: redlock::Lock<'a>,
    until: Instant,
}

impl Held for Taken<'_> {
    fn still(&self) -> Option<bool> {
        Some(Instant::now() < self.until)
    }

    fn release(self: Box<Self>) -> Said {
        self.lock.lock_manager.unlock(&self.lock);
        Said::Nothing
    }
}
