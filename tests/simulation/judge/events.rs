//! What happens to processes and keys, as far as it excuses an answer.

use crate::LostCause;
use crate::base::sync::scheduler::{as_process, now};

use crate::simulation::judge::{Hold, JUDGE, Who};

/// Whether anything explains that a hold was lost.
pub(crate) fn may_be_lost(number: usize) -> bool {
    let causes = [LostCause::Expired, LostCause::Deleted, LostCause::ShutDown];
    JUDGE.with_borrow(|judge| causes.iter().any(|it| judge.explains(number, *it)))
}

/// Whether this manager gives back what its threads hold, since it is shut down.
pub(crate) fn was_released(who: Who) -> bool {
    JUDGE.with_borrow(|judge| judge.released.contains(&(who.process, who.manager)))
}

/// Whether somebody who does not hold the lock has removed its key since then.
pub(crate) fn was_removed(key: usize, since: u64) -> bool {
    JUDGE.with_borrow(|judge| judge.is_removed(key, since))
}

/// Somebody who does not hold the lock removes its key until then.
pub(crate) fn removed(key: usize, until: u64) {
    JUDGE.with_borrow_mut(|judge| judge.removed[key].0 = judge.removed[key].0.max(until));
}

/// A command that removes the key is sent.
pub(crate) fn removes(key: usize) {
    JUDGE.with_borrow_mut(|judge| judge.removed[key].1 += 1);
}

/// That command was executed, or will be by then, if it is not too late: `None` if it has removed
/// nothing.
pub(crate) fn has_removed(key: usize, by: Option<u64>) {
    if let Some(at) = by {
        removed(key, at);
    }
    JUDGE.with_borrow_mut(|judge| judge.removed[key].1 -= 1);
}

/// The process runs no thread until then.
pub(crate) fn paused(process: usize, until: u64) {
    JUDGE.with_borrow_mut(|judge| judge.paused.push((process, now(), until)));
}

pub(crate) fn was_paused(process: usize, since: u64) -> bool {
    JUDGE.with_borrow(|judge| judge.was_paused(process, since))
}

/// The process was killed: it trusts nothing any more.
pub(crate) fn killed(process: usize) {
    JUDGE.with_borrow_mut(|judge| judge.dead.push(process));
}

pub(crate) fn is_dead(process: usize) -> bool {
    JUDGE.with_borrow(|judge| judge.dead.contains(&process))
}

/// All threads of the process have ended.
pub(crate) fn is_at_its_end(process: usize) {
    JUDGE.with_borrow_mut(|judge| judge.over.push(process));
}

pub(crate) fn is_over(process: usize) -> bool {
    JUDGE.with_borrow(|judge| judge.over.contains(&process))
}

/// Whether the process has had a hold since then, which it renews.
pub(crate) fn relies(process: usize, key: usize, since: u64) -> bool {
    let is_it = |hold: &Hold| {
        (hold.who.process, hold.key) == (process, key)
            && hold.began < since
            && hold.ended.is_none()
            && !hold.deal.may_expire
    };
    let holds = JUDGE.with_borrow(|judge| {
        judge
            .holds
            .iter()
            .filter(|it| is_it(it))
            .cloned()
            .collect::<Vec<_>>()
    });
    holds
        .iter()
        .any(|hold| as_process(process, || hold.watch.is_valid()))
}
