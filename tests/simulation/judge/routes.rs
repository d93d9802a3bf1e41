//! Whether processes find the node that has a key: they read the map of a cluster after `MOVED`,
//! send `ASKING` after `ASK`, and, once they know of another node, ask it for all that they hold
//! and wait for.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::sync::scheduler::{has_failed, now, trace};
use crate::simulation::judge::events::OUTAGES;
use crate::simulation::judge::excuses::{Excuse, Excuses};
use crate::simulation::judge::{Hold, Judge};
use crate::simulation::plan::path;
use crate::simulation::redis::Heard;

/// How long after a `MOVED` a process asks for the map at the latest: it pauses for a second after
/// each map.
const MAP: Duration = Duration::from_millis(1_200);

/// How long after it has learned of another node a process asks it for what it holds, at the
/// latest, and uses a connection on which a replica has refused a command.
const AT_ONCE: Duration = Duration::from_millis(300);

/// The same for what it waits for: a thread that failed before is in a pause that nothing ends. One
/// that has asked the node before waits for an answer.
const SOON: Duration = Duration::from_millis(1_200);

#[derive(Default)]
pub(super) struct Routes {
    /// The nodes that had each key, one after the other, and since when. Empty: nobody asks.
    owners: Vec<Vec<(usize, u64)>>,
    /// When each process last asked for the map.
    maps: BTreeMap<usize, u64>,
    /// When each process last asked the node that has the key for it.
    asked: BTreeMap<(usize, usize), u64>,
    /// Where `ASK` has sent a process for a key: a node that never had it before.
    asks: BTreeMap<(usize, usize), usize>,
    /// When a replica has refused a command over a connection first: a node, and the number there.
    refused: BTreeMap<(usize, u64), u64>,
    /// Since when a process knows the last of a key's nodes.
    learned: BTreeMap<(usize, usize), u64>,
}

impl Judge {
    /// These nodes have the keys when the scene begins.
    pub(crate) fn owners_are(&self, owners: impl Iterator<Item = usize>) {
        let owners = owners.map(|node| vec![(node, now())]).collect();
        self.routes.with(|routes| routes.owners = owners);
    }

    /// Another node has the key.
    pub(crate) fn moved(&self, key: usize, node: usize) {
        self.routes.with(|routes| {
            if let Some(owners) = routes.owners.get_mut(key) {
                owners.push((node, now()));
                routes.learned.retain(|it, _| it.1 != key);
            }
        });
    }

    /// A node has answered a command of a process. `knows`: which node has each key, as far as the
    /// node knows.
    pub(crate) fn heard(
        &self,
        process: usize,
        node: usize,
        it: &Heard,
        knows: impl Fn(&[u8]) -> Option<usize>,
    ) {
        let keys = self.routes.with(|routes| routes.owners.len());
        if let Some(path_of) = &it.key {
            if let Some(key) = (0..keys).find(|key| path(*key) == path_of) {
                self.asks(process, node, key, it);
                self.leaves_replica(process, node, it);
            }
            return;
        }
        self.routes
            .with(|routes| routes.maps.insert(process, now()));
        for key in 0..keys {
            let owner = self.routes.with(|it| it.owners[key].last().map(|it| it.0));
            let is_hello = it.command == "hello";
            let shows = if is_hello {
                Some(node)
            } else {
                knows(path(key))
            };
            if it.code.is_empty() && shows == owner {
                self.learns(process, key);
            }
        }
    }

    /// A process asks for a key.
    fn asks(&self, process: usize, node: usize, key: usize, it: &Heard) {
        let lacks_asking = self.routes.with(|routes| {
            let owners = &routes.owners[key];
            if owners.last().is_some_and(|it| it.0 == node) {
                routes.asked.insert((process, key), now());
            }
            let had = |node: usize| owners.iter().any(|it| it.0 == node);
            match it.to.filter(|to| !had(*to)) {
                Some(to) => _ = routes.asks.insert((process, key), to),
                None if had(node) => {}
                None => return !it.asking && routes.asks.get(&(process, key)) == Some(&node),
            }
            false
        });
        // A node that refuses everything has refused the `ASKING` as well.
        if lacks_asking && !self.is_forgiven(process, &OUTAGES, now()) {
            has_failed(format!(
                "process {process} asks node {node} for {key} without ASKING"
            ));
        }
        if it.code == "MOVED" {
            let at = now();
            self.later(MAP, move |judge| {
                let map = judge.routes.with(|it| it.maps.get(&process).copied());
                let [slow, broken, away] = OUTAGES;
                let excuses = [slow, broken, away, Excuse::Failover];
                if map.is_none_or(|it| it < at) && !judge.is_forgiven(process, &excuses, at) {
                    has_failed(format!(
                        "process {process} wants no map after MOVED for {key}"
                    ));
                }
            });
        }
    }

    /// A connection to a replica is not used again.
    fn leaves_replica(&self, process: usize, node: usize, it: &Heard) {
        if it.code != "READONLY" {
            return;
        }
        let at = self
            .routes
            .with(|routes| *routes.refused.entry((node, it.client)).or_insert(now()));
        if Duration::from_nanos(now() - at) > AT_ONCE && !self.is_forgiven(process, &OUTAGES, at) {
            has_failed(format!(
                "process {process} goes on with a connection to a replica, {node}"
            ));
        }
    }

    /// A process learns which node has a key. It asks that for what it holds and waits for.
    fn learns(&self, process: usize, key: usize) {
        let since = self.routes.with(|routes| {
            let is_new = routes.learned.insert((process, key), now()).is_none();
            // If the key went away and came back between two maps, these are the same: what was
            // taken meanwhile is found at its next renewal.
            let (last, before) = routes.owners[key].split_last()?;
            let is_another = !before.is_empty() && before.iter().all(|it| it.0 != last.0);
            (is_new && is_another).then_some(last.1)
        });
        let (at, Some(since)) = (now(), since) else {
            return;
        };
        // Nobody knows which of two managers has learned of it.
        if self.program(process).managers > 1 {
            return;
        }
        let answer = Duration::from_millis(self.program(process).response);
        for (needs, limit) in [
            (Judge::relies as fn(&Judge, _, _, _) -> _, AT_ONCE),
            (Judge::waits, SOON + 3 * answer),
        ] {
            if !needs(self, process, key, since) {
                continue;
            }
            trace(|| format!("process {process} knows the new node of {key}"));
            self.later(limit, move |judge| {
                let has_asked = judge.routes.with(|routes| {
                    let is_old = routes.owners[key].last().is_none_or(|it| it.1 != since);
                    let asked = routes.asked.get(&(process, key));
                    is_old || asked.is_some_and(|it| *it >= since)
                });
                if !has_asked
                    && needs(judge, process, key, since)
                    && !judge.is_away(process)
                    && !judge.forgives(
                        judge.hindrance(process, &OUTAGES, at) | judge.fails_over(since, now()),
                    )
                {
                    has_failed(format!(
                        "process {process} does not ask the new node of {key}, which it knows"
                    ));
                }
            });
        }
    }

    /// Whether the process has had a hold since then, which it renews.
    fn relies(&self, process: usize, key: usize, since: u64) -> bool {
        let is_it = |hold: &Hold| {
            (hold.who.process, hold.key) == (process, key)
                && hold.began < since
                && hold.ended.is_none()
                && hold.terms.ends.is_empty()
        };
        self.holds(is_it).iter().any(|it| it.1.is_valid())
    }

    /// The process asks nobody any more.
    fn is_away(&self, process: usize) -> bool {
        self.is_dead(process) || self.is_over(process)
    }

    fn hindrance(&self, process: usize, which: &[Excuse], at: u64) -> Excuses {
        let since = at.saturating_sub(5_000_000_000);
        self.pause_of(process, at) | self.trouble_of(which, since, now())
    }

    fn is_forgiven(&self, process: usize, which: &[Excuse], at: u64) -> bool {
        self.is_away(process) || self.forgives(self.hindrance(process, which, at))
    }
}
