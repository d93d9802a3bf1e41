//! The blocking lock of the crate `rlock`, with its defaults except for the lease: it tries again
//! every 100 ms.

use std::time::Duration;

use anyhow::Result;
use rlock::sync_lock::{RLock, RLockGuard};
use rlock::{AcquireError, AcquireOptions, LeaseState};

use super::{Held, Lock, Said};

/// One manager per process.
pub(crate) struct Rlock {
    locks: RLock,
    lease: Duration,
    options: AcquireOptions,
}

impl Rlock {
    pub(crate) fn open(url: &str, lease: u32) -> Result<Rlock> {
        let lease = Duration::from_millis(lease.into());
        let options = AcquireOptions::builder().ttl(lease).build()?;
        Ok(Rlock {
            locks: RLock::new(url)?,
            lease,
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

    fn take(&self, key: &str, wait: Duration) -> Result<Option<Box<dyn Held + '_>>> {
        let options = AcquireOptions::builder()
            .ttl(self.lease)
            .lock_timeout(Some(wait))
            .build()?;
        match self.locks.acquire_mutex_with_options(key, options) {
            Ok(guard) => Ok(Some(Box::new(guard))),
            Err(AcquireError::LockTimeout) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

impl Held for RLockGuard {
    fn still(&self) -> Option<bool> {
        Some(self.lease_state() == LeaseState::Active)
    }

    fn release(mut self: Box<Self>) -> Said {
        match RLockGuard::release(&mut self) {
            Ok(()) => Said::Ok,
            Err(_) => Said::Unknown,
        }
    }
}
