//! The queues of one manager, by key, and how long the queue of a key that no thread wants is kept.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::sync::{HashMap, MutexGuard};
use crate::waiting::patience::SLOW_ANSWER;
use crate::waiting::queue::WaitQueue;
use crate::waiting::waiter::{Waiter, WaitingThread};

/// How many queues a manager keeps once no thread of this process wants their keys any more.
pub(super) const REMEMBERED: usize = 8;

/// The queues of one manager.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// The queues in which a thread has the turn or waits for it, and those in `ended`.
    queues: HashMap<Arc<str>, WaitQueue>,
    /// The keys whose queues most recently ended, the latest at the end. A thread may want such a
    /// key again by now.
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

    /// A key's queue, which is created if there is none.
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

    /// The waiting threads, each with its queue and that queue's name.
    pub(super) fn waiters(&self) -> impl Iterator<Item = (&Arc<str>, &WaitQueue, &Arc<Waiter>)> {
        let of_queue = |(name, queue)| WaitQueue::waiters(queue).map(move |it| (name, queue, it));
        self.queues.iter().flat_map(of_queue)
    }

    /// The waiting threads, longest wait first, and since when each has slept.
    pub(super) fn waiting(&self, now: Moment) -> Vec<(WaitingThread, Moment)> {
        let shown = |(name, queue, it): (&Arc<str>, &WaitQueue, &Arc<Waiter>)| {
            let thread = WaitingThread::new(name, it, queue.holder(now), now);
            (thread, it.since)
        };
        let mut threads: Vec<_> = self.waiters().map(shown).collect();
        threads.sort_by_key(|(it, _)| Reverse(it.waited));
        threads
    }

    /// A queue has ended. Keeps it for a while, and drops the one that ended first: otherwise,
    /// after a burst of keys, their names would stay in memory forever.
    pub(super) fn ended(&mut self, name: &Arc<str>) {
        let is_idle = |name: &Arc<str>| self.queues.get(name).is_some_and(WaitQueue::is_idle);
        // This list must not drop queues that threads use again.
        self.ended.retain(|it| it != name && is_idle(it));
        self.ended.push_back(Arc::clone(name));
        if self.ended.len() > REMEMBERED
            && let Some(first) = self.ended.pop_front()
        {
            self.queues.remove(&first);
        }
    }
}

/// Sleeps until the waiter is woken, or until `until`. Why it was woken does not matter: the caller
/// looks again.
///
/// While the machine is suspended, the clock of this sleep stands still. Only the first waiter
/// checks for that, once a second, and wakes the others.
pub(super) fn sleep(
    table: &mut MutexGuard<'_, Table>,
    name: &str,
    me: &Arc<Waiter>,
    until: Moment,
    now: Moment,
) {
    let is_first = table.of(name).is_some_and(|queue| queue.is_next(Some(me)));
    let limit = if is_first {
        until.one_wait_from(now)
    } else {
        until.since(now)
    };
    me.woken.wait_for(table, limit);
    if is_first && Moment::now().since(until) > SLOW_ANSWER {
        wake_each(table.of(name));
    }
}

/// Makes each waiter in these queues look again.
pub(super) fn wake_each<'a>(queues: impl IntoIterator<Item = &'a WaitQueue>) {
    let waiting = queues.into_iter().flat_map(|queue| &queue.waiting);
    waiting.for_each(|waiter| _ = waiter.woken.notify_one());
}

/// Makes the first waiter look again.
pub(super) fn notify_first(table: MutexGuard<'_, Table>, name: &str) {
    let first = table
        .of(name)
        .and_then(|queue| queue.waiting.front().cloned());
    notify(first, table);
}

/// Wakes a waiter once the table is unlocked.
pub(super) fn notify(waiter: Option<Arc<Waiter>>, table: MutexGuard<'_, Table>) {
    drop(table);
    if let Some(waiter) = waiter {
        waiter.woken.notify_one();
    }
}
