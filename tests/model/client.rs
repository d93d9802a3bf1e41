//! A thread that takes the lock: its turn, its attempts, and lost answers.

use crate::model::{Mutation, Protocol};
use crate::state::{Bid, Command, Handed, Hold, How, LEASE, Link, MARGIN, State, Step, Token};

impl Protocol {
    /// A fresh token; none where the bound of the model is reached.
    fn fresh_token(&self, state: &mut State, thread: usize) -> Option<Token> {
        let nonce = state.nonces[thread];
        if nonce == self.nonces {
            return None;
        }
        state.nonces[thread] += 1;
        let nonce = if self.is(Mutation::NoNonce) { 0 } else { nonce };
        Some(Token { thread: u8::try_from(thread).expect("few threads"), nonce })
    }

    /// How long a hold is valid whose answer comes so many ticks after its send.
    pub(crate) fn validity(&self, age: u8) -> u8 {
        let age = if self.is(Mutation::CountsFromTheAnswer) { 0 } else { age };
        let margin = if self.is(Mutation::NoMargin) { 0 } else { MARGIN };
        (LEASE - margin).saturating_sub(age)
    }

    pub(crate) fn start(&self, state: &mut State, thread: usize) {
        if let Some(token) = self.fresh_token(state, thread) {
            let alone = self.peers(thread).all(|peer| state.steps[peer] == Step::Idle);
            state.steps[thread] = if alone { bidding(token, None) } else { Step::InLine(token) };
        }
    }

    /// The thread's turn has come.
    pub(crate) fn take_turn(&self, state: &mut State, thread: usize) {
        match state.steps[thread].clone() {
            Step::Called(token, Handed::Taken { age }) if self.validity_handed(age) > 0 => {
                let valid = self.validity_handed(age);
                state.steps[thread] = Step::Holding(Hold { token, valid, how: How::HandedOn, renewal: None });
            }
            Step::Called(token, Handed::Taken { .. }) => {
                self.owe_given_up(state, token);
                self.start_over(state, thread, token);
            }
            Step::Called(token, Handed::Spoilt) if !self.is(Mutation::UsesASpoiltToken) => {
                self.start_over(state, thread, token);
            }
            Step::Called(token, _) | Step::InLine(token) => state.steps[thread] = bidding(token, None),
            _ => {}
        }
    }

    fn validity_handed(&self, age: u8) -> u8 {
        self.validity(if self.is(Mutation::CountsHandedFromTheAnswer) { 0 } else { age })
    }

    /// Sends one attempt. Earlier calls of the listener are forgotten: this attempt is newer.
    pub(crate) fn attempt(&self, state: &mut State, thread: usize) {
        let listener = self.listener(state, thread);
        let Step::Bidding(bid) = &mut state.steps[thread] else { return };
        (bid.sent, bid.listener, bid.called) = (Some(0), listener, false);
        self.look(bid);
    }

    fn look(&self, bid: &mut Bid) {
        let token = bid.token;
        let told =
            if self.is(Mutation::KeepsToItsFirstListener) { bid.listener.and(Some(0)) } else { bid.listener };
        let batch = match bid.given_up.filter(|_| bid.link.is_some()) {
            Some(given_up) => vec![Command::Delete(given_up), Command::Look(token, told)],
            None if self.is(Mutation::RegistersAfterItLooks) => {
                vec![Command::Look(token, None), Command::Register(token.thread, told)]
            }
            None => vec![Command::Look(token, told)],
        };
        bid.link.get_or_insert_default().post(&batch);
    }

    /// The answer to an attempt has come.
    pub(crate) fn hear_attempt(&self, state: &mut State, thread: usize, mut bid: Bid) {
        let Some(sent) = bid.sent else { return };
        let said = bid.link.as_ref().map(|link| link.said).unwrap_or_default();
        if said.set && self.validity(sent) > 0 {
            let valid = self.validity(sent);
            let hold = Hold { token: bid.token, how: How::Asked, valid, renewal: None };
            state.steps[thread] = Step::Holding(hold);
        } else if said.set || said.found == Some(bid.token) {
            // Too late, or since an unknown time. (In the program, an answer to the removal makes
            // the orphan unnecessary.)
            self.clean_up_behind(state, thread, bid, true);
        } else if said.found == bid.given_up && !self.is(Mutation::OverlooksWhatItGaveUp) {
            self.look(&mut bid);
            state.steps[thread] = Step::Bidding(bid);
        } else {
            let heard = bid.listener.is_some() && bid.listener == self.listener(state, thread);
            bid.asleep = heard && (!bid.called || self.is(Mutation::ForgetsWhenItFallsAsleep));
            (bid.sent, bid.link, bid.listener, bid.called) = (None, None, None, false);
            state.steps[thread] = Step::Bidding(bid);
        }
    }

    /// The answer to an attempt does not come.
    pub(crate) fn lose_attempt(&self, state: &mut State, thread: usize, bid: Bid, link_stands: bool) {
        self.clean_up_behind(state, thread, bid, link_stands);
    }

    /// Writes the clean-up after what is under way, where there is a connection for it, and goes on
    /// with a fresh token.
    fn clean_up_behind(&self, state: &mut State, thread: usize, bid: Bid, link_stands: bool) {
        let token = bid.token;
        let mut link = bid.link.unwrap_or_default();
        if link_stands && !self.is(Mutation::CleansUpElsewhere) {
            link.commands.push(Command::Delete(token));
        }
        state.leave(link);
        self.owe_given_up(state, token);
        self.start_over(state, thread, token);
    }

    fn owe_given_up(&self, state: &mut State, token: Token) {
        if !self.is(Mutation::OwesNothing) {
            state.owe(token, !self.is(Mutation::CleansUpElsewhere));
        }
    }

    /// Goes on with a fresh token, or gives up if there is none.
    fn start_over(&self, state: &mut State, thread: usize, given_up: Token) {
        let fresh =
            if self.is(Mutation::ReusesItsToken) { Some(given_up) } else { self.fresh_token(state, thread) };
        state.steps[thread] = fresh.map_or(Step::Idle, |token| bidding(token, Some(given_up)));
    }

    /// The keeper has an answer to its renewal.
    pub(crate) fn hear_renewal(&self, hold: &mut Hold) {
        let Some((age, link)) = hold.renewal.take() else { return };
        if !link.said.extended {
            hold.valid = 0;
        } else if hold.valid > 0 {
            hold.valid = self.validity(age);
        }
    }

    pub(crate) fn renew(hold: &mut Hold) {
        hold.renewal = Some((0, Link::with(&[Command::Renew(hold.token)])));
    }
}

fn bidding(token: Token, given_up: Option<Token>) -> Step {
    let (sent, link, listener) = (None, None, None);
    Step::Bidding(Bid { token, given_up, sent, link, listener, called: false, asleep: false })
}
