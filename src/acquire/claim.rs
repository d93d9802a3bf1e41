//! A token on its way into Redis, and what is known of it there.
//!
//! The hard part is a `SET` whose answer does not come: the lock may be ours, or may yet be. Two
//! rules keep that honest.
//!
//! 1. *A token without an answer is given up*, and the next attempt draws a fresh one. So nobody has
//!    to know since when the old one stands there, and a clean-up that runs late deletes nothing that
//!    is used.
//! 2. *What was given up is cleaned up.* Where the connection stands, the clean-up is written behind
//!    the `SET` on the same connection, since Redis executes one connection's commands in order: over
//!    another connection it may run first, and leave a key that nobody holds. The keeper looks for the
//!    token, too, until its lease is over. An attempt that finds the last such token in its way
//!    removes it.
//!
//! The next attempt goes over another connection: perhaps only this one is dead, and Redis is well.

use log::warn;

use crate::acquire::{AcquireContext, Taken};
use crate::base::clock::Moment;
use crate::base::holder::Holder;
use crate::base::owner::fresh_token;
use crate::hold::AcquiredAt;
use crate::keeping::orphans::OrphanKey;
use crate::store::{ClaimReply, Connection, Failure, Seen, Tracking};
use crate::waiting::waiter::{Claim, HandoffOutcome};

/// What Redis said to an attempt.
pub(crate) enum Answer {
    Taken(Taken),
    Busy {
        holder: Option<Holder>,
        /// The listener will hear when that changes.
        heard: bool,
    },
    NotAString,
}

/// Tokens on their way into Redis, and what is known of them there.
pub(crate) struct PendingClaim<'a> {
    context: AcquireContext<'a>,
    /// The thread waits where the lock is busy: Redis is asked to tell the listener of a change.
    wakeable: bool,
    /// What the next attempt asks with; a fresh one is drawn where there is none.
    token: Option<String>,
    /// The last token that was given up. Where it is what keeps the lock busy, nobody has the lock.
    given_up: Option<String>,
    /// When the last attempt began, not counting the time in which Redis answered others.
    pub(crate) tried_since: Moment,
}

impl<'a> PendingClaim<'a> {
    /// With the wish of the thread that waited for it, and what became of that when it was handed
    /// on, unless the lock was.
    pub(crate) fn new(
        context: AcquireContext<'a>,
        claim: Claim,
        handed: HandoffOutcome,
        wakeable: bool,
    ) -> PendingClaim<'a> {
        let mut pending =
            PendingClaim { context, wakeable, token: None, given_up: None, tried_since: Moment::now() };
        match handed {
            HandoffOutcome::Nothing => pending.token = Some(claim.token),
            // The thread in front has had it cleaned up.
            HandoffOutcome::Spoilt { .. } => pending.given_up = Some(claim.token),
            HandoffOutcome::Taken { .. } => pending.give_up(claim.token),
        }
        pending
    }

    /// Asks Redis once for the lock. With `look`, the answer says who has it.
    pub(crate) fn attempt(&mut self, look: bool, deadline: Moment) -> Result<Answer, Failure> {
        let fresh = || fresh_token(self.context.owner, self.context.machine).map_err(Failure::not_sent);
        let token = self.token.take().map_or_else(fresh, Ok)?;
        let began = Moment::now();
        self.tried_since = began;
        let mut connection = match self.context.store.checkout(deadline) {
            Ok(connection) => connection,
            Err(failure) => {
                self.token = Some(token);
                return Err(failure);
            }
        };
        let (key, lease) = (self.context.key.in_redis(), self.context.lease.millis());
        let number = if self.wakeable { self.context.listener.number() } else { None };
        let sent = Moment::now();
        if self.context.store.pool.answered_since(began) {
            self.tried_since = sent;
        }
        let mut answer = if look {
            connection.claim_or_look(key, &token, lease, number, deadline)
        } else {
            connection.claim(key, &token, lease, deadline).map(|context| (context, Tracking::Off))
        };
        if let (Ok((ClaimReply::Busy(Some(holder)), _)), Some(given_up)) = (&answer, &self.given_up)
            && holder.raw() == given_up
        {
            if let Err(failure) = connection.remove(key, given_up, deadline) {
                self.token = Some(token); // Redis has answered that it did not take this one.
                return Err(failure);
            }
            answer = connection.claim_or_look(key, &token, lease, number, deadline);
        }
        match answer {
            Ok((ClaimReply::Taken, _)) => self.taken(connection, token, sent, deadline),
            Ok((ClaimReply::Busy(Some(holder)), _)) if holder.raw() == token => {
                // Redis has said of each send of it that it took nothing: nobody knows since when
                // it stands there. The next attempt removes it.
                self.give_up(token);
                Err(unanswered("the token stands in Redis, which has said that it did not take it"))
            }
            Ok((ClaimReply::Busy(holder), watch)) => {
                self.token = Some(token);
                let listener = &self.context.listener;
                let heard = number.is_some_and(|number| listener.will_wake(key, number, watch));
                Ok(Answer::Busy { holder, heard })
            }
            Ok((ClaimReply::NotAString, _)) => Ok(Answer::NotAString),
            Err(failure) => {
                self.lost_answer(connection, token, &failure);
                Err(failure)
            }
        }
    }

    /// Looks at who has the lock, and asks for nothing.
    pub(crate) fn look(&mut self, deadline: Moment) -> Result<Answer, Failure> {
        self.tried_since = Moment::now();
        let mut connection = self.context.store.checkout(deadline)?;
        Ok(match connection.look(self.context.key.in_redis(), deadline)? {
            Seen::Nothing => Answer::Busy { holder: None, heard: false },
            Seen::Somebody(holder) => Answer::Busy { holder: Some(holder), heard: false },
            Seen::NotAString => Answer::NotAString,
        })
    }

    /// True where no token of this thread can be what keeps the lock busy.
    pub(crate) fn has_left_nothing(&self) -> bool {
        self.given_up.is_none()
    }

    /// The token stands in Redis, and has since `sent` at the earliest.
    fn taken(
        &mut self,
        mut connection: Connection<'a>,
        token: String,
        sent: Moment,
        deadline: Moment,
    ) -> Result<Answer, Failure> {
        let now = Moment::now();
        if now < self.context.lease.valid_until(sent) {
            return Ok(Answer::Taken(Taken { token, at: AcquiredAt { sent, answered: now } }));
        }
        // The answer took as long as the lease: that is no lock. Whatever comes of the removal, it runs before
        // anything sent later on this connection, and the token is done with.
        warn!(target: "relatch::acquire", "the answer for lock {:?} came after its lease: not taken", self.context.key.name());
        match connection.remove(self.context.key.in_redis(), &token, deadline) {
            Ok(_) => self.given_up = Some(token),
            Err(failure) => {
                self.give_up(token);
                return Err(failure);
            }
        }
        Err(unanswered("the answer came after the lease, which is shorter than a round trip now"))
    }

    /// Notes what may still happen in Redis.
    fn lost_answer(&mut self, connection: Connection<'a>, token: String, failure: &Failure) {
        if let Failure::Unanswered { link_stands, .. } = failure {
            if *link_stands {
                connection.abandon(self.context.key.in_redis(), &token);
            }
            self.give_up(token);
        } else {
            self.token = Some(token);
        }
    }

    /// The token is not used again: Redis may hold it, or may yet, and the keeper deletes it.
    fn give_up(&mut self, token: String) {
        let (redis_key, gone_by) =
            (self.context.key.in_redis().to_owned(), self.context.lease.gone_by(Moment::now()));
        self.context.keeper.owe(OrphanKey { redis_key, token: token.clone(), gone_by, stray: true });
        self.given_up = Some(token);
    }
}

fn unanswered(cause: &'static str) -> Failure {
    Failure::Unanswered { link_stands: true, cause: cause.into() }
}
