//! This crate, with all options at their defaults.

use std::time::Duration;

use anyhow::Result;
use relatch::{LockGuard, LockManager};

use super::{Held, Lock, Said};

/// One manager per process.
pub(crate) struct Relatch {
    locks: LockManager,
    /// Whether Redis is asked if a hold is still held.
    asks: bool,
}

impl Relatch {
    pub(crate) fn open(url: &str, lease: u32, asks: bool) -> Result<Relatch> {
        Ok(Relatch {
            locks: connect(url, lease)?,
            asks,
        })
    }
}

/// Slots, with all options at their defaults. One manager per process.
pub(crate) struct Slots {
    locks: LockManager,
    count: usize,
}

impl Slots {
    pub(crate) fn open(url: &str, lease: u32, count: u32) -> Result<Slots> {
        Ok(Slots {
            locks: connect(url, lease)?,
            count: count.try_into()?,
        })
    }
}

impl Lock for Slots {
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let guard = self.locks.slots(key, self.count).lock()?;
        inside();
        guard.unlock()?;
        Ok(0)
    }
}

impl Lock for Relatch {
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let guard = self.locks.lock(key)?;
        inside();
        guard.unlock()?;
        Ok(0)
    }

    fn take(&self, key: &str, wait: Duration) -> Result<Option<Box<dyn Held + '_>>> {
        let guard = self.locks.named(key).try_lock_for(wait)?;
        let asks = self.asks;
        Ok(guard.map(|guard| Box::new(Taken { guard, asks }) as Box<dyn Held>))
    }
}

struct Taken {
    guard: LockGuard,
    asks: bool,
}

impl Held for Taken {
    fn still(&self) -> Option<bool> {
        if !self.asks {
            return Some(self.guard.is_valid());
        }
        match self.guard.verify() {
            Ok(()) => Some(true),
            Err(error) => error.is_lost().then_some(false),
        }
    }

    fn release(self: Box<Self>) -> Said {
        match self.guard.unlock() {
            Ok(_) => Said::Ok,
            Err(error) if error.is_lost() => Said::Lost,
            Err(_) => Said::Unknown,
        }
    }
}

fn connect(url: &str, lease: u32) -> Result<LockManager> {
    let lease = Duration::from_millis(lease.into());
    Ok(LockManager::builder(url).lease(lease).build()?)
}
