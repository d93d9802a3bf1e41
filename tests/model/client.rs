//! A thread that takes the lock: its turn, its bid, and lost answers.

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

    /// How long an answer makes valid that comes so many ticks after its send.
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
        state.steps[thread] = match state.steps[thread].clone() {
            Step::Called(token, handed) => match handed {
                Handed::Taken { age } if self.validity_handed(age) > 0 => Step::Holding(Hold {
                    token,
                    valid: self.validity_handed(age),
                    stray: false,
                    how: How::HandedOn,
                    renewal: None,
                }),
                Handed::Taken { age } | Handed::Astray { age } => bidding(token, Some(age)),
                Handed::Nothing => bidding(token, None),
                Handed::Spoilt if self.is(Mutation::UsesASpoiltToken) => bidding(token, None),
                Handed::Spoilt => {
                    self.fresh_token(state, thread).map_or(Step::Idle, |token| bidding(token, None))
                }
            },
            Step::InLine(token) => bidding(token, None),
            other => other,
        };
    }

    fn validity_handed(&self, age: u8) -> u8 {
        self.validity(if self.is(Mutation::CountsHandedFromTheAnswer) { 0 } else { age })
    }

    /// Asks Redis once.
    pub(crate) fn attempt(&self, bid: &mut Bid) {
        let batch = [Command::Set(bid.token), Command::Get(bid.token)];
        let batch = if self.is(Mutation::NeverLooks) { &batch[..1] } else { &batch };
        bid.link.get_or_insert_default().post(batch);
        bid.sent = Some(0);
    }

    /// The answer to an attempt has come.
    pub(crate) fn hear_attempt(&self, state: &mut State, thread: usize, mut bid: Bid) {
        let (Some(sent), Some(link)) = (bid.sent.take(), bid.link.take()) else { return };
        if !link.said.set && !link.said.found_own {
            if self.is(Mutation::NeverLooks) {
                bid.astray = None; // Busy is taken for an answer to what went astray, too.
            }
            state.steps[thread] = Step::Bidding(bid);
            return;
        }
        // A token that stands there though nothing of it went astray is not believed in.
        let since = if link.said.set { Some(sent) } else { bid.astray };
        let valid = since.map_or(0, |since| self.validity(since));
        if valid == 0 {
            // Too late. (In the program, an answer to the removal makes the debt unnecessary.)
            bid.link = Some(link);
            return self.clean_up_behind(state, thread, bid);
        }
        let how = if link.said.set { How::Asked } else { How::Found };
        let stray = bid.astray.is_some();
        state.steps[thread] = Step::Holding(Hold { token: bid.token, valid, stray, how, renewal: None });
    }

    /// The answer to an attempt does not come.
    pub(crate) fn lose_attempt(&self, state: &mut State, thread: usize, mut bid: Bid, link_stands: bool) {
        let sent = bid.sent.take();
        if link_stands {
            return self.clean_up_behind(state, thread, bid);
        }
        bid.astray = bid.astray.or(sent);
        state.leave(bid.link.take().unwrap_or_default());
        state.steps[thread] = Step::Bidding(bid);
    }

    /// Writes the clean-up behind what is open, and goes on with a fresh token.
    fn clean_up_behind(&self, state: &mut State, thread: usize, bid: Bid) {
        let token = bid.token;
        self.abandon(state, bid);
        let fresh =
            if self.is(Mutation::ReusesItsToken) { Some(token) } else { self.fresh_token(state, thread) };
        state.steps[thread] = fresh.map_or(Step::Idle, |token| bidding(token, None));
    }

    /// Leaves nothing behind.
    fn abandon(&self, state: &mut State, bid: Bid) {
        if (bid.link.is_some() || bid.astray.is_some()) && !self.is(Mutation::OwesNothing) {
            state.owe(bid.token, !self.is(Mutation::CleansUpElsewhere));
        }
        if let Some(mut link) = bid.link {
            if !self.is(Mutation::CleansUpElsewhere) {
                link.commands.push(Command::Delete(bid.token));
            }
            state.leave(link);
        }
    }

    /// A thread that waits loses patience.
    pub(crate) fn give_up(&self, state: &mut State, thread: usize) {
        if let Step::Bidding(bid) = std::mem::replace(&mut state.steps[thread], Step::Idle) {
            self.abandon(state, bid);
        }
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

fn bidding(token: Token, astray: Option<u8>) -> Step {
    Step::Bidding(Bid { token, sent: None, link: None, astray })
}
