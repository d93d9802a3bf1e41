//! Where the queue of each key is, and for how long the queue of a key that no thread wants is
//! kept.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::hash::HashMap;
use crate::waiting::queue::{Start, WaitQueue};
use crate::waiting::waiter::Waiter;

/// How many queues a manager keeps once no thread of this process wants their keys any more.
pub(super) const REMEMBERED: usize = 8;

/// The queues of one manager.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The queues in which a thread has the turn or waits for it, those in `ended`, and new ones in
    /// the places that are unused.
    queues: Vec<(Arc<str>, WaitQueue)>,
    /// The place of a key's queue. A queue stays where it is while a thread has the turn or waits
    /// for it. So a turn knows its place, and looks up its key once.
    places: HashMap<Arc<str>, usize>,
    unused: Vec<usize>,
    /// The queues that ended last, the latest at the end. A thread may want such a key again by
    /// now.
    ended: VecDeque<usize>,
    /// How many turns have started.
    pub(super) turns: u64,
    /// A thread waits until the queues have ended.
    pub(super) is_watched: bool,
}

impl Table {
    /// The place of a key's queue, which is a new one if there is none.
    pub(super) fn place(&mut self, name: &Arc<str>) -> usize {
        if let Some(place) = self.places.get(name) {
            return *place;
        }
        let new = (Arc::clone(name), WaitQueue::default());
        let place = self.unused.pop().unwrap_or(self.queues.len());
        match self.queues.get_mut(place) {
            Some(unused) => *unused = new,
            None => self.queues.push(new),
        }
        self.places.insert(Arc::clone(name), place);
        place
    }

    /// The queue in a place. `None` if nothing was ever there.
    pub(super) fn at(&mut self, place: usize) -> Option<&mut WaitQueue> {
        self.queues.get_mut(place).map(|(_, queue)| queue)
    }

    /// A key's queue, if there is one.
    pub(super) fn of(&self, name: &str) -> Option<&WaitQueue> {
        self.places.get(name).map(|place| &self.queues[*place].1)
    }

    /// A key's queue, which is a new one if there is none.
    pub(super) fn queue(&mut self, name: &Arc<str>) -> &mut WaitQueue {
        let place = self.place(name);
        &mut self.queues[place].1
    }

    /// All queues. Some may be idle.
    pub(super) fn all(&self) -> impl Iterator<Item = &(Arc<str>, WaitQueue)> {
        self.queues.iter()
    }

    /// Starts a turn, if it has come. If the thread asks Redis at once, that is noted here.
    pub(super) fn start_turn(
        &mut self,
        place: usize,
        waiter: Option<&Arc<Waiter>>,
        once: bool,
        now: Moment,
    ) -> Option<Start> {
        let (number, queue) = (self.turns + 1, &mut self.queues[place].1);
        let start = queue.start_turn(number, waiter, once, now)?;
        if start.asks_at_once() {
            queue.asks(start.number, now);
        }
        self.turns = self.turns.max(start.number);
        Some(start)
    }

    /// A queue has ended. Keeps it for a while, and drops the one that ended first.
    pub(super) fn ended(&mut self, place: usize) {
        if self.ended.back() == Some(&place) {
            return;
        }
        // Queues that threads use again are not for this list to drop.
        let queues = &self.queues;
        self.ended.retain(|it| *it != place && queues[*it].1.is_idle());
        self.ended.push_back(place);
        if self.ended.len() > REMEMBERED
            && let Some(first) = self.ended.pop_front()
        {
            // After a burst of keys, their names would stay in memory for ever.
            let (name, _) = mem::take(&mut self.queues[first]);
            self.places.remove(&name);
            self.unused.push(first);
        }
    }

    /// How many keys have a queue.
    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.places.len()
    }
}
