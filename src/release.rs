//! Giving a lock back: compare and delete, and what its answers mean.

use std::thread;
use std::time::Duration;

use log::{debug, warn};

use crate::backoff::Backoff;
use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::Hold;
use crate::store::{Compared, Store, Trouble};
use crate::verdict::{self, Release};
use crate::wish::{Handed, Wish};

/// What came of a release.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) released: Result<(), Error>,
    /// What came of the wish.
    pub(crate) handed: Handed,
    /// Redis did not say what became of the key: it may stand there yet.
    pub(crate) silent: bool,
}

/// Releases a hold in Redis, within `limit`; it could be trusted until `valid_until`, if it still
/// could when it was closed. A `wish` goes out behind it, for the next thread of this process, and
/// comes back as what became of it.
///
/// After an answer that was lost it is tried again, over another connection.
pub(crate) fn release(
    store: &Store,
    hold: &Hold,
    valid_until: Option<Moment>,
    limit: Duration,
    wish: Option<&Wish>,
) -> Answer {
    let deadline = Moment::now().after(limit);
    let mut backoff = Backoff::for_trouble();
    let mut maybe_done = false;
    let mut handed = Handed::Nothing;
    loop {
        // Whoever was sent for once is not sent for again: the first time may still come.
        let wish = wish.filter(|_| handed == Handed::Nothing);
        let trouble = match remove(store, hold, wish, &mut handed, deadline) {
            Ok(compared) => {
                let release = Release { valid_until, answered: Moment::now(), maybe_done };
                let released = verdict::on_release(hold, compared, release);
                return Answer { released, handed, silent: false };
            }
            Err(trouble) => trouble,
        };
        debug!(target: "relatch::release", "releasing lock {:?}: {trouble:?}", hold.key().name());
        let at_once = !maybe_done && matches!(trouble, Trouble::Unanswered { .. });
        maybe_done |= matches!(trouble, Trouble::Unanswered { .. });
        let pause = if at_once { Duration::ZERO } else { backoff.pause() };
        if !trouble.can_pass() || Moment::now().after(pause) >= deadline {
            let released = Err(unconfirmed(hold, valid_until.is_some(), trouble));
            return Answer { released, handed, silent: true };
        }
        thread::sleep(pause);
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
    let at_most = hold.gone_in(Moment::now());
    let name = hold.key().name();
    warn!(target: "relatch::release", "the release of lock {name:?} is not confirmed, its key may stand for up to {at_most:.1?}");
    Error::Unconfirmed { key: name.to_string(), at_most, source: trouble.into_cause() }
}
