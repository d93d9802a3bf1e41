//! A Redis Cluster: the map that says which node has a slot, and the thread that reads the map.
//!
//! The map is read once at the beginning, and again whenever something shows that it may be out of
//! date: `MOVED`, a node that refuses connections or is silent, `READONLY`, `CLUSTERDOWN`. The
//! thread asks one node after the other, first those of the last map, then those that the program
//! named, until one answers that is well. Since only this thread asks, and pauses after each map, a
//! storm of errors costs about one map a second.
//!
//! No other thread waits for a new map, unless there is none yet: a thread whose map is out of date
//! follows the redirects of the nodes.

use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::background::Background;
use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{debug, info, warn};
use crate::base::sync::{Condvar, Mutex};
use crate::client::servers::atlas::Atlas;
use crate::client::servers::map::Map;
use crate::client::servers::node::{Common, Node, OnMove};
use crate::client::servers::slots::{SLOTS, slot};
use crate::client::servers::view::{QUESTIONS, View};
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::socket::Ender;
use crate::client::wire::tls;

/// The pause after the map was read. Meanwhile, threads follow redirects.
const LEAST_INTERVAL: Duration = Duration::from_secs(1);

/// How often the map is read although nothing shows that it is out of date. A node that was demoted
/// may keep its connections open and stay silent: then no waiter would learn of its successor.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// The longest time that one node gets to connect and to send its map, unless all are silent.
const LONGEST_ASK: Duration = Duration::from_millis(500);

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
    /// How often reading the map has ended.
    rounds: u64,
    /// Why the last reading failed.
    failure: Option<Failure>,
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
            Failure::Refused(Refusal::new(
                "CLUSTERDOWN no known node has the slot of the key",
            ))
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

    /// The map. Starts the thread that reads it, and waits for the first one: as long as for a
    /// connection, however many nodes are asked for it.
    pub(super) fn map(self: &Arc<Cluster>, deadline: Moment) -> Result<Arc<Map>, Failure> {
        if let Some(map) = self.reading.lock().atlas.map() {
            return Ok(Arc::clone(map));
        }
        let deadline = deadline.min(Moment::now().after(self.common.connect_timeout));
        self.start()?;
        let mut reading = self.reading.lock();
        let asked = reading.rounds;
        loop {
            if let Some(map) = reading.atlas.map() {
                return Ok(Arc::clone(map));
            }
            // The failure of a reading that ended before this call is no answer to it: the reason
            // may be gone.
            if let Some(failure) = reading.failure.as_ref().filter(|_| reading.rounds > asked) {
                return Err(failure.copy());
            }
            let now = Moment::now();
            if deadline <= now {
                let silence = || Failure::not_sent("no node of the cluster has answered in time");
                return Err(reading.failure.as_ref().map_or_else(silence, Failure::copy));
            }
            // Only the caller that sets `wanted` notifies. This wakes the other callers, too: if
            // each did so in turn, they would wake each other all the time.
            if !mem::replace(&mut reading.wanted, true) {
                self.changed.notify_all();
            }
            self.changed
                .wait_for(&mut reading, deadline.one_wait_from(now));
        }
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

    fn run(self: &Arc<Cluster>) {
        let mut pauses = Backoff::for_listener();
        let mut repeats = false;
        loop {
            let wanted = mem::take(&mut self.reading.lock().wanted);
            let mut read = self.read(false);
            if read.as_ref().is_err_and(Failure::can_pass) {
                // Perhaps the nodes are far away, or the machine is busy.
                read = self.read(true);
            }
            if self.thread.is_stopping() {
                return;
            }
            match read {
                Ok(view) => {
                    let is_new = self.take_in(view);
                    // `wanted`: something has shown that the map is out of date. If the same map
                    // has come again, its sender may not have heard of the change yet. So the map
                    // is read once more; only once, since there may be no change. Without this, a
                    // waiter that has followed a redirect would poll until the map shows its node.
                    repeats = wanted && !is_new && !repeats;
                    if repeats {
                        self.want_map();
                    }
                    pauses.reset();
                    self.thread.pause(LEAST_INTERVAL);
                }
                Err(failure) => {
                    self.note(failure);
                    self.thread.pause(pauses.pause().min(LEAST_INTERVAL));
                }
            }
            let nodes = self.reading.lock().atlas.nodes();
            for node in nodes {
                node.sweep(); // It closes idle connections.
            }
            if !self.sleep_until_wanted() {
                return;
            }
        }
    }

    /// Sleeps until the map may be out of date. False if the thread has to stop.
    fn sleep_until_wanted(self: &Arc<Cluster>) -> bool {
        let cluster = Arc::downgrade(self);
        let wake = move || {
            if let Some(cluster) = cluster.upgrade() {
                cluster.want_map();
            }
        };
        if !self.thread.ends_by(wake) {
            return false;
        }
        let until = Moment::now().after(LOOKS_EVERY);
        let mut reading = self.reading.lock();
        while !reading.wanted && Moment::now() < until {
            self.changed
                .wait_for(&mut reading, until.one_wait_from(Moment::now()));
        }
        drop(reading);
        !self.thread.is_stopping()
    }

    /// Asks one node after the other. A silent one leaves half of the time in which a caller wants
    /// to be connected for others; with patience, each gets all of it.
    fn read(&self, is_patient: bool) -> Result<View, Failure> {
        let whole = self.common.connect_timeout;
        let end = Moment::now().after(whole);
        let candidates = self.reading.lock().atlas.to_ask(&self.seeds);
        let candidates = candidates
            .into_iter()
            .take_while(|_| !self.thread.is_stopping());
        let stopping = || Failure::not_sent("the manager was dropped");
        let connected = |ender: Ender| {
            let goes_on = self.thread.ends_by(move || ender.end());
            goes_on.then_some(()).ok_or_else(stopping)
        };
        let ask = |place: &Place| {
            let share = (end.since(Moment::now()) / 2).min(LONGEST_ASK);
            let limit = if is_patient { whole } else { share };
            let endpoint = Endpoint::new(place.clone(), self.tls.clone());
            let common = &self.common;
            let replies = common.ask_once(&endpoint, QUESTIONS, limit, connected)?;
            View::new(replies, place)
        };
        View::best(candidates, self.epoch.load(Ordering::Relaxed), ask)
    }

    /// Notes that no node has sent a map.
    fn note(&self, failure: Failure) {
        let mut reading = self.reading.lock();
        reading.rounds += 1;
        let news = reading.failure.is_none().then(|| failure.text());
        reading.failure = Some(failure);
        drop(reading);
        self.changed.notify_all();
        if let Some(why) = news {
            warn!(target: "relatch::cluster", "no node has sent a map: {why}");
        }
    }

    /// Takes in what a node says, and tells which keys have another node now (`on_move`). True if
    /// there are such keys, or no map was known before.
    fn take_in(&self, view: View) -> bool {
        if view.epoch < u64::MAX {
            self.epoch.store(view.epoch, Ordering::Relaxed);
        }
        let mut reading = self.reading.lock();
        reading.rounds += 1;
        let was_failing = reading.failure.take().is_some();
        let before = reading.atlas.map().cloned();
        if before.is_none() {
            reading.wanted = false; // What was wanted was the first map.
        }
        let map = reading.atlas.take_in(view);
        let gone = reading.atlas.forget(LOOKS_EVERY);
        drop(reading);
        self.changed.notify_all();
        if was_failing {
            info!(target: "relatch::cluster", "a node has sent a map again");
        }
        for node in &gone {
            node.retire();
        }
        let has_moved = self.tell_moved(before.as_deref(), &map);
        before.is_none() || has_moved
    }

    /// Tells which keys have another node than `before`. False if there are none.
    fn tell_moved(&self, before: Option<&Map>, map: &Map) -> bool {
        let moved = match before {
            Some(before) if map.is_same_as(before) => return false,
            Some(before) => map.differs_from(before),
            None => vec![self.was_one; usize::from(SLOTS)],
        };
        let count = moved.iter().filter(|moved| **moved).count();
        if count > 0
            && let Some(call) = self.on_move.get()
        {
            debug!(target: "relatch::cluster", "{count} slots have another node");
            call(&|key| moved[usize::from(slot(key))]);
        }
        count > 0
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster")
            .field("seeds", &self.seeds)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::OnceLock;

    use super::*;
    use crate::base::options::Settings;
    use crate::client::wire::login::{Access, Expected};

    fn view(port: u16) -> View {
        let master = Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        };
        let ranges = vec![(0..=SLOTS - 1, master.clone())];
        View {
            sender: master,
            ranges,
            replicas: BTreeSet::new(),
            is_well: true,
            epoch: 1,
        }
    }

    /// How often keys have moved after each of these maps.
    fn moves(
        cluster: impl FnOnce(Arc<Common>, Arc<OnMove>) -> Cluster,
        maps: impl IntoIterator<Item = View>,
    ) -> Vec<u64> {
        let moves = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&moves);
        let on_move: OnMove = OnceLock::new();
        let _ = on_move.set(Box::new(move |_| _ = count.fetch_add(1, Ordering::Relaxed)));
        let common = Common::new(
            Access::new(None, 0, Expected::ClusterNode),
            &Settings::default(),
        );
        let cluster = cluster(Arc::new(common.unwrap()), Arc::new(on_move));
        let after = |map| {
            cluster.take_in(map);
            moves.load(Ordering::Relaxed)
        };
        maps.into_iter().map(after).collect()
    }

    fn cluster() -> Cluster {
        let access = Access::new(None, 0, Expected::ClusterNode);
        let common = Common::new(access, &Settings::default()).unwrap();
        let seeds = vec![view(7001).sender];
        Cluster::new(seeds, None, Arc::new(common), Arc::new(OnceLock::new()))
    }

    /// Otherwise all maps that come later would look out of date.
    #[test]
    fn a_node_that_does_not_say_how_new_its_map_is_leaves_what_is_known_of_that() {
        let cluster = cluster();
        let newest = |epoch| {
            cluster.take_in(View {
                epoch,
                ..view(7001)
            });
            cluster.epoch.load(Ordering::Relaxed)
        };
        assert_eq!([newest(7), newest(u64::MAX)], [7, 7]);
    }

    /// Otherwise all processes would ask the same node.
    #[test]
    fn each_master_is_asked_first_at_times() {
        let cluster = cluster();
        let all = [7001, 7002, 7003].map(|port| view(port).sender);
        let ranges = (0..3).map(|n| (n..=n, all[usize::from(n)].clone()));
        cluster.take_in(View {
            ranges: ranges.collect(),
            ..view(7001)
        });
        let asked = || cluster.reading.lock().atlas.to_ask(&[]).swap_remove(0);
        let first: BTreeSet<_> = (0..200).map(|_| asked()).collect();
        assert_eq!(first, all.into());
    }

    /// Otherwise the keeper would renew a lock that was just taken: once more for each process.
    #[test]
    fn the_first_map_moves_the_keys_of_a_server_that_has_become_a_cluster_and_no_others() {
        let seed = || view(7001).sender;
        let maps = || [view(7001), view(7001), view(7002)];
        let new = moves(
            |common, on_move| Cluster::new(vec![seed()], None, common, on_move),
            maps(),
        );
        assert_eq!(new, [0, 0, 1]);
        let of_one = moves(
            |common, on_move| Cluster::of_one(seed(), None, common, on_move),
            maps(),
        );
        assert_eq!(of_one, [1, 1, 2]);
    }
}
