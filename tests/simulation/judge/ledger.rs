//! What the servers had at each moment, and what went wrong when.
//!
//! The times are the true ones, in nanoseconds.

use std::cell::RefCell;
use std::time::Duration;

use crate::base::sync::scheduler::{START, later, now};
use crate::simulation::judge;
use crate::simulation::judge::{routes, turns};
use crate::simulation::redis::{Redis, Value};
use crate::simulation::scene::path;
use crate::simulation::scene::plan::Plan;

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

#[derive(Default)]
struct Ledger {
    /// What each key had at each node, one after the other. No nodes: nobody can tell.
    keys: Vec<Vec<Vec<Entry>>>,
    /// What goes wrong, from when, until when.
    troubles: Vec<(Kind, u64, u64)>,
    /// Threads may be slow at any time.
    stalls: bool,
}

/// What goes wrong. Each kind comes with less surprise to programs than those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Connections end, or data are lost. New connections work at once.
    Break,
    /// The network, or a server.
    Outage,
    Failover,
    Move,
}

#[derive(Clone, Debug)]
struct Entry {
    since: u64,
    /// `None`: the key is not there.
    value: Option<Vec<u8>>,
    expires: bool,
    /// When it runs out, by the node's clock.
    runs_out: Option<u64>,
    /// The node is a master, as far as it knows.
    rules: bool,
}

impl Entry {
    /// What the node gives away, or keeps from others.
    fn counts(&self) -> Option<&[u8]> {
        self.value.as_deref().filter(|_| self.rules)
    }
}

/// The longest that a call waits for an answer, in nanoseconds.
const LONGEST: u64 = 6_000_000_000;

/// A new scene begins, with so many nodes.
pub(crate) fn begin(plan: &Plan, nodes: usize) {
    let keys = vec![vec![Vec::new(); nodes]; plan.keys];
    let troubles = plan.troubles().into_iter();
    let troubles = troubles
        .map(|(kind, from, until)| (kind, START + from, START + until))
        .collect();
    LEDGER.set(Ledger {
        keys,
        troubles,
        stalls: plan.order.stalls > 0,
    });
}

/// Nothing is recorded.
pub(crate) fn rest() {
    LEDGER.take();
    routes::begin([].into_iter());
}

/// A node may have changed something.
pub(crate) fn saw(node: usize, redis: &Redis) {
    let count = LEDGER.with_borrow(|ledger| {
        ledger
            .keys
            .iter()
            .take_while(|nodes| node < nodes.len())
            .count()
    });
    for key in 0..count {
        let entry = redis.get(path(key));
        let value = entry.map(|entry| match &entry.value {
            Value::String(value) => value.as_slice(),
            Value::List(_) => &b"a list"[..],
        });
        let expires = entry.is_none_or(|entry| entry.expires.is_some());
        let runs_out = entry.and_then(|entry| redis.runs_out(entry));
        let rules = !redis.is_replica();
        let gone = LEDGER.with_borrow_mut(|ledger| {
            let all = &mut ledger.keys[key][node];
            let is_same = |it: &Entry| {
                it.value.as_deref() == value && (it.expires, it.rules) == (expires, rules)
            };
            if let Some((at, value)) = runs_out.zip(value)
                && all.last().is_none_or(|it| it.runs_out != runs_out)
            {
                runs_out_at(key, at, value);
            }
            if all.last().map_or(value.is_none(), is_same) {
                all.last_mut()
                    .into_iter()
                    .for_each(|it| it.runs_out = runs_out);
                return None;
            }
            let before = all.last().and_then(|it| it.counts().map(<[u8]>::to_vec));
            all.push(Entry {
                since: now(),
                value: value.map(<[u8]>::to_vec),
                expires,
                runs_out,
                rules,
            });
            before.filter(|it| !ledger.newest(key).any(|other| other == it))
        });
        if let Some(token) = gone {
            judge::gone(key, &String::from_utf8_lossy(&token));
            if !is_there(key) {
                turns::is_free(key);
            }
        }
    }
}

/// No thread trusts a token that has run out at all nodes, whatever went wrong.
fn runs_out_at(key: usize, at: u64, value: &[u8]) {
    let token = String::from_utf8_lossy(value).into_owned();
    later(Duration::from_nanos(at.saturating_sub(now())), move || {
        let lives = |it: &Entry| {
            it.value.as_deref() == Some(token.as_bytes()) && it.runs_out.is_none_or(|at| at > now())
        };
        let is_there = LEDGER.with_borrow(|ledger| {
            ledger
                .keys
                .get(key)
                .into_iter()
                .flatten()
                .filter_map(|all| all.last())
                .any(lives)
        });
        if !is_there {
            judge::has_run_out(key, &token);
        }
    });
}

impl Ledger {
    /// What masters have.
    fn newest(&self, key: usize) -> impl Iterator<Item = &[u8]> {
        self.keys
            .get(key)
            .into_iter()
            .flatten()
            .filter_map(|all| all.last()?.counts())
    }
}

/// Whether a master has this token.
pub(crate) fn has(key: usize, token: &str) -> bool {
    LEDGER.with_borrow(|ledger| ledger.newest(key).any(|it| it == token.as_bytes()))
}

/// Whether a master has the key.
pub(crate) fn is_there(key: usize) -> bool {
    LEDGER.with_borrow(|ledger| ledger.newest(key).next().is_some())
}

/// Whether a master had the key at some time since then. Yes if nobody can tell.
pub(crate) fn was_there(key: usize, since: u64) -> bool {
    any_since(key, since, |entry| entry.counts().is_some())
}

/// Whether a node had this token at some time since then. Yes if nobody can tell.
pub(crate) fn had(key: usize, since: u64, token: &str) -> bool {
    any_since(key, since, |entry| {
        entry.value.as_deref() == Some(token.as_bytes())
    })
}

fn any_since(key: usize, since: u64, is_it: impl Fn(&Entry) -> bool) -> bool {
    LEDGER.with_borrow(|ledger| {
        let was_at = |all: &Vec<Entry>| {
            let ends = all.iter().skip(1).map(|next| next.since).chain([u64::MAX]);
            all.iter()
                .zip(ends)
                .any(|(entry, end)| is_it(entry) && end >= since)
        };
        ledger
            .keys
            .get(key)
            .is_none_or(|nodes| nodes.is_empty() || nodes.iter().any(was_at))
    })
}

/// How many nodes have had this token. `None` if nobody can tell.
pub(crate) fn copies(key: usize, token: &str) -> Option<usize> {
    let had = |all: &&Vec<Entry>| {
        all.iter()
            .any(|it| it.value.as_deref() == Some(token.as_bytes()))
    };
    LEDGER.with_borrow(|ledger| {
        let nodes = ledger.keys.get(key).filter(|nodes| !nodes.is_empty())?;
        Some(nodes.iter().filter(had).count())
    })
}

/// Whether there is one server, which knows everything.
pub(crate) fn is_one() -> bool {
    LEDGER.with_borrow(|ledger| ledger.keys.iter().all(|nodes| nodes.len() == 1))
}

/// When a master gave the lock to this token last. (Without replicas, it may have taken it back
/// before.)
pub(crate) fn order(key: usize, token: &str) -> Option<u64> {
    let is_it = |it: &Entry| it.counts() == Some(token.as_bytes());
    let given = |all: &Vec<Entry>| {
        let before = [None].into_iter().chain(all.iter().map(Some));
        let is_given = |(it, before): &(&Entry, Option<&Entry>)| {
            is_it(it) && before.is_none_or(|it| it.rules && !is_it(it))
        };
        all.iter()
            .zip(before)
            .filter(is_given)
            .map(|(it, _)| it.since)
            .max()
    };
    LEDGER.with_borrow(|ledger| ledger.keys.get(key)?.iter().filter_map(given).max())
}

/// Whether anything went wrong between these moments, or threads may have been slow.
pub(crate) fn trouble(from: u64, until: u64) -> bool {
    trouble_of(Kind::Move, from, until)
}

/// The same for what surprises no less than `least`.
pub(crate) fn trouble_of(least: Kind, from: u64, until: u64) -> bool {
    let is_near = |it: &(Kind, u64, u64)| it.0 <= least && it.1 <= until && it.2 >= from;
    LEDGER.with_borrow(|ledger| ledger.stalls || ledger.troubles.iter().any(is_near))
}

/// Whether renewals may have failed between these moments for as long as leases last. (A single
/// break leaves time for another try.)
pub(crate) fn may_end_leases(from: u64, until: u64) -> bool {
    LEDGER.with_borrow(|ledger| {
        let near = |it: &&(Kind, u64, u64)| it.1 <= until && it.2 >= from;
        let kinds: Vec<_> = ledger.troubles.iter().filter(near).map(|it| it.0).collect();
        ledger.stalls || kinds.len() > 1 || kinds.iter().any(|kind| *kind > Kind::Break)
    })
}

/// Whether a failover begins in that time: its first step may silence a node.
pub(crate) fn fails_over(from: u64, until: u64) -> bool {
    let begins = |it: &(Kind, u64, u64)| it.0 == Kind::Failover && (from..=until).contains(&it.1);
    LEDGER.with_borrow(|ledger| ledger.troubles.iter().any(begins))
}

/// What is left of a key at the end of a scene that nothing explains: `Err`. All that may be left
/// has an expiry. A kept lock may be left, one that `may_stay`, and any that met trouble when it
/// was taken or given back last.
pub(crate) fn is_clean(key: usize, may_stay: impl Fn(&str) -> bool) -> Result<(), String> {
    let is_left = |it: &&Entry| {
        let Some(value) = it.counts().map(String::from_utf8_lossy) else {
            return false;
        };
        let last = judge::ended(key, &value).map_or(it.since, |ended| ended.max(it.since));
        let met_trouble = || trouble(last.saturating_sub(LONGEST), last + LONGEST);
        !it.expires || !value.starts_with("kept:") && !may_stay(&value) && !met_trouble()
    };
    LEDGER.with_borrow(|ledger| {
        let last = ledger.keys[key].iter().filter_map(|all| all.last());
        last.into_iter()
            .find(is_left)
            .map_or(Ok(()), |it| Err(format!("key {key} has {it:?} at the end")))
    })
}

/// Whether threads may be slow at any time.
pub(crate) fn stalls() -> bool {
    LEDGER.with_borrow(|ledger| ledger.stalls)
}
