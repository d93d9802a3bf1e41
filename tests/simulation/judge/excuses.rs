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
    OldMap,
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
    ShortLease,
    Shortened,
    LastMoments,
    Adopted,
    OldParcel,
    NoConnection,
    ShortWait,
    OtherProcesses,
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
    /// The first scene that fails without this excuse.
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
        0,
        "is late or lost: threads may be slow at any time",
        "Unless the machine is overloaded, the holder of a renewed hold learns of a loss within 1.05 s",
    ),
    row(
        Excuse::Break,
        0,
        "fails, or stays, when connections have ended",
        "the next attempt uses a new connection",
    ),
    row(
        Excuse::Outage,
        0,
        "fails, stays or is lost while nothing gets through",
        "The keeper tries to renew while Redis is away. When the lease ends, so does the hold.",
    ),
    row(
        Excuse::Failover,
        0,
        "fails, stays or is lost while a master is replaced",
        "If a failover loses a release, or the removal of a key that too few replicas had, the lock comes back without a holder.",
    ),
    row(
        Excuse::Move,
        0,
        "fails or is late while a slot moves",
        "A waiter follows its key, and polls until the map shows the new owner.",
    ),
    row(
        Excuse::OldMap,
        0,
        "a single try asks a node of an old map",
        "relatch reads the map about once a second while redirects come, and every ten seconds in any case.",
    ),
    row(
        Excuse::Paused,
        0,
        "is late or lost: the process was stopped",
        "The holder's process is stopped past its lease, and another one takes the lock.",
    ),
    row(
        Excuse::Killed,
        0,
        "the key of a killed process stays",
        "The lock is free when the lease ends, not before.",
    ),
    row(
        Excuse::Deleted,
        0,
        "is lost: somebody has deleted the key",
        "The key is deleted, flushed, evicted, replaced or expired early.",
    ),
    row(
        Excuse::Forced,
        0,
        "is lost: `force_unlock` was called",
        "`force_unlock` and `shutdown_and_release` are losses.",
    ),
    row(
        Excuse::NotReplicated,
        0,
        "is lost: the new master lacks the key",
        "Without `Builder::replicas`, a failover can lose a lock and every renewal since.",
    ),
    row(
        Excuse::OldMaster,
        0,
        "is lost, or has two holders: the old master grants it as well",
        "two holders are possible without `replicas`",
    ),
    row(
        Excuse::Repeated,
        0,
        "is lost: a proxy has sent an answer twice",
        "an answer that comes twice",
    ),
    row(
        Excuse::Restarted,
        0,
        "is lost: the server has restarted without its data",
        "a restart without persistence",
    ),
    row(
        Excuse::ClockStep,
        0,
        "is lost: the server's clock was set forward",
        "a step of the server's clock",
    ),
    row(
        Excuse::CounterLost,
        0,
        "a fence falls",
        "Numbers can repeat only if the counter is lost *and* the clock is behind.",
    ),
    row(
        Excuse::ShutDown,
        0,
        "is lost: the manager gives everything back",
        "`shutdown_and_release` also ends the holds of others: each is lost first",
    ),
    row(
        Excuse::Unrenewed,
        0,
        "is lost: nobody renews it",
        "Renewal is off, and the work outlasts the lease.",
    ),
    row(
        Excuse::Capped,
        0,
        "is lost, or cannot be extended: it has a `max_hold`",
        "relatch extends no lease, and the hold is lost at most a lease later.",
    ),
    row(
        Excuse::Forgotten,
        0,
        "is lost, or stays: its guard was forgotten",
        "Renewals stop, and the lease runs out.",
    ),
    row(
        Excuse::ShortLease,
        0,
        "is lost in a silence that is longer than the lease",
        "That may end a hold whose lease is shorter than those renewed with it.",
    ),
    row(
        Excuse::Shortened,
        0,
        "`wait_at_risk` is late: the lease was made shorter",
        "`remaining()` is what is left.",
    ),
    row(
        Excuse::LastMoments,
        0,
        "cannot be asked: the hold is about to end",
        "**Agreement in the last moments of a lease.**",
    ),
    row(
        Excuse::Adopted,
        0,
        "cannot be adopted: others have the parcel",
        "Of all who adopt the parcel, one gets the lock, whatever answers are lost.",
    ),
    row(
        Excuse::OldParcel,
        0,
        "cannot be adopted, or stays: nobody adopts it",
        "If nobody adopts it, its lease ends it.",
    ),
    row(
        Excuse::NoConnection,
        0,
        "is busy, though free: the pool is exhausted",
        "no connection was free, or Redis had less than 20 ms to answer",
    ),
    row(
        Excuse::ShortWait,
        0,
        "is busy, though free: the wait was short",
        "no connection was free, or Redis had less than 20 ms to answer",
    ),
    row(
        Excuse::OtherProcesses,
        0,
        "is busy, though free: it is left to others",
        "After a few milliseconds (`local_handoff`) they leave it to other processes.",
    ),
    row(
        Excuse::LostInASet,
        0,
        "is lost: one of a set was, before the judge knew it",
        "If one is lost, the set is lost, and the guard releases the rest.",
    ),
    row(
        Excuse::GivenBack,
        0,
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
