//! Giving a lock back: compare and delete, and what its answers mean.

use std::thread;
use std::time::Duration;

use log::{debug, warn};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::Hold;
use crate::line::{Handed, Wish};
use crate::store::{Compared, Store, Trouble};

/// Releases a hold in Redis, within `limit`; `was_valid` says whether it could be trusted until now. A `wish` goes out
/// behind it, for the next thread of this process, and comes back as what became of it.
///
/// Redis is the judge. *Removed* means that the token stood there until that moment, so nobody else held the
/// lock meanwhile, whatever the local clock thought. *Not there* as the first answer means lost. After an answer
/// that was lost it may as well mean that the first try worked: then it counts as released, if the hold was
/// still valid when the release was first sent.
pub(crate) fn release(
    store: &Store,
    hold: &Hold,
    was_valid: bool,
    limit: Duration,
    wish: Option<&Wish>,
) -> (Result<(), Error>, Handed) {
    let deadline = Moment::now().after(limit);
    let mut backoff = Backoff::for_trouble();
    let mut maybe_done = false;
    let mut handed = Handed::Nothing;
    loop {
        // Whoever was sent for once is not sent for again: the first time may still come.
        let wish = wish.filter(|_| handed == Handed::Nothing);
        let trouble = match remove(store, hold, wish, &mut handed, deadline) {
            Ok(compared) => return (judge(hold, compared, was_valid, maybe_done), handed),
            Err(trouble) => trouble,
        };
        debug!(target: "relatch::release", "releasing lock {:?}: {trouble:?}", hold.key().name());
        let at_once = !maybe_done && matches!(trouble, Trouble::Unanswered { .. });
        maybe_done |= matches!(trouble, Trouble::Unanswered { .. });
        let pause = if at_once { Duration::ZERO } else { backoff.pause() };
        if !trouble.can_pass() || Moment::now().after(pause) >= deadline {
            return (Err(unconfirmed(hold, was_valid, trouble)), handed);
        }
        thread::sleep(pause);
    }
}

fn judge(hold: &Hold, compared: Compared, was_valid: bool, maybe_done: bool) -> Result<(), Error> {
    match compared {
        Compared::Done => Ok(()),
        Compared::Absent | Compared::NotOurs if maybe_done && was_valid => Ok(()),
        Compared::Absent if was_valid => Err(hold.lose(LostCause::Deleted)),
        Compared::Absent => Err(hold.lose(LostCause::Expired)),
        Compared::NotOurs => Err(hold.lose(LostCause::Taken)),
    }
}

/// One try. Redis executes the removal first, so a wish that was taken was taken after it.
fn remove(
    store: &Store,
    hold: &Hold,
    wish: Option<&Wish>,
    handed: &mut Handed,
    deadline: Moment,
) -> Result<Compared, Trouble> {
    let mut connection = store.checkout(deadline)?;
    let (key, token) = (hold.key().in_redis(), hold.token());
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
            if matches!(trouble, Trouble::Unanswered { .. }) {
                *handed = Handed::Astray { sent };
            }
            Err(trouble)
        }
    }
}

/// No answer. A hold that had run out by its clock cannot claim to have been kept; a valid one was.
fn unconfirmed(hold: &Hold, was_valid: bool, trouble: Trouble) -> Error {
    if !was_valid {
        return hold.lose(LostCause::Expired);
    }
    let at_most = hold.gone_in(Moment::now());
    let name = hold.key().name();
    warn!(target: "relatch::release", "the release of lock {name:?} is not confirmed, its key may stand for up to {at_most:.1?}");
    Error::Unconfirmed { key: name.to_string(), at_most, source: trouble.into_cause() }
}
