//! The queues of one manager, by key, and for how long the queue of a key that no thread wants is
//! kept.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::sync::HashMap;
use crate::waiting::queue::WaitQueue;

/// How many queues a manager keeps once no thread of this process wants their keys any more.
pub(super) const REMEMBERED: usize = 8;

/// The queues of one manager.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The queues in which a thread has the turn or waits for it, and those in `ended`.
    queues: HashMap<Arc<str>, WaitQueue>,
    /// The keys whose queues ended last, the latest at the end. A thread may want such a key again
    /// by now.
    ended: VecDeque<Arc<str>>,
    /// The last number that was given to a turn.
    turns: u64,
}

impl Table {
    /// A key's queue, if there is one.
    pub(super) fn of(&self, name: &str) -> Option<&WaitQueue> {
        self.queues.get(name)
    }

    /// See [`of`](Table::of).
    pub(super) fn of_mut(&mut self, name: &str) -> Option<&mut WaitQueue> {
        self.queues.get_mut(name)
    }

    /// A key's queue, which is a new one if there is none.
    pub(super) fn queue(&mut self, name: &Arc<str>) -> &mut WaitQueue {
        self.queues.entry(Arc::clone(name)).or_default()
    }

    /// A number that no turn has had.
    pub(super) fn next_number(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// All queues. Some may be idle.
    pub(super) fn all(&self) -> impl Iterator<Item = (&Arc<str>, &WaitQueue)> {
        self.queues.iter()
    }

    /// A queue has ended. Keeps it for a while, and drops the one that ended first: after a burst
    /// of keys, their names would stay in memory for ever.
    pub(super) fn ended(&mut self, name: &Arc<str>) {
        let is_idle = |name: &Arc<str>| self.queues.get(name).is_some_and(WaitQueue::is_idle);
        // Queues that threads use again are not for this list to drop.
        self.ended.retain(|it| it != name && is_idle(it));
        self.ended.push_back(Arc::clone(name));
        if self.ended.len() > REMEMBERED
            && let Some(first) = self.ended.pop_front()
        {
            self.queues.remove(&first);
        }
    }

    /// How many keys have a queue.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.queues.len()
    }
}
