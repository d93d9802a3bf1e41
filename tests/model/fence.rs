//! Fences: where they come from, and what a resource sees of them.

use crate::model::{Action, Mutation, Protocol};
use crate::state::{Claim, Counter, Hold, State, Step};

impl Counter {
    pub(crate) fn raise(&mut self) -> u8 {
        self.stored += 1;
        self.largest = self.largest.max(self.stored);
        self.stored
    }
}

impl Protocol {
    /// The fence of a claim that sets the key. It is zero if the model has no fences.
    pub(crate) fn number(&self, counter: &mut Counter) -> u8 {
        if !self.fenced || self.is(Mutation::RaisesInThePipeline) {
            return 0;
        }
        // By the next claim, the time is larger than any fence so far.
        let time = if counter.clock_was_set_back {
            1
        } else {
            counter.largest + 1
        };
        counter.stored = match self.mutation {
            Some(Mutation::CountsWithoutTheClock) => counter.stored + 1,
            Some(Mutation::TrustsTheClockAlone) => time,
            _ => time.max(counter.stored + 1),
        };
        counter.largest = counter.largest.max(counter.stored);
        counter.stored
    }

    /// Whether a claim that found its own token counts as taken.
    pub(crate) fn trusts_a_repeat(&self, claim: &Claim) -> bool {
        let found = claim.link.as_ref().and_then(|link| link.said.found);
        self.is(Mutation::TrustsARepeatedClaim) && found == Some(claim.token)
    }

    /// The thread has the lock, and writes to the resource.
    pub(crate) fn hold(&self, state: &mut State, thread: usize, hold: Hold) {
        if self.fenced {
            state.resource.saw_an_old_one |= hold.fence <= state.resource.newest;
            state.resource.newest = state.resource.newest.max(hold.fence);
        }
        state.steps[thread] = Step::Holding(hold);
    }

    pub(crate) fn happen_to_fences(&self, state: &mut State, action: Action) {
        match action {
            Action::LoseCounter => {
                state.budget.lost_counters -= 1;
                state.redis.counter.stored = 0;
            }
            Action::SetClockBack => {
                state.budget.steps_back -= 1;
                state.redis.counter.clock_was_set_back = true;
            }
            Action::Reenter(_) => {
                state.budget.reentries -= 1;
                if self.is(Mutation::RaisesOnReentry) {
                    // The inner guard writes with the new fence, and the outer one with its own.
                    state.resource.newest = self.number(&mut state.redis.counter);
                }
            }
            _ => {}
        }
    }
}

/// What can happen to the counter, and to holders that have a fence.
pub(crate) fn actions(state: &State, actions: &mut Vec<Action>) {
    if state.budget.lost_counters > 0 && state.redis.counter.stored > 0 {
        actions.push(Action::LoseCounter);
    }
    if state.budget.steps_back > 0 {
        actions.push(Action::SetClockBack);
    }
    if state.budget.reentries > 0 {
        let holding =
            |thread: &usize| matches!(&state.steps[*thread], Step::Holding(hold) if hold.valid > 0);
        actions.extend((0..state.steps.len()).filter(holding).map(Action::Reenter));
    }
}

/// Whether each hold had a larger fence than all before it, and the resource would accept another
/// write of the holder.
pub(crate) fn is_accepted(state: &State) -> bool {
    let accepts = |step: &Step| match step {
        Step::Holding(hold) => hold.valid == 0 || hold.fence >= state.resource.newest,
        _ => true,
    };
    !state.resource.saw_an_old_one && state.steps.iter().all(accepts)
}
