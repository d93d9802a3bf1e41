//! What the thread that asks for the map shares with those that need it.

use std::mem;
use std::sync::{Arc, OnceLock};

use crate::base::background::Background;
use crate::base::clock::Moment;
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::client::servers::map::Map;
use crate::client::servers::node::{Common, Node, OnMove};
use crate::client::servers::source::Source;
use crate::client::servers::topology::nodes::Nodes;
use crate::client::wire::endpoint::Place;
use crate::client::wire::failure::Failure;
use crate::client::wire::socket::Ender;

pub(super) struct Shared {
    /// `None`: the map never changes.
    pub(super) source: OnceLock<Box<dyn Source>>,
    pub(super) common: Arc<Common>,
    pub(super) state: Mutex<State>,
    /// A map was read, or nobody has one. Also wakes the thread.
    pub(super) changed: Condvar,
    /// The thread that asks for the map.
    pub(super) thread: Background,
    pub(super) on_move: OnMove,
}

/// How far the reading of the map has come.
pub(super) struct State {
    pub(super) nodes: Nodes,
    /// The map may be out of date.
    pub(super) wanted: bool,
    /// The master that the map names could not be used.
    pub(super) doubted: Option<Place>,
    /// When the reading of the last map began.
    pub(super) began: Moment,
    /// How many readings have begun, and the number of the last one that has ended.
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// Why the last reading failed.
    pub(super) failure: Option<Failure>,
    /// The connection in which the thread waits for reports, while it has nothing else to do.
    pub(super) sleeps_in: Option<Ender>,
}

impl Shared {
    pub(super) fn new(
        source: Option<Box<dyn Source>>,
        nodes: Nodes,
        common: Arc<Common>,
    ) -> Shared {
        let state = State {
            nodes,
            wanted: false,
            doubted: None,
            began: Moment::PAST,
            begun: 0,
            ended: 0,
            failure: None,
            sleeps_in: None,
        };
        Shared {
            source: source.map_or_else(OnceLock::new, OnceLock::from),
            common,
            state: Mutex::new(state),
            changed: Condvar::new(),
            thread: Background::default(),
            on_move: OnMove::default(),
        }
    }

    pub(super) fn source(&self) -> Option<&dyn Source> {
        self.source.get().map(|source| &**source)
    }

    /// The map may be out of date. Only the caller that sets `wanted` notifies. This wakes the
    /// callers that wait for a map, too: if each did so in turn, they would wake each other all the
    /// time.
    pub(super) fn want(&self, state: &mut MutexGuard<'_, State>) {
        if !mem::replace(&mut state.wanted, true) {
            self.changed.notify_all();
            if let Some(ender) = state.sleeps_in.take() {
                ender.end();
            }
        }
    }

    /// The same, because the node that the map names cannot be used. Returns the number of the
    /// reading that heeds this.
    pub(super) fn doubt(&self, node: &Node) -> u64 {
        let mut state = self.state.lock();
        if node.is_retired() {
            return 0;
        }
        state.doubted = Some(node.endpoint.place().clone());
        self.want(&mut state);
        state.begun + 1
    }

    /// True if the map has another node in place of this one. Waits for the end of a reading.
    pub(super) fn has_left(&self, node: &Node, reading: u64, deadline: Moment) -> bool {
        let mut state = self.state.lock();
        let has_left = |state: &State| state.nodes.map().is_some_and(|map| !map.has(node));
        while state.ended < reading && !has_left(&state) && Moment::now() < deadline {
            let wait = deadline.one_wait_from(Moment::now());
            self.changed.wait_for(&mut state, wait);
        }
        has_left(&state)
    }

    /// A map that was asked for at this moment or later. Waits for one.
    pub(super) fn map_since(&self, since: Moment, deadline: Moment) -> Result<Arc<Map>, Failure> {
        let mut state = self.state.lock();
        let asked = state.ended;
        loop {
            if let Some(map) = state.nodes.map().filter(|_| state.began >= since) {
                return Ok(Arc::clone(map));
            }
            // The failure of a reading that ended before this call does not answer it: the reason
            // may be gone.
            if let Some(failure) = state.failure.as_ref().filter(|_| state.ended > asked) {
                return Err(failure.copy());
            }
            let now = Moment::now();
            if deadline <= now {
                let silence = || Failure::not_sent("nobody has sent the map in time");
                return Err(state.failure.as_ref().map_or_else(silence, Failure::copy));
            }
            self.want(&mut state);
            self.changed
                .wait_for(&mut state, deadline.one_wait_from(now));
        }
    }
}
