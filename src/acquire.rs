//! Taking a lock that this thread does not hold: asking, waiting, and settling lost answers.
//!
//! The hard part is a `SET` whose answer does not come: the lock may be ours. Three rules keep that honest.
//!
//! 1. *The token stays* until Redis has said what became of it. A later look that finds it standing there
//!    means that we have had the lock since the first send whose fate was open, and no longer.
//! 2. *The connection stays* while it stands, because Redis answers a connection in order: what is sent next
//!    is executed after the lost command. A clean-up sent over another connection may run first, and the
//!    lock would then be taken by nobody.
//! 3. *A token that was cleaned up is never used again*: the clean-up may run late, and would then delete
//!    a lock that the same token has taken anew.

use std::mem;
use std::thread;
use std::time::Duration;

use log::{debug, warn};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::Error;
use crate::hold::Since;
use crate::holder::Holder;
use crate::holds;
use crate::key::Key;
use crate::options::Lease;
use crate::owner::{Owner, fresh_token};
use crate::queue::Turn;
use crate::store::{Claim, Connection, Refusal, Store, Trouble};

/// How often the same connection is asked about a lost answer before another one is tried.
const ASKED_TWICE: u32 = 2;

/// The shortest pause between two looks: Redis may be a moment late in letting an expired key go.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// How long to try, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    pub(crate) started: Moment,
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
pub(crate) fn acquire(
    store: &Store,
    key: &Key,
    owner: &Owner,
    lease: Lease,
    patience: &Patience,
    turn: &Turn,
) -> Result<Outcome, Error> {
    let bid = Bid::new(store, key, owner, lease);
    let claimant =
        Claimant { bid, patience, turn, last_answer: patience.started, troubles: 0, refusal: None };
    claimant.run()
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
    fn run(mut self) -> Result<Outcome, Error> {
        let mut while_busy = Backoff::for_busy();
        let mut in_trouble = Backoff::for_trouble();
        let mut look = self.patience.name_holder && self.patience.once;
        let mut seen = None;
        loop {
            match self.bid.attempt(look, self.patience.deadline) {
                Ok(Answer::Taken { token, since }) => return Ok(Outcome::Taken { token, since }),
                Ok(Answer::Busy(holder)) => {
                    (self.last_answer, self.troubles, self.refusal) = (Moment::now(), 0, None);
                    in_trouble.reset();
                    seen = self.examine(holder)?.or(seen);
                    if self.patience.once || !self.pause(while_busy.pause(), seen.as_ref()) {
                        return Ok(Outcome::Busy(seen));
                    }
                }
                Ok(Answer::NotAString) => return Err(not_a_lock(self.bid.key, NOT_A_STRING)),
                Err(trouble) => {
                    self.troubles += 1;
                    if self.gives_up(&trouble) {
                        return Err(self.give_up(trouble));
                    }
                    if let Trouble::Refused(refusal) = &trouble {
                        self.refusal = Some(refusal.clone());
                    }
                    debug!("taking lock {:?}: {trouble:?}, trying again", self.bid.key.name());
                    // The first failure may be a connection that had gone stale: the next one is not.
                    let at_once = self.troubles == 1 || self.bid.connection.is_some();
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
        if holds::is_mine(holder.raw(), self.bid.owner.pid()) {
            return Err(Error::WouldDeadlock { key: self.bid.key.name().to_string() });
        }
        if holder.time_left().is_none() {
            return Err(not_a_lock(self.bid.key, &holder.to_string()));
        }
        let of_this_process = holder.owner().is_some_and(|owner| owner.pid() == self.bid.owner.pid());
        self.turn.saw(&holder, of_this_process);
        Ok(Some(holder))
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

    fn give_up(self, trouble: Trouble) -> Error {
        let action = format!("taking lock {:?}", self.bid.key.name());
        // A last attempt that was cut short by the deadline says less than the refusal before it.
        let cause = match trouble {
            Trouble::Refused(_) => trouble,
            other => self.refusal.map_or(other, Trouble::Refused),
        };
        let error = self.bid.store.error(action, cause);
        self.bid.abandon(self.patience.deadline);
        error
    }
}

/// What Redis said to an attempt.
enum Answer {
    Taken { token: String, since: Since },
    Busy(Option<Holder>),
    NotAString,
}

/// A token's way into Redis, and what is known of it there.
struct Bid<'a> {
    store: &'a Store,
    key: &'a Key,
    owner: &'a Owner,
    lease: Lease,
    token: String,
    /// The connection on which an answer is open, while it stands.
    connection: Option<Connection<'a>>,
    /// The first send on that connection whose fate is open.
    open_since: Option<Moment>,
    /// The same, of connections that broke: Redis may have executed it, or may yet.
    astray_since: Option<Moment>,
    unanswered: u32,
}

impl<'a> Bid<'a> {
    fn new(store: &'a Store, key: &'a Key, owner: &'a Owner, lease: Lease) -> Bid<'a> {
        Bid {
            store,
            key,
            owner,
            lease,
            token: fresh_token(owner),
            connection: None,
            open_since: None,
            astray_since: None,
            unanswered: 0,
        }
    }

    /// Asks Redis once.
    fn attempt(&mut self, look: bool, deadline: Moment) -> Result<Answer, Trouble> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.store.checkout(deadline)?,
        };
        let (key, lease) = (self.key.in_redis(), self.lease.millis());
        let sent = Moment::now();
        let claim = if look {
            connection.claim_or_look(key, &self.token, lease, deadline)
        } else {
            connection.claim(key, &self.token, lease, deadline)
        };
        match claim {
            Ok(Claim::Taken) => self.taken(connection, sent, deadline),
            Ok(Claim::TakenBefore) => {
                let since = self.astray_since.or(self.open_since).unwrap_or(sent);
                self.taken(connection, since, deadline)
            }
            Ok(Claim::Busy(holder)) => {
                // Whatever was open on this connection came before this answer, and took nothing.
                self.open_since = None;
                Ok(Answer::Busy(holder))
            }
            Ok(Claim::NotAString) => Ok(Answer::NotAString),
            Err(trouble) => {
                self.lost_answer(connection, sent, &trouble);
                Err(trouble)
            }
        }
    }

    /// The token stands in Redis, and has since `since` at the earliest.
    fn taken(
        &mut self,
        mut connection: Connection<'a>,
        since: Moment,
        deadline: Moment,
    ) -> Result<Answer, Trouble> {
        let now = Moment::now();
        if now < self.lease.valid_until(since) {
            let token = mem::take(&mut self.token);
            return Ok(Answer::Taken { token, since: Since { sent: since, answered: now } });
        }
        // The answer took as long as the lease: that is no lock. Whatever comes of the removal, it runs before
        // anything sent later on this connection, and the token is done with.
        warn!("the answer for lock {:?} came after its lease: not taken", self.key.name());
        let removal = connection.remove(self.key.in_redis(), &self.token, deadline);
        self.start_over();
        removal?;
        Err(Trouble::Unanswered {
            link_stands: true,
            cause: "the answer came after the lease, which is shorter than a round trip now".into(),
        })
    }

    /// Notes what may still happen in Redis.
    fn lost_answer(&mut self, connection: Connection<'a>, sent: Moment, trouble: &Trouble) {
        match trouble {
            Trouble::Unanswered { link_stands, .. } => {
                self.open_since.get_or_insert(sent);
                self.unanswered += 1;
                if !link_stands {
                    self.astray_since = self.astray_since.or(self.open_since.take());
                } else if self.unanswered < ASKED_TWICE {
                    self.connection = Some(connection);
                } else {
                    // It may be this connection that is dead, not the server.
                    connection.abandon(self.key.in_redis(), &self.token);
                    self.start_over();
                }
            }
            Trouble::NotSent(_) => self.astray_since = self.astray_since.or(self.open_since.take()),
            // Answered, and so is everything sent before it.
            Trouble::Refused(_) => self.open_since = None,
        }
    }

    /// A fresh token, of which Redis knows nothing.
    fn start_over(&mut self) {
        self.token = fresh_token(self.owner);
        (self.open_since, self.astray_since, self.unanswered) = (None, None, 0);
    }

    /// Leaves nothing behind, as far as that can be done without waiting for an answer.
    fn abandon(mut self, deadline: Moment) {
        let carrier = match self.connection.take() {
            Some(connection) => Some(connection),
            // Its connection broke: what Redis had read of it by then has been executed.
            None if self.astray_since.is_some() => self.store.checkout(deadline).ok(),
            None => None,
        };
        if let Some(connection) = carrier {
            connection.abandon(self.key.in_redis(), &self.token);
        }
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
