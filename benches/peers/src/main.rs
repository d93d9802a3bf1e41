//! The same work with relatch and with other locks on Redis, side by side, on a server of its own.
//!
//! `docs/benchmarks.md` says what is measured, and how to read it. This process plans, starts
//! workers and collects figures. Worker processes take the locks: this binary again, or a program
//! in Go, Java or Python. All workers speak the protocol in `protocol.rs`, so that each scenario
//! runs over all peers.

mod protocol;
mod peer;
mod locks;
mod worker;
mod languages;
mod machine;
mod setting;
mod stage;
mod watch;
mod numbers;
mod plan;
mod book;
mod scenarios;
mod report;
mod charts;
mod trust;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand, ValueEnum};

use crate::book::Book;
use crate::languages::Program;
use crate::peer::{Language, Peer};
use crate::plan::Plan;
use crate::scenarios::Run;
use crate::setting::Setting;
use crate::stage::Stage;

/// Measures relatch and other locks on Redis side by side, and writes results.csv with charts.
///
/// Runs, with each lock: one thread alone; reentry, where the lock has it; 2 and 8 threads, and 4
/// processes, that take turns on one key; the hand-off from one process to another, and what a
/// waiter sends meanwhile. All of it three times: free, on one core, and beside two busy loops.
/// That takes about a quarter of an hour, with --quick about three minutes.
///
/// Starts a redis-server of its own on a free port of 127.0.0.1, without persistence. The locks in
/// Go, Java and Python are built with go, mvn and pip below benches/peers/target, and left out
/// where that is not possible.
#[derive(Debug, Parser)]
#[command(version, args_conflicts_with_subcommands = true)]
struct Options {
    /// One short round: to see that all works. The figures are rough.
    #[arg(long)]
    quick: bool,

    /// The folder for results.csv and the charts [default: docs/benchmarks of the repository].
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Only these, separated by commas [default: all without slots]. PING and the floor are always
    /// run. If one has slots, there is a shorter plan, slots.csv in place of results.csv, with the
    /// commands of a turn, and no chart.
    #[arg(long, value_delimiter = ',')]
    peers: Vec<Peer>,

    /// Only these, separated by commas [default: all].
    #[arg(long, value_delimiter = ',')]
    settings: Vec<Setting>,

    #[command(subcommand)]
    work: Option<Work>,
}

#[derive(Debug, Subcommand)]
enum Work {
    /// Takes locks as it is told on standard input. Not for people.
    #[command(hide = true)]
    Worker { url: String, peer: Peer, lease: u32 },

    /// What happens with each lock while Redis, its connections or the holders fail.
    Trust(trust::Options),
}

fn main() -> Result<()> {
    let options = Options::parse();
    match &options.work {
        Some(Work::Worker { url, peer, lease }) => worker::work(url, *peer, *lease),
        Some(Work::Trust(options)) => trust::run(options),
        None => measure(&options),
    }
}

/// Runs the whole plan, and writes the report.
fn measure(options: &Options) -> Result<()> {
    let began = Instant::now();
    let plan = if options.quick {
        Plan::quick()
    } else {
        Plan::full()
    };
    let beside = Path::new(env!("CARGO_MANIFEST_DIR"));
    let out = options
        .out
        .clone()
        .unwrap_or_else(|| beside.join("../../docs/benchmarks"));
    std::fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    let by_default = |peer: &Peer| options.peers.is_empty() && peer.slots() == 1;
    let wanted = |peer: &Peer| !peer.is_lock() || by_default(peer) || options.peers.contains(peer);
    let mut peers: Vec<Peer> = Peer::value_variants()
        .iter()
        .copied()
        .filter(|peer| peer.is_timed() && wanted(peer))
        .collect();
    let slots = peers.iter().any(|peer| peer.slots() > 1);
    let all = Setting::value_variants();
    let settings: Vec<Setting> = all
        .iter()
        .copied()
        .filter(|one| options.settings.is_empty() || options.settings.contains(one))
        .collect();

    // This comes first: if there is no server, there is no need to build anything.
    let redis = redis_version()?;
    let (programs, versions) = build(&mut peers);
    let mut book = Book::new();
    for &setting in &settings {
        let _surroundings = setting.enter()?;
        let mut run = Run {
            plan: &plan,
            setting,
            stage: Stage::set(&programs),
            book: &mut book,
            slots,
            began,
        };
        for round in 0..plan.rounds {
            // No peer shall always run after the same other peer.
            peers.rotate_left(round);
            run.round(&peers, round)?;
        }
    }
    let minutes = began.elapsed().as_secs_f64() / 60.0;
    let rounds = if plan.rounds == 1 {
        "one round".to_owned()
    } else {
        format!("{} rounds", plan.rounds)
    };
    let about = format!(
        "{}: {rounds} in each setting, {minutes:.1} minutes in all",
        plan.name
    );
    let mut conditions = report::conditions(&redis, about);
    conditions.extend(versions);
    let name = if slots { "slots" } else { "results" };
    report::write(&out, name, &conditions, &book)?;
    if slots {
        eprintln!("written: slots.csv, after {minutes:.1} minutes");
    } else {
        charts::write(&out, &settings, &book)?;
        eprintln!("written: results.csv and the charts, after {minutes:.1} minutes");
    }
    Ok(())
}

/// The version of the server that is started.
fn redis_version() -> Result<String> {
    Stage::set(&BTreeMap::new()).version()
}

/// Builds the programs of the peers, and returns a line with the versions of each. If a program
/// cannot be built, removes its peers, and returns a line with the reason.
fn build(peers: &mut Vec<Peer>) -> (BTreeMap<Language, Program>, Vec<(&'static str, String)>) {
    let languages: BTreeSet<Language> = peers.iter().map(|peer| peer.language()).collect();
    let mut programs = BTreeMap::new();
    let mut lines = Vec::new();
    for language in languages {
        eprintln!("preparing the locks in {language:?}");
        match Program::build(language) {
            Ok(program) => {
                if !program.versions.is_empty() {
                    lines.push(("beside", program.versions.clone()));
                }
                programs.insert(language, program);
            }
            Err(why) => {
                let without: Vec<&str> = peers
                    .iter()
                    .filter(|peer| peer.language() == language)
                    .map(|peer| peer.title())
                    .collect();
                let line = format!("{} ({why:#})", without.join(", "));
                eprintln!("LEFT OUT: {line}");
                lines.push(("left out", line));
                peers.retain(|peer| peer.language() != language);
            }
        }
    }
    (programs, lines)
}
