//! Redis: one key, commands as one step each, and time.

use crate::model::{Mutation, Protocol};
use crate::state::{
    Command, Connected, LEASE, Link, Orphan, Outcome, Redis, Said, State, Step, Token,
};

impl Protocol {
    /// Executes a connection's next command. The process `by` gets no invalidation for the change.
    pub(crate) fn execute(&self, redis: &mut Redis, link: &mut Link, by: Option<usize>) {
        let command = link.commands.remove(0);
        let said = if command == Command::Wait {
            Said {
                acknowledged: redis.acknowledged(link),
                ..Said::default()
            }
        } else {
            redis.at_its_server(link, |redis| self.run(redis, command, by))
        };
        if link.old > 0 {
            link.old -= 1;
            return;
        }
        let so_far = &mut link.said;
        so_far.set |= said.set;
        so_far.found = so_far.found.or(said.found);
        so_far.removed |= said.removed;
        so_far.extended |= said.extended;
        so_far.stood |= said.stood;
        so_far.acknowledged += said.acknowledged;
        so_far.fence = so_far.fence.max(said.fence);
    }

    fn run(&self, redis: &mut Redis, command: Command, by: Option<usize>) -> Said {
        let mut said = Said::default();
        match command {
            Command::Set(token) | Command::Attempt(token, _) if redis.key.is_none() => {
                said.set = true;
                said.fence = self.number(&mut redis.counter);
                redis.key = Some((token, LEASE));
                redis.changed(by);
            }
            Command::Set(_) | Command::Wait => {}
            Command::Raise => said.fence = redis.counter.raise(),
            Command::Attempt(token, listener) => {
                said.found = redis.key.map(|(found, _)| found);
                if said.found == Some(token) {
                    said.fence = redis.counter.stored;
                }
                self.register(redis, token.thread, listener);
            }
            Command::Adopt(old, new) => said = self.swap(redis, old, new, by),
            Command::Register(thread, listener) => self.register(redis, thread, listener),
            Command::Delete(token) => {
                said.stood = stands(redis.key.as_ref(), token);
                said.removed =
                    said.stood || self.is(Mutation::DeletesWithoutComparing) && redis.key.is_some();
                if said.removed {
                    redis.key = None;
                    redis.changed(by);
                }
            }
            Command::Renew(token) => {
                if self.is(Mutation::RenewalCreates) && redis.key.is_none() {
                    redis.key = Some((token, LEASE));
                }
                if stands(redis.key.as_ref(), token) {
                    said.extended = true;
                    redis.key = Some((token, LEASE));
                    redis.changed(by);
                }
            }
        }
        said
    }

    /// If the listener with this number is still connected, it gets an invalidation for the next
    /// change.
    fn register(&self, redis: &mut Redis, thread: u8, listener: Option<u8>) {
        let Some(tracking) = redis
            .tracking
            .get_mut(usize::from(self.threads[usize::from(thread)]))
        else {
            return;
        };
        tracking.registered |=
            tracking.connected == Connected::Yes && listener == Some(tracking.number);
    }

    /// A tick passes. One thread's clock may miss it.
    pub(crate) fn tick(&self, state: &mut State, missed_by: Option<usize>) {
        let key = state
            .redis
            .key
            .and_then(|(token, left)| (left > 1).then(|| (token, left - 1)));
        if state.redis.key.is_some() && key.is_none() {
            state.redis.changed(None);
        }
        state.redis.key = key;
        state.redis.copies_grow_older();
        for (thread, step) in state.steps.iter_mut().enumerate() {
            if missed_by != Some(thread) {
                self.grow_older(step);
            }
        }
        self.clean_up(state);
    }

    fn grow_older(&self, step: &mut Step) {
        match step {
            Step::Idle | Step::Queued(_) => {}
            Step::Called(_, outcome) => match outcome {
                Outcome::Taken { age, .. } => older(age),
                Outcome::Nothing | Outcome::Spoilt => {}
            },
            Step::Claiming(claim) => {
                claim.sent.iter_mut().for_each(older);
            }
            Step::Holding(hold) => {
                if !self.is(Mutation::TrustsAFlag) {
                    hold.valid = hold.valid.saturating_sub(1);
                }
                hold.renewal.iter_mut().for_each(|(age, _)| older(age));
            }
            Step::Adopting(adoption) => older(&mut adoption.sent),
            Step::Releasing(release) => {
                release.valid.1 = release.valid.1.saturating_sub(1);
                release
                    .next_token
                    .iter_mut()
                    .for_each(|(_, age)| older(age));
                if let Outcome::Taken { age, .. } = &mut release.outcome {
                    older(age);
                }
            }
        }
    }

    /// The keepers delete orphans, over connections of their own.
    ///
    /// Only one `SET` of a token can lack an answer, so an orphan ends when its key is found. If
    /// the key is missing, the `SET` may still be executed. If that takes longer than the lease,
    /// the keeper leaves the key to its lease. Such an orphan stays in the list with `left` at
    /// zero, as a mark that its key may still appear.
    fn clean_up(&self, state: &mut State) {
        for mut orphan in std::mem::take(&mut state.orphans) {
            if orphan.left > 0 {
                let delete = Command::Delete(orphan.token);
                let said = state
                    .redis
                    .replicating(|redis| self.run(redis, delete, None));
                if said.removed || !orphan.stray || self.is(Mutation::TakesAMissForTheEnd) {
                    continue;
                }
                orphan.left -= 1;
            }
            if orphan.left > 0 || may_come(state, &orphan) {
                state.orphans.push(orphan);
            }
        }
    }
}

fn may_come(state: &State, orphan: &Orphan) -> bool {
    let sets = |command: &Command| command.sets(orphan.token);
    state
        .redis
        .copies()
        .any(|key| stands(key.as_ref(), orphan.token))
        || state
            .strays
            .iter()
            .any(|link| link.commands.iter().any(sets))
}

fn stands(key: Option<&(Token, u8)>, token: Token) -> bool {
    key.is_some_and(|(found, _)| *found == token)
}

fn older(age: &mut u8) {
    *age = LEASE.min(*age + 1);
}
