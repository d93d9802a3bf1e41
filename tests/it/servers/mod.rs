//! Servers that refuse, stall or lie.

// Redis refuses commands, forgets scripts, or has another value at the key.
mod refusals;
// Redis stalls: `CLIENT PAUSE`, `DEBUG SLEEP`, a script without an end.
mod stalled_server;
mod survey;
mod forms;
// Redis before 7: the code of an error inside a script is in the middle of the message.
mod old_servers;
// ACLs: which rights are needed, and what an error says about a missing one.
mod acl_rights;
// A server that answers with garbage: callers get an error, in time, and nothing breaks.
pub(crate) mod hostile_server;
// An answer that comes twice: each later one comes in the place of the one before it.
mod repeated_answers;
