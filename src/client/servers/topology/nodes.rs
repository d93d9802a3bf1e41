//! The last map, and the nodes to which this process may be connected.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Moment;
use crate::base::random;
use crate::base::sync::HashMap;
use crate::client::servers::map::Map;
use crate::client::servers::node::{Common, Node};
use crate::client::servers::slots::{Range, slot};
use crate::client::servers::source::View;
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::tls;

pub(super) struct Nodes {
    map: Option<Arc<Map>>,
    /// The server that has sent the map.
    sender: Option<Place>,
    /// The masters of the map and the nodes to which redirects led, by address.
    known: HashMap<String, KnownNode>,
    /// The replicas that the map names. If all masters are gone, they know the new ones.
    replicas: BTreeSet<Place>,
    tls: Option<tls::Client>,
    common: Arc<Common>,
}

struct KnownNode {
    node: Arc<Node>,
    /// When a redirect last led to it, unless a map has dropped it since. While a slot is on its
    /// way to a node, the map may not name it.
    led_to: Option<Moment>,
}

impl Nodes {
    /// Without a map. `tls` and `common` are for the nodes.
    pub(super) fn new(tls: Option<tls::Client>, common: Arc<Common>) -> Nodes {
        Nodes {
            map: None,
            sender: None,
            known: HashMap::default(),
            replicas: BTreeSet::new(),
            tls,
            common,
        }
    }

    pub(super) fn map(&self) -> Option<&Arc<Map>> {
        self.map.as_ref()
    }

    /// The node that has the slot of this key, as far as is known.
    pub(super) fn owner(&self, redis_key: &[u8]) -> Option<Arc<Node>> {
        self.map.as_ref()?.owner(slot(redis_key)).cloned()
    }

    /// Who may know the next map: the masters, from a random one on, then the replicas.
    pub(super) fn endpoints(&self) -> Vec<Arc<Endpoint>> {
        let masters = self.map.iter().flat_map(|map| &map.masters);
        let mut all: Vec<_> = masters.map(|node| Arc::clone(&node.endpoint)).collect();
        let first = random::bits().unwrap_or_default() % all.len().max(1) as u128;
        all.rotate_left(usize::try_from(first).unwrap_or_default());
        let of_replica = |place: &Place| Arc::new(Endpoint::new(place.clone(), self.tls.clone()));
        all.extend(self.replicas.iter().map(of_replica));
        all
    }

    /// True if one of its masters has sent the map.
    pub(super) fn is_from_a_master(&self) -> bool {
        let mut masters = self.map.iter().flat_map(|map| &map.masters);
        masters.any(|node| Some(node.endpoint.place()) == self.sender.as_ref())
    }

    /// All known nodes.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let nodes = self.known.values();
        nodes.map(|it| Arc::clone(&it.node)).collect()
    }

    /// The node at this place, to which a redirect led at that time.
    pub(super) fn node_at(&mut self, place: Place, led_to: Option<Moment>) -> Arc<Node> {
        let endpoint = Endpoint::new(place, self.tls.clone());
        let name = endpoint.name().to_owned();
        let known = self.known.entry(name).or_insert_with(|| {
            let node = Node::new(endpoint, Arc::clone(&self.common));
            KnownNode {
                node: Arc::new(node),
                led_to,
            }
        });
        known.led_to = known.led_to.max(led_to);
        Arc::clone(&known.node)
    }

    /// Takes in what a server says, and returns the new map.
    pub(super) fn take_in(&mut self, view: &View) -> Arc<Map> {
        let before = self.map.take();
        let owned = |(slots, master): &Range| (slots.clone(), self.node_at(master.clone(), None));
        let ranges = view.ranges.iter().map(owned);
        // A node that is well names the owners of all slots that have one.
        let map = Map::new(ranges, before.as_deref().filter(|_| !view.is_well));
        let map = Arc::new(map);
        let has_left = |it: &Node| before.as_ref().is_some_and(|map| map.has(it)) && !map.has(it);
        let left = self.known.values_mut().filter(|it| has_left(&it.node));
        left.for_each(|it| it.led_to = None);
        self.map = Some(Arc::clone(&map));
        self.sender = Some(view.sender.clone());
        self.replicas.clone_from(&view.replicas);
        map
    }

    /// Forgets, and returns, the nodes that the map does not name and to which no redirect has led
    /// for this long.
    pub(super) fn forget(&mut self, span: Duration) -> Vec<Arc<Node>> {
        let map = &self.map;
        let is_gone = |it: &KnownNode| {
            let is_named = map.as_ref().is_some_and(|map| map.has(&it.node));
            !is_named && it.led_to.is_none_or(|at| at.after(span) < Moment::now())
        };
        let gone = self.known.extract_if(|_, it| is_gone(it));
        gone.map(|(_, it)| it.node).collect()
    }
}
