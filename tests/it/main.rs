//! The integration tests, against real servers; faults come from the proxy in `tests/rig`.
//!
//! Each folder has a `mod.rs` that says what is in each of its files. A test named `row_NN_...` is
//! a fault of the table in `docs/guarantees.md`.

// Here, `#[test]` is the one of `tests/limit`: a test that hangs ends the run, and is named.
#[macro_use(test)]
extern crate relatch_limit;

// What a program calls.
mod calls;
// Who holds a lock, and who is next.
mod turns;
// Several holders at a time.
mod slots;
// How long a hold is valid, and what its thread can ask about it.
mod leases;
// Faults on the wire, between a program and a server that is well.
mod wire;
// Servers that refuse, stall or lie.
mod servers;
// More than one server.
mod many;
// What the tests share.
mod support;
// The repository itself: layers, sizes, versions, names and links in the docs.
mod tidy;

/// A worker process begins here. In an ordinary run of the tests there is no role, and this test
/// does nothing.
#[test]
fn worker_entry() {
    if let Some(role) = relatch_rig::role::name() {
        support::worker_roles::run_role(&role);
    }
}
