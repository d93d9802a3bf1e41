//! Several locks at a time.
//!
//! The locks are taken in the order of their keys, which all programs share. So two callers never
//! each hold what the other waits for. A caller that waits for one of the locks keeps those before
//! it, and holds none behind it.
//!
//! Locks that are free cost one round trip for each node: their `SET`s go out together. If one of
//! them is busy, those behind it are given back, and the caller waits for the busy one as for any
//! lock. The same happens if an answer is lost: the tokens that went out are given up, and the
//! locks are taken one by one.

use std::mem;
use std::rc::Rc;
use std::time::Duration;

use crate::acquire::Taken;
use crate::base::clock::Moment;
use crate::base::emit::debug;
use crate::base::error::Error;
use crate::base::options::Options;
use crate::hold::{AcquiredAt, Hold, Unlocked};
use crate::keeping::orphans::OrphanKey;
use crate::keeping::thread_map::{self, Held, Left};
use crate::release::{self, Begun};
use crate::session::{Asked, Session};
use crate::store::{ClaimReply, Failure, Fate, Wanted};
use crate::waiting::queues::Turn;

/// A lock that is free as far as this process knows.
struct Free {
    asked: Asked,
    turn: Turn,
}

impl Session {
    /// Takes all these locks, or none. The names are sorted, and no two are the same.
    pub(crate) fn enter_all(
        &self,
        names: &[&str],
        options: &Options,
        limit: Option<Duration>,
    ) -> Result<Vec<Rc<Held>>, Error> {
        let (began, mut held) = (Moment::now(), Vec::with_capacity(names.len()));
        let entered = self.enter_each(names, options, limit, &mut held);
        // One of them may have been lost while this thread waited for another one.
        let all = entered.and_then(|()| held.iter().try_for_each(|one| one.hold.check(Moment::now())));
        if let Err(mut error) = all {
            if let Error::Timeout { waited, .. } = &mut error {
                *waited = Moment::now().since(began);
            }
            for result in self.leave_all(&held) {
                if let Err(also) = result {
                    debug!(target: "relatch::release", "giving back what was taken before {error}: {also}");
                }
            }
            return Err(error);
        }
        held.sort_by(|one, other| one.hold.key.name().cmp(other.hold.key.name()));
        Ok(held)
    }

    /// Takes the locks, and adds each to `held` as soon as this thread has it.
    fn enter_each(
        &self,
        names: &[&str],
        options: &Options,
        limit: Option<Duration>,
        held: &mut Vec<Rc<Held>>,
    ) -> Result<(), Error> {
        let began = Moment::now();
        let deadline = self.patience(limit, began).deadline;
        let is_mine = |name: &&&str| thread_map::find(self.id, name).is_some();
        let (mine, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| is_mine(name));
        // What this thread has already comes first: if it is lost, nothing is to be sent.
        for name in mine {
            held.push(self.enter(name.into(), options, limit, None)?);
        }
        let mut rest = &others[..];
        while let Some(name) = rest.first() {
            if limit.is_some_and(|limit| !limit.is_zero() && deadline <= Moment::now()) {
                return Err(out_of_time(name));
            }
            rest = &rest[self.take_free(rest, options, deadline, held)?..];
            if let Some((name, behind)) = rest.split_first() {
                let left = limit.map(|limit| limit.saturating_sub(Moment::now().since(began)));
                held.push(self.enter((*name).into(), options, left, None)?);
                rest = behind;
            }
        }
        Ok(())
    }

    /// Takes as many of these locks as are free, from the first on, in one round trip for each
    /// node. Returns their number.
    fn take_free(
        &self,
        names: &[&str],
        options: &Options,
        deadline: Moment,
        held: &mut Vec<Rc<Held>>,
    ) -> Result<usize, Error> {
        // With replicas, each lock has to be acknowledged before it counts.
        if names.len() < 2 || self.settings.replicas.is_some() {
            return Ok(0);
        }
        let began = Moment::now();
        let pid = self.own_process(began)?;
        self.may_take(names[0], options, None, began)?;
        let mut free = Vec::new();
        for name in names {
            let asked = self.ask_for((*name).into(), options, pid)?;
            let mut own = None;
            let queue = self.name_in_queue(&asked.key, &mut own);
            let Some(turn) = self.queues.join_alone(queue, true) else { break };
            free.push(Free { asked, turn });
        }
        if free.len() < 2 {
            return Ok(0);
        }
        // The turns are known to a shutdown from here on, so it waits for them. It must not have
        // come before.
        self.may_take(names[0], options, None, began)?;
        let taken = self.claim_free(free, deadline);
        let number = taken.len();
        let mut failed = Ok(());
        for (Free { asked, turn }, fence, at) in taken {
            let Asked { key, owner, claim } = asked;
            let taken = Taken { token: claim.token, fence, at };
            self.counters.taken(at.answered.since(began));
            match self.keep(self.new_hold(key, owner, taken, options), turn) {
                Ok(one) => held.push(one),
                Err(error) => failed = Err(error),
            }
        }
        failed.map(|()| number)
    }

    /// Sends the claims of these locks together. Returns those from the first on that were taken.
    /// The claims behind them are undone.
    fn claim_free(&self, free: Vec<Free>, deadline: Moment) -> Vec<(Free, Option<u64>, AcquiredAt)> {
        for free in &free {
            free.turn.asks(Moment::now());
        }
        let sent = Moment::now();
        let answers = {
            let wanted: Vec<Wanted<'_>> =
                free.iter().map(|it| it.asked.claim.wanted(it.asked.key.in_redis())).collect();
            self.store.claim_all(&wanted, deadline)
        };
        let answered = Moment::now();
        let at = AcquiredAt { sent, answered };
        let (mut taken, mut undone, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for (n, (it, answer)) in free.into_iter().zip(answers).enumerate() {
            let in_time = answered < it.asked.claim.lease.valid_until(sent);
            if answer.is_ok() {
                it.turn.answered();
            }
            match answer {
                // All before it were taken, too.
                Ok(ClaimReply::Taken { fence }) if taken.len() == n && in_time => taken.push((it, fence, at)),
                Ok(ClaimReply::Taken { .. }) => undone.push(it),
                Ok(_) => {}
                Err(failure) => {
                    if self.note_failure(&it, &failure) {
                        unknown.push(it);
                    }
                }
            }
        }
        // If they stayed until the keeper deletes them, the next attempt would find them busy.
        self.undo(&unknown, deadline);
        self.undo(&undone, Moment::now().after(self.settings.response_timeout));
        taken
    }

    /// Deletes locks that this thread may have taken, and will not hold.
    fn undo(&self, undone: &[Free], deadline: Moment) {
        if undone.is_empty() {
            return;
        }
        let removals: Vec<_> =
            undone.iter().map(|it| (it.asked.key.in_redis(), it.asked.claim.token.as_str())).collect();
        let removed = self.store.remove_all(&removals, deadline);
        for (it, removed) in undone.iter().zip(removed) {
            if removed.is_err() {
                self.orphan(&it.asked);
            }
        }
    }

    /// Gives up the token of a claim without an answer: Redis may hold it, or may store it later.
    /// True for such a claim.
    fn note_failure(&self, it: &Free, failure: &Failure) -> bool {
        debug!(target: "relatch::acquire", "taking lock {:?} with others: {failure:?}", it.asked.key.name());
        it.turn.failed(None);
        let is_unknown = matches!(failure.fate(), Fate::Unknown { .. });
        if is_unknown {
            self.orphan(&it.asked);
        }
        is_unknown
    }

    fn orphan(&self, asked: &Asked) {
        let Asked { key, claim, .. } = asked;
        let (redis_key, token) = (key.in_redis().to_owned(), claim.token.clone());
        let gone_by = claim.lease.gone_by(Moment::now());
        self.keeper.delete_later(OrphanKey { redis_key, token, gone_by, may_reappear: true });
    }

    /// Takes one guard off each of these holds, and releases those that have no other, in one round
    /// trip for each node. The results have the order of `held`.
    pub(crate) fn leave_all(&self, held: &[Rc<Held>]) -> Vec<Result<Unlocked, Error>> {
        let limit = self.settings.response_timeout;
        let is_own = self.own_process(Moment::now()).is_ok();
        let mut results: Vec<_> = held.iter().map(|_| None).collect();
        let mut begun: Vec<(usize, &Hold, Begun<'_>)> = Vec::new();
        let mut beside = Vec::new();
        for (n, held) in held.iter().enumerate() {
            results[n] = match held.leave() {
                Left::StillHeld(depth) => Some(Ok(Unlocked::StillHeld { depth })),
                Left::ThreadEnding => Some(self.leave_to_keeper(&held.hold)),
                Left::LastGuard(turn) if !is_own => {
                    mem::forget(turn); // As in `leave`.
                    Some(self.own_process(Moment::now()).map(|_| Unlocked::Released))
                }
                Left::LastGuard(turn) => {
                    let (now, handoff) = (Moment::now(), Some(self.settings.local_handoff()));
                    if held.hold.keep_until() > now {
                        Some(self.give_back(&held.hold, turn, now))
                    } else {
                        beside.extend(self.adoptions.release(&turn));
                        let release = release::begin(&self.keeper, &held.hold, turn, handoff, limit, now);
                        begun.push((n, &held.hold, release));
                        None
                    }
                }
            };
        }
        // A release that hands off has a command of its own.
        let together = begun.iter().filter(|(.., begun)| !begun.hands_off()).map(|(_, hold, _)| *hold);
        let removals: Vec<_> = together.map(|hold| (hold.key.in_redis(), hold.token.as_str())).collect();
        let mut removed = self.store.remove_all(&removals, Moment::now().after(limit)).into_iter();
        for (n, hold, begun) in begun {
            let mut first = if begun.hands_off() { None } else { removed.next() };
            let done = begun.finish(&self.keeper, |claim, handed, deadline| match first.take() {
                // A refusal may be a redirect or a script that is not known: what a command for one
                // key settles.
                Some(answer) if !matches!(answer, Err(Failure::Refused(_))) => answer,
                _ => release::remove(&self.store, hold, claim, handed, deadline),
            });
            results[n] = Some(done.map(|()| Unlocked::Released));
        }
        results.into_iter().flatten().collect()
    }
}

/// The time was over before this lock of several could be asked for.
fn out_of_time(name: &str) -> Error {
    let source = Some("the locks before it took the time".into());
    Error::Timeout { key: name.to_owned(), waited: Duration::ZERO, holder: None, held: Vec::new(), source }
}
