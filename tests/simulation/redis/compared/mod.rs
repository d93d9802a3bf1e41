//! The simulated server answers what a real one answers.
//!
//! Random sequences of commands go to both, over several connections. All that comes back has to
//! agree, byte for byte, except for times, which may differ by as much as a step took.

mod node;
mod replies;
mod sequences;
mod times;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use relatch_rig::{Server, eventually, server_version};
use tempfile::TempDir;

use self::replies::{agree, command, frame_length, is_known, show};
use super::{Client, Entry, Member, Output, Redis, Settings, User, Value, View, slot};

/// How many sequences are compared.
const SEQUENCES: u64 = 250;

/// A step that took longer says nothing, and ends its sequence: keys may have expired meanwhile.
const LONGEST_STEP: Duration = Duration::from_millis(400);

const SCRIPTS: [&str; 11] = [
    include_str!("../../../../src/client/commands/lua/adopt.lua"),
    include_str!("../../../../src/client/commands/lua/claim.lua"),
    include_str!("../../../../src/client/commands/lua/claim_fenced.lua"),
    include_str!("../../../../src/client/commands/lua/claim_slot.lua"),
    include_str!("../../../../src/client/commands/lua/force.lua"),
    include_str!("../../../../src/client/commands/lua/keep.lua"),
    include_str!("../../../../src/client/commands/lua/look.lua"),
    include_str!("../../../../src/client/commands/lua/no_reader.lua"),
    include_str!("../../../../src/client/commands/lua/release.lua"),
    include_str!("../../../../src/client/commands/lua/renew.lua"),
    "return {redis.call('PTTL', KEYS[1]), 1.9, true, false, 'x', redis.pcall('GET', KEYS[1]), nil, 1}",
];

const ODD_WORDS: [&str; 12] = [
    "",
    "x",
    "-1",
    "0",
    "01",
    "+1",
    "9223372036854775807",
    "99999999999999999999",
    "1.5",
    "NX",
    "px",
    "ON",
];

/// A connection to the real server, and the one to the simulated server that does the same.
struct Both {
    real: TcpStream,
    received: Vec<u8>,
    simulated: Client,
    /// What the simulated server has sent, and the real one has to send.
    expected: Vec<u8>,
    is_closed: bool,
}

struct Comparison {
    server: Server,
    redis: Redis,
    /// A replica of the simulated server, which gets all writes at once.
    replica: Redis,
    /// Whether the real server has a replica, too.
    has_replica: bool,
    keys: &'static [&'static str],
    connections: Vec<Both>,
    random: StdRng,
    /// When the step began.
    began: Instant,
    /// How much a time of an earlier step may differ, in microseconds.
    tolerance: i64,
    /// What was done, for the message of a failure.
    told: Vec<String>,
    last_lease: u64,
}

fn micros(span: Duration) -> i64 {
    span.as_micros()
        .try_into()
        .expect("the real server and this test work")
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the real server and this test work")
        .as_nanos()
        .try_into()
        .expect("the real server and this test work")
}

impl Comparison {
    fn new(server: Server, keys: &'static [&'static str]) -> Comparison {
        assert!(
            server_version() >= (7, 0),
            "the simulated server is a Redis 7.0, which cannot be compared with {:?}: \
             RELATCH_TEST_SERVER=/path/to/redis-server names a newer one",
            server_version()
        );
        let (name, password) = ("worker".to_owned(), "secret".to_owned());
        let user = User {
            name,
            password,
            forbidden: vec!["pttl".to_owned()],
            prefix: "a".to_owned(),
        };
        let (users, timeout_delay) = (vec![user], 0);
        let settings = Settings {
            users,
            epoch: 0,
            replicates: true,
            timeout_delay,
            ..Settings::default()
        };
        let (redis, mut replica) = (Redis::new(settings.clone()), Redis::new(settings));
        replica.demote(now());
        let random = StdRng::seed_from_u64(0);
        let (connections, told) = Default::default();
        let began = Instant::now();
        Comparison {
            server,
            redis,
            replica,
            has_replica: false,
            keys,
            connections,
            random,
            began,
            tolerance: 0,
            told,
            last_lease: 0,
        }
    }

    /// One connection more to each server, with the same number.
    fn connect(&mut self) -> Both {
        let real =
            TcpStream::connect(self.server.address()).expect("the real server and this test work");
        real.set_nodelay(true)
            .expect("the real server and this test work");
        real.set_read_timeout(Some(Duration::from_secs(5)))
            .expect("the real server and this test work");
        let mut both = Both {
            real,
            received: Vec::new(),
            simulated: 0,
            expected: Vec::new(),
            is_closed: false,
        };
        if self.redis.state.settings.password.is_none() {
            both.real
                .write_all(&command(&[b"CLIENT", b"ID"]))
                .expect("the real server and this test work");
            let id = both.frame().expect("the real server and this test work");
            let id = std::str::from_utf8(&id[1..id.len() - 2])
                .expect("the real server and this test work");
            self.redis.state.next_client = id.parse().expect("the real server and this test work");
        }
        both.simulated = self.redis.connect(now());
        both
    }

    /// New connections in place of all others.
    fn connect_anew(&mut self) {
        for both in std::mem::take(&mut self.connections) {
            self.redis.close(both.simulated, now());
        }
        self.connections = (0..4).map(|_| self.connect()).collect();
    }

    /// Sends bytes to both servers, and compares what comes back on any connection.
    fn step(&mut self, at: usize, bytes: &[u8]) {
        self.began = Instant::now();
        let mut rest = bytes;
        while !rest.is_empty() {
            let chunk = self.random.random_range(1..=rest.len());
            let (chunk, left) = rest.split_at(if rest.len() < 200 { rest.len() } else { chunk });
            self.redis
                .receive(self.connections[at].simulated, chunk, now());
            rest = left;
        }
        self.replicate();
        self.connections[at]
            .real
            .write_all(bytes)
            .expect("the real server and this test work");
        self.compare();
        self.tolerance = self.tolerance.max(micros(self.began.elapsed()) + 2000);
    }

    /// The replica has all writes, and says so.
    fn replicate(&mut self) {
        for write in self.redis.take_writes() {
            self.replica.apply(&write, now());
            if self.has_replica {
                self.redis.acknowledge(1, write.offset, now());
            }
        }
    }

    /// Reads as much from the real server as the simulated one has sent.
    fn compare(&mut self) {
        for (client, output) in self.redis.take_output() {
            let both = self
                .connections
                .iter_mut()
                .find(|it| it.simulated == client)
                .expect("the real server and this test work");
            match output {
                Output::Bytes(bytes) => both.expected.extend(bytes),
                Output::Close => both.is_closed = true,
            }
        }
        for at in 0..self.connections.len() {
            let both = &mut self.connections[at];
            let mut expected = std::mem::take(&mut both.expected);
            while let Some(length) = frame_length(&expected) {
                let left = expected.split_off(length);
                let answered = both.frame();
                let tolerance = self.tolerance + micros(self.began.elapsed());
                let agree = answered
                    .as_ref()
                    .is_some_and(|it| agree(it, &expected, tolerance) || is_known(it, &expected));
                assert!(
                    agree || self.began.elapsed() > LONGEST_STEP,
                    "connection {at}: the real server said {}, the simulated one {}\n{}",
                    answered.as_deref().map_or("nothing".to_owned(), show),
                    show(&expected),
                    self.told.join("\n"),
                );
                expected = left;
            }
            if both.is_closed {
                assert_eq!(both.frame(), None, "{}", self.told.join("\n"));
                self.connections[at] = self.connect();
            }
        }
    }

    /// Whatever the real server has sent besides comes before the reply to this.
    fn settle(&mut self) {
        for at in 0..self.connections.len() {
            self.step(at, &command(&[b"PING"]));
        }
        self.replicate();
        assert_eq!(
            self.redis.state.dbs, self.replica.state.dbs,
            "the replica has the same keys"
        );
    }
}

impl Both {
    /// The next frame of the real server. `None` if the connection has ended.
    fn frame(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(length) = frame_length(&self.received) {
                let rest = self.received.split_off(length);
                return Some(std::mem::replace(&mut self.received, rest));
            }
            let mut buffer = [0; 4096];
            match self.real.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.received.extend_from_slice(&buffer[..read]),
            }
        }
    }
}

#[test]
fn a_real_server_answers_the_same() {
    let server = Server::with(&["--cluster-enabled", "no"]);
    let mut comparison =
        Comparison::new(server, &["a", "a", "b", "a", "fence", "list", "{a}:fence"]);
    comparison.direct(&[
        "ACL", "SETUSER", "worker", "on", ">secret", "~a*", "&*", "+@all", "-pttl",
    ]);
    for seed in 0..SEQUENCES {
        if seed % 8 == 0 {
            comparison.connect_anew();
        }
        comparison.sequence(seed);
    }
    comparison.expiry();
    comparison.pauses();
    comparison.a_long_script();
    comparison.loading();
    comparison.waits();
}

#[test]
fn a_real_node_of_a_cluster_answers_the_same() {
    let (server, view, _dir) = node::start();
    let keys = &["b", "c", "{b}:2", "a", "{b}:fence", "{a}:fence", "b"];
    let mut comparison = Comparison::new(server, keys);
    comparison.redis.set_view(view);
    comparison.direct(&[
        "ACL", "SETUSER", "worker", "on", ">secret", "~a*", "&*", "+@all", "-pttl",
    ]);
    for seed in 0..SEQUENCES / 4 {
        if seed % 8 == 0 {
            comparison.connect_anew();
        }
        comparison.cluster(seed);
        // A slot of nobody.
        if seed == SEQUENCES / 8 {
            comparison.direct(&["CLUSTER", "DELSLOTS", &slot(b"c").to_string()]);
            let slots = &mut comparison
                .redis
                .view()
                .expect("the real server and this test work")
                .slots;
            *slots = vec![
                (0, slot(b"c") - 1, 0),
                (slot(b"c") + 1, 8191, 0),
                (8192, 16383, 1),
            ];
        }
    }
}
