//! What the answer of a compare-and-delete or a compare-and-extend says of a hold.

use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::Hold;
use crate::options::Lease;
use crate::store::Compared;

/// Redis is the judge of a release. *Removed* means that the token stood there until that moment, so nobody else held the
/// lock meanwhile, whatever the local clock thought. *Not there* as the first answer means lost. After an answer
/// that was lost (`maybe_done`) it may as well mean that the first try worked: then it counts as released, if the hold was
/// still valid when the release was first sent.
pub(crate) fn on_release(
    hold: &Hold,
    compared: Compared,
    was_valid: bool,
    maybe_done: bool,
) -> Result<(), Error> {
    match compared {
        Compared::Done => Ok(()),
        Compared::Absent | Compared::NotOurs if maybe_done && was_valid => Ok(()),
        // Perhaps the next one's token, which went out with the first try.
        Compared::NotOurs if maybe_done => Err(hold.lose(LostCause::Expired)),
        Compared::Absent if was_valid => Err(hold.lose(LostCause::Deleted)),
        Compared::Absent => Err(hold.lose(LostCause::Expired)),
        Compared::NotOurs => Err(hold.lose(LostCause::Taken)),
    }
}

/// Takes in what Redis said to a renewal that was sent at `sent`: false where the hold is lost.
pub(crate) fn on_renewal(hold: &Hold, lease: Lease, sent: Moment, compared: Compared) -> bool {
    let now = Moment::now();
    match compared {
        Compared::Done => hold.renewed(lease, sent, now).is_ok(),
        Compared::Absent if hold.is_valid(now) => {
            hold.lose(LostCause::Deleted);
            false
        }
        Compared::Absent => {
            hold.lose(LostCause::Expired);
            false
        }
        Compared::NotOurs => {
            hold.lose(LostCause::Taken);
            false
        }
    }
}
