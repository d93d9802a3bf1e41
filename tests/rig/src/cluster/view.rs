//! What the nodes of a cluster say of each other.

use std::collections::{HashMap, HashSet};

use super::Cluster;
use super::start::SLOTS;
use crate::{LONG, Server, eventually};

/// The place of the owner of each slot.
pub(super) type Owners = Vec<Option<usize>>;

/// What one node knows of all nodes, by their places.
pub(super) struct View {
    members: HashMap<usize, Member>,
    /// Whether it is about to meet a node, or knows one that is no member.
    has_strangers: bool,
    owners: Owners,
}

struct Member {
    flags: String,
    /// The place of the master that it follows.
    master: Option<usize>,
    is_linked: bool,
}

impl Cluster {
    /// The places of the members that run and are not paused.
    pub(super) fn awake(&self) -> impl Iterator<Item = usize> {
        (0..self.count()).filter(|place| self.nodes[*place].server.is_awake())
    }

    /// What a node knows, `None` if it does not answer.
    pub(super) fn view(&self, place: usize) -> Option<View> {
        let reply = self.server(place).command(&["CLUSTER", "NODES"]).ok()?;
        let text: String = redis::from_redis_value(reply).ok()?;
        Some(self.read(&text))
    }

    /// Reads lines of `id address flags master ping pong epoch link slots...`.
    fn read(&self, text: &str) -> View {
        let ids: Vec<_> = self.nodes.iter().map(|it| &*it.id).collect();
        let place_of = |id: &str| ids.iter().position(|it| *it == id);
        let nothing = vec![None; usize::from(SLOTS)];
        let mut view = View {
            members: HashMap::new(),
            has_strangers: false,
            owners: nothing,
        };
        for line in text.lines() {
            let fields: Vec<_> = line.split(' ').collect();
            let Some(place) = place_of(fields[0]) else {
                view.has_strangers = true;
                continue;
            };
            let (flags, is_linked) = (fields[2].to_owned(), fields[7] == "connected");
            view.members.insert(
                place,
                Member {
                    flags,
                    master: place_of(fields[3]),
                    is_linked,
                },
            );
            // In brackets: a slot that is moved.
            for range in fields[8..].iter().filter(|it| !it.starts_with('[')) {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                let [first, last] = [first, last].map(|it| it.parse::<usize>().expect("a slot"));
                view.owners[first..=last].fill(Some(place));
            }
        }
        view
    }

    /// The owner of each slot, once all nodes that answer agree.
    #[track_caller]
    pub(super) fn owners(&self) -> Owners {
        let mut owners = None;
        eventually(
            2 * LONG,
            "the nodes agree on the owners of the slots",
            || {
                owners = self.agreed();
                owners.is_some()
            },
        );
        owners.expect("just found")
    }

    /// The owner of each slot; `None` if the nodes do not agree on that or on who follows whom, or
    /// one does not answer.
    pub(super) fn agreed(&self) -> Option<Owners> {
        let mut views = self.awake().map(|place| self.view(place));
        let first = views.next()??;
        // A master ignores a replica that wants to replace it until it knows that this is its
        // replica.
        let masters =
            |view: &View| -> Vec<_> { self.awake().map(|it| view.master_of(it)).collect() };
        let is_same = |it: View| it.owners == first.owners && masters(&it) == masters(&first);
        views
            .all(|it| it.is_some_and(is_same))
            .then_some(first.owners)
    }

    /// Waits until all nodes know that `place` owns these slots, and the epoch in which it took
    /// them.
    ///
    /// A node that takes a slot back before it knows that epoch would choose the same one for
    /// itself. Of two nodes with one epoch, the one with the lesser name takes the next, and with
    /// it the slot.
    #[track_caller]
    pub(super) fn until_owned_by(&self, slots: &[u16], place: usize) {
        eventually(LONG, "all nodes know the new owner", || {
            let owners = self.agreed();
            let epochs: HashSet<_> = self
                .awake()
                .map(|it| current_epoch(self.server(it)))
                .collect();
            owners.is_some_and(|it| {
                slots
                    .iter()
                    .all(|&slot| it[usize::from(slot)] == Some(place))
            }) && epochs.len() == 1
        });
    }

    /// Whether all members that answer take the cluster for working.
    pub(super) fn are_ok(&self) -> bool {
        self.awake().all(|place| is_ok(self.server(place)))
    }

    /// Whether a member knows all others and, if it is a replica, is in sync.
    pub(super) fn is_well(&self, place: usize, owners: &Owners) -> bool {
        let Some(view) = self.view(place) else {
            return false;
        };
        let knows = |other| {
            view.members
                .get(&other)
                .is_some_and(|it| it.is_linked && !it.is_suspect())
        };
        let is_in_sync = match view.master_of(place) {
            Some(master) => {
                let [replica, server] = [place, master].map(|it| self.server(it));
                owners.contains(&Some(master)) && server.is_awake() && follows(replica, server)
            }
            None => view.is_master(place),
        };
        !view.has_strangers && self.awake().all(knows) && is_in_sync
    }
}

impl View {
    /// The place of the master that a node follows.
    fn master_of(&self, place: usize) -> Option<usize> {
        self.members.get(&place).and_then(|it| it.master)
    }

    pub(super) fn is_master(&self, place: usize) -> bool {
        self.members
            .get(&place)
            .is_some_and(|it| it.flags.contains("master"))
    }
}

impl Member {
    /// Whether it is taken for dead, or is not quite a member yet.
    fn is_suspect(&self) -> bool {
        ["fail", "handshake", "noaddr"]
            .iter()
            .any(|it| self.flags.contains(it))
    }
}

/// Whether a node takes the cluster for working.
pub(super) fn is_ok(node: &Server) -> bool {
    cluster_info(node).is_some_and(|it| it.contains("cluster_state:ok"))
}

/// The newest epoch that a node knows.
pub(super) fn current_epoch(node: &Server) -> Option<String> {
    let info = cluster_info(node)?;
    info.lines()
        .find_map(|line| line.strip_prefix("cluster_current_epoch:"))
        .map(str::to_owned)
}

fn cluster_info(node: &Server) -> Option<String> {
    let info = node.command(&["CLUSTER", "INFO"]).ok()?;
    redis::from_redis_value(info).ok()
}

/// Whether a replica is connected to its master.
pub(super) fn is_linked(replica: &Server) -> bool {
    replication(replica).contains("master_link_status:up")
}

fn replication(server: &Server) -> String {
    server.query(&["INFO", "replication"])
}

/// Whether a replica is connected to its master, and the master sends it all changes.
fn follows(replica: &Server, master: &Server) -> bool {
    let states = |text: &str, state: &str| text.matches(state).count();
    let master = replication(master);
    is_linked(replica)
        && states(&master, "state=online") >= 1
        && states(&master, "state=online") == states(&master, "state=")
}
