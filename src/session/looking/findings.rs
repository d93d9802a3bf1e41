//! What the answers of a server mean for locks.

use std::fmt;
use std::time::Duration;

use crate::store::{Info, Missing};

/// A clock that is off by more than this is worth a word. Leases do not depend on it.
const LARGEST_OFFSET: Duration = Duration::from_secs(2);

/// How many slots a cluster has.
const SLOTS: u64 = 16384;

/// The oldest version of Redis that sends invalidations.
const OLDEST: u64 = 6;

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Finding {
    /// How it is.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do about it. `None` if it is well.
    pub advice: Option<&'static str>,
}

/// How a [`Finding`] is. The worse one is the larger one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// As it should be.
    Well,
    /// Locks work, but they are slower or can be lost sooner than they need be.
    Warning,
    /// Locks do not work.
    Failed,
}

impl Finding {
    pub(super) fn well(found: String) -> Finding {
        Finding {
            verdict: Verdict::Well,
            found,
            advice: None,
        }
    }

    pub(super) fn warning(found: String, advice: &'static str) -> Finding {
        Finding {
            verdict: Verdict::Warning,
            found,
            advice: Some(advice),
        }
    }

    pub(super) fn failed(found: String, advice: &'static str) -> Finding {
        Finding {
            verdict: Verdict::Failed,
            found,
            advice: Some(advice),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Well => "ok",
            Verdict::Warning => "warn",
            Verdict::Failed => "FAIL",
        })
    }
}

/// One line for a log.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:4}  {}", self.verdict, self.found)?;
        match self.advice {
            Some(advice) => write!(f, "  -> {advice}"),
            None => Ok(()),
        }
    }
}

/// Round trips against the lease: a command that takes a tenth of it leaves few tries for a
/// renewal.
pub(super) fn of_round_trips(mut trips: Vec<Duration>, lease: Duration) -> Finding {
    trips.sort_unstable();
    let median = trips.get(trips.len() / 2).copied().unwrap_or_default();
    let longest = trips.last().copied().unwrap_or_default();
    let found = format!("a round trip takes {median:.1?}, and {longest:.1?} at most");
    if longest > lease / 10 {
        let advice =
            "more than a tenth of the lease: take a longer lease, or a Redis that is nearer";
        Finding::warning(found, advice)
    } else {
        Finding::well(found)
    }
}

/// The rights that the user has not.
pub(super) fn of_rights(missing: &Missing) -> Finding {
    let Missing { each_lock, others } = missing;
    let all = [&each_lock[..], others].concat().join(" ");
    let found = format!("the user has not all rights: {all}");
    match (&each_lock[..], &others[..]) {
        ([], []) => Finding::well("the user has all rights".to_owned()),
        ([], _) => Finding::warning(
            found,
            "locks work without, but waiters poll, or people on call see less: ACL SETUSER gives \
             them",
        ),
        _ => Finding::failed(found, "locks do not work: ACL SETUSER gives them"),
    }
}

/// What each sentinel says of a failover.
pub(super) fn of_sentinels(quorums: Vec<(String, Result<(), String>)>) -> Vec<Finding> {
    let all = quorums.len();
    let mut found = Vec::new();
    for (sentinel, said) in quorums {
        if let Err(why) = said {
            found.push(Finding::warning(
                format!("the sentinel at {sentinel}: {why}"),
                "if the master dies, nobody may take its place: bring the sentinels back",
            ));
        }
    }
    if all > 0 && found.is_empty() {
        let said = format!("each of {all} sentinels says that a failover is possible");
        found.push(Finding::well(said));
    }
    found
}

/// Whether each slot of the cluster has a node that is up, as one node sees it.
pub(super) fn of_cluster(info: &Info) -> Option<Finding> {
    let state = info.field("cluster_state")?;
    let up = info.number("cluster_slots_ok").unwrap_or_default();
    let found = format!("the cluster is {state}, and {up} of {SLOTS} slots have a node that is up");
    Some(if state == "ok" && up == SLOTS {
        Finding::well(found)
    } else {
        Finding::failed(
            found,
            "locks whose slot has no node cannot be taken: redis-cli --cluster check says why",
        )
    })
}

pub(super) fn of_clock(offset: Duration) -> Finding {
    let found = format!("the server's clock and ours differ by {offset:.1?}");
    if offset > LARGEST_OFFSET {
        let advice = "leases do not depend on it, but a step of the server's clock ends them early: set both by NTP";
        Finding::warning(found, advice)
    } else {
        Finding::well(found)
    }
}

pub(super) fn not_told(command: &str, why: &str) -> Finding {
    let advice = match command {
        "TIME" => "only locks with a fence need it: they are refused without the right",
        _ => "not needed for locks; with the right, more could be looked at",
    };
    Finding::warning(format!("{command} is not told: {why}"), advice)
}

pub(super) fn of_info(info: &Info) -> Vec<Finding> {
    [
        version(info),
        role(info),
        evictions(info),
        persistence(info),
    ]
    .into_iter()
    .flatten()
    .chain(replicas(info))
    .collect()
}

fn version(info: &Info) -> Option<Finding> {
    let valkey = info.field("valkey_version").map(|it| ("Valkey", it));
    let (name, version) = valkey.or_else(|| Some(("Redis", info.field("redis_version")?)))?;
    let major = version.split('.').next()?.parse::<u64>().ok()?;
    let found = format!("the server is {name} {version}");
    Some(if major < OLDEST {
        Finding::warning(found, "older than Redis 6: waiters poll; take a newer one")
    } else {
        Finding::well(found)
    })
}

fn role(info: &Info) -> Option<Finding> {
    let role = info.field("role")?;
    let found = format!("its role is {role}");
    Some(if role == "master" {
        Finding::well(found)
    } else {
        Finding::failed(
            found,
            "a replica takes no locks: give the address of the master, or use sentinels",
        )
    })
}

fn evictions(info: &Info) -> Option<Finding> {
    let policy = info.field("maxmemory_policy")?;
    let is_limited = info.number("maxmemory").unwrap_or_default() > 0;
    let evicted = info.number("evicted_keys").unwrap_or_default();
    let found = format!("the eviction policy is {policy}, and {evicted} keys were evicted");
    Some(if policy == "noeviction" || !is_limited && evicted == 0 {
        Finding::well(found)
    } else {
        Finding::warning(
            found,
            "Redis may forget a lock that is held: set maxmemory-policy to noeviction",
        )
    })
}

fn persistence(info: &Info) -> Option<Finding> {
    let found = match info.field("aof_enabled")? {
        "0" => "there is no append-only file: a restart of Redis forgets locks",
        _ => "there is an append-only file",
    };
    Some(Finding::well(found.to_owned()))
}

/// Of each replica, how long ago the master heard of it. (What the server says of their number is
/// only shown. To count up to it could take for ever.)
fn replicas(info: &Info) -> Vec<Finding> {
    let count = info.number("connected_slaves").unwrap_or_default();
    let lag = |(name, value): (&str, &str)| {
        name.strip_prefix("slave")?.parse::<u32>().ok()?;
        let lag = value
            .split(',')
            .find_map(|part| part.strip_prefix("lag="))?;
        lag.parse::<u64>().ok()
    };
    let longest = info.fields().filter_map(lag).max().unwrap_or_default();
    let found = format!("it has {count} replicas, and heard of each {longest} s ago or later");
    match count {
        0 => Vec::new(),
        _ if longest > 10 => vec![Finding::warning(
            found,
            "a failover to a replica that lags behind loses locks: see Builder::replicas",
        )],
        _ => vec![Finding::well(found)],
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::simulation::garbled;

    const INFO: &str = "redis_version:8.2.3\r\nrole:master\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n\
        evicted_keys:0\r\naof_enabled:0\r\nconnected_slaves:1\r\nslave0:ip=a,port=1,state=online,lag=1\r\n\
        cluster_state:ok\r\ncluster_slots_ok:16384\r\n";

    proptest! {
        #![proptest_config(garbled::cases())]

        #[test]
        fn whatever_a_server_says_a_finding_is_one_line(text in garbled::text(Just(INFO))) {
            let info = Info::of(&text);
            for finding in of_info(&info).into_iter().chain(of_cluster(&info)) {
                prop_assert!(garbled::is_one_line(&finding.to_string()), "{:?}", finding);
            }
        }
    }

    #[test]
    fn a_server_that_claims_any_number_of_replicas_is_judged_at_once() {
        let many = of_info(&Info::of(
            "connected_slaves:18446744073709551615\nslave7:lag=11",
        ));
        assert_eq!(many[0].verdict, Verdict::Warning);
    }

    fn worst(text: &str) -> Verdict {
        let findings = of_info(&Info::of(text));
        findings
            .iter()
            .map(|it| it.verdict)
            .max()
            .expect("a finding")
    }

    #[test]
    fn what_can_lose_locks_is_found() {
        let well = "redis_version:8.2.3\nrole:master\nmaxmemory:0\nmaxmemory_policy:noeviction\naof_enabled:0\n";
        assert_eq!(worst(well), Verdict::Well);
        assert_eq!(of_info(&Info::of(well)).len(), 4);
        assert_eq!(worst("role:slave"), Verdict::Failed);
        assert_eq!(worst("redis_version:5.0.14"), Verdict::Warning);
        assert_eq!(
            worst("redis_version:7.2.4\nvalkey_version:8.1.8"),
            Verdict::Well
        );
        let evicts = "maxmemory:1000\nmaxmemory_policy:allkeys-lru";
        assert_eq!(worst(evicts), Verdict::Warning);
        let slow = "connected_slaves:1\nslave0:ip=a,port=1,state=online,offset=1,lag=11";
        assert_eq!(worst(slow), Verdict::Warning);
        assert!(of_info(&Info::of("")).is_empty());
    }

    #[test]
    fn a_slot_without_a_node_and_a_sentinel_without_a_quorum_are_found() {
        let cluster = |text| of_cluster(&Info::of(text)).map(|it| it.verdict);
        let whole = "cluster_state:ok\ncluster_slots_ok:16384";
        let part = "cluster_state:ok\ncluster_slots_ok:16383";
        assert_eq!(cluster(whole), Some(Verdict::Well));
        assert_eq!(cluster(part), Some(Verdict::Failed));
        assert_eq!(cluster("cluster_state:fail"), Some(Verdict::Failed));
        assert_eq!(cluster(""), None);
        let well = ("a".to_owned(), Ok(()));
        let alone = ("b".to_owned(), Err("NOQUORUM".to_owned()));
        assert!(of_sentinels(Vec::new()).is_empty());
        assert_eq!(of_sentinels(vec![well.clone()])[0].verdict, Verdict::Well);
        let found = of_sentinels(vec![well, alone]);
        assert_eq!((found.len(), found[0].verdict), (1, Verdict::Warning));
    }

    #[test]
    fn a_round_trip_is_short_against_the_lease() {
        let trip = |millis| vec![Duration::from_millis(millis); 3];
        let lease = Duration::from_secs(1);
        assert_eq!(of_round_trips(trip(100), lease).verdict, Verdict::Well);
        assert_eq!(of_round_trips(trip(101), lease).verdict, Verdict::Warning);
        assert_eq!(of_clock(Duration::from_secs(3)).verdict, Verdict::Warning);
        let missing = |each_lock: &[&str], others: &[&str]| {
            let [each_lock, others] =
                [each_lock, others].map(|all| all.iter().map(|it| (*it).to_owned()).collect());
            of_rights(&Missing { each_lock, others })
        };
        assert_eq!(missing(&["+set"], &["+time"]).verdict, Verdict::Failed);
        assert_eq!(missing(&[], &["+time"]).verdict, Verdict::Warning);
        assert_eq!(missing(&[], &[]).verdict, Verdict::Well);
        assert_eq!(not_told("INFO", "NOPERM").verdict, Verdict::Warning);
    }
}
