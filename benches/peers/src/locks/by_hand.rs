//! The hand-written lock of many programs: a pool of r2d2 over the `redis` crate, and a loop that
//! sleeps.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::{COMPARE_AND_DELETE, Held, Lock, Said};

const PAUSE: Duration = Duration::from_millis(100);

/// A pool with r2d2's defaults: it sends a `PING` whenever it lends a connection.
pub(crate) struct ByHand {
    pool: r2d2::Pool<redis::Client>,
    release: redis::Script,
    lease: u32,
}

impl ByHand {
    pub(crate) fn open(url: &str, lease: u32) -> Result<ByHand> {
        let pool = r2d2::Pool::new(redis::Client::open(url)?)?;
        Ok(ByHand {
            pool,
            release: redis::Script::new(COMPARE_AND_DELETE),
            lease,
        })
    }

    /// Asks until the lock is taken, and returns its token; `None` if it is busy until `end`.
    fn set(&self, key: &str, end: Option<Instant>) -> Result<Option<String>> {
        let token = format!("{:032x}", rand::random::<u128>());
        let mut connection = self.pool.get()?;
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&token).arg("NX").arg("PX").arg(self.lease);
        while set.query::<Option<String>>(&mut *connection)?.is_none() {
            if end.is_some_and(|end| Instant::now() >= end) {
                return Ok(None);
            }
            thread::sleep(PAUSE);
        }
        Ok(Some(token))
    }

    fn delete(&self, key: &str, token: &str) -> Result<bool> {
        let removed: u64 = self
            .release
            .key(key)
            .arg(token)
            .invoke(&mut *self.pool.get()?)?;
        Ok(removed == 1)
    }
}

impl Lock for ByHand {
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let token = self.set(key, None)?.context("a token")?;
        inside();
        ensure!(self.delete(key, &token)?, "the lock was lost");
        Ok(0)
    }

    fn take(&self, key: &str, wait: Duration) -> Result<Option<Box<dyn Held + '_>>> {
        let token = self.set(key, Some(Instant::now() + wait))?;
        Ok(token.map(|token| {
            Box::new(Taken {
                lock: self,
                key: key.to_owned(),
                token,
            }) as Box<dyn Held>
        }))
    }
}

struct Taken<'a> {
    lock: &'a ByHand,
    key: String,
    token: String,
}

impl Held for Taken<'_> {
    fn release(self: Box<Self>) -> Said {
        match self.lock.delete(&self.key, &self.token) {
            Ok(true) => Said::Ok,
            Ok(false) => Said::Lost,
            Err(_) => Said::Unknown,
        }
    }
}
