//! Slots that are moved from one master to another.

use std::collections::BTreeMap;

use redis::RedisResult;

use super::Cluster;
use crate::server_version;

/// How many slots are moved at a time, if there are many. Meanwhile their clients are redirected.
const AT_A_TIME: usize = 1000;

/// Slots that are on their way from one master to another. Nothing more happens if this is dropped.
#[derive(Debug)]
#[must_use]
pub struct SlotMove<'a> {
    cluster: &'a Cluster,
    slots: Vec<String>,
    from: usize,
    to: usize,
}

impl Cluster {
    /// Begins to move a slot: from now on, the old owner sends those who ask for a key that it does
    /// not have to the new one.
    #[track_caller]
    pub fn begin_move(&self, slot: u16, to: usize) -> SlotMove<'_> {
        let from = self.owner(slot);
        assert_ne!(from, to, "slot {slot} is there already");
        SlotMove::begin(self, &[slot], from, to)
    }

    /// Moves a slot with its keys, and returns when all nodes know. Does nothing if it is there
    /// already.
    #[track_caller]
    pub fn move_slot(&self, slot: u16, to: usize) {
        self.move_slots(&[slot], to);
    }

    /// Like [`move_slot`](Self::move_slot), for several slots.
    #[track_caller]
    pub fn move_slots(&self, slots: &[u16], to: usize) {
        let owners = self.owners();
        let mut by_owner = BTreeMap::<usize, Vec<u16>>::new();
        for &slot in slots {
            let from = owners[usize::from(slot)].expect("a slot with an owner");
            by_owner.entry(from).or_default().push(slot);
        }
        by_owner.remove(&to);
        for (from, slots) in by_owner {
            for part in slots.chunks(AT_A_TIME) {
                let moving = SlotMove::begin(self, part, from, to);
                moving.move_keys();
                moving.assign();
            }
        }
        self.until_owned_by(slots, to);
    }
}

impl<'a> SlotMove<'a> {
    #[track_caller]
    fn begin(cluster: &'a Cluster, slots: &[u16], from: usize, to: usize) -> SlotMove<'a> {
        let slots = slots.iter().map(u16::to_string).collect();
        let moving = SlotMove {
            cluster,
            slots,
            from,
            to,
        };
        let [source, target] = [from, to].map(|place| cluster.nodes[place].id.as_str());
        moving
            .set(to, &["IMPORTING", source])
            .expect("a slot can be imported");
        moving
            .set(from, &["MIGRATING", target])
            .expect("a slot can be given away");
        moving
    }

    /// Moves the keys that are at the old owner now.
    #[track_caller]
    pub fn move_keys(&self) {
        let from = self.cluster.server(self.from);
        let count = |slot| vec!["CLUSTER", "COUNTKEYSINSLOT", slot];
        let counts = from
            .batch(&self.for_each(count))
            .expect("the keys can be counted");
        for (slot, count) in self.slots.iter().zip(counts) {
            if redis::from_redis_value::<u64>(count).expect("a number") > 0 {
                self.move_keys_of(slot);
            }
        }
    }

    #[track_caller]
    fn move_keys_of(&self, slot: &str) {
        let (from, to) = (self.cluster.server(self.from), &self.cluster.nodes[self.to]);
        let port = to.own_port.to_string();
        loop {
            let keys: Vec<String> = from.query(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
            if keys.is_empty() {
                return;
            }
            let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000"];
            if let Some(password) = &self.cluster.setup.password {
                command.extend(["AUTH", password]);
            }
            command.push("KEYS");
            command.extend(keys.iter().map(String::as_str));
            // A key that has expired meanwhile is no error.
            from.query::<String>(&command);
        }
    }

    /// Makes the new node the owner, and returns when all nodes know. Before that, move the keys.
    #[track_caller]
    pub fn end(self) {
        self.assign();
        let slots: Vec<_> = self
            .slots
            .iter()
            .map(|it| it.parse().expect("a slot"))
            .collect();
        self.cluster.until_owned_by(&slots, self.to);
    }

    /// Gives up: the old owner remains the owner. Keys that have been moved stay where they are.
    #[track_caller]
    pub fn cancel(self) {
        for place in [self.from, self.to] {
            self.set(place, &["STABLE"])
                .expect("a move can be given up");
        }
    }

    /// The new owner is told first: if the old one were, nobody would own the slot for a moment,
    /// and the two would send clients to each other.
    #[track_caller]
    fn assign(&self) {
        let owner = ["NODE", &self.cluster.nodes[self.to].id];
        self.set(self.to, &owner).expect("a slot can be taken");
        let told = self.set(self.from, &owner);
        // Before Redis 7, the old owner becomes a replica when it hears that it has no slot left,
        // and replicas cannot be told.
        assert!(
            told.is_ok() || server_version() < (7, 0),
            "the old owner: {told:?}"
        );
        // The others would hear of it anyway, a little later. Some are replicas.
        for place in self
            .cluster
            .awake()
            .filter(|&place| place != self.from && place != self.to)
        {
            let _ = self.set(place, &owner);
        }
    }

    /// Has a node set what it knows of the slots.
    fn set(&self, place: usize, what: &[&str]) -> RedisResult<()> {
        let command = |slot| [&["CLUSTER", "SETSLOT", slot], what].concat();
        self.cluster
            .server(place)
            .batch(&self.for_each(command))
            .map(drop)
    }

    fn for_each<'b>(&'b self, command: impl Fn(&'b str) -> Vec<&'b str>) -> Vec<Vec<&'b str>> {
        self.slots.iter().map(|slot| command(slot)).collect()
    }
}
