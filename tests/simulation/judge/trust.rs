//! What a manager must not trust any more, and what it has to list.

use std::time::Duration;

use super::{Hold, JUDGE, Who, held_by, hold, was_removed};
use crate::base::sync::scheduler::{as_process, fail, has_failed};
use crate::simulation::judge::ledger;
use crate::simulation::scene::name;
use crate::{HeldLock, MultiLockGuard};

/// The hold is valid, and no server has had its token since then.
pub(crate) fn is_nowhere(number: usize, since: u64) -> bool {
    let hold = hold(number);
    as_process(hold.who.process, || hold.watch.seems_valid())
        && !was_removed(hold.key, since)
        && !ledger::had(hold.key, since, &hold.token)
}

/// The manager does not trust its own hold whose key it has deleted.
pub(crate) fn has_deleted(who: Who, token: &str) {
    blame_trusted(
        who,
        |hold| hold.token == token,
        "its key was deleted by its manager",
    );
}

/// The manager trusts no hold any more, after its shutdown.
pub(crate) fn none_of(who: Who) {
    blame_trusted(who, |_| true, "its manager was shut down");
}

/// The key has run out at all servers: no thread trusts the hold any more.
pub(crate) fn has_run_out(key: usize, token: &str) {
    let open = JUDGE.with_borrow(|judge| judge.open(key));
    let is_trusted = |hold: &Hold| as_process(hold.who.process, || hold.watch.seems_valid());
    if open
        .iter()
        .any(|hold| hold.token == token && is_trusted(hold))
    {
        has_failed(format!(
            "{token} is trusted, and the lease of key {key} has run out"
        ));
    }
}

/// The guard of a set trusts its locks no longer than the one that ends first, and has their
/// fences.
pub(crate) fn is_as_good(who: Who, guard: &MultiLockGuard, numbers: &[usize]) {
    let holds: Vec<_> = numbers.iter().map(|number| hold(*number)).collect();
    let (left, least) = as_process(who.process, || {
        let left = guard.remaining();
        (left, holds.iter().map(|it| it.watch.remaining()).min())
    });
    // The clock goes on between two looks.
    let least = least.map(|it| it + Duration::from_micros(100));
    if least.is_some_and(|least| left > least) {
        fail(format!(
            "a set has {left:?} left, and a lock of it {least:?}"
        ));
    }
    for Hold { key, fence, .. } in &holds {
        let answer = guard.fence(name(*key));
        if answer != *fence {
            fail(format!(
                "{key} has the fence {fence:?} and {answer:?} in its set"
            ));
        }
    }
}

fn blame_trusted(who: Who, counts: impl Fn(&Hold) -> bool, why: &str) {
    let open = JUDGE.with_borrow(|judge| {
        let is_it = |hold: &&Hold| {
            (hold.who.process, hold.who.manager) == (who.process, who.manager)
                && hold.ended.is_none()
                && counts(hold)
        };
        judge
            .holds
            .iter()
            .filter(is_it)
            .cloned()
            .collect::<Vec<_>>()
    });
    let trusted = open
        .iter()
        .find(|hold| as_process(who.process, || hold.watch.is_valid()));
    if let Some(hold) = trusted {
        fail(format!("{} is trusted, and {why}", hold.token));
    }
}

/// Whether this thread can trust a hold of the lock.
pub(crate) fn trusts(who: Who, key: usize) -> bool {
    held_by(who).into_iter().any(|number| {
        let hold = JUDGE.with_borrow(|judge| judge.holds[number].clone());
        hold.key == key && as_process(who.process, || hold.watch.is_valid())
    })
}

/// Whatever this thread holds through its manager is listed.
pub(crate) fn are_listed(who: Who, listed: &[HeldLock]) {
    for number in held_by(who) {
        let hold = JUDGE.with_borrow(|judge| judge.holds[number].clone());
        let is_it = |held: &HeldLock| held.key == name(hold.key) && held.depth >= hold.depth;
        let is_valid = as_process(who.process, || hold.watch.is_valid());
        if hold.who.manager == who.manager && is_valid && !listed.iter().any(is_it) {
            fail(format!("hold {number} is not listed"));
        }
    }
}
