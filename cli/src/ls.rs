//! `relatch ls`: the locks that are in Redis.

use std::fmt::Write;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use relatch::{Found, Holder, LockManager, SurveyedLock};
use serde_json::{Value, json};

use crate::args::{Common, Ls, Sort};
use crate::connect::builder;
use crate::exit::{Failure, code};
use crate::json;
use crate::output::{json_line, plain, tell, write};
use crate::span;
use crate::whose;

/// The most characters to show of a key, and of a foreign value, in the table.
const LONGEST_KEY: usize = 40;
const LONGEST_VALUE: usize = 24;

/// The keys are sorted, so all are in memory. A server with an endless list would fill it.
const MOST_KEYS: usize = 1_000_000;

/// With a shorter pause, a watch would query Redis almost without a break.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);

pub(crate) fn ls(common: &Common, asked: &Ls) -> Result<u8, Failure> {
    let begin = &asked.begin;
    if asked.watch.is_some() && span::parse(begin).is_ok() {
        tell(&format!(
            "listing the keys that begin with {begin:?}: for an interval, write --watch={begin}"
        ));
    }
    // The survey's prefix includes the beginning that was asked for, so Redis returns only those
    // keys.
    let prefix = format!("{}{}", common.prefix, asked.begin);
    let locks = builder(common)?.prefix(&*prefix).build()?;
    let (all, hidden) = found(&locks, asked)?;
    let mut is_read = write(&shown(asked, &all))?;
    if is_read && !common.quiet {
        told(asked, &prefix, all.len(), hidden);
    }
    let Some(pause) = asked.watch else {
        return Ok(code::OK);
    };
    let is_terminal = io::stdout().is_terminal();
    let begin = if is_terminal { "\x1b[H\x1b[2J" } else { "" };
    while is_read {
        thread::sleep(pause.max(SHORTEST_PAUSE));
        // An outage does not end the watch.
        match found(&locks, asked) {
            Ok((all, hidden)) => {
                is_read = write(&format!("{begin}{}", shown(asked, &all)))?;
                if is_terminal && !common.quiet {
                    told(asked, &prefix, all.len(), hidden);
                }
            }
            Err(failure) => tell(&failure.message),
        }
    }
    Ok(code::OK)
}

/// Prints which prefix was searched, and how many keys were left out.
fn told(asked: &Ls, prefix: &str, count: usize, hidden: usize) {
    let what = if asked.all { "key" } else { "lock" };
    if !asked.answer.json {
        tell(&match count {
            0 if prefix.is_empty() => format!("no {what}s"),
            0 => format!("no {what}s with prefix {prefix:?} (--prefix '' lists all keys)"),
            1 => format!("1 {what} with prefix {prefix:?}"),
            _ => format!("{count} {what}s with prefix {prefix:?}"),
        });
    }
    match hidden {
        0 => {}
        1 => tell("1 key is hidden because it never expires or cannot be a lock: --all shows it"),
        _ => tell(&format!(
            "{hidden} keys are hidden because they never expire or cannot be locks: --all shows them"
        )),
    }
}

/// What was found, in the requested order, and how many keys were left out because they are not
/// locks. The keys lack only the prefix of the option.
fn found(locks: &LockManager, asked: &Ls) -> Result<(Vec<SurveyedLock>, usize), Failure> {
    let mut all = Vec::new();
    let mut hidden = 0;
    for found in locks.survey(asked.limit) {
        let mut found = found?;
        let is_no_lock = matches!(found.found, Found::NotALock | Found::NeverExpires);
        if !asked.all && (is_no_lock || is_counter(&found)) {
            hidden += usize::from(!is_counter(&found));
            continue;
        }
        if all.len() == MOST_KEYS {
            let message = format!("there are more than {MOST_KEYS} keys: give a prefix");
            return Err(Failure::new(code::CONFIG, message));
        }
        found.key.insert_str(0, &asked.begin);
        all.push(found);
    }
    all.sort_by(|one, other| one.redis_key.cmp(&other.redis_key));
    all.dedup_by(|one, other| one.redis_key == other.redis_key); // Redis may name a key twice.
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
    Ok((all, hidden))
}

/// True for the counter of a fenced lock. (The survey leaves out only the counters for its own
/// prefix, and here the prefix may end anywhere in a key.)
fn is_counter(lock: &SurveyedLock) -> bool {
    let is_number =
        |holder: &Holder| !holder.raw.is_empty() && holder.raw.bytes().all(|b| b.is_ascii_digit());
    let key = String::from_utf8_lossy(&lock.redis_key);
    key.contains("fence:") && key.contains('{') && lock.holder.as_ref().is_some_and(is_number)
}

fn shown(asked: &Ls, found: &[SurveyedLock]) -> String {
    if asked.answer.json {
        return found.iter().map(|lock| json_line(&object(lock))).collect();
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
            // Numbers are aligned to the right.
            let _ = match at {
                2..=4 => write!(line, "{cell:>width$}  "),
                _ => write!(line, "{cell:width$}  "),
            }; // Writing to a text does not fail.
        }
        table.push_str(line.trim_end());
        table.push('\n');
    }
    table
}

fn cut(text: &str, longest: usize) -> String {
    let line = plain(text);
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
            let by = whose::library(&lock.redis_key, &holder.raw);
            let mut row = nobody(
                holder,
                format!("{}: {value}", by.unwrap_or("foreign token")),
            );
            if let Some(host) = whose::shedlock_host(&holder.raw) {
                row[1] = cut(host, LONGEST_VALUE);
            }
            row
        }
        (_, Some(holder)) => nobody(holder, "not a lock: never expires".to_owned()),
        (_, None) => {
            let is_text = str::from_utf8(&lock.redis_key).is_ok();
            let note = if is_text {
                "not a string: a lock of Redisson or Symfony, or none at all"
            } else {
                "not a lock: not UTF-8"
            };
            let [host, pid, thread, left] = [(); 4].map(|()| none());
            [key, host, pid, thread, left, note.to_owned()]
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
    if let (Found::Foreign, Some(holder)) = (lock.found, &lock.holder) {
        object["library"] = whose::library(&lock.redis_key, &holder.raw).into();
    }
    object["v"] = 1.into();
    object["kind"] = kind.into();
    object["key"] = lock.key.clone().into();
    // The key's bytes in Redis, if it is not UTF-8.
    if str::from_utf8(&lock.redis_key).is_err() {
        object["redis_key_hex"] = json::hex(&lock.redis_key).into();
    }
    object
}
