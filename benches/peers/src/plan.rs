//! How long each part takes.

use std::time::Duration;

/// Times of the scenarios; each is one peer in one round.
pub(crate) struct Plan {
    pub(crate) name: &'static str,
    pub(crate) rounds: usize,
    /// Of one thread alone; so many in a round.
    pub(crate) slice: Duration,
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
            slice: Duration::from_millis(30),
            slices: 12,
            turns: Duration::from_millis(600),
            hand_off: Duration::from_millis(1200),
            waiting: Duration::from_millis(1500),
        }
    }

    pub(crate) fn full() -> Plan {
        Plan {
            name: "full",
            rounds: 3,
            slice: Duration::from_millis(40),
            slices: 15,
            turns: Duration::from_secs(2),
            hand_off: Duration::from_millis(3500),
            waiting: Duration::from_secs(5),
        }
    }
}
