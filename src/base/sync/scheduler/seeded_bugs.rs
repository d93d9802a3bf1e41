//! Well-known bugs of locks on Redis, built in on purpose. The simulation has to find each of these
//! bugs: a judge that has never found a bug proves nothing.
//!
//! They exist only in unit tests. In any other build, [`is_in`] is always `false`, and the compiler
//! removes the bugs.

use std::cell::Cell;

thread_local! {
    /// The bug of the scenes that this thread plays.
    static CHOSEN: Cell<&'static str> = const { Cell::new("") };
}

pub(crate) fn is_in(name: &str) -> bool {
    CHOSEN.get() == name
}

pub(crate) fn choose(name: &'static str) {
    CHOSEN.set(name);
}
