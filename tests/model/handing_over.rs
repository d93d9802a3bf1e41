//! A holder that hands its hold over, and threads that adopt it.

use crate::model::{Action, Mutation, Protocol};
use crate::state::{Command, Hold, How, Link, Redis, Said, State, Step, Token};

/// A token that was handed over, and whether an adopter has got an answer that it is the winner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Parcel {
    pub(crate) token: Token,
    pub(crate) adopted: bool,
}

/// A thread that adopts a parcel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Adoption {
    pub(crate) old: Token,
    pub(crate) new: Token,
    /// The age of the last try.
    pub(crate) sent: u8,
    /// The connection of the try that is under way; `None` after a lost answer.
    pub(crate) link: Option<Link>,
}

impl Protocol {
    /// The holder makes a parcel. It stops believing in the same step, so before anybody can see
    /// the parcel. (The renewal that comes first only makes the lease longer.)
    pub(crate) fn hand_over(&self, state: &mut State, thread: usize, hold: Hold) {
        state.budget.hand_overs -= 1;
        state.parcel = Some(Parcel {
            token: hold.token,
            adopted: false,
        });
        if !self.is(Mutation::BelievesBehindTheParcel) {
            state.leave(hold.renewal.map(|(_, link)| link).unwrap_or_default());
            state.steps[thread] = Step::Idle;
        }
    }

    /// A thread that has a parcel sends its first try. It need not have the turn of its process.
    pub(crate) fn adopt(&self, state: &mut State, thread: usize) {
        let Some(Parcel { token: old, .. }) = state.parcel else {
            return;
        };
        let fresh = self.fresh_token(state, thread);
        if let Some(new) = if self.is(Mutation::HandsItsTokenOn) {
            Some(old)
        } else {
            fresh
        } {
            state.steps[thread] = Step::Adopting(Adoption {
                old,
                new,
                sent: 0,
                link: None,
            });
            Protocol::adopt_again(state, thread);
        }
    }

    /// Tries once more, with the same token and over another connection.
    pub(crate) fn adopt_again(state: &mut State, thread: usize) {
        if let Step::Adopting(adoption) = &mut state.steps[thread] {
            let command = Command::Adopt(adoption.old, adoption.new);
            (adoption.sent, adoption.link) = (0, Some(Link::with(&[command])));
        }
    }

    /// What Redis does for an adopter: compare and swap. For one whose earlier try was executed, it
    /// extends the lease.
    pub(crate) fn swap(
        &self,
        redis: &mut Redis,
        old: Token,
        new: Token,
        by: Option<usize>,
    ) -> Said {
        let found = redis.key;
        let is_old = found.is_some_and(|(token, _)| token == old)
            || self.is(Mutation::AdoptsWhateverIsThere);
        let is_new = found.is_some_and(|(token, _)| token == new);
        let mut said = Said {
            set: is_old || is_new,
            ..Said::default()
        };
        if is_old || is_new && !self.is(Mutation::LeavesTheLeaseOfARepeat) {
            redis.key = Some((new, crate::state::LEASE));
            redis.changed(by);
        }
        if said.set {
            let numbers = is_old || redis.counter.stored == 0;
            said.fence = if numbers {
                self.number(&mut redis.counter)
            } else {
                redis.counter.stored
            };
        }
        said
    }

    /// The answer to an adoption has come.
    pub(crate) fn receive_adoption(&self, state: &mut State, thread: usize, adoption: &Adoption) {
        let said = adoption
            .link
            .as_ref()
            .map(|link| link.said)
            .unwrap_or_default();
        let valid = self.validity(adoption.sent);
        self.end_adoption(state, thread);
        if said.set && valid > 0 {
            if let Some(parcel) = state
                .parcel
                .as_mut()
                .filter(|parcel| parcel.token == adoption.old)
            {
                state.adopted_twice |= parcel.adopted;
                parcel.adopted = true;
            }
            let (token, how) = (adoption.new, How::Adopted);
            self.hold(
                state,
                thread,
                Hold {
                    token,
                    how,
                    valid,
                    fence: said.fence,
                    renewal: None,
                },
            );
        } else if said.set {
            self.drop_adoption(state, thread, adoption.new);
        }
    }

    /// The waiter of this process asks again. The adoption may have used up the invalidation for
    /// which it had registered over the same connection.
    fn end_adoption(&self, state: &mut State, thread: usize) {
        state.steps[thread] = Step::Idle;
        if !self.is(Mutation::AdoptsQuietly) {
            self.call(state, self.threads[thread].into());
        }
    }

    /// The adopter gives up, answered too late or not at all.
    pub(crate) fn drop_adoption(&self, state: &mut State, thread: usize, new: Token) {
        self.end_adoption(state, thread);
        if !self.is(Mutation::KeepsNoOrphans) {
            state.add_orphan(new, true);
        }
    }
}

/// What a thread that adopts can do without an answer.
pub(crate) fn actions(adoption: &Adoption, thread: usize, actions: &mut Vec<Action>) {
    if adoption.link.is_none() {
        actions.extend([Action::AdoptAgain(thread), Action::GiveUp(thread)]);
    }
}
