//! A token on its way into Redis, and what is known of it there.
//!
//! The hard part is a `SET` whose answer does not come: the lock may be ours. Three rules keep that honest.
//!
//! 1. *A connection has one answer to give.* Where it stays silent for a response timeout, the clean-up of the token is
//!    written behind the `SET`, on the same connection: Redis executes one connection's commands in order. (A clean-up
//!    over another connection may run first, and nobody would then hold the lock that the `SET` takes.) The next
//!    attempt goes over another connection: perhaps only this one is dead, and Redis is well.
//! 2. *A token that was cleaned up is never used again*: the clean-up may run late, and would then delete
//!    a lock that the same token has taken anew.
//! 3. *A token whose connection broke stays*, since nothing can be written behind it. A later look that finds the token
//!    means that we have had the lock since the first send that went astray, and no longer.

use std::mem;

use log::warn;

use crate::clock::Moment;
use crate::hold::Since;
use crate::holder::Holder;
use crate::keeper::Keeper;
use crate::key::Key;
use crate::options::Lease;
use crate::owed::Leftover;
use crate::owner::{Owner, fresh_token};
use crate::store::{Claim, Connection, Seen, Store, Trouble, Watch};
use crate::wish::{Handed, Wish};

/// What is to be taken, and for whom.
#[derive(Clone, Copy)]
pub(crate) struct Claimed<'a> {
    pub(crate) keeper: &'a Keeper,
    pub(crate) store: &'a Store,
    pub(crate) key: &'a Key,
    pub(crate) owner: &'a Owner,
    /// This machine's digits.
    pub(crate) machine: &'a str,
    pub(crate) lease: Lease,
    pub(crate) reclaim_dead: bool,
    /// It is worth being told when the lock may be free.
    pub(crate) waits: bool,
}

impl Claimed<'_> {
    fn fresh_token(&self) -> Result<String, Trouble> {
        fresh_token(self.owner, self.machine).map_err(Trouble::not_sent)
    }
}

/// What Redis said to an attempt.
pub(crate) enum Answer {
    Taken {
        token: String,
        since: Since,
    },
    Busy {
        holder: Option<Holder>,
        /// The listener will hear when that changes.
        heard: bool,
    },
    NotAString,
}

/// A token's way into Redis, and what is known of it there.
pub(crate) struct Bid<'a> {
    pub(crate) claim: Claimed<'a>,
    /// Empty where a fresh one is to be drawn first.
    token: String,
    /// The first send of the token whose connection broke: Redis may still execute it.
    astray_since: Option<Moment>,
    /// The last token that was given up. Where it is what keeps the lock busy, nobody has the lock.
    given_up: Option<String>,
    /// When the last attempt began, not counting the time in which Redis answered others.
    tried_since: Moment,
}

impl<'a> Bid<'a> {
    /// With the wish of the thread that waited for it, and what became of that when it was handed on.
    pub(crate) fn new(claim: Claimed<'a>, (wish, handed): (Wish, Handed)) -> Bid<'a> {
        let (token, astray_since, given_up) = match handed {
            Handed::Spoilt => (String::new(), None, Some(wish.token)),
            Handed::Nothing => (wish.token, None, None),
            // Taken, but so long ago that the next look had better settle it; or perhaps not taken.
            Handed::Taken { sent, .. } | Handed::Astray { sent } => (wish.token, Some(sent), None),
        };
        Bid { claim, token, astray_since, given_up, tried_since: Moment::now() }
    }

    /// True where Redis may hold the token already, though nobody can say.
    pub(crate) fn is_astray(&self) -> bool {
        self.astray_since.is_some()
    }

    pub(crate) fn tried_since(&self) -> Moment {
        self.tried_since
    }

    /// Asks Redis once.
    pub(crate) fn attempt(&mut self, look: bool, deadline: Moment) -> Result<Answer, Trouble> {
        if self.token.is_empty() {
            self.token = self.claim.fresh_token()?;
        }
        let began = Moment::now();
        self.tried_since = began;
        let mut connection = self.claim.store.checkout(deadline)?;
        let (key, lease) = (self.claim.key.in_redis(), self.claim.lease.millis());
        let number = if self.claim.waits { self.claim.keeper.listener().number() } else { None };
        let sent = Moment::now();
        if self.claim.store.answered_since(began) {
            self.tried_since = sent;
        }
        let answer = if look {
            connection.claim_or_look(key, &self.token, lease, number, deadline)
        } else {
            connection.claim(key, &self.token, lease, deadline).map(|claim| (claim, Watch::Off))
        };
        match answer {
            Ok((Claim::Taken, _)) => self.taken(connection, sent, deadline),
            Ok((Claim::TakenBefore, _)) if self.astray_since.is_none() => {
                let trouble = self.found_without_sending();
                Err(self.remove_given_up(connection, deadline).unwrap_or(trouble))
            }
            Ok((Claim::TakenBefore, _)) => {
                let since = self.astray_since.unwrap_or(sent);
                self.taken(connection, since, deadline)
            }
            Ok((Claim::Busy(Some(holder)), _)) if self.given_up.as_deref() == Some(holder.raw()) => {
                let cause =
                    "an earlier attempt of this thread, which was not answered, had taken the lock".into();
                let trouble = Trouble::Unanswered { link_stands: true, cause };
                Err(self.remove_given_up(connection, deadline).unwrap_or(trouble))
            }
            Ok((Claim::Busy(holder), watch)) => Ok(self.busy(holder, number, watch)),
            Ok((Claim::NotAString, _)) => Ok(Answer::NotAString),
            Err(trouble) => {
                self.lost_answer(connection, sent, &trouble);
                Err(trouble)
            }
        }
    }

    /// Looks at who has the lock, and asks for nothing.
    pub(crate) fn look(&mut self, deadline: Moment) -> Result<Answer, Trouble> {
        self.tried_since = Moment::now();
        let mut connection = self.claim.store.checkout(deadline)?;
        Ok(match connection.look(self.claim.key.in_redis(), deadline)? {
            Seen::Nothing => Answer::Busy { holder: None, heard: false },
            Seen::Somebody(holder) => Answer::Busy { holder: Some(holder), heard: false },
            Seen::NotAString => Answer::NotAString,
        })
    }

    /// True where no token of this thread can be what keeps the lock busy.
    pub(crate) fn has_left_nothing(&self) -> bool {
        self.astray_since.is_none() && self.given_up.is_none()
    }

    /// Removes the token that was given up, so that the next attempt finds the lock free: what went
    /// wrong with that, if anything.
    fn remove_given_up(&self, mut connection: Connection<'a>, deadline: Moment) -> Option<Trouble> {
        let token = self.given_up.as_deref()?;
        connection.remove(self.claim.key.in_redis(), token, deadline).err()
    }

    /// The token is not ours to use any more: Redis may hold it, or may yet.
    fn give_up_token(&mut self) {
        self.owe();
        self.start_over();
    }

    fn busy(&self, holder: Option<Holder>, number: Option<u64>, watch: Watch) -> Answer {
        let heard = number.is_some_and(|number| self.claim.keeper.listener().will_hear(number, watch));
        Answer::Busy { holder, heard }
    }

    /// The token stands in Redis, and has since `since` at the earliest.
    fn taken(
        &mut self,
        mut connection: Connection<'a>,
        since: Moment,
        deadline: Moment,
    ) -> Result<Answer, Trouble> {
        let now = Moment::now();
        if now < self.claim.lease.valid_until(since) {
            let token = mem::take(&mut self.token);
            let stray = self.astray_since.is_some();
            return Ok(Answer::Taken { token, since: Since { sent: since, answered: now, stray } });
        }
        // The answer took as long as the lease: that is no lock. Whatever comes of the removal, it runs before
        // anything sent later on this connection, and the token is done with.
        warn!(target: "relatch::acquire", "the answer for lock {:?} came after its lease: not taken", self.claim.key.name());
        let removal = connection.remove(self.claim.key.in_redis(), &self.token, deadline);
        if removal.is_err() || self.astray_since.is_some() {
            self.owe();
        }
        self.start_over();
        removal?;
        Err(late())
    }

    /// The token stands in Redis, though Redis has said of each of its sends that it took nothing.
    /// Nobody knows since when, or who put it there: it is not a lock that can be believed in.
    fn found_without_sending(&mut self) -> Trouble {
        self.give_up_token();
        let cause = "the token stands in Redis, which has said that it did not take it".into();
        Trouble::Unanswered { link_stands: true, cause }
    }

    /// Notes what may still happen in Redis.
    fn lost_answer(&mut self, connection: Connection<'a>, sent: Moment, trouble: &Trouble) {
        match trouble {
            Trouble::Unanswered { link_stands: true, .. } => {
                connection.abandon(self.claim.key.in_redis(), &self.token);
                self.give_up_token();
            }
            Trouble::Unanswered { .. } => _ = self.astray_since.get_or_insert(sent),
            Trouble::NotSent(_) | Trouble::Refused(_) | Trouble::OutOfTime(_) => {}
        }
    }

    /// The next attempt draws a fresh token, of which Redis knows nothing.
    fn start_over(&mut self) {
        self.given_up = Some(mem::take(&mut self.token));
        self.astray_since = None;
    }

    /// Leaves nothing behind, without waiting for an answer: what is left to do is the keeper's.
    pub(crate) fn abandon(self) {
        if self.astray_since.is_some() {
            self.owe();
        }
    }

    /// Has the keeper delete what this token may have left, or may yet leave. The token is not used again.
    fn owe(&self) {
        let (redis_key, token) = (self.claim.key.in_redis().to_owned(), self.token.clone());
        let gone_by = self.claim.lease.gone_by(Moment::now());
        self.claim.keeper.owe(Leftover { redis_key, token, gone_by, stray: true });
    }
}

fn late() -> Trouble {
    let cause = "the answer came after the lease, which is shorter than a round trip now".into();
    Trouble::Unanswered { link_stands: true, cause }
}
