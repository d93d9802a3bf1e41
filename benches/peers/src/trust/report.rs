//! `trust.csv` and `trust-run.csv`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::judge::{Overlaps, Verdict};
use super::weather::Weather;
use super::{Cell, Options};
use crate::numbers::time;
use crate::peer::Peer;
use crate::report::{conditions, record, write_run};

/// A finding, in a few words.
pub(crate) fn brief(of: &Verdict) -> String {
    cells(of).join(" | ")
}

const COLUMNS: [&str; 12] = [
    "weather",
    "lock",
    "taken",
    "calls failed",
    "two inside",
    "two trusted",
    "cut short",
    "lost",
    "told after",
    "never told",
    "false alarms",
    "free, but not got",
];

/// A time in nanoseconds.
fn span(of: u64) -> String {
    time(Duration::from_nanos(of).as_secs_f64() * 1e9)
}

fn cells(of: &Verdict) -> Vec<String> {
    let overlaps = |it: Overlaps| match it.count {
        0 => "-".to_owned(),
        count => format!("{count}, {}", span(it.longest)),
    };
    let told = match (of.told.get(of.told.len() / 2), of.told.last()) {
        (Some(median), Some(longest)) => {
            format!("{}, {}", span(*median), span(*longest))
        }
        _ => "-".to_owned(),
    };
    let count = |it: usize| {
        if it == 0 {
            "-".to_owned()
        } else {
            it.to_string()
        }
    };
    let mut free = span(of.free);
    if of.stuck > 0 {
        let _ = write!(free, "; {} stuck", of.stuck);
    }
    if of.hung > 0 {
        let _ = write!(free, "; {} hung", of.hung);
    }
    vec![
        of.locks.to_string(),
        count(of.failed),
        overlaps(of.inside),
        overlaps(of.trusted),
        count(of.cut_short),
        count(of.lost),
        told,
        count(of.lost - of.told.len()),
        count(of.false_alarms),
        free,
    ]
}

pub(crate) fn write(
    out: &Path,
    done: &BTreeMap<Cell, Verdict>,
    options: &Options,
    versions: &[(&'static str, String)],
    took: Duration,
) -> Result<()> {
    let about = format!(
        "seed {}, {} s for each lock in each weather, {} at a time, {:.1} minutes in all",
        options.seed,
        options.seconds,
        options.lanes,
        took.as_secs_f64() / 60.0
    );
    let mut conditions = conditions(&crate::redis_version()?, about);
    conditions.extend(versions.iter().cloned());
    fs::create_dir_all(out)?;
    write_run(&out.join("trust-run.csv"), &conditions)?;
    let mut all: BTreeMap<Peer, Verdict> = BTreeMap::new();
    let mut by_weather: BTreeMap<Weather, BTreeMap<Peer, Verdict>> = BTreeMap::new();
    for (&(weather, peer), verdict) in done {
        all.entry(peer).or_default().add_up(verdict);
        by_weather
            .entry(weather)
            .or_default()
            .insert(peer, verdict.clone());
    }
    let mut text = record(COLUMNS) + &records("All together", &all);
    for (weather, verdicts) in &by_weather {
        text += &records(weather.title(), verdicts);
    }
    fs::write(out.join("trust.csv"), text)?;
    Ok(())
}

fn records(weather: &str, of: &BTreeMap<Peer, Verdict>) -> String {
    let first = |peer: &Peer| [weather.to_owned(), peer.title().to_owned()];
    of.iter()
        .map(|(peer, verdict)| record(first(peer).into_iter().chain(cells(verdict))))
        .collect()
}
