//! What the keeper has to say to Redis: leases to push out, keys to delete.
//!
//! All of it goes over one connection of its own, so that answers are taken in in the order of their
//! sends. Where that broke, Redis may execute an earlier command behind a later one: `renew.lua`
//! never cuts a lease short, so that ends no hold that is trusted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use log::debug;

use crate::base::clock::Moment;
use crate::base::error::LostCause;
use crate::base::options::Lease;
use crate::hold::Hold;
use crate::keeping::orphans::OrphanKey;
use crate::keeping::shared::{Ask, Shared};
use crate::store::{Compared, Connection, Extension, Failure};

/// With less than this left, one try gets all of it.
const LAST_TRY: Duration = Duration::from_millis(20);

/// With less than this, an open connection is of no use either.
const ONE_TRIP: Duration = Duration::from_millis(1);

/// A try is given this long, even where a hold that it is not about ends meanwhile.
const FAIR_TRY: Duration = Duration::from_millis(250);

/// The keeper's way to Redis.
pub(crate) struct KeeperConnection<'a> {
    pub(crate) shared: &'a Shared,
    /// Open from the first time that it is used until it fails.
    pub(crate) wire: Option<Connection<'a>>,
}

impl<'a> KeeperConnection<'a> {
    /// Pushes out what is waited for, all of it in one round trip.
    ///
    /// The connection may have gone stale, or a hold that is about to end have left the others
    /// little time: so there is a second try, for those that still have time. (A lease may be pushed
    /// out twice then.)
    pub(crate) fn push_asked(&mut self, mut asked: Vec<Ask>) {
        for last in [false, true] {
            asked.retain(|ask| ask.time_left() > Duration::ZERO);
            let holds: Vec<_> = asked.iter().map(|ask| Arc::clone(&ask.hold)).collect();
            let pushed = self.push(&holds);
            let fair = asked.iter().map(Ask::time_left).max().unwrap_or_default().min(FAIR_TRY) / 2;
            let again = |ask: &mut Ask| pushed.is_err() && !last && ask.time_left() >= fair;
            for ask in asked.extract_if(.., |ask| !again(ask)) {
                let failure = match &pushed {
                    Ok(refused) => refused.get(&ask.hold.number),
                    Err(failure) => Some(failure),
                };
                // Nobody is left to hear it where the deadline came first.
                let _ = ask.answer.send(failure.map_or(Ok(()), |failure| Err(failure.retold())));
            }
        }
    }

    /// Pushes leases out in one round trip: what was refused, by the number of the hold; or why there is no answer to any.
    pub(crate) fn push(&mut self, holds: &[Arc<Hold>]) -> Result<HashMap<u64, Failure>, Failure> {
        let listener = &self.shared.listener;
        if !holds.is_empty() {
            // What lives to be renewed is worth being told of at once when it is lost.
            listener.start();
        }
        push(
            self.shared,
            holds,
            || listener.number(),
            |extensions, number, deadline| {
                let (sent, (answers, watch)) = self.over_wire(deadline, |connection| {
                    let sent = Moment::now();
                    connection.extend_all(extensions, number, deadline).map(|answers| (sent, answers))
                })?;
                if let Some(number) = number {
                    listener.will_hear(number, watch);
                }
                Ok((sent, answers))
            },
        )
    }

    /// Deletes what unanswered releases may have left, in one round trip: false where there was no
    /// answer, or no time for it. All of it is sent again then: these tokens are not used again, so
    /// a removal that is executed twice, or late, finds nothing.
    pub(crate) fn clean_up(&mut self, orphans: &[OrphanKey]) -> bool {
        let now = Moment::now();
        // Not at the cost of those who hold something: they have to be renewed, or told when it ends.
        let left = self.shared.work.lock().leases.first_end().since(now) / 5 * 4;
        let least = if self.wire.is_some() { ONE_TRIP } else { LAST_TRY };
        if left < least {
            return false;
        }
        let deadline = now.after(self.shared.response_timeout.min(left));
        let removals: Vec<_> = orphans.iter().map(|it| (&*it.redis_key, &*it.token)).collect();
        let answers = self.over_wire(deadline, |connection| connection.remove_all(&removals, deadline));
        for (n, orphan) in orphans.iter().enumerate() {
            match answers.as_ref().and_then(|answers| answers[n].as_ref()) {
                Ok(compared) => {
                    self.shared.work.lock().leases.orphans.settle(orphan, Moment::now());
                    let done = *compared == Compared::Done || !orphan.stray;
                    self.shared.counters.late_releases.add(u64::from(done));
                }
                Err(failure) => {
                    debug!(target: "relatch::release",
                        "a late release of {:?}: {failure:?}, trying again while its lease lasts", orphan.redis_key);
                }
            }
        }
        answers.is_ok()
    }

    /// Uses the keeper's own connection, opening it where need be; one that failed is not used again.
    ///
    /// A connection that was used before may be dead, though Redis is well: it gets half of the
    /// time, and the other half is left for another try over a fresh one.
    fn over_wire<T>(
        &mut self,
        deadline: Moment,
        exchange: impl FnOnce(&mut Connection<'a>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let (mut connection, is_used) = match self.wire.take() {
            Some(mut connection) => {
                connection.doubt();
                (connection, true)
            }
            None => (self.shared.store.connect(deadline)?, false),
        };
        let result = exchange(&mut connection);
        if !connection.is_over() {
            self.wire = Some(connection);
        } else if is_used {
            self.lost_sight();
        }
        result
    }

    /// Looks, without waiting, whether Redis has closed the connection meanwhile.
    pub(crate) fn look_at_wire(&mut self) {
        if self.wire.as_mut().is_some_and(Connection::has_ended) {
            self.wire = None;
            self.lost_sight();
        }
    }

    /// The connection is gone over which Redis was asked to tell of changes, and it may have missed
    /// some: so every hold that was renewed is looked at again.
    fn lost_sight(&self) {
        self.shared.work.lock().leases.anything_changed(Moment::now());
    }
}

/// The steps of [`KeeperConnection::push`], where `ask` is what asks Redis: when it was sent, and what came of it. `number` is whom Redis is to
/// tell of changes.
pub(crate) fn push<'h>(
    shared: &Shared,
    holds: &'h [Arc<Hold>],
    number: impl FnOnce() -> Option<u64>,
    ask: impl FnOnce(
        &[Extension<'_>],
        Option<u64>,
        Moment,
    ) -> Result<(Moment, Vec<Result<Compared, Failure>>), Failure>,
) -> Result<HashMap<u64, Failure>, Failure> {
    let mut refused = HashMap::new();
    let mut work = shared.work.lock();
    // Not what was released since it fell due.
    let holds: Vec<_> = holds.iter().filter(|hold| work.leases.has(hold)).collect();
    if holds.is_empty() {
        return Ok(refused);
    }
    let deadline = deadline(shared.response_timeout, &holds, work.leases.first_end());
    // Not sooner: whoever begins to listen after this says so after it was noted that these are sent.
    let number = number();
    let sending = |hold: &&'h Arc<Hold>| {
        let lease = hold.lease();
        hold.renewing(lease, Moment::now(), deadline);
        work.leases.sending(hold, number.is_some(), Moment::now());
        Extension { key: hold.key.in_redis(), token: &hold.token, lease: lease.millis() }
    };
    let extensions: Vec<_> = holds.iter().map(sending).collect();
    drop(work);
    let (sent, answers) = ask(&extensions, number, deadline)?;
    let mut lost = Vec::new();
    let mut work = shared.work.lock();
    for ((hold, extension), answer) in holds.into_iter().zip(extensions).zip(answers) {
        match answer {
            // Released since, or about to be: what Redis says is about the release.
            _ if !work.leases.has(hold) => {}
            Ok(compared) => {
                let lease = Lease::from_millis(extension.lease);
                if on_renewal(hold, lease, sent, compared) {
                    shared.counters.renewed.add(1);
                    work.leases.renewed(hold, shared.notifier.is_some(), sent);
                } else {
                    work.leases.lost(hold);
                    lost.push(hold);
                }
            }
            Err(failure) => _ = refused.insert(hold.number, failure),
        }
    }
    drop(work);
    for hold in lost {
        shared.tell(hold);
    }
    Ok(refused)
}

/// Until when to wait for an answer about these holds: for four fifths of what is left of the first
/// to end, so that there is time for another try, and never past its end, when its loss is to be
/// told. That of others is told in time too, but not at the cost of these.
fn deadline(limit: Duration, holds: &[&Arc<Hold>], first_end: Moment) -> Moment {
    let now = Moment::now();
    let ends = holds.iter().map(|hold| hold.valid_until()).filter(|end| *end > Moment::PAST);
    let left = ends.min().unwrap_or(Moment::NEVER).since(now);
    let share = if left > LAST_TRY { left / 5 * 4 } else { left };
    now.after(limit.min(share).min(first_end.since(now).max(FAIR_TRY)))
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
    hold.mark_token_gone();
    hold.lose(cause);
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::LostCause::{Deleted, Expired, Taken};
    use crate::hold::tests::sample;

    const LEASE: Duration = Duration::from_secs(1);
    const ALL: [Compared; 3] = [Compared::Done, Compared::Absent, Compared::NotOurs];

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
            for (sent, registration) in [(now, valid), (long_ago, over)] {
                let hold = sample("a", LEASE, sent);
                let lease = Lease::new(60 * LEASE);
                let goes_on = on_renewal(&hold, lease, now, compared);
                assert_eq!((goes_on, hold.lost()), registration, "{compared:?} at {sent:?}");
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
                    None => hold.mark_released(),
                }
                assert!(!on_renewal(&hold, Lease::new(LEASE), now, compared), "{compared:?}");
                assert_eq!((hold.lost(), hold.is_valid(now)), (lost, false), "{compared:?}");
            }
        }
    }
}
