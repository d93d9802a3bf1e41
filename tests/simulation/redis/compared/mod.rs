//! The simulated server answers what a real one answers.
//!
//! Random sequences of commands go to both, over several connections. All that comes back has to
//! agree, byte for byte, except for times, which may differ by as much as a step took.

mod node;
mod random;
mod replies;
mod steps;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use relatch_rig::{Server, eventually, server_version};
use tempfile::TempDir;

use self::replies::{agree, command, frame_length, is_known, show};
use super::{Client, Entry, Member, Output, RUN, Redis, Settings, Value, View, slot};

/// How many sequences are compared.
const SEQUENCES: u64 = 250;

/// A step that took longer says nothing, and ends its sequence: keys may have expired meanwhile.
const LONGEST_STEP: Duration = Duration::from_millis(400);

/// Otherwise, a comparison says nothing.
const WORKS: &str = "the real server and this test work";

/// The words of a command.
fn words(text: &str) -> Vec<&str> {
    text.split('|').collect()
}

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
    random: SmallRng,
    /// When the step began.
    began: Instant,
    /// How much a time of an earlier step may differ, in microseconds.
    tolerance: i64,
    /// What was done, for the message of a failure.
    told: Vec<String>,
    last_lease: u64,
}

fn micros(span: Duration) -> i64 {
    span.as_micros().try_into().expect(WORKS)
}

fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect(WORKS)
        .as_nanos()
        .try_into()
        .expect(WORKS)
}

impl Comparison {
    fn new(server: Server, keys: &'static [&'static str]) -> Comparison {
        assert!(
            server_version() >= (7, 0),
            "the simulated server is a Redis 7.0, which cannot be compared with {:?}: \
             RELATCH_TEST_SERVER=/path/to/redis-server names a newer one",
            server_version()
        );
        let settings = Settings {
            epoch: 0,
            replicates: true,
            timeout_delay: 0,
            ..Settings::default()
        };
        let (redis, mut replica) = (Redis::new(settings.clone()), Redis::new(settings));
        replica.demote(now());
        let random = SmallRng::seed_from_u64(0);
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
        let real = TcpStream::connect(self.server.address()).expect(WORKS);
        real.set_nodelay(true).expect(WORKS);
        real.set_read_timeout(Some(Duration::from_secs(5)))
            .expect(WORKS);
        let mut both = Both {
            real,
            received: Vec::new(),
            simulated: 0,
            expected: Vec::new(),
            is_closed: false,
        };
        if self.redis.state.settings.password.is_none() {
            both.real
                .write_all(&command(&["CLIENT", "ID"]))
                .expect(WORKS);
            let id = both.frame().expect(WORKS);
            let id = std::str::from_utf8(&id[1..id.len() - 2]).expect(WORKS);
            self.redis.state.next_client = id.parse().expect(WORKS);
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
        self.connections[at].real.write_all(bytes).expect(WORKS);
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
                .expect(WORKS);
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

    fn send(&mut self, at: usize, text: &str) {
        self.told.push(format!("{at}: {text}"));
        self.step(at, &command(&words(text)));
    }

    /// A command to the real server alone.
    fn direct(&self, text: &str) {
        self.server.command(&words(text)).expect(WORKS);
    }

    /// What `CLIENT ID` tells the connection.
    fn id(&self, at: usize) -> String {
        (self.connections[at].simulated % RUN).to_string()
    }

    /// A connection ends at both servers, and another one takes its place.
    fn kill(&mut self, at: usize) {
        self.told.push(format!("{at}: ends"));
        self.direct(&format!("CLIENT|KILL|ID|{}", self.id(at)));
        self.redis.close(self.connections[at].simulated, now());
        self.connections[at] = self.connect();
    }

    /// Both have one key, and the first connection hears what the second and the third have read.
    fn begins(&mut self, what: &str) {
        self.connect_anew();
        self.told = vec![what.to_owned()];
        self.direct("FLUSHALL");
        self.direct("RPUSH|list|x");
        self.redis.flush(now());
        let list = Entry {
            value: Value::List(1),
            expires: None,
        };
        self.redis.set(b"list", list, now());
        if self.random.random_ratio(1, 3) {
            self.direct("SCRIPT|FLUSH");
            self.redis.script_flush();
        }
        self.replicate();
        self.compare();
        self.send(0, "SUBSCRIBE|__redis__:invalidate");
        let tracks = format!("CLIENT|TRACKING|ON|REDIRECT|{}", self.id(0));
        self.send(1, &tracks);
        self.send(2, &format!("{tracks}|NOLOOP"));
    }

    /// Brings both servers into a state in which they refuse something, or back.
    fn disturb(&mut self, how: u64, begins: bool) {
        let yes = u8::from(begins);
        match how {
            1 => {
                self.direct(&format!("CONFIG|SET|maxmemory|{yes}"));
                self.redis.faults().out_of_memory = begins;
            }
            2 => {
                self.direct(&format!("CONFIG|SET|min-replicas-to-write|{yes}"));
                self.redis.faults().lacks_replicas = begins;
            }
            3 | 4 => {
                let is_down = begins && how == 4;
                let serves = if is_down { "no" } else { "yes" };
                self.direct(&format!("CONFIG|SET|replica-serve-stale-data|{serves}"));
                self.redis.faults().master_is_down = is_down;
                if begins {
                    self.direct("REPLICAOF|127.0.0.1|1");
                    self.redis.demote(now());
                } else {
                    self.direct("REPLICAOF|NO|ONE");
                    self.redis.promote(now());
                }
            }
            5 => {
                // Nobody can ask for a number before the login, so the last ones have to be known.
                self.connect_anew();
                let password = if begins { "open" } else { "" };
                self.direct(&format!("CONFIG|SET|requirepass|{password}"));
                self.redis.settings().password = begins.then(|| "open".to_owned());
                self.connect_anew();
            }
            _ => {}
        }
    }

    /// Whatever the real server has sent besides comes before the reply to this.
    fn settle(&mut self) {
        for at in 0..self.connections.len() {
            self.step(at, &command(&["PING"]));
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
    for seed in 0..SEQUENCES {
        if seed % 8 == 0 {
            comparison.connect_anew();
        }
        comparison.sequence(seed);
    }
    comparison.all_steps();
}

#[test]
fn a_real_node_of_a_cluster_answers_the_same() {
    let (server, view, _dir) = node::start();
    let keys = &["b", "c", "{b}:2", "a", "{b}:fence", "{a}:fence", "b"];
    let mut comparison = Comparison::new(server, keys);
    comparison.redis.set_view(view);
    for seed in 0..SEQUENCES / 4 {
        if seed % 8 == 0 {
            comparison.connect_anew();
        }
        comparison.cluster(seed);
        // A slot of nobody.
        if seed == SEQUENCES / 8 {
            comparison.direct(&format!("CLUSTER|DELSLOTS|{}", slot(b"c")));
            let slots = &mut comparison.redis.view().expect(WORKS).slots;
            *slots = vec![
                (0, slot(b"c") - 1, 0),
                (slot(b"c") + 1, 8191, 0),
                (8192, 16383, 1),
            ];
        }
    }
}
