//! Where the map comes from: who is asked for it, and what an answer says.
//!
//! `belief` says which answers count. A further engine (a proxy with its own discovery) is one more
//! file here, with a [`Source`], and an arm in `Topology::new`. (One server alone has no source:
//! its map never changes.)

pub(super) mod sentinel;
mod named;
pub(super) mod cluster;
pub(super) mod belief;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::client::servers::slots::{Range, SLOTS};
use crate::client::wire::endpoint::{Endpoint, Place};
use crate::client::wire::failure::Failure;
use crate::client::wire::socket::Ender;
use crate::client::wire::subscription::Subscription;

/// Who is asked for the map. Only the thread of the topology asks.
pub(super) trait Source: Send + Sync {
    /// What errors name: the node that has a key or, while none is known, those that are asked.
    fn name(&self, node: Option<&str>) -> String;

    /// Those to ask, in this order. `known` are the servers of the last map.
    fn candidates(&self, known: Vec<Arc<Endpoint>>) -> Vec<Arc<Endpoint>>;

    /// Asks one of them.
    fn ask(&self, candidate: &Arc<Endpoint>, limits: &Limits<'_>) -> Result<View, Failure>;

    /// Why none of them has sent a map. Each has failed, or knows none.
    fn explain(&self, failures: Vec<(Arc<Endpoint>, Failure)>) -> Failure;

    /// Notes that this one has the newest map.
    fn prefer(&self, _: &Place) {}

    /// True if an answer costs little. Then all are asked now and then, and each time that a node
    /// of the map cannot be used, since a command waits for that.
    fn is_quick(&self) -> bool;

    /// Subscribes to the reports of one of them. `None` if they send none.
    fn subscribe(&self, _: &Endpoint, _: &Limits<'_>) -> Option<Subscribed> {
        None
    }

    /// True if this report says that the map may have changed.
    fn is_change(&self, _: &str) -> bool {
        false
    }

    /// Writes to the log what is new.
    fn tell(&self, news: News<'_>);

    /// The name of the thread that asks.
    fn thread(&self) -> &'static str;
}

pub(super) type Subscribed = Result<Subscription, Failure>;

/// The time for one question, and who can end its connection.
pub(super) struct Limits<'a> {
    pub(super) time: Duration,
    /// Gets the connection's ender, and can refuse the connection.
    pub(super) connected: &'a dyn Fn(Ender) -> Result<(), Failure>,
}

pub(super) enum News<'a> {
    /// This many slots have a different node, according to this view.
    Moved(usize, &'a View),
    /// Nobody has sent a map, and this was not known before.
    Failing(&'a Failure),
    /// A map has come again.
    Back,
    /// Nobody reports changes.
    Unreported(&'a Failure),
    /// Changes are reported again.
    Reported,
    /// The thread that asks does not end as it should.
    Stuck(&'static str),
}

/// What a server says about where the keys are.
#[derive(Debug)]
pub(crate) struct View {
    /// Where the server is, as it was named to this process.
    pub(crate) sender: Place,
    /// Empty if it does not know.
    pub(crate) ranges: Vec<Range>,
    /// Servers that may know the next masters, if those of this map are gone.
    pub(crate) replicas: BTreeSet<Place>,
    /// How many replicas there are, if that was asked.
    pub(crate) copies: Option<u32>,
    pub(crate) is_well: bool,
    /// Each failover has a higher one. `None` if the server does not say.
    pub(crate) epoch: Option<u64>,
}

impl View {
    /// One master has all keys, as the server at `sender` says.
    pub(crate) fn of_one(master: Place, sender: Place) -> View {
        View {
            ranges: vec![(0..=SLOTS - 1, master)],
            ..View::empty(sender)
        }
    }

    /// The server at `sender` knows of no master.
    pub(crate) fn empty(sender: Place) -> View {
        View {
            sender,
            ranges: Vec::new(),
            replicas: BTreeSet::new(),
            copies: None,
            is_well: true,
            epoch: None,
        }
    }

    /// The master that has all keys, if there is one.
    pub(crate) fn only_master(&self) -> Option<&Place> {
        let (_, first) = self.ranges.first()?;
        let is_only = self.ranges.iter().all(|(_, it)| it == first);
        is_only.then_some(first)
    }
}
