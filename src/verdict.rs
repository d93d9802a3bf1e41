//! What the answer of a compare-and-delete or a compare-and-extend says of a hold.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, LostCause};
use crate::hold::Hold;
use crate::options::Lease;
use crate::store::Compared;

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

/// Takes in what Redis said to a renewal that was sent at `sent`: false where the hold is lost.
pub(crate) fn on_renewal(hold: &Hold, lease: Lease, sent: Moment, compared: Compared) -> bool {
    let now = Moment::now();
    let cause = match compared {
        Compared::Done => return hold.renewed(lease, sent, now).is_ok(),
        Compared::Absent if hold.is_valid(now) => LostCause::Deleted,
        Compared::Absent => LostCause::Expired,
        Compared::NotOurs => LostCause::Taken,
    };
    hold.deny();
    hold.lose(cause);
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::tests::sample;

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

    #[test]
    fn what_a_renewal_says_of_a_hold() {
        let table = [
            // What Redis said; a hold that is valid yet, whether it goes on, and how it was lost;
            // the same of one that ran out.
            (Compared::Done, (true, None), (false, Some(Expired))),
            (Compared::Absent, (false, Some(Deleted)), (false, Some(Expired))),
            (Compared::NotOurs, (false, Some(Taken)), (false, Some(Taken))),
        ];
        for (compared, valid, over) in table {
            let now = Moment::now();
            let long_ago = Moment::from_nanos(now.as_nanos() - 2_000_000_000);
            for (sent, expected) in [(now, valid), (long_ago, over)] {
                let hold = sample("a", LEASE, sent);
                let lease = Lease::new(60 * LEASE);
                let goes_on = on_renewal(&hold, lease, now, compared);
                assert_eq!((goes_on, hold.lost()), expected, "{compared:?} at {sent:?}");
                assert_eq!(hold.is_valid(now.after(30 * LEASE)), goes_on, "{compared:?}: pushed out");
                assert_eq!(hold.renewals(), u32::from(goes_on), "{compared:?}");
            }
        }
    }

    #[test]
    fn no_renewal_is_good_for_what_is_over_or_given_back() {
        let now = Moment::now();
        for compared in ALL {
            for lost in [Some(Deleted), Some(Taken), None] {
                let hold = sample("a", LEASE, now);
                match lost {
                    Some(cause) => _ = hold.lose(cause),
                    None => hold.release(),
                }
                assert!(!on_renewal(&hold, Lease::new(LEASE), now, compared), "{compared:?}");
                assert_eq!((hold.lost(), hold.is_valid(now)), (lost, false), "{compared:?}");
            }
        }
    }
}
