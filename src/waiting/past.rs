//! The state that one turn leaves to the next, and how long the process leaves the lock free in
//! between.

use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::random::{between, fraction};
use crate::waiting::contention::Contention;
use crate::waiting::handoff::HandoffBudget;

/// After it has spent its budget, a process pauses. The pause is 1/24 of the time for which the
/// process had the lock, within the bounds below, plus a random part of up to a third. It gives the
/// waiters of other processes time to ask: Redis wakes them only after the release.
const PART: u32 = 24;

/// The shortest pause. A waiter that Redis wakes needs about one round trip to ask. The first
/// command of the process that pauses needs as long, so the distance to Redis need not be added.
/// The shortest pause is three times as long if rivals are known: they may poll, or be woken late.
pub(super) const SHORTEST: Duration = Duration::from_micros(250);

/// The longest pause, without the random part. It is enough for most waiters that are farther from
/// Redis than this process. If all pauses were shorter, such a waiter would come too late each
/// time. So one pause in [`RARELY`] is at least this long.
pub(super) const LONGEST: Duration = Duration::from_micros(2500);
pub(super) const RARELY: u32 = 64;

/// The state that one turn leaves to the next, even if the queue ends in between.
#[derive(Debug, Default)]
pub(super) struct Past {
    /// The budget of the last turn.
    pub(super) budget: Option<HandoffBudget>,
    /// The last turn has spent its budget.
    pub(super) budget_is_spent: bool,
    /// How many pauses there were.
    pauses: u32,
    /// The other processes that want the lock.
    pub(super) contention: Contention,
}

impl Past {
    /// How long a turn that starts leaves the lock to other processes: for the nap that
    /// [`Contention`] asks for or, after a spent budget, for the pause if that is longer. The time
    /// for which the lock was free already counts as part of the pause.
    pub(super) fn first_nap(&mut self, over: Option<HandoffBudget>, now: Moment) -> Duration {
        let contention = &mut self.contention;
        contention.begin(now);
        let pause = over.map_or(Duration::ZERO, |budget| {
            self.pauses = self.pauses.wrapping_add(1);
            let is_rare = self.pauses.is_multiple_of(RARELY);
            let shortest = if contention.is_alone(now) {
                SHORTEST
            } else {
                3 * SHORTEST
            };
            let least = if is_rare {
                LONGEST
            } else {
                (budget.held() / PART).clamp(shortest, LONGEST)
            };
            between(least, least * 4 / 3).saturating_sub(budget.free_for(now))
        });
        contention.nap(fraction).max(pause)
    }
}
