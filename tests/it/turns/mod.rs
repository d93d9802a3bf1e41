//! Who holds a lock, and who is next.

// One holder at a time: a counter with a lost-update race loses no update.
pub(crate) mod mutual_exclusion;
// Threads: reentry, the order in which guards are dropped, panics.
mod threads;
// Managers, guards and locks in thread-locals, which are dropped when their thread ends.
pub(crate) mod thread_exit;
// Processes that are stopped, suspended, forked, killed, or exit with a lock.
pub(crate) mod processes;
// A waiter sleeps until the lock is free, and is then woken, however the hold ends.
mod wakeups;
// Redis's invalidations: the listener is killed or refused, and waiters poll instead.
pub(crate) mod invalidations;
// Fencing tokens: what is sent, what is refused, what the counter is.
pub(crate) mod fence;
// Fencing tokens as a resource sees them: they grow, whatever happens to the counter.
mod fence_growth;
// `force_unlock`, and `reclaim_dead`, which takes over from certainly dead processes only.
mod taken_away;
