//! Giving a lock back: compare and delete, and what its answers mean.

use std::thread;
use std::time::Duration;

use log::{debug, warn};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::Hold;
use crate::store::{Compared, Store, Trouble};

/// Releases a hold in Redis, within `limit`; `was_valid` says whether it could be trusted until now.
///
/// Redis is the judge. *Removed* means that the token stood there until that moment, so nobody else held the
/// lock meanwhile, whatever the local clock thought. *Not there* as the first answer means lost. After an answer
/// that was lost it may as well mean that the first try worked: then it counts as released, if the hold was
/// still valid when the release was first sent.
pub(crate) fn release(store: &Store, hold: &Hold, was_valid: bool, limit: Duration) -> Result<(), Error> {
    let deadline = Moment::now().after(limit);
    let mut backoff = Backoff::for_trouble();
    let mut maybe_done = false;
    loop {
        let trouble = match remove(store, hold, deadline) {
            Ok(Compared::Done) => return Ok(()),
            Ok(Compared::Absent | Compared::NotOurs) if maybe_done && was_valid => return Ok(()),
            Ok(Compared::Absent) if was_valid => return Err(hold.lose(LostCause::Deleted)),
            Ok(Compared::Absent) => return Err(hold.lose(LostCause::Expired)),
            Ok(Compared::NotOurs) => return Err(hold.lose(LostCause::Taken)),
            Err(trouble) => trouble,
        };
        debug!(target: "relatch::release", "releasing lock {:?}: {trouble:?}", hold.key().name());
        let at_once = !maybe_done && matches!(trouble, Trouble::Unanswered { .. });
        maybe_done |= matches!(trouble, Trouble::Unanswered { .. });
        let pause = if at_once { Duration::ZERO } else { backoff.pause() };
        if !trouble.can_pass() || Moment::now().after(pause) >= deadline {
            return Err(unconfirmed(hold, was_valid, trouble));
        }
        thread::sleep(pause);
    }
}

fn remove(store: &Store, hold: &Hold, deadline: Moment) -> Result<Compared, Trouble> {
    store.checkout(deadline)?.remove(hold.key().in_redis(), hold.token(), deadline)
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
