//! What must hold at any time, whatever a call has answered.

use std::time::Duration;

use crate::base::sync::scheduler::{as_process, fail, has_failed, later, now};

use crate::simulation::judge::{Hold, JUDGE, ledger};

/// Never two valid holders.
pub(crate) fn nobody_else(key: usize) {
    let open = JUDGE.with_borrow(|judge| judge.open(key));
    let is_trusted = |hold: &&Hold| as_process(hold.who.process, || hold.watch.is_valid());
    let trusted: Vec<_> = open.iter().filter(is_trusted).collect();
    if let [one, other, ..] = &trusted[..] {
        fail(format!(
            "two hold {key}: {} in process {}, {} in {}",
            one.token, one.who.process, other.token, other.who.process
        ));
    }
}

/// Fences grow in the order in which the server gave the lock away.
pub(super) fn fences_grow(key: usize, number: usize) {
    if JUDGE.with_borrow(|judge| judge.fences_may_fall) {
        return;
    }
    let wrong = JUDGE.with_borrow(|judge| {
        let mine = &judge.holds[number];
        let (fence, order) = (mine.fence?, ledger::order(key, &mine.token)?);
        let is_wrong = |other: &&Hold| {
            let theirs = other.fence.zip(ledger::order(key, &other.token));
            // (At the same nanosecond, nobody can tell which was first.)
            theirs.is_some_and(|(fence_of_other, at)| {
                at != order && fence_of_other.cmp(&fence) != at.cmp(&order)
            })
        };
        let mut others = judge.holds.iter().filter(|it| it.key == key);
        let other = others.find(is_wrong)?;
        Some(format!(
            "the fences of {} and {} are {:?} and {fence}",
            other.token, mine.token, other.fence
        ))
    });
    if let Some(wrong) = wrong {
        fail(wrong);
    }
}

/// The key does not have this token any more. If somebody holds it, that is told in time.
pub(crate) fn gone(key: usize, token: &str) {
    let lost = JUDGE.with_borrow(|judge| {
        let is_it = |hold: &Hold| hold.key == key && hold.token == token && hold.ended.is_none();
        let number = judge.holds.iter().position(is_it)?;
        Some((number, judge.holds[number].clone())).filter(|it| !it.1.deal.may_expire)
    });
    let Some((number, hold)) = lost else { return };
    let at = now();
    let within = hold.told_within(Duration::from_nanos(at - hold.taken));
    later(within, move || {
        let process = hold.who.process;
        let is_excused = JUDGE.with_borrow(|judge| {
            let is_over = judge
                .holds
                .get(number)
                .is_none_or(|it| it.ended.is_some() || it.deal.may_expire);
            is_over || judge.dead.contains(&process) || judge.was_paused(process, at)
        });
        let is_excused = is_excused || ledger::trouble(at.saturating_sub(5_000_000_000), now());
        if !is_excused && as_process(process, || hold.watch.is_valid()) {
            has_failed(format!(
                "hold {number} of key {key} is trusted {within:?} after its loss"
            ));
        }
        std::mem::forget(hold);
    });
}

/// `on_lost` was called once for each hold that was lost. A thread of the process calls this, when
/// all its holds have ended.
pub(crate) fn all_told(process: usize, manager: usize, key: usize) -> Result<(), String> {
    let is_mine =
        |hold: &&Hold| (hold.who.process, hold.who.manager, hold.key) == (process, manager, key);
    let watches: Vec<_> = JUDGE.with_borrow(|judge| {
        judge
            .holds
            .iter()
            .filter(is_mine)
            .map(|hold| hold.watch.clone())
            .collect()
    });
    let lost = watches
        .iter()
        .filter(|watch| watch.wait_lost(Duration::ZERO).is_some())
        .count();
    let (told, is_exact) = JUDGE.with_borrow(|judge| {
        let told = judge
            .told
            .iter()
            .filter(|it| **it == (process, manager, key))
            .count();
        (told, !judge.undone.contains(&(process, manager)))
    });
    if told < lost || told > lost && is_exact {
        return Err(format!(
            "{lost} holds of key {key} were lost, on_lost was called {told} times"
        ));
    }
    Ok(())
}
