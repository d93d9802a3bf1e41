//! Waiting with a deadline.

use relatch_rig::{eventually, within};

use crate::client::SHORT;

#[test]
#[should_panic(expected = "what never happens")]
fn eventually_has_an_end() {
    eventually(SHORT, "what never happens", || false);
}

#[test]
#[should_panic(expected = "a nap")]
fn within_measures() {
    within(SHORT, "a nap", || std::thread::sleep(2 * SHORT));
}
