//! The hand-written lock of many programs: a pool of r2d2 over the `redis` crate, and a loop that
//! sleeps.

use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{COMPARE_AND_DELETE, LEASE_MS, Lock};

const PAUSE: Duration = Duration::from_millis(100);

/// A pool with r2d2's defaults: it sends a `PING` whenever it lends a connection.
pub(crate) struct ByHand {
    pool: r2d2::Pool<redis::Client>,
    release: redis::Script,
}

impl ByHand {
    pub(crate) fn open(url: &str) -> Result<ByHand> {
        let pool = r2d2::Pool::new(redis::Client::open(url)?)?;
        Ok(ByHand {
            pool,
            release: redis::Script::new(COMPARE_AND_DELETE),
        })
    }
}

impl Lock for ByHand {
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let token = format!("{:032x}", rand::random::<u128>());
        let mut connection = self.pool.get()?;
        let mut set = redis::cmd("SET");
        set.arg(key).arg(&token).arg("NX").arg("PX").arg(LEASE_MS);
        while set.query::<Option<String>>(&mut *connection)?.is_none() {
            thread::sleep(PAUSE);
        }
        drop(connection);
        inside();
        let removed: u64 = self
            .release
            .key(key)
            .arg(&token)
            .invoke(&mut *self.pool.get()?)?;
        ensure!(removed == 1, "the lock was lost");
        Ok(0)
    }
}
