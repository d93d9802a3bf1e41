//! Taking a lock that this thread does not hold: asking, waiting, giving up.

use std::thread;
use std::time::Duration;

use log::{debug, info};

use crate::backoff::Backoff;
use crate::bid::{Answer, Bid, Claimed};
use crate::clock::Moment;
use crate::error::Error;
use crate::hold::Since;
use crate::holder::Holder;
use crate::holds;
use crate::key::Key;
use crate::machine;
use crate::queue::Turn;
use crate::store::{Compared, Refusal, Trouble};

/// The shortest pause between two looks: Redis may be a moment late in letting an expired key go.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// How long to try, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The instant that no wait passes, in the line, for a connection, on the wire or asleep.
    pub(crate) deadline: Moment,
    /// One answer is enough: busy is busy.
    pub(crate) once: bool,
    /// The caller will want to be told who has the lock.
    pub(crate) name_holder: bool,
    /// How long Redis may stay away where there is no deadline.
    pub(crate) tolerate_outage: Duration,
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Redis holds this token for us.
    Taken { token: String, since: Since },
    /// Somebody else has it; who, where that is known.
    Busy(Option<Holder>),
}

/// Takes the lock for the thread that has the turn.
pub(crate) fn acquire(claim: Claimed<'_>, patience: &Patience, turn: &Turn) -> Result<Outcome, Error> {
    let bid = Bid::new(claim);
    let last_answer = Moment::now();
    let mut claimant = Claimant { bid, patience, turn, last_answer, troubles: 0, refusal: None };
    let outcome = claimant.run();
    if !matches!(outcome, Ok(Outcome::Taken { .. })) {
        claimant.bid.abandon();
    }
    outcome
}

/// One acquisition, over as many attempts as it takes.
struct Claimant<'a> {
    bid: Bid<'a>,
    patience: &'a Patience,
    turn: &'a Turn,
    /// When Redis last gave a proper answer.
    last_answer: Moment,
    /// Attempts that failed since.
    troubles: u32,
    /// The last thing that Redis refused since.
    refusal: Option<Refusal>,
}

impl Claimant<'_> {
    fn run(&mut self) -> Result<Outcome, Error> {
        let mut while_busy = Backoff::for_busy();
        let mut in_trouble = Backoff::for_trouble();
        // Asked once only, it has to be learnt at once who has the lock, where that matters.
        let mut look = self.patience.once && (self.patience.name_holder || self.bid.claim.reclaim_dead);
        let mut seen = None;
        loop {
            match self.bid.attempt(look, self.patience.deadline) {
                Ok(Answer::Taken { token, since }) => return Ok(Outcome::Taken { token, since }),
                Ok(Answer::Busy(holder)) => {
                    (self.last_answer, self.troubles, self.refusal) = (Moment::now(), 0, None);
                    in_trouble.reset();
                    seen = self.examine(holder)?.or(seen);
                    if self.reclaims(seen.as_ref()) {
                        seen = None;
                        continue;
                    }
                    if !self.patience.once && !look && !self.turn.waited() {
                        self.bid.claim.keeper.counters().waited.add(1);
                    }
                    if self.patience.once || !self.pause(while_busy.pause(), seen.as_ref()) {
                        return Ok(Outcome::Busy(seen));
                    }
                }
                Ok(Answer::NotAString) => return Err(not_a_lock(self.bid.claim.key, NOT_A_STRING)),
                Err(trouble) => {
                    self.troubles += 1;
                    if self.gives_up(&trouble) {
                        return Err(self.give_up(trouble));
                    }
                    if let Trouble::Refused(refusal) = &trouble {
                        self.refusal = Some(refusal.clone());
                    }
                    debug!(target: "relatch::acquire", "taking lock {:?}: {trouble:?}, trying again", self.bid.claim.key.name());
                    // The first failure may be a connection that had gone stale: the next one is not.
                    let at_once = self.troubles == 1 || self.bid.has_open_answer();
                    if !at_once && !self.pause(in_trouble.pause(), None) {
                        return Err(self.give_up(trouble));
                    }
                }
            }
            // From the second attempt on, the holder and its lease say how long to pause.
            look = true;
        }
    }

    /// Looks at who has the lock: waiting for some of them would never end.
    fn examine(&self, holder: Option<Holder>) -> Result<Option<Holder>, Error> {
        let Some(holder) = holder else {
            return Ok(None);
        };
        if holds::is_mine(holder.raw(), self.bid.claim.owner.pid()) {
            return Err(Error::WouldDeadlock { key: self.bid.claim.key.name().to_string() });
        }
        if holder.time_left().is_none() {
            return Err(not_a_lock(self.bid.claim.key, &holder.to_string()));
        }
        let of_this_process = holder.owner().is_some_and(|owner| owner.pid() == self.bid.claim.owner.pid());
        self.turn.saw(&holder, of_this_process);
        Ok(Some(holder))
    }

    /// Takes a lock away from a process of this machine that is certainly dead: true where it is free now.
    fn reclaims(&self, holder: Option<&Holder>) -> bool {
        let Claimed { store, key, owner, machine, reclaim_dead, .. } = self.bid.claim;
        let Some(holder) = holder.filter(|_| reclaim_dead) else {
            return false;
        };
        if !machine::is_dead(holder.raw(), owner.host(), machine) {
            return false;
        }
        // Exactly the dead one's token; an answer that is lost is found out by the next look.
        let removed = store.checkout(self.patience.deadline).and_then(|mut connection| {
            connection.remove(key.in_redis(), holder.raw(), self.patience.deadline)
        });
        let reclaimed = matches!(removed, Ok(Compared::Done));
        if reclaimed {
            self.bid.claim.keeper.counters().reclaimed.add(1);
            info!(target: "relatch::acquire", "lock {:?} was taken over from {holder}, a process that is gone", key.name());
        }
        reclaimed
    }

    /// Sleeps, but not past the end of the holder's lease, and not past the deadline: false where that has
    /// come. No connection is held meanwhile.
    fn pause(&self, pause: Duration, holder: Option<&Holder>) -> bool {
        let lease_left = holder.and_then(Holder::time_left).unwrap_or(Duration::MAX);
        let deadline_left = self.patience.deadline.since(Moment::now());
        thread::sleep(pause.min(lease_left).max(SHORTEST_PAUSE).min(deadline_left));
        Moment::now() < self.patience.deadline
    }

    fn gives_up(&self, trouble: &Trouble) -> bool {
        let now = Moment::now();
        let outage = self.patience.deadline == Moment::NEVER
            && now.since(self.last_answer) >= self.patience.tolerate_outage;
        !trouble.can_pass()
            || now >= self.patience.deadline
            || outage
            || (self.patience.once && self.troubles > 1)
    }

    fn give_up(&mut self, trouble: Trouble) -> Error {
        let action = format!("taking lock {:?}", self.bid.claim.key.name());
        // A last attempt that was cut short by the deadline says less than the refusal before it.
        let cause = match trouble {
            Trouble::Refused(_) => trouble,
            other => self.refusal.take().map_or(other, Trouble::Refused),
        };
        self.bid.claim.store.error(action, cause)
    }
}

pub(crate) const NOT_A_STRING: &str = "a value that is not a string";

pub(crate) fn not_a_lock(key: &Key, found: &str) -> Error {
    Error::NotALock {
        key: key.name().to_string(),
        redis_key: key.in_redis().to_owned(),
        found: found.to_owned(),
    }
}
