//! The keeper of a manager: its thread, and what other threads ask of it.
//!
//! The first work for the keeper starts its thread: a hold to renew or to watch, an orphan,
//! `set_lease`, `ensure`. That thread ends holds by the clock. It sends nothing to a server and
//! waits for no answer: a thread for each node (`renewers`) takes what is due there, and no other
//! thread renews a lease. (`leases` says when a lease is renewed.)

use std::sync::Arc;

use crate::base::background;
use crate::base::clock::Moment;
use crate::base::emit::{self, warn};
use crate::base::error::{Error, LostCause, SystemCause};
use crate::base::options::WarnAfter;
use crate::base::sync::{Condvar, Mutex};
use crate::hold::Hold;
use crate::keeping::losses::LossNotifier;
use crate::keeping::orphans::Orphan;
use crate::keeping::renewal;
use crate::keeping::slow::Slow;
use crate::keeping::tokens::{Closed, Tokens};
use crate::keeping::work::{Keeper, Part, Work};
use crate::store::Failure;
use crate::waiting::core::Core;

impl Keeper {
    pub(crate) fn new(core: Arc<Core>, notifier: Option<LossNotifier>) -> Arc<Keeper> {
        let keeper = Arc::new(Keeper {
            work: Mutex::new(Work::new(notifier.is_some())),
            core,
            notifier,
            due_sooner: Condvar::new(),
            changed: Condvar::new(),
        });
        let weak = Arc::downgrade(&keeper);
        let store = &keeper.core.store;
        store.on_move(move |has_moved| {
            if let Some(keeper) = weak.upgrade() {
                keeper.moved(has_moved);
            }
        });
        let weak = Arc::downgrade(&keeper);
        let listeners = &keeper.core.listeners;
        listeners.on_invalidation(move |redis_key, node| {
            let keeper = weak.upgrade();
            keeper.is_some_and(|keeper| keeper.invalidated(redis_key, node))
        });
        keeper
    }

    /// Has the thread warn of slow waits and holds. For that, the thread starts now: a wait, which
    /// the keeper has no part in, does not have to start it.
    pub(crate) fn warn_after(self: &Arc<Keeper>, limits: WarnAfter) -> Result<(), Error> {
        self.schedule(|work| {
            work.warn_after = Some(limits);
            Ok(Moment::PAST)
        })
    }

    /// A thread is about to send the `SET` of this token. If it may, it says later what became of
    /// the token: [`enter`](Keeper::enter), [`gone`](Keeper::gone) or [`give_up`](Keeper::give_up).
    pub(crate) fn claim(&self, token: &Arc<str>) -> Result<(), Closed> {
        self.work.lock().tokens.claim(token, Moment::now())
    }

    /// Keeps a hold from now on. An error means that its thread must not rely on it.
    pub(crate) fn enter(self: &Arc<Keeper>, hold: &Arc<Hold>) -> Result<(), Error> {
        let entered = self.schedule(|work| work.tokens.enter(Arc::clone(hold), hold.acquired.sent));
        self.changed.notify_all(); // A shutdown waits for its answer no more, and for its end.
        entered
    }

    /// Ends the validity of a hold whose release is about to be sent. Returns when the validity
    /// would have ended; `None` if it was over.
    pub(crate) fn close(&self, hold: &Hold, now: Moment) -> Option<Moment> {
        self.work.lock().tokens.close(hold, now)
    }

    /// Redis does not store this token, nor will it.
    pub(crate) fn gone(&self, token: &str) {
        self.work.lock().tokens.gone(token);
        self.changed.notify_all();
    }

    /// Deletes the token of an orphan in Redis, but not before this moment.
    pub(crate) fn give_up(self: &Arc<Keeper>, token: &Arc<str>, orphan: Orphan, from: Moment) {
        let scheduled = self.schedule(|work| Ok(work.tokens.give_up(token, orphan, from)));
        self.changed.notify_all();
        if let Err(error) = scheduled {
            warn!(target: "relatch::release", "a key that no thread holds was not deleted and expires with its lease: {error}");
        }
    }

    /// Takes all holds from their threads, which do not know yet, and deletes their tokens. Returns
    /// the holds.
    pub(crate) fn take_away(self: &Arc<Keeper>) -> Vec<Arc<Hold>> {
        let mut holds = Vec::new();
        let scheduled = self.schedule(|work| {
            holds = work.tokens.take_away(Moment::now());
            Ok(Moment::PAST)
        });
        self.changed.notify_all();
        if let Err(error) = scheduled {
            warn!(target: "relatch::release", "cannot give the locks back; they expire with their leases: {error}");
        }
        holds
    }

    /// Claims no token from now on, and waits for the tokens until `next` returns `None`. Otherwise
    /// it returns until when to wait, at most, before it looks again. Returns what is held then:
    /// under the same lock, or a hold whose release begins a moment later would be neither in the
    /// list nor waited for.
    pub(crate) fn shut_down(
        &self,
        next: impl Fn(&Tokens, Moment) -> Option<Moment>,
    ) -> Vec<Arc<Hold>> {
        let mut work = self.work.lock();
        work.tokens.is_closed = true;
        loop {
            let now = Moment::now();
            let Some(until) = next(&work.tokens, now) else {
                work.tokens.refuse_claimed();
                return work.tokens.holds(now).map(Arc::clone).collect();
            };
            self.changed.wait_for(&mut work, until.one_wait_from(now));
        }
    }

    /// The names of the locks that are held, one for each hold.
    pub(crate) fn names(&self, now: Moment) -> Vec<Arc<str>> {
        let work = self.work.lock();
        let names = work.tokens.holds(now).map(|it| it.key.name());
        names.map(Arc::clone).collect()
    }

    /// Has these holds renewed now, together, each by its deadline. [`renewed`](Keeper::renewed)
    /// waits for an answer. An error means that the thread could not be started.
    pub(crate) fn ask_to_renew(
        self: &Arc<Keeper>,
        holds: &[(&Arc<Hold>, Moment)],
    ) -> Result<(), Error> {
        self.schedule(|work| {
            let now = Moment::now();
            for (hold, until) in holds {
                work.tokens.ask(hold, now, *until);
            }
            Ok(Moment::PAST)
        })
    }

    /// Waits for the answer to a renewal that was asked for, until the deadline at most.
    pub(crate) fn renewed(&self, hold: &Hold, deadline: Moment) -> Result<(), Failure> {
        let mut work = self.work.lock();
        loop {
            let now = Moment::now();
            if let Some(answer) = work.tokens.answer(hold, now) {
                return answer;
            }
            let until = deadline.min(hold.valid_until());
            self.changed.wait_for(&mut work, until.one_wait_from(now));
        }
    }

    /// A hold has a new end or a new lease, so its renewal may be due sooner.
    pub(crate) fn renew_sooner(self: &Arc<Keeper>, hold: &Hold) -> Result<(), Error> {
        self.schedule(|work| Ok(work.tokens.renew_sooner(hold, Moment::now())))
    }

    /// A key with this token is gone: `force_unlock` of this manager has deleted it, or a control
    /// of a store in memory has ended it. If this manager has the token, its hold is lost; also one
    /// whose thread has its answer and has not entered it yet.
    pub(crate) fn lose_token(&self, token: &str, cause: LostCause) {
        let lost = self.work.lock().tokens.deleted(token, cause);
        if let Some(hold) = lost {
            self.report_loss(&hold);
        }
    }

    /// Notes work. Starts the thread, or wakes it if the work is due before the thread would wake.
    fn schedule(
        self: &Arc<Keeper>,
        note: impl FnOnce(&mut Work) -> Result<Moment, Error>,
    ) -> Result<(), Error> {
        let mut work = self.work.lock();
        let due = note(&mut work)?;
        if due == Moment::NEVER {
            return Ok(());
        }
        if work.thread.is_none() && !work.stop {
            let keeper = Arc::clone(self);
            let started = background::spawn("relatch-keeper", move || run(&keeper));
            work.thread = Some(started.map_err(|error| Error::System {
                cause: SystemCause::NoThread,
                source: error,
            })?);
        } else {
            self.wake(work, due);
        }
        Ok(())
    }

    /// Ends the keeper's thread, the listener's, the store's and the one that calls `on_lost`, and
    /// waits for the outlet. A forked child has none of these threads, and must not call this.
    pub(crate) fn stop(&self) {
        self.core.stop();
        let mut work = self.work.lock();
        work.stop = true;
        let thread = work.thread.take();
        drop(work);
        self.due_sooner.notify_all();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            warn!(target: "relatch::keeper", "the keeper panicked");
        }
        if let Some(notifier) = &self.notifier {
            notifier.stop(self.core.settings.response_timeout);
        }
        emit::settle(self.core.settings.response_timeout);
    }
}

fn run(keeper: &Arc<Keeper>) {
    let mut slow = keeper.work.lock().warn_after.map(Slow::new);
    let mut local = keeper.core.store.local();
    let part = local.as_ref().map_or(Part::Ends, |_| Part::All);
    let latest = |slow: &Option<Slow>| slow.as_ref().map_or(Moment::NEVER, Slow::next);
    while let Some(work) = keeper.next_round(part, latest(&slow)) {
        if let Some(slow) = &mut slow {
            slow.warn(keeper);
        }
        keeper.expire(&work.over);
        match &mut local {
            Some(local) => renewal::round(keeper, local, &work),
            None => keeper.start_renewers(),
        }
    }
    keeper.join_renewers();
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::OnceLock;
    use std::time::Duration;

    use super::*;
    use crate::base::options::Settings;
    use crate::base::owner::identity::Identity;
    use crate::base::sync::{scheduler, thread};
    use crate::store::{Store, Target};

    /// A keeper that starts no thread, and whose Redis is not there.
    pub(crate) fn keeper_without_redis() -> Arc<Keeper> {
        // It has a thread, so the tests share one. But the mutexes of a simulated run are its own.
        static NOWHERE: OnceLock<Arc<Store>> = OnceLock::new();
        let nowhere = || Arc::new(Store::new(Target::nowhere(), &Settings::default()).unwrap());
        let store = if scheduler::inside() {
            nowhere()
        } else {
            Arc::clone(NOWHERE.get_or_init(nowhere))
        };
        let settings = Settings {
            response_timeout: Duration::from_millis(50),
            poll_every: Duration::from_millis(2),
            ..Settings::default()
        };
        let core = Core::new(Identity::in_memory(), store, settings, None);
        let keeper = Keeper::new(core, None);
        keeper.work.lock().thread = Some(thread::spawn(|| ()));
        keeper
    }

    #[test]
    fn a_sleeping_keeper_wakes_for_work_that_is_due_now() {
        let keeper = keeper_without_redis();
        std::thread::scope(|scope| {
            // Nothing is due, so the keeper sleeps without end.
            let round = scope.spawn(|| keeper.next_round(Part::Ends, Moment::NEVER).is_some());
            while keeper.work.lock().sleeps_until.is_empty() {
                std::thread::yield_now();
            }
            keeper.schedule(|_| Ok(Moment::PAST)).unwrap();
            let deadline = Moment::now().after(Duration::from_secs(10));
            while !round.is_finished() && Moment::now() < deadline {
                std::thread::yield_now();
            }
            let woke = round.is_finished();
            keeper.due_sooner.notify_all(); // So that the test ends if it fails.
            assert!(woke && round.join().unwrap());
        });
    }
}
