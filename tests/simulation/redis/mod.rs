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

/// A command of a client that shows which node the client takes for that of a key.
#[derive(Clone, Debug)]
pub(crate) struct Heard {
    pub(crate) client: Client,
    pub(crate) command: &'static str,
    /// The first key, if the command has one.
    pub(crate) key: Option<Vec<u8>>,
    /// It came behind `ASKING`.
    pub(crate) asking: bool,
    /// The code of the error that answers it, or an empty text.
    pub(crate) code: String,
    /// The node to which `ASK` leads.
    pub(crate) to: Option<usize>,
}

/// How a server is set up.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) version: &'static str,
    /// The password of the default user.
    pub(crate) password: Option<String>,
    pub(crate) users: Vec<User>,
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

/// A user besides the default one.
#[derive(Clone, Debug, Default)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
    /// The commands that this user may not call, such as `pttl` or `client|id`.
    pub(crate) forbidden: Vec<String>,
    /// The keys of this user begin with this.
    pub(crate) prefix: String,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            version: "7.0.15",
            password: None,
            users: Vec::new(),
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

    /// The commands since the last call that have keys, and those that ask where keys are.
    pub(crate) fn take_heard(&mut self) -> Vec<Heard> {
        mem::take(&mut self.state.heard)
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
        let asking = self.connection().asking;
        let reply = self.execute(args);
        self.note(client, args, asking, reply.as_ref());
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

/// What no real server is asked: faults, replicas that lag, sentinels.
#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn command(words: &str) -> Vec<u8> {
        let words: Vec<&str> = words.split(' ').collect();
        let parts = words
            .iter()
            .map(|word| format!("${}\r\n{word}\r\n", word.len()));
        (format!("*{}\r\n", words.len()) + &parts.collect::<String>()).into_bytes()
    }

    /// What the server says to all its clients after this command.
    fn said(redis: &mut Redis, client: Client, words: &str, now: u64) -> String {
        redis.receive(client, &command(words), now);
        heard(redis)
    }

    fn heard(redis: &mut Redis) -> String {
        let output = redis.take_output().into_iter();
        let text = output.map(|(_, output)| match output {
            Output::Bytes(bytes) => String::from_utf8(bytes)
                .expect("UTF-8")
                .replace("\r\n", " "),
            Output::Close => "closed ".to_owned(),
        });
        text.collect()
    }

    fn string(text: &str) -> Entry {
        Entry {
            value: Value::String(text.as_bytes().to_vec()),
            expires: None,
        }
    }

    #[test]
    fn after_a_restart_numbers_begin_again_and_scripts_are_forgotten() {
        for keeps_data in [false, true] {
            let mut redis = Redis::new(Settings::default());
            let old = redis.connect(0);
            assert_eq!(said(&mut redis, old, "EVAL return{} 0", 0), "*0 ");
            let known = format!("EVALSHA {} 0", ::redis::Script::new("return{}").get_hash());
            assert_eq!(said(&mut redis, old, &known, 0), "*0 ");
            assert_eq!(said(&mut redis, old, "SET a one PX 1000", 0), "+OK ");
            redis.restart(keeps_data, 1);
            assert_eq!(heard(&mut redis), "closed ");
            let new = redis.connect(1);
            assert!(new > old);
            assert_eq!(said(&mut redis, new, "CLIENT ID", 1), ":1 ");
            assert!(said(&mut redis, new, &known, 1).starts_with("-NOSCRIPT"));
            assert_eq!(
                said(&mut redis, new, "GET a", 1),
                if keeps_data { "$3 one " } else { "$-1 " }
            );
            assert_eq!(
                said(&mut redis, old, "GET a", 1),
                "",
                "nobody hears the old connection"
            );
            redis.advance(2 * SECOND);
            assert_eq!((redis.keys().count(), redis.next_due()), (0, None));
        }
    }

    #[test]
    fn a_key_is_removed_when_it_is_due_also_after_a_step_of_the_clock() {
        let mut redis = Redis::new(Settings {
            expiry_delay: SECOND,
            ..Settings::default()
        });
        let [listener, reader] = [0; 2].map(|now| redis.connect(now));
        said(&mut redis, listener, "SUBSCRIBE __redis__:invalidate", 0);
        for words in [
            "SET a one PX 1000",
            "CLIENT TRACKING ON REDIRECT 1",
            "GET a",
        ] {
            said(&mut redis, reader, words, 0);
        }
        let due = redis.next_due().expect("a key has an expiry");
        assert_eq!(due, 2 * SECOND + 1_000_000);
        redis.advance(due - 1);
        assert_eq!((heard(&mut redis), redis.get(b"a")), (String::new(), None));
        redis.step_clock(-500_000_000);
        assert!(redis.get(b"a").is_none() && redis.next_due() == Some(due + SECOND / 2));
        redis.advance(due + SECOND / 2);
        assert_eq!(
            heard(&mut redis),
            "*3 $7 message $20 __redis__:invalidate *1 $1 a "
        );
        redis.set(b"b", string("two"), 3 * SECOND);
        redis.delete(b"b", 3 * SECOND);
        assert!(
            heard(&mut redis).is_empty() && redis.get(b"b").is_none(),
            "nobody has read it"
        );
        redis.set(b"b", string("two"), 3 * SECOND);
        assert_eq!(redis.clock(), 1_700_000_002_500);
        said(&mut redis, reader, "GET b", 3 * SECOND);
        redis.flush(3 * SECOND);
        assert_eq!(
            heard(&mut redis),
            "*3 $7 message $20 __redis__:invalidate $-1 "
        );
    }

    #[test]
    fn a_promoted_replica_lacks_what_has_not_arrived() {
        let settings = || Settings {
            replicates: true,
            timeout_delay: 0,
            ..Settings::default()
        };
        let (mut master, mut replica) = (Redis::new(settings()), Redis::new(settings()));
        replica.demote(0);
        let nothing: Snapshot = master.snapshot();
        replica.load(nothing, 0);
        let client = master.connect(0);
        for words in ["SET a one", "SET b two"] {
            said(&mut master, client, words, 0);
        }
        let writes: Vec<Write> = master.take_writes();
        replica.apply(&writes[0], 1);
        master.acknowledge(7, replica.offset(), 1);
        assert_eq!(said(&mut master, client, "WAIT 1 1000", 1), "");
        assert_eq!(master.next_due(), Some(SECOND + 1));
        master.advance(SECOND + 1);
        assert_eq!(heard(&mut master), ":0 ");
        assert_eq!(said(&mut master, client, "WAIT 0 1000", SECOND + 1), ":0 ");
        master.acknowledge(7, writes[1].offset, SECOND + 1);
        assert_eq!(said(&mut master, client, "WAIT 1 1000", SECOND + 1), ":1 ");
        master.forget_replica(7);
        assert_eq!(said(&mut master, client, "WAIT 0 1000", SECOND + 1), ":0 ");
        master.restart(true, 2 * SECOND);
        replica.promote(2 * SECOND);
        assert_eq!(
            (replica.get(b"a"), replica.get(b"b")),
            (Some(&string("one")), None)
        );
        master.demote(2 * SECOND);
        master.load(replica.snapshot(), 2 * SECOND);
        assert!(master.get(b"b").is_none() && master.is_replica());
    }

    #[test]
    fn a_sentinel_names_the_master_and_reports_another_one() {
        let mut sentinel = Redis::new(Settings::default());
        let at = |port| ("10.0.0.1".to_owned(), port);
        let (name, others) = ("main".to_owned(), vec![at(3)]);
        sentinel.watch(Watched {
            name,
            master: at(1),
            epoch: 1,
            replicas: 1,
            others,
        });
        let client = sentinel.connect(0);
        let ask = "SENTINEL get-master-addr-by-name main";
        assert_eq!(said(&mut sentinel, client, ask, 0), "*2 $8 10.0.0.1 $1 1 ");
        assert_eq!(
            said(
                &mut sentinel,
                client,
                "SENTINEL get-master-addr-by-name other",
                0
            ),
            "*-1 "
        );
        assert!(said(&mut sentinel, client, "GET a", 0).starts_with("-ERR unknown command 'GET'"));
        said(&mut sentinel, client, "SUBSCRIBE +switch-master", 0);
        sentinel.switch_master(at(2), 2, 0);
        let message = "*3 $7 message $14 +switch-master $26 main 10.0.0.1 1 10.0.0.1 2 ";
        assert_eq!(heard(&mut sentinel), message);
    }
}
