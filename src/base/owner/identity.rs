//! This process, as the tokens of its locks name it; and how a token is made.

use std::io;
use std::sync::Arc;

use crate::base::owner::{Owner, host_name, machine, process};
use crate::base::{random, seeded_bugs, sync};

/// This process, as the tokens of its locks name it.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    host: Arc<str>,
    /// The digits with which the nonces of this machine's tokens begin.
    machine: String,
}

impl Identity {
    pub(crate) fn of_this_process() -> io::Result<Identity> {
        Ok(Identity::with(machine::digits()?))
    }

    /// For locks that no other process can see.
    pub(crate) fn in_memory() -> Identity {
        Identity::with("0".repeat(8))
    }

    fn with(machine: String) -> Identity {
        Identity {
            pid: sync::process::id(),
            host: host_name(),
            machine,
        }
    }

    /// The calling thread, as an owner of locks.
    pub(crate) fn this_thread(&self) -> Owner {
        Owner::new(
            Arc::clone(&self.host),
            self.pid,
            process::thread_id(self.pid),
        )
    }

    /// Makes the token for one outermost acquisition: owner and nonce.
    ///
    /// Without a nonce, a delayed release of a thread's first hold would delete the key of its
    /// second hold. And two containers with the same host name and process id 1 could have the same
    /// token. The first eight digits of the nonce identify the machine (see `machine`). The other
    /// 96 bits are random.
    pub(crate) fn fresh_token(&self, owner: &Owner) -> io::Result<String> {
        fresh_token(owner, &self.machine)
    }

    /// True only if the token's process ran in this boot and pid namespace, and no longer exists.
    pub(crate) fn is_certainly_dead(&self, token: &str) -> bool {
        machine::is_dead(token, &self.host, &self.machine)
    }
}

pub(super) fn fresh_token(owner: &Owner, machine: &str) -> io::Result<String> {
    let random = if seeded_bugs::is_in("no nonce") {
        0
    } else {
        random::bits()? >> 32
    };
    Ok(format!("{owner}-{machine}{random:024x}"))
}
