//! Who holds what, and what must hold at each moment: never two valid holders, fences that grow, a
//! depth that is right, losses that are told in time and once.
//!
//! `rules` is what must hold whatever a call has answered, `calls` judges when calls return,
//! `answers` what they return, and `turns` who gets a lock next.
//! `ledger` is what the servers had, `holds` and `events` are what the programs have and what has
//! happened to them. `excuses` is all that is forgiven.

mod answers;
pub(crate) mod calls;
mod events;
pub(crate) mod excuses;
mod holds;
mod ledger;
mod rules;
mod turns;

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::sync::scheduler::later;
use crate::simulation::judge::calls::Calls;
use crate::simulation::judge::events::Events;
use crate::simulation::judge::excuses::{Excuse, Excuses};
use crate::simulation::judge::ledger::Ledger;
use crate::simulation::plan::{Plan, Program};

pub(crate) use answers::{Failed, Ran};
pub(crate) use holds::{Hold, Terms, Who};

/// What the threads of a scene share. Only one of them runs at a time, and has one look at a time.
pub(crate) struct Shared<T>(Mutex<T>);

impl<T> Shared<T> {
    pub(crate) fn new(value: T) -> Shared<T> {
        Shared(Mutex::new(value))
    }

    pub(crate) fn with<R>(&self, look: impl FnOnce(&mut T) -> R) -> R {
        look(&mut self.0.try_lock().expect("one look at a time"))
    }
}

impl<T: Default> Default for Shared<T> {
    fn default() -> Shared<T> {
        Shared::new(T::default())
    }
}

/// The judge of a scene.
pub(crate) struct Judge {
    me: Weak<Judge>,
    plan: Arc<Plan>,
    /// This does not count: to show that scenes need it.
    off: Option<Excuse>,
    needed: Shared<Excuses>,
    /// What goes wrong by the plan, from when, until when.
    troubles: Vec<(Excuse, u64, u64)>,
    holds: Shared<Vec<Hold>>,
    events: Shared<Events>,
    calls: Shared<Calls>,
    ledger: Shared<Ledger>,
}

impl Judge {
    pub(crate) fn of(plan: &Arc<Plan>, off: Option<Excuse>) -> Arc<Judge> {
        Arc::new_cyclic(|me| Judge {
            me: Weak::clone(me),
            plan: Arc::clone(plan),
            off,
            needed: Shared::default(),
            troubles: events::troubles(plan),
            holds: Shared::default(),
            events: Shared::default(),
            calls: Shared::default(),
            ledger: Shared::new(Ledger::of(plan)),
        })
    }

    /// It judges nothing.
    pub(crate) fn idle() -> Arc<Judge> {
        Judge::of(&Arc::new(Plan::empty()), None)
    }

    /// How many locks there are.
    pub(crate) fn keys(&self) -> usize {
        self.plan.keys
    }

    /// What is known of a process, whose numbers begin with one.
    pub(crate) fn program(&self, process: usize) -> &Program {
        &self.plan.processes[process - 1]
    }

    /// Looks again later.
    fn later(&self, span: Duration, look: impl FnOnce(&Judge) + 'static) {
        let me = Weak::clone(&self.me);
        later(span, move || {
            if let Some(judge) = me.upgrade() {
                look(&judge);
            }
        });
    }
}
