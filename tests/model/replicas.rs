//! Replicas: what they have of the master's writes, and failovers.
//!
//! A replica gets the writes one by one, in their order, at any later time. A failover makes a
//! replica the master, with what it has by then. Either the old master dies, with all that was
//! under way to it. Or it goes on: it executes what is sent to it, but no replica follows it any
//! more, and it is no replica of the new master either. At any later time, a thread notices and
//! connects to the new master, or the old master ends.
//!
//! The new master has as many replicas as the old one, with the same data. In practice, the old
//! master would be one of them, and as long as it is not, `replicas(all)` takes no lock. That the
//! new master takes locks at once is the harder case.
//!
//! The clocks of all servers agree. A replica sends nothing to a thread.

use crate::model::{Action, Mutation, Protocol};
use crate::state::{Command, Key, Link, Redis, State, Step};

/// A replica of the current master.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Replica {
    key: Key,
    /// The key after each write that the replica does not have yet.
    pending: Vec<Key>,
}

impl Redis {
    /// The key as the servers have it, or will have it.
    pub(crate) fn copies(&self) -> impl Iterator<Item = Key> {
        let replicas = self
            .replicas
            .iter()
            .flat_map(|it| it.pending.iter().copied().chain([it.key]));
        replicas.chain([self.key]).chain(self.replaced)
    }

    /// Executes a command at the server of a link. What is written there goes to its replicas.
    pub(crate) fn at_its_server<T>(
        &mut self,
        link: &mut Link,
        execute: impl FnOnce(&mut Redis) -> T,
    ) -> T {
        if link.term == Some(self.term) || self.replicas.is_empty() {
            let done = self.replicating(execute);
            link.behind = self.replicas.iter().map(Replica::behind).collect();
            return done;
        }
        // No replica follows the old master. (A link to a master that is dead executes nothing.)
        let mut old = Redis {
            key: self.replaced.flatten(),
            replicas: Vec::new(),
            ..self.clone()
        };
        let done = execute(&mut old);
        self.replaced = Some(old.key);
        done
    }

    /// Executes a command at the master.
    pub(crate) fn replicating<T>(&mut self, execute: impl FnOnce(&mut Redis) -> T) -> T {
        let before = self.key;
        let done = execute(self);
        if self.key != before {
            let key = self.key;
            self.replicas
                .iter_mut()
                .for_each(|replica| replica.pending.push(key));
        }
        done
    }

    /// How many replicas have all that was written before the last command of a link.
    pub(crate) fn acknowledged(&self, link: &Link) -> u8 {
        let all = link.term == Some(self.term);
        let count = link
            .behind
            .iter()
            .filter(|behind| all && **behind == 0)
            .count();
        u8::try_from(count).expect("few replicas")
    }

    /// A tick passes at the replicas and at an old master.
    pub(crate) fn copies_grow_older(&mut self) {
        let older = |key: &mut Key| {
            *key = key.and_then(|(token, left)| (left > 1).then(|| (token, left - 1)));
        };
        for replica in &mut self.replicas {
            replica.pending.iter_mut().for_each(older);
            older(&mut replica.key);
        }
        self.replaced.iter_mut().for_each(older);
    }

    /// Whether the server of a link is dead.
    fn is_dead(&self, link: &Link) -> bool {
        !self.replicas.is_empty()
            && link.term.is_some_and(|term| term != self.term)
            && self.replaced.is_none()
    }
}

impl Replica {
    fn behind(&self) -> u8 {
        u8::try_from(self.pending.len()).expect("few writes")
    }
}

impl State {
    /// All connections with commands or answers under way.
    fn links(&mut self) -> impl Iterator<Item = &mut Link> {
        self.steps
            .iter_mut()
            .filter_map(Step::link_mut)
            .chain(&mut self.strays)
    }

    /// Connects the links that the thread has just opened.
    pub(crate) fn connect(&mut self, thread: usize) {
        let term = self.redis.term - u8::from(self.stale.contains(&thread));
        let new = self.links().filter(|link| link.term.is_none());
        new.for_each(|link| link.term = Some(term));
    }

    /// Whether the answer on a link can only be lost, because its server is dead.
    pub(crate) fn is_cut_off(&self, link: &Link) -> bool {
        self.redis.is_dead(link) && !link.commands.is_empty()
    }
}

impl Protocol {
    /// How many replicas have to acknowledge a lock.
    pub(crate) fn wants(&self) -> u8 {
        self.acknowledged
    }

    /// The commands of a renewal.
    pub(crate) fn with_wait(&self, command: Command) -> Vec<Command> {
        if self.wants() > 0 {
            vec![command, Command::Wait]
        } else {
            vec![command]
        }
    }

    /// Whether the next command of a link asks the master for replicas, and too few have answered.
    pub(crate) fn is_short(&self, redis: &Redis, link: &Link) -> bool {
        let asks = link.commands.first() == Some(&Command::Wait) && link.term == Some(redis.term);
        asks && redis.acknowledged(link) < self.wants()
    }

    /// Whether an answer shows that a lock or a renewal counts.
    pub(crate) fn is_acknowledged(&self, link: &Link) -> bool {
        link.said.acknowledged >= self.wants()
    }

    /// The same for a renewal.
    pub(crate) fn is_renewal_acknowledged(&self, link: &Link) -> bool {
        self.is_acknowledged(link) || self.is(Mutation::CountsUnacknowledgedRenewals)
    }
}

/// What can happen to the servers.
pub(crate) fn actions(state: &State, actions: &mut Vec<Action>) {
    for (number, replica) in state.redis.replicas.iter().enumerate() {
        if !replica.pending.is_empty() {
            actions.push(Action::Replicate(number));
        }
        if state.budget.failovers > 0 {
            actions.extend([
                Action::Failover(number, false),
                Action::Failover(number, true),
            ]);
        }
    }
    if state.redis.replaced.is_some() {
        actions.push(Action::EndOldMaster);
        actions.extend(state.stale.iter().map(|thread| Action::Notice(*thread)));
    }
}

/// Executes one of these actions.
pub(crate) fn act(state: &mut State, action: Action) {
    match action {
        Action::Replicate(number) => {
            let (term, replica) = (state.redis.term, &mut state.redis.replicas[number]);
            replica.key = replica.pending.remove(0);
            for link in state.links().filter(|link| link.term == Some(term)) {
                link.behind
                    .get_mut(number)
                    .into_iter()
                    .for_each(|behind| *behind = behind.saturating_sub(1));
            }
        }
        Action::Failover(number, goes_on) => {
            state.budget.failovers -= 1;
            let key = state.redis.replicas[number].key;
            let old = std::mem::replace(&mut state.redis.key, key);
            state.redis.replicas.fill(Replica {
                key,
                pending: Vec::new(),
            });
            state.redis.term += 1;
            if goes_on {
                state.redis.replaced = Some(old);
                state.stale = (0..state.steps.len()).collect();
            } else {
                end_old_master(state);
            }
        }
        Action::EndOldMaster => end_old_master(state),
        Action::Notice(thread) => state.stale.retain(|it| *it != thread),
        _ => {}
    }
}

/// The replicas get all writes that they do not have yet.
pub(crate) fn catch_up(state: &mut State) {
    for number in 0..state.redis.replicas.len() {
        while state.redis.replicas[number].behind() > 0 {
            act(state, Action::Replicate(number));
        }
    }
}

/// What is under way to the old master is never executed. A thread that waits for an answer loses
/// it.
fn end_old_master(state: &mut State) {
    (state.redis.replaced, state.stale) = (None, Vec::new());
    let term = state.redis.term;
    state.strays.retain(|link| link.term == Some(term));
}
