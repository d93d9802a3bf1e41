//! `results.csv` and `results-run.csv`, or `slots.csv` and `slots-run.csv`.

use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::book::{Book, Measured, SCENARIOS, Scenario};
use crate::machine;
use crate::numbers::{percent, three_digits, time};
use crate::peer::Peer;

/// The columns behind what is measured, the setting and the lock. What a scenario does not measure
/// is empty.
const HEADS: [&str; 12] = [
    "turns/s",
    "p50",
    "x floor",
    "p99",
    "longest",
    "smallest share",
    "largest share",
    "hand-offs",
    "commands/s of a waiter",
    COMMANDS.0,
    CLIENTS.0,
    SERVER.0,
];

/// The head of a column, and a function for the cells below it, which gets the figures of a peer
/// and of the floor in the same setting.
type Column = (&'static str, fn(&Measured, Option<&Measured>) -> String);

const P50: Column = ("p50", |of, _| time(of.p50()));
const P99: Column = ("p99", |of, _| time(of.p99()));
const LONGEST: Column = ("longest", |of, _| time(of.longest()));
/// Only the run with slots has this column.
const COMMANDS: Column = ("commands a turn", |of, _| {
    if of.watched > 0 {
        three_digits(of.commands_a_turn())
    } else {
        "-".to_owned()
    }
});
const CLIENTS: Column = ("CPU a turn, clients", |of, _| time(of.client_cpu()));
const SERVER: Column = ("CPU a turn, server", |of, _| time(of.server_cpu()));

const ALONE: &[Column] = &[
    P50,
    ("x floor", |of, floor| {
        floor.map_or("-".to_owned(), |floor| three_digits(of.p50() / floor.p50()))
    }),
    P99,
    LONGEST,
    COMMANDS,
    CLIENTS,
    SERVER,
];

const REENTRY: &[Column] = &[P50, CLIENTS, SERVER];

const TURNS: &[Column] = &[
    ("turns/s", |of, _| three_digits(of.per_second())),
    P50,
    P99,
    LONGEST,
    ("smallest share", |of, _| percent(of.smallest_share())),
    ("largest share", |of, _| percent(of.largest_share())),
    COMMANDS,
    CLIENTS,
    SERVER,
];

const HAND_OFF: &[Column] = &[
    P50,
    P99,
    LONGEST,
    ("hand-offs", |of, _| of.turns.to_string()),
    ("commands/s of a waiter", |of, _| {
        if of.waited > 0.0 {
            format!("{:.1}", of.commands_per_second())
        } else {
            "-".to_owned()
        }
    }),
    (CLIENTS.0, |of, _| or_none(of.client_cpu())),
    (SERVER.0, |of, _| or_none(of.server_cpu())),
];

/// Writes `conditions`, each a name and a value, and all figures.
pub(crate) fn write(
    out: &Path,
    name: &str,
    conditions: &[(&str, String)],
    book: &Book,
) -> Result<()> {
    write_run(&out.join(format!("{name}-run.csv")), conditions)?;
    let watched = book.values().any(|it| it.watched > 0);
    let heads = || {
        HEADS
            .into_iter()
            .filter(|head| watched || *head != COMMANDS.0)
    };
    let first = ["measured", "setting", "lock"];
    let mut text = record(first.into_iter().chain(heads()).chain(["trouble"]));
    for scenario in SCENARIOS {
        for ((setting, _, peer), measured) in book.iter().filter(|((_, it, _), _)| *it == scenario)
        {
            let floor = book
                .get(&(*setting, scenario, Peer::Floor))
                .filter(|floor| !floor.is_empty());
            let cell = |head| match of(scenario).iter().find(|(it, _)| *it == head) {
                None => String::new(),
                Some(_) if measured.is_empty() => "-".to_owned(),
                Some((_, write)) => write(measured, floor),
            };
            let first = [scenario.title(), setting.title(), peer.title()].map(str::to_owned);
            let cells = heads().map(cell);
            text += &record(first.into_iter().chain(cells).chain([trouble(measured)]));
        }
    }
    fs::write(out.join(format!("{name}.csv")), text)?;
    Ok(())
}

/// Writes under which conditions figures were taken.
pub(crate) fn write_run(path: &Path, conditions: &[(&str, String)]) -> Result<()> {
    let rows = conditions
        .iter()
        .map(|(name, value)| record([*name, value]));
    fs::write(
        path,
        record(["condition", "value"]) + &rows.collect::<String>(),
    )?;
    Ok(())
}

/// A line of a file of comma-separated values.
pub(crate) fn record(cells: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let quoted = |cell: &str| {
        if cell.contains([',', '"']) {
            format!("\"{}\"", cell.replace('"', "\"\""))
        } else {
            cell.to_owned()
        }
    };
    let cells: Vec<_> = cells.into_iter().map(|it| quoted(it.as_ref())).collect();
    cells.join(",") + "\n"
}

/// The columns of a scenario.
fn of(scenario: Scenario) -> &'static [Column] {
    match scenario {
        Scenario::Alone => ALONE,
        Scenario::Reentry => REENTRY,
        Scenario::HandOff => HAND_OFF,
        _ => TURNS,
    }
}

/// `-` for zero: the processor time of the benchmark's own round trips is not measured.
fn or_none(cpu: f64) -> String {
    if cpu > 0.0 { time(cpu) } else { "-".to_owned() }
}

/// What went wrong, in words. Most peers have `none`.
fn trouble(of: &Measured) -> String {
    let kinds = [
        (of.gave_up, "x out of retries"),
        (of.failures, "x failed"),
        (of.overlaps, "x held by too many at once"),
    ];
    let words: Vec<String> = kinds
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if words.is_empty() {
        "none".to_owned()
    } else {
        words.join(", ")
    }
}

/// The machine and the versions. `run` describes the run.
pub(crate) fn conditions(redis: &str, run: String) -> Vec<(&'static str, String)> {
    let crates = ["relatch", "rlock", "redlock", "redis", "r2d2"];
    let crates = crates.map(|name| format!("{name} {}", machine::crate_version(name)));
    vec![
        ("date", machine::today()),
        ("commit", machine::commit()),
        ("machine", machine::describe()),
        (
            "Redis",
            format!("{redis}, on the same machine, without persistence"),
        ),
        ("rustc", machine::rustc()),
        ("crates", crates.join(", ")),
        ("run", run),
    ]
}
