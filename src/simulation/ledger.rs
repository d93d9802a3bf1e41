//! What the server had at each moment, and what went wrong when.
//!
//! The times are the true ones, in nanoseconds.

use std::cell::RefCell;

use crate::base::scheduler::{START, now};
use crate::simulation::judge;
use crate::simulation::plan::Plan;
use crate::simulation::redis::{Redis, Value};
use crate::simulation::scene::name;

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

#[derive(Default)]
struct Ledger {
    /// What each key had, one after the other. Empty if nobody can tell.
    keys: Vec<Vec<Entry>>,
    /// What goes wrong with the network or the server: from when, until when.
    troubles: Vec<(u64, u64)>,
    /// Threads may be slow at any time.
    stalls: bool,
}

#[derive(Clone, Debug)]
struct Entry {
    since: u64,
    /// `None`: the key is not there.
    value: Option<String>,
    expires: bool,
}

/// A new scene begins. With one server, its keys are written down.
pub(super) fn begin(plan: &Plan, is_kept: bool) {
    let keys = if is_kept { vec![Vec::new(); plan.keys] } else { Vec::new() };
    let troubles = plan.troubles().into_iter().map(|(from, until)| (START + from, START + until)).collect();
    LEDGER.set(Ledger { keys, troubles, stalls: plan.order.stalls > 0 });
}

/// Nothing is recorded.
pub(super) fn rest() {
    LEDGER.take();
}

/// The server may have changed something.
pub(super) fn saw(redis: &Redis) {
    let count = LEDGER.with_borrow(|ledger| ledger.keys.len());
    for key in 0..count {
        let entry = redis.get(redis_key(key).as_bytes());
        let value = entry.map(|entry| match &entry.value {
            Value::String(value) => String::from_utf8_lossy(value).into_owned(),
            Value::List(_) => "a list".to_owned(),
        });
        let expires = entry.is_none_or(|entry| entry.expires.is_some());
        let gone = LEDGER.with_borrow_mut(|ledger| {
            let all = &mut ledger.keys[key];
            let before = all.last().cloned();
            if before.as_ref().is_some_and(|it| it.value == value && it.expires == expires) {
                return None;
            }
            let gone = before.and_then(|it| it.value).filter(|old| Some(old) != value.as_ref());
            all.push(Entry { since: now(), value, expires });
            gone
        });
        if let Some(token) = gone {
            judge::gone(key, &token);
        }
    }
}

/// What is known about a key.
pub(super) enum Found {
    /// Nobody can tell.
    Unknown,
    Nothing,
    Value(String),
}

pub(super) fn value(key: usize) -> Found {
    LEDGER.with_borrow(|ledger| {
        match ledger.keys.get(key).map(|all| all.last().and_then(|it| it.value.clone())) {
            None => Found::Unknown,
            Some(None) => Found::Nothing,
            Some(Some(value)) => Found::Value(value),
        }
    })
}

/// Whether the key was there at some time since then. Yes if nobody can tell.
pub(super) fn was_there(key: usize, since: u64) -> bool {
    LEDGER.with_borrow(|ledger| {
        let Some(all) = ledger.keys.get(key) else { return true };
        let ends = all.iter().skip(1).map(|next| next.since).chain([u64::MAX]);
        all.iter().zip(ends).any(|(entry, end)| entry.value.is_some() && end >= since)
    })
}

/// Whether the key never had a value without an expiry, as far as anybody can tell.
pub(super) fn always_expired(key: usize) -> bool {
    LEDGER.with_borrow(|ledger| ledger.keys.get(key).is_none_or(|all| all.iter().all(|entry| entry.expires)))
}

/// When the key had this token first: the number of the entry.
pub(super) fn order(key: usize, token: &str) -> Option<usize> {
    let is_it = |entry: &Entry| entry.value.as_deref() == Some(token);
    LEDGER.with_borrow(|ledger| ledger.keys.get(key)?.iter().position(is_it))
}

/// Whether anything went wrong with the network or the server between these moments, or threads may
/// have been slow.
pub(super) fn trouble(from: u64, until: u64) -> bool {
    let is_near = |it: &(u64, u64)| it.0 <= until && it.1 >= from;
    LEDGER.with_borrow(|ledger| ledger.stalls || ledger.troubles.iter().any(is_near))
}

/// What is left of a key at the end of a scene that nothing explains: `Err`. All that may be left
/// has an expiry. A kept lock may be left, one that `may_stay`, and any after trouble.
pub(super) fn is_clean(key: usize, may_stay: impl Fn(&str) -> bool) -> Result<(), String> {
    let last = LEDGER.with_borrow(|ledger| ledger.keys.get(key).and_then(|all| all.last().cloned()));
    let Some(Entry { value: Some(value), expires, .. }) = last else { return Ok(()) };
    if expires && (value.starts_with("kept:") || may_stay(&value) || trouble(START, now())) {
        return Ok(());
    }
    Err(format!("key {key} has {value} at the end, which expires: {expires}"))
}

/// Whether threads may be slow at any time.
pub(super) fn stalls() -> bool {
    LEDGER.with_borrow(|ledger| ledger.stalls)
}

fn redis_key(key: usize) -> String {
    format!("lock:{}", name(key))
}
