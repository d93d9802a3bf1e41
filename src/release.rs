//! Giving a lock back: the order of its steps, compare and delete, and what its answers mean.

use std::time::Duration;

use log::{debug, warn};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::Hold;
use crate::keeper::Keeper;
use crate::options::HandOn;
use crate::owed::Leftover;
use crate::queue::Turn;
use crate::store::{Compared, Store, Trouble};
use crate::sync::thread;
use crate::verdict::{self, Release};
use crate::waiter::{Handed, Wish};

/// Gives a lock back: first for this process, whatever follows, then in Redis, which is asked by `ask`; and last the turn goes on,
/// with what became of the next one's wish. Takes `limit` at most.
pub(crate) fn give_back(
    keeper: &Keeper,
    hold: &Hold,
    turn: Turn,
    hand_on: &HandOn,
    limit: Duration,
    ask: impl FnMut(Option<&Wish>, &mut Handed, Moment) -> Result<Compared, Trouble>,
) -> Result<(), Error> {
    let next = turn.hand_on(hand_on, Moment::now().after(limit));
    let now = Moment::now();
    let valid_until = keeper.work.lock().leases.close(hold, now);
    keeper.counters.time_held.add(now.since(hold.since.answered));
    let mut handed = Handed::Nothing;
    let wish = next.as_ref().map(|next| &next.wish);
    let (released, silent) = release(hold, valid_until, now.after(limit), wish, &mut handed, ask);
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
        keeper.listener.calls.call(hold.key.in_redis().as_bytes());
    }
    if let Some((Wish { token, lease }, stray)) = next.and_then(|next| turn.settle(&next, handed)) {
        let (redis_key, gone_by) = (hold.key.in_redis().to_owned(), lease.gone_by(Moment::now()));
        keeper.owe(Leftover { redis_key, token, gone_by, stray });
    }
    released
}

/// Has the keeper delete what a hold may have left in Redis. (A renewal that is late may add a lease.)
pub(crate) fn owe(keeper: &Keeper, hold: &Hold) {
    let (redis_key, token) = (hold.key.in_redis().to_owned(), hold.token.clone());
    let gone_by = hold.lease().gone_by(hold.gone_by());
    keeper.owe(Leftover { redis_key, token, gone_by, stray: false });
}

/// Asks Redis until it answers, or the deadline; after a lost answer, over another connection. What
/// came of it, and whether the key may stand there yet, since Redis did not say.
fn release(
    hold: &Hold,
    valid_until: Option<Moment>,
    deadline: Moment,
    wish: Option<&Wish>,
    handed: &mut Handed,
    mut ask: impl FnMut(Option<&Wish>, &mut Handed, Moment) -> Result<Compared, Trouble>,
) -> (Result<(), Error>, bool) {
    let mut backoff = Backoff::for_trouble();
    let mut maybe_done = false;
    loop {
        // Whoever was sent for once is not sent for again: the first time may still come.
        let wish = wish.filter(|_| *handed == Handed::Nothing);
        let trouble = match ask(wish, handed, deadline) {
            Ok(compared) => {
                let release = Release { valid_until, answered: Moment::now(), maybe_done };
                return (verdict::on_release(hold, compared, release), false);
            }
            Err(trouble) => trouble,
        };
        debug!(target: "relatch::release", "releasing lock {:?}: {trouble:?}", hold.key.name());
        let at_once = !maybe_done && matches!(trouble, Trouble::Unanswered { .. });
        maybe_done |= matches!(trouble, Trouble::Unanswered { .. });
        let pause = if at_once { Duration::ZERO } else { backoff.pause() };
        if !trouble.can_pass() || Moment::now().after(pause) >= deadline {
            return (Err(unconfirmed(hold, valid_until.is_some(), trouble)), true);
        }
        thread::sleep(pause);
    }
}

/// One try: compare and delete. A `wish` goes out behind it, for the next thread of this process, and comes back as what became of
/// it: Redis executes the removal first, so a wish that was taken was taken after it.
pub(crate) fn remove(
    store: &Store,
    hold: &Hold,
    wish: Option<&Wish>,
    handed: &mut Handed,
    deadline: Moment,
) -> Result<Compared, Trouble> {
    let mut connection = store.checkout(deadline)?;
    let (key, token) = (hold.key.in_redis(), &hold.token);
    let Some(wish) = wish else {
        return connection.remove(key, token, deadline);
    };
    let sent = Moment::now();
    match connection.remove_and_claim(key, token, (&wish.token, wish.lease.millis()), deadline) {
        Ok((removed, taken)) => {
            if taken {
                *handed = Handed::Taken { sent, answered: Moment::now() };
            }
            removed
        }
        Err(trouble) => {
            if let Trouble::Unanswered { link_stands, .. } = trouble {
                if link_stands {
                    // It may yet be executed: so its removal goes behind it, on the same connection.
                    connection.abandon(key, &wish.token);
                }
                *handed = Handed::Spoilt { sent };
            }
            Err(trouble)
        }
    }
}

/// No answer. A hold that had run out by its clock, or was found lost, cannot claim to have been
/// kept; a valid one was.
fn unconfirmed(hold: &Hold, was_valid: bool, trouble: Trouble) -> Error {
    if !was_valid || hold.lost().is_some() {
        return hold.lose(LostCause::Expired);
    }
    let at_most = hold.gone_by().since(Moment::now());
    let name = hold.key.name();
    warn!(target: "relatch::release", "the release of lock {name:?} is not confirmed, its key may stand for up to {at_most:.1?}");
    Error::Unconfirmed { key: name.to_string(), at_most, source: trouble.into_cause() }
}
