//! Whether all that the workers claimed can be true, given what the server was sent and what it
//! answered.
//!
//! Each violation is certain: where a time is not known exactly, the checker takes the bound that
//! favours the lock.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::time::Duration;

use relatch_rig::Exchange;

use crate::record::Claim;

/// How late a call may return: the machine is busy, and everything on it runs on two cores.
const LATE: Duration = Duration::from_secs(1);

/// Redis counts whole milliseconds, so a key may live up to 1 ms longer than its lease. The checker
/// allows 2 ms, to be certain.
const GRAIN: Duration = Duration::from_millis(2);

/// What else the checker has to know.
#[derive(Default)]
pub(crate) struct World {
    /// Processes that were stopped, and when.
    pub(crate) stops: Vec<(u32, Duration, Duration)>,
    /// When the machine let no thread run, or hardly any.
    pub(crate) stalls: Vec<(Duration, Duration)>,
    /// Processes that were killed, and a time just before that. A dead process trusts no hold, and
    /// its locks may be taken over.
    pub(crate) deaths: Vec<(u32, Duration)>,
    /// How soon the loss of a renewed hold has to be reported. `None` if the server deletes no held
    /// locks.
    pub(crate) reported_within: Option<Duration>,
    /// Whether a restart loses keys together with answers. (Then a release may report `Released`
    /// for a lock that ended in another way: see docs/not-promised.md.)
    pub(crate) restarts: bool,
    /// The longest time in which keys were moved from one server to another. The server that gets a
    /// key counts the rest of its TTL from the time when it gets it.
    pub(crate) moved_within: Duration,
    /// How long a release may take.
    pub(crate) release: Duration,
}

/// The result.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) acquisitions: usize,
    /// Holds that were valid at their first check.
    pub(crate) believed: usize,
    pub(crate) refused: usize,
    pub(crate) lost: usize,
    pub(crate) unconfirmed: usize,
    /// The longest time in which two holders trusted the same lock, if the server deletes held
    /// locks.
    pub(crate) reported_after: Duration,
    pub(crate) violations: Vec<String>,
}

pub(crate) fn judge(claims: &[Claim], journal: &[Exchange], world: &World) -> Verdict {
    let mut verdict = Verdict::default();
    let exchanges = by_token(journal);
    let mut tokens: HashMap<&str, &Claim> = HashMap::new();
    for claim in claims {
        verdict.check_times(claim, world);
        let Some(token) = claim.token.as_deref() else {
            verdict.refused += usize::from(claim.refused.is_some());
            continue;
        };
        verdict.acquisitions += 1;
        verdict.believed += usize::from(claim.valid.is_some());
        let how = claim.ended.as_ref().map(|(_, how)| &**how);
        verdict.lost += usize::from(how == Some("Lost"));
        verdict.unconfirmed += usize::from(how == Some("Unconfirmed"));
        if let Some(before) = tokens.insert(token, claim) {
            verdict.add("a token was used twice", claim, Some(before));
            continue; // The exchanges with this token prove nothing about either claim.
        }
        let done = exchanges.get(token).map_or(&[][..], Vec::as_slice);
        let before = verdict.violations.len();
        verdict.check_truth(claim, done, world);
        if world.reported_within.is_none() {
            verdict.check_deletions(claim, done, GRAIN + world.moved_within);
        }
        verdict.check_release(claim, done, world);
        for violation in &mut verdict.violations[before..] {
            violation.extend(done.iter().map(|it| told(it)));
        }
    }
    verdict.check_exclusion(claims, world);
    verdict
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verdict {
            acquisitions,
            refused,
            lost,
            unconfirmed,
            reported_after,
            ..
        } = self;
        write!(
            f,
            "{acquisitions} | {refused} | {lost} | {unconfirmed} | {} ms",
            reported_after.as_millis()
        )
    }
}

impl Verdict {
    /// Adds another round.
    pub(crate) fn add_up(&mut self, other: &Verdict) {
        self.acquisitions += other.acquisitions;
        self.believed += other.believed;
        self.refused += other.refused;
        self.lost += other.lost;
        self.unconfirmed += other.unconfirmed;
        self.reported_after = self.reported_after.max(other.reported_after);
    }

    fn add(&mut self, what: &str, claim: &Claim, other: Option<&Claim>) {
        let other = other
            .map(|it| format!("\n    and {it:?}"))
            .unwrap_or_default();
        self.violations
            .push(format!("{what}:\n    {claim:?}{other}"));
    }

    /// Every wait ends by its deadline, and every release by its limit. The time in which the
    /// process is stopped does not count, nor the time in which the machine stands still.
    fn check_times(&mut self, claim: &Claim, world: &World) {
        let stopped = |from: Duration, to: Duration| -> Duration {
            let of_it = world.stops.iter().filter(|(pid, ..)| *pid == claim.by.0);
            let spans = of_it
                .map(|&(_, start, end)| (start, end))
                .chain(world.stalls.iter().copied());
            spans
                .map(|(start, end)| end.min(to).saturating_sub(start.max(from)))
                .sum()
        };
        let late = |from: Duration, to: Duration, limit: Duration| {
            let late = to
                .saturating_sub(from)
                .saturating_sub(limit + stopped(from, to));
            (late > LATE)
                .then(|| format!("{late:?} late, and a busy machine explains only {LATE:?}"))
        };
        if let Some(late) = claim
            .answered
            .and_then(|answered| late(claim.asked, answered, claim.wait))
        {
            self.add(
                &format!("a wait did not end by its deadline: {late}"),
                claim,
                None,
            );
        }
        if let (Some(released), Some((ended, _))) = (claim.released, &claim.ended)
            && let Some(late) = late(released, *ended, world.release)
        {
            self.add(
                &format!("a release took longer than it may: {late}"),
                claim,
                None,
            );
        }
    }

    /// No holder trusts its hold after the lease that the server granted, or after the key was
    /// deleted.
    fn check_truth(&mut self, claim: &Claim, done: &[&Exchange], world: &World) {
        let Some((at, until)) = claim.valid else {
            return;
        };
        let before = || done.iter().filter(|exchange| exchange.sent <= at);
        let promised = before().filter_map(|exchange| promise(exchange)).max();
        match promised {
            None => {
                let what = format!("no server ever had its token, believed in until {until:?}");
                self.add(&what, claim, None);
            }
            Some(promised) if until > promised => {
                let by = until.saturating_sub(promised);
                let what = format!(
                    "it outlives its key by {by:?}: believed in until {until:?}, and gone by {promised:?}"
                );
                self.add(&what, claim, None);
            }
            Some(_) => {}
        }
        // A lock that too few replicas acknowledge is deleted, and tried again with the same token.
        let is_set_again = |deletion: &Exchange| {
            before().any(|it| is_set(it) && promise(it).is_some() && it.sent >= deletion.sent)
        };
        let deletions =
            before().filter(|exchange| has_deleted(exchange) && !is_set_again(exchange));
        let deleted = deletions
            .filter_map(|exchange| exchange.answered.as_ref())
            .map(|answer| answer.0)
            .min();
        if let Some(deleted) =
            deleted.filter(|deleted| world.reported_within.is_none() && *deleted < at)
        {
            let by = at.saturating_sub(deleted);
            let what = format!(
                "valid, after its key was deleted: believed in {by:?} later, until {until:?}"
            );
            self.add(&what, claim, None);
        }
    }

    /// No release deletes another holder's key. When the lease of its own hold has certainly ended,
    /// any key that it deletes is another's.
    fn check_deletions(&mut self, claim: &Claim, done: &[&Exchange], grain: Duration) {
        for deletion in done.iter().filter(|exchange| has_deleted(exchange)) {
            let before = done
                .iter()
                .filter(|exchange| exchange.sent <= deletion.sent);
            let end = before.filter_map(|exchange| promise(exchange)).max();
            if end.is_none_or(|end| end.saturating_add(grain) < deletion.sent) {
                let own = end.map_or("it never had one".to_owned(), |end| {
                    format!(
                        "its own key had ended {:?} before",
                        deletion.sent.saturating_sub(end)
                    )
                });
                self.add(
                    &format!("it deleted what was not its own: {own}"),
                    claim,
                    None,
                );
            }
        }
    }

    /// The result of a release agrees with what happened.
    fn check_release(&mut self, claim: &Claim, done: &[&Exchange], world: &World) {
        let (Some(released), Some((ended, how))) = (claim.released, &claim.ended) else {
            return;
        };
        let sent = || {
            done.iter()
                .filter(|exchange| is_release(exchange) && exchange.sent >= released)
        };
        let begun = || sent().map(|exchange| exchange.sent).min().unwrap_or(*ended);
        match how.as_str() {
            // The server itself may have dropped the key. The answer to the first try says so, but
            // may have come too late to be read. (See docs/not-promised.md.)
            "Released" if world.reported_within.is_some() && sent().count() > 1 => {}
            "Released"
                if !world.restarts
                    && !sent()
                        .any(|exchange| has_deleted(exchange) || exchange.answered.is_none()) =>
            {
                self.add("said to be released, but nobody deleted it", claim, None);
            }
            // The hold was valid when its release was sent. If the server deletes no held locks,
            // the lease can only have ended while the release was on its way, which is no loss.
            "Lost"
                if world.reported_within.is_none()
                    && claim.valid.is_some_and(|(_, until)| until > begun()) =>
            {
                self.add("said to be lost, but nobody took it away", claim, None);
            }
            // (A hold that has expired by the clock may be reported as lost, though no other holder
            // had the lock.)
            "Lost"
                if claim.valid.is_some_and(|(_, until)| until > released)
                    && sent().any(|exchange| has_deleted(exchange)) =>
            {
                self.add("said to be lost, but it was released", claim, None);
            }
            _ => {}
        }
    }

    /// No lock has two holders at a time. If the server deletes held locks, a lock has two only for
    /// a short time.
    fn check_exclusion(&mut self, claims: &[Claim], world: &World) {
        let mut by_key: BTreeMap<&str, Vec<(Duration, Duration, &Claim)>> = BTreeMap::new();
        for claim in claims {
            if let Some((start, end)) = belief(claim, world) {
                by_key
                    .entry(&claim.key)
                    .or_default()
                    .push((start, end, claim));
            }
        }
        for mut beliefs in by_key.into_values() {
            beliefs.sort_by_key(|belief| belief.0);
            let mut longest: Option<(Duration, &Claim)> = None;
            for (start, end, claim) in beliefs {
                if let Some((until, other)) = longest.filter(|(until, _)| *until > start) {
                    let overlap = until.saturating_sub(start);
                    let believed =
                        format!("one believed in it until {until:?}, the other from {start:?} on");
                    match world.reported_within {
                        None => {
                            let what = format!("two at a time for {overlap:?}: {believed}");
                            self.add(&what, other, Some(claim));
                        }
                        Some(limit) => {
                            self.reported_after = self.reported_after.max(overlap);
                            if overlap > limit {
                                let what = format!(
                                    "not reported for {overlap:?}, {limit:?} allowed: {believed}"
                                );
                                self.add(&what, other, Some(claim));
                            }
                        }
                    }
                }
                // If the server deletes held locks, no renewal finds the loss of a hold without
                // renewals, so only its lease limits how long it is trusted.
                let counts = world.reported_within.is_none() || claim.renewed;
                if counts && longest.is_none_or(|(until, _)| until < end) {
                    longest = Some((end, claim));
                }
            }
        }
    }
}

/// The span in which a worker could trust its hold. If the server deletes held locks, the span ends
/// with the last check that found the hold valid. Otherwise it ends with the validity or the
/// release, whichever comes first. The death of the process ends it in any case.
fn belief(claim: &Claim, world: &World) -> Option<(Duration, Duration)> {
    let (start, (at, until)) = (claim.answered?, claim.valid?);
    let end = if world.reported_within.is_some() {
        at
    } else {
        until.min(claim.released.unwrap_or(until))
    };
    let death = world
        .deaths
        .iter()
        .find(|(pid, _)| *pid == claim.by.0)
        .map(|&(_, at)| at);
    Some((start, death.map_or(end, |death| end.min(death))))
}

/// A line of JSON for each hold that was trusted: `benches/peers/go/porcupine` reads them.
pub(crate) fn for_porcupine(claims: &[Claim], world: &World) -> String {
    let line = |claim: &Claim| {
        let (has, trusted) = belief(claim, world).filter(|(has, end)| has < end)?;
        let ended = claim.ended.as_ref().map_or(trusted, |(at, _)| *at);
        let [asks, has, trusted, gave] = [claim.asked, has, trusted, ended].map(|it| it.as_nanos());
        let (process, thread) = claim.by;
        let worker = u64::from(process) * 100 + u64::from(thread);
        let turn = format!(
            r#"{{"worker":{worker},"key":"{}","asks":{asks},"has":{has},"gave":{gave}}}"#,
            claim.key
        );
        Some(format!(r#"{{"trusted":{trusted},"turn":{turn}}}"#) + "\n")
    };
    claims.iter().filter_map(line).collect()
}

fn by_token(journal: &[Exchange]) -> HashMap<&str, Vec<&Exchange>> {
    let mut exchanges: HashMap<&str, Vec<&Exchange>> = HashMap::new();
    for exchange in journal {
        let place = if is_set(exchange) { 2 } else { 4 };
        if let Some(token) = exchange.args.get(place) {
            exchanges.entry(token).or_default().push(exchange);
        }
    }
    exchanges
}

/// A line of a report.
fn told(exchange: &Exchange) -> String {
    let Exchange {
        args,
        sent,
        answered,
    } = exchange;
    let answer = answered.as_ref();
    let answer = answer.map(|(at, reply)| (at, reply.escape_ascii().to_string()));
    format!("\n    {sent:?} {}: {answer:?}", args.join(" "))
}

fn is_set(exchange: &Exchange) -> bool {
    exchange.args[0].eq_ignore_ascii_case("SET")
}

/// True for `EVALSHA hash 1 key token`. (A renewal has the lease as a sixth argument.)
fn is_release(exchange: &Exchange) -> bool {
    !is_set(exchange) && exchange.args.len() == 5
}

fn has_deleted(exchange: &Exchange) -> bool {
    is_release(exchange)
        && exchange
            .answered
            .as_ref()
            .is_some_and(|(_, reply)| reply.starts_with(b":1\r"))
}

/// Until when the key lives at the latest because of this exchange. Without an answer, the time of
/// execution is unknown, and the result is `Duration::MAX`.
fn promise(exchange: &Exchange) -> Option<Duration> {
    let renewal = !is_set(exchange) && exchange.args.len() == 6;
    if is_release(exchange) || (!is_set(exchange) && !renewal) {
        return None;
    }
    let lease = if renewal {
        exchange.args.last()
    } else {
        let px = exchange
            .args
            .iter()
            .position(|arg| arg.eq_ignore_ascii_case("PX"))?;
        exchange.args.get(px + 1)
    };
    let lease = Duration::from_millis(lease?.parse().ok()?);
    match &exchange.answered {
        None => Some(Duration::MAX),
        // A script answers the token, and `SET` an `OK` or nil.
        Some((at, reply)) if reply.starts_with(b"+OK") => Some(*at + lease),
        Some((at, reply)) if reply.starts_with(b"$") && !reply.starts_with(b"$-") => {
            Some(*at + lease)
        }
        Some(_) => None,
    }
}
