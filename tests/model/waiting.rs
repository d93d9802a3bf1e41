//! Waiting: the listener of a process, what it receives, and what a sleeping waiter relies on.

use crate::model::{Action, Mutation, PROMPT, Protocol};
use crate::state::{Connected, State, Step, Tracking};

/// What a listener learns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Invalidation,
    /// The connection of an attempt is lost.
    Cut,
    /// The listener's own connection is lost.
    Lost,
    /// The listener is connected again.
    Back,
}

impl Protocol {
    /// How many processes have a listener.
    pub(crate) fn listeners(&self) -> usize {
        let processes = self
            .threads
            .iter()
            .filter(|process| **process != PROMPT && self.sleeps);
        processes.max().map_or(0, |last| usize::from(*last) + 1)
    }

    /// Whether something will call a thread that sleeps. One of these has to hold: the key exists,
    /// and Redis tracks it for the listener; an invalidation, or the loss of a connection, is about
    /// to reach the process; or a peer releases a hold that was over or adopted, or adopts the
    /// lock, and calls the waiters then.
    pub(crate) fn has_something_to_come(&self, state: &State, thread: usize) -> bool {
        if !matches!(&state.steps[thread], Step::Claiming(claim) if claim.asleep) {
            return true;
        }
        let tracking = &state.redis.tracking[usize::from(self.threads[thread])];
        let calls_at_its_end = |peer: usize| match &state.steps[peer] {
            Step::Releasing(release) => release.valid.0 == 0 || release.adopted,
            Step::Adopting(_) => true,
            _ => false,
        };
        tracking.registered && state.redis.key.is_some()
            || tracking.invalidation
            || tracking.cut
            || tracking.connected == Connected::Lost
            || self.peers(thread).any(calls_at_its_end)
    }

    /// Whether a thread sleeps although its attempt found its own abandoned token at the key.
    pub(crate) fn waits_for_itself(&self, state: &State, thread: usize) -> bool {
        let Step::Claiming(claim) = &state.steps[thread] else {
            return false;
        };
        let found = state.redis.key.map(|(found, _)| found);
        let tracking = state.redis.tracking.get(usize::from(self.threads[thread]));
        // While the key is tracked, it has not changed since the attempt.
        claim.asleep
            && claim.abandoned.is_some()
            && claim.abandoned == found
            && tracking.is_some_and(|tracking| tracking.registered)
    }

    /// The number of the listener of a thread's process, if the process believes that the listener
    /// is connected.
    pub(crate) fn listener(&self, state: &State, thread: usize) -> Option<u8> {
        let tracking = state
            .redis
            .tracking
            .get(usize::from(self.threads[thread]))?;
        (tracking.connected != Connected::No).then_some(tracking.number)
    }

    /// The listener of a process calls.
    pub(crate) fn call(&self, state: &mut State, process: usize) {
        for (thread, step) in state.steps.iter_mut().enumerate() {
            if let Step::Claiming(claim) = step
                && usize::from(self.threads[thread]) == process
            {
                claim.asleep = false;
                claim.called = claim.sent.is_some();
            }
        }
    }

    /// Executes what a process's listener does at an event.
    pub(crate) fn listen(&self, state: &mut State, process: usize, event: Event) {
        let tracking = &mut state.redis.tracking[process];
        match event {
            Event::Invalidation => tracking.invalidation = false,
            Event::Cut => tracking.cut = false,
            Event::Lost => tracking.connected = Connected::No,
            Event::Back => {
                (tracking.connected, tracking.number) = (Connected::Yes, tracking.number + 1);
            }
        }
        let quietly = match event {
            Event::Invalidation => false,
            Event::Cut => self.is(Mutation::IgnoresACutLink),
            Event::Lost | Event::Back => self.is(Mutation::WakesNoWaiterWithoutListener),
        };
        if !quietly {
            self.call(state, process);
        }
    }

    /// A process loses the connection of its listener, or that of its last attempt.
    pub(crate) fn cut(state: &mut State, process: usize, of_listener: bool) {
        state.budget.cuts -= 1;
        let tracking = &mut state.redis.tracking[process];
        tracking.registered = false;
        if of_listener {
            (tracking.connected, tracking.invalidation) = (Connected::Lost, false);
        } else {
            tracking.cut = true;
        }
    }
}

/// What can happen to a listener.
pub(crate) fn actions(
    process: usize,
    tracking: Tracking,
    may_cut: bool,
    actions: &mut Vec<Action>,
) {
    if tracking.invalidation {
        actions.push(Action::Listen(process, Event::Invalidation));
    }
    if tracking.cut {
        actions.push(Action::Listen(process, Event::Cut));
    }
    match tracking.connected {
        Connected::Yes if may_cut => actions.push(Action::Cut(process, true)),
        Connected::Yes => {}
        Connected::Lost => actions.push(Action::Listen(process, Event::Lost)),
        Connected::No => actions.push(Action::Listen(process, Event::Back)),
    }
    if tracking.registered && may_cut {
        actions.push(Action::Cut(process, false));
    }
}
