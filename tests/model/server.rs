//! Redis: one key, commands as one step each, and time.

use crate::model::{Mutation, Protocol};
use crate::state::{Command, Handed, LEASE, Leftover, Link, Said, State, Step, Token};

impl Protocol {
    /// Executes a link's next command.
    pub(crate) fn execute(&self, key: &mut Option<(Token, u8)>, link: &mut Link) {
        let said = self.run(key, link.commands.remove(0));
        if link.old > 0 {
            link.old -= 1;
            return;
        }
        let so_far = &mut link.said;
        so_far.set |= said.set;
        so_far.found_own |= said.found_own;
        so_far.removed |= said.removed;
        so_far.extended |= said.extended;
        so_far.stood |= said.stood;
    }

    fn run(&self, key: &mut Option<(Token, u8)>, command: Command) -> Said {
        let mut said = Said::default();
        match command {
            Command::Set(token) => {
                said.set = key.is_none();
                key.get_or_insert((token, LEASE));
            }
            Command::Get(token) => said.found_own = stands(key.as_ref(), token),
            Command::Delete(token) => {
                said.stood = stands(key.as_ref(), token);
                said.removed = said.stood || self.is(Mutation::DeletesWithoutComparing) && key.is_some();
                if said.removed {
                    *key = None;
                }
            }
            Command::Renew(token) => {
                if self.is(Mutation::RenewalCreates) && key.is_none() {
                    *key = Some((token, LEASE));
                }
                if stands(key.as_ref(), token) {
                    said.extended = true;
                    *key = Some((token, LEASE));
                }
            }
        }
        said
    }

    /// A tick passes. One thread's clock may miss it.
    pub(crate) fn tick(&self, state: &mut State, missed_by: Option<usize>) {
        state.key = state.key.and_then(|(token, left)| (left > 1).then(|| (token, left - 1)));
        for (thread, step) in state.steps.iter_mut().enumerate() {
            if missed_by != Some(thread) {
                self.grow_older(step);
            }
        }
        self.clean_up(state);
    }

    fn grow_older(&self, step: &mut Step) {
        match step {
            Step::Idle | Step::InLine(_) => {}
            Step::Called(_, handed) => match handed {
                Handed::Taken { age } | Handed::Astray { age } => older(age),
                Handed::Nothing | Handed::Spoilt => {}
            },
            Step::Bidding(bid) => {
                bid.sent.iter_mut().chain(&mut bid.astray).for_each(older);
            }
            Step::Holding(hold) => {
                if !self.is(Mutation::TrustsAFlag) {
                    hold.valid = hold.valid.saturating_sub(1);
                }
                hold.renewal.iter_mut().for_each(|(age, _)| older(age));
            }
            Step::Releasing(release) => {
                release.valid.1 = release.valid.1.saturating_sub(1);
                release.wish.iter_mut().for_each(|(_, age)| older(age));
                if let Handed::Taken { age } | Handed::Astray { age } = &mut release.handed {
                    older(age);
                }
            }
        }
    }

    /// The keepers delete what they owe, over connections of their own.
    ///
    /// As in the program, a debt is settled by the first find. If another `SET` of the token is still under way, its key is
    /// left to its lease: that is noted by a debt with no time left.
    fn clean_up(&self, state: &mut State) {
        for mut leftover in std::mem::take(&mut state.owed) {
            if leftover.left > 0 {
                let said = self.run(&mut state.key, Command::Delete(leftover.token));
                if !leftover.stray || said.removed && self.is(Mutation::TakesAFindForTheEnd) {
                    continue;
                }
                leftover.left -= 1;
            }
            if leftover.left > 0 || may_come(state, &leftover) {
                state.owed.push(leftover);
            }
        }
    }
}

fn may_come(state: &State, leftover: &Leftover) -> bool {
    let set = Command::Set(leftover.token);
    stands(state.key.as_ref(), leftover.token) || state.strays.iter().any(|link| link.commands.contains(&set))
}

fn stands(key: Option<&(Token, u8)>, token: Token) -> bool {
    key.is_some_and(|(found, _)| *found == token)
}

fn older(age: &mut u8) {
    *age = LEASE.min(*age + 1);
}
