//! One attempt over the wire, and what is known about the tokens that were sent.
//!
//! The hard part is a `SET` without an answer: the lock may be ours, or may become ours later. Two
//! rules deal with that.
//!
//! 1. *A thread gives up a token whose `SET` had no answer*, and draws a fresh one for the next
//!    attempt. So no thread has to know when Redis began to hold the old token, and a late clean-up
//!    deletes no token that is in use.
//! 2. *A token that was given up is deleted.* If the connection stands, the thread writes the
//!    deletion after the `SET` on the same connection, since Redis executes one connection's
//!    commands in order. Over another connection, the deletion could run first, and the `SET` would
//!    leave a key that no thread holds. A renewer searches for the token, too, until its lease is
//!    over. If an attempt finds that the last token given up keeps the lock busy, the attempt
//!    deletes it.
//!
//! After a missing answer, the next attempt goes over another connection: perhaps only the silent
//! connection is dead, and Redis is well.

use std::sync::Arc;

use crate::acquire::step::Ask;
use crate::base::clock::Moment;
use crate::base::emit::warn;
use crate::base::key::Key;
use crate::base::options::Lease;
use crate::base::owner::holder::Holder;
use crate::hold::AcquiredAt;
use crate::keeping::orphans::Orphan;
use crate::keeping::work::Keeper;
use crate::store::{ClaimReply, Compared, Connection, Failure, Goal, Seen, Tracking, Wanted};
use crate::waiting::core::Core;
use crate::waiting::handoff::{Claim, HandoffOutcome};
use crate::waiting::wait::Wait;
use crate::wakeups::listener::Listener;

/// Which lock to take, and by what means.
#[derive(Clone, Copy)]
pub(crate) struct AcquireContext<'a> {
    pub(crate) core: &'a Core,
    pub(crate) keeper: &'a Arc<Keeper>,
    pub(crate) wait: &'a Wait<'a>,
    pub(crate) lease: Lease,
    pub(crate) reclaim_dead: bool,
    /// The caller's token for the slots' gate, if they have a gate and it is held.
    pub(crate) gate: Option<&'a str>,
}

impl AcquireContext<'_> {
    /// The listener to which Redis is to report a change of the key, if the caller will wait for
    /// one.
    pub(super) fn listener(&self, connection: &Connection<'_>) -> Option<Arc<Listener>> {
        let node = connection.node().filter(|_| !self.wait.patience.once)?;
        self.core.listeners.of(node)
    }

    /// True if Redis will send this listener an invalidation when the key changes. The listener
    /// comes with the number that it had when Redis was asked.
    pub(super) fn is_tracked(
        &self,
        listener: Option<(Arc<Listener>, u64)>,
        tracking: Tracking,
    ) -> bool {
        matches!(tracking, Tracking::Direct)
            || listener.is_some_and(|(listener, number)| {
                listener.will_wake(self.wait.key.in_redis(), number, tracking)
            })
    }
}

/// Redis holds this token for the caller.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) token: Arc<str>,
    /// The fencing token, if one was wanted, or the number of the slot.
    pub(crate) number: Option<u64>,
    pub(crate) at: AcquiredAt,
}

/// What asks Redis for the lock.
pub(crate) trait AskRedis {
    /// Asks once.
    fn attempt(&mut self, ask: Ask) -> Result<Answer, Failure>;

    /// True if an attempt has given up a token, which may keep the lock busy.
    fn has_given_up(&self) -> bool {
        false
    }

    /// The lock, if the thread in front has taken it for this one.
    fn handed_off(&mut self) -> Option<Taken> {
        None
    }
}

/// What Redis said to an attempt.
#[derive(Debug)]
pub(crate) enum Answer {
    Taken(Taken),
    Busy {
        /// Who has the lock, if the attempt asked that.
        holder: Option<Holder>,
        /// Redis will send the listener an invalidation when the key changes.
        tracked: bool,
        /// When the attempt asked.
        sent: Moment,
    },
    NotAString,
}

/// The tokens of one acquisition: that of the next attempt, and the last one that was given up.
pub(crate) struct PendingClaim<'a> {
    context: AcquireContext<'a>,
    /// The token of the next attempt. Redis does not hold it, and no command with it can still be
    /// executed. `None` after it was given up, until an attempt draws another.
    token: Option<Arc<str>>,
    /// The last token that was given up. If the key holds this token, no thread holds the lock.
    given_up: Option<Arc<str>>,
    /// The key of the lock's counter, if the hold is to have a fencing token.
    counter: Option<Arc<str>>,
    /// The thread in front has taken the lock for this one.
    handed_off: Option<Taken>,
}

impl<'a> PendingClaim<'a> {
    /// `handed` says what became of `claim` if the thread in front was to send it.
    pub(super) fn new(
        context: AcquireContext<'a>,
        claim: Claim,
        handed: HandoffOutcome,
    ) -> PendingClaim<'a> {
        let mut pending = PendingClaim {
            context,
            token: Some(claim.token),
            given_up: None,
            counter: claim.counter,
            handed_off: None,
        };
        match handed {
            HandoffOutcome::NotTaken => {}
            // The thread in front tells the keeper to delete the token.
            HandoffOutcome::Unanswered { .. } => pending.given_up = pending.token.take(),
            HandoffOutcome::Taken {
                sent,
                answered,
                fence,
            } if Moment::now() < claim.lease.valid_until(sent) => {
                let at = AcquiredAt { sent, answered };
                let taken = |token| Taken {
                    token,
                    number: fence,
                    at,
                };
                pending.handed_off = pending.token.take().map(taken);
            }
            // The claim's lease was over before this thread could use the lock.
            HandoffOutcome::Taken { .. } => pending.give_up(),
        }
        pending
    }
}

impl AskRedis for PendingClaim<'_> {
    fn attempt(&mut self, ask: Ask) -> Result<Answer, Failure> {
        match ask {
            // (Another slot may be free meanwhile.)
            Ask::Look if self.context.wait.key.slots().is_empty() => self.look(),
            Ask::Claim => self.claim(false),
            Ask::Look | Ask::ClaimOrLook => self.claim(true),
        }
    }

    fn has_given_up(&self) -> bool {
        self.given_up.is_some()
    }

    fn handed_off(&mut self) -> Option<Taken> {
        self.handed_off.take()
    }
}

impl PendingClaim<'_> {
    /// Asks for the lock and, if it `looks`, who has it.
    fn claim(&mut self, looks: bool) -> Result<Answer, Failure> {
        let AcquireContext {
            core, keeper, wait, ..
        } = self.context;
        let key = wait.key.in_redis();
        let deadline = wait.patience.deadline;
        let token = self.draw_token()?;
        let mut connection = core.store.checkout(key, deadline)?;
        // It may have taken a long time to get a connection. A shutdown does not wait for that, and
        // this thread must not have the lock after it.
        if wait.must_end() || keeper.claim(&token).is_err() {
            return Err(Failure::OutOfTime("the wait has ended".into()));
        }
        let listener = self.context.listener(&connection);
        let number = listener.as_ref().and_then(|listener| listener.client_id());
        let sent = Moment::now();
        let wanted = self.wanted();
        let mut answer = if looks {
            connection.claim_or_look(wanted, number, deadline)
        } else {
            let claimed = connection.claim(wanted, deadline);
            claimed.map(|reply| (reply, Tracking::Off))
        };
        if let Ok((ClaimReply::Busy(Some(holder)), _)) = &answer
            && let Some(removed) = self.remove_given_up(&mut connection, holder)
        {
            if let Err(failure) = removed {
                keeper.gone(&token);
                return Err(failure);
            }
            answer = connection.claim_or_look(wanted, number, deadline);
        }
        let answer = match answer {
            Ok((ClaimReply::Taken { number }, _)) => self.taken(connection, number, sent),
            Ok((ClaimReply::Busy(Some(holder)), _)) if *holder.raw == *wanted.token => {
                Err(self.refused_and_stored())
            }
            Ok((ClaimReply::Busy(holder), tracking)) => {
                let tracked = self.context.is_tracked(listener.zip(number), tracking);
                Ok(Answer::Busy {
                    holder,
                    tracked,
                    sent,
                })
            }
            Ok((ClaimReply::NotAString, _)) => Ok(Answer::NotAString),
            Err(failure) => {
                self.note_lost_answer(connection, &failure);
                Err(failure)
            }
        };
        // If Redis may have stored the token, it has been taken out by now.
        if let Some(not_stored) = &self.token {
            keeper.gone(not_stored);
        }
        answer
    }

    /// Deletes the last token that was given up, if that may keep the lock busy. `None` if it does
    /// not. (With slots, the answer names one holder out of many; and the keeper may just have
    /// deleted the token, so the answer to the deletion does not tell.)
    fn remove_given_up(
        &self,
        connection: &mut Connection<'_>,
        holder: &Holder,
    ) -> Option<Result<Compared, Failure>> {
        let (given_up, wait) = (self.given_up.as_ref()?, self.context.wait);
        if *holder.raw != **given_up && wait.key.slots().is_empty() {
            return None;
        }
        Some(connection.remove(&wait.key.places(), given_up, wait.patience.deadline))
    }

    /// Draws a token for the next attempt, unless there is one that is not used up.
    fn draw_token(&mut self) -> Result<Arc<str>, Failure> {
        let AcquireContext { core, wait, .. } = self.context;
        let token = match self.token.take() {
            Some(token) => token,
            None => core
                .identity
                .fresh_token(wait.thread)
                .map_err(Failure::not_sent)?
                .into(),
        };
        Ok(Arc::clone(self.token.insert(token)))
    }

    /// What the next attempt asks for.
    fn wanted(&self) -> Wanted<'_> {
        let key = self.context.wait.key;
        Wanted {
            key: key.in_redis(),
            goal: match key.slots() {
                [] => Goal::Key,
                slots => Goal::Slot {
                    slots,
                    gate: key.gate().map(Key::in_redis),
                    mine: self.context.gate.unwrap_or_default(),
                },
            },
            token: self.token.as_deref().unwrap_or_default(),
            lease: self.context.lease.millis(),
            counter: self.counter.as_deref(),
        }
    }

    /// Asks who has the lock, without asking for the lock. Redis has said before that it is busy,
    /// and only the name is wanted. So the answer is "busy" even if the key is gone by now.
    fn look(&mut self) -> Result<Answer, Failure> {
        let AcquireContext { core, wait, .. } = self.context;
        let key = wait.key.in_redis();
        let deadline = wait.patience.deadline;
        let mut connection = core.store.checkout(key, deadline)?;
        let sent = Moment::now();
        Ok(match connection.look(key, None, deadline)? {
            Seen::Nothing => Answer::Busy {
                holder: None,
                tracked: false,
                sent,
            },
            Seen::Somebody(holder) if self.token.as_deref() == Some(&holder.raw) => {
                return Err(self.refused_and_stored());
            }
            Seen::Somebody(holder) => Answer::Busy {
                holder: Some(holder),
                tracked: false,
                sent,
            },
            Seen::NotAString => Answer::NotAString,
        })
    }

    /// Redis refused each `SET` of the token, but the key holds it, and no thread knows since when.
    /// The next attempt deletes the key.
    fn refused_and_stored(&mut self) -> Failure {
        self.give_up();
        unanswered("the key holds the token, though Redis refused its `SET`")
    }

    /// Handles the answer that Redis has stored the token. The command was sent at `sent`.
    fn taken(
        &mut self,
        connection: Connection<'_>,
        number: Option<u64>,
        sent: Moment,
    ) -> Result<Answer, Failure> {
        let AcquireContext { wait, lease, .. } = self.context;
        let answered = Moment::now();
        let Some(token) = self.token.take_if(|_| answered < lease.valid_until(sent)) else {
            warn!(
                target: "relatch::acquire",
                "the answer for lock {:?} came after the lease, so the lock is not taken", wait.key.name()
            );
            return Err(self.too_late(connection));
        };
        Ok(Answer::Taken(Taken {
            token,
            number,
            at: AcquiredAt { sent, answered },
        }))
    }

    /// Removes a token whose `SET` was answered after the lease was over. Even if the removal gets
    /// no answer, Redis executes it before any later command on this connection.
    fn too_late(&mut self, mut connection: Connection<'_>) -> Failure {
        let AcquireContext { keeper, wait, .. } = self.context;
        let token = self.token.as_deref().unwrap_or_default();
        let removed = connection.remove(&wait.key.places(), token, wait.patience.deadline);
        if let Err(failure) = removed {
            self.give_up();
            return failure;
        }
        keeper.gone(token);
        self.given_up = self.token.take();
        unanswered("the answer came after the lease, which is shorter than a round trip now")
    }

    /// Gives up the token if Redis may have executed its `SET`, or may still do so.
    fn note_lost_answer(&mut self, connection: Connection<'_>, failure: &Failure) {
        if let (Failure::Unanswered { link_stands, .. }, Some(token)) = (failure, &self.token) {
            if *link_stands {
                connection.abandon(&self.context.wait.key.places(), token);
            }
            self.give_up();
        }
    }

    /// Never uses the token again. Redis may hold it now or later, so the keeper has to delete it.
    fn give_up(&mut self) {
        let AcquireContext {
            keeper,
            wait,
            lease,
            ..
        } = self.context;
        if let Some(token) = self.token.take() {
            let orphan = Orphan::of_claim(wait.key, lease, true);
            keeper.give_up(&token, orphan, Moment::now());
            self.given_up = Some(token);
        }
    }
}

fn unanswered(cause: &'static str) -> Failure {
    Failure::Unanswered {
        link_stands: true,
        cause: cause.into(),
    }
}
