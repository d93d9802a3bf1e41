//! What taking a lock needs besides the story: the token, the wait, the turn, and what makes a new
//! hold known.

use std::rc::Rc;
use std::slice;
use std::sync::Arc;

use crate::acquire::AcquireContext;
use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::base::key::Key;
use crate::base::options::{Lease, Options};
use crate::base::owner::Owner;
use crate::base::stop::StopHandle;
use crate::hold::Hold;
use crate::session::Session;
use crate::session::setup::no_randomness;
use crate::session::thread_map::{self, Held};
use crate::store::Failure;
use crate::waiting::handoff::Claim;
use crate::waiting::patience::Patience;
use crate::waiting::place::NoTurn;
use crate::waiting::queues::{Joined, Turn};
use crate::waiting::wait::{OfManager, Wait};

impl Session {
    /// Returns an error if a lock that this thread does not hold must not be taken.
    pub(super) fn may_take(
        &self,
        name: &str,
        options: &Options,
        stop: Option<&StopHandle>,
        now: Moment,
    ) -> Result<(), Error> {
        if let Some(invalid) = options.invalid {
            return Err(invalid.into());
        }
        if self.is_stopped(stop) {
            return Err(Error::Stopped {
                key: name.to_owned(),
                held: thread_map::names(),
            });
        }
        thread_map::lost_around(u64::MAX, now).map_or(Ok(()), |(outer, cause)| {
            Err(Error::OuterLost {
                key: name.to_owned(),
                outer,
                cause,
            })
        })
    }

    /// A claim with a token that nobody has used yet. It is drawn before the turn comes: the thread
    /// in front may send the claim with its release.
    pub(super) fn fresh_claim(
        &self,
        key: &Key,
        owner: &Owner,
        options: &Options,
    ) -> Result<Claim, Error> {
        let counter = if options.fenced {
            Some(key.counter()?.into())
        } else {
            None
        };
        let token = self.core.identity.fresh_token(owner);
        Ok(Claim {
            token: token.map_err(no_randomness)?,
            lease: Lease::new(options.lease),
            counter,
        })
    }

    /// The wait that begins now. `stop` ends it.
    pub(super) fn wait_for<'a>(
        &'a self,
        key: &'a Key,
        thread: &'a Owner,
        patience: &'a Patience,
        stop: Option<&'a StopHandle>,
    ) -> Wait<'a> {
        let manager = OfManager {
            id: self.id,
            counters: &self.core.counters,
            store: &self.core.store,
            end: &self.going,
            wake: &self.wake,
            wakeups: &self.core.listeners.wakeups,
            held: thread_map::held,
        };
        Wait::new(manager, key, thread, patience, stop)
    }

    /// Waits for the turn.
    pub(super) fn join_queue(&self, wait: &Wait<'_>, claim: &Claim) -> Result<Joined, Error> {
        let joined = self
            .core
            .queues
            .join(wait.key.name(), wait, || claim.clone());
        let joined = joined.map_err(|no_turn| self.without_turn(no_turn, wait))?;
        if joined.waited {
            self.core.counters.of(wait.key.name()).waited.add(1);
        }
        Ok(joined)
    }

    /// The error of a caller that got no turn.
    fn without_turn(&self, no_turn: NoTurn, wait: &Wait<'_>) -> Error {
        let waited = &self.core.counters.of(wait.key.name()).waited;
        match no_turn {
            NoTurn::Busy { holder, unknown } => {
                waited.add(u64::from(!wait.patience.once));
                let cause = unknown.then(|| behind_an_outage(None).into_cause());
                wait.timed_out(holder, cause)
            }
            NoTurn::Outage(cause) => {
                waited.add(u64::from(!wait.patience.once));
                self.failed("taking", wait.key, behind_an_outage(cause.as_deref()))
            }
            NoTurn::MustNotWait(error) => error,
        }
    }

    /// What an acquisition of the thread that has the turn uses.
    pub(super) fn context<'a>(
        &'a self,
        wait: &'a Wait<'a>,
        claim: &Claim,
        options: &Options,
    ) -> AcquireContext<'a> {
        AcquireContext {
            core: &self.core,
            keeper: &self.keeper,
            wait,
            lease: claim.lease,
            reclaim_dead: options.reclaim_dead,
        }
    }

    /// Makes a new hold known: to the keeper, the queue and the thread's map.
    pub(super) fn make_known(
        &self,
        hold: Hold,
        turn: Turn,
        patience: &Patience,
    ) -> Result<Rc<Held>, Error> {
        let hold = Arc::new(hold);
        // The keeper comes first. So a hold that the queue knows is in the table of leases, where a
        // shutdown and `force_unlock` look for it.
        if let Err(error) = self.keeper.enter(&hold) {
            // The caller must not rely on the hold. A lock that was to be kept is not: nobody has
            // done what it is kept for.
            hold.keep_nothing();
            if let Err(also) = self.release(&hold, turn, self.undone_by(patience)) {
                debug!(target: "relatch::release", "{also}");
            }
            return Err(error.while_holding(thread_map::names()));
        }
        turn.holds(&hold);
        let held = thread_map::enter(self.id, hold, turn);
        // A lock around this one may have been lost during the wait.
        if let Err(lost) = thread_map::still_has_outer(&held) {
            self.undo_taking(slice::from_ref(&held), &lost, self.undone_by(patience));
            return Err(lost);
        }
        Ok(held)
    }

    /// Gives back locks that this thread has just taken and must not have, because of `error`. A
    /// lock that was to be kept is not: nobody has done what it is kept for.
    pub(super) fn undo_taking(&self, held: &[Rc<Held>], error: &Error, deadline: Moment) {
        let new = held.iter().filter(|one| one.hold.depth() == 1);
        new.for_each(|one| one.hold.keep_nothing());
        for also in self
            .leave_all(held, deadline)
            .into_iter()
            .filter_map(Result::err)
        {
            debug!(target: "relatch::release", "giving back after {error}: {also}");
        }
    }
}

fn behind_an_outage(words: Option<&str>) -> Failure {
    let front = "the thread in front of it in the queue has no answer";
    Failure::NotSent(words.map_or_else(|| front.into(), |words| format!("{front}: {words}").into()))
}
