//! The thread that reads the map, and tells which keys have another node than before.
//!
//! It asks one node after the other, first those of the last map, then those that the program
//! named, until one answers that is well. Since only this thread asks, and pauses after each map, a
//! storm of errors costs about one map a second.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::backoff::Backoff;
use crate::base::clock::Moment;
use crate::base::emit::{debug, info, warn};
use crate::client::servers::cluster::{Cluster, LEAST_INTERVAL};
use crate::client::servers::map::Map;
use crate::client::servers::slots::{SLOTS, slot};
use crate::client::servers::view::{QUESTIONS, View};
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::socket::Ender;

/// How often the map is read although nothing shows that it is out of date. A node that was demoted
/// may keep its connections open and stay silent: then no waiter would learn of its successor.
const LOOKS_EVERY: Duration = Duration::from_secs(10);

/// The longest time that one node gets to connect and to send its map, unless all are silent.
const LONGEST_ASK: Duration = Duration::from_millis(500);

impl Cluster {
    pub(super) fn run(self: &Arc<Cluster>) {
        let mut pauses = Backoff::for_listener();
        let mut repeats = false;
        loop {
            let wanted = mem::take(&mut self.reading.lock().wanted);
            let began = Moment::now();
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
                    let is_new = self.take_in(view, began);
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
    fn take_in(&self, view: View, began: Moment) -> bool {
        if view.epoch < u64::MAX {
            self.epoch.store(view.epoch, Ordering::Relaxed);
        }
        let mut reading = self.reading.lock();
        reading.began = began;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::base::options::Settings;
    use crate::client::servers::node::{Common, OnMove};
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
            cluster.take_in(map, Moment::now());
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
            let view = View {
                epoch,
                ..view(7001)
            };
            cluster.take_in(view, Moment::now());
            cluster.epoch.load(Ordering::Relaxed)
        };
        assert_eq!([newest(7), newest(u64::MAX)], [7, 7]);
    }

    #[test]
    fn a_map_is_as_old_as_the_question_for_it() {
        let (cluster, asked) = (cluster(), Moment::now());
        cluster.take_in(view(7001), asked);
        let reading = cluster.reading.lock();
        let is_known = |since: Moment| reading.map_since(since).is_some();
        assert!(is_known(Moment::PAST) && is_known(asked));
        assert!(!is_known(asked.after(Duration::from_nanos(1))));
    }

    /// Otherwise all processes would ask the same node.
    #[test]
    fn each_master_is_asked_first_at_times() {
        let cluster = cluster();
        let all = [7001, 7002, 7003].map(|port| view(port).sender);
        let ranges = (0..3).map(|n| (n..=n, all[usize::from(n)].clone()));
        let view = View {
            ranges: ranges.collect(),
            ..view(7001)
        };
        cluster.take_in(view, Moment::now());
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
