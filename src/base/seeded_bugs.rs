//! Well-known bugs of locks on Redis, built in on purpose. `tests/history` has to find each of
//! these bugs: a checker that has never found a bug proves nothing.
//!
//! They exist only with a `cfg` that the package in `tests/flawed` sets for itself. In any other
//! build, [`is_in`] is always `false`, and the compiler removes the bugs.

const _: () = assert!(
    !cfg!(relatch_flawed) || matches!(env!("CARGO_PKG_NAME").as_bytes(), b"relatch-flawed"),
    "relatch_flawed is for the tests of relatch only"
);

/// True if the bug called `name` is switched on.
pub(crate) fn is_in(name: &str) -> bool {
    cfg!(relatch_flawed) && std::env::var("RELATCH_TEST_FLAW").is_ok_and(|chosen| chosen == name)
}
