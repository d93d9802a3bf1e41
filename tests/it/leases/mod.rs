//! How long a hold is valid, and what its thread can ask about it.

// `ensure`, `extend`, `verify`, `held` and `stats`.
mod extend_ensure_verify;
// A thread and its own hold: `current`, `assert_held`, `confirm`, locks that are not reentrant.
mod own_hold;
// `keep_at_least`: a lock that is released early stays taken.
pub(crate) mod keep_at_least;
// From when a renewed lease counts, and what renewals that fail, are late or stop do to a hold.
pub(crate) mod renewals;
// The rounds of the keeper: renewals and clean-ups go out together, and none waits for another.
mod keeper_rounds;
// Holds that are lost: who is notified, how soon, and with which cause.
mod reports_of_losses;
// The clock and Redis disagree on a hold: late releases, keys that come back, refused renewals.
mod disputed_holds;
// A wall clock that jumps changes no hold and no wait.
pub(crate) mod wall_clock;
