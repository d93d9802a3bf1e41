//! A Redis server without threads, without I/O and without a clock of its own.
//!
//! The server is a state machine: bytes of clients and the time go in, bytes for clients come out.
//! The same input gives the same output. It behaves as Redis 7.0 does, as far as the crate can
//! notice, which `compared` compares with a real server, of this version or a newer one.

#![expect(
    clippy::unnecessary_wraps,
    clippy::unused_self,
    reason = "commands that never fail, or need no server, have the type of the others"
)]

mod clients;
mod cluster;
mod compared;
mod faults;
mod gate;
mod keys;
mod replication;
mod resp;
mod scripts;
mod sentinel;
mod state;
mod table;
mod tracking;

use std::mem;

pub(crate) use self::cluster::{Member, View, slot};
pub(crate) use self::replication::{Snapshot, Write};
pub(crate) use self::sentinel::Watched;
pub(crate) use self::state::{Entry, Value};

use self::clients::Connection;
use self::state::{DATABASES, Database, State};
use self::table::is;

/// The number of a connection at a server. After a restart, `CLIENT ID` begins with 1 again, but no
/// connection has the number of an earlier one here.
pub(crate) type Client = u64;

/// How many clients a server can have before it has to be restarted.
const RUN: u64 = 1 << 32;

/// What a client gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    Bytes(Vec<u8>),
    Close,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) version: &'static str,
    /// The password of the default user.
    pub(crate) password: Option<String>,
    /// The server's clock when the simulation begins: nanoseconds since 1970.
    pub(crate) epoch: i64,
    /// How long after its end a key is removed that nobody asks for, in nanoseconds. In Redis up to
    /// 200 ms.
    pub(crate) expiry_delay: u64,
    /// How long after its timeout a `WAIT` is answered, in nanoseconds. In Redis up to 100 ms.
    pub(crate) timeout_delay: u64,
    /// Whether writes are listed for replicas.
    pub(crate) replicates: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: "7.0.15",
            password: None,
            epoch: 1_700_000_000_000_000_000,
            expiry_delay: 50_000_000,
            timeout_delay: 50_000_000,
            replicates: false,
        }
    }
}

/// How many commands these bytes are. `None` if they are no whole commands.
pub(crate) fn commands(bytes: &[u8]) -> Option<usize> {
    let (mut at, mut count, mut args) = (0, 0, Vec::new());
    while at < bytes.len() {
        let rest = Some(&bytes[at..]).filter(|rest| rest[0] == b'*')?;
        at += resp::parse(rest, &mut args)?;
        count += 1;
    }
    Some(count)
}

pub(crate) struct Redis {
    state: State,
}

impl Redis {
    pub(crate) fn new(settings: Settings) -> Redis {
        Redis {
            state: State {
                settings,
                dbs: vec![Database::new(); DATABASES],
                soonest: i64::MAX,
                next_client: 1,
                ..State::default()
            },
        }
    }

    pub(crate) fn connect(&mut self, now: u64) -> Client {
        self.advance(now);
        let state = &mut self.state;
        let client = state.next_client;
        state.next_client += 1;
        let is_in = state.settings.password.is_none();
        state.clients.insert(
            client,
            Connection {
                is_in,
                ..Connection::default()
            },
        );
        client
    }

    /// The client has ended the connection, or it broke.
    pub(crate) fn close(&mut self, client: Client, now: u64) {
        self.advance(now);
        self.state.forget(client);
    }

    /// Bytes of a client have come. They may be a part of a command, or many commands.
    pub(crate) fn receive(&mut self, client: Client, bytes: &[u8], now: u64) {
        self.advance(now);
        if let Some(connection) = self.state.clients.get_mut(&client) {
            connection.input.extend_from_slice(bytes);
            self.execute(client);
        }
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: u64) {
        let state = &mut self.state;
        state.now = state.now.max(now);
        if state
            .faults
            .pause
            .is_some_and(|pause| pause.until <= state.now)
        {
            state.faults.pause = None;
            for client in mem::take(&mut state.postponed) {
                self.unblock(client);
            }
        }
        self.answer_waits();
        self.state.expire();
    }

    /// When [`advance`](Self::advance) may have something to do.
    pub(crate) fn next_due(&self) -> Option<u64> {
        let pause = self.state.faults.pause.map(|pause| pause.until);
        self.state
            .next_expiry()
            .into_iter()
            .chain(pause)
            .chain(self.state.next_timeout())
            .min()
    }

    /// What clients get, in the order in which it was written.
    pub(crate) fn take_output(&mut self) -> Vec<(Client, Output)> {
        mem::take(&mut self.state.output)
    }

    /// Goes on with the commands of a client that was blocked.
    fn unblock(&mut self, client: Client) {
        if let Some(connection) = self.state.clients.get_mut(&client) {
            connection.is_blocked = false;
            self.execute(client);
        }
    }

    /// Executes the commands that a client has sent, unless the client is blocked.
    fn execute(&mut self, client: Client) {
        let Some(connection) = self.state.clients.get_mut(&client) else {
            return;
        };
        if connection.is_blocked {
            return;
        }
        let input = mem::take(&mut connection.input);
        let (mut at, mut args) = (0, Vec::with_capacity(8));
        while self.state.is_ready(client) {
            let Some(length) = resp::parse(&input[at..], &mut args) else {
                break;
            };
            if self.state.serve(client, &args) {
                at += length;
            }
        }
        if let Some(connection) = self.state.clients.get_mut(&client) {
            connection.input = input;
            connection.input.drain(..at);
        }
    }
}

impl State {
    fn is_ready(&self, client: Client) -> bool {
        self.clients
            .get(&client)
            .is_some_and(|connection| !connection.is_blocked)
    }

    /// Executes one command and writes its reply. False if the command has to wait for the end of a
    /// pause.
    fn serve(&mut self, client: Client, args: &[&[u8]]) -> bool {
        self.current = Some(client);
        self.db = self.connection().db;
        let reply = self.execute(args);
        if let Some(reply) = &reply {
            self.reply(client, reply);
            // The flag is for one command, whatever becomes of it.
            self.connection().asking &= is(args[0], "asking");
        } else {
            self.connection().is_blocked = true;
            self.postponed.push(client);
        }
        self.tell_own(client);
        self.commit();
        self.connection().written = self.replication.offset;
        self.current = None;
        reply.is_some()
    }
}
