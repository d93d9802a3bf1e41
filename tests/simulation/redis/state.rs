//! What a server has in its memory: keys, clients, and what hangs on them.

use std::collections::{BTreeMap, BTreeSet};

use crate::simulation::redis::clients::Connection;
use crate::simulation::redis::cluster::View;
use crate::simulation::redis::replication::{Change, Replication};
use crate::simulation::redis::resp::{Reply, write_bulk, write_message};
use crate::simulation::redis::scripts::Running;
use crate::simulation::redis::sentinel::Watched;
use crate::simulation::redis::{Client, Output, Settings};

/// How many databases there are.
pub(super) const DATABASES: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    String(Vec<u8>),
    /// A value that is no string. Only its length is kept.
    List(usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) value: Value,
    /// In milliseconds of the server's clock. The key is there until that millisecond is over.
    pub(crate) expires: Option<i64>,
}

pub(super) type Database = BTreeMap<Vec<u8>, Entry>;

#[derive(Default)]
pub(super) struct State {
    pub(super) settings: Settings,
    /// The simulation's time, in nanoseconds.
    pub(super) now: u64,
    /// By how much the server's clock was set forward, in nanoseconds.
    pub(super) clock_step: i64,
    /// So many as there are databases.
    pub(super) dbs: Vec<Database>,
    /// No key expires before this.
    pub(super) soonest: i64,
    pub(super) clients: BTreeMap<Client, Connection>,
    /// The number of the next client.
    pub(super) next_client: Client,
    /// The client whose command is executed, and its database.
    pub(super) current: Option<Client>,
    pub(super) db: usize,
    /// Which clients have read a key since it changed last.
    pub(super) readers: BTreeMap<Vec<u8>, BTreeSet<Client>>,
    /// Invalidations for the client whose command is executed: they come behind the reply. `None`
    /// stands for all keys.
    pub(super) own_invalidations: Vec<Option<Vec<u8>>>,
    /// The texts of the known scripts, by their hash.
    pub(super) scripts: BTreeMap<Vec<u8>, Box<[u8]>>,
    /// The script that runs.
    pub(super) script: Option<Running>,
    pub(super) faults: Faults,
    pub(super) replication: Replication,
    pub(super) cluster: Option<View>,
    pub(super) sentinel: Option<Watched>,
    /// Clients whose command waits for the end of a pause, in the order in which they came.
    pub(super) postponed: Vec<Client>,
    pub(super) output: Vec<(Client, Output)>,
}

/// What keeps a server from doing its work.
#[derive(Default)]
pub(crate) struct Faults {
    /// The memory is full.
    pub(crate) out_of_memory: bool,
    /// Fewer replicas are connected than `min-replicas-to-write` says.
    pub(crate) lacks_replicas: bool,
    /// A replica has lost its master and says so, instead of serving old data.
    pub(crate) master_is_down: bool,
    /// The data set is loaded until then.
    pub(crate) loading_until: u64,
    /// A script runs until then, and has run for so long that others are told.
    pub(crate) stuck_until: u64,
    pub(super) pause: Option<Pause>,
    /// These get no invalidations, as behind a proxy that drops them.
    pub(crate) unheard: Vec<Client>,
}

/// `CLIENT PAUSE`.
#[derive(Clone, Copy)]
pub(super) struct Pause {
    pub(super) until: u64,
    /// Reading commands go on.
    pub(super) only_writes: bool,
}

/// Time.
impl State {
    fn unix_nanos(&self) -> i64 {
        self.settings.epoch + self.clock_step + self.now.cast_signed()
    }

    pub(super) fn unix_micros(&self) -> i64 {
        self.unix_nanos() / 1000
    }

    pub(super) fn unix_millis(&self) -> i64 {
        self.unix_nanos() / 1_000_000
    }

    /// When a key is gone that expires in this millisecond, in the simulation's time.
    pub(super) fn gone_at(&self, expires: i64) -> u64 {
        let nanos = expires.saturating_add(1).saturating_mul(1_000_000);
        u64::try_from(nanos.saturating_sub(self.settings.epoch + self.clock_step))
            .unwrap_or_default()
    }

    /// When the next key is removed that nobody asks for, or a little earlier.
    pub(super) fn next_expiry(&self) -> Option<u64> {
        let is_on =
            !self.replication.is_replica && self.soonest != i64::MAX && self.faults.pause.is_none();
        let due = is_on.then(|| {
            self.gone_at(self.soonest)
                .saturating_add(self.settings.expiry_delay)
        });
        due.map(|due| {
            due.max(self.faults.stuck_until)
                .max(self.faults.loading_until)
        })
    }

    /// Removes the keys that expired long enough ago.
    pub(super) fn expire(&mut self) {
        if self.next_expiry().is_none_or(|due| self.now < due) {
            return;
        }
        let latest =
            self.unix_millis() - i64::try_from(self.settings.expiry_delay / 1_000_000).unwrap_or(0);
        let mut soonest = i64::MAX;
        for db in 0..DATABASES {
            let mut gone = Vec::new();
            for (key, entry) in &self.dbs[db] {
                match entry.expires {
                    Some(expires) if expires < latest => gone.push(key.clone()),
                    Some(expires) => soonest = soonest.min(expires),
                    None => {}
                }
            }
            self.db = db;
            for key in gone {
                self.remove(&key);
            }
        }
        self.soonest = soonest;
    }
}

/// Keys.
impl State {
    /// The entry of a key that has not expired. On a master, one that has is removed.
    pub(super) fn live(&mut self, key: &[u8]) -> Option<&mut Entry> {
        let now = self.unix_millis();
        if self.dbs[self.db]
            .get(key)?
            .expires
            .is_some_and(|expires| expires < now)
        {
            if !self.replication.is_replica && self.faults.pause.is_none() {
                self.remove(key);
            }
            return None;
        }
        self.dbs[self.db].get_mut(key)
    }

    pub(super) fn put(&mut self, key: &[u8], entry: Entry) {
        self.soonest = self.soonest.min(entry.expires.unwrap_or(i64::MAX));
        match self.dbs[self.db].get_mut(key) {
            Some(old) => *old = entry,
            None => _ = self.dbs[self.db].insert(key.to_vec(), entry),
        }
        self.modified(key);
    }

    pub(super) fn expire_at(&mut self, key: &[u8], expires: i64) {
        self.soonest = self.soonest.min(expires);
        if let Some(entry) = self.dbs[self.db].get_mut(key) {
            entry.expires = Some(expires);
            self.modified(key);
        }
    }

    pub(super) fn remove(&mut self, key: &[u8]) {
        if self.dbs[self.db].remove(key).is_some() {
            self.modified(key);
        }
    }

    pub(super) fn flush(&mut self) {
        self.dbs.iter_mut().for_each(Database::clear);
        self.soonest = i64::MAX;
        self.log(None, None);
        self.invalidate_all();
    }

    /// Called after each change of a key.
    fn modified(&mut self, key: &[u8]) {
        if self.settings.replicates {
            let entry = self.dbs[self.db].get(key).cloned();
            self.log(Some(key.to_vec()), entry);
        }
        self.invalidate(key);
    }

    /// Notes a change for the replicas.
    fn log(&mut self, key: Option<Vec<u8>>, entry: Option<Entry>) {
        if self.settings.replicates && !self.replication.is_replica {
            self.replication.changes.push(Change {
                db: self.db,
                key,
                entry,
            });
        }
    }
}

/// Output.
impl State {
    /// Appends to what a client gets.
    pub(super) fn write(&mut self, client: Client, write: impl FnOnce(&mut Vec<u8>)) {
        match self.output.last_mut() {
            Some((last, Output::Bytes(bytes))) if *last == client => write(bytes),
            _ => {
                let mut bytes = Vec::with_capacity(256);
                write(&mut bytes);
                self.output.push((client, Output::Bytes(bytes)));
            }
        }
    }

    pub(super) fn reply(&mut self, client: Client, reply: &Reply) {
        if *reply != Reply::Later {
            self.write(client, |out| reply.write(out));
        }
    }

    /// Ends a connection, behind what was written to it.
    pub(super) fn end(&mut self, client: Client) {
        if self.forget(client) {
            self.output.push((client, Output::Close));
        }
    }

    /// Removes a connection. False if it had ended before.
    pub(super) fn forget(&mut self, client: Client) -> bool {
        self.replication.waits.remove(&client);
        self.clients.remove(&client).is_some()
    }

    /// Ends a connection at once. What was not sent yet is lost.
    pub(super) fn kill(&mut self, client: Client) {
        self.output.retain(|(other, _)| *other != client);
        self.end(client);
    }

    /// Sends a message to the subscribers of a channel.
    pub(super) fn publish(&mut self, channel: &[u8], payload: &[u8]) {
        let mut message = Vec::new();
        write_bulk(&mut message, payload);
        let clients = self
            .clients
            .iter()
            .filter(|(_, it)| it.channels.iter().any(|it| it == channel));
        let clients: Vec<_> = clients.map(|(client, _)| *client).collect();
        for client in clients {
            self.write(client, |out| write_message(out, channel, &message));
        }
    }
}
