//! Waiting with a deadline.

use std::time::Instant;

use relatch_rig::{LONG, eventually, unique_key, within};

use crate::client::SHORT;

#[test]
#[should_panic(expected = "what never happens")]
fn eventually_has_an_end() {
    eventually(SHORT, "what never happens", || false);
}

#[test]
#[should_panic(expected = "a nap")]
fn within_measures() {
    within(SHORT, "a nap", || {
        eventually(LONG, "a while", {
            let start = Instant::now();
            move || start.elapsed() > SHORT
        });
    });
}

#[test]
fn keys_are_unique() {
    assert_ne!(unique_key("a"), unique_key("a"));
    assert!(unique_key("a").starts_with("a:"));
}
