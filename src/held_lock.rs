//! One line of what this process holds.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::LostCause;
use crate::hold::Hold;
use crate::owner::Owner;

/// A lock that a thread of this process holds: by [`LockManager::held`](crate::LockManager::held).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldLock {
    /// The lock's key.
    pub key: String,
    /// The thread that holds it.
    pub owner: Owner,
    /// How many guards are alive.
    pub depth: u32,
    /// How long it has been held.
    pub held_for: Duration,
    /// How long it may be trusted yet without another renewal: zero once it is lost.
    pub valid_for: Duration,
    /// How often it was renewed.
    pub renewals: u32,
    /// How it was lost, if it was, and if that is known already. Its guards are still there.
    pub lost: Option<LostCause>,
}

impl HeldLock {
    pub(crate) fn new(hold: &Hold, now: Moment) -> HeldLock {
        HeldLock {
            key: hold.key.name().to_string(),
            owner: hold.owner.clone(),
            depth: hold.depth(),
            held_for: now.since(hold.since.answered),
            valid_for: hold.remaining(now),
            renewals: hold.renewals(),
            lost: hold.lost(),
        }
    }
}
