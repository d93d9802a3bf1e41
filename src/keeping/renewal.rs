//! One round of the keeper: it renews leases, deletes orphans, and handles Redis's answers. (In a
//! cluster, each node's thread does that for its node.)
//!
//! The commands are an argument ([`KeeperCommands`]), so unit tests run these steps without a
//! server, and shuttle runs them in many orders.
//!
//! If the keeper's connection has broken, Redis may execute an earlier command after a later one.
//! `renew.lua` never shortens a lease, so a late renewal does not end a hold that its holder still
//! trusts.

use std::iter;
use std::sync::Arc;

use crate::base::clock::Moment;
use crate::base::emit::{debug, warn};
use crate::base::error::LostCause;
use crate::base::options::Lease;
use crate::base::sync::HashMap;
use crate::hold::Hold;
use crate::keeping::connection::{ExtendAnswers, KeeperCommands, is_elsewhere, is_final};
use crate::keeping::due::WorkDue;
use crate::keeping::orphans::Removal;
use crate::keeping::work::Keeper;
use crate::store::{Compared, Extension, Failure};

/// The most leases that are renewed in one round trip: a late answer delays no more than these. A
/// key counts once more for each 256 bytes, so that Redis can answer within the response timeout.
const BATCH: usize = 1000;

/// One round for one node: does what is due. (The keeper's own thread reports the holds that have
/// run out, so a silent node does not delay that.)
pub(crate) fn round(keeper: &Keeper, redis: &mut impl KeeperCommands, work: &WorkDue) {
    let answered = renew_due(keeper, redis, work);
    if !work.remove.is_empty() {
        // Leases are more urgent than orphans, and a Redis that did not answer a renewal will not
        // answer a deletion. Orphans that are left out here come again in a later round.
        if answered && !keeper.is_stopping() {
            remove_orphans(keeper, redis, &work.remove);
        }
    }
}

/// Renews the holds that are due, in batches. False if a batch had no answer.
fn renew_due<'w>(keeper: &Keeper, redis: &mut impl KeeperCommands, work: &'w WorkDue) -> bool {
    let mut answered = true;
    let mut size = 0;
    let has_room = |_: &Arc<Hold>, next: &Arc<Hold>| {
        size += 1 + next.key.in_redis().len() / 256;
        if size >= BATCH {
            size = 0;
        }
        size > 0
    };
    for batch in work.renew.chunk_by(has_room) {
        if keeper.is_stopping() {
            break;
        }
        // This is enough time to open a connection and for one answer, and for another try if a
        // call waits.
        let latest = Moment::now().after(2 * keeper.core.settings.response_timeout);
        let until = work.until.filter(|until| Moment::now() < *until);
        let latest = until.map_or(latest, |until| until.min(latest));
        let failed: Vec<_> = match renew(keeper, redis, batch, latest) {
            Ok(mut refused) => {
                let of_hold = |hold: &'w Arc<Hold>| Some((hold, refused.remove(&hold.number)?));
                batch.iter().filter_map(of_hold).collect()
            }
            Err(failure) => {
                answered = false;
                batch.iter().map(|hold| (hold, failure.copy())).collect()
            }
        };
        not_renewed(keeper, &failed);
    }
    answered
}

/// Makes these holds due again after their pauses, and reports why they were not renewed.
fn not_renewed(keeper: &Keeper, failed: &[(&Arc<Hold>, Failure)]) {
    if failed.is_empty() {
        return;
    }
    let mut work = keeper.work.lock();
    let now = Moment::now();
    let due = failed
        .iter()
        .map(|(hold, failure)| work.tokens.not_renewed(hold, failure, now))
        .min();
    keeper.wake(work, due.unwrap_or(Moment::NEVER));
    keeper.changed.notify_all();
    for (hold, failure) in failed {
        let counters = keeper.core.counters.of(hold.key.name());
        counters.renewal_errors.add(1);
        let it = [hold.key.in_redis(), &*hold.token];
        keeper.report_refusal("renewing", it, failure);
    }
    if let Some((_, failure)) = failed.iter().find(|(_, failure)| failure.can_pass()) {
        let error = keeper.core.store.error(None, "renewing", failure.copy());
        warn!(target: "relatch::keeper",
            "{} leases were not renewed, trying again while they last: {error}", failed.len());
    }
}

/// Redis's refusals, each by the number of its hold.
type Refused = HashMap<u64, Failure>;

/// Renews leases in one round trip, until `latest`. Returns Redis's refusals, each by the number of
/// its hold. If there was no answer at all, returns why.
///
/// The attempt lasts until the last of these holds ends. A hold that ends sooner is lost if the
/// answer comes after its end, and does not cut the attempt short for the others.
/// [`KeeperCommands`] leaves a part of the time for another attempt.
fn renew<'h>(
    keeper: &Keeper,
    redis: &mut impl KeeperCommands,
    holds: &'h [Arc<Hold>],
    latest: Moment,
) -> Result<Refused, Failure> {
    if let Some(node) = redis.node().filter(|_| !holds.is_empty()) {
        // From its first renewal on, Redis tracks the key of a hold, so that a loss is found at
        // once. Tracking needs the listener.
        keeper.core.listeners.start(node);
    }
    let listener = redis.node().and_then(|node| keeper.core.listeners.of(node));
    let mut work = keeper.work.lock();
    // A hold whose release has begun since it fell due is not renewed.
    let holds: Vec<_> = holds.iter().filter(|hold| work.tokens.has(hold)).collect();
    let Some(last_end) = holds.iter().map(|hold| hold.valid_until()).max() else {
        return Ok(HashMap::default());
    };
    let now = Moment::now();
    let deadline = latest.min(last_end);
    // The id is read under the lock. A new listener sets its id, then reports that any key may have
    // changed. If we read the old id before taking the lock, and that report came in between,
    // `sending` would erase the mark that the report left. A deletion by hand would go unseen until
    // the next renewal.
    let client_id = listener.as_ref().and_then(|listener| listener.client_id());
    let sending = |hold: &&'h Arc<Hold>| {
        let lease = hold.lease_to_ask(now);
        hold.renewing(lease, now, deadline);
        work.tokens.sending(hold, client_id.is_some(), now);
        Extension {
            key: hold.key.in_redis(),
            token: &hold.token,
            lease: lease.millis(),
        }
    };
    let extensions: Vec<_> = holds.iter().map(sending).collect();
    drop(work);
    let ExtendAnswers {
        sent,
        answers,
        tracking,
    } = redis.extend_all(&extensions, client_id, deadline)?;
    if let Some((listener, client_id)) = listener.zip(client_id) {
        listener.will_hear(client_id, tracking);
    }
    let moved: Vec<_> = (0..answers.len())
        .filter(|n| is_elsewhere(&answers[*n]))
        .map(|n| (holds[n], extensions[n]))
        .collect();
    let leases = extensions.iter().map(|it| Lease::from_millis(it.lease));
    let refused = take_in(keeper, holds.iter().copied().zip(leases).zip(answers), sent);
    if moved.is_empty() {
        return Ok(refused);
    }
    Ok(renew_elsewhere(keeper, redis, &moved, refused))
}

/// Renews the leases of keys that another node has. Returns the refusals that remain.
///
/// Stops at the first command that gets no answer. The rest is due again soon. By then, the map may
/// name the other node, whose thread then renews it.
fn renew_elsewhere(
    keeper: &Keeper,
    redis: &mut impl KeeperCommands,
    moved: &[(&Arc<Hold>, Extension<'_>)],
    mut refused: Refused,
) -> Refused {
    let until = aside_until(keeper);
    for (hold, extension) in moved {
        let sent = Moment::now();
        let answer = redis.extend_elsewhere(extension, until);
        let goes_on = is_final(&answer) && sent < until;
        let lease = Lease::from_millis(extension.lease);
        refused.remove(&hold.number);
        refused.extend(take_in(keeper, iter::once(((*hold, lease), answer)), sent));
        if !goes_on {
            break;
        }
    }
    refused
}

/// Records the answers to renewals that were sent at `sent`. Returns Redis's refusals, each by the
/// number of its hold.
fn take_in<'h>(
    keeper: &Keeper,
    answers: impl Iterator<Item = ((&'h Arc<Hold>, Lease), Result<Compared, Failure>)>,
    sent: Moment,
) -> Refused {
    let mut refused = HashMap::default();
    let mut lost = Vec::new();
    let mut renewed = Vec::new();
    let mut work = keeper.work.lock();
    let now = Moment::now();
    let mut due = Moment::NEVER;
    for ((hold, lease), answer) in answers {
        // The release of the hold may have begun since, and be the reason for this answer.
        if !work.tokens.has(hold) {
            continue;
        }
        match answer.map(|compared| on_renewal(hold, lease, compared, sent, now)) {
            Ok(true) => {
                renewed.push(hold);
                due = due.min(work.tokens.renewed(hold, sent));
            }
            Ok(false) => {
                work.tokens.lost(hold);
                lost.push(hold);
            }
            Err(failure) => _ = refused.insert(hold.number, failure),
        }
    }
    keeper.wake(work, due);
    keeper.changed.notify_all();
    for hold in lost {
        keeper.report_loss(hold);
    }
    for hold in renewed {
        keeper.core.counters.of(hold.key.name()).renewed.add(1);
    }
    refused
}

/// Deletes orphans in one round trip.
///
/// If there is no answer, all these deletions are sent again later. No thread uses their tokens any
/// more, so a deletion that Redis executes twice or late does no harm.
fn remove_orphans(keeper: &Keeper, redis: &mut impl KeeperCommands, orphans: &[Removal]) {
    let places: Vec<_> = orphans.iter().map(|orphan| orphan.key.places()).collect();
    let removals = places.iter().zip(orphans);
    let removals: Vec<_> = removals
        .map(|(places, orphan)| (&places[..], &*orphan.token))
        .collect();
    let answers = redis.remove_all(&removals, aside_until(keeper));
    let now = Moment::now();
    if answers.is_err() {
        let pauses = orphans.iter().map(|orphan| orphan.pause);
        let store = &keeper.core.store;
        let mine = |key: &str| {
            redis
                .node()
                .is_none_or(|node| store.may_be_at(node, key.as_bytes()))
        };
        let mut work = keeper.work.lock();
        work.tokens
            .delay_orphans(pauses.max().unwrap_or_default(), now, mine);
    }
    for (n, orphan) in orphans.iter().enumerate() {
        match answers.as_ref().and_then(|answers| answers[n].as_ref()) {
            Ok(compared) => {
                keeper.work.lock().tokens.removed(&orphan.token, now);
                keeper.changed.notify_all();
                let is_done = *compared == Compared::Done || !orphan.may_reappear;
                let counters = keeper.core.counters.of(orphan.key.name());
                counters.late_releases.add(u64::from(is_done));
            }
            Err(failure) => {
                keeper.report_refusal("releasing", [orphan.key.in_redis(), &orphan.token], failure);
                debug!(target: "relatch::release",
                    "a late release of {:?}: {failure:?}, trying again while its lease lasts", orphan.key.in_redis());
            }
        }
    }
}

/// The time until which the thread may do other work than to renew its own node's holds. These wait
/// in the meantime, so the other work takes a quarter of the shortest lease at most.
fn aside_until(keeper: &Keeper) -> Moment {
    let now = Moment::now();
    let shortest = keeper.work.lock().tokens.shortest(now);
    now.after(keeper.core.settings.response_timeout.min(shortest / 4))
}

/// Records what Redis answered at `now` to a renewal that was sent at `sent`. False if the hold is
/// lost.
pub(crate) fn on_renewal(
    hold: &Hold,
    lease: Lease,
    compared: Compared,
    sent: Moment,
    now: Moment,
) -> bool {
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
    use std::time::Duration;

    use super::*;
    use crate::base::error::LostCause::{Deleted, Expired, Taken};
    use crate::base::key::MAX_BYTES;
    use crate::hold::tests::{sample, sample_by};
    use crate::keeping::connection::{Extended, Removed};
    use crate::keeping::keeper::tests::keeper_without_redis;
    use crate::keeping::orphans::Orphan;
    use crate::keeping::work::Keeper;
    use crate::store::{Node, Refusal, Tracking};

    const LEASE: Duration = Duration::from_secs(1);
    const LONG: Duration = Duration::from_secs(30);

    fn at(millis: u64) -> Moment {
        Moment::from_nanos(1_000_000 * millis)
    }

    /// A Redis that answers as the test wants, and records how many keys each command had.
    struct Redis {
        node: Arc<Node>,
        /// How many commands get no answer.
        silent: usize,
        answer: fn(&str) -> Result<Compared, Failure>,
        extended: Vec<usize>,
        removed: Vec<usize>,
    }

    impl Redis {
        fn new(answer: fn(&str) -> Result<Compared, Failure>) -> Redis {
            let node = keeper_without_redis().core.store.node_of("").unwrap();
            Redis {
                node,
                silent: 0,
                answer,
                extended: Vec::new(),
                removed: Vec::new(),
            }
        }

        fn silent(commands: usize) -> Redis {
            Redis {
                silent: commands,
                ..Redis::new(done)
            }
        }

        fn answers<'a>(&mut self, tokens: impl Iterator<Item = &'a str>) -> Removed {
            if self.silent > 0 {
                self.silent -= 1;
                return Err(Failure::Unanswered {
                    link_stands: true,
                    cause: "no answer".into(),
                });
            }
            Ok(tokens.map(self.answer).collect())
        }
    }

    impl KeeperCommands for Redis {
        fn node(&self) -> Option<&Arc<Node>> {
            Some(&self.node)
        }

        fn extend_all(&mut self, leases: &[Extension<'_>], _: Option<u64>, _: Moment) -> Extended {
            self.extended.push(leases.len());
            let sent = Moment::now();
            let answers = self.answers(leases.iter().map(|extension| extension.token))?;
            Ok(ExtendAnswers {
                sent,
                answers,
                tracking: Tracking::Off,
            })
        }

        fn extend_elsewhere(&mut self, _: &Extension<'_>, _: Moment) -> Result<Compared, Failure> {
            unreachable!("there is one node")
        }

        fn remove_all(&mut self, removals: &[(&[&str], &str)], _: Moment) -> Removed {
            self.removed.push(removals.len());
            self.answers(removals.iter().map(|(_, token)| *token))
        }
    }

    #[expect(clippy::unnecessary_wraps, reason = "an answer like any other")]
    fn done(_: &str) -> Result<Compared, Failure> {
        Ok(Compared::Done)
    }

    fn refused(_: &str) -> Result<Compared, Failure> {
        Err(Failure::Refused(Refusal::found("READONLY", "READONLY")))
    }

    /// A keeper with `count` holds, each with a token of its own.
    fn keeps(count: usize) -> (Arc<Keeper>, Vec<Arc<Hold>>) {
        let keeper = keeper_without_redis();
        let holds: Vec<_> = (0..count)
            .map(|n| Arc::new(sample_by(&format!("token-{n}"), LONG)))
            .collect();
        for hold in &holds {
            keeper.enter(hold).unwrap();
        }
        (keeper, holds)
    }

    /// One round, in which these holds are due.
    fn renews(keeper: &Arc<Keeper>, redis: &mut Redis, holds: &[Arc<Hold>]) {
        let work = WorkDue {
            renew: holds.to_vec(),
            ..WorkDue::default()
        };
        round(keeper, redis, &work);
    }

    /// Tokens that were given up, and are due to be deleted.
    fn given_up(keeper: &Arc<Keeper>, tokens: &[&str], may_reappear: bool) -> Vec<Removal> {
        let mut work = keeper.work.lock();
        for token in tokens {
            let orphan = Orphan::sample(may_reappear, Moment::now().after(LONG));
            work.tokens.give_up(&(*token).into(), orphan, Moment::PAST);
        }
        let mut due = work.tokens.take_all_orphans(Moment::now());
        due.retain(|it| tokens.contains(&&*it.token)); // Earlier ones may be due again.
        assert_eq!(due.len(), tokens.len());
        due
    }

    #[test]
    fn what_redis_refuses_for_good_is_told_once_for_each_key_and_hold() {
        let (keeper, holds) = keeps(2);
        let mut redis =
            Redis::new(|_| Err(Failure::Refused(Refusal::found("NOPERM", "NOPERM no"))));
        let told = || keeper.core.counters.read().refused;
        for _ in 0..3 {
            renews(&keeper, &mut redis, &holds);
            assert_eq!(told(), 2);
        }
        let remove = given_up(&keeper, &["token"], false);
        for _ in 0..3 {
            remove_orphans(&keeper, &mut redis, &remove);
            assert_eq!(told(), 3);
        }
        let mut passes = Redis::new(refused);
        remove_orphans(&keeper, &mut passes, &given_up(&keeper, &["other"], false));
        assert_eq!(told(), 3, "that will pass");
    }

    /// Its answer says nothing about what has happened since.
    #[test]
    fn the_answer_to_an_earlier_renewal_is_none() {
        let (keeper, holds) = keeps(1);
        let before = Moment::now();
        let asked = [(&holds[0], before.after(LONG))];
        keeper.ask_to_renew(&asked).unwrap();
        let mut work = keeper.work.lock();
        // Its connection was opened after the call, but its command was made before.
        work.tokens
            .sending(&holds[0], false, before.before(LEASE / 10));
        let due = work.tokens.renewed(&holds[0], Moment::now());
        assert!(work.tokens.answer(&holds[0], Moment::now()).is_none());
        assert!(due <= Moment::now(), "it is renewed once more");
    }

    #[test]
    fn leases_are_renewed_in_batches() {
        // Redis could not renew a thousand leases of long keys within the response timeout.
        let long = "k".repeat(MAX_BYTES);
        for (count, name, batches) in [
            (2 * BATCH + 1, "key", [BATCH, BATCH, 1]),
            (9, &long, [4, 4, 1]),
        ] {
            let (keeper, mut redis) = (keeper_without_redis(), Redis::new(done));
            let hold = || Arc::new(sample(name, LONG, Moment::now()));
            let holds: Vec<_> = (0..count).map(|_| hold()).collect();
            for hold in &holds {
                keeper.enter(hold).unwrap();
            }
            renews(&keeper, &mut redis, &holds);
            assert_eq!(redis.extended, batches);
            assert_eq!(keeper.core.counters.read().renewed, count as u64);
            // One that was released since it fell due is not renewed.
            keeper.work.lock().tokens.close(&holds[0], Moment::now());
            renews(&keeper, &mut redis, &holds[..1]);
            assert_eq!(redis.extended, batches);
        }
    }

    #[test]
    fn a_renewal_that_redis_refused_or_did_not_answer_loses_no_hold() {
        for mut redis in [Redis::silent(1), Redis::new(refused)] {
            let (keeper, holds) = keeps(3);
            // Redis may execute it until its answer is due.
            let due = Moment::now().after(2 * keeper.core.settings.response_timeout);
            let is_silent = redis.silent > 0;
            renews(&keeper, &mut redis, &holds);
            let counters = keeper.core.counters.read();
            assert_eq!(
                (counters.renewal_errors, counters.renewed, counters.lost),
                (3, 0, 0)
            );
            let stands = |hold: &Arc<Hold>| {
                hold.is_valid(Moment::now()) && hold.gone_by() >= due.after(LONG)
            };
            assert!(!is_silent || holds.iter().all(stands));
        }
    }

    #[test]
    fn orphans_are_sent_after_renewals_with_an_answer_and_come_again_until_they_are_deleted() {
        type Answers = fn(&str) -> Result<Compared, Failure>;
        let (absent, theirs): (Answers, Answers) =
            (|_| Ok(Compared::Absent), |_| Ok(Compared::NotOurs));
        // How many holds are due, how many commands get no answer, the answer to the others,
        // whether the manager is gone, and whether the key may reappear; how many deletions are
        // sent, whether they come again, and how many count as late releases.
        for (due, silent, answer, stops, reappears, sent, again, late) in [
            (0, 0, done as Answers, false, false, 1, false, 1),
            (1, 0, done, false, false, 1, false, 1),
            (1, 1, done, false, false, 0, true, 0),
            (0, 1, done, false, false, 1, true, 0),
            (0, 0, done, true, false, 0, true, 0),
            (0, 0, theirs, false, false, 1, false, 1),
            // A key that is absent may still appear.
            (0, 0, absent, false, true, 1, true, 0),
            (0, 0, done, false, true, 1, true, 1),
        ] {
            let (keeper, renew) = keeps(due);
            let mut redis = Redis {
                answer,
                ..Redis::silent(silent)
            };
            keeper.work.lock().stop = stops;
            let remove = given_up(&keeper, &["x"], reappears);
            round(
                &keeper,
                &mut redis,
                &WorkDue {
                    renew,
                    remove,
                    ..WorkDue::default()
                },
            );
            assert_eq!(redis.removed.len(), sent);
            let next = keeper.work.lock().tokens.first_orphan();
            assert_eq!(next < Moment::NEVER, again);
            assert_eq!(keeper.core.counters.read().late_releases, late);
        }
    }

    #[test]
    fn a_renewal_that_was_asked_for_is_tried_until_redis_answers() {
        for (mut redis, limit, tries, is_done) in [
            (Redis::silent(0), LONG, 1..=1, true),
            (Redis::silent(3), LONG, 4..=4, true),
            (Redis::new(refused), LONG, 1..=1, false),
            (Redis::silent(1_000_000), LEASE / 5, 0..=1_000_000, false),
        ] {
            let (keeper, holds) = keeps(1);
            keeper
                .ask_to_renew(&[(&holds[0], Moment::now().after(limit))])
                .unwrap();
            let answer = loop {
                let mut work = keeper.work.lock();
                if let Some(answer) = work.tokens.answer(&holds[0], Moment::now()) {
                    break answer;
                }
                let due = work.tokens.take(Moment::now());
                drop(work);
                round(&keeper, &mut redis, &due);
            };
            assert!(tries.contains(&redis.extended.len()));
            assert_eq!(answer.is_ok(), is_done, "{answer:?}");
        }
    }

    #[test]
    fn what_an_answer_to_a_renewal_says_of_a_hold() {
        let now = at(5000);
        // What Redis answered for a hold that is still valid or has run out, and how the hold was
        // lost.
        for (compared, sent, lost) in [
            (Compared::Done, now, None),
            (Compared::Done, at(3000), Some(Expired)),
            (Compared::Absent, now, Some(Deleted)),
            (Compared::Absent, at(3000), Some(Expired)),
            (Compared::NotOurs, now, Some(Taken)),
            (Compared::NotOurs, at(3000), Some(Taken)),
        ] {
            let hold = sample("a", LEASE, sent);
            let goes_on = on_renewal(&hold, Lease::new(60 * LEASE), compared, now, now);
            assert_eq!(
                (goes_on, hold.lost()),
                (lost.is_none(), lost),
                "{compared:?} at {sent:?}"
            );
            assert_eq!(hold.is_valid(now.after(30 * LEASE)), goes_on);
            assert_eq!(hold.renewals(), u32::from(goes_on));
        }
    }
}
