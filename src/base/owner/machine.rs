//! Whether the process that wrote a token is certainly dead: for `reclaim_dead`.
//!
//! The first eight hex digits of a nonce identify the machine's boot and the pid namespace: they
//! are a hash of the boot id and of the namespace's inode number. If a token has the digits of this
//! process, then the process id in the token means the same process here. (The system reuses an
//! inode number only when all processes of its namespace have ended.)

use std::io;

use crate::base::owner::Owner;
use crate::base::random;

/// The eight hex digits for this boot and pid namespace, as a number. If the system does not
/// provide them, they are random, so that they match no other process.
pub(crate) fn digits() -> io::Result<u32> {
    known().map_or_else(|| random::bits().map(|bits| (bits >> 96) as u32), Ok)
}

#[cfg(target_os = "linux")]
fn known() -> Option<u32> {
    #[cfg(test)]
    if crate::base::sync::scheduler::inside() {
        return Some(0); // All processes of a run are on one machine.
    }
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    Some(fnv(boot.trim().bytes().chain(namespace.to_str()?.bytes())))
}

#[cfg(not(target_os = "linux"))]
fn known() -> Option<u32> {
    None
}

/// The hash FNV-1a (<http://www.isthe.com/chongo/tech/comp/fnv/>). Unlike the hashers of `std`, it
/// is the same in every version and in every process.
#[cfg(any(target_os = "linux", test))]
fn fnv(bytes: impl Iterator<Item = u8>) -> u32 {
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

/// True only if the token's process ran in this boot and pid namespace, and no longer exists.
pub(crate) fn is_dead(token: &str, host: &str, digits: u32) -> bool {
    let nonce = token.rsplit('-').next().unwrap_or_default();
    let Some(owner) = Owner::parse(token) else {
        return false;
    };
    &*owner.host == host && nonce.starts_with(&format!("{digits:08x}")) && is_gone(owner.pid)
}

#[cfg(target_os = "linux")]
fn is_gone(pid: u32) -> bool {
    #[cfg(test)]
    if let Some(is_dead) = crate::base::sync::scheduler::is_dead(pid) {
        return is_dead;
    }
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    // Only "no such process" proves the end. If the answer is "not permitted", the process exists.
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

#[cfg(not(target_os = "linux"))]
fn is_gone(_: u32) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_fnv_1a() {
        assert_eq!(fnv("".bytes()), 0x811c_9dc5);
        assert_eq!(fnv("foobar".bytes()), 0xbf9c_f968);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn only_a_process_of_this_machine_that_has_ended_is_dead() {
        let here = digits().unwrap();
        assert_eq!(here, digits().unwrap());
        let token = |pid: u32, digits: u32| format!("host-{pid}-1-{digits:08x}{}", "0".repeat(24));
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(
            !is_dead(&token(child.id(), here), "host", here),
            "a zombie still exists"
        );
        child.wait().unwrap();
        assert!(is_dead(&token(child.id(), here), "host", here));
        assert!(
            !is_dead(&token(child.id(), here), "other", here),
            "another host"
        );
        assert!(
            !is_dead(&token(child.id(), !here), "host", here),
            "another machine or namespace"
        );
        assert!(
            !is_dead(&token(std::process::id(), here), "host", here),
            "alive"
        );
        assert!(
            !is_dead(&token(1, here), "host", here),
            "alive, perhaps of another user"
        );
        assert!(!is_dead(&token(0, here), "host", here) && !is_dead("nonsense", "host", here));
    }
}
