//! The integration tests, against real servers; faults come from the proxy in `tests/rig`.
//!
//! A test named `row_NN_...` is a fault of the table in `docs/guarantees.md`.

// Here, `#[test]` is the one of `tests/limit`: a test that hangs ends the run, and is named.
#[macro_use(test)]
extern crate relatch_limit;

// What a program calls.

// Lock, unlock and reentry: which commands each of them sends.
mod lock;
// Every public function, as a user calls it.
mod public_api;
// Closures under a lock: whether they run, and what an error says of that.
mod bodies;
// The login: one batch, credentials that change, and what is at the other end.
mod login;
// Options, keys and addresses: which are refused, and which are unusual and work.
mod input_validation;
// `ensure`, `extend`, `verify`, `held` and `stats`.
mod extend_ensure_verify;
// A thread and its own hold: `current`, `assert_held`, `confirm`, locks that are not reentrant.
mod own_hold;
// `keep_at_least`: a lock that is released early stays taken.
mod kept;
// Several locks at a time, and a lock inside of one that is lost.
#[cfg(target_os = "linux")]
mod several;
// Waits that the program stops, and managers that are shut down.
#[cfg(target_os = "linux")]
mod stopping;
// A hold that goes to another thread or process: `detach`, `attach`, `hand_over`, `adopt`.
mod handed_over;
// Locks without a Redis: the controls for tests, disabled locks, `install_for_test`.
mod in_memory;
// What is the same with a Redis and in memory: each test runs over both.
mod either_store;
// `force_unlock`, and a key deleted by hand: a waiter of the same process takes the lock at once.
mod force_unlock;
// `reclaim_dead`: the lock of a process that is certainly dead, and of no other, is taken over.
mod reclaim_dead;
// What is logged, and under which target.
mod logs;
// Waits and holds as a program, its log and its monitoring system see them.
#[cfg(target_os = "linux")]
mod seen;
// The feature `metrics`: the same numbers, through the recorder of the `metrics` crate.
#[cfg(all(target_os = "linux", feature = "metrics"))]
mod recorded;
// The password is in no error, `Debug`, log line or panic.
mod secrets;

// Who holds a lock, and who is next.

// One holder at a time: a counter with a lost-update race loses no update.
mod mutual_exclusion;
// Deadlocks within the process, and what a timeout says about those between processes.
mod deadlocks;
// Threads: reentry, the order in which guards are dropped, panics, deadlocks.
mod threads;
// Managers, guards and locks in thread-locals, which are dropped when their thread ends.
mod thread_exit;
// Processes that are stopped, suspended, forked, killed, or exit with a lock.
mod processes;
// Hand-offs within a process: each takes one round trip, and other processes still get turns.
mod handoff;
// A waiter sleeps until the lock is free, and is then woken, however the hold ends.
mod wakeups;
// Redis's invalidations: the listener is lost, refused or silent, and waiters poll instead.
mod invalidations;
// How a wait ends without the lock: busy, or an outage.
mod busy_or_outage;
// Replicas that have to acknowledge a lock and its renewals before these count.
mod replicas;
// Fencing tokens: what is sent, what is refused, what the counter is.
mod fence;
// Fencing tokens as a resource sees them: they grow, whatever happens to the counter.
mod fence_growth;

// How long a hold is valid.

// The keeper renews leases: from when a renewed lease counts, and when renewals fail or stop.
mod renewal;
// Renewals and clean-ups go out together, and none waits for another.
mod keeper;
// Holds that are lost: who is notified, how soon, and with which cause.
mod lost_holds;
// The clock and Redis disagree on a hold: late releases, keys that come back, refused renewals.
mod clock_versus_redis;
// An answer later than the lease, and a wall clock that jumps.
mod clocks;

// Faults on the wire.

// A command is executed, or will be, and its answer is lost.
mod lost_answers;
// An answer, an invalidation or Redis itself comes too late while a thread waits.
mod late_answers;
// Black holes, broken replies, and a Redis that is not up yet: every call ends by its deadline.
mod outages;
// TLS: which servers are trusted, and that deadlines, late replies and wake-ups hold there, too.
#[cfg(feature = "tls")]
mod tls;
// The exclusion and the faults once more, over TLS.
#[cfg(feature = "tls")]
mod faults_over_tls;
// Connections that are dead while Redis is well: forgotten by a firewall, or closed while idle.
mod dead_connections;
// Half-open connections. A slow connection must not be taken for half-open.
mod half_open_connections;
// A proxy that forwards a command and then answers with an error of its own.
mod proxy_errors;
// What remains of an earlier fault shortens no lease and prolongs no wait.
mod after_faults;

// Servers that refuse, stall or lie.

// Redis refuses commands, forgets scripts, or has another value at the key.
mod refusals;
// Redis stalls: `CLIENT PAUSE`, `DEBUG SLEEP`, a script without an end.
mod stalled_server;
// Redis before 7: the code of an error inside a script is in the middle of the message.
mod old_servers;
// ACLs: which rights are needed, and what an error says about a missing one.
mod acl_rights;
// A server that answers with garbage: callers get an error, in time, and nothing breaks.
mod hostile_server;
// An answer that comes twice: each later one comes in the place of the one before it.
mod repeated_answers;

// More than one server.

// Sentinel: the master dies, hangs or is replaced; sentinels are silent, wrong or gone.
mod sentinel;
// Sentinels that a test plays: reports to the millisecond, and sentinels that disagree.
mod sentinel_reports;
// TLS to the master that sentinels name, and to the sentinels.
#[cfg(feature = "tls")]
mod sentinel_tls;
// Failovers that lose what replicas lack, and the exclusion over failovers.
mod failovers;
// Redis Cluster: which node a command goes to, how a cluster is found, and what errors say.
mod cluster;
// Redis Cluster: slots that move, and nodes that come and go.
mod cluster_moves;
// Redis Cluster: nodes that die, are silent or are failed over.
mod cluster_faults;

// What the tests share.

// A rig of manager, proxy and server, and what a lock looks like from Redis.
mod support;
// The roles of worker processes.
mod worker_roles;
// The server behind `hostile_server`: it replies as Redis does, except to one command.
mod lying_server;
// What that server replies to this command: garbage.
mod garbage_replies;

// The repository itself: layers, sizes, versions, names and links in the docs.
mod tidy;

/// A worker process begins here. In an ordinary run of the tests there is no role, and this test
/// does nothing.
#[test]
fn worker_entry() {
    if let Some(role) = relatch_rig::role::name() {
        worker_roles::run_role(&role);
    }
}
