//! Taking a lock over from a holder that has handed it over.
//!
//! The script compares the old token, and swaps it for a fresh one. So exactly one adopter wins.
//! Two rules deal with lost answers. They differ from those of a claim, since a token that is gone
//! never comes back.
//!
//! 1. *Each try has the same new token.* A try that finds the new token extends its lease, so the
//!    lease counts from the try that was answered, whichever try swapped the token. Redis may
//!    execute an earlier try later. That can only extend the lease.
//! 2. *If no try is answered, the new token is deleted.* The keeper searches for it until its lease
//!    is over. If the last connection stands, the deletion is also written after the try. Nothing
//!    deletes the old token: if no try was executed, another adopter can still have the lock.

use std::sync::Arc;
use std::time::Duration;

use crate::acquire::claim::Taken;
use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{debug, warn};
use crate::base::error::{Error, LostCause};
use crate::base::key::Key;
use crate::base::sync::thread;
use crate::hold::AcquiredAt;
use crate::keeping::orphans::Orphan;
use crate::keeping::work::Keeper;
use crate::store::{AdoptReply, Connection, Failure, Store};
use crate::waiting::handoff::Claim;

/// An adoption, over as many tries as it takes.
pub(crate) struct Adoption<'a> {
    pub(crate) store: &'a Store,
    pub(crate) keeper: &'a Arc<Keeper>,
    pub(crate) key: &'a Key,
    /// The token that was handed over.
    pub(crate) old: &'a str,
    /// The fencing token that it had; zero if none. The new one is larger.
    pub(crate) least: u64,
    /// What the key is to hold in its place.
    pub(crate) claim: Claim,
    pub(crate) deadline: Moment,
}

impl Adoption<'_> {
    /// Tries until Redis answers, another try would not help, or the next one would come after the
    /// deadline.
    pub(crate) fn run(self) -> Result<Taken, Error> {
        let token = &self.claim.token;
        if self.keeper.claim(token).is_err() {
            return Err(Error::Stopped {
                key: self.key.name().to_string(),
                held: Vec::new(),
            });
        }
        let mut backoff = Backoff::after_failure();
        let mut maybe_done = false;
        let mut answer = None;
        loop {
            let key = self.key.in_redis();
            // A deletion can be written after the try, on the same connection.
            let (connection, tried) = match self.store.checkout(key, self.deadline) {
                Ok(mut connection) => {
                    let tried = self.ask(&mut connection);
                    (Some(connection), tried)
                }
                Err(failure) => (None, Err(failure)),
            };
            let failure = match tried {
                Ok((reply, at)) => return self.judge(&reply, at),
                Err(failure) => failure,
            };
            let name = self.key.name();
            debug!(target: "relatch::acquire", "adopting lock {name:?}: {failure:?}");
            let is_lost = matches!(failure, Failure::Unanswered { .. });
            let pause = if is_lost && !maybe_done {
                Duration::ZERO
            } else {
                backoff.pause()
            };
            maybe_done |= is_lost;
            if failure.can_pass() && Moment::now().after(pause) < self.deadline {
                drop(connection);
                answer = failure.is_answer().then_some(failure).or(answer);
                thread::sleep(pause);
                continue;
            }
            if let (Failure::Unanswered { link_stands, .. }, Some(connection)) =
                (&failure, connection)
                && *link_stands
            {
                connection.abandon(&[key], &self.claim.token);
            }
            if maybe_done {
                self.give_up();
            } else {
                self.keeper.gone(token);
            }
            // The deadline may have cut the last try short. Then an earlier answer says more.
            let failure = match answer {
                Some(answer) if failure.can_pass() && !failure.is_answer() => answer,
                _ => failure,
            };
            return Err(self.store.error(Some(self.key), "adopting", failure));
        }
    }

    /// One try.
    fn ask(&self, connection: &mut Connection<'_>) -> Result<(AdoptReply, AcquiredAt), Failure> {
        let wanted = self.claim.wanted(self.key.in_redis());
        let sent = Moment::now();
        let reply = connection.adopt(self.old, self.least, wanted, self.deadline)?;
        let answered = Moment::now();
        Ok((reply, AcquiredAt { sent, answered }))
    }

    fn judge(&self, reply: &AdoptReply, at: AcquiredAt) -> Result<Taken, Error> {
        match reply {
            AdoptReply::Adopted { fence }
                if at.answered < self.claim.lease.valid_until(at.sent) =>
            {
                Ok(Taken {
                    token: self.claim.token.clone(),
                    number: *fence,
                    at,
                })
            }
            AdoptReply::Adopted { .. } => {
                let name = self.key.name();
                warn!(
                    target: "relatch::acquire",
                    "the answer for lock {name:?} came after the lease, so the lock is not adopted"
                );
                self.give_up();
                Err(self.lost(LostCause::Expired))
            }
            AdoptReply::Absent => {
                self.keeper.gone(&self.claim.token);
                let (key, redis_key) =
                    (self.key.name().to_string(), self.key.in_redis().to_owned());
                Err(Error::NothingToAdopt { key, redis_key })
            }
            AdoptReply::NotOurs => {
                self.keeper.gone(&self.claim.token);
                Err(self.lost(LostCause::Taken))
            }
        }
    }

    fn lost(&self, cause: LostCause) -> Error {
        Error::Lost {
            key: self.key.name().to_string(),
            cause,
        }
    }

    /// Redis may hold the new token now or later, and no thread will use it.
    fn give_up(&self) {
        let Claim { token, lease, .. } = &self.claim;
        let orphan = Orphan::of_claim(self.key, *lease, true);
        self.keeper.give_up(token, orphan, Moment::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::options::Lease;
    use crate::keeping::keeper::tests::keeper_without_redis;

    /// The lease counts from when the command was sent, and Redis may have executed it much later.
    /// So the key may exist although the lease is over here.
    #[test]
    fn a_lock_whose_adoption_was_answered_too_late_is_deleted() {
        let (keeper, key) = (keeper_without_redis(), Key::new("lock:", "a").unwrap());
        let second = Duration::from_secs(1);
        let claim = Claim {
            token: "new".into(),
            lease: Lease::new(second),
            counter: None,
        };
        let (store, deadline) = (&*keeper.core.store, Moment::NEVER);
        let adoption = Adoption {
            store,
            keeper: &keeper,
            key: &key,
            old: "old",
            least: 0,
            claim,
            deadline,
        };
        let answered = Moment::now();
        let judge = |sent| {
            adoption.judge(
                &AdoptReply::Adopted { fence: None },
                AcquiredAt { sent, answered },
            )
        };
        let next_orphan = || keeper.work.lock().tokens.first_orphan();
        assert!(judge(answered).is_ok());
        assert_eq!(next_orphan(), Moment::NEVER);
        let late = judge(answered.before(second));
        assert!(matches!(
            late,
            Err(Error::Lost {
                cause: LostCause::Expired,
                ..
            })
        ));
        assert!(next_orphan() < Moment::NEVER, "nobody deletes it");
    }
}
