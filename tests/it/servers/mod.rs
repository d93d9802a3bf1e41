//! Servers that refuse, stall or lie.

// Redis refuses commands, forgets scripts, or has another value at the key.
mod refusals;
// Redis stalls: `CLIENT PAUSE`, a script without an end.
mod stalled_server;
mod survey;
mod forms;
// ACLs: which rights are needed, and what an error says about a missing one.
mod acl_rights;
// A server that answers with garbage: callers get an error, in time, and nothing breaks.
pub(crate) mod hostile_server;
