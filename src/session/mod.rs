//! A lock from end to end: how a thread takes it, and how it gives it back. This is the story;
//! [`docs/design.md`](https://github.com/relatch/relatch/blob/main/docs/design.md) has the reasons.
//!
//! A thread that wants a lock tries three places in this order, and stops at the first that can
//! answer: its own map, the queue of its process, Redis. To give a lock back, a thread takes
//! similar steps: it takes the hold out of the map and out of Redis, and then the turn in the queue
//! goes to the next thread.
//!
//! [`taking`] has the steps of `enter`, and [`release`] those of a release. [`several`] takes many
//! locks. [`upkeep`] is for a lock while it is held, [`looking`] for one that somebody else may
//! hold, [`report`] for what is going on now, [`handing_over`] for a hold that moves to another
//! thread or process, [`setup`] and [`shutdown`] for the beginning and the end of a manager, and
//! [`memory`] for managers without a Redis. This room may use `acquire`, `keeping`, `waiting`,
//! `hold`, `store` and `base`.

pub(crate) mod several;
pub(crate) mod handing_over;
mod shutdown;
pub(crate) mod upkeep;
pub(crate) mod looking;
mod report;
mod memory;
mod taking;
mod setup;
pub(crate) mod release;
pub(crate) mod thread_map;

use std::rc::Rc;
use std::sync::Arc;

use crate::acquire::Acquisition;
use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::base::key::Name;
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::hold::{Hold, Unlocked};
use crate::session::release::Release;
use crate::session::taking::Taking;
use crate::session::thread_map::{Held, still_has_outer};
use crate::waiting::patience::Patience;
use crate::waiting::queues::Turn;

pub use crate::session::memory::MemoryControls;
pub(crate) use crate::session::setup::Session;

impl Session {
    /// Takes a lock, or re-enters it if this thread holds it. `stop` ends the wait, and so does
    /// `latest`, whatever limit the options have.
    pub(crate) fn enter(
        &self,
        name: Name<'_>,
        options: &Options,
        stop: Option<&StopHandle>,
        latest: Moment,
    ) -> Result<Rc<Held>, Error> {
        let patience = &Patience::new(&self.core.settings, options.wait, latest);
        let now = patience.began;
        self.core.own_process(now)?;

        // 1. The thread's map. If this thread holds the lock, the depth grows by one, and nothing
        //    is sent.
        if let Some(held) = thread_map::reenter(self.id, name, options, now)? {
            self.core.counters.of(held.hold.key.name()).reentered.add(1);
            return Ok(held);
        }
        let taking = Taking::begin(self, name, options, stop, now)?;
        let claim = taking.fresh_claim()?;
        let wait = taking.wait(patience);

        let take = || {
            // (One of several slots needs no turn, as long as nobody waits for one.)
            if let Some(taken) = taking.slot_without_turn(&wait)? {
                return Ok(taken);
            }
            // 2. The queue of this process. One thread at a time asks Redis for a key. The others
            //    wait behind it. For a few milliseconds (`Builder::local_handoff`), the thread in
            //    front takes the lock for the next one, in the round trip of its own release.
            let joined = taking.join_queue(&wait, &claim)?;

            // 3. Redis. The thread asks. If the lock is busy, the thread sleeps until the key
            //    changes, and asks again. (If other processes are to have a chance first, `begin`
            //    sleeps.)
            let context = taking.context(&wait, claim.lease);
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
        let hold = taking.hold(taken, now);
        let turn = turn.of(&hold);
        let held = self.make_known(hold, turn, patience)?;
        self.until_alone(held, options, stop, patience)
    }

    /// A writer that has the gate of a read-write lock waits for the readers.
    fn until_alone(
        &self,
        held: Rc<Held>,
        options: &Options,
        stop: Option<&StopHandle>,
        patience: &Patience,
    ) -> Result<Rc<Held>, Error> {
        match Taking::until_no_reader(self, &held, options, stop, patience) {
            Ok(()) => Ok(held),
            Err(mut error) => {
                if let Error::Timeout { key, .. } = &mut error {
                    *key = held.hold.key.name().to_string();
                }
                Err(self.undo(&held, error, patience))
            }
        }
    }

    /// Gives back a lock that this thread has just taken and must not have. Even a lock that was to
    /// be kept is not: nobody has done the work for which it would be kept.
    fn undo(&self, held: &Rc<Held>, error: Error, patience: &Patience) -> Error {
        held.hold.keep_nothing();
        let undone_by = patience.undone_by(&self.core.settings);
        match (error, Leaving::begin(self, held, Some(undone_by)).finish()) {
            // A writer that has lost its gate is refused.
            (Error::Refused { .. }, Err(lost @ Error::Lost { .. })) => lost,
            (error, given_back) => {
                log_undone(&error, given_back);
                error
            }
        }
    }

    /// Makes a new hold known to the queue, the keeper and the thread's map. On error, gives the
    /// lock back.
    fn make_known(&self, hold: Hold, turn: Turn, patience: &Patience) -> Result<Rc<Held>, Error> {
        let hold = Arc::new(hold);
        let undone_by = || Some(patience.undone_by(&self.core.settings));
        // The queue comes first. If the keeper did, it could find the hold lost, and wake the next
        // thread in vain: for the queue, the lock would not be held yet.
        turn.holds(&hold);
        if let Err(error) = self.keeper.enter(&hold) {
            hold.keep_nothing();
            log_undone(&error, self.release(&hold, turn, undone_by()));
            return Err(error.while_holding(thread_map::names()));
        }
        let held = thread_map::enter(self.id, hold, turn);
        // An outer lock may have been lost during the wait.
        match still_has_outer(&held) {
            Ok(()) => Ok(held),
            Err(lost) => Err(self.undo(&held, lost, patience)),
        }
    }

    /// Takes one guard off a hold. If it was the last one, gives the lock back.
    pub(crate) fn leave(&self, held: &Rc<Held>) -> Result<Unlocked, Error> {
        Leaving::begin(self, held, None).finish()
    }

    /// Gives back a lock whose hold is no longer in any thread's map.
    pub(crate) fn release(
        &self,
        hold: &Hold,
        turn: Turn,
        deadline: Option<Moment>,
    ) -> Result<Unlocked, Error> {
        let handoff = self.core.settings.local_handoff();
        Release::begin(&self.keeper, hold, turn, handoff, deadline)?.finish()
    }
}

/// A guard that is being taken off its hold.
struct Leaving<'a> {
    held: &'a Rc<Held>,
    /// `None` if the hold has other guards.
    release: Option<Result<Release<'a>, Error>>,
}

impl<'a> Leaving<'a> {
    /// Takes the guard off. If it is the last one, begins a release, to be done by the deadline:
    /// see [`Release::begin`].
    fn begin(session: &'a Session, held: &'a Rc<Held>, deadline: Option<Moment>) -> Leaving<'a> {
        // 1. The thread's map. If the hold has other guards, the depth falls by one, and nothing is
        //    sent. If it stayed in the map during the release, a destructor that took the lock in
        //    the meantime would re-enter a hold that is being released.
        let other_guards = held.leave();
        let release = (other_guards == 0).then(|| {
            let turn = held.take_out().unwrap_or_else(|| {
                // The thread is exiting: the map is gone, and the turn with it.
                Turn::outside(&session.core.queues, held.hold.key.name())
            });
            let handoff = session.core.settings.local_handoff();
            Release::begin(&session.keeper, &held.hold, turn, handoff, deadline)
        });
        Leaving { held, release }
    }

    /// Gives the lock back, if this was the last guard.
    fn finish(self) -> Result<Unlocked, Error> {
        let Some(release) = self.release else {
            let depth = self.held.hold.depth();
            return Ok(Unlocked::StillHeld { depth });
        };
        // 2. Redis deletes the key. 3. The turn in the queue goes to the next thread. If the
        //    release has taken the lock for that thread, that thread holds it now.
        let released = release.and_then(Release::finish);
        self.held.span.outcome(match &released {
            Ok(Unlocked::Kept { .. }) => "kept",
            Ok(_) => "released",
            Err(Error::Lost { .. }) => "lost",
            Err(_) => "unconfirmed",
        });
        if let Ok(_) | Err(Error::Unconfirmed { .. }) = &released {
            // Whatever caused an answer to be missing may have cost the outer lock, too.
            still_has_outer(self.held)?;
        }
        released
    }
}

/// A lock that this thread had just taken was given back, because of `error`.
fn log_undone(error: &Error, given_back: Result<Unlocked, Error>) {
    if let Err(also) = given_back {
        debug!(target: "relatch::release", "giving back after {error}: {also}");
    }
}
