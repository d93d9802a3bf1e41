//! `PING` and the floor: one plain connection, and nothing around it. Neither is a lock, so no
//! thread can wait for it.

use std::sync::{Mutex, PoisonError};

use anyhow::{Result, ensure};

use super::{COMPARE_AND_DELETE, Lock};

/// One round trip.
pub(crate) struct Ping {
    connection: Mutex<redis::Connection>,
}

/// The two round trips that a lock of this kind cannot do without.
pub(crate) struct Floor {
    connection: Mutex<redis::Connection>,
    release: redis::Script,
    lease: u32,
}

impl Ping {
    pub(crate) fn open(url: &str) -> Result<Ping> {
        Ok(Ping {
            connection: connect(url)?,
        })
    }
}

impl Floor {
    pub(crate) fn open(url: &str, lease: u32) -> Result<Floor> {
        Ok(Floor {
            connection: connect(url)?,
            release: redis::Script::new(COMPARE_AND_DELETE),
            lease,
        })
    }
}

impl Lock for Ping {
    fn turn(&self, _key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        redis::cmd("PING").exec(&mut *connection)?;
        inside();
        Ok(0)
    }
}

impl Lock for Floor {
    fn turn(&self, key: &str, inside: &mut dyn FnMut()) -> Result<u64> {
        let token = "host-1-2-00112233445566778899aabbccddeeff";
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let mut set = redis::cmd("SET");
        set.arg(key).arg(token).arg("NX").arg("PX").arg(self.lease);
        ensure!(
            set.query::<Option<String>>(&mut *connection)?.is_some(),
            "somebody else has it"
        );
        inside();
        let removed: u64 = self.release.key(key).arg(token).invoke(&mut *connection)?;
        ensure!(removed == 1, "the key was gone");
        Ok(0)
    }
}

fn connect(url: &str) -> Result<Mutex<redis::Connection>> {
    Ok(Mutex::new(redis::Client::open(url)?.get_connection()?))
}
