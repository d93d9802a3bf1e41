//! A Redis Cluster: the map that says which node has a slot, and the thread that reads the map.
//!
//! The map is read once at the beginning, and again whenever something shows that it may be out of
//! date: `MOVED`, a node that refuses connections or is silent, `READONLY`, `CLUSTERDOWN`. The
//! thread asks one node after the other, first those of the last map, then those that the program
//! named, until one answers that is well. Since only this thread asks, and pauses after each map, a
//! storm of errors costs about one map a second.
//!
//! No other thread waits for a new map, unless there is none yet: a thread whose map is out of date
//! follows the redirects of the nodes ([`Connection`](crate::store::Connection)).

use std::collections::BTreeSet;
use std::fmt;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::base::background::{Background, Stopped};
use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{debug, info, warn};
use crate::base::random;
use crate::base::sync::{Condvar, HashMap, Mutex};
use crate::client::servers::map::Map;
use crate::client::servers::node::{Common, Location, Node, OnMove};
use crate::client::servers::slots::{Range, SLOTS, slot};
use crate::client::servers::view::{QUESTIONS, View};
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::refusal::Refusal;
use crate::client::wire::stream::Ender;
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
    state: Mutex<State>,
    /// A map was read, or no node has one. Also wakes the thread.
    changed: Condvar,
    /// The thread that reads the map.
    thread: Background,
    on_move: Arc<OnMove>,
    /// One server was taken to have all keys, until its login or a redirect showed the cluster. So the
    /// first map may move keys.
    was_one: bool,
}

#[derive(Default)]
struct State {
    map: Option<Arc<Map>>,
    /// The node that has sent the last map.
    sender: Option<Place>,
    /// The masters of the map and the nodes to which redirects led, by address.
    nodes: HashMap<String, Known>,
    /// The replicas that the map names. If all masters are gone, they know the new ones.
    replicas: BTreeSet<Place>,
    /// The map may be out of date.
    wanted: bool,
    /// How often reading the map has ended.
    rounds: u64,
    /// Why the last reading failed.
    failure: Option<Failure>,
}

struct Known {
    node: Arc<Node>,
    /// When a redirect led to it last. While a slot is on its way to a node, the map may not name
    /// it.
    led_to: Moment,
}

impl Cluster {
    pub(crate) fn new(
        seeds: Vec<Place>,
        tls: Option<tls::Client>,
        common: Arc<Common>,
        on_move: Arc<OnMove>,
    ) -> Cluster {
        let (state, changed, thread) = (Mutex::default(), Condvar::new(), Background::default());
        let (epoch, was_one) = (AtomicU64::new(0), false);
        Cluster {
            seeds,
            tls,
            common,
            epoch,
            state,
            changed,
            thread,
            on_move,
            was_one,
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

    /// The node that has the slot of this key. If there is no map yet, waits until the deadline for
    /// one.
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
        let sender = self.state.lock().sender.clone();
        if map
            .masters
            .iter()
            .any(|node| node.place() == sender.as_ref())
        {
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
        let state = self.state.lock();
        let owner = state
            .map
            .as_ref()
            .and_then(|map| map.owner(slot(redis_key)));
        owner.is_none_or(|owner| owner.number == node.number)
    }

    /// The node that has the slot of this key, if a map is at hand. Does not wait: if there is no
    /// map or no such node, has the map read.
    pub(crate) fn known_node_of(self: &Arc<Cluster>, key: &str) -> Option<Arc<Node>> {
        let map = self.state.lock().map.clone();
        let node = map.and_then(|map| map.owner(slot(key.as_bytes())).cloned());
        if node.is_none() {
            self.want_map();
            let _ = self.start(); // If no thread can start, the next command says so.
        }
        node
    }

    /// The node at this place, to which a redirect led.
    pub(crate) fn node_at(&self, place: Place) -> Arc<Node> {
        let mut state = self.state.lock();
        self.node_in(&mut state, place, Moment::now())
    }

    fn node_in(&self, state: &mut State, place: Place, led_to: Moment) -> Arc<Node> {
        let endpoint = Endpoint::new(place, self.tls.clone());
        let known = state
            .nodes
            .entry(endpoint.name().to_owned())
            .or_insert_with(|| {
                let node = Node::new(Location::At(endpoint), Arc::clone(&self.common));
                Known {
                    node: Arc::new(node),
                    led_to,
                }
            });
        known.led_to = known.led_to.max(led_to);
        Arc::clone(&known.node)
    }

    /// A key in a slot of this node, made from `stem`. `None` if there is none, or it is not found.
    pub(crate) fn key_at(&self, node: &Node, stem: &str) -> Option<String> {
        let map = self.state.lock().map.clone();
        map?.key_at(node, stem)
    }

    /// The cluster, as errors name it.
    pub(crate) fn describe(&self) -> String {
        let seeds: Vec<_> = self.seeds.iter().map(Place::to_string).collect();
        format!("the cluster of {}", seeds.join(", "))
    }

    /// The map may be out of date. Does not wait.
    pub(crate) fn want_map(&self) {
        if !mem::replace(&mut self.state.lock().wanted, true) {
            self.changed.notify_all();
        }
    }

    /// The map. Starts the thread that reads it, and waits for the first one: as long as for a
    /// connection, however many nodes are asked for it.
    fn map(self: &Arc<Cluster>, deadline: Moment) -> Result<Arc<Map>, Failure> {
        if let Some(map) = &self.state.lock().map {
            return Ok(Arc::clone(map));
        }
        let deadline = deadline.min(Moment::now().after(self.common.connect_timeout));
        self.start()?;
        let mut state = self.state.lock();
        let asked = state.rounds;
        loop {
            if let Some(map) = &state.map {
                return Ok(Arc::clone(map));
            }
            // A reading that has begun may fail for a reason of its own time: the next one counts,
            // too. The first counts for the callers that have started it.
            if let Some(failure) = state.failure.as_ref().filter(|_| state.rounds > asked) {
                return Err(failure.copy());
            }
            let now = Moment::now();
            if deadline <= now {
                let silence = || Failure::not_sent("no node of the cluster has answered in time");
                return Err(state.failure.as_ref().map_or_else(silence, Failure::copy));
            }
            // If each of several callers did so, they would wake each other all the time.
            if !mem::replace(&mut state.wanted, true) {
                self.changed.notify_all();
            }
            self.changed
                .wait_for(&mut state, deadline.one_wait_from(now));
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
        match self.thread.stop(limit) {
            Stopped::Ended => {}
            Stopped::Panicked => warn!(target: "relatch::cluster", "the thread had panicked"),
            Stopped::LeftBehind => warn!(target: "relatch::cluster",
                "the thread still asks a node for the map: it is left behind, and ends by itself"),
        }
    }

    fn run(self: &Arc<Cluster>) {
        self.thread.enter();
        let (mut pauses, mut repeats) = (Backoff::for_listener(), false);
        loop {
            let wanted = mem::take(&mut self.state.lock().wanted);
            let mut read = self.read(false);
            if read.as_ref().is_err_and(Failure::can_pass) {
                // Perhaps the nodes are far away, or the machine is busy.
                read = self.read(true);
            }
            if self.thread.is_stopping() {
                return;
            }
            if let Some(is_new) = self.note(read) {
                // Something shows that the map is out of date. The node that has sent the same map
                // once more may not have heard of the change yet. A waiter may have followed a
                // redirect, and would poll until the map shows its node.
                repeats = wanted && !is_new && !repeats;
                if repeats {
                    self.want_map();
                }
                pauses.reset();
                self.thread.pause(LEAST_INTERVAL);
            } else {
                self.thread.pause(pauses.pause().min(LEAST_INTERVAL));
            }
            let nodes: Vec<_> = self
                .state
                .lock()
                .nodes
                .values()
                .map(|it| Arc::clone(&it.node))
                .collect();
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
        let mut state = self.state.lock();
        while !state.wanted && Moment::now() < until {
            self.changed
                .wait_for(&mut state, until.one_wait_from(Moment::now()));
        }
        drop(state);
        !self.thread.is_stopping()
    }

    /// Asks one node after the other. A silent one leaves half of the time in which a caller wants
    /// to be connected for others; with patience, each gets all of it.
    fn read(&self, is_patient: bool) -> Result<View, Failure> {
        let whole = self.common.connect_timeout;
        let end = Moment::now().after(whole);
        let candidates = self
            .candidates()
            .into_iter()
            .take_while(|_| !self.thread.is_stopping());
        let connected = |ender: Ender| {
            let goes_on = self.thread.ends_by(move || ender.end());
            if goes_on {
                Ok(())
            } else {
                Err(Failure::not_sent("the manager was dropped"))
            }
        };
        let ask = |place: &Place| {
            let share = (end.since(Moment::now()) / 2).min(LONGEST_ASK);
            let limit = if is_patient { whole } else { share };
            let endpoint = Endpoint::new(place.clone(), self.tls.clone());
            View::new(
                self.common
                    .ask_once(&endpoint, QUESTIONS, limit, connected)?,
                place,
            )
        };
        View::best(candidates, self.epoch.load(Ordering::Relaxed), ask)
    }

    /// The nodes to ask: the masters, from a random one on, then the replicas of the last map, then
    /// the nodes that the program named.
    fn candidates(&self) -> Vec<Place> {
        let state = self.state.lock();
        let masters = state.map.as_ref().map_or(&[][..], |map| &map.masters);
        let mut places: Vec<_> = masters
            .iter()
            .filter_map(|node| node.place().cloned())
            .collect();
        let replicas = state.replicas.clone();
        drop(state);
        let first = random::bits().unwrap_or_default() % places.len().max(1) as u128;
        places.rotate_left(usize::try_from(first).unwrap_or_default());
        places.extend(replicas.into_iter().chain(self.seeds.iter().cloned()));
        let mut known = BTreeSet::new();
        places.retain(|place| known.insert(place.clone()));
        places
    }

    /// Takes in what was read, and tells which keys have another node than before. Returns whether
    /// there are such keys, or no map was known before. `None` if no node has sent a map.
    fn note(&self, read: Result<View, Failure>) -> Option<bool> {
        let mut state = self.state.lock();
        state.rounds += 1;
        let View {
            sender,
            ranges,
            replicas,
            is_well,
            epoch,
        } = match read {
            Ok(view) => view,
            Err(failure) => {
                let news = state.failure.is_none().then(|| failure.text());
                state.failure = Some(failure);
                drop(state);
                self.changed.notify_all();
                if let Some(why) = news {
                    warn!(target: "relatch::cluster", "no node has sent a map: {why}");
                }
                return None;
            }
        };
        let was_failing = state.failure.take().is_some();
        if epoch < u64::MAX {
            self.epoch.store(epoch, Ordering::Relaxed);
        }
        (state.sender, state.replicas) = (Some(sender), replicas);
        let before = state.map.take();
        let is_first = before.is_none();
        if is_first {
            // Until now, callers could only want the first map.
            state.wanted = false;
        }
        let ranges = ranges.into_iter().map(
            |Range {
                 first,
                 last,
                 master,
             }| {
                let node = self.node_in(&mut state, master, Moment::PAST);
                (first..=last, node)
            },
        );
        // A node that is well names the owners of all slots that have one.
        let map = Arc::new(Map::new(ranges, before.as_deref().filter(|_| !is_well)));
        state.map = Some(Arc::clone(&map));
        let is_gone =
            |it: &Known| !map.has(&it.node) && it.led_to.after(LOOKS_EVERY) < Moment::now();
        let gone: Vec<_> = state.nodes.extract_if(|_, it| is_gone(it)).collect();
        drop(state);
        self.changed.notify_all();
        if was_failing {
            info!(target: "relatch::cluster", "a node has sent a map again");
        }
        for (_, it) in &gone {
            it.node.retire();
        }
        let first = || vec![self.was_one; usize::from(SLOTS)];
        let moved = before.map_or_else(first, |before| map.differs_from(&before));
        if moved.contains(&true)
            && let Some(call) = self.on_move.get()
        {
            let count = moved.iter().filter(|moved| **moved).count();
            debug!(target: "relatch::cluster", "{count} slots have another node");
            call(&|key| moved[usize::from(slot(key))]);
        }
        Some(is_first || moved.contains(&true))
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
    use std::sync::OnceLock;

    use super::*;
    use crate::base::options::Settings;
    use crate::client::wire::login::{Access, Expected};

    fn view(port: u16) -> View {
        let master = Place::Tcp {
            host: "127.0.0.1".to_owned(),
            port,
        };
        let ranges = vec![Range {
            first: 0,
            last: SLOTS - 1,
            master: master.clone(),
        }];
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
            assert!(cluster.note(Ok(map)).is_some());
            moves.load(Ordering::Relaxed)
        };
        maps.into_iter().map(after).collect()
    }

    /// Otherwise the keeper would renew a lock that was just taken: once more for each process.
    #[test]
    fn the_first_map_moves_the_keys_of_a_server_that_has_become_a_cluster_and_no_others() {
        let seed = || view(7001).ranges.remove(0).master;
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
