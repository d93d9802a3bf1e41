//! Keeping what is held: renewing leases, reporting losses, deleting orphans.
//!
//! [`keeper`] is the thread (Redisson calls it the watchdog), with the requests of other threads to
//! it. [`renewers`] do its work, one for each node, and [`renewal`] is one round of that;
//! `connection` sends its commands to Redis. [`losses`] calls `on_lost`, and `slow` warns of long
//! waits and holds. [`work`] is the state that the keeper's threads share. [`tokens`] is the table
//! of all tokens: `leases` has those that are held, each with its entry from `due`, and [`orphans`]
//! those that are to be deleted. This room may use `waiting`, `hold`, `store` and `base`.

pub(crate) mod keeper;
mod renewers;
pub(crate) mod renewal;
pub(crate) mod connection;
mod slow;
pub(crate) mod work;
pub(crate) mod losses;
mod leases;
pub(crate) mod tokens;
mod due;
pub(crate) mod orphans;
