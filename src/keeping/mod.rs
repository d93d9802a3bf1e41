//! Keeping what is held: renewals, late releases, and the notice of a loss.
//!
//! [`keeper`] is the thread (Redisson calls it watchdog), [`shared`] what it shares with the
//! session, [`renewal`] what it says to Redis. [`leases`] and [`orphans`] are tables of what is due
//! when. May use `waiting`, `hold`, `store` and `base`.

pub(crate) mod keeper;
pub(crate) mod renewal;
pub(crate) mod shared;
mod leases;
pub(crate) mod orphans;
pub(crate) mod losses;
pub(crate) mod thread_map;
