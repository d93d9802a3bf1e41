//! What the judge forgives, and which sentence of the documentation allows that.
//!
//! A rule asks [`Judge::forgives`] last, when all else says that something is wrong. So if one
//! excuse alone holds, the scene needs it: it would fail without. That is noted, and `RELATCH_SCENES=n
//! cargo test simulation::locks` prints the first scene that needs each of them.

use std::ops::{BitAnd, BitOr, BitOrAssign};

use super::Judge;

/// Why something may have happened that no rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Excuse {
    Slow,
    Break,
    Outage,
    Failover,
    Move,
    Paused,
    Killed,
    Deleted,
    Forced,
    NotReplicated,
    OldMaster,
    Repeated,
    Restarted,
    ClockStep,
    CounterLost,
    ShutDown,
    Unrenewed,
    Capped,
    Forgotten,
    LastMoments,
    Adopted,
    OldParcel,
    ShortWait,
    LostInASet,
    GivenBack,
}

/// A row of the table.
pub(crate) struct Row {
    pub(crate) excuse: Excuse,
    /// What is forgiven: what becomes of a lock or a call, and why.
    pub(crate) forgives: &'static str,
    /// The sentence that allows it, or a part of it, in `docs/guarantees.md` or
    /// `docs/not-promised.md`.
    pub(crate) sentence: &'static str,
    /// A scene that failed without this excuse when it came into the table.
    pub(crate) seed: u64,
}

const fn row(excuse: Excuse, seed: u64, forgives: &'static str, sentence: &'static str) -> Row {
    Row {
        excuse,
        forgives,
        sentence,
        seed,
    }
}

pub(crate) const TABLE: &[Row] = &[
    row(
        Excuse::Slow,
        289,
        "is late or lost: threads may be slow at any time",
        "Unless the machine is overloaded, the holder of a renewed hold learns of a loss within 1.05 s",
    ),
    row(
        Excuse::Break,
        4_064,
        "fails, or stays, when connections have ended",
        "all of them together cost one timeout",
    ),
    row(
        Excuse::Outage,
        4,
        "fails, stays or is lost while nothing gets through",
        "The keeper tries to renew while Redis is away. When the lease ends, so does the hold.",
    ),
    row(
        Excuse::Failover,
        5,
        "fails, stays or is lost while a master is replaced",
        "If a failover loses a release, or the removal of a key that too few replicas had, the lock comes back without a holder.",
    ),
    row(
        Excuse::Move,
        11_589,
        "fails or is late while a slot moves",
        "A waiter follows its key, and polls until the map shows the new owner.",
    ),
    row(
        Excuse::Paused,
        35,
        "is late or lost: the process was stopped",
        "The holder's process is stopped past its lease, and another one takes the lock.",
    ),
    row(
        Excuse::Killed,
        1_618,
        "the key of a killed process stays",
        "The lock is free when the lease ends, not before.",
    ),
    row(
        Excuse::Deleted,
        62,
        "is lost: somebody has deleted the key",
        "The key is deleted, flushed, evicted, replaced or expired early.",
    ),
    row(
        Excuse::Forced,
        3,
        "is lost: `force_unlock` was called",
        "`force_unlock` and `shutdown_and_release` are losses.",
    ),
    row(
        Excuse::NotReplicated,
        2_469,
        "is lost: the new master lacks the key",
        "Without `Builder::replicas`, a failover can lose a lock and every renewal since.",
    ),
    row(
        Excuse::OldMaster,
        5_391,
        "is lost, or has two holders: the old master grants it as well",
        "two holders are possible without `replicas`",
    ),
    row(
        Excuse::Repeated,
        193,
        "is lost: a proxy has sent an answer twice",
        "an answer that comes twice",
    ),
    row(
        Excuse::Restarted,
        76,
        "is lost: the server has restarted without its data",
        "a restart without persistence",
    ),
    row(
        Excuse::ClockStep,
        324,
        "is lost: the server's clock was set forward",
        "a step of the server's clock",
    ),
    row(
        Excuse::CounterLost,
        42_619,
        "a fence falls",
        "Numbers can repeat only if the counter is lost *and* the clock is behind.",
    ),
    row(
        Excuse::ShutDown,
        53,
        "is lost: the manager gives everything back",
        "`shutdown_and_release` also ends the holds of others: each is lost first",
    ),
    row(
        Excuse::Unrenewed,
        83,
        "is lost: nobody renews it",
        "Renewal is off, and the work outlasts the lease.",
    ),
    row(
        Excuse::Capped,
        822,
        "is lost, or cannot be extended: it has a `max_hold`",
        "relatch extends no lease, and the hold is lost at most a lease later.",
    ),
    row(
        Excuse::Forgotten,
        10,
        "is lost, or stays: its guard was forgotten",
        "A thread ends with a forgotten guard, or a process exits. | The lease runs out.",
    ),
    row(
        Excuse::LastMoments,
        18_691,
        "cannot be asked: the hold is about to end",
        "**Agreement in the last moments of a lease.**",
    ),
    row(
        Excuse::Adopted,
        2_155,
        "cannot be adopted: others have the parcel",
        "Of all who adopt the parcel, one gets the lock, whatever answers are lost.",
    ),
    row(
        Excuse::OldParcel,
        17,
        "cannot be adopted, or stays: nobody adopts it",
        "If nobody adopts it, its lease ends it.",
    ),
    row(
        Excuse::ShortWait,
        34,
        "is busy, though free: the wait was short",
        "no connection was free, or Redis had less than 20 ms to answer",
    ),
    row(
        Excuse::LostInASet,
        11_133,
        "is lost: one of a set was, before the judge knew it",
        "If one is lost, the set is lost, and the guard releases the rest.",
    ),
    row(
        Excuse::GivenBack,
        58,
        "`on_lost` tells of a lock that nobody got",
        "relatch calls `on_lost` once for each loss",
    ),
];

/// Several excuses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Excuses(u32);

impl Excuse {
    /// This one, if it holds.
    pub(crate) fn when(self, holds: bool) -> Excuses {
        Excuses(u32::from(holds) << self as u32)
    }
}

impl Excuses {
    pub(crate) const NONE: Excuses = Excuses(0);

    pub(crate) fn has(self, excuse: Excuse) -> bool {
        self & excuse.when(true) != Excuses::NONE
    }

    pub(crate) fn is_empty(self) -> bool {
        self == Excuses::NONE
    }
}

impl BitOr for Excuses {
    type Output = Excuses;

    fn bitor(self, other: Excuses) -> Excuses {
        Excuses(self.0 | other.0)
    }
}

impl BitOrAssign for Excuses {
    fn bitor_assign(&mut self, other: Excuses) {
        *self = *self | other;
    }
}

impl BitAnd for Excuses {
    type Output = Excuses;

    fn bitand(self, other: Excuses) -> Excuses {
        Excuses(self.0 & other.0)
    }
}

impl FromIterator<Excuses> for Excuses {
    fn from_iter<T: IntoIterator<Item = Excuses>>(all: T) -> Excuses {
        all.into_iter().fold(Excuses::NONE, BitOr::bitor)
    }
}

impl Judge {
    /// Whether one of these excuses holds. Nothing else can save the scene.
    pub(crate) fn forgives(&self, excuses: Excuses) -> bool {
        if excuses.0.is_power_of_two() {
            self.needed.with(|needed| *needed |= excuses);
        }
        let off = self.off.map_or(Excuses::NONE, |off| off.when(true));
        excuses.0 & !off.0 != 0
    }

    /// The excuses without which this scene would fail.
    pub(crate) fn needed(&self) -> Excuses {
        self.needed.with(|needed| *needed)
    }
}

#[test]
fn each_excuse_is_allowed_by_a_sentence() {
    let pages = [
        include_str!("../../../docs/guarantees.md"),
        include_str!("../../../docs/not-promised.md"),
    ];
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let pages = pages.map(words);
    for row in TABLE {
        let stands = pages.iter().any(|page| page.contains(row.sentence));
        assert!(stands, "{:?}: {}", row.excuse, row.sentence);
    }
}
