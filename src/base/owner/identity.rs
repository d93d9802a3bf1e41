//! This process, as the tokens of its locks name it; and how a token is made.

use std::io;
use std::sync::Arc;

use crate::base::owner::{Owner, host_name, machine, process};
use crate::base::sync::seeded_bugs;
use crate::base::{random, sync};

/// This process, as the tokens of its locks name it.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    host: Arc<str>,
    /// The digits of this machine.
    machine: u32,
    /// The digits with which the nonces of this process's tokens begin: the machine's, if others
    /// may find out by them that the process is dead.
    shown: u32,
}

impl Identity {
    pub(crate) fn of_this_process(reclaimable: bool) -> io::Result<Identity> {
        let machine = machine::digits()?;
        let shown = if reclaimable { machine } else { !machine };
        Ok(Identity::with(machine, shown))
    }

    /// For locks that no other process can see.
    pub(crate) fn in_memory() -> Identity {
        Identity::with(0, 0)
    }

    fn with(machine: u32, shown: u32) -> Identity {
        Identity {
            pid: sync::process::id(),
            host: host_name(),
            machine,
            shown,
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
    /// token. The first eight digits of the nonce identify the machine (see `machine`), or no
    /// machine, if the token is not `reclaimable`. The other 96 bits are random.
    pub(crate) fn fresh_token(&self, owner: &Owner) -> io::Result<String> {
        fresh_token(owner, self.shown)
    }

    /// True only if the token's process ran in this boot and pid namespace, and no longer exists.
    pub(crate) fn is_certainly_dead(&self, token: &str) -> bool {
        machine::is_dead(token, &self.host, self.machine)
    }
}

pub(super) fn fresh_token(owner: &Owner, shown: u32) -> io::Result<String> {
    let random = if seeded_bugs::is_in("no nonce") {
        0
    } else {
        random::bits()? >> 32
    };
    Ok(format!("{owner}-{shown:08x}{random:024x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The process may have left children that go on under its lock.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_looks_dead_only_if_its_tokens_are_reclaimable() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        let both = || [true, false].map(|it| Identity::of_this_process(it).unwrap());
        for (identity, looks_dead) in both().iter().zip([true, false]) {
            let owner = Owner::new(Arc::clone(&identity.host), child.id(), 1);
            let token = identity.fresh_token(&owner).unwrap();
            for asks in both() {
                assert_eq!(asks.is_certainly_dead(&token), looks_dead, "{asks:?}");
            }
        }
    }
}
