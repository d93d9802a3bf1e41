//! The threads that wait for a lock now: a list for the program, and log lines.
//!
//! A thread enters the list when it is about to sleep for the first time, and leaves it when its
//! wait is over. So a lock that is free costs nothing here. (The list of `deadlocks` is another
//! one: it is one for the whole process, and has only the threads that hold locks.)

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::{self, debug, info};
use crate::base::error::Error;
use crate::base::key::Key;
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::base::stats::counters::Counters;
use crate::base::sync::Mutex;
use crate::waiting::patience::{Patience, Silence};

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
    pub remaining: Option<Duration>,
}

impl WaitingThread {
    fn new(
        key: &str,
        thread: &Owner,
        began: Moment,
        deadline: Moment,
        holder: Option<Holder>,
        now: Moment,
    ) -> WaitingThread {
        let remaining = (deadline < Moment::NEVER).then(|| deadline.since(now));
        WaitingThread {
            key: key.to_owned(),
            thread: thread.clone(),
            waited: now.since(began),
            holder,
            remaining,
        }
    }
}

/// One line for a log.
impl fmt::Display for WaitingThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WaitingThread {
            key,
            thread,
            waited,
            holder,
            remaining,
        } = self;
        write!(
            f,
            "{thread} has waited for lock {key:?} for {waited:.1?}, {}, ",
            held_by(holder.as_ref())
        )?;
        match remaining {
            Some(left) => write!(f, "gives up in {left:.1?}"),
            None => f.write_str("without a limit"),
        }
    }
}

/// What a thread waits for, as far as is known.
pub(crate) struct Awaited {
    pub(crate) holder: Option<Holder>,
    /// The thread in front waits for an answer of Redis, or has got none.
    pub(crate) silence: Option<Silence>,
}

/// How long the silence of Redis has to last to be worth a word.
const LONG_SILENCE: Duration = Duration::from_secs(1);

/// For how long Redis has been silent at `now`, and why.
fn silent_for(silence: &Silence, now: Moment) -> String {
    let text = format!(
        "Redis has given no answer for {:.1?}",
        now.since(silence.since)
    );
    match &silence.cause {
        Some(cause) => format!("{text}: {cause}"),
        None => text,
    }
}

/// A holder, if it is known.
fn held_by(holder: Option<&Holder>) -> String {
    holder.map_or_else(
        || "whose holder is not known".to_owned(),
        |holder| format!("held by {holder}"),
    )
}

/// The waits of one manager.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    /// How many threads have entered the list.
    entered: AtomicU64,
    threads: Mutex<Vec<Listed>>,
    pub(super) counters: Arc<Counters>,
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
    pub(super) fn new(counters: Arc<Counters>) -> Waits {
        Waits {
            entered: AtomicU64::new(0),
            threads: Mutex::default(),
            counters,
        }
    }

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
        let mut threads = self.threads.lock().clone();
        threads.sort_by_key(|it| it.began);
        let shown = |it: Listed| {
            let holder = holder(&it.name);
            (
                WaitingThread::new(&it.name, &it.thread, it.began, it.deadline, holder, now),
                it.since,
            )
        };
        threads.into_iter().map(shown).collect()
    }

    /// The names of the locks for which threads wait, one for each thread.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let threads = self.threads.lock();
        threads.iter().map(|it| Arc::clone(&it.name)).collect()
    }

    fn leave(&self, number: u64) {
        let mut threads = self.threads.lock();
        if let Some(place) = threads.iter().position(|it| it.number == number) {
            threads.swap_remove(place);
        }
    }
}

/// The wait of one thread for one lock. It is in the list from its first sleep until this is
/// dropped.
pub(crate) struct ListedWait<'a> {
    waits: &'a Waits,
    key: &'a Key,
    thread: &'a Owner,
    patience: &'a Patience,
    /// The number in the list, once the wait is there.
    number: Cell<Option<u64>>,
    /// The log has a line that says that the wait begins.
    is_announced: Cell<bool>,
    /// When the log says next that the wait goes on.
    next_report: Cell<Moment>,
}

impl<'a> ListedWait<'a> {
    pub(crate) fn new(
        waits: &'a Waits,
        key: &'a Key,
        thread: &'a Owner,
        patience: &'a Patience,
    ) -> ListedWait<'a> {
        ListedWait {
            waits,
            key,
            thread,
            patience,
            number: Cell::new(None),
            is_announced: Cell::new(false),
            next_report: Cell::new(patience.next_report(patience.began)),
        }
    }

    /// The thread is about to sleep. The caller may hold a lock.
    pub(crate) fn begins(&self) {
        if self.number.get().is_none() {
            let number = self.waits.entered.fetch_add(1, Ordering::Relaxed);
            self.number.set(Some(number));
            let mut threads = self.waits.threads.lock();
            threads.push(Listed {
                number,
                name: Arc::clone(self.key.name()),
                thread: self.thread.clone(),
                began: self.patience.began,
                deadline: self.patience.deadline,
                since: Moment::now(),
            });
        }
    }

    /// Says that the thread is about to sleep: once, and again after 5 s, 10 s, 20 s and so on.
    /// Returns when it has to be called next. This calls the program's logger, so the caller holds
    /// no lock.
    pub(crate) fn announce(&self, awaited: impl Fn(Moment) -> Awaited) -> Moment {
        self.begins();
        let now = Moment::now();
        let Patience {
            began, deadline, ..
        } = *self.patience;
        if !self.is_announced.replace(true) {
            self.waits.counters.of(self.key.name()).waiting.change(1.0);
            debug!(
                target: "relatch::wait",
                "{} waits for lock {:?}, {}", self.thread, self.key.name(), held_by(awaited(now).holder.as_ref())
            );
        }
        if self.next_report.get() <= now {
            self.next_report.set(self.patience.next_report(now));
            let Awaited { holder, silence } = awaited(now);
            let waiting =
                WaitingThread::new(self.key.name(), self.thread, began, deadline, holder, now);
            match silence.filter(|silence| now.since(silence.since) >= LONG_SILENCE) {
                None => info!(target: "relatch::wait", "{waiting}"),
                Some(silence) => {
                    info!(target: "relatch::wait", "{waiting}; {}", silent_for(&silence, now));
                }
            }
        }
        self.next_report.get()
    }

    /// Logs that the wait is over: with the lock, or with an error.
    pub(crate) fn log_end(&self, error: Option<&Error>) {
        if self.is_announced.get() {
            let thread = self.thread;
            let name = self.key.name();
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
            self.waits.counters.of(self.key.name()).waiting.change(-1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_one_line_for_a_log() {
        let thread = Owner::new("host".into(), 7, 2);
        let holder = Holder::new(format!("host-7-3-{}", "0".repeat(32)).as_bytes(), None);
        let line = |deadline: Moment, holder: Option<&Holder>| {
            let began = Moment::from_nanos(0);
            let now = began.after(Duration::from_millis(1_500));
            WaitingThread::new("a", &thread, began, deadline, holder.cloned(), now).to_string()
        };
        let deadline = Moment::from_nanos(0).after(Duration::from_secs(4));
        assert_eq!(
            line(deadline, Some(&holder)),
            format!(
                "{thread} has waited for lock \"a\" for 1.5s, held by {holder}, gives up in 2.5s"
            )
        );
        let unknown = format!(
            "{thread} has waited for lock \"a\" for 1.5s, whose holder is not known, without a limit"
        );
        assert_eq!(line(Moment::NEVER, None), unknown);
    }
}
