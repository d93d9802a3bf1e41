//! What a manager must not trust any more, and what it has to list.

use super::{Hold, JUDGE, Who, held_by};
use crate::HeldLock;
use crate::base::scheduler::{as_process, fail};
use crate::simulation::scene::name;

/// The manager does not trust its own hold whose key it has deleted.
pub(in crate::simulation) fn has_deleted(who: Who, token: &str) {
    blame_trusted(who, |hold| hold.token == token, "its key was deleted by its manager");
}

/// The manager trusts no hold any more, after its shutdown.
pub(in crate::simulation) fn none_of(who: Who) {
    blame_trusted(who, |_| true, "its manager was shut down");
}

fn blame_trusted(who: Who, counts: impl Fn(&Hold) -> bool, why: &str) {
    let open = JUDGE.with_borrow(|judge| {
        let is_it = |hold: &&Hold| {
            (hold.who.process, hold.who.manager) == (who.process, who.manager)
                && hold.ended.is_none()
                && counts(hold)
        };
        judge.holds.iter().filter(is_it).cloned().collect::<Vec<_>>()
    });
    let trusted = open.iter().find(|hold| as_process(who.process, || hold.watch.is_valid()));
    if let Some(hold) = trusted {
        fail(format!("{} is trusted, and {why}", hold.token));
    }
}

/// Whatever this thread holds through its manager is listed.
pub(in crate::simulation) fn are_listed(who: Who, listed: &[HeldLock]) {
    for number in held_by(who) {
        let hold = JUDGE.with_borrow(|judge| judge.holds[number].clone());
        let is_it = |held: &HeldLock| held.key == name(hold.key) && held.depth >= hold.depth;
        let is_valid = as_process(who.process, || hold.watch.is_valid());
        if hold.who.manager == who.manager && is_valid && !listed.iter().any(is_it) {
            fail(format!("hold {number} is not listed"));
        }
    }
}
