//! Who holds what, and what must hold at each moment: never two valid holders, fences that grow, a
//! depth that is right, losses that are told in time and once.
//!
//! `verdict` judges what calls return and when, `trust` what a manager trusts, `turns` and `routes`
//! who gets a lock next and from which node; `ledger` is what the servers had, and what went wrong.
//! `releases` judges what becomes of a hold, `rules` is what must hold whatever a call has
//! answered, and `events` is what happened to processes and keys.

mod events;
pub(crate) mod ledger;
mod releases;
pub(crate) mod routes;
mod rules;
mod trust;
pub(crate) mod turns;
pub(crate) mod verdict;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use crate::base::sync::scheduler::{as_process, fail, now, trace};
use crate::simulation::scene::plan::{Plan, Program};
use crate::{LockGuard, LockWatch, LostCause};

pub(crate) use events::{
    has_removed, is_at_its_end, is_dead, is_over, killed, may_be_lost, paused, relies, removed,
    removes, was_paused, was_released, was_removed,
};
pub(crate) use rules::{all_told, gone, nobody_else};
pub(crate) use trust::{
    are_listed, has_deleted, has_run_out, is_as_good, is_nowhere, none_of, trusts,
};

thread_local! {
    static JUDGE: RefCell<Judge> = RefCell::default();
}

#[derive(Default)]
struct Judge {
    fences_may_fall: bool,
    /// All locks have a fence.
    fenced: bool,
    /// How many replicas have to have a lock.
    wanted: usize,
    holds: Vec<Hold>,
    programs: Vec<Rc<Program>>,
    dead: Vec<usize>,
    /// Which process was paused, from when, until when.
    paused: Vec<(usize, u64, u64)>,
    /// Until when each key may have been removed by somebody who does not hold it, and how many
    /// commands for that are under way. Holds that were asked for until then may be lost.
    removed: Vec<(u64, u32)>,
    /// Which managers were told to give everything back.
    released: Vec<(usize, usize)>,
    /// For which keys of which managers `on_lost` was called.
    told: Vec<(usize, usize, usize)>,
    /// The processes whose threads have ended.
    over: Vec<usize>,
    /// The managers that gave a lock back which nobody got.
    undone: Vec<(usize, usize)>,
}

/// A thread of a process, and the manager that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) process: usize,
    pub(crate) manager: usize,
    pub(crate) thread: u64,
}

/// What a hold may rely on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deal {
    /// It is not renewed, or only for a while.
    pub(crate) may_expire: bool,
    /// It has a `max_hold`.
    pub(crate) capped: bool,
    /// Its lease was made shorter.
    pub(crate) shortened: bool,
    /// The longest time from one renewal to the next, while the network works.
    pub(crate) period: Duration,
    /// The lock stays taken for so long.
    pub(crate) keeps: Duration,
}

#[derive(Clone)]
pub(crate) struct Hold {
    pub(crate) who: Who,
    /// The thread that had it before this one, and until when.
    before: Option<(u64, u64)>,
    pub(crate) key: usize,
    pub(crate) deal: Deal,
    pub(crate) token: String,
    pub(crate) fence: Option<u64>,
    watch: LockWatch,
    /// When the call began that took it, and when it had it.
    pub(crate) began: u64,
    pub(crate) taken: u64,
    /// Until when the lock stays taken, at least and at most.
    pub(crate) kept: [u64; 2],
    /// The reason for its loss was judged.
    is_explained: bool,
    /// When the last guard was given back.
    ended: Option<u64>,
    /// How many guards there are.
    pub(crate) depth: u32,
    /// It is on its way to another thread.
    pub(crate) is_detached: bool,
}

/// A new scene begins.
pub(crate) fn begin(plan: &Plan) {
    JUDGE.with_borrow_mut(|judge| {
        // What a killed process holds must not be dropped.
        let dead = std::mem::take(&mut judge.dead);
        judge
            .holds
            .extract_if(.., |hold| dead.contains(&hold.who.process))
            .for_each(std::mem::forget);
        let programs = plan.processes.iter().cloned().map(Rc::new).collect();
        let (fenced, removed) = (plan.fenced, vec![(0, 0); plan.keys]);
        let fences_may_fall = plan.may_lose_fences();
        let wanted = plan.engine.copies().wanted;
        *judge = Judge {
            fences_may_fall,
            fenced,
            wanted,
            programs,
            removed,
            ..Judge::default()
        };
    });
}

pub(crate) fn locks_taken() -> u64 {
    JUDGE.with_borrow(|judge| judge.holds.len() as u64)
}

/// What is known of a process, whose numbers begin with one.
pub(crate) fn program(process: usize) -> Rc<Program> {
    JUDGE.with_borrow(|judge| Rc::clone(&judge.programs[process - 1]))
}

/// A thread has a guard more. `extra` guards are there besides those that the judge knows. Returns
/// the number of the hold.
pub(crate) fn taken(
    who: Who,
    key: usize,
    began: u64,
    deal: Deal,
    guard: &LockGuard,
    extra: u32,
) -> usize {
    let look = || Hold {
        who,
        before: None,
        key,
        deal,
        token: guard.token().to_owned(),
        fence: guard.fence(),
        watch: guard.watch(),
        began,
        taken: now(),
        kept: [0; 2],
        is_explained: false,
        is_detached: false,
        ended: None,
        depth: 0,
    };
    let (new, depth) = as_process(who.process, || (look(), guard.depth()));
    let (token, fence) = (new.token.clone(), new.fence);
    let (number, known, since) = JUDGE.with_borrow_mut(|judge| {
        let number = judge.number_of(new);
        let hold = &mut judge.holds[number];
        hold.depth += 1;
        hold.who = who;
        hold.keeps(deal.keeps, began);
        (number, hold.depth, hold.began)
    });
    trace(|| format!("took {key} with {token}, hold {number}, depth {depth}, fence {fence:?}"));
    if depth != known + extra {
        fail(format!(
            "hold {number} has the depth {depth}, and {known} and {extra} guards"
        ));
    }
    if fence.is_none() && JUDGE.with_borrow(|judge| judge.fenced) {
        fail(format!("hold {number} has no fence"));
    }
    if let Some(copies) = ledger::copies(key, &token)
        && !was_removed(key, since)
        && copies <= JUDGE.with_borrow(|judge| judge.wanted)
    {
        fail(format!("hold {number} has {copies} copies"));
    }
    rules::fences_grow(key, number);
    nobody_else(key);
    number
}

/// A guard is gone. Returns how many are left.
pub(crate) fn ends(number: usize) -> u32 {
    change(number, |hold| hold.depth -= 1);
    let hold = hold(number);
    if hold.depth == 0 {
        change(number, |hold| hold.ended = Some(now()));
        if as_process(hold.who.process, || hold.watch.seems_valid()) {
            fail(format!("hold {number} has ended, and is trusted"));
        }
    }
    hold.depth
}

/// When the hold with this token was given back.
pub(crate) fn ended(key: usize, token: &str) -> Option<u64> {
    let is_it = |hold: &&Hold| hold.key == key && hold.token == token;
    JUDGE.with_borrow(|judge| judge.holds.iter().find(is_it)?.ended)
}

/// For how long the hold can be trusted.
pub(crate) fn left(number: usize) -> Duration {
    let hold = hold(number);
    as_process(hold.who.process, || hold.watch.remaining())
}

/// What is known of a hold.
pub(crate) fn hold(number: usize) -> Hold {
    JUDGE.with_borrow(|judge| judge.holds[number].clone())
}

pub(crate) fn change(number: usize, change: impl FnOnce(&mut Hold)) {
    JUDGE.with_borrow_mut(|judge| change(&mut judge.holds[number]));
}

/// Whether this thread of the process, or any of them, holds the lock, or has held it since then.
pub(crate) fn has(process: usize, thread: Option<u64>, key: usize, since: u64) -> bool {
    let had = |hold: &Hold, thread: u64| {
        let (old, until) = hold.before.unwrap_or_default();
        thread == hold.who.thread || thread == old && until >= since
    };
    let is_it = |hold: &Hold| {
        (hold.who.process, hold.key) == (process, key)
            && thread.is_none_or(|it| had(hold, it))
            && hold.ended.is_none_or(|at| at >= since)
    };
    JUDGE.with_borrow(|judge| judge.holds.iter().any(is_it))
}

/// Another thread of the process has the hold from now on.
pub(crate) fn passes_to(number: usize, who: Who) {
    change(number, |hold| {
        hold.before = Some((hold.who.thread, now()));
        hold.who = who;
        hold.is_detached = false;
    });
}

/// The locks that this thread holds.
pub(crate) fn held_by(who: Who) -> Vec<usize> {
    let is_it = |it: &(usize, &Hold)| {
        (it.1.who.process, it.1.who.thread) == (who.process, who.thread) && it.1.ended.is_none()
    };
    JUDGE.with_borrow(|judge| {
        judge
            .holds
            .iter()
            .enumerate()
            .filter(is_it)
            .map(|it| it.0)
            .collect()
    })
}

/// A manager gives back what its threads hold.
pub(crate) fn gives_all_back(process: usize, manager: usize) {
    JUDGE.with_borrow_mut(|judge| judge.released.push((process, manager)));
}

/// `on_lost` was called, by a thread of the process. What has lost a hold is explained.
pub(crate) fn told(process: usize, manager: usize, key: usize) {
    JUDGE.with_borrow_mut(|judge| judge.told.push((process, manager, key)));
    let holds = JUDGE.with_borrow(|judge| judge.holds.clone());
    for (number, hold) in holds.iter().enumerate() {
        let is_it = (hold.who.process, hold.who.manager, hold.key) == (process, manager, key);
        if !is_it || hold.is_explained {
            continue;
        }
        // (Not `as_process`: this may have to wait for a thread that watches the hold.)
        if let Some(cause) = hold.watch.wait_lost(Duration::ZERO) {
            change(number, |hold| hold.is_explained = true);
            if !JUDGE.with_borrow(|judge| judge.explains(number, cause)) {
                fail(format!(
                    "no reason for the loss of hold {number}: {cause:?}"
                ));
            }
        }
    }
}

/// A manager has given back a lock that nobody got.
pub(crate) fn undone(who: Who) {
    JUDGE.with_borrow_mut(|judge| judge.undone.push((who.process, who.manager)));
}

impl Hold {
    /// How soon a loss at this age of the hold is told, while the network works.
    fn told_within(&self, age: Duration) -> Duration {
        let period = self.deal.period;
        let soon = Duration::from_millis(50);
        // It is renewed within a second for the first time. From then on, the server tells of
        // changes of its key.
        let first = period.min(Duration::from_secs(1)) + soon;
        match () {
            () if !program(self.who.process).tracks => 2 * period + soon,
            () if age > first => soon,
            // A lease may be doubled, and is renewed three times.
            () => (2 * period).min(Duration::from_secs(1)) + soon,
        }
    }

    /// The lock has to stay taken, though nobody may hold it.
    pub(crate) fn has_to_stay(&self) -> bool {
        self.kept[0] > now() + 5_000_000
    }

    /// The lock stays taken for so long since the call, or since the command that it has sent.
    fn keeps(&mut self, span: Duration, called: u64) {
        if span.is_zero() {
            return;
        }
        let nanos = u64::try_from(span.as_nanos()).expect("a short time");
        let drift = nanos / 100;
        let [least, most] = self.kept;
        self.kept = [
            least.max(called + nanos - drift),
            most.max(now() + nanos + drift),
        ];
    }
}

impl Judge {
    /// The holds of a key that may be trusted, so far as is known here.
    fn open(&self, key: usize) -> Vec<Hold> {
        let is_open = |hold: &&Hold| {
            hold.key == key
                && hold.ended.is_none()
                && !self.dead.contains(&hold.who.process)
                && !self.is_removed(key, hold.began)
        };
        self.holds.iter().filter(is_open).cloned().collect()
    }

    /// The number of the hold with this token, which may be new.
    fn number_of(&mut self, new: Hold) -> usize {
        let is_it = |hold: &Hold| hold.ended.is_none() && hold.token == new.token;
        self.holds.iter().position(is_it).unwrap_or_else(|| {
            self.holds.push(new);
            self.holds.len() - 1
        })
    }

    /// Whether anything that has happened to a hold, to its process or to its key has this effect.
    fn explains(&self, number: usize, cause: LostCause) -> bool {
        let hold = &self.holds[number];
        let Who {
            process, manager, ..
        } = hold.who;
        match cause {
            LostCause::ShutDown => self.released.contains(&(process, manager)),
            LostCause::Deleted => self.is_removed(hold.key, hold.began),
            LostCause::Expired => {
                let program = &self.programs[process - 1];
                // One silence may last longer than a lease that is shorter than the timeout.
                let is_short = program.lease < program.response;
                hold.deal.may_expire
                    || self.was_paused(process, hold.began)
                    || ledger::may_end_leases(hold.began, now())
                    || is_short && ledger::trouble(hold.began, now())
            }
            // Another holder has come, or the lease had run out before.
            _ => [LostCause::Deleted, LostCause::Expired]
                .iter()
                .any(|it| self.explains(number, *it)),
        }
    }

    fn is_removed(&self, key: usize, since: u64) -> bool {
        let (until, under_way) = self.removed[key];
        under_way > 0 || until >= since
    }

    fn was_paused(&self, process: usize, since: u64) -> bool {
        self.paused
            .iter()
            .any(|it| it.0 == process && it.2 >= since)
    }
}
