//! The blocking lock of the crate `rlock`, with its defaults except for the lease: it tries again
//! every 100 ms.

use std::time::Duration;

use anyhow::Result;
use rlock::AcquireOptions;
use rlock::sync_lock::RLock;

use super::{LEASE_MS, Lock};

/// One manager per process.
pub(crate) struct Rlock {
    locks: RLock,
    options: AcquireOptions,
}

impl Rlock {
    pub(crate) fn open(url: &str) -> Result<Rlock> {
        let options = AcquireOptions::builder()
            .ttl(Duration::from_millis(LEASE_MS.into()))
            .build()?;
        Ok(Rlock {
            locks: RLock::new(url)?,
            options,
        })
    }
}

impl Lock for Rlock {
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let mut guard = self
            .locks
            .acquire_mutex_with_options(key, self.options.clone())?;
        inside();
        // Dropping the guard would only queue the release.
        guard.release()?;
        Ok(0)
    }
}
