//! What was measured: per scenario and peer, one entry per round.

use std::collections::BTreeMap;

use crate::numbers::{Spread, median};
use crate::peer::Peer;

/// Who takes turns on one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Crowd {
    TwoThreads,
    EightThreads,
    FourProcesses,
}

pub(crate) const CROWDS: [Crowd; 3] = [Crowd::TwoThreads, Crowd::EightThreads, Crowd::FourProcesses];

impl Crowd {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Crowd::TwoThreads => "2 threads of one process",
            Crowd::EightThreads => "8 threads of one process",
            Crowd::FourProcesses => "4 processes, one thread each",
        }
    }

    pub(crate) fn processes(self) -> usize {
        if self == Crowd::FourProcesses { 4 } else { 1 }
    }

    /// Per process.
    pub(crate) fn threads(self) -> usize {
        match self {
            Crowd::TwoThreads => 2,
            Crowd::EightThreads => 8,
            Crowd::FourProcesses => 1,
        }
    }
}

/// What went wrong on the way.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Trouble {
    /// Retries were exhausted; the lock was asked again.
    pub(crate) gave_up: u64,
    /// A call, or a worker, failed.
    pub(crate) failures: u64,
    /// Two threads had the lock at once.
    pub(crate) overlaps: u64,
}

/// One round of turns on one key.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Contended {
    pub(crate) per_second: f64,
    pub(crate) wait: Spread,
    /// Of the turns, by the one who had the fewest, and by the one who had the most.
    pub(crate) smallest: f64,
    pub(crate) largest: f64,
    /// Nanoseconds of the server's processor per turn.
    pub(crate) cpu: f64,
}

/// All rounds.
#[derive(Default)]
pub(crate) struct Book {
    /// An entry per slice.
    pub(crate) cycles: BTreeMap<Peer, Vec<Spread>>,
    pub(crate) reentry: Vec<Spread>,
    pub(crate) contended: BTreeMap<(Crowd, Peer), Vec<Contended>>,
    /// Nanoseconds of single hand-offs, of all rounds together: a round has few.
    pub(crate) hand_offs: BTreeMap<Peer, Vec<u64>>,
    /// Commands per second, one number per round.
    pub(crate) waiting: BTreeMap<Peer, Vec<f64>>,
    pub(crate) trouble: BTreeMap<(Option<Crowd>, Peer), Trouble>,
}

impl Book {
    pub(crate) fn cycle(&self, peer: Peer) -> Option<Spread> {
        self.cycles.get(&peer).map(|rounds| Spread::over(rounds))
    }

    /// The median of the slice in which the machine disturbed the least.
    pub(crate) fn quietest_cycle(&self, peer: Peer) -> Option<f64> {
        self.cycles.get(&peer)?.iter().map(|slice| slice.p50).min_by(f64::total_cmp)
    }

    pub(crate) fn hand_off(&self, peer: Peer) -> Option<Spread> {
        Spread::of(self.hand_offs.get(&peer)?.clone())
    }

    pub(crate) fn waiting(&self, peer: Peer) -> Option<f64> {
        self.waiting.get(&peer).map(|rounds| median(rounds.iter().copied()))
    }

    /// The medians of all rounds.
    pub(crate) fn contended(&self, crowd: Crowd, peer: Peer) -> Option<Contended> {
        let rounds = self.contended.get(&(crowd, peer))?;
        let middle = |part: fn(&Contended) -> f64| median(rounds.iter().map(part));
        let waits: Vec<Spread> = rounds.iter().map(|round| round.wait).collect();
        Some(Contended {
            per_second: middle(|round| round.per_second),
            wait: Spread::over(&waits),
            smallest: middle(|round| round.smallest),
            largest: middle(|round| round.largest),
            cpu: middle(|round| round.cpu),
        })
    }

    /// Notes trouble of a scenario; `None` is any that is not a crowd.
    pub(crate) fn trouble(&mut self, crowd: Option<Crowd>, peer: Peer) -> &mut Trouble {
        self.trouble.entry((crowd, peer)).or_default()
    }
}
