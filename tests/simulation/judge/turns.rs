//! Whether threads get locks in their turn, and whether anybody takes a lock that is free.
//!
//! So nobody starves as long as holders give back: in a process, those that came first get a lock
//! first; between processes, each has a chance whenever it is free, and it is not free for long.

use std::time::Duration;

use crate::base::sync::scheduler::{has_failed, later, now};
use crate::simulation::judge::ledger;
use crate::simulation::judge::verdict::{Call, takes_several, waiting};
use crate::simulation::judge::{self, Who};

/// For how long a lock that somebody waits for is free at most, if nothing goes wrong: the longest
/// pause between two polls, and the pauses for other processes.
const FREE: Duration = Duration::from_millis(700);

/// Whether a thread of the process has waited for the lock since then, and none has it.
pub(crate) fn waits(process: usize, key: usize, since: u64) -> bool {
    !judge::has(process, None, key, since)
        && !takes_several(process, None, key, since)
        && waiting(key, since)
            .iter()
            .any(|it| it.who.process == process)
}

/// No server has this key any more. A thread that waits for it takes it.
pub(crate) fn is_free(key: usize) {
    let at = now();
    if waiting(key, at).is_empty() {
        return;
    }
    later(FREE, move || {
        let idle = waiting(key, at).into_iter().find(|call| {
            let process = call.who.process;
            // A thread that has not learned of its loss keeps its turn. That of a release comes
            // just before its answer.
            !judge::has(process, None, key, at + 50_000_000)
                && !takes_several(process, None, key, at)
                && !judge::is_dead(process)
                && !judge::was_paused(process, at)
                && !judge::was_removed(key, at)
        });
        let is_excused = ledger::was_there(key, at + 1)
            || ledger::trouble(at.saturating_sub(20_000_000_000), now());
        if let Some(call) = idle.filter(|_| !is_excused) {
            has_failed(format!(
                "key {key} is free since {FREE:?}, and {:?} waits for it",
                call.who
            ));
        }
    });
}

/// The threads of a manager get a lock in the order in which they came. (An adoption needs no
/// turn, and a lock that the thread holds already neither.)
pub(crate) fn came_in_turn(call: &Call) {
    let [key] = call.keys[..] else { return };
    let Who {
        process,
        manager,
        thread,
    } = call.who;
    if call.parcel.is_some() || judge::has(process, Some(thread), key, now()) || ledger::stalls() {
        return;
    }
    let came_before = |it: &Call| {
        (it.who.process, it.who.manager) == (process, manager)
            && it.who.thread != thread
            // It may have had the lock, and have given it back, since a lock around it was lost.
            && judge::held_by(it.who).is_empty()
    };
    let since = call.began.saturating_sub(1_000_000);
    if let Some(other) = waiting(key, since).into_iter().find(came_before)
        && !judge::was_paused(process, other.began)
        // It may have had the lock, and have lost it just before it returns.
        && !judge::was_removed(key, other.began)
    {
        call.blame(format!("{:?} has waited for longer", other.who));
    }
}
