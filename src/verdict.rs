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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::hold::tests::sample;
    use crate::leases::Leases;

    const START: Moment = Moment::from_nanos(1_000_000_000);

    fn after(millis: u64) -> Moment {
        START.after(Duration::from_millis(millis))
    }

    fn hold() -> Arc<Hold> {
        Arc::new(sample("a", Duration::from_millis(300), START))
    }

    fn entered(hold: &Arc<Hold>) -> Leases {
        let mut leases = Leases::default();
        leases.enter(Arc::clone(hold), false, START);
        leases
    }

    /// A Redis of one key, which has no lease once it is deleted.
    #[derive(Default)]
    struct Key {
        token: Option<&'static str>,
        pushes: u32,
    }

    /// The keeper renews while the holder releases, in every order that the scheduler can think of.
    #[test]
    fn nothing_is_renewed_after_the_release_has_returned_nor_lost_by_it() {
        use shuttle::sync::Mutex;
        use shuttle::thread;

        shuttle::check_random(
            || {
                let hold = hold();
                let leases = Arc::new(Mutex::new(entered(&hold)));
                let redis = Arc::new(Mutex::new(Key { token: Some("ours"), pushes: 0 }));
                let keeper = thread::spawn({
                    let (hold, leases, redis) = (Arc::clone(&hold), Arc::clone(&leases), Arc::clone(&redis));
                    move || {
                        for now in [after(100), after(200)] {
                            let due = leases.lock().unwrap().take_due(now);
                            for hold in due.renew {
                                let stood = {
                                    let mut key = redis.lock().unwrap();
                                    let stood = key.token == Some("ours");
                                    key.pushes += u32::from(stood);
                                    stood
                                };
                                let mut leases = leases.lock().unwrap();
                                if !leases.has(&hold) {
                                    continue;
                                }
                                if stood {
                                    hold.renewed(hold.lease(), now, now).unwrap();
                                    leases.renewed(&hold, false, now);
                                } else {
                                    hold.lose(LostCause::Deleted);
                                }
                            }
                        }
                        assert!(!hold.is_valid(after(200)) || hold.lost().is_none());
                    }
                });
                leases.lock().unwrap().remove(&hold);
                hold.close();
                let pushed = {
                    let mut key = redis.lock().unwrap();
                    key.token = None;
                    key.pushes
                };
                hold.release();
                assert!(!hold.is_valid(START));
                keeper.join().unwrap();
                assert_eq!(redis.lock().unwrap().pushes, pushed, "a lease was pushed out after its release");
                assert!(!hold.is_valid(START), "a released hold came back");
                assert_eq!(hold.lost(), None, "its own release was taken for a loss");
            },
            2_000,
        );
    }
}
