//! Whether threads get locks in their turn, and whether anybody takes a lock that is free.
//!
//! So nobody starves as long as holders give back: in a process, those that came first get a lock
//! first; between processes, each has a chance whenever it is free, and it is not free for long.

use std::time::Duration;

use crate::base::sync::scheduler::{has_failed, now};
use crate::simulation::judge::calls::{Call, Record};
use crate::simulation::judge::{Judge, Who};

/// For how long a lock that somebody waits for is free at most, if nothing goes wrong: the longest
/// pause between two polls, and the pauses for other processes.
const FREE: Duration = Duration::from_millis(700);

impl Judge {
    /// No server has this key any more. A thread that waits for it takes it.
    pub(super) fn is_free(&self, key: usize) {
        let at = now();
        if self.waiting(key, at).is_empty() {
            return;
        }
        self.later(FREE, move |judge| {
            let is_idle = |call: &&Record| {
                let process = call.who.process;
                // A thread that has not learned of its loss keeps its turn. That of a release comes
                // just before its answer.
                !judge.has(process, None, key, at + 50_000_000)
                    && !judge.takes_several(process, None, key, at)
                    && !judge.is_dead(process)
            };
            if judge.ledger.with(|it| it.was_there(key, at + 1)) {
                return;
            }
            for call in judge.waiting(key, at).iter().filter(is_idle) {
                let excuses = judge.trouble(at.saturating_sub(20_000_000_000), now())
                    | judge.pause_of(call.who.process, at)
                    | judge.removal(key, at);
                if !judge.forgives(excuses) {
                    has_failed(format!(
                        "key {key} is free since {FREE:?}, and {:?} waits for it",
                        call.who
                    ));
                }
            }
        });
    }
}

impl Call<'_> {
    /// The threads of a manager get a lock in the order in which they came. (An adoption needs no
    /// turn, and a lock that the thread holds already neither.)
    pub(super) fn came_in_turn(&self) {
        let judge = self.judge;
        let [key] = self.keys[..] else { return };
        let Who {
            process,
            manager,
            thread,
        } = self.who;
        if self.parcel.is_some() || judge.has(process, Some(thread), key, now()) {
            return;
        }
        let came_before = |it: &Record| {
            (it.who.process, it.who.manager) == (process, manager)
                && it.who.thread != thread
                // It may have had the lock, and have given it back, since a lock around it was lost.
                && judge.held_by(it.who).is_empty()
        };
        let waiting = judge.waiting(key, self.began.saturating_sub(1_000_000));
        if let Some(other) = waiting.into_iter().find(came_before)
            // It may have had the lock, and have lost it just before it returns.
            && !judge.forgives(
                judge.slow() | judge.pause_of(process, other.began) | judge.removal(key, other.began),
            )
        {
            self.blame(format!("{:?} has waited for longer", other.who));
        }
    }
}
