//! Keeping what is held: renewing leases, reporting losses, deleting orphans.
//!
//! [`keeper`] is the thread (Redisson calls it watchdog), with what other threads ask of it.
//! [`renewers`] do its work, one for each node, and [`renewal`] is one round of that; `connection`
//! sends its commands to Redis. [`losses`] calls `on_lost`, and `slow` warns of what lasts long.
//! [`work`] is what the keeper's threads share. [`tokens`] is the table of all tokens: `leases` has
//! those that are held, each with what is in `due`, and [`orphans`] those that are to be deleted.
//! This room may use `waiting`, `hold`, `store` and `base`.

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
