//! What stands in for r2d2 inside a run: r2d2 would block the system thread that all threads run
//! on, and would make the slots on a thread of its own.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use r2d2::ManageConnection;

use super::tools::{Condvar, Mutex};
use crate::base::clock::Moment;

/// A pool like r2d2's. Outside a run, it is one of r2d2's.
pub(crate) enum SlotPool<M: ManageConnection> {
    Real(r2d2::Pool<M>),
    Simulated(Arc<Slots<M>>),
}

pub(crate) struct Slots<M: ManageConnection> {
    manager: M,
    most: u32,
    state: Mutex<State<M::Connection>>,
    given_back: Condvar,
}

struct State<C> {
    idle: Vec<C>,
    made: u32,
}

/// No slot became free in time.
pub(crate) struct NoSlot;

pub(crate) enum Slot<M: ManageConnection> {
    Real(r2d2::PooledConnection<M>),
    Simulated(Option<M::Connection>, Arc<Slots<M>>),
}

impl<M: ManageConnection> SlotPool<M> {
    pub(crate) fn simulated(manager: M, most: u32) -> SlotPool<M> {
        let state = Mutex::new(State {
            idle: Vec::new(),
            made: 0,
        });
        SlotPool::Simulated(Arc::new(Slots {
            manager,
            most,
            state,
            given_back: Condvar::new(),
        }))
    }

    pub(crate) fn try_get(&self) -> Option<Slot<M>> {
        match self {
            SlotPool::Real(pool) => pool.try_get().map(Slot::Real),
            SlotPool::Simulated(slots) => slots.take(&mut slots.state.lock()),
        }
    }

    pub(crate) fn get_timeout(&self, limit: Duration) -> Result<Slot<M>, NoSlot> {
        let slots = match self {
            SlotPool::Real(pool) => {
                return pool.get_timeout(limit).map(Slot::Real).map_err(|_| NoSlot);
            }
            SlotPool::Simulated(slots) => slots,
        };
        let deadline = Moment::now().after(limit);
        let mut state = slots.state.lock();
        loop {
            if let Some(slot) = slots.take(&mut state) {
                return Ok(slot);
            }
            let left = deadline.since(Moment::now());
            if left.is_zero() {
                return Err(NoSlot);
            }
            slots.given_back.wait_for(&mut state, left);
        }
    }
}

impl<M: ManageConnection> Clone for SlotPool<M> {
    fn clone(&self) -> SlotPool<M> {
        match self {
            SlotPool::Real(pool) => SlotPool::Real(pool.clone()),
            SlotPool::Simulated(slots) => SlotPool::Simulated(Arc::clone(slots)),
        }
    }
}

impl<M: ManageConnection> Slots<M> {
    /// The slot that was last returned, or a new one.
    fn take(self: &Arc<Self>, state: &mut State<M::Connection>) -> Option<Slot<M>> {
        let slot = state.idle.pop().or_else(|| {
            let slot = (state.made < self.most)
                .then(|| self.manager.connect().ok())
                .flatten();
            state.made += u32::from(slot.is_some());
            slot
        })?;
        Some(Slot::Simulated(Some(slot), Arc::clone(self)))
    }
}

impl<M: ManageConnection> Drop for Slot<M> {
    fn drop(&mut self) {
        if let Slot::Simulated(slot, slots) = self {
            slots.state.lock().idle.extend(slot.take());
            slots.given_back.notify_one();
        }
    }
}

impl<M: ManageConnection> Deref for Slot<M> {
    type Target = M::Connection;

    fn deref(&self) -> &M::Connection {
        match self {
            Slot::Real(slot) => slot,
            Slot::Simulated(slot, _) => slot.as_ref().expect("a slot is given back once"),
        }
    }
}

impl<M: ManageConnection> DerefMut for Slot<M> {
    fn deref_mut(&mut self) -> &mut M::Connection {
        match self {
            Slot::Real(slot) => slot,
            Slot::Simulated(slot, _) => slot.as_mut().expect("a slot is given back once"),
        }
    }
}
