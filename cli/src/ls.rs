//! `relatch ls`: the locks that are in Redis.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use relatch::{Found, Holder, LockManager, SurveyedLock};
use serde_json::{Value, json};

use crate::args::{Common, Ls, Sort};
use crate::ask::one_line;
use crate::connect::builder;
use crate::exit::{Failure, code};
use crate::json;
use crate::output::write;
use crate::span;

/// The most characters of a key, and of a foreign value, in a line for people.
const LONGEST_KEY: usize = 40;
const LONGEST_VALUE: usize = 24;

pub(crate) fn ls(common: &Common, asked: &Ls) -> Result<u8, Failure> {
    // The prefix of the survey is the whole beginning: Redis looks for no more than is asked for.
    let prefix = format!("{}{}", common.prefix, asked.begin);
    let locks = builder(common)?.prefix(prefix).build()?;
    let Some(pause) = asked.watch else {
        write(&shown(common, &found(&locks, asked)?))?;
        return Ok(code::OK);
    };
    let clears = io::stdout().is_terminal();
    loop {
        let table = shown(common, &found(&locks, asked)?);
        let begin = if clears { "\x1b[H\x1b[2J" } else { "" };
        write(&format!("{begin}{table}"))?;
        thread::sleep(pause);
    }
}

/// What there is, in the order that was asked for. The keys have all but the prefix of the option.
fn found(locks: &LockManager, asked: &Ls) -> Result<Vec<SurveyedLock>, Failure> {
    let mut all = Vec::new();
    for found in locks.survey(asked.limit) {
        let mut found = found?;
        let is_no_lock = matches!(found.found, Found::NotALock | Found::NeverExpires);
        if asked.all || !is_no_lock {
            found.key.insert_str(0, &asked.begin);
            all.push(found);
        }
    }
    all.sort_by(|one, other| one.redis_key.cmp(&other.redis_key));
    let left = |lock: &SurveyedLock| {
        let left = lock.holder.as_ref().and_then(|holder| holder.remaining);
        left.unwrap_or(Duration::MAX)
    };
    let owner = |lock: &SurveyedLock| {
        let owner = lock.holder.as_ref().and_then(json::owner);
        owner.map(|owner| (owner.host.to_string(), owner.pid, owner.thread))
    };
    match asked.sort {
        Sort::Key => {}
        Sort::Left => all.sort_by_key(left),
        Sort::Holder => all.sort_by_key(owner),
    }
    Ok(all)
}

fn shown(common: &Common, found: &[SurveyedLock]) -> String {
    if common.json {
        let mut lines = String::new();
        for lock in found {
            let _ = writeln!(lines, "{}", object(lock)); // Writing to a text does not fail.
        }
        return lines;
    }
    let head = ["KEY", "HOST", "PID", "THREAD", "LEFT", "NOTE"].map(str::to_owned);
    let rows: Vec<_> = std::iter::once(head).chain(found.iter().map(row)).collect();
    let mut widths = [0; 6];
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (at, (cell, width)) in row.iter().zip(widths).enumerate() {
            // Numbers end in one column.
            let _ = match at {
                2..=4 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:width$}  "),
            };
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

fn cut(text: &str, longest: usize) -> String {
    let line = one_line(text);
    match line.char_indices().nth(longest) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line,
    }
}

fn row(lock: &SurveyedLock) -> [String; 6] {
    let none = || "-".to_owned();
    let key = cut(&lock.key, LONGEST_KEY);
    let left = |holder: &Holder| {
        holder
            .remaining
            .map_or_else(|| "never".to_owned(), span::show)
    };
    let nobody = |holder: &Holder, note| [key.clone(), none(), none(), none(), left(holder), note];
    match (lock.found, &lock.holder) {
        (Found::Held, Some(holder)) => {
            let owner = holder.owner();
            let shown = |text: Option<String>| text.unwrap_or_else(none);
            [
                key,
                shown(owner.as_ref().map(|owner| owner.host.to_string())),
                shown(owner.as_ref().map(|owner| owner.pid.to_string())),
                shown(owner.as_ref().map(|owner| owner.thread.to_string())),
                left(holder),
                String::new(),
            ]
        }
        (Found::Kept, Some(holder)) => {
            let owner = json::owner(holder);
            let was = owner.map_or_else(none, |owner| format!("{} {}", owner.host, owner.pid));
            nobody(holder, format!("kept (was {was})"))
        }
        (Found::Foreign, Some(holder)) => {
            let value = cut(&holder.raw, LONGEST_VALUE);
            nobody(holder, format!("foreign token {value}"))
        }
        (_, Some(holder)) => nobody(holder, "not a lock: never expires".to_owned()),
        (_, None) => {
            let is_text = str::from_utf8(&lock.redis_key).is_ok();
            let why = if is_text { "a string" } else { "UTF-8" };
            let note = format!("not a lock: not {why}");
            [key.clone(), none(), none(), none(), none(), note]
        }
    }
}

fn object(lock: &SurveyedLock) -> Value {
    let mut object = match &lock.holder {
        Some(holder) => json::holder(holder),
        None => json!({}),
    };
    let kind = match lock.found {
        Found::Held => "held",
        Found::Kept => "kept",
        Found::Foreign => "foreign",
        Found::NeverExpires => "never_expires",
        _ => "not_a_lock",
    };
    object["v"] = 1.into();
    object["kind"] = kind.into();
    object["key"] = lock.key.clone().into();
    // The key as it is in Redis, for what is not UTF-8.
    if str::from_utf8(&lock.redis_key).is_err() {
        let hex = lock.redis_key.iter().map(|byte| format!("{byte:02x}"));
        object["redis_key_hex"] = hex.collect::<String>().into();
    }
    object
}
