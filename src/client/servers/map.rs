//! The map of a cluster: which node has which slot.

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::base::random;
use crate::client::servers::node::Node;
use crate::client::servers::slots::{SLOTS, hash_tag, slot};

/// How many keys are tried to find one in a slot of a node. A node with a single slot is missed
/// once in `e^16` times.
const MOST_TRIES: usize = 16 * SLOTS as usize;

pub(crate) struct Map {
    pub(crate) masters: Vec<Arc<Node>>,
    /// For each slot, the place of its master in `masters`, or [`NOBODY`].
    owners: Box<[u16]>,
}

const NOBODY: u16 = u16::MAX;

impl Map {
    /// A slot that is in no range keeps the node that it had `before`: a redirect shows if that is
    /// wrong.
    pub(crate) fn new(
        ranges: impl Iterator<Item = (RangeInclusive<u16>, Arc<Node>)>,
        before: Option<&Map>,
    ) -> Map {
        let mut map = Map {
            masters: Vec::new(),
            owners: vec![NOBODY; usize::from(SLOTS)].into(),
        };
        for (slots, node) in ranges {
            let at = map.place_of(&node);
            map.owners[usize::from(*slots.start())..=usize::from(*slots.end())].fill(at);
        }
        let Some(before) = before.filter(|_| map.owners.contains(&NOBODY)) else {
            return map;
        };
        for slot in 0..SLOTS {
            if map.owners[usize::from(slot)] == NOBODY
                && let Some(node) = before.owner(slot)
            {
                map.owners[usize::from(slot)] = map.place_of(node);
            }
        }
        map
    }

    /// The place of this node in `masters`. Adds it if it is not there.
    fn place_of(&mut self, node: &Arc<Node>) -> u16 {
        let known = self
            .masters
            .iter()
            .position(|master| master.number == node.number);
        let at = known.unwrap_or_else(|| {
            self.masters.push(Arc::clone(node));
            self.masters.len() - 1
        });
        u16::try_from(at).unwrap_or(NOBODY) // There are fewer masters than slots.
    }

    pub(crate) fn owner(&self, slot: u16) -> Option<&Arc<Node>> {
        self.masters
            .get(usize::from(self.owners[usize::from(slot)]))
    }

    /// True if the node has a slot.
    pub(crate) fn has(&self, node: &Node) -> bool {
        self.masters
            .iter()
            .any(|master| master.number == node.number)
    }

    /// For each slot, whether it has a different node than in `before`. Empty if each surely has
    /// the same one, as is nearly always the case.
    pub(crate) fn differs_from(&self, before: &Map) -> Vec<bool> {
        let is_same = |(one, other): (&Arc<Node>, &Arc<Node>)| one.number == other.number;
        if self.owners == before.owners && self.masters.iter().zip(&before.masters).all(is_same) {
            return Vec::new();
        }
        let number = |map: &Map, slot| map.owner(slot).map(|node| node.number);
        (0..SLOTS)
            .map(|slot| number(before, slot) != number(self, slot))
            .collect()
    }

    /// A key in a slot of this node, made from `stem`. `None` if there is none, or it is not found.
    ///
    /// Each call finds another key: the slot of one may be on its way to another node. If `stem`
    /// has a hash tag, all its keys are in one slot.
    pub(crate) fn key_at(&self, node: &Node, stem: &str) -> Option<String> {
        // A master that was replaced has no slot any more. All tries would fail, and use a core for
        // tens of milliseconds: in a debug build, on a busy machine, for seconds.
        if !self.has(node) {
            return None;
        }
        let is_there = |key: &String| {
            self.owner(slot(key.as_bytes()))
                .is_some_and(|owner| owner.number == node.number)
        };
        let tries = if hash_tag(stem.as_bytes()).is_some() {
            1
        } else {
            MOST_TRIES
        };
        let first = random::bits().unwrap_or_default() >> 64;
        (first..)
            .take(tries)
            .map(|n| format!("{stem}{{{n}}}"))
            .find(is_there)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::options::Settings;
    use crate::client::servers::topology::Topology;
    use crate::client::url::target::Target;

    fn nodes<const N: usize>() -> [Arc<Node>; N] {
        let node = || {
            let topology = Topology::new(Target::nowhere(), &Settings::default());
            topology.unwrap().known_node_of("").unwrap()
        };
        std::array::from_fn(|_| node())
    }

    fn map(ranges: &[(RangeInclusive<u16>, &Arc<Node>)], before: Option<&Map>) -> Map {
        Map::new(
            ranges
                .iter()
                .map(|(slots, node)| (slots.clone(), Arc::clone(node))),
            before,
        )
    }

    #[test]
    fn a_slot_that_a_map_leaves_out_keeps_its_node() {
        let [a, b] = nodes();
        let before = map(&[(0..=99, &a), (100..=16383, &b)], None);
        let after = map(&[(50..=99, &b)], Some(&before));
        let owner = |slot| after.owner(slot).unwrap().number;
        assert_eq!(
            [0, 49, 50, 99, 100, 16383].map(owner),
            [&a, &a, &b, &b, &b, &b].map(|node| node.number)
        );
        let moved = after.differs_from(&before);
        assert!((0..SLOTS).all(|slot| moved[usize::from(slot)] == (50..=99).contains(&slot)));
        assert!(map(&[(0..=99, &a)], None).owner(100).is_none());
        assert!(after.has(&a) && !map(&[(0..=16383, &b)], Some(&before)).has(&a));
    }

    #[test]
    fn a_key_is_found_for_each_node_with_a_slot() {
        let [a, b, c] = nodes();
        let map = map(&[(0..=0, &a), (1..=16383, &b)], None);
        let key = map.key_at(&a, "lock:probe").unwrap();
        assert_eq!(slot(key.as_bytes()), 0);
        assert_ne!(
            map.key_at(&a, "lock:probe").unwrap(),
            key,
            "its slot may be on its way"
        );
        assert!(map.key_at(&b, "lock:probe").is_some() && map.key_at(&c, "lock:probe").is_none());
        // All keys with this prefix are in one slot, which is that of b.
        assert!(
            map.key_at(&b, "{shop}:probe").is_some() && map.key_at(&a, "{shop}:probe").is_none()
        );
    }
}
