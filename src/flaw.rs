//! Mistakes that locks on Redis are known to make, for the checker of `tests/history` to find: a checker that has never found
//! anything shows nothing.
//!
//! They exist only under a `cfg` that `tests/flawed` sets for itself. In any other build, [`is_in`] is `false` before
//! the program is compiled.

/// Whether this build makes the mistake called `name`.
pub(crate) fn is_in(name: &str) -> bool {
    cfg!(relatch_flawed) && std::env::var("RELATCH_TEST_FLAW").is_ok_and(|flaw| flaw == name)
}
