//! A master and its replicas.
//!
//! A master lists what each command has written. The scene brings that to the
//! replicas, as late as it likes, and brings back what they have acknowledged.

use std::collections::BTreeMap;
use std::mem;

use crate::simulation::redis::resp::{Reply, count, error, integer};
use crate::simulation::redis::state::{Database, Entry, State};
use crate::simulation::redis::table::Answer;
use crate::simulation::redis::{Client, Redis};

const DEMOTED: &str = "UNBLOCKED force unblock from blocking operation, instance state changed \
                       (master -> replica?)";
const ON_REPLICA: &str = "ERR WAIT cannot be used with replica instances. Please also note that since \
                          Redis 4.0 if a replica is configured to be writable (which is not the default) \
                          writes to replicas are just local and are not propagated.";

/// What a server knows of its writes and of its replicas.
#[derive(Default)]
pub(super) struct Replication {
    pub(super) is_replica: bool,
    /// The number of the last write.
    pub(super) offset: u64,
    /// The changes of the command that is executed.
    pub(super) changes: Vec<Change>,
    writes: Vec<Write>,
    /// The last write that each replica has acknowledged.
    acknowledged: BTreeMap<u64, u64>,
    /// The `WAIT`s that have no answer yet.
    pub(super) waits: BTreeMap<Client, Wait>,
}

impl Replication {
    /// The same after a restart.
    pub(super) fn restarted(self, keeps_data: bool) -> Replication {
        let Replication {
            is_replica, offset, ..
        } = self;
        Replication {
            is_replica,
            offset: if keeps_data { offset } else { 0 },
            ..Replication::default()
        }
    }
}

/// What one command, or one script, has changed.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) offset: u64,
    changes: Vec<Change>,
}

/// A key and what it holds since. Without a key: all keys are gone.
#[derive(Clone, Debug)]
pub(super) struct Change {
    pub(super) db: usize,
    pub(super) key: Option<Vec<u8>>,
    pub(super) entry: Option<Entry>,
}

/// All data of a master, for a replica that begins anew.
#[derive(Clone)]
pub(crate) struct Snapshot {
    offset: u64,
    dbs: Vec<Database>,
}

impl Redis {
    /// What was written since the last call.
    pub(crate) fn take_writes(&mut self) -> Vec<Write> {
        self.state.commit();
        mem::take(&mut self.state.replication.writes)
    }

    /// Writes of the master arrive at a replica, each in its turn.
    pub(crate) fn apply(&mut self, write: &Write, now: u64) {
        self.advance(now);
        let state = &mut self.state;
        for Change { db, key, entry } in &write.changes {
            state.db = *db;
            match (key, entry) {
                (None, _) => state.flush(),
                (Some(key), None) => state.remove(key),
                (Some(key), Some(entry)) => state.put(key, entry.clone()),
            }
        }
        state.replication.offset = write.offset;
    }

    /// The number of the last write that this server has.
    pub(crate) fn offset(&self) -> u64 {
        self.state.replication.offset
    }

    /// A replica, which the caller numbers, has all writes up to this one.
    pub(crate) fn acknowledge(&mut self, replica: u64, offset: u64, now: u64) {
        self.advance(now);
        let known = self
            .state
            .replication
            .acknowledged
            .entry(replica)
            .or_default();
        *known = offset.max(*known);
        self.answer_waits();
    }

    /// The connection to a replica has ended.
    pub(crate) fn forget_replica(&mut self, replica: u64) {
        self.state.replication.acknowledged.remove(&replica);
    }

    pub(crate) fn snapshot(&mut self) -> Snapshot {
        self.state.commit();
        Snapshot {
            offset: self.offset(),
            dbs: self.state.dbs.clone(),
        }
    }

    /// A replica throws its data away for those of a master.
    pub(crate) fn load(&mut self, snapshot: Snapshot, now: u64) {
        self.advance(now);
        self.state.flush();
        self.state.dbs = snapshot.dbs;
        self.state.soonest = i64::MIN;
        self.state.replication.offset = snapshot.offset;
    }

    /// The server becomes a replica, and keeps its data until it loads those of its master.
    pub(crate) fn demote(&mut self, now: u64) {
        self.advance(now);
        self.state.commit();
        let (offset, waits) = (self.offset(), mem::take(&mut self.state.replication.waits));
        self.state.replication = Replication {
            is_replica: true,
            offset,
            ..Replication::default()
        };
        for client in waits.into_keys() {
            self.state.reply(client, &error(DEMOTED));
            self.state.end(client);
        }
    }

    /// The server becomes a master, with what it has.
    pub(crate) fn promote(&mut self, now: u64) {
        self.advance(now);
        self.state.replication.is_replica = false;
    }

    pub(crate) fn is_replica(&self) -> bool {
        self.state.replication.is_replica
    }

    /// Answers those `WAIT`s that are over, and goes on with their clients.
    pub(super) fn answer_waits(&mut self) {
        let state = &self.state;
        let is_over =
            |wait: &Wait| wait.until <= state.now || wait.wanted <= state.count(wait.offset);
        let over = state
            .replication
            .waits
            .iter()
            .filter(|(_, wait)| is_over(wait));
        for (client, wait) in over
            .map(|(client, wait)| (*client, *wait))
            .collect::<Vec<_>>()
        {
            self.state.replication.waits.remove(&client);
            let reply = Reply::Int(self.state.count(wait.offset));
            self.state.reply(client, &reply);
            self.unblock(client);
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Wait {
    wanted: i64,
    offset: u64,
    until: u64,
}

impl State {
    /// Makes one write of what was changed.
    pub(super) fn commit(&mut self) {
        let replication = &mut self.replication;
        if replication.changes.is_empty() {
            return;
        }
        replication.offset += 1;
        let changes = mem::take(&mut replication.changes);
        replication.writes.push(Write {
            offset: replication.offset,
            changes,
        });
    }

    pub(super) fn wait(&mut self, args: &[&[u8]]) -> Answer {
        if self.replication.is_replica {
            return Err(error(ON_REPLICA));
        }
        let [wanted, timeout] = [1, 2].map(|at| integer(args[at]).expect("a number"));
        let timeout = timeout.cast_unsigned();
        let offset = self.connection().written;
        if wanted <= self.count(offset) {
            return Ok(Reply::Int(self.count(offset)));
        }
        let due = timeout
            .saturating_mul(1_000_000)
            .saturating_add(self.settings.timeout_delay);
        let until = if timeout == 0 {
            u64::MAX
        } else {
            self.now.saturating_add(due)
        };
        let client = self.current.expect("a command has a client");
        self.replication.waits.insert(
            client,
            Wait {
                wanted,
                offset,
                until,
            },
        );
        self.connection().is_blocked = true;
        Ok(Reply::Later)
    }

    /// How many replicas have this write.
    fn count(&self, offset: u64) -> i64 {
        count(
            self.replication
                .acknowledged
                .values()
                .filter(|it| offset <= **it)
                .count(),
        )
    }

    /// When the next `WAIT` has waited for long enough.
    pub(super) fn next_timeout(&self) -> Option<u64> {
        self.replication
            .waits
            .values()
            .map(|wait| wait.until)
            .filter(|until| *until != u64::MAX)
            .min()
    }
}
