//! Error texts that depend on what is known.

use std::time::Duration;

use crate::base::error::cause::BlockedThread;
use crate::base::owner::holder::Holder;

/// Describes the lock `outer`, which the thread holds around the lock `key`.
pub(super) fn around(outer: &str, key: &str) -> String {
    if outer == key {
        return format!("lock {key:?}, which this thread holds through another LockManager");
    }
    format!("lock {outer:?}, which this thread holds around lock {key:?}")
}

pub(super) fn doing(action: &str, key: Option<&str>) -> String {
    key.map_or_else(|| action.to_owned(), |key| format!("{action} lock {key:?}"))
}

pub(super) fn invalid(option: &str, value: Option<&str>, reason: &str) -> String {
    match value {
        Some(value) => format!("option `{option}` cannot be {value}: {reason}"),
        None => format!("option `{option}` is not valid: {reason}"),
    }
}

pub(super) fn may_exist(at_most: Duration) -> String {
    if at_most.is_zero() {
        return "its lease is over by now".to_owned();
    }
    format!("its key may exist for up to {at_most:.1?}")
}

pub(super) fn timed_out(
    key: &str,
    waited: Duration,
    holder: Option<&Holder>,
    held: &[String],
    cut_short: bool,
) -> String {
    let what = match holder {
        Some(holder) if cut_short => format!(
            "lock {key:?} was not taken within {waited:.1?}, and was last seen held by {holder}"
        ),
        Some(holder) => format!("lock {key:?} was still busy after {waited:.1?}, held by {holder}"),
        None if cut_short => format!("lock {key:?} was not taken within {waited:.1?}"),
        None => format!("lock {key:?} was still busy after {waited:.1?}"),
    };
    let held: Vec<_> = held.iter().map(|key| format!("{key:?}")).collect();
    if held.is_empty() {
        what
    } else {
        format!("{what}; this thread held {} meanwhile", held.join(", "))
    }
}

pub(super) fn would_deadlock(cycle: &[BlockedThread]) -> String {
    if let [alone] = cycle {
        let BlockedThread { key, .. } = alone;
        return format!(
            "waiting for {key:?} would never end: this thread holds it through another LockManager, \
             or reads and wants to write"
        );
    }
    let waits = cycle
        .iter()
        .enumerate()
        .map(|(place, BlockedThread { thread, key })| {
            let holder = cycle[(place + 1) % cycle.len()].thread.thread;
            format!(
                "thread {} waits for {key:?}, which thread {holder} holds",
                thread.thread
            )
        });
    format!(
        "waiting would never end: {}",
        waits.collect::<Vec<_>>().join("; ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_without_a_value_that_can_be_shown_is_a_sentence_too() {
        assert_eq!(
            invalid("wait", Some("5s"), "no"),
            "option `wait` cannot be 5s: no"
        );
        assert_eq!(invalid("url", None, "no"), "option `url` is not valid: no");
    }
}
