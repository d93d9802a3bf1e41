//! The threads that wait for a lock now: a list for the program, and log lines.
//!
//! A thread enters the list when it is about to sleep for the first time, and leaves it when its
//! wait is over. So a lock that is free costs nothing here. (The list of `deadlocks` is another
//! one: it is one for the whole process, and has only the threads that hold locks.)

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::clock::Moment;
use crate::base::emit::{self, debug};
use crate::base::error::Error;
use crate::base::holder::Holder;
use crate::base::key::Key;
use crate::base::metrics::WAITING;
use crate::base::owner::Owner;
use crate::waiting::patience::Patience;

/// A thread of this process that waits for a lock, as listed by
/// [`LockManager::waiting`](crate::LockManager::waiting).
///
/// This is a snapshot: the thread may have the lock by now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaitingThread {
    /// The lock's key.
    pub key: String,
    /// The thread that waits.
    pub thread: Owner,
    /// For how long it has waited.
    pub waited: Duration,
    /// Who has the lock, as far as this process knows without asking: a thread of this manager, or
    /// the holder that Redis named last. `None` if Redis has not named one yet, or gives no answer.
    pub holder: Option<Holder>,
    /// How much time is left until the thread gives up. `None` if its wait has no limit.
    pub time_left: Option<Duration>,
}

/// One line for a log.
impl fmt::Display for WaitingThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WaitingThread { key, thread, waited, holder, time_left } = self;
        write!(f, "{thread} has waited for lock {key:?} for {waited:.1?}, {}, ", Named(holder.as_ref()))?;
        match time_left {
            Some(left) => write!(f, "gives up in {left:.1?}"),
            None => f.write_str("without a limit"),
        }
    }
}

/// A holder, if it is known.
struct Named<'a>(Option<&'a Holder>);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(holder) => write!(f, "held by {holder}"),
            None => f.write_str("whose holder is not known"),
        }
    }
}

/// The waits of one manager.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// How many threads have entered the list.
    entered: u64,
    threads: Vec<Listed>,
}

#[derive(Clone, Debug)]
struct Listed {
    number: u64,
    name: Arc<str>,
    thread: Owner,
    began: Moment,
    deadline: Moment,
    /// When it was added to the list.
    since: Moment,
}

impl Waits {
    /// Whether a wait is announced at its begin. This does not ask the program's logger, so a
    /// caller may hold a lock.
    pub(crate) fn are_announced() -> bool {
        emit::may_be_on()
    }

    /// The threads that wait, those that have waited longest first, and when each was listed.
    /// `holder` says who has a lock.
    pub(super) fn threads(
        &self,
        now: Moment,
        holder: impl Fn(&str) -> Option<Holder>,
    ) -> Vec<(WaitingThread, Moment)> {
        let mut threads = self.list.lock().threads.clone();
        threads.sort_by_key(|it| it.began);
        let shown = |it: Listed| {
            let waiting = WaitingThread {
                key: it.name.to_string(),
                holder: holder(&it.name),
                thread: it.thread,
                waited: now.since(it.began),
                time_left: (it.deadline < Moment::NEVER).then(|| it.deadline.since(now)),
            };
            (waiting, it.since)
        };
        threads.into_iter().map(shown).collect()
    }

    pub(crate) fn count(&self) -> usize {
        self.list.lock().threads.len()
    }

    fn leave(&self, number: u64) {
        let mut list = self.list.lock();
        if let Some(place) = list.threads.iter().position(|it| it.number == number) {
            list.threads.swap_remove(place);
        }
    }
}

/// The wait of one thread for one lock. It is in the list from its first sleep until this is
/// dropped.
pub(crate) struct ListedWait<'a> {
    waits: &'a Waits,
    pub(crate) key: &'a Key,
    pub(crate) thread: &'a Owner,
    pub(crate) patience: &'a Patience,
    /// The number in the list, once the wait is there.
    number: Cell<Option<u64>>,
    /// The log has a line that says that the wait begins.
    is_announced: Cell<bool>,
}

impl<'a> ListedWait<'a> {
    pub(crate) fn new(
        waits: &'a Waits,
        key: &'a Key,
        thread: &'a Owner,
        patience: &'a Patience,
    ) -> ListedWait<'a> {
        let (number, is_announced) = (Cell::new(None), Cell::new(false));
        ListedWait { waits, key, thread, patience, number, is_announced }
    }

    /// The thread is about to sleep. The caller may hold a lock.
    pub(crate) fn begins(&self) {
        if self.number.get().is_none() {
            let mut list = self.waits.list.lock();
            list.entered += 1;
            self.number.set(Some(list.entered));
            let (number, name) = (list.entered, Arc::clone(self.key.name()));
            let Patience { began, deadline, .. } = *self.patience;
            let (thread, since) = (self.thread.clone(), Moment::now());
            list.threads.push(Listed { number, name, thread, began, deadline, since });
        }
    }

    /// Says once that the thread is about to sleep. This calls the program's logger, so the caller
    /// holds no lock.
    pub(crate) fn announce(&self, holder: Option<&Holder>) {
        self.begins();
        if !self.is_announced.replace(true) {
            emit::change(&WAITING, 1.0);
            debug!(
                target: "relatch::wait",
                "{} waits for lock {:?}, {}", self.thread, self.key.name(), Named(holder)
            );
        }
    }

    /// The wait is over: with the lock, or with an error.
    pub(crate) fn ends(&self, error: Option<&Error>) {
        if self.is_announced.get() {
            let (thread, name) = (self.thread, self.key.name());
            let waited = Moment::now().since(self.patience.began);
            match error {
                None => {
                    debug!(target: "relatch::wait", "{thread} took lock {name:?} after {waited:.1?}");
                }
                Some(error) => debug!(
                    target: "relatch::wait",
                    "{thread} stopped waiting for lock {name:?} after {waited:.1?}: {error}"
                ),
            }
        }
    }
}

impl Drop for ListedWait<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number.get() {
            self.waits.leave(number);
        }
        if self.is_announced.get() {
            emit::change(&WAITING, -1.0);
        }
    }
}
