//! Slots that are moved from one master to another.

use super::Cluster;

/// A slot that is on its way from one master to another. Nothing more happens if this is dropped.
#[derive(Debug)]
#[must_use]
pub struct SlotMove<'a> {
    cluster: &'a Cluster,
    slot: u16,
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
        let moving = SlotMove { cluster: self, slot, from, to };
        moving.mark();
        moving
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
        for &slot in slots {
            let from = owners[usize::from(slot)].expect("a slot with an owner");
            if from != to {
                let moving = SlotMove { cluster: self, slot, from, to };
                moving.mark();
                moving.move_keys();
                moving.assign();
            }
        }
        self.until_owned_by(slots, to);
    }
}

impl SlotMove<'_> {
    /// The place of the old owner.
    pub fn from(&self) -> usize {
        self.from
    }

    /// The place of the new owner.
    pub fn to(&self) -> usize {
        self.to
    }

    /// Moves the keys that are at the old owner now.
    #[track_caller]
    pub fn move_keys(&self) {
        let (from, to) = (self.cluster.server(self.from), &self.cluster.nodes[self.to]);
        let port = to.own_port.to_string();
        loop {
            let keys: Vec<String> = from.query(&["CLUSTER", "GETKEYSINSLOT", &self.slot.to_string(), "100"]);
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

    /// Makes the new node the owner, and returns when all nodes know.
    #[track_caller]
    pub fn end(self) {
        self.assign();
        self.cluster.until_owned_by(&[self.slot], self.to);
    }

    /// Gives up: the old owner remains the owner. Move back the keys that have been moved first.
    #[track_caller]
    pub fn cancel(self) {
        for place in [self.from, self.to] {
            self.set(place, &["STABLE"]);
        }
    }

    fn mark(&self) {
        let id = |place: usize| &*self.cluster.nodes[place].id;
        self.set(self.to, &["IMPORTING", id(self.from)]);
        self.set(self.from, &["MIGRATING", id(self.to)]);
    }

    /// The new owner is told first: if the old one were, nobody would own the slot for a moment,
    /// and the two would send clients to each other.
    fn assign(&self) {
        let owner = ["NODE", &self.cluster.nodes[self.to].id];
        self.set(self.to, &owner);
        self.set(self.from, &owner);
        // The others would hear of it anyway, a little later. Replicas cannot be told.
        for place in self.cluster.awake().filter(|&place| place != self.from && place != self.to) {
            let _ = self.cluster.server(place).command(&set_slot(&self.slot.to_string(), &owner));
        }
    }

    #[track_caller]
    fn set(&self, place: usize, what: &[&str]) {
        self.cluster.server(place).query::<()>(&set_slot(&self.slot.to_string(), what));
    }
}

fn set_slot<'a>(slot: &'a str, what: &[&'a str]) -> Vec<&'a str> {
    [&["CLUSTER", "SETSLOT", slot], what].concat()
}
