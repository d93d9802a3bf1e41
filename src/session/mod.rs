//! A lock from end to end: how a thread takes it, and how it gives it back. This is the story;
//! [`docs/design.md`](https://github.com/relatch/relatch/blob/main/docs/design.md) has the reasons.
//!
//! A thread that wants a lock tries three places in this order, and stops at the first that can
//! answer: its own map, the queue of its process, Redis. A thread that gives a lock back goes the
//! same way: out of the map, out of Redis, and then the turn in the queue goes to the next thread.
//!
//! [`taking`] has what `enter` calls, and [`release`] the seven steps of a release. [`several`]
//! takes many locks. [`upkeep`] is for a lock while it is held, [`looking`] for one that somebody
//! else may hold, [`report`] for what goes on now, [`handing_over`] for a hold that moves to
//! another thread or process ([`adoptions`] counts what is under way of that), [`setup`] and
//! [`shutdown`] for the begin and the end of a manager, and [`memory`] for managers without a
//! Redis. This room may use `acquire`, `keeping`, `waiting`, `hold`, `store` and `base`.

mod several;
mod handing_over;
mod shutdown;
mod upkeep;
pub(crate) mod looking;
mod report;
mod memory;
mod taking;
mod deadlines;
mod setup;
pub(crate) mod release;
mod adoptions;
pub(crate) mod thread_map;

use std::mem;
use std::rc::Rc;
use std::sync::Arc;

use crate::acquire::Acquisition;
use crate::base::clock::Moment;
use crate::base::error::Error;
use crate::base::key::Name;
use crate::base::options::Options;
use crate::base::stop::{StopHandle, Wake};
use crate::base::sync::Mutex;
use crate::hold::{Hold, Unlocked};
use crate::keeping::work::Keeper;
use crate::session::adoptions::UnderWay;
use crate::session::release::Release;
use crate::session::thread_map::{Held, still_has_outer};
use crate::waiting::core::Core;
use crate::waiting::patience::Patience;
use crate::waiting::queues::Turn;

pub use crate::session::memory::MemoryControls;

/// What all handles of a manager share.
pub(crate) struct Session {
    /// Tells managers apart in a thread's map.
    id: u64,
    core: Arc<Core>,
    keeper: Arc<Keeper>,
    /// How many adoptions, and releases of what was adopted, are under way: see [`UnderWay`].
    under_way: Mutex<usize>,
    /// Ends all waits, and refuses new locks, once the manager is shut down.
    going: StopHandle,
    /// Wakes all waiters of this manager, for the handles that can stop them.
    wake: Arc<Wake>,
}

impl Session {
    /// Takes a lock, or re-enters it if this thread holds it. `stop` ends the wait.
    pub(crate) fn enter(
        &self,
        name: Name<'_>,
        options: &Options,
        patience: &Patience,
        stop: Option<&StopHandle>,
    ) -> Result<Rc<Held>, Error> {
        let now = Moment::now();
        self.own_process(now)?;

        // 1. The thread's map. If this thread holds the lock, the depth grows by one, and nothing
        //    is sent.
        if let Some(held) = thread_map::reenter(self.id, name.as_str(), options, now)? {
            self.core.counters.of(held.hold.key.name()).reentered.add(1);
            return Ok(held);
        }
        self.may_take(name.as_str(), options, stop, now)?;
        let key = self.key(name)?;
        let owner = self.core.identity.this_thread();
        let claim = self.fresh_claim(&key, &owner, options)?;
        let wait = self.wait_for(&key, &owner, patience, stop);

        let take = || {
            // 2. The queue of this process. One thread at a time asks Redis for a key. The others
            //    wait behind it. For a few milliseconds (`Builder::local_handoff`), the one in
            //    front takes the lock for the next one, in the round trip of its own release.
            let joined = self.join_queue(&wait, &claim)?;

            // 3. Redis. The thread asks. If the lock is busy, the thread sleeps until the key
            //    changes, and asks again. (If other processes are to have a chance first, `begin`
            //    sleeps.)
            let context = self.context(&wait, &claim, options);
            let mut acquisition = Acquisition::begin(context, &joined, claim);
            let taken = loop {
                if let Some(taken) = acquisition.ask()? {
                    break taken;
                }
                acquisition.wait_for_next_attempt()?;
            };
            drop(acquisition); // It borrows the turn.
            Ok((joined.turn, taken))
        };
        let (turn, taken) = match take() {
            Ok(taken) => taken,
            Err(error) => return Err(wait.fails(error)),
        };
        turn.ends(wait);

        // 4. The thread has the lock. The keeper renews its lease, the queue knows that it is held,
        //    and the thread's map leads to it.
        let waited = taken.at.answered.since(patience.began);
        self.core.counters.of(key.name()).taken(waited);
        let hold = Hold::new(key, owner, taken.token, taken.fence, options, taken.at);
        self.make_known(hold, turn, patience)
    }

    /// Takes one guard off a hold, and gives the lock back with the last guard, by the deadline.
    pub(crate) fn leave(&self, held: &Rc<Held>, deadline: Moment) -> Result<Unlocked, Error> {
        self.ends_to_leave(held, self.begins_to_leave(held, deadline))
    }

    /// `Ok(None)` if there are other guards.
    fn begins_to_leave<'a>(
        &'a self,
        held: &'a Rc<Held>,
        deadline: Moment,
    ) -> Result<Option<Release<'a>>, Error> {
        // The thread's map comes first. If the hold stayed there during the release, a destructor
        // that takes the lock meanwhile would re-enter a hold that is being released.
        if held.leave() > 0 {
            return Ok(None);
        }
        let turn = held.take_out().unwrap_or_else(|| {
            // The thread is ending: the map is gone, and the turn with it.
            Turn::outside(&self.core.queues, held.hold.key.name())
        });
        self.begins_to_release(&held.hold, turn, deadline).map(Some)
    }

    fn ends_to_leave(
        &self,
        held: &Rc<Held>,
        begun: Result<Option<Release<'_>>, Error>,
    ) -> Result<Unlocked, Error> {
        let depth = held.hold.depth();
        let Some(begun) = begun.transpose() else {
            return Ok(Unlocked::StillHeld { depth });
        };
        let released = begun.and_then(|release| release.finish(&self.core.store));
        held.span.outcome(match &released {
            Ok(Unlocked::Kept { .. }) => "kept",
            Ok(_) => "released",
            Err(Error::Lost { .. }) => "lost",
            Err(_) => "unconfirmed",
        });
        match released {
            // What causes a missing answer may have cost the outer lock, too.
            done @ (Ok(_) | Err(Error::Unconfirmed { .. })) => still_has_outer(held).and(done),
            failed => failed,
        }
    }

    /// Gives back a lock whose hold is in no thread's map any more: [`Release`] has the steps.
    pub(crate) fn release(
        &self,
        hold: &Hold,
        turn: Turn,
        deadline: Moment,
    ) -> Result<Unlocked, Error> {
        self.begins_to_release(hold, turn, deadline)?
            .finish(&self.core.store)
    }

    fn begins_to_release<'a>(
        &'a self,
        hold: &'a Hold,
        turn: Turn,
        deadline: Moment,
    ) -> Result<Release<'a>, Error> {
        if let Err(forked) = self.own_process(Moment::now()) {
            // Dropping the turn would lock the queue. If the fork came while another thread had the
            // queue locked, the child's copy stays locked, and the child would wait for ever.
            mem::forget(turn);
            return Err(forked);
        }
        // A turn in a queue tells a shutdown itself that its release is under way.
        let under_way = turn.is_outside().then(|| UnderWay::begin(&self.under_way));
        let handoff = self.core.settings.local_handoff();
        let mut begun = Release::begin(&self.keeper, hold, turn, handoff, deadline);
        begun.under_way = under_way;
        Ok(begun)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::base::options::Settings;
    use crate::hold::tests::sample;
    use crate::store::Target;

    /// A session without a Redis.
    fn without_redis() -> Session {
        let limit = Duration::from_millis(50);
        let settings = Settings {
            connect_timeout: limit,
            response_timeout: limit,
            ..Settings::default()
        };
        Session::new(Target::nowhere(), settings, None).unwrap()
    }

    /// If a closed hold were still in the keeper's table, the keeper would take it for one that ran
    /// out, and report a loss.
    #[test]
    fn a_hold_leaves_the_table_of_leases_in_the_step_that_closes_it() {
        let session = without_redis();
        let hold = Arc::new(sample("a", Duration::from_secs(30), Moment::now()));
        session.keeper.enter(&hold).unwrap();
        let turn = session.core.queues.free_turn(hold.key.name());
        thread::scope(|scope| {
            let held_up = session.keeper.work.lock();
            let release =
                scope.spawn(
                    || match session.release(&hold, turn, session.one_release()) {
                        Err(Error::Unconfirmed { .. }) => {}
                        other => panic!("{other:?}, and Redis is not there"),
                    },
                );
            let end = Moment::now().after(Duration::from_millis(100));
            while Moment::now() < end {
                assert!(
                    hold.is_valid(Moment::now()),
                    "the hold was closed before it left the table"
                );
                thread::yield_now();
            }
            drop(held_up);
            release.join().unwrap();
        });
        assert!(!hold.is_valid(Moment::now()) && hold.lost().is_none());
        assert_eq!(session.core.counters.read().lost, 0);
    }
}
