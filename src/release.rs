//! Giving a lock back: the order of its steps, compare and delete, and what its answers mean.

use std::time::Duration;

use log::{debug, warn};

use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::error::{Error, LostCause};
use crate::base::sync::thread;
use crate::hold::Hold;
use crate::keeping::keeper::Keeper;
use crate::keeping::orphans::OrphanKey;
use crate::store::{Compared, Failure, Store};
use crate::waiting::queues::Turn;
use crate::waiting::waiter::{Claim, HandoffOutcome};

/// Gives a lock back: first for this process, whatever follows, then in Redis, which is asked by `ask`; and last the turn goes on,
/// with what became of the next one's wish. Takes `limit` at most.
pub(crate) fn give_back(
    keeper: &Keeper,
    hold: &Hold,
    turn: Turn,
    local_handoff: Duration,
    limit: Duration,
    ask: impl FnMut(Option<&Claim>, &mut HandoffOutcome, Moment) -> Result<Compared, Failure>,
) -> Result<(), Error> {
    let next = turn.hand_on(local_handoff, Moment::now().after(limit));
    let now = Moment::now();
    let valid_until = keeper.work.lock().leases.close(hold, now);
    keeper.counters.time_held.add(now.since(hold.acquired.answered));
    let mut handed = HandoffOutcome::Nothing;
    let claim = next.as_ref().map(|next| &next.claim);
    let (released, silent) = release(hold, valid_until, now.after(limit), claim, &mut handed, ask);
    let maybe_there = match &released {
        Ok(()) | Err(Error::Unconfirmed { .. }) => {
            hold.release();
            silent
        }
        Err(error) => {
            keeper.tell(hold);
            // A renewal without an answer may have pushed out what nobody believes in any more. And what was gone may be
            // there again.
            silent || matches!(error, Error::Lost { cause: LostCause::Expired, .. }) && hold.gone_by() > now
        }
    };
    if maybe_there {
        owe(keeper, hold);
    }
    if valid_until.is_none() {
        // Whoever passed it by may have asked over the same connection, and Redis does not tell of what was done there.
        keeper.listener.wakeups.wake(hold.key.in_redis().as_bytes());
    }
    if let Some((Claim { token, lease }, stray)) = next.and_then(|next| turn.settle(&next, handed)) {
        let (redis_key, gone_by) = (hold.key.in_redis().to_owned(), lease.gone_by(Moment::now()));
        keeper.owe(OrphanKey { redis_key, token, gone_by, stray });
    }
    released
}

/// Has the keeper delete what a hold may have left in Redis. (A renewal that is late may add a lease.)
pub(crate) fn owe(keeper: &Keeper, hold: &Hold) {
    let (redis_key, token) = (hold.key.in_redis().to_owned(), hold.token.clone());
    let gone_by = hold.lease().gone_by(hold.gone_by());
    keeper.owe(OrphanKey { redis_key, token, gone_by, stray: false });
}

/// Asks Redis until it answers, or the deadline; after a lost answer, over another connection. What
/// came of it, and whether the key may stand there yet, since Redis did not say.
fn release(
    hold: &Hold,
    valid_until: Option<Moment>,
    deadline: Moment,
    claim: Option<&Claim>,
    handed: &mut HandoffOutcome,
    mut ask: impl FnMut(Option<&Claim>, &mut HandoffOutcome, Moment) -> Result<Compared, Failure>,
) -> (Result<(), Error>, bool) {
    let mut backoff = Backoff::after_failure();
    let mut maybe_done = false;
    loop {
        // Whoever was sent for once is not sent for again: the first time may still come.
        let claim = claim.filter(|_| *handed == HandoffOutcome::Nothing);
        let failure = match ask(claim, handed, deadline) {
            Ok(compared) => {
                let release = Release { valid_until, answered: Moment::now(), maybe_done };
                return (on_release(hold, compared, release), false);
            }
            Err(failure) => failure,
        };
        debug!(target: "relatch::release", "releasing lock {:?}: {failure:?}", hold.key.name());
        let at_once = !maybe_done && matches!(failure, Failure::Unanswered { .. });
        maybe_done |= matches!(failure, Failure::Unanswered { .. });
        let pause = if at_once { Duration::ZERO } else { backoff.pause() };
        if !failure.can_pass() || Moment::now().after(pause) >= deadline {
            return (Err(unconfirmed(hold, valid_until.is_some(), failure)), true);
        }
        thread::sleep(pause);
    }
}

/// One try: compare and delete. A `wish` goes out behind it, for the next thread of this process, and comes back as what became of
/// it: Redis executes the removal first, so a wish that was taken was taken after it.
pub(crate) fn remove(
    store: &Store,
    hold: &Hold,
    claim: Option<&Claim>,
    handed: &mut HandoffOutcome,
    deadline: Moment,
) -> Result<Compared, Failure> {
    let mut connection = store.checkout(deadline)?;
    let (key, token) = (hold.key.in_redis(), &hold.token);
    let Some(claim) = claim else {
        return connection.remove(key, token, deadline);
    };
    let sent = Moment::now();
    match connection.remove_and_claim(key, token, (&claim.token, claim.lease.millis()), deadline) {
        Ok((removed, taken)) => {
            if taken {
                *handed = HandoffOutcome::Taken { sent, answered: Moment::now() };
            }
            removed
        }
        Err(failure) => {
            if let Failure::Unanswered { link_stands, .. } = failure {
                if link_stands {
                    // It may yet be executed: so its removal goes behind it, on the same connection.
                    connection.abandon(key, &claim.token);
                }
                *handed = HandoffOutcome::Spoilt { sent };
            }
            Err(failure)
        }
    }
}

/// No answer. A hold that had run out by its clock, or was found lost, cannot claim to have been
/// kept; a valid one was.
fn unconfirmed(hold: &Hold, was_valid: bool, failure: Failure) -> Error {
    if !was_valid || hold.lost().is_some() {
        return hold.lose(LostCause::Expired);
    }
    let at_most = hold.gone_by().since(Moment::now());
    let name = hold.key.name();
    warn!(target: "relatch::release", "the release of lock {name:?} is not confirmed, its key may stand for up to {at_most:.1?}");
    Error::Unconfirmed { key: name.to_string(), at_most, source: failure.into_cause() }
}

/// What is known of a release besides Redis's answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Release {
    /// Until when the hold could be trusted; `None` where it could not be trusted any more when it
    /// was given back.
    pub(crate) valid_until: Option<Moment>,
    pub(crate) answered: Moment,
    /// An earlier try got no answer: it may be the one that removed the key.
    pub(crate) maybe_done: bool,
}

/// Redis is the judge of a release. *Removed* means that the token stood there until that moment,
/// so nobody else held the lock meanwhile, whatever the local clock thought. But where Redis itself
/// has said before that the token was gone, somebody else may have had the lock in between: that
/// stays a loss.
///
/// A key that is absent or another's proves a loss only if the answer came before the hold's own
/// end. Later, the lease may just have run out while the release was on its way, and nobody can
/// know that. After an answer that was lost (`maybe_done`), it may as well mean that the first try
/// worked: then it counts as released.
pub(crate) fn on_release(hold: &Hold, compared: Compared, release: Release) -> Result<(), Error> {
    if hold.is_denied() {
        return Err(hold.lose(LostCause::Expired)); // Where another cause is written down, that one stays.
    }
    let Release { valid_until, answered, maybe_done } = release;
    let cause = match (compared, valid_until) {
        (Compared::Done, _) => return Ok(()),
        (_, Some(until)) if until <= answered => return Err(ran_out_on_the_way(hold)),
        (_, Some(_)) if maybe_done => return Ok(()),
        (Compared::Absent, Some(_)) => LostCause::Deleted,
        (Compared::Absent, None) => LostCause::Expired,
        // Perhaps the next one's token, which went out with the first try.
        (Compared::NotOurs, None) if maybe_done => LostCause::Expired,
        (Compared::NotOurs, _) => LostCause::Taken,
    };
    Err(hold.lose(cause))
}

fn ran_out_on_the_way(hold: &Hold) -> Error {
    let source = "the lease ran out while the release was on its way".into();
    Error::Unconfirmed { key: hold.key.name().to_string(), at_most: Duration::ZERO, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::options::Lease;
    use crate::hold::tests::sample;
    use crate::keeping::renewal::on_renewal;

    const LEASE: Duration = Duration::from_secs(1);
    const ALL: [Compared; 3] = [Compared::Done, Compared::Absent, Compared::NotOurs];

    /// What the caller is told.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Told {
        Released,
        Unconfirmed,
        Lost(LostCause),
    }
    use LostCause::{Deleted, Expired, Taken};
    use Told::{Lost, Released, Unconfirmed};

    fn told(said: &Result<(), Error>) -> Told {
        match said {
            Ok(()) => Released,
            Err(Error::Unconfirmed { at_most, .. }) => {
                assert_eq!(*at_most, Duration::ZERO, "Redis has said that the token is not there");
                Unconfirmed
            }
            Err(Error::Lost { cause, .. }) => Lost(*cause),
            Err(other) => panic!("{other}"),
        }
    }

    /// How the hold stood when it was given back, and when the answer came.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Stood {
        InTime,
        ValidButAnsweredLate,
        Over,
    }
    use Stood::{InTime, Over, ValidButAnsweredLate};

    /// Asks for a verdict on a hold that nobody has found lost, or that was lost before in this
    /// way.
    fn release(compared: Compared, stood: Stood, maybe_done: bool, lost_before: Option<LostCause>) -> Told {
        let sent = Moment::from_nanos(1_000);
        let hold = sample("a", LEASE, sent);
        let end = hold.valid_until();
        if let Some(cause) = lost_before {
            hold.lose(cause);
        }
        let valid_until = hold.close(if stood == Over { end } else { sent });
        // What was lost before cannot be trusted when it is given back, unless that is learned in
        // the very moment.
        let valid_until = valid_until.or((stood != Over).then_some(end));
        let answered = if stood == InTime { Moment::from_nanos(end.as_nanos() - 1) } else { end };
        told(&on_release(&hold, compared, Release { valid_until, answered, maybe_done }))
    }

    #[test]
    fn what_a_release_is_told() {
        let table = [
            // What Redis said, how the hold stood, and what is told: at the first answer, and after
            // an answer was lost.
            (Compared::Done, InTime, [Released, Released]),
            (Compared::Done, ValidButAnsweredLate, [Released, Released]),
            (Compared::Done, Over, [Released, Released]),
            (Compared::Absent, InTime, [Lost(Deleted), Released]),
            (Compared::Absent, ValidButAnsweredLate, [Unconfirmed, Unconfirmed]),
            (Compared::Absent, Over, [Lost(Expired), Lost(Expired)]),
            (Compared::NotOurs, InTime, [Lost(Taken), Released]),
            (Compared::NotOurs, ValidButAnsweredLate, [Unconfirmed, Unconfirmed]),
            (Compared::NotOurs, Over, [Lost(Taken), Lost(Expired)]),
        ];
        for (compared, stood, [first, later]) in table {
            let asked = (compared, stood);
            assert_eq!(release(compared, stood, false, None), first, "{asked:?}");
            assert_eq!(release(compared, stood, true, None), later, "{asked:?}, after an answer was lost");
        }
    }

    #[test]
    fn what_redis_has_denied_once_stays_denied() {
        for compared in ALL {
            for stood in [InTime, ValidButAnsweredLate, Over] {
                for maybe_done in [false, true] {
                    for cause in [Deleted, Taken] {
                        let told = release(compared, stood, maybe_done, Some(cause));
                        assert_eq!(told, Lost(cause), "{compared:?}, {stood:?}, {maybe_done}");
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_renewal_has_denied_after_the_lease_stays_denied() {
        for compared in [Compared::Absent, Compared::NotOurs] {
            let hold = sample("a", LEASE, Moment::from_nanos(1_000));
            assert!(!hold.is_valid(Moment::now()));
            hold.lose(Expired);
            assert!(!on_renewal(&hold, Lease::new(LEASE), Moment::now(), compared));
            let release = Release { valid_until: None, answered: Moment::now(), maybe_done: false };
            assert_eq!(told(&on_release(&hold, Compared::Done, release)), Lost(Expired), "{compared:?}");
        }
    }

    #[test]
    fn what_the_clock_alone_has_denied_may_have_been_released() {
        for maybe_done in [false, true] {
            assert_eq!(release(Compared::Done, Over, maybe_done, Some(Expired)), Released);
            for compared in [Compared::Absent, Compared::NotOurs] {
                // The first cause stays.
                assert_eq!(release(compared, Over, maybe_done, Some(Expired)), Lost(Expired), "{compared:?}");
            }
        }
    }
}
