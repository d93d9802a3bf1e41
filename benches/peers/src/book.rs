//! The figures: the rounds of each scenario, added up.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Result;
use hdrhistogram::Histogram;

use crate::peer::Peer;
use crate::protocol::{Tally, Turns};
use crate::setting::Setting;

/// The work that a peer has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Alone,
    Reentry,
    TwoThreads,
    EightThreads,
    FourProcesses,
    HandOff,
}

/// All scenarios, in the order of the report.
pub(crate) const SCENARIOS: [Scenario; 6] = [
    Scenario::Alone,
    Scenario::Reentry,
    Scenario::TwoThreads,
    Scenario::EightThreads,
    Scenario::FourProcesses,
    Scenario::HandOff,
];

impl Scenario {
    pub(crate) fn title(self) -> &'static str {
        match self {
            Scenario::Alone => "Lock and unlock, alone",
            Scenario::Reentry => "Reentry",
            Scenario::TwoThreads => "One key, 2 threads of one process",
            Scenario::EightThreads => "One key, 8 threads of one process",
            Scenario::FourProcesses => "One key, 4 processes of one thread",
            Scenario::HandOff => "Hand-off between processes",
        }
    }

    /// How many processes take turns, and how many threads each of them has.
    pub(crate) fn crowd(self) -> (usize, usize) {
        match self {
            Scenario::Alone | Scenario::Reentry => (1, 1),
            Scenario::TwoThreads => (1, 2),
            Scenario::EightThreads => (1, 8),
            Scenario::FourProcesses => (4, 1),
            Scenario::HandOff => (2, 1),
        }
    }

    pub(crate) fn includes(self, peer: Peer) -> bool {
        match self {
            Scenario::Alone => true,
            Scenario::Reentry => peer.is_reentrant(),
            Scenario::HandOff => peer != Peer::Floor,
            _ => peer.is_lock(),
        }
    }

    /// Whether this is measured with slots, too: alone, and with more threads than slots.
    pub(crate) fn has_slots(self) -> bool {
        matches!(
            self,
            Scenario::Alone | Scenario::EightThreads | Scenario::FourProcesses
        )
    }
}

/// All rounds of a scenario with one peer in one setting.
#[derive(Debug)]
pub(crate) struct Measured {
    /// The times of turns, lock calls or hand-offs, depending on the scenario. In nanoseconds.
    pub(crate) times: Histogram<u64>,
    /// How many turns got the lock before the time of the scenario (`Plan`) was over. In the
    /// scenario with hand-offs: how many hand-offs there were.
    pub(crate) turns: u64,
    /// How many turns used processor time: those in `turns`, and those that got the lock later.
    done: u64,
    seconds: f64,
    /// The smallest share of the turns that a thread had in a round, summed over the rounds.
    smallest: f64,
    /// The largest share of the turns that a thread had in a round, summed over the rounds.
    largest: f64,
    rounds: u32,
    /// The processor time of all workers, in nanoseconds.
    clients: u64,
    /// The processor time of the server, in nanoseconds.
    server: u64,
    /// How many commands the server executed for one waiter.
    pub(crate) commands: u64,
    /// The seconds in which `commands` were counted.
    pub(crate) waited: f64,
    /// How many commands the workers sent while they were watched.
    sent: u64,
    /// How many turns were done meanwhile.
    pub(crate) watched: u64,
    /// How often a lock gave up after its last retry, and was tried again.
    pub(crate) gave_up: u64,
    /// How many calls, or workers, failed.
    pub(crate) failures: u64,
    /// How often too many threads of one worker had the lock at once.
    pub(crate) overlaps: u64,
}

/// All figures.
pub(crate) type Book = BTreeMap<(Setting, Scenario, Peer), Measured>;

#[allow(
    clippy::cast_precision_loss,
    reason = "counts and times far below 2^52"
)]
impl Measured {
    pub(crate) fn new() -> Result<Measured> {
        let times = Histogram::new(3)?;
        Ok(Measured {
            times,
            turns: 0,
            done: 0,
            seconds: 0.0,
            smallest: 0.0,
            largest: 0.0,
            rounds: 0,
            clients: 0,
            server: 0,
            commands: 0,
            waited: 0.0,
            sent: 0,
            watched: 0,
            gave_up: 0,
            failures: 0,
            overlaps: 0,
        })
    }

    /// Adds the work that all workers did at the same time. `timed` chooses the times that count.
    pub(crate) fn add(
        &mut self,
        tallies: &[Tally],
        time: Duration,
        server: u64,
        timed: fn(&Turns) -> &Vec<u64>,
    ) -> Result<()> {
        let threads: Vec<&Turns> = tallies.iter().flat_map(|tally| &tally.threads).collect();
        self.overlaps += tallies.iter().map(|tally| tally.overlaps).sum::<u64>();
        self.gave_up += threads.iter().map(|turns| turns.gave_up).sum::<u64>();
        self.failures += threads.iter().map(|turns| turns.failures).sum::<u64>();
        let turns: u64 = threads.iter().map(|turns| turns.in_time).sum();
        let shares = || {
            threads
                .iter()
                .map(|thread| thread.in_time as f64 / turns.max(1) as f64)
        };
        self.smallest += shares().fold(1.0, f64::min);
        self.largest += shares().fold(0.0, f64::max);
        self.rounds += 1;
        self.turns += turns;
        self.done += threads
            .iter()
            .map(|thread| thread.in_time.max(thread.cycles.len() as u64))
            .sum::<u64>();
        self.seconds += time.as_secs_f64();
        self.clients += tallies.iter().map(|tally| tally.cpu).sum::<u64>();
        self.server += server;
        threads
            .iter()
            .flat_map(|turns| timed(turns))
            .try_for_each(|time| Ok(self.times.record(*time)?))
    }

    /// Adds the commands that all workers sent during work whose time does not count.
    pub(crate) fn add_watched(&mut self, tallies: &[Tally], sent: u64) {
        let threads = tallies.iter().flat_map(|tally| &tally.threads);
        self.watched += threads.map(|turns| turns.cycles.len() as u64).sum::<u64>();
        self.sent += sent;
    }

    /// Adds hand-offs, and the processor time of both workers and of the server.
    pub(crate) fn add_hand_offs(&mut self, times: &[u64], clients: u64, server: u64) -> Result<()> {
        self.turns += times.len() as u64;
        self.done += times.len() as u64;
        self.clients += clients;
        self.server += server;
        times
            .iter()
            .try_for_each(|time| Ok(self.times.record(*time)?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.times.is_empty()
    }

    pub(crate) fn p50(&self) -> f64 {
        self.times.value_at_quantile(0.5) as f64
    }

    pub(crate) fn p99(&self) -> f64 {
        self.times.value_at_quantile(0.99) as f64
    }

    pub(crate) fn longest(&self) -> f64 {
        self.times.max() as f64
    }

    pub(crate) fn per_second(&self) -> f64 {
        self.turns as f64 / self.seconds
    }

    /// The smallest share of the turns that a thread had in a round: the mean over the rounds.
    pub(crate) fn smallest_share(&self) -> f64 {
        self.smallest / f64::from(self.rounds)
    }

    pub(crate) fn largest_share(&self) -> f64 {
        self.largest / f64::from(self.rounds)
    }

    /// Processor time of the workers for one turn.
    pub(crate) fn client_cpu(&self) -> f64 {
        self.clients as f64 / self.done as f64
    }

    pub(crate) fn server_cpu(&self) -> f64 {
        self.server as f64 / self.done as f64
    }

    /// Commands that the workers sent for one turn. Those inside scripts do not count.
    pub(crate) fn commands_a_turn(&self) -> f64 {
        self.sent as f64 / self.watched as f64
    }

    pub(crate) fn commands_per_second(&self) -> f64 {
        self.commands as f64 / self.waited
    }
}
