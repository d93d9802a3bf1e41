//! A hold that leaves its thread: for another thread of the process, or for another process.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Adoption;
use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::key::Name;
use crate::base::options::Options;
use crate::base::stop::StopHandle;
use crate::hold::{Hold, LockParcel};
use crate::session::Session;
use crate::session::taking::Taking;
use crate::session::thread_map::{self, Held};
use crate::waiting::handoff::Claim;
use crate::waiting::patience::Patience;
use crate::waiting::queues::Turn;
use crate::waiting::wait::Wait;

impl Session {
    /// Takes a hold out of this thread's map. The keeper goes on with its renewal, and its turn
    /// goes to the caller.
    pub(crate) fn detach(&self, held: &Rc<Held>) -> Result<Turn, Error> {
        self.may_leave(held)?;
        // If the thread is ending and its map is gone, so is the turn.
        held.take_out().ok_or_else(|| Error::NotHeld {
            key: held.hold.key.name().to_string(),
        })
    }

    /// Returns an error if a detached hold cannot be this thread's.
    pub(crate) fn may_attach(&self, hold: &Hold) -> Result<(), Error> {
        self.trust(hold)?;
        self.is_not_held(hold.key.name())
    }

    /// Enters a detached hold in this thread's map.
    pub(crate) fn attach(&self, hold: &Arc<Hold>, turn: Option<Turn>) -> Rc<Held> {
        let outside = || Turn::outside(&self.core.queues, hold.key.name());
        thread_map::enter(self.id, Arc::clone(hold), turn.unwrap_or_else(outside))
    }

    /// Ends a hold without a release, so that another process can adopt the lock.
    ///
    /// First renews the hold, so that the other process has nearly a lease for that.
    pub(crate) fn hand_over(&self, held: &Rc<Held>) -> Result<LockParcel, Error> {
        let hold = &held.hold;
        self.may_leave(held)?;
        self.push(hold)?;

        // 1. Close the hold: its token is not this manager's any more. If anybody could see the
        //    parcel before that, its adopter and this thread would believe at the same time. The
        //    keeper would find the adopter's token, and report a loss.
        let now = Moment::now();
        let valid_until = self.keeper.close(hold, now);
        self.keeper.gone(&hold.token);

        // 2. Record that the hold has ended, and not by a loss. (Unless a watcher was first: it may
        //    have found the lease over a moment before step 1.) If this came after step 4, the next
        //    thread could adopt the parcel while this hold does not count as over yet.
        if valid_until.is_some() {
            hold.mark_released();
        }
        let Some(valid_until) = valid_until.filter(|_| hold.lost().is_none()) else {
            let lost = hold.lose(LostCause::Expired);
            self.keeper.report_loss(hold);
            return Err(lost);
        };

        // 3. Count it. A recorder of the program may take locks here. If this came before step 2,
        //    it would find the hold over, and record a loss that nobody is told of. If it came
        //    after step 4 and took this very lock, it would wait for its own token to run out.
        self.core
            .counters
            .of(hold.key.name())
            .given_back(now.since(hold.acquired.answered), hold.thread_has_ended());

        // 4. End the turn. The next thread of this process asks Redis, and finds the lock busy.
        drop(held.take_out());
        Ok(LockParcel::new(
            hold.key.name(),
            &hold.token,
            hold.fence,
            valid_until.since(now),
        ))
    }

    /// Returns an error unless a hold can leave its thread: it can be trusted, and has one guard.
    fn may_leave(&self, held: &Held) -> Result<(), Error> {
        self.trust(&held.hold)?;
        match held.hold.depth() {
            1 => Ok(()),
            depth => Err(Error::OtherGuards {
                key: held.hold.key.name().to_string(),
                depth,
            }),
        }
    }

    /// Returns an error if this thread holds a lock.
    fn is_not_held(&self, name: &str) -> Result<(), Error> {
        match thread_map::find(self.id, name) {
            Some(_) => Err(Error::AlreadyHeld {
                key: name.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// Takes over a lock that was handed over.
    ///
    /// If other threads of this process wait for the lock, this thread has it without a turn in
    /// their queue. It cannot wait for them, since they wait for the end of its hold.
    pub(crate) fn adopt(
        &self,
        name: Name<'_>,
        options: &Options,
        stop: Option<&StopHandle>,
        parcel: &LockParcel,
    ) -> Result<Rc<Held>, Error> {
        let began = Moment::now();
        self.core.own_process(began)?;
        if parcel.key() != name.as_str() {
            let value = Some(format!("a parcel of lock {:?}", parcel.key()));
            return Err(Error::InvalidOption {
                option: "adopt",
                value,
                reason: "it is for another lock",
            });
        }
        self.is_not_held(name.as_str())?;
        let fenced = options.fenced || parcel.fence.is_some();
        let options = &Options { fenced, ..*options };
        let taking = Taking::begin(self, name, options, stop, began)?;
        let claim = taking.fresh_claim()?;
        let once = Patience::new(&self.core.settings, Some(Duration::ZERO), Moment::NEVER);
        let at_once = Patience {
            deadline: began, // Neither the turn is waited for, nor what others learn.
            ..once
        };
        let turn = self.turn_or_outside(&taking.wait(&at_once), &claim);
        let adoption = Adoption {
            store: &self.core.store,
            keeper: &self.keeper,
            key: &taking.key,
            old: &parcel.token,
            least: parcel.fence.unwrap_or(0),
            claim,
            deadline: began.after(self.core.settings.an_attempt()),
        };
        let adopted = adoption.run();
        if turn.is_outside() {
            // The swap has used up the invalidation for which the waiter of this process had
            // registered: Redis does not send it if both used the same connection. The waiter would
            // sleep on at the next change of the key. It asks again now.
            let wakeups = &self.core.listeners.wakeups;
            wakeups.wake(taking.key.in_redis().as_bytes());
        }
        let taken = adopted
            .inspect_err(|error| self.core.counters.of(taking.key.name()).failed(error))
            .map_err(|error| error.while_holding(thread_map::names()))?;
        taking.make_known(taken, turn, &once)
    }

    /// The turn, if no thread of this process has it; otherwise one outside of the queue.
    fn turn_or_outside(&self, wait: &Wait<'_>, claim: &Claim) -> Turn {
        let queues = &self.core.queues;
        let name = wait.key.name();
        match queues.join(name, wait, || claim.clone()) {
            Ok(joined) => joined.turn,
            Err(_) => Turn::outside(queues, name),
        }
    }
}
