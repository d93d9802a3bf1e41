//! Mistakes that locks on Redis are known to make, for the checker of `tests/history` to find: a checker that has never found
//! anything shows nothing.
//!
//! They exist only under a `cfg` that `tests/flawed` sets for itself, and that no other package compiles with. Without it,
//! [`is_in`] is `false` before the program runs.

const _: () = assert!(
    !cfg!(relatch_flawed) || matches!(env!("CARGO_PKG_NAME").as_bytes(), b"relatch-flawed"),
    "relatch_flawed is for the tests of relatch only"
);

/// Whether this build makes the mistake called `name`.
pub(crate) fn is_in(name: &str) -> bool {
    cfg!(relatch_flawed) && std::env::var("RELATCH_TEST_FLAW").is_ok_and(|seeded_bugs| seeded_bugs == name)
}
