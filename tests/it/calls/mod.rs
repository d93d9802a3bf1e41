//! What a program calls.

// Lock, unlock and reentry: which commands each of them sends.
mod commands_sent;
// Every public function, as a user calls it.
pub(crate) mod public_api;
// Closures under a lock: whether they run, and what an error says of that.
mod bodies;
// Options, keys and addresses: which are refused, and which are unusual and work.
pub(crate) mod input_validation;
// Several locks at a time, and a lock inside of one that is lost.
mod several;
// A hold that goes to another process: `hand_over`, `adopt`.
pub(crate) mod moved_holds;
// Locks without a Redis: the controls for tests, `install_for_test`.
mod in_memory;
// What is the same with a Redis and in memory: each test runs over both.
mod either_store;
// What is logged, and under which target.
pub(crate) mod logs;
// Waits and holds as a program, its log and its monitoring system see them.
#[cfg(target_os = "linux")]
mod monitoring;
// The features `metrics` and `tracing`: the same numbers, and spans, for the program's own recorder
// and subscriber.
#[cfg(all(target_os = "linux", feature = "metrics", feature = "tracing"))]
mod recorder;
// The password is in no error, `Debug`, log line or panic.
pub(crate) mod secrets;
