//! A sentinel, which says where the master is.

use crate::simulation::redis::Redis;
use crate::simulation::redis::resp::{Reply, bulk, error};
use crate::simulation::redis::state::State;
use crate::simulation::redis::table::Answer;

/// What a sentinel knows. Each has a knowledge of its own, which may be out of date.
#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub(crate) name: String,
    pub(crate) master: (String, u16),
    pub(crate) epoch: u64,
    /// How many replicas are known, also those that are down.
    pub(crate) replicas: u32,
    /// The other sentinels.
    pub(crate) others: Vec<(String, u16)>,
}

impl Redis {
    /// Makes this a sentinel, or tells it something new.
    pub(crate) fn watch(&mut self, watched: Watched) {
        self.state.sentinel = Some(watched);
    }

    /// Another server is the master now. Subscribers are told.
    pub(crate) fn switch_master(&mut self, to: (String, u16), epoch: u64, now: u64) {
        let Some(watched) = &mut self.state.sentinel else {
            return;
        };
        let payload = format!(
            "{} {} {} {} {}",
            watched.name, watched.master.0, watched.master.1, to.0, to.1
        );
        (watched.master, watched.epoch) = (to, epoch);
        self.publish("+switch-master", &payload, now);
    }

    /// Sends a message to the subscribers of a channel.
    pub(crate) fn publish(&mut self, channel: &str, payload: &str, now: u64) {
        self.advance(now);
        self.state.publish(channel.as_bytes(), payload.as_bytes());
    }
}

/// A list of names and values.
fn fields(address: &(String, u16), more: &[(&str, String)]) -> Reply {
    let address = [("ip", address.0.clone()), ("port", address.1.to_string())];
    let fields = address.iter().chain(more);
    Reply::Array(
        fields
            .flat_map(|(name, value)| [bulk(name), bulk(value)])
            .collect(),
    )
}

impl State {
    fn watched(&self, name: &[u8]) -> Result<&Watched, Reply> {
        let watched = self
            .sentinel
            .as_ref()
            .filter(|it| it.name.as_bytes() == name);
        watched.ok_or_else(|| error("ERR No such master with that name"))
    }

    pub(super) fn sentinel_address(&mut self, args: &[&[u8]]) -> Answer {
        let Ok(Watched {
            master: (host, port),
            ..
        }) = self.watched(args[2])
        else {
            return Ok(Reply::NilArray);
        };
        Ok(Reply::Array(vec![bulk(host), bulk(port.to_string())]))
    }

    pub(super) fn sentinel_others(&mut self, args: &[&[u8]]) -> Answer {
        let others = self.watched(args[2])?.others.iter();
        Ok(Reply::Array(
            others.map(|other| fields(other, &[])).collect(),
        ))
    }

    pub(super) fn sentinel_master(&mut self, args: &[&[u8]]) -> Answer {
        let Watched {
            name,
            master,
            epoch,
            replicas,
            ..
        } = self.watched(args[2])?;
        let more = [
            ("name", name.clone()),
            ("config-epoch", epoch.to_string()),
            ("num-slaves", replicas.to_string()),
        ];
        Ok(fields(master, &more))
    }
}
