//! Figures: where they come from, how they are summed up, and how they are printed next to their bounds.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::Server;

/// `CLOCK_MONOTONIC`: the same clock in every process of this machine.
pub(crate) fn now() -> Duration {
    clock(ClockId::Monotonic)
}

/// The CPU time of all threads of this process.
pub(crate) fn cpu_time() -> Duration {
    clock(ClockId::ProcessCPUTime)
}

fn clock(which: ClockId) -> Duration {
    Duration::try_from(clock_gettime(which)).expect("a clock that counts upwards from zero")
}

/// How many threads of this process bear that name, where the system tells.
pub(crate) fn threads_named(name: &str) -> Option<usize> {
    /// Linux keeps no more of a name.
    const KEPT: usize = 15;

    let name = &name[..name.len().min(KEPT)];
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    // A thread that ended meanwhile has no name any more.
    let names = tasks.flatten().flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
    Some(names.filter(|found| found.trim_end() == name).count())
}

/// Times of one kind, in order.
pub(crate) struct Spread(Vec<Duration>);

impl Spread {
    pub(crate) fn of(mut times: Vec<Duration>) -> Spread {
        assert!(!times.is_empty(), "nothing was measured");
        times.sort_unstable();
        Spread(times)
    }

    pub(crate) fn p50(&self) -> Duration {
        self.percentile(50)
    }

    pub(crate) fn p99(&self) -> Duration {
        self.percentile(99)
    }

    pub(crate) fn max(&self) -> Duration {
        self.percentile(100)
    }

    /// The smallest time that so many percent do not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0[rank - 1]
    }
}

impl Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p50 {:.1?}, p99 {:.1?}, max {:.1?}", self.p50(), self.p99(), self.max())
    }
}

/// Asks the server what it has done.
pub(crate) struct Gauge {
    /// One for all questions: so logging in is not counted.
    connection: redis::Connection,
}

impl Gauge {
    pub(crate) fn new(server: &Server) -> Gauge {
        Gauge { connection: server.connection() }
    }

    /// The commands that were executed so far, those inside scripts included, our own questions left out.
    pub(crate) fn commands(&mut self) -> Commands {
        let text = self.info("commandstats");
        let calls = text.lines().filter_map(|line| {
            let (name, figures) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let (calls, _) = figures.split_once(',')?;
            Some((name.to_owned(), calls.parse().ok()?))
        });
        Commands(calls.filter(|(name, _)| name != "info").collect())
    }

    /// The CPU time that the server has used so far.
    pub(crate) fn cpu_time(&mut self) -> Duration {
        let text = self.info("cpu");
        let seconds = text.lines().filter_map(|line| {
            let figure =
                line.strip_prefix("used_cpu_sys:").or_else(|| line.strip_prefix("used_cpu_user:"))?;
            figure.trim().parse::<f64>().ok()
        });
        Duration::from_secs_f64(seconds.sum())
    }

    fn info(&mut self, section: &str) -> String {
        redis::cmd("INFO").arg(section).query(&mut self.connection).expect("the server answers")
    }
}

/// How often each command was executed.
pub(crate) struct Commands(BTreeMap<String, u64>);

impl Commands {
    pub(crate) fn since(&self, before: &Commands) -> Commands {
        let more = self.0.iter().map(|(name, calls)| (name.clone(), calls - before.count(name)));
        Commands(more.filter(|(_, calls)| *calls > 0).collect())
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// A command and all of its subcommands.
    pub(crate) fn family(&self, name: &str) -> u64 {
        let related = |found: &str| found.split('|').next() == Some(name);
        self.0.iter().filter(|(found, _)| related(found)).map(|(_, calls)| calls).sum()
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

impl Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total())?;
        for (position, (name, calls)) in self.0.iter().enumerate() {
            write!(f, "{}{name} {calls}", if position == 0 { ": " } else { ", " })?;
        }
        Ok(())
    }
}

/// What is printed, and what was missed.
#[derive(Default)]
pub(crate) struct Report {
    part: String,
    missed: Vec<String>,
}

impl Report {
    pub(crate) fn part(&mut self, name: &str, title: &str) {
        name.clone_into(&mut self.part);
        println!("\n{name}: {title}");
    }

    /// A figure that is not held to anything.
    #[allow(clippy::unused_self, reason = "reads as `must` does")]
    pub(crate) fn say(&self, what: &str, figure: impl Display) {
        println!("  {what:<42} {figure}");
    }

    /// A figure next to its bound.
    pub(crate) fn must(&mut self, what: &str, figure: impl Display, bound: impl Display, holds: bool) {
        let verdict = if holds { "ok" } else { "MISSED" };
        println!("  {what:<42} {:<14} must hold: {:<26} {verdict}", figure.to_string(), bound.to_string());
        if !holds {
            self.missed.push(format!("{}: {what}", self.part));
        }
    }

    /// A time that must not be above its bound.
    pub(crate) fn must_be_within(&mut self, what: &str, time: Duration, bound: Duration, why: &str) {
        self.must(what, format!("{time:.1?}"), format!("<= {bound:.1?}{why}"), time <= bound);
    }

    /// All that was missed, once more.
    pub(crate) fn close(&self) {
        match self.missed.as_slice() {
            [] => println!("\nAll bounds hold."),
            missed => println!("\nMISSED, {} in all:\n  {}", missed.len(), missed.join("\n  ")),
        }
    }
}
