//! How long each part takes.

use std::time::Duration;

use crate::peer::{Language, Peer};

/// How long each scenario lasts, with one peer, in one round of one setting.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) rounds: usize,
    /// How long a peer works before it is measured.
    warm_up: Duration,
    /// The same for a peer in Java, whose virtual machine compiles what runs often.
    warm_up_java: Duration,
    /// How many hand-offs come before those that are measured.
    pub(crate) first_hand_offs: usize,
    /// How long a slice lasts in the scenario with one thread.
    pub(crate) slice: Duration,
    /// How many such slices a round has.
    pub(crate) slices: usize,
    pub(crate) turns: Duration,
    pub(crate) hand_off: Duration,
    pub(crate) waiting: Duration,
}

impl Plan {
    pub(crate) fn quick() -> Plan {
        Plan {
            name: "quick",
            rounds: 1,
            warm_up: Duration::from_millis(50),
            warm_up_java: Duration::from_millis(300),
            first_hand_offs: 1,
            slice: Duration::from_millis(30),
            slices: 4,
            turns: Duration::from_millis(200),
            hand_off: Duration::from_millis(300),
            waiting: Duration::from_millis(300),
        }
    }

    pub(crate) fn full() -> Plan {
        Plan {
            name: "full",
            rounds: 2,
            warm_up: Duration::from_millis(200),
            warm_up_java: Duration::from_millis(1500),
            first_hand_offs: 3,
            slice: Duration::from_millis(40),
            slices: 12,
            turns: Duration::from_millis(900),
            hand_off: Duration::from_secs(1),
            waiting: Duration::from_secs(1),
        }
    }

    pub(crate) fn warm_up(&self, peer: Peer) -> Duration {
        if peer.language() == Language::Java {
            self.warm_up_java
        } else {
            self.warm_up
        }
    }
}
