//! A thread that takes the lock: its turn, its attempts, and lost answers.

use crate::model::{Mutation, Protocol};
use crate::state::{
    Claim, Command, Hold, How, LEASE, Link, MARGIN, Outcome, Stage, State, Step, Token,
};

impl Protocol {
    /// A fresh token; `None` if the thread has used as many as the model allows.
    pub(crate) fn fresh_token(&self, state: &mut State, thread: usize) -> Option<Token> {
        let nonce = state.nonces[thread];
        if nonce == self.nonces {
            return None;
        }
        state.nonces[thread] += 1;
        let nonce = if self.is(Mutation::NoNonce) { 0 } else { nonce };
        Some(Token {
            thread: u8::try_from(thread).expect("few threads"),
            nonce,
        })
    }

    /// How long a hold is valid if its answer comes `age` ticks after its send.
    pub(crate) fn validity(&self, age: u8) -> u8 {
        let age = if self.is(Mutation::CountsFromTheAnswer) {
            0
        } else {
            age
        };
        let margin = if self.is(Mutation::NoMargin) {
            0
        } else {
            MARGIN
        };
        (LEASE - margin).saturating_sub(age)
    }

    pub(crate) fn start(&self, state: &mut State, thread: usize) {
        if let Some(token) = self.fresh_token(state, thread) {
            let alone = self
                .peers(thread)
                .all(|peer| state.steps[peer] == Step::Idle);
            state.steps[thread] = if alone {
                claiming(token, None)
            } else {
                Step::Queued(token)
            };
        }
    }

    /// The thread's turn has come.
    pub(crate) fn take_turn(&self, state: &mut State, thread: usize) {
        match state.steps[thread].clone() {
            Step::Called(token, Outcome::Taken { age, fence })
                if self.validity_of_hand_off(age) > 0 =>
            {
                let valid = self.validity_of_hand_off(age);
                let hold = Hold {
                    token,
                    valid,
                    fence,
                    how: How::HandedOff,
                    renewal: None,
                };
                self.hold(state, thread, hold);
            }
            Step::Called(token, Outcome::Taken { .. }) => {
                self.add_abandoned(state, token);
                self.start_over(state, thread, token);
            }
            Step::Called(token, Outcome::Spoilt) if !self.is(Mutation::UsesASpoiltToken) => {
                self.start_over(state, thread, token);
            }
            Step::Called(token, _) | Step::Queued(token) => {
                state.steps[thread] = claiming(token, None);
            }
            _ => {}
        }
    }

    fn validity_of_hand_off(&self, age: u8) -> u8 {
        self.validity(if self.is(Mutation::CountsHandOffsFromTheAnswer) {
            0
        } else {
            age
        })
    }

    /// Sends one attempt. Forgets earlier calls of the listener, because this attempt is newer.
    pub(crate) fn attempt(&self, state: &mut State, thread: usize) {
        let listener = self.listener(state, thread);
        let Step::Claiming(claim) = &mut state.steps[thread] else {
            return;
        };
        (claim.sent, claim.listener, claim.called) = (Some(0), listener, false);
        self.send_attempt(claim);
    }

    fn send_attempt(&self, claim: &mut Claim) {
        let token = claim.token;
        let redirect = if self.is(Mutation::KeepsToItsFirstListener) {
            claim.listener.and(Some(0))
        } else {
            claim.listener
        };
        let batch = match claim.abandoned.filter(|_| claim.link.is_some()) {
            Some(abandoned) => vec![
                Command::Delete(abandoned),
                Command::Attempt(token, redirect),
            ],
            None if self.is(Mutation::RegistersAfterTheAttempt) => {
                vec![
                    Command::Attempt(token, None),
                    Command::Register(token.thread, redirect),
                ]
            }
            None if self.is(Mutation::RaisesInThePipeline) => {
                vec![Command::Raise, Command::Attempt(token, redirect)]
            }
            None => vec![Command::Attempt(token, redirect)],
        };
        claim.link.get_or_insert_default().post(&batch);
    }

    /// The answer to an attempt has come.
    pub(crate) fn receive_attempt(&self, state: &mut State, thread: usize, mut claim: Claim) {
        let Some(sent) = claim.sent else { return };
        let said = claim
            .link
            .as_ref()
            .map(|link| link.said)
            .unwrap_or_default();
        if let Some(next) = self.next_stage(&claim) {
            claim.stage = next;
            let (token, link) = (claim.token, claim.link.get_or_insert_default());
            match next {
                Stage::Removed if self.is(Mutation::KeepsAKeyTooFewHave) => link.post(&[]),
                Stage::Removed => link.post(&[Command::Delete(token)]),
                Stage::Asked | Stage::Set => link.post(&[Command::Wait]),
            }
            if next == Stage::Set && self.is(Mutation::CountsFromTheWait) {
                claim.sent = Some(0);
            }
            state.steps[thread] = Step::Claiming(claim);
        } else if claim.stage == Stage::Removed {
            // Redis has executed the removal, so the token can be used again.
            let abandoned = claim.abandoned;
            state.steps[thread] = claiming(claim.token, abandoned);
        } else if (said.set || claim.stage == Stage::Set || self.trusts_a_repeat(&claim))
            && self.validity(sent) > 0
        {
            let valid = self.validity(sent);
            let hold = Hold {
                token: claim.token,
                how: How::Asked,
                valid,
                fence: said.fence,
                renewal: None,
            };
            self.hold(state, thread, hold);
        } else if said.set || claim.stage == Stage::Set || said.found == Some(claim.token) {
            // The key has this token, but the answer came too late, or does not say when Redis set
            // the key. (In the program, no orphan is needed if the removal is answered.)
            self.clean_up_behind(state, thread, claim, true);
        } else if said.found == claim.abandoned && !self.is(Mutation::OverlooksItsAbandonedToken) {
            self.send_attempt(&mut claim);
            state.steps[thread] = Step::Claiming(claim);
        } else {
            let registered =
                claim.listener.is_some() && claim.listener == self.listener(state, thread);
            claim.asleep =
                registered && (!claim.called || self.is(Mutation::ForgetsWhenItFallsAsleep));
            (claim.sent, claim.link, claim.listener, claim.called) = (None, None, None, false);
            state.steps[thread] = Step::Claiming(claim);
        }
    }

    /// What an attempt that was answered sends next, if anything: it asks for the replicas once the
    /// key is set, and deletes the key if they are too few.
    fn next_stage(&self, claim: &Claim) -> Option<Stage> {
        let link = claim.link.as_ref()?;
        match claim.stage {
            Stage::Asked if link.said.set && self.wants() > 0 => Some(Stage::Set),
            Stage::Set if !self.is_acknowledged(link) => Some(Stage::Removed),
            Stage::Asked | Stage::Set | Stage::Removed => None,
        }
    }

    /// The answer to an attempt does not come.
    pub(crate) fn lose_attempt(
        &self,
        state: &mut State,
        thread: usize,
        claim: Claim,
        link_stands: bool,
    ) {
        self.clean_up_behind(state, thread, claim, link_stands);
    }

    /// Writes the clean-up behind the commands that are under way, if the connection still stands,
    /// and goes on with a fresh token.
    fn clean_up_behind(&self, state: &mut State, thread: usize, claim: Claim, link_stands: bool) {
        let token = claim.token;
        let mut link = claim.link.unwrap_or_default();
        if link_stands && !self.is(Mutation::CleansUpElsewhere) {
            link.commands.push(Command::Delete(token));
        }
        state.leave(link);
        self.add_abandoned(state, token);
        self.start_over(state, thread, token);
    }

    fn add_abandoned(&self, state: &mut State, token: Token) {
        if !self.is(Mutation::KeepsNoOrphans) {
            state.add_orphan(token, !self.is(Mutation::CleansUpElsewhere));
        }
    }

    /// Goes on with a fresh token, or gives up if there is none.
    fn start_over(&self, state: &mut State, thread: usize, abandoned: Token) {
        let reuses = self.is(Mutation::ReusesItsToken) || self.is(Mutation::TrustsARepeatedClaim);
        let fresh = if reuses {
            Some(abandoned)
        } else {
            self.fresh_token(state, thread)
        };
        state.steps[thread] = fresh.map_or(Step::Idle, |token| claiming(token, Some(abandoned)));
    }

    /// The keeper has an answer to its renewal.
    pub(crate) fn receive_renewal(&self, hold: &mut Hold) {
        let Some((age, link)) = hold.renewal.take() else {
            return;
        };
        if !link.said.extended {
            hold.valid = 0;
        } else if hold.valid > 0 && self.is_renewal_acknowledged(&link) {
            hold.valid = self.validity(age);
        }
    }

    pub(crate) fn renew(&self, hold: &mut Hold) {
        hold.renewal = Some((0, Link::with(&self.with_wait(Command::Renew(hold.token)))));
    }
}

fn claiming(token: Token, abandoned: Option<Token>) -> Step {
    let (stage, sent, link, listener) = (Stage::Asked, None, None, None);
    Step::Claiming(Claim {
        stage,
        token,
        abandoned,
        sent,
        link,
        listener,
        called: false,
        asleep: false,
    })
}
