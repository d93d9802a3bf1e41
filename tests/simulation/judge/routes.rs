//! Whether processes find the node that has a key: they read the map of a cluster after `MOVED`,
//! send `ASKING` after `ASK`, and, once they know of another node, ask it for all that they hold
//! and wait for.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::base::sync::scheduler::{has_failed, later, now, trace};
use crate::simulation::judge;
use crate::simulation::judge::ledger::{self, Kind};
use crate::simulation::judge::turns;
use crate::simulation::redis::Heard;
use crate::simulation::scene::path;

/// How long after a `MOVED` a process asks for the map at the latest: it pauses for a second after
/// each map.
const MAP: Duration = Duration::from_millis(1_200);

/// How long after it has learned of another node a process asks it for what it holds, at the
/// latest, and uses a connection on which a replica has refused a command.
const AT_ONCE: Duration = Duration::from_millis(300);

/// The same for what it waits for: a thread that failed before is in a pause that nothing ends. One
/// that has asked the node before waits for an answer.
const SOON: Duration = Duration::from_millis(1_200);

thread_local! {
    static ROUTES: RefCell<Routes> = RefCell::default();
}

#[derive(Default)]
struct Routes {
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

/// A new scene begins, in which these nodes have the keys.
pub(crate) fn begin(owners: impl Iterator<Item = usize>) {
    let owners = owners.map(|node| vec![(node, now())]).collect();
    ROUTES.set(Routes {
        owners,
        ..Routes::default()
    });
}

/// Another node has the key.
pub(crate) fn moved(key: usize, node: usize) {
    ROUTES.with_borrow_mut(|routes| {
        let Some(owners) = routes.owners.get_mut(key) else {
            return;
        };
        owners.push((node, now()));
        routes.learned.retain(|it, _| it.1 != key);
    });
}

/// A node has answered a command of a process. `knows`: which node has each key, as far as the node
/// knows.
pub(crate) fn heard(
    process: usize,
    node: usize,
    it: &Heard,
    knows: impl Fn(&[u8]) -> Option<usize>,
) {
    let keys = ROUTES.with_borrow(|routes| routes.owners.len());
    if let Some(path_of) = &it.key {
        if let Some(key) = (0..keys).find(|key| path(*key) == path_of) {
            asks(process, node, key, it);
            leaves_replica(process, node, it);
        }
        return;
    }
    ROUTES.with_borrow_mut(|routes| routes.maps.insert(process, now()));
    for key in 0..keys {
        let owner = ROUTES.with_borrow(|routes| routes.owners[key].last().map(|it| it.0));
        let shows = if it.command == "hello" {
            Some(node)
        } else {
            knows(path(key))
        };
        if it.code.is_empty() && shows == owner {
            learns(process, key);
        }
    }
}

/// A process asks for a key.
fn asks(process: usize, node: usize, key: usize, it: &Heard) {
    let lacks_asking = ROUTES.with_borrow_mut(|routes| {
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
    if lacks_asking && !is_excused(process, Kind::Outage, now()) {
        has_failed(format!(
            "process {process} asks node {node} for {key} without ASKING"
        ));
    }
    if it.code == "MOVED" {
        let at = now();
        later(MAP, move || {
            let has_asked =
                ROUTES.with_borrow(|routes| routes.maps.get(&process).is_some_and(|it| *it >= at));
            if !has_asked && !is_excused(process, Kind::Failover, at) {
                has_failed(format!(
                    "process {process} wants no map after MOVED for {key}"
                ));
            }
        });
    }
}

/// A connection to a replica is not used again.
fn leaves_replica(process: usize, node: usize, it: &Heard) {
    let refused = ROUTES.with_borrow_mut(|routes| match &*it.code {
        "READONLY" => Some(*routes.refused.entry((node, it.client)).or_insert(now())),
        _ => None,
    });
    if let Some(at) = refused
        && Duration::from_nanos(now() - at) > AT_ONCE
        && !is_excused(process, Kind::Outage, at)
    {
        has_failed(format!(
            "process {process} goes on with a connection to a replica, {node}"
        ));
    }
}

/// A process learns which node has a key. It asks that for what it holds and waits for.
fn learns(process: usize, key: usize) {
    let since = ROUTES.with_borrow_mut(|routes| {
        let is_new = routes.learned.insert((process, key), now()).is_none();
        // If the key went away and came back between two maps, these are the same: what was taken
        // meanwhile is found at its next renewal.
        let (last, before) = routes.owners[key].split_last()?;
        let is_another = !before.is_empty() && before.iter().all(|it| it.0 != last.0);
        (is_new && is_another).then_some(last.1)
    });
    let (at, Some(since)) = (now(), since) else {
        return;
    };
    // Nobody knows which of two managers has learned of it.
    if judge::program(process).managers > 1 {
        return;
    }
    let answer = Duration::from_millis(judge::program(process).response);
    for (needs, limit) in [
        (judge::relies as fn(_, _, _) -> _, AT_ONCE),
        (turns::waits, SOON + 3 * answer),
    ] {
        if !needs(process, key, since) {
            continue;
        }
        trace(|| format!("process {process} knows the new node of {key}"));
        later(limit, move || {
            let has_asked = ROUTES.with_borrow(|routes| {
                let is_old = routes.owners[key].last().is_none_or(|it| it.1 != since);
                is_old
                    || routes
                        .asked
                        .get(&(process, key))
                        .is_some_and(|it| *it >= since)
            });
            let is_excused =
                || is_excused(process, Kind::Outage, at) || ledger::fails_over(since, now());
            if !has_asked && needs(process, key, since) && !is_excused() {
                has_failed(format!(
                    "process {process} does not ask the new node of {key}, which it knows"
                ));
            }
        });
    }
}

fn is_excused(process: usize, least: Kind, at: u64) -> bool {
    judge::is_dead(process)
        || judge::was_paused(process, at)
        || judge::is_over(process)
        || ledger::trouble_of(least, at.saturating_sub(5_000_000_000), now())
}
