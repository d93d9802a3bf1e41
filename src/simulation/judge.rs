//! What must hold in every scene.

use std::cell::RefCell;
use std::time::Duration;

use crate::LockGuard;
use crate::LockWatch;
use crate::base::scheduler::{as_process, fail, now, trace};

thread_local! {
    static JUDGE: RefCell<Judge> = RefCell::default();
}

#[derive(Default)]
struct Judge {
    open: Vec<Open>,
    count: u64,
    locks: u64,
    dead: Vec<usize>,
    /// Which process was paused, from when, until when.
    paused: Vec<(usize, u64, u64)>,
    /// Until when each key may have been removed by somebody who does not hold it. Holds that were
    /// asked for until then may be lost.
    removed: Vec<u64>,
    /// The largest fence of each key.
    fences: Vec<u64>,
}

/// A hold that somebody may trust.
#[derive(Clone)]
struct Open {
    number: u64,
    process: usize,
    key: usize,
    /// When the call began that took it.
    began: u64,
    token: String,
    watch: LockWatch,
}

/// A new scene begins.
pub(super) fn begin(keys: usize) {
    JUDGE.with_borrow_mut(|judge| {
        // What a killed process holds must not be dropped.
        std::mem::forget(std::mem::take(&mut judge.open));
        *judge = Judge { fences: vec![0; keys], removed: vec![0; keys], ..Judge::default() };
    });
}

pub(super) fn locks_taken() -> u64 {
    JUDGE.with_borrow(|judge| judge.locks)
}

/// A thread of that process has taken the lock. Returns the number of the hold.
pub(super) fn taken(process: usize, key: usize, began: u64, guard: &LockGuard) -> u64 {
    let (token, watch, fence) =
        as_process(process, || (guard.token().to_owned(), guard.watch(), guard.fence()));
    trace(|| format!("took {key} with {token}"));
    let number = JUDGE.with_borrow_mut(|judge| {
        judge.locks += 1;
        if judge.open.iter().any(|open| open.token == token) {
            return 0; // Reentry, or a thread that got it from another one.
        }
        judge.count += 1;
        judge.open.push(Open { number: judge.count, process, key, began, token, watch });
        judge.count
    });
    if let Some(fence) = fence.filter(|_| number != 0) {
        let last = JUDGE.with_borrow_mut(|judge| std::mem::replace(&mut judge.fences[key], fence));
        if last >= fence {
            fail(format!("a hold of {key} has the fence {fence}, an earlier one had {last}"));
        }
    }
    nobody_else(key);
    number
}

/// Somebody who does not hold the lock removes its key until then.
pub(super) fn removed(key: usize, until: u64) {
    JUDGE.with_borrow_mut(|judge| judge.removed[key] = judge.removed[key].max(until));
}

/// The process runs no thread until then.
pub(super) fn paused(process: usize, until: u64) {
    JUDGE.with_borrow_mut(|judge| judge.paused.push((process, now(), until)));
}

/// The process was killed: it trusts nothing any more.
pub(super) fn killed(process: usize) {
    JUDGE.with_borrow_mut(|judge| {
        judge.dead.push(process);
        judge.open.extract_if(.., |open| open.process == process).for_each(std::mem::forget);
    });
}

pub(super) fn is_dead(process: usize) -> bool {
    JUDGE.with_borrow(|judge| judge.dead.contains(&process))
}

/// The hold is given back, or will be trusted by nobody any more.
pub(super) fn ends(number: u64) {
    let gone = JUDGE.with_borrow_mut(|judge| {
        let at = judge.open.iter().position(|open| open.number == number);
        at.map(|at| judge.open.swap_remove(at))
    });
    drop(gone);
}

/// Never two valid holders.
pub(super) fn nobody_else(key: usize) {
    let open = JUDGE.with_borrow(|judge| {
        let counts = |open: &&Open| open.key == key && open.began > judge.removed[key];
        judge.open.iter().filter(counts).cloned().collect::<Vec<_>>()
    });
    let is_trusted = |open: &&Open| as_process(open.process, || open.watch.is_valid());
    let trusted: Vec<_> = open.iter().filter(is_trusted).collect();
    if let [one, other, ..] = &trusted[..] {
        fail(format!(
            "two hold {key}: {} in process {}, {} in {}",
            one.token, one.process, other.token, other.process
        ));
    }
}

/// A call with a limit has returned.
pub(super) fn in_time(process: usize, began: u64, limit: Duration, most: Duration, what: &str) {
    let is_excused = |judge: &Judge| judge.paused.iter().any(|it| it.0 == process && it.2 >= began);
    if JUDGE.with_borrow(is_excused) {
        return;
    }
    let took = Duration::from_nanos(now() - began);
    if took > limit + most {
        fail(format!("{what} took {took:?}, with a limit of {limit:?} and {most:?} more"));
    }
}
