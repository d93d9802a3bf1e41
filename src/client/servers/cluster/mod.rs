//! A Redis Cluster: the map that says which node has a slot, and the thread that reads the map.
//!
//! The map is read once at the beginning, and again whenever something shows that it may be out of
//! date: `MOVED`, a node that refuses connections or is silent, `READONLY`, `CLUSTERDOWN`. Only the
//! thread in `reader` asks for it.
//!
//! A thread whose map is out of date follows the redirects of the nodes, or tries again. It waits
//! for a map only if there is none yet. A question that is asked once waits for a new map if the
//! node cannot be reached, and a question to all nodes if the map is not fresh.

mod reader;

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::base::background::Background;
use crate::base::clock::Moment;
use crate::base::emit::warn;
use crate::base::sync::{Condvar, Mutex, MutexGuard};
use crate::client::servers::atlas::Atlas;
use crate::client::servers::map::Map;
use crate::client::servers::node::{Common, Node, OnMove};
use crate::client::servers::slots::slot;
use crate::client::wire::endpoint::Place;
use crate::client::wire::failure::Failure;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::tls;

/// The pause after the map was read. Meanwhile, threads follow redirects.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

pub(crate) struct Cluster {
    /// The nodes that the program named.
    seeds: Vec<Place>,
    tls: Option<tls::Client>,
    common: Arc<Common>,
    /// The epoch of the last map, if its node said one.
    epoch: AtomicU64,
    reading: Mutex<Reading>,
    /// A map was read, or no node has one. Also wakes the thread.
    changed: Condvar,
    /// The thread that reads the map.
    thread: Background,
    on_move: Arc<OnMove>,
    /// One server was taken to have all keys, until its login or a redirect showed the cluster. So
    /// the first map may move keys.
    was_one: bool,
}

/// How far the reading of the map has come.
struct Reading {
    atlas: Atlas,
    /// The map may be out of date.
    wanted: bool,
    /// When the reading of the last map began.
    began: Moment,
    /// How often reading the map has ended.
    rounds: u64,
    /// Why the last reading failed.
    failure: Option<Failure>,
}

impl Reading {
    /// The map, if it was asked for at this moment or later.
    fn map_since(&self, moment: Moment) -> Option<Arc<Map>> {
        self.atlas.map().filter(|_| self.began >= moment).cloned()
    }
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Place>,
        tls: Option<tls::Client>,
        common: Arc<Common>,
        on_move: Arc<OnMove>,
    ) -> Cluster {
        let atlas = Atlas::new(tls.clone(), Arc::clone(&common));
        let reading = Reading {
            atlas,
            wanted: false,
            began: Moment::PAST,
            rounds: 0,
            failure: None,
        };
        Cluster {
            seeds,
            tls,
            common,
            epoch: AtomicU64::new(0),
            reading: Mutex::new(reading),
            changed: Condvar::new(),
            thread: Background::default(),
            on_move,
            was_one: false,
        }
    }

    /// The cluster of a server that had all keys until now.
    pub(crate) fn of_one(
        server: Place,
        tls: Option<tls::Client>,
        common: Arc<Common>,
        on_move: Arc<OnMove>,
    ) -> Cluster {
        Cluster {
            was_one: true,
            ..Cluster::new(vec![server], tls, common, on_move)
        }
    }

    /// The node that has the slot of this key. If there is no map yet, waits for one: until the
    /// deadline, but no longer than for a connection.
    pub(crate) fn node_of(
        self: &Arc<Cluster>,
        key: &str,
        deadline: Moment,
    ) -> Result<Arc<Node>, Failure> {
        let map = self.map(deadline)?;
        map.owner(slot(key.as_bytes())).cloned().ok_or_else(|| {
            self.want_map();
            let message = "CLUSTERDOWN no known node has the slot of the key";
            Failure::Refused(Refusal::found("CLUSTERDOWN", message))
        })
    }

    /// Reads the map, and speaks to one node that it names, unless that one has sent it. A failure
    /// comes with the name of the node that could not be reached: a map may name nodes that only
    /// its cluster can reach.
    pub(crate) fn ping(self: &Arc<Cluster>, deadline: Moment) -> Result<(), (Failure, String)> {
        let mut last = (
            Failure::not_sent("no node of the cluster has a slot"),
            self.describe(),
        );
        let map = self
            .map(deadline)
            .map_err(|failure| (failure, self.describe()))?;
        if self.reading.lock().atlas.is_from_a_master() {
            return Ok(());
        }
        let mut nodes = map.masters.iter();
        while let Some(node) = nodes.next() {
            // A node that is silent leaves time for another one.
            let left = deadline.since(Moment::now());
            let share = if nodes.len() == 0 { left } else { left / 2 };
            match node.ping(Moment::now().after(share)) {
                Ok(()) => return Ok(()),
                Err(failure) => last = (failure, node.name()),
            }
        }
        Err(last)
    }

    /// True if this node has the key, or no node is known to have it.
    pub(crate) fn may_be_at(&self, node: &Node, redis_key: &[u8]) -> bool {
        let owner = self.reading.lock().atlas.owner(redis_key);
        owner.is_none_or(|owner| owner.number == node.number)
    }

    /// The node that has the slot of this key, if a map is at hand. Does not wait: if there is no
    /// map or no such node, has the map read.
    pub(crate) fn known_node_of(self: &Arc<Cluster>, key: &str) -> Option<Arc<Node>> {
        let node = self.reading.lock().atlas.owner(key.as_bytes());
        if node.is_none() {
            self.want_map();
            let _ = self.start(); // If no thread can start, the next command says so.
        }
        node
    }

    /// The node at this place, to which a redirect led.
    pub(crate) fn node_at(&self, place: Place) -> Arc<Node> {
        self.reading.lock().atlas.node_at(place, Moment::now())
    }

    /// A key in a slot of this node, made from `stem`. `None` if there is none, or it is not found.
    pub(crate) fn key_at(&self, node: &Node, stem: &str) -> Option<String> {
        let map = self.reading.lock().atlas.map().cloned();
        map?.key_at(node, stem)
    }

    /// The cluster, as errors name it.
    pub(crate) fn describe(&self) -> String {
        let seeds: Vec<_> = self.seeds.iter().map(Place::to_string).collect();
        format!("the cluster of {}", seeds.join(", "))
    }

    /// The map may be out of date. Does not wait.
    pub(crate) fn want_map(&self) {
        if !mem::replace(&mut self.reading.lock().wanted, true) {
            self.changed.notify_all();
        }
    }

    /// The map. Waits for the first one as long as for a connection, however many nodes are asked
    /// for it.
    pub(crate) fn map(self: &Arc<Cluster>, deadline: Moment) -> Result<Arc<Map>, Failure> {
        if let Some(map) = self.reading.lock().atlas.map() {
            return Ok(Arc::clone(map)); // Each command comes by here.
        }
        let limit = Moment::now().after(self.common.connect_timeout);
        self.map_since(Moment::PAST, deadline.min(limit))
    }

    /// The map as it is, or was up to a second ago: for who asks all nodes.
    pub(super) fn fresh_map(self: &Arc<Cluster>, deadline: Moment) -> Result<Arc<Map>, Failure> {
        self.map_since(Moment::now().before(LEAST_INTERVAL), deadline)
    }

    /// When the last map was asked for.
    pub(crate) fn asked(&self) -> Moment {
        self.reading.lock().began
    }

    /// A map that was asked for at this moment or later. Starts the thread that reads, and waits.
    pub(crate) fn map_since(
        self: &Arc<Cluster>,
        since: Moment,
        deadline: Moment,
    ) -> Result<Arc<Map>, Failure> {
        self.start()?;
        let mut reading = self.reading.lock();
        let asked = reading.rounds;
        loop {
            if let Some(map) = reading.map_since(since) {
                return Ok(map);
            }
            // The failure of a reading that ended before this call is no answer to it: the reason
            // may be gone.
            if let Some(failure) = reading.failure.as_ref().filter(|_| reading.rounds > asked) {
                return Err(failure.copy());
            }
            if !self.waits_for_map(&mut reading, deadline) {
                let silence = || Failure::not_sent("no node of the cluster has answered in time");
                return Err(reading.failure.as_ref().map_or_else(silence, Failure::copy));
            }
        }
    }

    /// Has the map read, and waits until something has changed. False if the deadline has passed.
    fn waits_for_map(&self, reading: &mut MutexGuard<'_, Reading>, deadline: Moment) -> bool {
        let now = Moment::now();
        if deadline <= now {
            return false;
        }
        // Only the caller that sets `wanted` notifies. This wakes the other callers, too: if each
        // did so in turn, they would wake each other all the time.
        if !mem::replace(&mut reading.wanted, true) {
            self.changed.notify_all();
        }
        self.changed.wait_for(reading, deadline.one_wait_from(now));
        true
    }

    fn start(self: &Arc<Cluster>) -> Result<(), Failure> {
        let cluster = Arc::clone(self);
        self.thread
            .start("relatch-cluster", move || cluster.run())
            .map_err(Failure::not_sent)
    }

    /// Ends the thread.
    pub(crate) fn stop(&self, limit: Duration) {
        if let Err(what) = self.thread.stop(limit) {
            warn!(target: "relatch::cluster", "the thread that reads the map {what}");
        }
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}
