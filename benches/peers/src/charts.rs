//! Which pictures there are, and what is in them.

use std::path::Path;

use anyhow::Result;

use crate::book::{Book, CROWDS, Contended, Crowd};
use crate::chart::{Chart, Look, Panel, Row, Scale, draw};
use crate::numbers::{percent, round_time, three_digits, time};
use crate::peer::{LOCKS, Peer};

/// Draws all of them.
pub(crate) fn write(out: &Path, book: &Book) -> Result<()> {
    draw(&out.join("cycle.svg"), &cycle(book))?;
    draw(&out.join("throughput.svg"), &throughput(book))?;
    draw(&out.join("shares.svg"), &shares(book))?;
    draw(&out.join("waits.svg"), &waits(book))?;
    draw(&out.join("hand-off.svg"), &hand_off(book))?;
    draw(&out.join("waiting.svg"), &waiting(book))?;
    draw(&out.join("cpu.svg"), &cpu(book))
}

fn cycle(book: &Book) -> Chart {
    let peers = [Peer::Ping, Peer::Floor].into_iter().chain(LOCKS);
    let row = |peer: Peer| {
        let values = [book.quietest_cycle(peer)?, book.cycle(peer)?.p50];
        Some(several(peer, &values))
    };
    Chart {
        title: "Lock and unlock, alone".to_owned(),
        axis: "median time of a cycle, less is better".to_owned(),
        marks: vec!["quietest slice", "median slice"],
        panels: vec![Panel { heading: "", rows: peers.filter_map(row).collect() }],
        scale: Scale::AsNeeded,
        write: round_time,
    }
}

fn throughput(book: &Book) -> Chart {
    let row = |peer, outcome: Contended| one(peer, outcome.per_second, per_second);
    Chart {
        title: "Turns per second on one key".to_owned(),
        axis: "turns per second, more is better".to_owned(),
        marks: Vec::new(),
        panels: crowds(book, row),
        write: plain,
        scale: Scale::AsNeeded,
    }
}

fn shares(book: &Book) -> Chart {
    let row = |peer: Peer, outcome: Contended| {
        let values = [outcome.smallest, outcome.largest];
        let figures = values.map(percent).join("  to  ");
        Row { name: peer.title(), look: look(peer), values: values.to_vec(), figures }
    };
    Chart {
        title: "Who got the turns on one key, in percent".to_owned(),
        axis: "shares of the turns; fair where both marks meet".to_owned(),
        marks: vec!["smallest", "largest"],
        panels: crowds(book, row),
        scale: Scale::FromZero,
        write: |share| format!("{:.0} %", share * 100.0),
    }
}

fn waits(book: &Book) -> Chart {
    Chart {
        title: "Waiting for one key that others take and release".to_owned(),
        axis: "time of a lock call, less is better".to_owned(),
        marks: MARKS.to_vec(),
        panels: crowds(book, |peer, outcome| several(peer, &outcome.wait.parts())),
        write: round_time,
        scale: Scale::AsNeeded,
    }
}

fn hand_off(book: &Book) -> Chart {
    let peers = [Peer::Ping].into_iter().chain(LOCKS);
    let rows =
        peers.filter_map(|peer| book.hand_off(peer).map(|spread| several(peer, &spread.parts()))).collect();
    Chart {
        title: "Hand-off from process to process, after 20 to 40 ms of waiting".to_owned(),
        axis: "from unlock in one to lock in the other, less is better".to_owned(),
        marks: MARKS.to_vec(),
        panels: vec![Panel { heading: "", rows }],
        write: round_time,
        scale: Scale::AsNeeded,
    }
}

fn waiting(book: &Book) -> Chart {
    let row = |peer| book.waiting(peer).map(|commands| one(peer, commands, per_second));
    Chart {
        title: "What one waiter sends to Redis".to_owned(),
        axis: "commands per second while the lock is held, less is better".to_owned(),
        marks: Vec::new(),
        panels: vec![Panel { heading: "", rows: LOCKS.into_iter().filter_map(row).collect() }],
        write: plain,
        scale: Scale::AsNeeded,
    }
}

fn cpu(book: &Book) -> Chart {
    let row = |peer| book.contended(Crowd::EightThreads, peer).map(|outcome| one(peer, outcome.cpu, time));
    Chart {
        title: "Server time per turn, 8 threads on one key".to_owned(),
        axis: "processor time of redis-server, less is better".to_owned(),
        marks: Vec::new(),
        panels: vec![Panel { heading: "", rows: LOCKS.into_iter().filter_map(row).collect() }],
        write: round_time,
        scale: Scale::AsNeeded,
    }
}

const MARKS: [&str; 3] = ["p50", "p99", "longest"];

/// A panel per crowd.
fn crowds(book: &Book, row: impl Fn(Peer, Contended) -> Row) -> Vec<Panel> {
    let rows = |crowd| {
        LOCKS.into_iter().filter_map(|peer| Some(row(peer, book.contended(crowd, peer)?))).collect::<Vec<_>>()
    };
    CROWDS.into_iter().map(|crowd| Panel { heading: crowd.title(), rows: rows(crowd) }).collect()
}

fn one(peer: Peer, value: f64, write: fn(f64) -> String) -> Row {
    Row { name: peer.title(), look: look(peer), values: vec![value], figures: write(value) }
}

/// Times.
fn several(peer: Peer, values: &[f64]) -> Row {
    let figures: Vec<String> = values.iter().copied().map(time).collect();
    Row { name: peer.title(), look: look(peer), values: values.to_vec(), figures: figures.join("  ·  ") }
}

fn look(peer: Peer) -> Look {
    match peer {
        Peer::Relatch => Look::Own,
        Peer::Ping | Peer::Floor => Look::Floor,
        _ => Look::Other,
    }
}

fn per_second(value: f64) -> String {
    format!("{} /s", three_digits(value))
}

/// Without needless zeros.
fn plain(value: f64) -> String {
    format!("{value}")
}
