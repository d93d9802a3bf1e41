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

/// Redis counts whole milliseconds, so a key may live up to 1 ms longer than its lease. The checker
/// allows 2 ms, to be certain.
const GRAIN: Duration = Duration::from_millis(2);

/// What else the checker has to know.
#[derive(Clone, Default)]
pub(crate) struct World {
    /// Processes that were killed, and a time just before that. A dead process trusts no hold, and
    /// its locks may be taken over.
    pub(crate) deaths: Vec<(u32, Duration)>,
    /// How soon the loss of a renewed hold has to be reported. `None` if the server deletes no held
    /// locks.
    pub(crate) reported_within: Option<Duration>,
    /// The longest time in which keys were moved from one server to another. The server that gets a
    /// key counts the rest of its TTL from the time when it gets it.
    pub(crate) moved_within: Duration,
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
        let Some(token) = claim.token.as_deref() else {
            verdict.refused += usize::from(claim.answered.is_some());
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
        let counts = [self.acquisitions, self.refused, self.lost, self.unconfirmed];
        for count in counts {
            write!(f, "{count} | ")?;
        }
        write!(f, "{} ms", self.reported_after.as_millis())
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

    /// No holder trusts its hold after the lease that the server granted, or after the key was
    /// deleted.
    fn check_truth(&mut self, claim: &Claim, done: &[&Exchange], world: &World) {
        let Some((at, until)) = claim.valid else {
            return;
        };
        let before = || done.iter().filter(|exchange| exchange.sent <= at);
        match before().filter_map(|exchange| promise(exchange)).max() {
            None => self.add("no server ever had its token", claim, None),
            Some(promised) if until > promised => {
                let by = until.saturating_sub(promised);
                self.add(&format!("it outlives its key by {by:?}"), claim, None);
            }
            Some(_) => {}
        }
        // A lock that too few replicas acknowledge is deleted, and tried again with the same token.
        let is_set_again = |deletion: &Exchange| {
            before().any(|it| is_set(it) && promise(it).is_some() && it.sent >= deletion.sent)
        };
        let deleted = before()
            .filter(|exchange| has_deleted(exchange) && !is_set_again(exchange))
            .filter_map(|exchange| Some(exchange.answered.as_ref()?.0))
            .min();
        if world.reported_within.is_none() && deleted.is_some_and(|deleted| deleted < at) {
            self.add("valid, after its key was deleted", claim, None);
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
                self.add("it deleted what was not its own", claim, None);
            }
        }
    }

    /// The result of a release agrees with what happened.
    fn check_release(&mut self, claim: &Claim, done: &[&Exchange], world: &World) {
        let (Some(released), Some((ended, how))) = (claim.released, &claim.ended) else {
            return;
        };
        let is_valid_at = |time| claim.valid.is_some_and(|(_, until)| until > time);
        let sent = || {
            let later = done.iter().filter(|exchange| exchange.sent >= released);
            later.filter(|exchange| is_release(exchange))
        };
        let begun = || sent().map(|exchange| exchange.sent).min();
        let deletes_held_locks = world.reported_within.is_some();
        match how.as_str() {
            // (A server that deletes held locks may have lost the answer with the key: see
            // docs/not-promised.md.)
            "Released"
                if !deletes_held_locks
                    && !sent().any(|it| has_deleted(it) || it.answered.is_none()) =>
            {
                self.add("said to be released, but nobody deleted it", claim, None);
            }
            // The hold was valid when its release was sent. If the server deletes no held locks,
            // the lease can only have ended while the release was on its way, which is no loss.
            "Lost" if !deletes_held_locks && is_valid_at(begun().unwrap_or(*ended)) => {
                self.add("said to be lost, but nobody took it away", claim, None);
            }
            // (A hold that has expired by the clock may be reported as lost, though no other holder
            // had the lock.)
            "Lost" if is_valid_at(released) && sent().any(|it| has_deleted(it)) => {
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
                let beliefs = by_key.entry(&claim.key).or_default();
                beliefs.push((start, end, claim));
            }
        }
        for mut beliefs in by_key.into_values() {
            beliefs.sort_by_key(|belief| belief.0);
            let mut longest: Option<(Duration, &Claim)> = None;
            for (start, end, claim) in beliefs {
                if let Some((until, other)) = longest.filter(|(until, _)| *until > start) {
                    let overlap = until.saturating_sub(start);
                    if world.reported_within.is_some() {
                        self.reported_after = self.reported_after.max(overlap);
                    }
                    if overlap > world.reported_within.unwrap_or_default() {
                        let what = match world.reported_within {
                            None => format!("two at a time for {overlap:?}"),
                            Some(_) => format!("not reported for {overlap:?}"),
                        };
                        self.add(&what, other, Some(claim));
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
    let mut deaths = world.deaths.iter();
    let death = deaths.find(|(pid, _)| *pid == claim.by.0);
    Some((start, death.map_or(end, |&(_, death)| end.min(death))))
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
    let answer = exchange.answered.as_ref();
    let answer = answer.map(|(at, reply)| (at, reply.escape_ascii().to_string()));
    let args = exchange.args.join(" ");
    format!("\n    {:?} {args}: {answer:?}", exchange.sent)
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
    let args = &exchange.args;
    let lease = if is_set(exchange) {
        let px = args.iter().position(|arg| arg.eq_ignore_ascii_case("PX"))?;
        args.get(px + 1)
    } else {
        args.get(5).filter(|_| args.len() == 6)
    };
    let lease = Duration::from_millis(lease?.parse().ok()?);
    let Some((at, reply)) = &exchange.answered else {
        return Some(Duration::MAX);
    };
    // A script answers the token, and `SET` an `OK` or nil.
    let is_token = reply.starts_with(b"$") && !reply.starts_with(b"$-");
    (reply.starts_with(b"+OK") || is_token).then(|| *at + lease)
}
