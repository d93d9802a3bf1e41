//! Keeping what is held: renewing leases, reporting losses, deleting orphans.
//!
//! [`keeper`] is the thread (Redisson calls it watchdog). [`shared`] is what it shares with other
//! threads, [`renewal`] is what it does in one round, and [`connection`] sends its commands to
//! Redis. [`leases`] and [`orphans`] are tables of what is due when. [`losses`] calls `on_lost`.
//! [`slow`] warns of what lasts long, and [`thread_map`] is what one thread holds.
//! This room may use `waiting`, `hold`, `store` and `base`.

pub(crate) mod keeper;
pub(crate) mod renewal;
pub(crate) mod renewers;
pub(crate) mod connection;
pub(crate) mod shared;
mod leases;
pub(crate) mod orphans;
pub(crate) mod losses;
mod slow;
