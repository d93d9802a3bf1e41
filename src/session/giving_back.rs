//! A thread gives a lock back: with its last guard, or because it must not have the lock.

use std::mem;
use std::rc::Rc;
use std::time::Instant;

use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::hold::{Hold, Unlocked};
use crate::session::release;
use crate::session::thread_map::{Held, Left};
use crate::session::{Session, still_has_outer};
use crate::waiting::patience::{Patience, SLOW_ANSWER};
use crate::waiting::queues::Turn;

impl Session {
    /// By when a lock is given back that this caller must not have. Its limit counts for this, too.
    /// What is not answered by then, the keeper goes on with.
    pub(super) fn undone_by(&self, patience: &Patience) -> Moment {
        patience
            .deadline
            .max(Moment::now().after(SLOW_ANSWER))
            .min(self.one_release())
    }

    /// Takes one guard off a hold, and releases the lock with the last guard, by the deadline.
    ///
    /// The hold leaves the thread's map first. If it stayed there during the release, a destructor
    /// that takes the lock meanwhile would re-enter a hold that is being released.
    pub(crate) fn leave(&self, held: &Rc<Held>, deadline: Moment) -> Result<Unlocked, Error> {
        let turn = match held.leave() {
            Left::StillHeld(depth) => return Ok(Unlocked::StillHeld { depth }),
            Left::LastGuard(turn) => turn,
            Left::ThreadEnding => self.outside(&held.hold),
        };
        match self.release(&held.hold, turn, deadline) {
            // What causes a missing answer may have cost the outer lock, too.
            done @ (Ok(_) | Err(Error::Unconfirmed { .. })) => still_has_outer(held).and(done),
            failed => failed,
        }
    }

    /// The turn of a hold that has none: the thread is ending, and its map is gone.
    fn outside(&self, hold: &Hold) -> Turn {
        Turn::outside(&self.queues, hold.key.name())
    }

    /// Releases a hold that is in no thread's map any more.
    pub(crate) fn release(
        &self,
        hold: &Hold,
        turn: Turn,
        deadline: Moment,
    ) -> Result<Unlocked, Error> {
        if let Err(forked) = self.own_process(Moment::now()) {
            // Dropping the turn would lock the queue. If the fork came while another thread had the
            // queue locked, the child's copy stays locked, and the child would wait for ever.
            mem::forget(turn);
            return Err(forked);
        }
        let _under_way = self.adoptions.release(&turn);
        let rest = hold.keep_until().since(Moment::now());
        if rest.is_zero() {
            self.remove(hold, turn, deadline)?;
            return Ok(Unlocked::Released);
        }
        let until = Instant::now() + rest;
        release::give_back(
            &self.keeper,
            hold,
            turn,
            None,
            deadline,
            |_, _, deadline| release::keep(&self.store, hold, deadline),
        )?;
        Ok(Unlocked::Kept { until })
    }

    /// Gives back a lock that this thread has just taken and must not have, because of `error`. A
    /// lock that was to be kept is not: nobody has done what it is kept for.
    pub(super) fn undo_taking(&self, held: &Rc<Held>, error: &Error, deadline: Moment) {
        if held.hold.depth() == 1 {
            held.hold.keep_nothing();
        }
        if let Err(also) = self.leave(held, deadline) {
            debug!(target: "relatch::release", "giving {:?} back after {error}: {also}", held.hold.key.name());
        }
    }

    pub(super) fn remove(&self, hold: &Hold, turn: Turn, deadline: Moment) -> Result<(), Error> {
        let handoff = Some(self.settings.local_handoff());
        release::give_back(
            &self.keeper,
            hold,
            turn,
            handoff,
            deadline,
            |claim, handed, deadline| release::remove(&self.store, hold, claim, handed, deadline),
        )
    }
}
