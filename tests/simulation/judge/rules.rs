//! What must hold at any time, whatever a call has answered.

use std::time::Duration;

use crate::base::sync::scheduler::{as_process, fail, has_failed, now};
use crate::simulation::judge::calls::Record;
use crate::simulation::judge::events::may_lose_fences;
use crate::simulation::judge::excuses::Excuse;
use crate::simulation::judge::{Hold, Judge, Who};
use crate::simulation::plan::name;
use crate::{HeldLock, MultiLockGuard};

impl Judge {
    /// Never two valid holders.
    pub(crate) fn nobody_else(&self, key: usize) {
        let mut trusted = self.open(key);
        trusted.retain(|it| it.1.is_valid());
        for (at, (_, one)) in trusted.iter().enumerate() {
            for (_, other) in &trusted[at + 1..] {
                let removal = self.removal(key, one.began) | self.removal(key, other.began);
                if !self.forgives(removal) {
                    fail(format!(
                        "two hold {key}: {} in process {}, {} in {}",
                        one.token, one.who.process, other.token, other.who.process
                    ));
                }
            }
        }
    }

    /// It has a fence and as many copies as its manager wants, and fences grow in the order in
    /// which the server gave the lock away.
    pub(super) fn is_as_promised(&self, number: usize) {
        let mine = self.hold(number);
        let key = mine.key;
        if self.plan.fenced && mine.fence.is_none() {
            fail(format!("hold {number} has no fence"));
        }
        let copies = self.ledger.with(|it| it.copies(key, &mine.token));
        if copies.is_some_and(|it| it <= self.plan.engine.copies().wanted)
            && !self.forgives(self.removal(key, mine.began))
        {
            fail(format!("hold {number} has {copies:?} copies"));
        }
        let order = |hold: &Hold| self.ledger.with(|it| it.order(key, &hold.token));
        let Some((fence, at)) = mine.fence.zip(order(&mine)) else {
            return;
        };
        let is_wrong = |other: &Hold| {
            // (At the same nanosecond, nobody can tell which was first.)
            let theirs = other.fence.zip(order(other)).filter(|it| it.1 != at);
            theirs.is_some_and(|it| it.0.cmp(&fence) != it.1.cmp(&at))
        };
        let others = self.holds(|it| it.key == key && it.fence.is_some());
        if let Some((_, other)) = others.iter().find(|it| is_wrong(&it.1))
            && !self.forgives(Excuse::CounterLost.when(may_lose_fences(&self.plan)))
        {
            fail(format!(
                "the fences of {} and {} are {:?} and {fence}",
                other.token, mine.token, other.fence
            ));
        }
    }

    /// The key does not have this token any more. If somebody holds it, that is told in time.
    pub(super) fn gone(&self, key: usize, token: &str) {
        let is_it = |hold: &Hold| {
            let is_open = hold.ended.is_none() && hold.terms.ends.is_empty();
            hold.key == key && hold.token == token && is_open
        };
        let Some((number, hold)) = self.holds(is_it).pop() else {
            return;
        };
        let at = now();
        let within = self.told_within(&hold, Duration::from_nanos(at - hold.taken));
        self.later(within, move |judge| {
            let hold = judge.hold(number);
            let process = hold.who.process;
            let is_over = hold.ended.is_some() || judge.is_dead(process);
            if !is_over && hold.is_valid() {
                let trouble = judge.trouble(at.saturating_sub(5_000_000_000), now());
                let paused = judge.pause_of(process, at);
                if !judge.forgives(trouble | paused | hold.terms.ends) {
                    has_failed(format!(
                        "hold {number} of key {key} is trusted {within:?} after its loss"
                    ));
                }
            }
        });
    }

    /// How soon a loss at this age of the hold is told, while the network works.
    fn told_within(&self, hold: &Hold, age: Duration) -> Duration {
        let period = hold.terms.period;
        let soon = Duration::from_millis(50);
        // It is renewed within a second for the first time. From then on, the server tells of
        // changes of its key.
        let first = period.min(Duration::from_secs(1)) + soon;
        match () {
            () if !self.program(hold.who.process).tracks => 2 * period + soon,
            () if age > first => soon,
            // A lease may be doubled, and is renewed three times.
            () => (2 * period).min(Duration::from_secs(1)) + soon,
        }
    }

    /// `on_lost` was called once for each hold that was lost. A thread of the process calls this,
    /// when all its holds have ended.
    pub(crate) fn all_told(
        &self,
        process: usize,
        manager: usize,
        key: usize,
    ) -> Result<(), String> {
        let it = (process, manager, key);
        let mine = self.holds(|hold| (hold.who.process, hold.who.manager, hold.key) == it);
        let is_lost = |hold: &&(usize, Hold)| hold.1.watch.wait_lost(Duration::ZERO).is_some();
        let lost = mine.iter().filter(is_lost).count();
        let told = self
            .events
            .with(|all| all.told.iter().filter(|told| **told == it).count());
        if told < lost || told > lost && !self.forgives(self.undone_by(process, manager)) {
            return Err(format!(
                "{lost} holds of key {key} were lost, on_lost was called {told} times"
            ));
        }
        Ok(())
    }

    /// The manager trusts none of these holds of its own.
    pub(crate) fn trusts_none(&self, who: Who, which: impl Fn(&Hold) -> bool, why: &str) {
        let open = self.holds(|hold| {
            let is_mine = (hold.who.process, hold.who.manager) == (who.process, who.manager);
            is_mine && hold.ended.is_none() && which(hold)
        });
        if let Some((_, hold)) = open.iter().find(|it| it.1.is_valid()) {
            fail(format!("{} is trusted, and {why}", hold.token));
        }
    }

    /// The key lives until then. No lease is extended after a `max_hold`.
    pub(super) fn is_extended(&self, key: usize, token: &str, until: u64) {
        let is_it = |hold: &Hold| hold.key == key && hold.token == token && !hold.is_changed;
        let Some((number, hold)) = self.holds(is_it).pop() else {
            return;
        };
        let Some(longest) = hold.terms.longest else {
            return;
        };
        let most = longest + longest / 50 + Duration::from_millis(50);
        let lives = Duration::from_nanos(until.saturating_sub(hold.taken));
        let since = hold.taken.saturating_sub(5_000_000_000);
        let excuses = self.trouble(since, now()) | self.pause_of(hold.who.process, hold.taken);
        if lives > most && !self.forgives(excuses) {
            let why = format!("hold {number} lives for {lives:?}, and may for {most:?}");
            self.later(Duration::ZERO, move |_| has_failed(why));
        }
    }

    /// The key has run out at all servers: no thread trusts the hold any more.
    pub(super) fn has_run_out(&self, key: usize, token: &str) {
        let open = self.open(key).into_iter().map(|it| it.1);
        for hold in open.filter(|hold| hold.token == token && hold.seems_valid()) {
            if !self.forgives(self.removal(key, hold.began)) {
                has_failed(format!(
                    "{token} is trusted, and the lease of key {key} has run out"
                ));
            }
        }
    }

    /// The guard of a set trusts its locks no longer than the one that ends first, and has their
    /// fences.
    pub(crate) fn is_as_good(&self, who: Who, guard: &MultiLockGuard, numbers: &[usize]) {
        let holds: Vec<_> = numbers.iter().map(|number| self.hold(*number)).collect();
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

    /// The manager was shut down, and names no hold any more: each was released, or handed over.
    pub(crate) fn has_released(&self, who: Who) {
        let manager = (who.process, who.manager);
        let is_it = |hold: &Hold| (hold.who.process, hold.who.manager) == manager && !hold.is_sent;
        for (number, hold) in self.holds(is_it) {
            let is_there = self.ledger.with(|it| it.has(hold.key, &hold.token));
            let is_sent = |call: &Record| call.what == "hand over" && call.is_for(who, hold.key);
            if is_there
                && !self.any_call(is_sent)
                && !self.forgives(self.loss(number, None) | self.trouble(hold.began, now()))
            {
                fail(format!("hold {number} is there after a shutdown"));
            }
        }
    }

    /// A key ends soon. What nobody holds was deleted before, if the network works.
    pub(super) fn is_left(&self, key: usize, token: &str, until: u64) {
        // (What is kept stays for its time.)
        let token_of = Some(token).filter(|it| !it.starts_with("kept:"));
        let process = token_of.and_then(|it| it.split('-').nth(1)?.parse::<usize>().ok());
        let Some(process) = process.map(|pid| pid - 1000) else {
            return;
        };
        let who = Who {
            process,
            manager: 0,
            thread: 0,
        };
        let is_it = |hold: &Hold| hold.token == token && hold.ended.is_none();
        let since = now().saturating_sub(4_000_000_000);
        let lately = until.saturating_sub(20_000_000_000);
        let unknown = Excuse::LostInASet.when(true) | Excuse::Repeated.when(true);
        let excuses = self.trouble(since, now())
            | self.pause_of(process, since)
            | self.parcel_of(token)
            | self.removal(key, lately) & unknown;
        if self.ledger.with(|it| it.runs_out(key, token)) == until
            && self.holds(is_it).is_empty()
            && !self.is_away(process)
            && !self.any_call(|call| call.is_for(who, key))
            && !self.forgives(excuses)
        {
            has_failed(format!("nobody has {token}, and key {key} is not deleted"));
        }
    }

    /// Whether this thread can trust a hold of the lock.
    pub(crate) fn trusts(&self, who: Who, key: usize) -> bool {
        let mut held = self
            .held_by(who)
            .into_iter()
            .map(|number| self.hold(number));
        held.any(|hold| hold.key == key && hold.is_valid())
    }

    /// Whatever this thread holds through its manager is listed.
    pub(crate) fn are_listed(&self, who: Who, listed: &[HeldLock]) {
        for number in self.held_by(who) {
            let hold = self.hold(number);
            let is_it = |held: &HeldLock| held.key == name(hold.key) && held.depth >= hold.depth;
            let is_mine = hold.who.manager == who.manager;
            if is_mine && hold.is_valid() && !listed.iter().any(is_it) {
                fail(format!("hold {number} is not listed"));
            }
        }
    }
}
