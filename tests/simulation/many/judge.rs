//! Who has which slot, who waits, and what must hold.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::Rc;

use crate::base::sync::scheduler::{as_process, fail, now, thread_number, trace};
use crate::simulation::many::plan::{Plan, Want};
use crate::simulation::plan::{Decoy, Engine};
use crate::simulation::world::engine::Servers;
use crate::{LockGuard, LockWatch};

/// For how long a slot is free at most while a thread waits for one, and nothing goes wrong.
pub(super) const FREE: u64 = 1_500;

/// How often that is looked at.
pub(super) const EVERY: u64 = 100;

thread_local! {
    pub(super) static JUDGE: RefCell<Judge> = RefCell::default();
}

#[derive(Default)]
pub(super) struct Judge {
    pub(super) holds: Vec<Rc<Hold>>,
    pub(super) dead: Vec<usize>,
    /// The processes that were paused, or are at the end of a network that fails.
    pub(super) is_troubled: bool,
    /// The processes with a thread that waits for ever, since when, and for which lock.
    pub(super) waits: Vec<(usize, u64, Want)>,
    /// How many threads have not ended, of each process.
    pub(super) running: Vec<(usize, usize)>,
}

pub(super) struct Hold {
    process: usize,
    thread: u64,
    /// Zero: it is a writer.
    slot: u32,
    /// (Those of a killed process are never dropped.)
    watch: ManuallyDrop<LockWatch>,
    has_ended: Cell<bool>,
}

/// Whether a server that is a master has the key of a slot or, with zero, of the gate.
pub(super) fn exists(servers: &Servers, slot: u32) -> bool {
    let key = format!("lock:{{a}}#{slot}");
    let masters: Vec<_> = servers.shards.borrow().iter().map(|it| it.master).collect();
    masters.into_iter().any(|master| {
        servers.nodes[master].borrow_mut().act(|redis, now| {
            redis.advance(now);
            redis.get(key.as_bytes()).is_some()
        })
    })
}

/// Whether a thread has waited for so long for what is free, and nothing has gone wrong.
pub(super) fn waits_for_free(servers: &Servers, plan: &Plan, free_for: u64) -> bool {
    if plan.engine != Engine::Server(Decoy::None) {
        return false;
    }
    let is_shut = exists(servers, 0);
    let free = |most: usize| (1..=most).any(|it| !exists(servers, u32::try_from(it).expect("few")));
    let can_have = |want: Want| match want {
        Want::Slot(most) => free(most),
        Want::Read => !is_shut && free(plan.slots),
        Want::Write => !is_shut,
    };
    JUDGE.with_borrow(|judge| {
        let since = now().saturating_sub((free_for + EVERY) * 1_000_000);
        let idle = |(process, began, want): &(usize, u64, Want)| {
            !judge.dead.contains(process) && *began < since && can_have(*want)
        };
        !judge.is_troubled && judge.waits.iter().any(idle)
    })
}

impl Hold {
    pub(super) fn begins(process: usize, want: Want, guard: &LockGuard) -> Rc<Hold> {
        let slot = guard.slot().unwrap_or(0);
        let most = if let Want::Slot(most) = want { most } else { 3 };
        if usize::try_from(slot).expect("few") > most || (slot == 0) != (want == Want::Write) {
            fail(format!("{want:?} has got slot {slot}"));
        }
        let hold = Rc::new(Hold {
            process,
            thread: thread_number().expect("inside"),
            slot,
            watch: ManuallyDrop::new(guard.watch()),
            has_ended: Cell::new(false),
        });
        JUDGE.with_borrow_mut(|judge| judge.holds.push(Rc::clone(&hold)));
        judge_now();
        hold
    }

    pub(super) fn ends(&self, guard: LockGuard) {
        self.has_ended.set(true);
        let unlocked = guard.unlock();
        trace(|| format!("slot {} is given back: {unlocked:?}", self.slot));
    }
}

/// No two have one slot, and a writer is alone.
pub(super) fn judge_now() {
    let holds: Vec<_> = JUDGE.with_borrow(|judge| {
        let is_open = |it: &&Rc<Hold>| !it.has_ended.get() && !judge.dead.contains(&it.process);
        judge.holds.iter().filter(is_open).map(Rc::clone).collect()
    });
    let is_valid = |it: &&Rc<Hold>| as_process(it.process, || it.watch.is_valid());
    let trusted: Vec<_> = holds.iter().filter(is_valid).collect();
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
