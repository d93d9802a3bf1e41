//! A node of a cluster: its map of the slots, and the redirects that follow from it.

use std::collections::BTreeMap;

use crate::simulation::redis::Redis;
use crate::simulation::redis::resp::{OK, Reply, bulk, error};
use crate::simulation::redis::state::State;
use crate::simulation::redis::table::Answer;

const NO_CLUSTER: &str = "ERR This instance has cluster support disabled";

/// What a node knows of its cluster. Each has a view of its own, which may be out of date.
#[derive(Clone, Debug, Default)]
pub(crate) struct View {
    pub(crate) nodes: Vec<Member>,
    /// Which of the nodes this one is.
    pub(crate) me: usize,
    /// First and last slot of a range, and its master.
    pub(crate) slots: Vec<(u16, u16, usize)>,
    /// The slots that are on their way to another node.
    pub(crate) migrating: BTreeMap<u16, usize>,
    /// The slots that are on their way here.
    pub(crate) importing: BTreeMap<u16, usize>,
    pub(crate) is_down: bool,
    pub(crate) epoch: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    /// Forty hexadecimal digits.
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The master of a replica.
    pub(crate) master: Option<usize>,
}

impl Redis {
    pub(crate) fn set_view(&mut self, view: View) {
        self.state.cluster = Some(view);
    }

    pub(crate) fn view(&mut self) -> Option<&mut View> {
        self.state.cluster.as_mut()
    }
}

/// The slot of a key: that of its tag, if it has one.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let tag = key.iter().position(|byte| *byte == b'{').and_then(|start| {
        let rest = &key[start + 1..];
        let end = rest.iter().position(|byte| *byte == b'}')?;
        (end > 0).then(|| &rest[..end])
    });
    let crc = tag.unwrap_or(key).iter().fold(0_u16, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            (crc << 1) ^ if crc >> 15 == 1 { 0x1021 } else { 0 }
        })
    });
    crc % 16384
}

impl View {
    pub(crate) fn owner(&self, slot: u16) -> Option<usize> {
        let range = self
            .slots
            .iter()
            .find(|(first, last, _)| (*first..=*last).contains(&slot));
        range.map(|(.., owner)| *owner)
    }

    fn redirect(&self, code: &str, slot: u16, to: usize) -> Reply {
        let Member { host, port, .. } = &self.nodes[to];
        error(&format!("{code} {slot} {host}:{port}"))
    }

    /// Why this node does not execute a command for these keys.
    fn refuses(&self, keys: &[&[u8]], has: impl Fn(&[u8]) -> bool, asking: bool) -> Option<Reply> {
        let slot = self::slot(keys.first()?);
        let Some(owner) = self.owner(slot) else {
            return Some(error("CLUSTERDOWN Hash slot not served"));
        };
        if keys.iter().any(|key| self::slot(key) != slot) {
            return Some(error(
                "CROSSSLOT Keys in request don't hash to the same slot",
            ));
        }
        if self.is_down {
            return Some(error("CLUSTERDOWN The cluster is down"));
        }
        let missing = keys.iter().filter(|key| !has(key)).count();
        let try_again = || {
            Some(error(
                "TRYAGAIN Multiple keys request during rehashing of slot",
            ))
        };
        if owner == self.me
            && missing > 0
            && let Some(target) = self.migrating.get(&slot)
        {
            return if missing < keys.len() {
                try_again()
            } else {
                Some(self.redirect("ASK", slot, *target))
            };
        }
        if asking && self.importing.contains_key(&slot) {
            let several = keys.iter().any(|key| key != &keys[0]);
            return if several && missing > 0 {
                try_again()
            } else {
                None
            };
        }
        (owner != self.me).then(|| self.redirect("MOVED", slot, owner))
    }
}

impl State {
    /// Why another node should get the command.
    pub(super) fn redirection(&mut self, keys: &[&[u8]]) -> Option<Reply> {
        self.cluster.as_ref()?;
        let asking = self.connection().asking;
        let db = &self.dbs[0];
        self.cluster
            .as_ref()?
            .refuses(keys, |key| db.contains_key(key), asking)
    }

    fn view(&self) -> Result<&View, Reply> {
        self.cluster.as_ref().ok_or_else(|| error(NO_CLUSTER))
    }

    pub(super) fn asking(&mut self, _: &[&[u8]]) -> Answer {
        self.view()?;
        self.connection().asking = true;
        Ok(OK)
    }

    pub(super) fn cluster_slots(&mut self, _: &[&[u8]]) -> Answer {
        let view = self.view()?;
        let member = |it: &Member| {
            let port = Reply::Int(it.port.into());
            Reply::Array(vec![
                bulk(&it.host),
                port,
                bulk(&it.id),
                Reply::Array(Vec::new()),
            ])
        };
        let range = |&(first, last, owner): &(u16, u16, usize)| {
            let mut parts = vec![
                Reply::Int(first.into()),
                Reply::Int(last.into()),
                member(&view.nodes[owner]),
            ];
            parts.extend(
                view.nodes
                    .iter()
                    .filter(|it| it.master == Some(owner))
                    .map(member),
            );
            Reply::Array(parts)
        };
        Ok(Reply::Array(view.slots.iter().map(range).collect()))
    }

    pub(super) fn cluster_info(&mut self, _: &[&[u8]]) -> Answer {
        let view = self.view()?;
        let state = if view.is_down { "fail" } else { "ok" };
        let (epoch, nodes) = (view.epoch, view.nodes.len());
        Ok(bulk(format!(
            "cluster_state:{state}\r\ncluster_known_nodes:{nodes}\r\ncluster_current_epoch:{epoch}\r\n"
        )))
    }
}
