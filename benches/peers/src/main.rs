//! The same work with relatch and with other locks on Redis, side by side, on a server of its own.
//!
//! What is measured, and how to read it, is in `docs/benchmarks.md`. This process plans, starts workers and counts;
//! the locks are taken in worker processes: this binary again, or Python. All of them speak the protocol of
//! `protocol`, so that the same scenario runs over all peers.

mod clock;
mod protocol;
mod peer;
mod locks;
mod worker;
mod server;
mod python;
mod machine;
mod stage;
mod numbers;
mod plan;
mod book;
mod scenarios;
mod table;
mod report;
mod chart;
mod charts;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};

use crate::plan::Plan;
use crate::protocol::{Place, Together};
use crate::stage::Stage;

/// Measures relatch and other locks on Redis side by side, and writes a report with charts.
///
/// Starts a redis-server of its own on a free port of 127.0.0.1, without persistence. The Python locks are
/// installed with pip into a temporary folder, and left out where that is not possible.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Options {
    /// One short round, under a minute: to see that all works. The figures are rough.
    #[arg(long)]
    quick: bool,

    /// The folder for results.md and the charts [default: docs/benchmarks of the repository].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Leave the Python locks out.
    #[arg(long)]
    no_python: bool,

    #[command(subcommand)]
    work: Option<Work>,
}

/// What a worker process is told to do. Not for people.
#[derive(Debug, Subcommand)]
enum Work {
    /// One thread that takes a lock and releases it.
    #[command(hide = true)]
    Cycles(Together),
    /// Threads that take turns on one key.
    #[command(hide = true)]
    Turns(Together),
    /// Taking a lock that this thread has already.
    #[command(hide = true)]
    Reentry(Together),
    /// One side of a hand-off between processes.
    #[command(hide = true)]
    Pair(Place),
}

fn main() -> Result<()> {
    let options = Options::parse();
    match options.work {
        Some(Work::Cycles(order)) => worker::cycles(&order),
        Some(Work::Turns(order)) => worker::turns(&order),
        Some(Work::Reentry(order)) => worker::reentry(&order),
        Some(Work::Pair(place)) => worker::pair(&place),
        None => measure(&options),
    }
}

/// Runs the whole plan, and writes the report.
fn measure(options: &Options) -> Result<()> {
    let plan = if options.quick { Plan::quick() } else { Plan::full() };
    let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = options.out.clone().unwrap_or_else(|| beside.join("../../docs/benchmarks"));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;

    let mut stage = Stage::set(!options.no_python)?;
    let book = scenarios::run(&mut stage, &plan);
    report::write(&out, &stage, &plan, &book)?;
    charts::write(&out, &book)?;
    eprintln!("written: results.md and the charts");
    Ok(())
}
