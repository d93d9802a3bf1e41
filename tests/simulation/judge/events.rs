//! What happens to processes and keys, as far as it excuses anything.

use std::time::Duration;

use crate::LostCause;
use crate::base::sync::scheduler::{START, fail, now};
use crate::simulation::judge::excuses::{Excuse, Excuses};
use crate::simulation::judge::{Judge, Who};
use crate::simulation::plan::{Failover, Fault, LinkFault, Plan, ServerFault};

#[derive(Default)]
pub(super) struct Events {
    dead: Vec<usize>,
    /// The processes whose threads have ended.
    over: Vec<usize>,
    /// Which process was paused, until when.
    paused: Vec<(usize, u64)>,
    /// Why each key may have been removed by somebody who does not hold it, and until when. Holds
    /// that were asked for until then may be lost.
    removed: Vec<(Excuse, usize, u64)>,
    /// The keys for whose removal a command is under way.
    forced: Vec<usize>,
    /// Which managers were told to give everything back.
    released: Vec<(usize, usize)>,
    /// For which keys of which managers `on_lost` was called.
    pub(super) told: Vec<(usize, usize, usize)>,
    /// The managers that gave a lock back which nobody got.
    undone: Vec<(usize, usize)>,
}

/// What goes wrong with the network or the servers, from when until when.
pub(super) fn troubles(plan: &Plan) -> Vec<(Excuse, u64, u64)> {
    let trouble = |(at, fault): &(u64, Fault)| {
        let (excuse, millis) = match *fault {
            // Programs never hear of a script that a server does not know.
            Fault::Server(_, ServerFault::ScriptFlush, _)
            | Fault::Pause(..)
            | Fault::Kill { .. }
            | Fault::Delete(_) => return None,
            // Until the connections are used.
            Fault::Link(_, LinkFault::HalfOpen, millis) => (Excuse::Break, millis + 30_000),
            Fault::Link(_, LinkFault::ResetAll, millis)
            | Fault::Server(_, ServerFault::Restart { .. } | ServerFault::KillClients, millis) => {
                (Excuse::Break, millis + 3_000)
            }
            Fault::Link(
                _,
                LinkFault::Silence(_)
                | LinkFault::Hangs
                | LinkFault::Refusal
                | LinkFault::Slow(..)
                | LinkFault::Resets(_)
                | LinkFault::Repeats(_),
                millis,
            )
            | Fault::Server(
                _,
                ServerFault::Stops
                | ServerFault::Readdressed
                | ServerFault::Loading
                | ServerFault::ReadOnly
                | ServerFault::OutOfMemory
                | ServerFault::LacksReplicas
                | ServerFault::Stuck
                | ServerFault::Pause { .. }
                | ServerFault::Password
                | ServerFault::ProxyFails,
                millis,
            ) => (Excuse::Outage, millis + 3_000),
            Fault::Failover(Failover {
                after,
                back,
                learns,
                ..
            }) => (Excuse::Failover, after + back + learns + 20_000),
            Fault::Lag(_) => (Excuse::Outage, 10_000),
            Fault::ClockStep(_) => (Excuse::ClockStep, 10_000),
            Fault::MoveSlot(_) => (Excuse::Move, 10_000),
        };
        let from = START + at * 1_000_000;
        Some((excuse, from, from + millis * 1_000_000))
    };
    let slow = (plan.order.stalls > 0).then_some((Excuse::Slow, 0, u64::MAX));
    plan.faults.iter().filter_map(trouble).chain(slow).collect()
}

/// The server's clock is set back, and the counter may be lost as well.
pub(super) fn may_lose_fences(plan: &Plan) -> bool {
    let any = |is: fn(&Fault) -> bool| plan.faults.iter().any(|it| is(&it.1));
    let is_set_back = |it: &Fault| matches!(it, Fault::ClockStep(..0));
    // A replica that takes the place of its master may lack the last writes.
    let loses = |it: &Fault| {
        let empty = ServerFault::Restart { keeps: false };
        matches!(it, Fault::Failover(_)) || matches!(it, Fault::Server(_, it, _) if *it == empty)
    };
    any(is_set_back) && any(loses)
}

impl Judge {
    /// What went wrong between these moments.
    pub(crate) fn trouble(&self, from: u64, until: u64) -> Excuses {
        let near = self.troubles.iter();
        near.filter(|it| it.1 <= until && it.2 >= from)
            .map(|it| it.0.when(true))
            .collect()
    }

    pub(crate) fn slow(&self) -> Excuses {
        Excuse::Slow.when(self.plan.order.stalls > 0)
    }

    /// Whether renewals may have failed between these moments for as long as leases last. (A single
    /// break leaves time for another try.)
    fn ends_leases(&self, from: u64, until: u64) -> Excuses {
        let near = |it: &&(Excuse, u64, u64)| it.1 <= until && it.2 >= from;
        let trouble = self.trouble(from, until);
        if trouble == Excuse::Break.when(true) && self.troubles.iter().filter(near).count() < 2 {
            Excuses::NONE
        } else {
            trouble
        }
    }

    /// What explains that a hold was lost, of this cause or of any.
    pub(crate) fn loss(&self, number: usize, cause: Option<LostCause>) -> Excuses {
        let hold = self.hold(number);
        let (who, began) = (hold.who, hold.began);
        let deleted = self.removal(hold.key, began);
        let expired =
            || hold.terms.ends | self.pause_of(who.process, began) | self.ends_leases(began, now());
        match cause {
            Some(LostCause::ShutDown) => self.release_of(who),
            Some(LostCause::Deleted) => deleted,
            Some(LostCause::Expired) => expired(),
            // Another holder has come, or the lease had run out before.
            Some(_) => deleted | expired(),
            None => self.release_of(who) | deleted | expired(),
        }
    }

    /// `on_lost` was called, by a thread of the process. What has lost a hold is explained.
    pub(crate) fn told(&self, process: usize, manager: usize, key: usize) {
        self.events
            .with(|events| events.told.push((process, manager, key)));
        let is_it = |hold: &super::Hold| {
            (hold.who.process, hold.who.manager, hold.key) == (process, manager, key)
                && !hold.is_explained
        };
        for (number, hold) in self.holds(is_it) {
            // (Not `as_process`: this may have to wait for a thread that watches the hold.)
            if let Some(cause) = hold.watch.wait_lost(Duration::ZERO) {
                self.change(number, |hold| hold.is_explained = true);
                self.explains(number, cause);
            }
        }
    }

    /// The hold was lost by this cause.
    pub(crate) fn explains(&self, number: usize, cause: LostCause) {
        if !self.forgives(self.loss(number, Some(cause))) {
            fail(format!(
                "no reason for the loss of hold {number}: {cause:?}"
            ));
        }
    }

    /// A manager gives back what its threads hold.
    pub(crate) fn gives_all_back(&self, who: Who) {
        let manager = (who.process, who.manager);
        self.events.with(|events| events.released.push(manager));
    }

    /// Whether this manager gives back what its threads hold, since it is shut down.
    pub(super) fn release_of(&self, who: Who) -> Excuses {
        let manager = (who.process, who.manager);
        Excuse::ShutDown.when(self.events.with(|it| it.released.contains(&manager)))
    }

    /// A manager has given back a lock that nobody got.
    pub(crate) fn undone(&self, who: Who) {
        let manager = (who.process, who.manager);
        self.events.with(|events| events.undone.push(manager));
    }

    pub(super) fn undone_by(&self, process: usize, manager: usize) -> Excuses {
        let undone = self
            .events
            .with(|it| it.undone.contains(&(process, manager)));
        Excuse::GivenBack.when(undone)
    }

    /// Why somebody who does not hold the lock may have removed its key since then.
    pub(crate) fn removal(&self, key: usize, since: u64) -> Excuses {
        self.events.with(|events| {
            let is_near = |it: &&(Excuse, usize, u64)| it.1 == key && it.2 >= since;
            let removed = events.removed.iter().filter(is_near);
            let removed: Excuses = removed.map(|it| it.0.when(true)).collect();
            removed | Excuse::Forced.when(events.forced.contains(&key))
        })
    }

    /// Somebody who does not hold the lock removes its key until then.
    pub(crate) fn removed(&self, why: Excuse, key: usize, until: u64) {
        self.events
            .with(|events| events.removed.push((why, key, until)));
    }

    pub(crate) fn all_removed(&self, why: Excuse, until: u64) {
        (0..self.keys()).for_each(|key| self.removed(why, key, until));
    }

    /// A command that removes the key is sent.
    pub(crate) fn forces(&self, key: usize) {
        self.events.with(|events| events.forced.push(key));
    }

    /// That command was executed, or will be by then, if it is not too late: `None` if it has
    /// removed nothing.
    pub(crate) fn has_forced(&self, key: usize, by: Option<u64>) {
        if let Some(at) = by {
            self.removed(Excuse::Forced, key, at);
        }
        self.events.with(|events| {
            let at = events.forced.iter().position(|it| *it == key);
            events.forced.swap_remove(at.expect("it was sent"));
        });
    }

    /// The process runs no thread until then.
    pub(crate) fn paused(&self, process: usize, until: u64) {
        self.events
            .with(|events| events.paused.push((process, until)));
    }

    pub(crate) fn pause_of(&self, process: usize, since: u64) -> Excuses {
        let is_it = |it: &(usize, u64)| it.0 == process && it.1 >= since;
        Excuse::Paused.when(self.events.with(|events| events.paused.iter().any(is_it)))
    }

    /// The process was killed: it trusts nothing any more.
    pub(crate) fn killed(&self, process: usize) {
        self.events.with(|events| events.dead.push(process));
    }

    pub(crate) fn is_dead(&self, process: usize) -> bool {
        self.events.with(|events| events.dead.contains(&process))
    }

    /// All threads of the process have ended.
    pub(crate) fn is_at_its_end(&self, process: usize) {
        self.events.with(|events| events.over.push(process));
    }

    /// The process asks nobody any more.
    pub(crate) fn is_away(&self, process: usize) -> bool {
        let is_over = self.events.with(|events| events.over.contains(&process));
        is_over || self.is_dead(process)
    }
}
