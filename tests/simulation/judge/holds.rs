//! What the threads of the programs hold.

use std::time::Duration;

use crate::base::sync::scheduler::{as_process, fail, now, trace};
use crate::simulation::judge::Judge;
use crate::simulation::judge::excuses::{Excuse, Excuses};
use crate::{LockGuard, LockWatch, LostCause};

/// A thread of a process, and the manager that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) process: usize,
    pub(crate) manager: usize,
    pub(crate) thread: u64,
}

/// What a hold may rely on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Why its lease may end by itself.
    pub(crate) ends: Excuses,
    /// The longest time from one renewal to the next, while the network works.
    pub(crate) period: Duration,
    /// The lock stays taken for so long.
    pub(crate) keeps: Duration,
    /// Its lease ends by itself so long after it was taken.
    pub(crate) longest: Option<Duration>,
}

#[derive(Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "they are independent of each other"
)]
pub(crate) struct Hold {
    pub(crate) who: Who,
    /// The thread that had it before this one, and until when.
    before: Option<(u64, u64)>,
    pub(crate) key: usize,
    pub(crate) terms: Terms,
    pub(crate) token: String,
    pub(crate) fence: Option<u64>,
    pub(super) watch: LockWatch,
    /// When the call began that took it, and when it had it.
    pub(crate) began: u64,
    pub(super) taken: u64,
    /// Until when the lock stays taken, at least and at most.
    pub(crate) kept: [u64; 2],
    /// The reason for its loss was judged.
    pub(super) is_explained: bool,
    /// When the last guard was given back.
    pub(super) ended: Option<u64>,
    /// How many guards there are.
    pub(crate) depth: u32,
    /// It is on its way to another thread.
    pub(crate) is_detached: bool,
    /// It was handed over.
    pub(crate) is_sent: bool,
    /// It was given another lease.
    pub(crate) is_changed: bool,
}

impl Hold {
    pub(super) fn is_valid(&self) -> bool {
        as_process(self.who.process, || self.watch.is_valid())
    }

    pub(super) fn seems_valid(&self) -> bool {
        as_process(self.who.process, || self.watch.seems_valid())
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
    /// Whether Redis had the token no more when a manager looked.
    pub(crate) fn is_gone(&self, number: usize) -> bool {
        let cause = self.hold(number).watch.wait_lost(Duration::ZERO);
        matches!(cause, Some(LostCause::Deleted | LostCause::Taken))
    }

    /// A thread has a guard more. `extra` guards are there besides those that the judge knows.
    /// Returns the number of the hold.
    pub(crate) fn taken(
        &self,
        who: Who,
        key: usize,
        began: u64,
        terms: Terms,
        guard: &LockGuard,
        extra: u32,
    ) -> usize {
        let look = || Hold {
            who,
            before: None,
            key,
            terms,
            token: guard.token().to_owned(),
            fence: guard.fence(),
            watch: guard.watch(),
            began,
            taken: now(),
            kept: [0; 2],
            is_explained: false,
            ended: None,
            depth: 0,
            is_detached: false,
            is_sent: false,
            is_changed: false,
        };
        let (new, depth) = as_process(who.process, || (look(), guard.depth()));
        let (token, fence) = (new.token.clone(), new.fence);
        let (number, known) = self.holds.with(|holds| {
            let is_it = |hold: &Hold| hold.ended.is_none() && hold.token == new.token;
            let number = holds.iter().position(is_it).unwrap_or_else(|| {
                holds.push(new);
                holds.len() - 1
            });
            let hold = &mut holds[number];
            hold.depth += 1;
            hold.who = who;
            hold.keeps(terms.keeps, began);
            (number, hold.depth)
        });
        trace(|| format!("took {key} with {token}, hold {number}, depth {depth}, fence {fence:?}"));
        if depth != known + extra {
            fail(format!(
                "hold {number} has the depth {depth}, and {known} and {extra} guards"
            ));
        }
        self.is_as_promised(number);
        self.nobody_else(key);
        number
    }

    /// A guard is gone. Returns how many are left.
    pub(crate) fn ends(&self, number: usize) -> u32 {
        self.change(number, |hold| {
            hold.depth -= 1;
            hold.ended = (hold.depth == 0).then(now);
        });
        let hold = self.hold(number);
        if hold.depth == 0 && hold.seems_valid() {
            fail(format!("hold {number} has ended, and is trusted"));
        }
        hold.depth
    }

    /// What is known of a hold.
    pub(crate) fn hold(&self, number: usize) -> Hold {
        self.holds.with(|holds| holds[number].clone())
    }

    pub(crate) fn change(&self, number: usize, change: impl FnOnce(&mut Hold)) {
        self.holds.with(|holds| change(&mut holds[number]));
    }

    /// The holds that are so, and their numbers.
    pub(super) fn holds(&self, are: impl Fn(&Hold) -> bool) -> Vec<(usize, Hold)> {
        self.holds.with(|holds| {
            let all = holds.iter().enumerate().filter(|it| are(it.1));
            all.map(|(number, hold)| (number, hold.clone())).collect()
        })
    }

    pub(crate) fn locks_taken(&self) -> u64 {
        self.holds.with(|holds| holds.len() as u64)
    }

    /// Whether this thread of the process, or any of them, holds the lock, or has held it since
    /// then.
    pub(crate) fn has(&self, process: usize, thread: Option<u64>, key: usize, since: u64) -> bool {
        let had = |hold: &Hold, thread: u64| {
            let (old, until) = hold.before.unwrap_or_default();
            thread == hold.who.thread || thread == old && until >= since
        };
        let is_it = |hold: &Hold| {
            (hold.who.process, hold.key) == (process, key)
                && thread.is_none_or(|it| had(hold, it))
                && hold.ended.is_none_or(|at| at >= since)
        };
        self.holds.with(|holds| holds.iter().any(is_it))
    }

    /// Another thread of the process has the hold from now on.
    pub(crate) fn passes_to(&self, number: usize, who: Who) {
        self.change(number, |hold| {
            hold.before = Some((hold.who.thread, now()));
            hold.who = who;
            hold.is_detached = false;
        });
    }

    /// The token was handed over.
    pub(crate) fn parcel_of(&self, token: &str) -> Excuses {
        let is_it = |hold: &Hold| hold.is_sent && hold.token == token;
        Excuse::OldParcel.when(self.holds.with(|holds| holds.iter().any(is_it)))
    }

    /// The locks that this thread holds.
    pub(crate) fn held_by(&self, who: Who) -> Vec<usize> {
        let is_it = |hold: &Hold| {
            (hold.who.process, hold.who.thread) == (who.process, who.thread) && hold.ended.is_none()
        };
        self.holds(is_it).into_iter().map(|it| it.0).collect()
    }

    /// The holds of a key that may be trusted, so far as is known here.
    pub(super) fn open(&self, key: usize) -> Vec<(usize, Hold)> {
        let open = self.holds(|hold| hold.key == key && hold.ended.is_none());
        let lives = |it: &(usize, Hold)| !self.is_dead(it.1.who.process);
        open.into_iter().filter(lives).collect()
    }

    /// The scene is over.
    pub(crate) fn rests(&self) {
        // What a killed process holds must not be dropped.
        let dead = |hold: &mut Hold| self.is_dead(hold.who.process);
        let holds = self.holds.with(std::mem::take);
        let mut holds = holds;
        holds.extract_if(.., dead).for_each(std::mem::forget);
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        self.rests();
    }
}
