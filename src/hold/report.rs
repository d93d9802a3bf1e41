//! What a program learns about holds: those of the process, and what became of a guard.

use std::fmt;
use std::time::{Duration, Instant};

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::owner::Owner;
use crate::hold::Hold;

/// A lock that a thread of this process holds, as listed by
/// [`LockManager::held`](crate::LockManager::held).
///
/// This is a snapshot: the thread may have released the lock since. A lock that was lost is listed
/// until its guards are dropped, or until
/// [`shutdown_and_release`](crate::LockManager::shutdown_and_release) has given it back.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The lock's key.
    pub key: String,
    /// The thread that took it. If the hold was [detached](crate::LockGuard::detach), another
    /// thread may have it now, or none.
    pub owner: Owner,
    /// Its [fencing token](crate::LockGuard::fence). `None` if it is not fenced.
    pub fence: Option<u64>,
    /// How many guards of the thread are alive. 1 for a detached hold.
    pub depth: u32,
    /// How long ago it was taken.
    pub held_for: Duration,
    /// How long the hold can be trusted without another renewal. Zero once it is lost.
    pub remaining: Duration,
    /// How often it was renewed.
    pub renewals: u32,
    /// How the hold was lost. `None` if it was not, or if the manager has not found out yet.
    pub lost: Option<LostCause>,
}

/// What became of a guard that was [unlocked](crate::LockGuard::unlock).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unlocked {
    /// It was the last guard: the lock is released in Redis.
    Released,
    /// Other guards of this thread are alive: the lock is still held.
    StillHeld {
        /// How many guards are left.
        depth: u32,
    },
    /// It was the last guard, but the lock stays taken for a while: see
    /// [`keep_at_least`](crate::Lock::keep_at_least).
    #[non_exhaustive]
    Kept {
        /// When the lock will be free.
        until: Instant,
    },
}

impl fmt::Display for Unlocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unlocked::Released => f.write_str("released"),
            Unlocked::StillHeld { depth: 1 } => f.write_str("still held by one guard"),
            Unlocked::StillHeld { depth } => write!(f, "still held by {depth} guards"),
            Unlocked::Kept { until } => {
                write!(
                    f,
                    "kept for {:.1?}",
                    until.saturating_duration_since(Instant::now())
                )
            }
        }
    }
}

/// One line for a log.
impl fmt::Display for HeldLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let HeldLock {
            key,
            owner,
            depth,
            held_for,
            remaining,
            lost,
            ..
        } = self;
        write!(
            f,
            "lock {key:?}, held by {owner} for {held_for:.1?} ({depth} deep), "
        )?;
        match lost {
            Some(cause) => write!(f, "lost: {cause}"),
            None => write!(f, "valid for {remaining:.1?}"),
        }
    }
}

impl HeldLock {
    pub(crate) fn new(hold: &Hold, now: Moment) -> HeldLock {
        HeldLock {
            key: hold.key.name().to_string(),
            owner: hold.owner.clone(),
            fence: hold.fence,
            depth: hold.depth(),
            held_for: now.since(hold.acquired.answered),
            remaining: hold.remaining(now),
            renewals: hold.renewals(),
            lost: hold.lost(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::tests::sample;

    #[test]
    fn a_hold_is_one_line_for_a_log() {
        let sent = Moment::from_nanos(1_000_000_000);
        let hold = sample("a", Duration::from_secs(30), sent);
        let owner = hold.owner.clone();
        let lock = HeldLock::new(&hold, sent.after(Duration::from_millis(1_500)));
        let left = lock.remaining;
        assert_eq!(
            lock.to_string(),
            format!("lock \"a\", held by {owner} for 1.5s (1 deep), valid for {left:.1?}")
        );
    }
}
