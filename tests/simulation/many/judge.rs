//! Who has which slot, who waits, and what must hold.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::base::sync::scheduler::{START, as_process, fail, now, thread_number, trace};
use crate::simulation::judge::{self, Shared};
use crate::simulation::many::plan::{Plan, Want};
use crate::simulation::plan::{Engine, Fault};
use crate::simulation::world::engine::Servers;
use crate::{Error, LockGuard, LockWatch};

/// For how long a slot is free at most while a thread waits for one, and nothing goes wrong.
pub(super) const FREE: u64 = 1_500;

/// How often that is looked at.
pub(super) const EVERY: u64 = 100;

pub(super) struct Judge {
    plan: Arc<Plan>,
    /// Knows which processes were killed.
    events: Arc<judge::Judge>,
    holds: Shared<Vec<Hold>>,
    /// The processes with a thread that waits for ever, since when, and for what.
    waits: Shared<Vec<(usize, u64, Want)>>,
}

#[derive(Clone)]
struct Hold {
    process: usize,
    thread: u64,
    /// Zero: it is a writer.
    slot: u32,
    /// (Those of a killed process are never dropped.)
    watch: Arc<ManuallyDrop<LockWatch>>,
    has_ended: bool,
}

/// Whether a server that is a master has the key of a slot or, with zero, of the gate.
fn exists(servers: &Servers, slot: usize) -> bool {
    let key = format!("lock:{{a}}#{slot}");
    let masters: Vec<_> = servers.shards.borrow().iter().map(|it| it.master).collect();
    masters.into_iter().any(|master| {
        servers.nodes[master].borrow_mut().act(|redis, now| {
            redis.advance(now);
            redis.get(key.as_bytes()).is_some()
        })
    })
}

impl Judge {
    pub(super) fn of(plan: &Arc<Plan>, events: &Arc<judge::Judge>) -> Judge {
        Judge {
            plan: Arc::clone(plan),
            events: Arc::clone(events),
            holds: Shared::default(),
            waits: Shared::default(),
        }
    }

    pub(super) fn holds(&self) -> usize {
        self.holds.with(|holds| holds.len())
    }

    fn is_troubled(&self) -> bool {
        self.plan.is_troubled((now() - START) / 1_000_000)
    }

    /// A call returns what it has taken.
    pub(super) fn takes(
        &self,
        process: usize,
        want: Want,
        limit: Option<u64>,
        take: impl FnOnce() -> Result<Option<LockGuard>, Error>,
    ) -> Option<LockGuard> {
        let wait = (process, now(), want);
        self.waits
            .with(|waits| waits.extend(limit.is_none().then_some(wait)));
        let taken = take();
        trace(|| {
            format!(
                "{want:?} for {limit:?}: {:?}",
                taken.as_ref().map(Option::is_some)
            )
        });
        self.waits.with(|waits| waits.retain(|it| *it != wait));
        taken.unwrap_or_else(|error| {
            // The lease may be shorter than a pause of the network.
            let is_allowed = error.is_lost()
                // The turn came so late that nobody could be asked.
                || error.is_timeout() && limit > Some(0)
                || self.is_troubled();
            if !is_allowed {
                fail(format!("{want:?}: {error:?}"));
            }
            None
        })
    }

    /// A thread has it. Returns the number of the hold.
    pub(super) fn begins(&self, process: usize, want: Want, guard: &LockGuard) -> usize {
        let slot = guard.slot().unwrap_or(0);
        let is_writer = matches!(want, Want::Write(_));
        if slot as usize > want.most() || (slot == 0) != is_writer {
            fail(format!("{want:?} has got slot {slot}"));
        }
        let number = self.holds.with(|holds| {
            holds.push(Hold {
                process,
                thread: thread_number().expect("inside"),
                slot,
                watch: Arc::new(ManuallyDrop::new(guard.watch())),
                has_ended: false,
            });
            holds.len() - 1
        });
        self.looks();
        number
    }

    pub(super) fn ends(&self, number: usize, guard: LockGuard) {
        self.holds.with(|holds| holds[number].has_ended = true);
        let unlocked = guard.unlock();
        trace(|| format!("hold {number} is given back: {unlocked:?}"));
    }

    fn open(&self) -> Vec<Hold> {
        let mut holds = self.holds.with(|holds| holds.clone());
        holds.retain(|it| !it.has_ended && !self.events.is_dead(it.process));
        holds
    }

    /// No two have one slot, and a writer is alone.
    pub(super) fn looks(&self) {
        let mut trusted = self.open();
        trusted.retain(|it| as_process(it.process, || it.watch.is_valid()));
        for (number, one) in trusted.iter().enumerate() {
            for other in &trusted[number + 1..] {
                let is_other = (one.process, one.thread) != (other.process, other.thread);
                let is_writer = one.slot == 0 || other.slot == 0;
                if is_other && (one.slot == other.slot || is_writer) {
                    let of = |it: &Hold| format!("slot {} in process {}", it.slot, it.process);
                    fail(format!("{} is beside {}", of(one), of(other)));
                }
            }
        }
    }

    /// Whether a thread has waited for so long for what is free, and nothing has gone wrong.
    pub(super) fn waits_for_free(&self, servers: &Servers, free_for: u64) -> bool {
        if self.plan.engine != Engine::Server || self.is_troubled() {
            return false;
        }
        let is_shut = exists(servers, 0);
        let free = |most: usize| (1..=most).any(|it| !exists(servers, it));
        let is_taken = (1..=self.plan.most()).any(|it| exists(servers, it));
        // The gate is free, or a writer has it who waits for readers. (One that is dead has it, too.)
        let kills = |it: &(u64, Fault)| matches!(it.1, Fault::Kill { .. });
        let is_known = !self.plan.faults.iter().any(kills);
        let has_writer = self.open().iter().any(|it| it.slot == 0);
        let can_have = |want: Want| match want {
            Want::Slot(most) => free(most),
            Want::Read(most) => !is_shut && free(most),
            Want::Write(_) => !is_taken && (!is_shut || is_known && !has_writer),
        };
        let since = now().saturating_sub((free_for + EVERY) * 1_000_000);
        let is_idle = |(process, began, want): &(usize, u64, Want)| {
            !self.events.is_dead(*process) && *began < since && can_have(*want)
        };
        self.waits.with(|waits| waits.clone()).iter().any(is_idle)
    }

    /// What the dead held, and what was given up, is gone a lease later.
    pub(super) fn is_clean(&self, servers: &Servers) {
        let left: Vec<_> = (0..=self.plan.most())
            .filter(|it| exists(servers, *it))
            .collect();
        if !left.is_empty() {
            fail(format!("{left:?} are taken at the end"));
        }
    }
}
