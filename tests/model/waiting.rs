//! Waiting: the listener of a process, what it receives, and what a waiter that sleeps relies on.

use crate::model::{Action, Mutation, PROMPT, Protocol};
use crate::state::{Connected, Ear, State, Step};

/// What a listener receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Word,
    /// The connection of an attempt is lost.
    Cut,
    /// Its own connection is lost.
    Lost,
    /// It is connected again.
    Back,
}

impl Protocol {
    /// The processes whose waiters sleep.
    pub(crate) fn listeners(&self) -> usize {
        let processes = self.threads.iter().filter(|process| **process != PROMPT && self.sleeps);
        processes.max().map_or(0, |last| usize::from(*last) + 1)
    }

    /// Whether a thread that sleeps will be called. The key exists, with a TTL, and Redis tracks it
    /// for the listener; or the invalidation, or the loss of a connection, is about to reach the
    /// process.
    pub(crate) fn has_something_to_come(&self, state: &State, thread: usize) -> bool {
        if !matches!(&state.steps[thread], Step::Bidding(bid) if bid.asleep) {
            return true;
        }
        let ear = &state.redis.ears[usize::from(self.threads[thread])];
        let calls_at_its_end = |peer: usize| match &state.steps[peer] {
            Step::Releasing(release) => release.valid.0 == 0,
            _ => false,
        };
        ear.registered && state.redis.key.is_some()
            || ear.word
            || ear.cut
            || ear.connected == Connected::Lost
            || self.peers(thread).any(calls_at_its_end)
    }

    /// Whether a thread sleeps since its attempt, and the value that it found is its own abandoned
    /// token.
    pub(crate) fn waits_for_itself(&self, state: &State, thread: usize) -> bool {
        let Step::Bidding(bid) = &state.steps[thread] else { return false };
        let found = state.redis.key.map(|(found, _)| found);
        let ear = state.redis.ears.get(usize::from(self.threads[thread]));
        // While the key is tracked, it has not changed since the attempt.
        bid.asleep && bid.given_up.is_some() && bid.given_up == found && ear.is_some_and(|ear| ear.registered)
    }

    /// The number of the listener of a thread's process, while that is connected as far as the
    /// process knows.
    pub(crate) fn listener(&self, state: &State, thread: usize) -> Option<u8> {
        let ear = state.redis.ears.get(usize::from(self.threads[thread]))?;
        (ear.connected != Connected::No).then_some(ear.number)
    }

    /// The listener of a process calls.
    pub(crate) fn call(&self, state: &mut State, process: usize) {
        for (thread, step) in state.steps.iter_mut().enumerate() {
            if let Step::Bidding(bid) = step
                && usize::from(self.threads[thread]) == process
            {
                bid.asleep = false;
                bid.called = bid.sent.is_some();
            }
        }
    }

    /// What a process's listener does next.
    pub(crate) fn listen(&self, state: &mut State, process: usize, heard: Heard) {
        let ear = &mut state.redis.ears[process];
        match heard {
            Heard::Word => ear.word = false,
            Heard::Cut => ear.cut = false,
            Heard::Lost => ear.connected = Connected::No,
            Heard::Back => (ear.connected, ear.number) = (Connected::Yes, ear.number + 1),
        }
        let quietly = match heard {
            Heard::Word => false,
            Heard::Cut => self.is(Mutation::OverlooksACutLink),
            Heard::Lost | Heard::Back => self.is(Mutation::LosesItsListenerQuietly),
        };
        if !quietly {
            self.call(state, process);
        }
    }

    /// A connection is lost: the listener's, or that of the last attempt.
    pub(crate) fn cut(state: &mut State, process: usize, of_listener: bool) {
        state.budget.cuts -= 1;
        let ear = &mut state.redis.ears[process];
        ear.registered = false;
        if of_listener {
            (ear.connected, ear.word) = (Connected::Lost, false);
        } else {
            ear.cut = true;
        }
    }
}

/// What can happen to a listener.
pub(crate) fn actions(process: usize, ear: Ear, may_cut: bool, actions: &mut Vec<Action>) {
    if ear.word {
        actions.push(Action::Listen(process, Heard::Word));
    }
    if ear.cut {
        actions.push(Action::Listen(process, Heard::Cut));
    }
    match ear.connected {
        Connected::Yes if may_cut => actions.push(Action::Cut(process, true)),
        Connected::Yes => {}
        Connected::Lost => actions.push(Action::Listen(process, Heard::Lost)),
        Connected::No => actions.push(Action::Listen(process, Heard::Back)),
    }
    if ear.registered && may_cut {
        actions.push(Action::Cut(process, false));
    }
}
