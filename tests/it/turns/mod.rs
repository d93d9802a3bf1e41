//! Who holds a lock, and who is next.

// One holder at a time: a counter with a lost-update race loses no update.
pub(crate) mod mutual_exclusion;
// Deadlocks within the process, and what a timeout says about those between processes.
pub(crate) mod deadlocks;
// Threads: reentry, the order in which guards are dropped, panics, deadlocks.
mod threads;
// Managers, guards and locks in thread-locals, which are dropped when their thread ends.
pub(crate) mod thread_exit;
// Processes that are stopped, suspended, forked, killed, or exit with a lock.
pub(crate) mod processes;
// Hand-offs within a process: each takes one round trip, and other processes still get turns.
mod handoffs;
// A waiter sleeps until the lock is free, and is then woken, however the hold ends.
mod wakeups;
// Redis's invalidations: the listener is lost, refused or silent, and waiters poll instead.
pub(crate) mod invalidations;
// How a wait ends without the lock: busy, or an outage.
mod busy_or_outage;
// Fencing tokens: what is sent, what is refused, what the counter is.
pub(crate) mod fence;
// Fencing tokens as a resource sees them: they grow, whatever happens to the counter.
pub(crate) mod fence_growth;
// `force_unlock`, and a key deleted by hand: a waiter of the same process takes the lock at once.
mod force_unlock;
// `reclaim_dead`: the lock of a process that is certainly dead, and of no other, is taken over.
mod reclaim_dead;
