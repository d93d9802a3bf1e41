//! The wait of one thread for one lock: which lock, until when, and what ends it early.

use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::emit::Span;
use crate::base::error::Error;
use crate::base::key::Key;
use crate::base::owner::Owner;
use crate::base::owner::holder::Holder;
use crate::base::stop::{StopHandle, Wake};
use crate::store::{Cause, Store};
use crate::waiting::deadlocks::{DeadlockWatch, HeldBy, names};
use crate::waiting::patience::Patience;
use crate::waiting::waits::{Awaited, ListedWait, Waits};
use crate::wakeups::table::Wakeups;

/// The wait of one thread for one lock. It begins with the call, and ends when the thread has the
/// lock, or an error. A thread that never sleeps pays nothing for it.
pub(crate) struct Wait<'a> {
    manager: OfManager<'a>,
    pub(crate) key: &'a Key,
    pub(crate) thread: &'a Owner,
    pub(crate) patience: &'a Patience,
    /// What ends the wait early: the end of the manager, or the caller's own handle, if it has one.
    stops: [Option<&'a StopHandle>; 2],
    deadlock: DeadlockWatch<'a>,
    listed: ListedWait<'a>,
    span: Span,
}

/// Of which manager a wait is, and what of that manager it uses.
#[derive(Clone, Copy)]
pub(crate) struct OfManager<'a> {
    /// Tells managers apart.
    pub(crate) id: u64,
    pub(crate) waits: &'a Waits,
    pub(crate) store: &'a Store,
    /// Ends all waits of the manager.
    pub(crate) end: &'a StopHandle,
    /// Wakes all waiters of the manager.
    pub(crate) wake: &'a Arc<Wake>,
    pub(crate) wakeups: &'a Wakeups,
    /// Lists what the calling thread holds, through any manager.
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
        let OfManager {
            id,
            waits,
            end,
            held,
            wake,
            ..
        } = manager;
        Wait {
            manager,
            key,
            thread,
            patience,
            stops: [Some(end), stop],
            deadlock: DeadlockWatch::new(id, key.name(), thread, patience.deadline, held, wake),
            listed: ListedWait::new(waits, key, thread, patience),
            span: Span::wait(key.name()),
        }
    }

    /// True if the thread must not go on waiting.
    pub(crate) fn must_end(&self) -> bool {
        self.may_go_on().is_err()
    }

    /// True if Redis has answered any thread since `moment`.
    pub(crate) fn answered_since(&self, moment: Moment) -> bool {
        let store = self.manager.store;
        store.answered_since(self.key.in_redis(), moment)
    }

    /// Returns an error if the thread must not go on waiting: the program has stopped the wait, the
    /// wait ends a deadlock, or the thread has lost a lock that it holds.
    pub(crate) fn may_go_on(&self) -> Result<(), Error> {
        if self.stops.iter().flatten().any(|stop| stop.is_stopped()) {
            let key = self.key.name().to_string();
            let held = Vec::new();
            return Err(Error::Stopped { key, held });
        }
        self.deadlock.may_go_on()
    }

    /// Lists the thread as waiting, and as blocked, since it is about to sleep. Redis has named
    /// this holder, if any. Returns an error as [`may_go_on`](Wait::may_go_on) does; otherwise what
    /// wakes a thread whose wait ends a deadlock now. The caller may hold a mutex, but not when it
    /// calls that.
    pub(crate) fn before_sleep(&self, seen: Option<&Holder>) -> Result<Option<Arc<Wake>>, Error> {
        self.may_go_on()?;
        let wake_other = self.deadlock.begins(seen);
        if wake_other.is_none() {
            self.may_go_on()?; // It may be this wait that ends.
        }
        self.listed.begins();
        Ok(wake_other)
    }

    /// Returns an error if the thread must not wait for this holder, if one is known: see
    /// [`before_sleep`](Wait::before_sleep). The caller holds no mutex.
    pub(crate) fn may_wait_for(&self, holder: Option<&Holder>) -> Result<(), Error> {
        if self.patience.once {
            return self.may_go_on();
        }
        if let Some(wake_other) = self.before_sleep(holder)? {
            wake_other();
        }
        Ok(())
    }

    /// When the first lock that the thread holds runs out, unless it is renewed.
    pub(crate) fn first_end(&self) -> Moment {
        self.deadlock.first_end()
    }

    /// Wakes the thread in front, which asks Redis again. So this thread knows who has the lock when
    /// its own time is over.
    pub(crate) fn ask_front_to_look(&self) {
        self.manager.wakeups.wake(self.key.in_redis().as_bytes());
    }

    /// Says in the log that the thread is about to sleep: once, and again after 5 s, 10 s, 20 s and
    /// so on. Returns when it has to be called next. This calls the program's logger, so the caller
    /// holds no lock.
    pub(crate) fn announce(&self, awaited: impl Fn(Moment) -> Awaited) -> Moment {
        self.listed.announce(awaited)
    }

    /// The wait is over, and the thread has the lock.
    pub(crate) fn ends(self) {
        drop(self.deadlock); // The logger is code of the program, and this thread waits no more.
        self.listed.log_end(None);
        self.span.outcome("taken");
    }

    /// The wait is over, with this error. Counts it, and says what the thread holds meanwhile. The
    /// caller has no turn any more: this calls the program's logger and recorder.
    pub(crate) fn fails(self, error: Error) -> Error {
        drop(self.deadlock);
        self.listed.log_end(Some(&error));
        self.span.outcome(outcome(&error));
        if let Error::Timeout {
            holder: Some(holder),
            ..
        } = &error
        {
            self.span.holder(holder);
        }
        let counters = &self.manager.waits.counters;
        counters.of(self.key.name()).failed(&error);
        error.while_holding(names((self.manager.held)()))
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

/// How a wait that failed ended, as a trace has it.
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

    /// What the waits of a test need. No Redis is there, and all answers of the store in memory are
    /// at hand.
    pub(crate) struct WaitRig {
        key: Key,
        owner: Owner,
        waits: Waits,
        store: Store,
        pub(crate) end: StopHandle,
        wake: Arc<Wake>,
        wakeups: Wakeups,
    }

    impl WaitRig {
        pub(crate) fn new() -> WaitRig {
            WaitRig {
                key: Key::new("lock:", "key").unwrap(),
                owner: sample("key", Duration::ZERO, Moment::PAST).owner.clone(),
                waits: Waits::default(),
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

        /// A wait of a thread that holds nothing.
        pub(crate) fn wait<'a>(&'a self, patience: &'a Patience) -> Wait<'a> {
            self.holding(patience, Vec::new)
        }

        /// A wait of a thread that holds the lock with the token [`mine`] of this test. All tests
        /// share the list of blocked threads, so no two may have one token.
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
                waits: &self.waits,
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
