//! `results.md`.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::Result;

use crate::book::{Book, CROWDS, Crowd, Trouble};
use crate::machine;
use crate::numbers::{Spread, percent, three_digits, time};
use crate::peer::{LOCKS, Peer};
use crate::plan::Plan;
use crate::stage::Stage;
use crate::table::Table;

/// For what was not measured.
const NONE: &str = "-";

/// Writes all tables.
pub(crate) fn write(out: &Path, stage: &Stage, plan: &Plan, book: &Book) -> Result<()> {
    let mut text = String::from(
        "# Results\n\nWritten by `benches/peers`. What is measured, and how to read it: [benchmarks.md](../benchmarks.md).\n\n",
    );
    text += &conditions(stage, plan);
    text += &left_out(stage);
    let about = "The median of the slice with the smallest one, and how it compares with the floor's; then medians over all slices, and the longest.";
    section(&mut text, "Lock and unlock, alone", about, cycles(stage, book));
    section(
        &mut text,
        "Reentry",
        "Lock and unlock of a lock that the thread has already.",
        reentry(stage, book),
    );
    for crowd in CROWDS {
        let title = format!("One key, {}", crowd.title());
        section(&mut text, &title, "Nothing is done under the lock.", contended(stage, book, crowd));
    }
    let about = "From just before the unlock in one process to the return of the lock call in another.";
    section(&mut text, "Hand-off between processes", about, hand_offs(stage, book));
    let about = "One process has the lock, and another waits for it.";
    section(&mut text, "Commands while waiting", about, waiting(stage, book));
    let about = "The server's processor time for one turn, of the run with 8 threads.";
    section(&mut text, "Server time per turn", about, cpu(stage, book));
    fs::write(out.join("results.md"), text)?;
    Ok(())
}

fn section(text: &mut String, title: &str, about: &str, table: Table) {
    let _ = write!(text, "\n## {title}\n\n{about}\n\n{}", table.text());
}

/// Machine, versions, plan.
fn conditions(stage: &Stage, plan: &Plan) -> String {
    let mut table = Table::of_words(&["", ""]);
    let mut row = |name: &str, value: String| table.row([name.to_owned(), value]);
    row("date", machine::today());
    row("commit", machine::commit());
    row("machine", machine::describe());
    row("placement", "left to the scheduler; server and clients share the cores".to_owned());
    row("Redis", format!("{}, on the same machine, without persistence", stage.redis));
    row("rustc", machine::rustc());
    row("crates", crates(&["relatch", "rlock", "redlock", "redis", "r2d2"]));
    if let Ok(python) = &stage.python {
        let names = ["redis", "python-redis-lock"].map(|name| format!("{name} {}", python.version(name)));
        row("Python", format!("{}, with {}", python.version("python"), names.join(", ")));
    }
    let (rounds, plural) = (plan.rounds, if plan.rounds == 1 { "" } else { "s" });
    row("run", format!("{}: {rounds} round{plural}, all peers in turns in each", plan.name));
    table.text()
}

fn crates(names: &[&str]) -> String {
    let versions = names.iter().map(|name| format!("{name} {}", machine::crate_version(name)));
    versions.collect::<Vec<_>>().join(", ")
}

fn left_out(stage: &Stage) -> String {
    match &stage.python {
        Ok(_) => String::new(),
        Err(why) => format!("\n**Left out:** redis-py and python-redis-lock ({why:#}).\n"),
    }
}

fn cycles(stage: &Stage, book: &Book) -> Table {
    let mut table = Table::new(&["", "quietest slice", "x floor", "p50", "p99", "longest"]);
    let floor = book.quietest_cycle(Peer::Floor);
    for peer in [Peer::Ping, Peer::Floor].into_iter().chain(present(stage)) {
        let quietest = book.quietest_cycle(peer);
        let ratio = quietest.zip(floor).map(|(quietest, floor)| three_digits(quietest / floor));
        let cells = [or_none(quietest.map(time)), or_none(ratio)];
        table.row(name(peer).into_iter().chain(cells).chain(times(book.cycle(peer))));
    }
    table
}

fn reentry(stage: &Stage, book: &Book) -> Table {
    let mut table = Table::of_words(&["", "p50 of means of 1000"]);
    for peer in present(stage) {
        let measured = match peer {
            Peer::Relatch => {
                or_none((!book.reentry.is_empty()).then(|| time(Spread::over(&book.reentry).p50)))
            }
            _ => peer.reentry().to_owned(),
        };
        table.row(name(peer).into_iter().chain([measured]));
    }
    table
}

fn contended(stage: &Stage, book: &Book, crowd: Crowd) -> Table {
    let columns =
        ["", "turns/s", "wait p50", "wait p99", "longest wait", "smallest share", "largest share", "trouble"];
    let mut table = Table::new(&columns);
    for peer in present(stage) {
        let outcome = book.contended(crowd, peer);
        let figure = |value: Option<String>| or_none(value);
        let mut cells = name(peer).to_vec();
        cells.push(figure(outcome.map(|outcome| three_digits(outcome.per_second))));
        cells.extend(times(outcome.map(|outcome| outcome.wait)));
        cells.push(figure(outcome.map(|outcome| percent(outcome.smallest))));
        cells.push(figure(outcome.map(|outcome| percent(outcome.largest))));
        cells.push(trouble(book, Some(crowd), peer));
        table.row(cells);
    }
    table
}

fn hand_offs(stage: &Stage, book: &Book) -> Table {
    let mut table = Table::new(&["", "p50", "p99", "longest", "hand-offs", "trouble"]);
    for peer in [Peer::Ping].into_iter().chain(present(stage)) {
        let count = book.hand_offs.get(&peer).map_or(0, Vec::len).to_string();
        let after = if peer == Peer::Ping { ", after the same idle time" } else { "" };
        let name = [format!("{}{after}", peer.title())];
        let name = if peer == Peer::Relatch { self::name(peer) } else { name };
        let rest = [count, trouble(book, None, peer)];
        table.row(name.into_iter().chain(times(book.hand_off(peer))).chain(rest));
    }
    table
}

fn waiting(stage: &Stage, book: &Book) -> Table {
    let mut table = Table::new(&["", "commands/s"]);
    for peer in present(stage) {
        let commands = book.waiting(peer).map(|commands| format!("{commands:.1}"));
        table.row(name(peer).into_iter().chain([or_none(commands)]));
    }
    table
}

fn cpu(stage: &Stage, book: &Book) -> Table {
    let mut table = Table::new(&["", "per turn"]);
    for peer in present(stage) {
        let cpu = book.contended(Crowd::EightThreads, peer).map(|outcome| time(outcome.cpu));
        table.row(name(peer).into_iter().chain([or_none(cpu)]));
    }
    table
}

fn present(stage: &Stage) -> impl Iterator<Item = Peer> {
    LOCKS.into_iter().filter(|peer| stage.has(*peer))
}

fn name(peer: Peer) -> [String; 1] {
    [if peer == Peer::Relatch { format!("**{}**", peer.title()) } else { peer.title().to_owned() }]
}

fn times(spread: Option<Spread>) -> [String; 3] {
    spread.map_or_else(|| [NONE; 3].map(str::to_owned), |spread| spread.parts().map(time))
}

fn or_none(value: Option<String>) -> String {
    value.unwrap_or_else(|| NONE.to_owned())
}

/// In words; most have none.
fn trouble(book: &Book, crowd: Option<Crowd>, peer: Peer) -> String {
    let Trouble { gave_up, failures, overlaps } =
        book.trouble.get(&(crowd, peer)).copied().unwrap_or_default();
    let kinds = [(gave_up, "x out of retries"), (failures, "x failed"), (overlaps, "x held by two at once")];
    let words: Vec<String> =
        kinds.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
