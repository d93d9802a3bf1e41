//! What the servers had at each moment. The times are the true ones, in nanoseconds.

use std::borrow::Cow;
use std::time::Duration;

use crate::base::sync::scheduler::now;
use crate::simulation::judge::Judge;
use crate::simulation::judge::excuses::Excuses;
use crate::simulation::plan::{Plan, path};
use crate::simulation::redis::{Redis, Value};

pub(super) struct Ledger {
    /// What each key had at each node, one after the other. No nodes: nobody can tell.
    keys: Vec<Vec<Vec<Entry>>>,
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
    fn is(&self, token: &str) -> bool {
        self.value.as_deref() == Some(token.as_bytes())
    }

    /// What the node gives away, or keeps from others.
    fn counts(&self) -> Option<&[u8]> {
        self.value.as_deref().filter(|_| self.rules)
    }
}

/// The longest that a call waits for an answer, in nanoseconds.
const LONGEST: u64 = 6_000_000_000;

impl Ledger {
    pub(super) fn of(plan: &Plan) -> Ledger {
        let keys = vec![vec![Vec::new(); plan.engine.nodes()]; plan.keys];
        Ledger { keys }
    }

    /// The last entry of each node.
    fn newest(&self, key: usize) -> impl Iterator<Item = &Entry> {
        self.keys[key].iter().filter_map(|all| all.last())
    }

    /// Whether a master has this token.
    pub(super) fn has(&self, key: usize, token: &str) -> bool {
        self.newest(key)
            .any(|it| it.counts() == Some(token.as_bytes()))
    }

    /// When the last master forgets this token. Zero: none has it.
    pub(super) fn runs_out(&self, key: usize, token: &str) -> u64 {
        let has = self.newest(key).filter(|it| it.rules && it.is(token));
        has.filter_map(|it| it.runs_out).max().unwrap_or(0)
    }

    /// Whether a master has the key.
    fn is_there(&self, key: usize) -> bool {
        self.newest(key).any(|it| it.counts().is_some())
    }

    /// Whether a master had the key at some time since then. Yes if nobody can tell.
    pub(super) fn was_there(&self, key: usize, since: u64) -> bool {
        self.any_since(key, since, |entry| entry.counts().is_some())
    }

    /// Whether a node had this token at some time since then. Yes if nobody can tell.
    pub(super) fn had(&self, key: usize, since: u64, token: &str) -> bool {
        self.any_since(key, since, |entry| entry.is(token))
    }

    fn any_since(&self, key: usize, since: u64, is_it: impl Fn(&Entry) -> bool) -> bool {
        let was_at = |all: &Vec<Entry>| {
            let ends = all.iter().skip(1).map(|next| next.since).chain([u64::MAX]);
            let mut all = all.iter().zip(ends);
            all.any(|(entry, end)| is_it(entry) && end >= since)
        };
        self.keys[key].is_empty() || self.keys[key].iter().any(was_at)
    }

    /// How many nodes have had this token. `None` if nobody can tell.
    pub(super) fn copies(&self, key: usize, token: &str) -> Option<usize> {
        let had = |all: &&Vec<Entry>| all.iter().any(|it| it.is(token));
        let nodes = Some(&self.keys[key]).filter(|nodes| !nodes.is_empty())?;
        Some(nodes.iter().filter(had).count())
    }

    /// When a master gave the lock to this token last. (Without replicas, it may have taken it back
    /// before.)
    pub(super) fn order(&self, key: usize, token: &str) -> Option<u64> {
        let is_it = |it: &Entry| it.rules && it.is(token);
        let given = |all: &Vec<Entry>| {
            let before = [None].into_iter().chain(all.iter().map(Some));
            let is_given = |(it, before): &(&Entry, Option<&Entry>)| {
                is_it(it) && before.is_none_or(|it| it.rules && !is_it(it))
            };
            let given = all.iter().zip(before).filter(is_given);
            given.map(|(it, _)| it.since).max()
        };
        self.keys[key].iter().filter_map(given).max()
    }

    /// Notes what a node has now. Returns what no master has any more, and what runs out when.
    fn notes(&mut self, key: usize, node: usize, redis: &Redis) -> (Option<String>, Option<u64>) {
        let entry = redis.get(path(key));
        let value = entry.map(|entry| match &entry.value {
            Value::String(value) => value.as_slice(),
            Value::List(_) => &b"a list"[..],
        });
        let new = |value: Option<&[u8]>| Entry {
            since: now(),
            value: value.map(<[u8]>::to_vec),
            expires: entry.is_none_or(|entry| entry.expires.is_some()),
            runs_out: entry.and_then(|entry| redis.runs_out(entry)),
            rules: !redis.is_replica(),
        };
        let runs_out = entry.and_then(|entry| redis.runs_out(entry));
        let all = &mut self.keys[key][node];
        let is_new = all.last().is_none_or(|it| it.runs_out != runs_out);
        let ends = runs_out.filter(|_| is_new);
        let expires = entry.is_none_or(|entry| entry.expires.is_some());
        if let Some(last) = all.last_mut()
            && last.value.as_deref() == value
            && (last.expires, last.rules) == (expires, !redis.is_replica())
        {
            last.runs_out = runs_out;
            return (None, ends);
        }
        if all.is_empty() && value.is_none() {
            return (None, None);
        }
        let before = all
            .last()
            .and_then(Entry::counts)
            .map(String::from_utf8_lossy);
        let before = before.map(Cow::into_owned);
        all.push(new(value));
        (before.filter(|it| !self.has(key, it)), ends)
    }
}

impl Judge {
    /// A node may have changed something.
    pub(crate) fn saw(&self, node: usize, redis: &Redis) {
        // (A sentinel has no keys.)
        let count = if node < self.plan.engine.nodes() {
            self.keys()
        } else {
            0
        };
        for key in 0..count {
            let (gone, ends) = self.ledger.with(|it| it.notes(key, node, redis));
            if let Some(at) = ends {
                self.runs_out_at(key, node, at);
            }
            if let Some(token) = gone {
                self.gone(key, &token);
                if !self.ledger.with(|it| it.is_there(key)) {
                    self.is_free(key);
                }
            }
        }
    }

    /// No thread trusts a token that has run out at all nodes, whatever went wrong.
    fn runs_out_at(&self, key: usize, node: usize, at: u64) {
        let token = self
            .ledger
            .with(|it| it.keys[key][node].last()?.value.clone());
        let token = String::from_utf8_lossy(&token.unwrap_or_default()).into_owned();
        self.is_extended(key, &token, at);
        let (left, again) = (at.saturating_sub(now()), token.clone());
        let soon = Duration::from_nanos(left.saturating_sub(200_000_000));
        self.later(soon, move |judge| judge.is_left(key, &again, at));
        self.later(
            Duration::from_nanos(at.saturating_sub(now())),
            move |judge| {
                let lives = |it: &Entry| it.is(&token) && it.runs_out.is_none_or(|at| at > now());
                if !judge.ledger.with(|it| it.newest(key).any(lives)) {
                    judge.has_run_out(key, &token);
                }
            },
        );
    }

    /// What is left of a key at the end of a scene that nothing explains: `Err`. All that may be
    /// left has an expiry. A kept lock may be left, one that `may_stay`, and any that met trouble
    /// when it was taken or given back last.
    pub(crate) fn is_clean(
        &self,
        key: usize,
        may_stay: impl Fn(&str) -> Excuses,
    ) -> Result<(), String> {
        let newest: Vec<_> = self.ledger.with(|it| it.newest(key).cloned().collect());
        let is_left = |it: &&Entry| {
            let Some(value) = it.counts().map(String::from_utf8_lossy) else {
                return false;
            };
            let ended = self.holds(|hold| hold.key == key && hold.token == value);
            let ended = ended.first().and_then(|it| it.1.ended).unwrap_or(0);
            let last = ended.max(it.since);
            let trouble = || self.trouble(last.saturating_sub(LONGEST), last + LONGEST);
            let is_kept = value.starts_with("kept:");
            !it.expires || !is_kept && !self.forgives(may_stay(&value) | trouble())
        };
        let left = newest.iter().find(is_left);
        left.map_or(Ok(()), |it| Err(format!("key {key} has {it:?} at the end")))
    }

    /// Unless there is one server, which knows everything, trouble may bring a key back.
    pub(super) fn may_come_back(&self, trouble: Excuses) -> Excuses {
        let is_one = self.plan.engine.nodes() == 1;
        if is_one { Excuses::NONE } else { trouble }
    }
}
