//! Which calls there are, and when they return.

use std::ops::Deref;
use std::time::Duration;

use crate::Error;
use crate::base::sync::scheduler::{fail, now};
use crate::simulation::judge::excuses::{Excuse, Excuses};
use crate::simulation::judge::{Judge, Who};

/// How late a call may be that keeps its deadline: what its thread does behind the last timer.
pub(crate) const LATE: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(super) struct Calls {
    all: Vec<Record>,
    /// Which processes have stopped their waits, and which of their managers. When it began.
    stops: Vec<(usize, Option<usize>, u64)>,
}

/// What is known of a call of the crate.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    number: usize,
    pub(crate) who: Who,
    pub(crate) keys: Vec<usize>,
    pub(crate) what: &'static str,
    pub(crate) began: u64,
    ended: Option<u64>,
    /// It begins after a shutdown of its manager, and is no reentry.
    has_to_be_refused: bool,
    /// The process can stop it.
    heeds: bool,
    /// Why the lease may end by itself of what it takes.
    pub(super) expiry: Excuses,
    /// The parcel that it adopts.
    pub(super) parcel: Option<Sent>,
}

/// A parcel: when its hold began, until when it can be adopted by the only process that has it, and
/// whether another one has got it as well.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) began: u64,
    pub(crate) until: u64,
    pub(crate) is_copied: bool,
}

/// A call of the crate.
pub(crate) struct Call<'a> {
    pub(super) judge: &'a Judge,
    it: Record,
}

impl Deref for Call<'_> {
    type Target = Record;

    fn deref(&self) -> &Record {
        &self.it
    }
}

impl Record {
    /// It goes on, and is a call of the process for this lock, or a shutdown.
    pub(super) fn is_for(&self, who: Who, key: usize) -> bool {
        let is_it = self.keys.is_empty() || self.keys.contains(&key);
        self.who.process == who.process && is_it && self.ended.is_none()
    }

    fn lasts(&self, since: u64) -> bool {
        self.ended.is_none_or(|at| at >= since)
    }
}

impl Judge {
    /// The waits of a process end, or those of one manager, which takes no locks any more.
    pub(crate) fn stops(&self, process: usize, manager: Option<usize>) {
        self.calls
            .with(|calls| calls.stops.push((process, manager, now())));
    }

    /// The calls of a process that wait for this lock, and have waited since then.
    pub(super) fn waiting(&self, key: usize, since: u64) -> Vec<Record> {
        let waits = |call: &&Record| {
            call.keys == [key]
                && call.ended.is_none()
                && call.began < since
                && matches!(call.what, "lock" | "with_lock")
        };
        self.calls
            .with(|calls| calls.all.iter().filter(waits).cloned().collect())
    }

    pub(super) fn any_call(&self, is_it: impl Fn(&Record) -> bool) -> bool {
        self.calls.with(|calls| calls.all.iter().any(is_it))
    }

    /// Whether a thread of the process is in a call for several locks. The judge does not know
    /// which of them it has already.
    pub(super) fn takes_several(
        &self,
        process: usize,
        thread: Option<u64>,
        key: usize,
        since: u64,
    ) -> bool {
        self.any_call(|call| {
            call.who.process == process
                && thread.is_none_or(|it| it == call.who.thread)
                && call.keys.len() > 1
                && call.keys.contains(&key)
                && call.lasts(since)
        })
    }

    pub(crate) fn begins(&self, who: Who, keys: &[usize], what: &'static str) -> Call<'_> {
        let began = now();
        let is_new = |key: &usize| !self.has(who.process, Some(who.thread), *key, began);
        let is_new = keys.iter().any(is_new);
        let it = self.calls.with(|calls| {
            let is_shut =
                |it: &(usize, Option<usize>, u64)| (it.0, it.1) == (who.process, Some(who.manager));
            let it = Record {
                number: calls.all.len(),
                who,
                keys: keys.to_vec(),
                what,
                began,
                ended: None,
                has_to_be_refused: is_new && calls.stops.iter().any(is_shut),
                heeds: false,
                expiry: Excuses::NONE,
                parcel: None,
            };
            calls.all.push(it.clone());
            it
        });
        Call { judge: self, it }
    }
}

impl Call<'_> {
    pub(crate) fn taking(mut self, heeds: bool, expiry: Excuses) -> Self {
        (self.it.heeds, self.it.expiry) = (heeds, expiry);
        self
    }

    pub(crate) fn adopts(mut self, parcel: Sent) -> Self {
        self.it.parcel = Some(parcel);
        self
    }

    pub(crate) fn blame(&self, why: impl std::fmt::Display) {
        fail(format!(
            "{} of {:?} by {:?}: {why}",
            self.what, self.keys, self.who
        ));
    }

    /// The call has returned, and had to by `limit`, if it has one.
    pub(crate) fn ends(&self, limit: Option<Duration>) {
        self.judge
            .calls
            .with(|calls| calls.all[self.number].ended = Some(now()));
        let took = Duration::from_nanos(now() - self.began);
        let Some(limit) = limit else { return };
        // The clock of the process may be slow.
        if took > limit + limit / 100 + LATE && !self.judge.forgives(self.lateness()) {
            self.blame(format!("it took {took:?}, and has a limit of {limit:?}"));
        }
    }

    fn lateness(&self) -> Excuses {
        self.judge.slow() | self.judge.pause_of(self.who.process, self.began)
    }

    /// What is between the process and the server, or a pause of the process.
    pub(crate) fn trouble(&self) -> Excuses {
        let limits = self.judge.program(self.who.process).response * 3;
        let since = self.began.saturating_sub(limits * 1_000_000);
        self.judge.trouble(since, now()) | self.judge.pause_of(self.who.process, since)
    }

    /// Why the key of one of the locks may have been removed.
    pub(super) fn removal(&self) -> Excuses {
        let keys = self.keys.iter();
        keys.map(|key| self.judge.removal(*key, self.began))
            .collect()
    }

    /// The lock was busy.
    pub(crate) fn was_busy(&self) {
        let (judge, process) = (self.judge, self.who.process);
        // (Also a thread that has not learned of its loss yet.)
        let is_there = |key: &usize| {
            let is_beside = |other: &Record| {
                other.number != self.number
                    && other.who.process == process
                    && other.lasts(self.began)
                    && other.keys.contains(key)
            };
            judge.has(process, None, *key, self.began)
                || judge.any_call(is_beside)
                || judge.ledger.with(|it| it.was_there(*key, self.began))
        };
        // A wait of less than 20 ms may end before the server could be asked.
        let is_short = (900_000..22_000_000).contains(&(now() - self.began));
        if !self.keys.iter().any(is_there)
            && !judge.forgives(self.trouble() | Excuse::ShortWait.when(is_short))
        {
            self.blame("the lock was free");
        }
    }

    pub(super) fn has_one(&self) -> bool {
        let (process, thread) = (self.who.process, Some(self.who.thread));
        let mut keys = self.keys.iter();
        keys.any(|key| self.judge.has(process, thread, *key, self.began))
    }

    /// One thread waited for a lock that the next one held.
    fn is_edge(&self, thread: u64, key: usize, next: u64) {
        let (judge, process) = (self.judge, self.who.process);
        let waits = judge.any_call(|call| {
            (call.who.process, call.who.thread) == (process, thread)
                && call.keys.contains(&key)
                && call.lasts(self.began)
        });
        let has = judge.takes_several(process, Some(next), key, self.began)
            || judge.has(process, Some(next), key, self.began);
        if !waits || !has {
            self.blame(format!(
                "no deadlock: {thread} waits for {key}: {waits}, and {next} has it: {has}"
            ));
        }
    }

    /// The cycle that was found begins with this thread, and is there.
    pub(super) fn is_deadlock(&self, error: &Error) {
        // An answer that a proxy repeats may be that for another key.
        let Error::WouldDeadlock { cycle, .. } = error else {
            return;
        };
        if self.removal().has(Excuse::Repeated) {
            return;
        }
        let first = cycle.first().map(|it| it.thread.thread);
        if first != Some(self.who.thread) {
            self.blame("the cycle does not begin with this thread");
        }
        for (number, one) in cycle.iter().enumerate() {
            let next = &cycle[(number + 1) % cycle.len()];
            let key = crate::simulation::plan::key_of(&one.key);
            self.is_edge(one.thread.thread, key, next.thread.thread);
        }
    }

    /// Whether somebody has stopped it. If so, it does not go on for long.
    pub(super) fn was_stopped(&self) -> bool {
        let (judge, it) = (self.judge, self.who);
        let counts = |manager: Option<usize>| manager.map_or(self.heeds, |of| of == it.manager);
        let stopped = judge.calls.with(|calls| {
            let mine = calls
                .stops
                .iter()
                .filter(|stop| stop.0 == it.process && counts(stop.1));
            mine.map(|stop| stop.2).min()
        });
        let Some(stopped) = stopped else { return false };
        let program = judge.program(it.process);
        // An answer that is due is waited for. So is a connection: if the pool has none left, until
        // those in front are done with theirs.
        let since = stopped.max(self.began);
        let beside = judge.calls.with(|calls| {
            let is_beside = |other: &&Record| {
                (other.who.process, other.who.manager) == (it.process, it.manager)
                    && other.lasts(since)
            };
            calls.all.iter().filter(is_beside).count()
        });
        let rounds = beside.div_ceil(program.pool as usize) as u64;
        let limit = Duration::from_millis(program.response * 3 * rounds) + LATE * 5;
        let took = Duration::from_nanos(now() - since);
        if took > limit && !judge.forgives(self.lateness()) {
            self.blame(format!("it went on for {took:?} after a stop"));
        }
        true
    }

    /// The call has given a lock, just now.
    pub(crate) fn has_got(&self) {
        if self.has_to_be_refused {
            self.blame("it was stopped before");
        }
        self.was_stopped();
        self.came_in_turn();
    }
}
