//! One thread's wait for one lock: which lock, until when, and what ends it early.

use std::cell::{Cell, OnceCell};
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::emit::{self, Span, debug, info};
use crate::base::error::{BlockedThread, Error};
use crate::base::key::Key;
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::base::stats::counters::Counters;
use crate::base::stop::{StopHandle, Wake};
use crate::store::{Cause, Store};
use crate::waiting::handoff::Claim;
use crate::waiting::patience::{Patience, Silence};
use crate::waiting::waiter::{Awaited, Blocked, HeldBy, Waiter, WaitingThread, held_by, names};
use crate::wakeups::table::Wakeups;

/// One thread's wait for one lock. It begins with the call, and ends when the thread has the lock
/// or gets an error. A thread that never sleeps pays nothing for it.
pub(crate) struct Wait<'a> {
    manager: OfManager<'a>,
    pub(crate) key: &'a Key,
    pub(crate) thread: &'a Owner,
    pub(crate) patience: &'a Patience,
    /// Ends the wait early: the end of the manager, or the caller's own handle, if it has one.
    stops: [Option<&'a StopHandle>; 2],
    /// The queue's entry for this thread, from the first sleep on.
    waiter: OnceCell<Arc<Waiter>>,
    /// The log has a line about the beginning of the wait.
    is_announced: Cell<bool>,
    /// When the log next reports that the wait goes on.
    next_report: Cell<Moment>,
    span: Span,
}

/// The manager that a wait belongs to, and the parts of it that the wait uses.
#[derive(Clone, Copy)]
pub(crate) struct OfManager<'a> {
    /// Distinguishes managers.
    pub(crate) id: u64,
    pub(crate) counters: &'a Counters,
    pub(crate) store: &'a Store,
    /// Ends all waits of the manager.
    pub(crate) end: &'a StopHandle,
    /// Wakes all waiters of the manager.
    pub(crate) wake: &'a Arc<Wake>,
    pub(crate) wakeups: &'a Wakeups,
    /// Lists the locks that the calling thread holds, through any manager.
    pub(crate) held: fn() -> Vec<HeldBy>,
}

impl<'a> Wait<'a> {
    pub(crate) fn new(
        manager: OfManager<'a>,
        key: &'a Key,
        thread: &'a Owner,
        patience: &'a Patience,
        stop: Option<&'a StopHandle>,
    ) -> Wait<'a> {
        Wait {
            manager,
            key,
            thread,
            patience,
            stops: [Some(manager.end), stop],
            waiter: OnceCell::new(),
            is_announced: Cell::new(false),
            next_report: Cell::new(patience.next_report(patience.began)),
            span: Span::wait(key.name()),
        }
    }

    /// The error for a thread that waits for a slot or a gate that it holds itself, through another
    /// manager. (The walk along the waits leaves out those for slots.)
    pub(crate) fn is_for_itself(&self, holder: &Holder) -> Option<Error> {
        if self.key.slots().is_empty() {
            return None;
        }
        let is_it =
            |(_, hold): &HeldBy| *hold.token == *holder.raw && self.key.waits_for(&hold.key);
        let held = (self.manager.held)();
        let key = held.iter().find(|it| is_it(it))?.1.key.name().to_string();
        let cycle = vec![BlockedThread {
            thread: self.thread.clone(),
            key: key.clone(),
        }];
        Some(Error::WouldDeadlock { key, cycle })
    }

    /// True if the thread must not go on waiting.
    pub(crate) fn must_end(&self) -> bool {
        self.may_go_on().is_err()
    }

    /// When the node that has the key last answered any thread.
    pub(super) fn answered_at(&self) -> Moment {
        self.manager.store.answered_at(self.key.in_redis())
    }

    /// Returns an error if the thread must not go on waiting: the program has stopped the wait, the
    /// wait ends a deadlock, or the thread has lost a lock that it holds.
    pub(crate) fn may_go_on(&self) -> Result<(), Error> {
        if self.stops.iter().flatten().any(|stop| stop.is_stopped()) {
            let key = self.key.name().to_string();
            let held = Vec::new();
            return Err(Error::Stopped { key, held });
        }
        self.blocked().map_or(Ok(()), |blocked| blocked.may_go_on())
    }

    /// The queue's entry for this thread, which is about to sleep. `claim` is the claim that the
    /// thread in front may send for it. The caller may hold a mutex.
    pub(super) fn waiter(&self, claim: Option<Claim>) -> &Arc<Waiter> {
        self.waiter.get_or_init(|| {
            let OfManager { id, held, wake, .. } = self.manager;
            let held = if self.patience.once {
                Vec::new() // Nobody waits for long for a thread that tries once.
            } else {
                held()
            };
            let wants = (id, Arc::clone(self.key.name()));
            let slots = !self.key.slots().is_empty();
            let is_blocked = !held.is_empty();
            let blocked = is_blocked.then(|| Arc::new(Blocked::new(wants, slots, held, wake)));
            Arc::new(Waiter::new(self.thread, self.patience, claim, blocked))
        })
    }

    /// When the thread first reports that it waits: before its first sleep, unless nobody would
    /// hear of it. This does not ask the program's logger, so a caller may hold a lock.
    pub(super) fn first_word(&self) -> Moment {
        if self.patience.once {
            Moment::NEVER
        } else if emit::may_be_on() {
            Moment::PAST
        } else {
            self.next_report.get()
        }
    }

    fn counters(&self) -> &Counters {
        self.manager.counters
    }

    /// True if the thread is waiting, or has waited.
    pub(super) fn has_slept(&self) -> bool {
        self.waiter.get().is_some()
    }

    fn blocked(&self) -> Option<&Arc<Blocked>> {
        self.waiter.get()?.blocked.as_ref()
    }

    /// When the first of the thread's own holds runs out, unless it is renewed.
    pub(crate) fn first_end(&self) -> Moment {
        self.blocked()
            .map_or(Moment::NEVER, |blocked| blocked.first_end())
    }

    /// Wakes the thread in front, which asks Redis again. So this thread knows who has the lock
    /// when its own time is up.
    pub(crate) fn ask_front_to_look(&self) {
        self.manager.wakeups.wake(self.key.in_redis().as_bytes());
    }

    /// The wait is over, and the thread has the lock. The queue must no longer list it: this calls
    /// the program's logger.
    pub(super) fn ends(self) {
        self.log_end(None);
        self.span.outcome("taken");
    }

    /// The wait is over, with this error. Counts it, and reports which locks the thread held during
    /// it. The caller must no longer have a turn or a place in the queue: this calls the program's
    /// logger and recorder.
    pub(crate) fn fails(self, error: Error) -> Error {
        self.log_end(Some(&error));
        self.span.outcome(outcome(&error));
        if let Error::Timeout {
            holder: Some(holder),
            ..
        } = &error
        {
            self.span.holder(holder);
        }
        self.counters().of(self.key.name()).failed(&error);
        error.while_holding(names((self.manager.held)()))
    }

    /// Reports that the thread is about to sleep: once, and again after 5 s, 10 s, 20 s and so on.
    /// Returns when it has to be called next. This calls the program's logger, so the caller must
    /// hold no lock.
    pub(super) fn announce(&self, awaited: impl Fn(Moment) -> Awaited) -> Moment {
        let now = Moment::now();
        let name = self.key.name();
        if !self.is_announced.replace(true) {
            self.counters().of(name).waiting.change(1.0);
            debug!(
                target: "relatch::wait",
                "{} waits for lock {name:?}, {}", self.thread, held_by(awaited(now).holder.as_ref())
            );
        }
        if self.next_report.get() <= now {
            self.next_report.set(self.patience.next_report(now));
            let Awaited { holder, silence } = awaited(now);
            let waiting = WaitingThread::new(name, self.waiter(None), holder, now);
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
    fn log_end(&self, error: Option<&Error>) {
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

    /// The error of a wait that ends while the lock is busy. `cause` says why the last attempt
    /// failed.
    pub(crate) fn timed_out(&self, holder: Option<Holder>, cause: Option<Cause>) -> Error {
        Error::Timeout {
            key: self.key.name().to_string(),
            waited: Moment::now().since(self.patience.began),
            holder: holder.map(Box::new),
            held: Vec::new(),
            source: cause,
        }
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        if self.is_announced.get() {
            self.counters().of(self.key.name()).waiting.change(-1.0);
        }
    }
}

/// How long Redis's silence has to last to be worth mentioning.
const LONG_SILENCE: Duration = Duration::from_secs(1);

/// How long Redis has been silent at `now`, and why.
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

/// How a failed wait ended, as recorded in a trace.
fn outcome(error: &Error) -> &'static str {
    match error {
        Error::Timeout { .. } => "timeout",
        Error::Stopped { .. } => "stopped",
        Error::WouldDeadlock { .. } => "would_deadlock",
        Error::Unavailable { .. } => "unavailable",
        Error::Refused { .. } | Error::Tls { .. } => "refused",
        _ => "failed",
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::hold::tests::{sample, sample_by};
    use crate::store::{Failure, Refusal};
    use crate::waiting::patience::tests::until;

    #[test]
    fn a_trace_has_one_word_for_the_end_of_a_wait() {
        let of_failure = |failure| {
            let error = WaitRig::new().store.error(None, "locking", failure);
            outcome(&error)
        };
        assert_eq!(
            of_failure(Failure::not_sent("nobody is there")),
            "unavailable"
        );
        let refusal = Refusal::found("NOPERM", "NOPERM");
        assert_eq!(of_failure(Failure::Refused(refusal)), "refused");
        let rig = WaitRig::new();
        let patience = until(Moment::NEVER);
        let late = rig.wait(&patience).timed_out(None, None);
        assert_eq!(outcome(&late), "timeout");
    }

    /// The parts that the waits of a test need. There is no Redis; all answers come at once from
    /// the store in memory.
    pub(crate) struct WaitRig {
        key: Key,
        owner: Owner,
        counters: Counters,
        store: Store,
        pub(crate) end: StopHandle,
        pub(crate) wake: Arc<Wake>,
        wakeups: Wakeups,
    }

    impl WaitRig {
        pub(crate) fn new() -> WaitRig {
            WaitRig {
                key: Key::new("lock:", "key").unwrap(),
                owner: sample("key", Duration::ZERO, Moment::PAST).owner.clone(),
                counters: Counters::default(),
                store: Store::in_memory(),
                end: StopHandle::new(),
                wake: Arc::new(|| ()),
                wakeups: Wakeups::default(),
            }
        }

        /// Nothing answers.
        pub(crate) fn silent() -> WaitRig {
            let rig = WaitRig::new();
            let memory = rig.store.memory().expect("it is in memory");
            memory.go_away(Duration::from_secs(3600));
            rig
        }

        /// The wait of a thread that holds nothing.
        pub(crate) fn wait<'a>(&'a self, patience: &'a Patience) -> Wait<'a> {
            self.holding(patience, Vec::new)
        }

        /// The wait of a thread that holds the lock with the token [`mine`] of this test. A walk
        /// reads the queues of all tests, so no two tests may share a token.
        pub(crate) fn wait_of_holder<'a>(&'a self, patience: &'a Patience, test: u8) -> Wait<'a> {
            let held = match test {
                1 => || held_by(1),
                2 => || held_by(2),
                _ => || held_by(3),
            };
            self.holding(patience, held)
        }

        fn holding<'a>(&'a self, patience: &'a Patience, held: fn() -> Vec<HeldBy>) -> Wait<'a> {
            let manager = OfManager {
                id: 1,
                counters: &self.counters,
                store: &self.store,
                end: &self.end,
                wake: &self.wake,
                wakeups: &self.wakeups,
                held,
            };
            Wait::new(manager, &self.key, &self.owner, patience, None)
        }
    }

    fn held_by(test: u8) -> Vec<HeldBy> {
        let hour = Duration::from_secs(3600);
        vec![(2, Arc::new(sample_by(&mine(test), hour)))]
    }

    /// The token of a lock that the thread of a [`WaitRig`] holds through another manager.
    pub(crate) fn mine(test: u8) -> String {
        let owner = sample("key", Duration::ZERO, Moment::PAST).owner.clone();
        format!("{owner}-{test:032x}")
    }
}
