//! Asks those that may know the map, one after another.

use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::client::servers::source::{Limits, Source};
use crate::client::servers::topology::shared::Shared;
use crate::client::wire::endpoint::Endpoint;
use crate::client::wire::failure::Failure;
use crate::client::wire::socket::Ender;

/// The longest time that one server gets to connect and to answer, unless all are silent: if its
/// answer costs little, and if not.
const LONGEST_ASK: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(500)];

/// Asks one candidate after another, until `ask` is satisfied. Returns how many were silent. A
/// silent one leaves half of the time in which a caller wants to be connected for others; with
/// patience, each gets all of it.
pub(super) fn in_turn(
    shared: &Shared,
    source: &dyn Source,
    candidates: &[Arc<Endpoint>],
    is_patient: bool,
    mut ask: impl FnMut(&Arc<Endpoint>, &Limits<'_>) -> bool,
) -> usize {
    let longest = LONGEST_ASK[usize::from(!source.is_quick())];
    let whole = shared.common.connect_timeout;
    let end = Moment::now().after(whole);
    let stopping = || Failure::not_sent("the manager was dropped");
    let connected = |ender: Ender| {
        let goes_on = shared.thread.ends_by(move || ender.end());
        goes_on.then_some(()).ok_or_else(stopping)
    };
    let mut silent = 0;
    for candidate in candidates {
        if shared.thread.is_stopping() {
            break;
        }
        let now = Moment::now();
        let share = (end.since(now) / 2).min(longest);
        let time = if is_patient { whole } else { share };
        let connected = &connected;
        if ask(candidate, &Limits { time, connected }) {
            break;
        }
        silent += usize::from(now.after(time) <= Moment::now());
    }
    silent
}
