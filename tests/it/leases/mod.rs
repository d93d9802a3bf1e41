//! How long a hold is valid, and what its thread can ask about it. What virtual time can show is in
//! `src/simulation/rows`.

// `ensure`, `extend`, `verify`, `held` and `stats`.
mod extend_ensure_verify;
// A thread and its own hold: `current`, `assert_held`, `confirm`, locks that are not reentrant.
mod own_hold;
// `keep_at_least`: a lock that is released early stays taken.
pub(crate) mod keep_at_least;
// Holds that are lost: who is notified, and with which cause.
mod reports_of_losses;
// A wall clock that jumps changes no hold and no wait.
pub(crate) mod wall_clock;
