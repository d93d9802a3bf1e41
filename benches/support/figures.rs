//! Figures: reading them, summing them up, and printing them next to their bounds.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::File;
use std::io::Write;
use std::time::Duration;

use relatch_rig::Server;
use rustix::time::{ClockId, clock_gettime};

/// The CPU time of all threads of this process.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("a clock that counts upwards from zero")
}

/// How many threads of this process have that name. `None` if the system does not tell.
pub(crate) fn threads_named(name: &str) -> Option<u64> {
    /// Linux cuts a longer name.
    const KEPT: usize = 15;

    let name = &name[..name.len().min(KEPT)];
    let tasks = std::fs::read_dir("/proc/self/task").ok()?;
    // A thread that has ended meanwhile is skipped: its name can no longer be read.
    let names = tasks
        .flatten()
        .flat_map(|task| std::fs::read_to_string(task.path().join("comm")));
    u64::try_from(names.filter(|found| found.trim_end() == name).count()).ok()
}

/// Times of one kind, the shortest first.
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

    /// The smallest time that `percent` percent of the times do not exceed.
    fn percentile(&self, percent: usize) -> Duration {
        let rank = (self.0.len() * percent).div_ceil(100).max(1);
        self.0[rank - 1]
    }
}

impl Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "p50 {:.1?}, p99 {:.1?}, max {:.1?}",
            self.p50(),
            self.p99(),
            self.max()
        )
    }
}

/// Asks the server what it has done.
pub(crate) struct Gauge {
    /// One connection for all questions, so that logging in is not counted.
    connection: redis::Connection,
}

impl Gauge {
    pub(crate) fn new(server: &Server) -> Gauge {
        Gauge {
            connection: server.connect(),
        }
    }

    /// The commands that the server has executed so far. Includes commands inside scripts, but not
    /// the gauge's own.
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
            let figure = line
                .strip_prefix("used_cpu_sys:")
                .or_else(|| line.strip_prefix("used_cpu_user:"))?;
            figure.trim().parse::<f64>().ok()
        });
        Duration::from_secs_f64(seconds.sum())
    }

    /// How many connections have tracking on.
    pub(crate) fn tracking(&mut self) -> u64 {
        let text = self.info("clients");
        let figure = text
            .lines()
            .find_map(|line| line.strip_prefix("tracking_clients:"));
        figure
            .and_then(|figure| figure.trim().parse().ok())
            .unwrap_or_default()
    }

    fn info(&mut self, section: &str) -> String {
        redis::cmd("INFO")
            .arg(section)
            .query(&mut self.connection)
            .expect("the server answers")
    }
}

/// How often each command was executed.
pub(crate) struct Commands(BTreeMap<String, u64>);

impl Commands {
    pub(crate) fn since(&self, before: &Commands) -> Commands {
        let more = self
            .0
            .iter()
            .map(|(name, calls)| (name.clone(), calls - before.count(name)));
        Commands(more.filter(|(_, calls)| *calls > 0).collect())
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.0.get(name).copied().unwrap_or_default()
    }

    /// How often a command or one of its subcommands was executed.
    pub(crate) fn family(&self, name: &str) -> u64 {
        let related = |found: &str| found.split('|').next() == Some(name);
        self.0
            .iter()
            .filter(|(found, _)| related(found))
            .map(|(_, calls)| calls)
            .sum()
    }

    pub(crate) fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

impl FromIterator<String> for Commands {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Commands {
        let mut calls = BTreeMap::new();
        names
            .into_iter()
            .for_each(|name| *calls.entry(name).or_default() += 1);
        Commands(calls)
    }
}

impl Display for Commands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.total())?;
        for (position, (name, calls)) in self.0.iter().enumerate() {
            write!(
                f,
                "{}{name} {calls}",
                if position == 0 { ": " } else { ", " }
            )?;
        }
        Ok(())
    }
}

/// A figure as it is printed and, if it has one, its value in seconds or as a plain number.
pub(crate) struct Figure {
    shown: String,
    value: Option<f64>,
}

impl Figure {
    /// A number with so many decimals, and its unit.
    pub(crate) fn number(value: f64, decimals: usize, unit: &str) -> Figure {
        Figure {
            shown: format!("{value:.decimals$}{unit}"),
            value: Some(value),
        }
    }
}

impl From<String> for Figure {
    fn from(shown: String) -> Figure {
        Figure { shown, value: None }
    }
}

impl From<usize> for Figure {
    fn from(count: usize) -> Figure {
        Figure::from(count as u64)
    }
}

impl From<u64> for Figure {
    fn from(count: u64) -> Figure {
        Figure {
            shown: count.to_string(),
            value: Some(ratio(count, 1)),
        }
    }
}

impl From<Duration> for Figure {
    fn from(time: Duration) -> Figure {
        Figure {
            shown: format!("{time:.1?}"),
            value: Some(time.as_secs_f64()),
        }
    }
}

impl From<&Spread> for Figure {
    fn from(spread: &Spread) -> Figure {
        Figure {
            shown: spread.to_string(),
            value: Some(spread.p50().as_secs_f64()),
        }
    }
}

impl From<&Commands> for Figure {
    fn from(commands: &Commands) -> Figure {
        Figure {
            shown: commands.to_string(),
            value: Some(ratio(commands.total(), 1)),
        }
    }
}

/// Prints the figures, and collects the bounds that were missed.
#[derive(Default)]
pub(crate) struct Report {
    /// A file that also gets every figure that has a value: part, figure, value, bound and verdict,
    /// with tabs between them.
    table: Option<File>,
    part: String,
    missed: Vec<String>,
}

impl Report {
    pub(crate) fn new(table: Option<File>) -> Report {
        Report {
            table,
            ..Report::default()
        }
    }

    pub(crate) fn part(&mut self, name: &str, title: &str) {
        name.clone_into(&mut self.part);
        println!("\n{name}: {title}");
    }

    /// Prints a figure that has no bound.
    pub(crate) fn say(&self, what: &str, figure: impl Into<Figure>) {
        let figure = figure.into();
        println!("  {what:<42} {}", figure.shown);
        self.note(what, &figure, "", "");
    }

    /// Prints a figure next to its bound.
    pub(crate) fn must(
        &mut self,
        what: &str,
        figure: impl Into<Figure>,
        bound: impl Display,
        holds: bool,
    ) {
        let (figure, bound) = (figure.into(), bound.to_string());
        let verdict = if holds { "ok" } else { "MISSED" };
        println!(
            "  {what:<42} {:<14} must hold: {bound:<26} {verdict}",
            figure.shown
        );
        self.note(what, &figure, &bound, verdict);
        if !holds {
            self.missed.push(format!("{}: {what}", self.part));
        }
    }

    /// Prints a time that must not exceed its bound.
    pub(crate) fn must_be_within(
        &mut self,
        what: &str,
        time: Duration,
        bound: Duration,
        why: &str,
    ) {
        self.must(what, time, format!("<= {bound:.1?}{why}"), time <= bound);
    }

    /// Prints a count that must be zero.
    pub(crate) fn must_be_none(&mut self, what: &str, count: u64) {
        self.must(what, count, 0, count == 0);
    }

    fn note(&self, what: &str, figure: &Figure, bound: &str, verdict: &str) {
        if let (Some(mut table), Some(value)) = (self.table.as_ref(), figure.value) {
            writeln!(table, "{}\t{what}\t{value}\t{bound}\t{verdict}", self.part)
                .expect("the table grows");
        }
    }

    /// Prints the missed bounds once more.
    pub(crate) fn close(&self) {
        match self.missed.as_slice() {
            [] => println!("\nAll bounds hold."),
            missed => println!(
                "\nMISSED, {} in all:\n  {}",
                missed.len(),
                missed.join("\n  ")
            ),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of a few minutes")]
pub(crate) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
