//! `results.md`.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::book::{Book, Measured, SCENARIOS, Scenario};
use crate::machine;
use crate::numbers::{percent, three_digits, time};
use crate::peer::Peer;
use crate::setting::Setting;

/// The head of a column, and a function for the cells below it, which gets the figures of a peer
/// and of the floor in the same setting.
type Column = (&'static str, fn(&Measured, Option<&Measured>) -> String);

const P50: Column = ("p50", |of, _| time(of.p50()));
const P99: Column = ("p99", |of, _| time(of.p99()));
const LONGEST: Column = ("longest", |of, _| time(of.longest()));
const CLIENTS: Column = ("CPU a turn, clients", |of, _| time(of.client_cpu()));
const SERVER: Column = ("CPU a turn, server", |of, _| time(of.server_cpu()));

const ALONE: &[Column] = &[
    P50,
    ("x floor", |of, floor| {
        floor.map_or("-".to_owned(), |floor| three_digits(of.p50() / floor.p50()))
    }),
    P99,
    LONGEST,
    CLIENTS,
    SERVER,
];

const REENTRY: &[Column] = &[P50, CLIENTS, SERVER];

const TURNS: &[Column] = &[
    ("turns/s", |of, _| three_digits(of.per_second())),
    ("wait p50", P50.1),
    ("wait p99", P99.1),
    ("longest wait", LONGEST.1),
    ("smallest share", |of, _| percent(of.smallest_share())),
    ("largest share", |of, _| percent(of.largest_share())),
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
    ("CPU a hand-off, clients", |of, _| or_none(of.client_cpu())),
    ("CPU a hand-off, server", |of, _| or_none(of.server_cpu())),
];

/// Writes `conditions`, each a name and a value, and then all tables.
pub(crate) fn write(out: &Path, conditions: &[(&str, String)], book: &Book) -> Result<()> {
    let mut text = String::from(
        "# Results\n\nWritten by `benches/peers`. What is measured, and how to read it: \
         [benchmarks.md](../benchmarks.md).\n\n",
    );
    row(&mut text, ["", ""]);
    row(&mut text, ["---"; 2]);
    for (name, value) in conditions {
        row(&mut text, [*name, value.as_str()]);
    }
    let settings: BTreeSet<Setting> = book.keys().map(|(setting, ..)| *setting).collect();
    for scenario in SCENARIOS {
        let (columns, about) = of(scenario);
        write!(text, "\n## {}\n\n{about}\n", scenario.title())?;
        for setting in &settings {
            write!(text, "\n### {}: {}\n\n", scenario.title(), setting.title())?;
            table(&mut text, columns, *setting, scenario, book);
        }
    }
    fs::write(out.join("results.md"), text)?;
    Ok(())
}

/// The columns of a scenario's tables, and a text above them.
fn of(scenario: Scenario) -> (&'static [Column], &'static str) {
    match scenario {
        Scenario::Alone => (
            ALONE,
            "One thread locks and unlocks a lock that nobody else wants.",
        ),
        Scenario::Reentry => (
            REENTRY,
            "Lock and unlock of a lock that the thread has already; each time is the mean of 100. The other \
             locks are not reentrant: a thread that takes one again fails, or waits for itself.",
        ),
        Scenario::HandOff => (
            HAND_OFF,
            "From just before the unlock in one process to the return of the lock call in another; and the \
             commands that Redis executes for one waiter. *PING* is a round trip after the same idle time.",
        ),
        _ => (
            TURNS,
            "Nothing is done under the lock. A wait is the time of a lock call.",
        ),
    }
}

fn table(text: &mut String, columns: &[Column], setting: Setting, scenario: Scenario, book: &Book) {
    let heads = columns.iter().map(|(head, _)| *head);
    row(text, [""].into_iter().chain(heads).chain(["trouble"]));
    row(
        text,
        ["---"]
            .into_iter()
            .chain(columns.iter().map(|_| "---:"))
            .chain(["---"]),
    );
    let floor = book
        .get(&(setting, scenario, Peer::Floor))
        .filter(|floor| !floor.is_empty());
    for ((.., peer), measured) in book
        .iter()
        .filter(|((s, c, _), _)| (*s, *c) == (setting, scenario))
    {
        let name = if *peer == Peer::Relatch {
            "**relatch**"
        } else {
            peer.title()
        };
        let write = |(_, write): &Column| {
            if measured.is_empty() {
                "-".to_owned()
            } else {
                write(measured, floor)
            }
        };
        let cells = columns.iter().map(write);
        row(
            text,
            [name.to_owned()]
                .into_iter()
                .chain(cells)
                .chain([trouble(measured)]),
        );
    }
}

fn row(text: &mut String, cells: impl IntoIterator<Item = impl Into<String>>) {
    let cells: Vec<String> = cells.into_iter().map(Into::into).collect();
    let _ = writeln!(text, "| {} |", cells.join(" | "));
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
        (of.overlaps, "x held by two at once"),
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
