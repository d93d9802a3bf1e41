//! What a fault does to a server, and what a judge sees of it.

use std::mem;

use crate::simulation::redis::state::{Database, Entry, Faults, State};
use crate::simulation::redis::{Client, RUN, Redis, Settings};

/// What a judge sees: the keys of database 0, the clock, and who listens.
impl Redis {
    /// The entry of a key that has not expired.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Entry> {
        let now = self.state.unix_millis();
        self.state.dbs[0]
            .get(key)
            .filter(|entry| entry.expires.is_none_or(|expires| now <= expires))
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.state.dbs[0]
            .keys()
            .map(Vec::as_slice)
            .filter(|key| self.get(key).is_some())
    }

    /// When the key of this entry runs out, in the simulation's time.
    pub(crate) fn runs_out(&self, entry: &Entry) -> Option<u64> {
        Some(self.state.gone_at(entry.expires?))
    }

    /// The server's clock, in milliseconds since 1970.
    pub(crate) fn clock(&self) -> i64 {
        self.state.unix_millis()
    }

    /// The clients that have subscribed to a channel.
    pub(crate) fn listeners(&self) -> Vec<Client> {
        let clients = self.state.clients.iter();
        clients
            .filter(|(_, connection)| !connection.channels.is_empty())
            .map(|(client, _)| *client)
            .collect()
    }
}

/// What somebody else does to the data.
impl Redis {
    pub(crate) fn set(&mut self, key: &[u8], entry: Entry, now: u64) {
        self.at(now).put(key, entry);
    }

    /// A deletion, or an eviction.
    pub(crate) fn delete(&mut self, key: &[u8], now: u64) {
        self.at(now).remove(key);
    }

    pub(crate) fn flush(&mut self, now: u64) {
        self.at(now).flush();
    }

    pub(crate) fn script_flush(&mut self) {
        self.state.scripts.clear();
    }

    fn at(&mut self, now: u64) -> &mut State {
        self.advance(now);
        self.state.db = 0;
        &mut self.state
    }
}

/// Faults.
impl Redis {
    /// The process ends and begins anew: all connections end, the scripts are forgotten and, unless
    /// they were saved, the keys.
    pub(crate) fn restart(&mut self, keeps_data: bool, now: u64) {
        self.kill_clients(now);
        let old = mem::take(&mut self.state);
        let mut dbs = old.dbs;
        if !keeps_data {
            dbs.iter_mut().for_each(Database::clear);
        }
        let replication = old.replication.restarted(keeps_data);
        let next_client = (old.next_client / RUN + 1) * RUN + 1;
        let State {
            settings,
            now,
            clock_step,
            output,
            cluster,
            sentinel,
            ..
        } = old;
        // The first look at the keys finds out when the next one expires.
        let soonest = if keeps_data { i64::MIN } else { i64::MAX };
        let kept = State {
            // (A password that was set at run time is in no file.)
            settings: Settings {
                password: None,
                ..settings
            },
            now,
            clock_step,
            cluster,
            sentinel,
            output,
            ..State::default()
        };
        self.state = State {
            dbs,
            soonest,
            next_client,
            replication,
            ..kept
        };
    }

    /// Ends all connections.
    pub(crate) fn kill_clients(&mut self, now: u64) {
        self.kill_all_but(&[], now);
    }

    pub(crate) fn kill_all_but(&mut self, spared: &[Client], now: u64) {
        self.advance(now);
        let clients: Vec<_> = self.state.clients.keys().copied().collect();
        for client in clients.into_iter().filter(|it| !spared.contains(it)) {
            self.state.kill(client);
        }
    }

    /// Sets the server's clock forward, or back.
    pub(crate) fn step_clock(&mut self, nanos: i64) {
        self.state.clock_step += nanos;
    }

    /// What keeps the server from doing its work, to be changed.
    pub(crate) fn faults(&mut self) -> &mut Faults {
        &mut self.state.faults
    }

    /// How the server is set up, to be changed.
    pub(crate) fn settings(&mut self) -> &mut Settings {
        &mut self.state.settings
    }

    /// `CLIENT PAUSE`.
    pub(crate) fn pause_until(&mut self, until: u64, only_writes: bool) {
        self.state.pause(until, only_writes);
    }
}
