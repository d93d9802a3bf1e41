//! The simulated server answers what a real one answers.
//!
//! Random sequences of commands go to both, over several connections. All that comes back has to
//! agree, byte for byte, except for times, which may differ by as much as a step took.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use relatch_rig::{Server, eventually, server_version};
use tempfile::TempDir;

use super::{Client, Entry, Member, Output, Redis, Settings, User, Value, View, slot};

/// How many sequences are compared.
const SEQUENCES: u64 = 700;

/// A step that took longer says nothing, and ends its sequence: keys may have expired meanwhile.
const LONGEST_STEP: Duration = Duration::from_millis(400);

const SCRIPTS: [&str; 9] = [
    include_str!("../../store/adopt.lua"),
    include_str!("../../store/claim.lua"),
    include_str!("../../store/claim_fenced.lua"),
    include_str!("../../store/force.lua"),
    include_str!("../../store/keep.lua"),
    include_str!("../../store/look.lua"),
    include_str!("../../store/release.lua"),
    include_str!("../../store/renew.lua"),
    "return {redis.call('PTTL', KEYS[1]), 1.9, true, false, 'x', redis.pcall('GET', KEYS[1]), nil, 1}",
];

const ODD_WORDS: [&str; 12] =
    ["", "x", "-1", "0", "01", "+1", "9223372036854775807", "99999999999999999999", "1.5", "NX", "px", "ON"];

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
    span.as_micros().try_into().unwrap()
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().try_into().unwrap()
}

impl Comparison {
    fn new(server: Server, keys: &'static [&'static str]) -> Comparison {
        let (name, password) = ("worker".to_owned(), "secret".to_owned());
        let user = User { name, password, forbidden: vec!["pttl".to_owned()], prefix: "a".to_owned() };
        let (users, timeout_delay) = (vec![user], 0);
        let settings = Settings { users, epoch: 0, replicates: true, timeout_delay, ..Settings::default() };
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
        let real = TcpStream::connect(self.server.address()).unwrap();
        real.set_nodelay(true).unwrap();
        real.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut both =
            Both { real, received: Vec::new(), simulated: 0, expected: Vec::new(), is_closed: false };
        if self.redis.state.settings.password.is_none() {
            both.real.write_all(&command(&[b"CLIENT", b"ID"])).unwrap();
            let id = both.frame().unwrap();
            let id = std::str::from_utf8(&id[1..id.len() - 2]).unwrap();
            self.redis.state.next_client = id.parse().unwrap();
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
            self.redis.receive(self.connections[at].simulated, chunk, now());
            rest = left;
        }
        self.replicate();
        self.connections[at].real.write_all(bytes).unwrap();
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
            let both = self.connections.iter_mut().find(|it| it.simulated == client).unwrap();
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
                let agree = answered.as_ref().is_some_and(|it| agree(it, &expected, tolerance));
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
        assert_eq!(self.redis.state.dbs, self.replica.state.dbs, "the replica has the same keys");
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

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

fn frame_length(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|it| it == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).unwrap().parse::<i64>().unwrap();
    match bytes[0] {
        b'$' => {
            let length = usize::try_from(number()).map_or(end, |length| end + length + 2);
            (length <= bytes.len()).then_some(length)
        }
        b'*' => (0..number()).try_fold(end, |at, _| Some(at + frame_length(&bytes[at..])?)),
        _ => Some(end),
    }
}

/// True if two answers differ in nothing but times: numbers of milliseconds or of microseconds.
fn agree(one: &[u8], other: &[u8], tolerance: i64) -> bool {
    let (one, other) = (numbers(one), numbers(other));
    one.len() == other.len()
        && one.iter().zip(&other).all(|(one, other)| match (one, other) {
            (Ok(one), Ok(other)) => {
                let within = if *one > 1_000_000_000_000_000 { tolerance } else { 1 + tolerance / 1000 };
                one == other || *one > 9_999 && (one - other).abs() <= within
            }
            (one, other) => one == other,
        })
}

/// The text, cut into numbers and what is between them.
fn numbers(text: &[u8]) -> Vec<Result<i64, &[u8]>> {
    let parts = text.chunk_by(|one, next| one.is_ascii_digit() == next.is_ascii_digit());
    let number = |part: &[u8]| std::str::from_utf8(part).ok()?.parse().ok();
    parts.map(|part| number(part).ok_or(part)).collect()
}

fn show(bytes: &[u8]) -> String {
    format!("{:?}", String::from_utf8_lossy(bytes))
}

/// The random sequences.
impl Comparison {
    fn any<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.random.random_range(0..of.len())]
    }

    fn key(&mut self) -> Vec<u8> {
        self.any(self.keys).as_bytes().to_vec()
    }

    fn token(&mut self) -> Vec<u8> {
        self.any(&["one", "two", "three", "kept:one", "7", "1700000000000000"]).as_bytes().to_vec()
    }

    /// A time in milliseconds. No two of a sequence are so near to each other that it matters when
    /// a command is executed.
    fn lease(&mut self) -> Vec<u8> {
        self.last_lease = (self.last_lease + 17_000) % 500_000;
        (30_000 + self.last_lease).to_string().into_bytes()
    }

    /// A word that may not belong where it stands. (`SET` and `PEXPIRE` of the simulated server know
    /// few options.)
    fn odd_word(&mut self) -> Vec<u8> {
        match self.random.random_range(0..3) {
            0 => self.key(),
            1 => self.lease(),
            _ => self.any(&ODD_WORDS).as_bytes().to_vec(),
        }
    }

    fn words(&mut self) -> Vec<Vec<u8>> {
        let text = |words: &[&str]| words.iter().map(|it| it.as_bytes().to_vec()).collect::<Vec<_>>();
        let (key, lease) = (self.key(), self.lease());
        let mut words = match self.random.random_range(0..30) {
            0..9 => return self.script(),
            9..12 => [text(&["SET"]), vec![key, self.token()], text(&["NX", "PX"]), vec![lease]].concat(),
            12 => [text(&["SET"]), vec![key, self.token()], text(&["PX"]), vec![lease]].concat(),
            13 => [text(&["SET"]), vec![key, self.token(), self.odd_word()]].concat(),
            14 => [text(&["SET"]), vec![key, self.token(), self.odd_word(), self.odd_word()]].concat(),
            15..20 => vec![b"GET".to_vec(), key],
            20 => vec![b"PTTL".to_vec(), key],
            21 => vec![b"PEXPIRE".to_vec(), key, lease],
            22 => vec![b"PEXPIRE".to_vec(), key, self.odd_word()],
            23..25 => vec![b"DEL".to_vec(), key, self.key()],
            25..28 => self.tracking(),
            28 => vec![b"SUBSCRIBE".to_vec(), b"__redis__:invalidate".to_vec()],
            _ => self.rare(),
        };
        if self.random.random_range(0..40) == 0 && words.len() > 1 {
            words.pop();
        }
        let takes_more = ![&b"SUBSCRIBE"[..], b"PEXPIRE"].contains(&&*words[0]) && words.len() > 1;
        if self.random.random_range(0..40) == 0 && takes_more {
            words.push(self.odd_word());
        }
        words
    }

    fn script(&mut self) -> Vec<Vec<u8>> {
        let script = self.any(&SCRIPTS);
        let by_hash = self.random.random_range(0..3) > 0;
        let hash = redis::Script::new(script).get_hash().to_owned();
        let mut words = vec![b"EVALSHA".to_vec(), hash.into_bytes()];
        if !by_hash {
            words = vec![b"EVAL".to_vec(), script.as_bytes().to_vec()];
        }
        let keys = self.random.random_range(1..=2);
        words.push(keys.to_string().into_bytes());
        words.push(self.key());
        if keys == 2 {
            words.push(self.any(&self.keys[3..]).as_bytes().to_vec());
        }
        words.extend([self.token(), self.lease()]);
        words.extend([b"86400000".to_vec(), self.token(), self.any(&["0", "1", "9000000000000000"]).into()]);
        words
    }

    fn tracking(&mut self) -> Vec<Vec<u8>> {
        let listener = self.random.random_range(0..self.connections.len());
        let id = (self.connections[listener].simulated % super::RUN).to_string();
        let words: &[&str] = match self.random.random_range(0..8) {
            0 => &["CLIENT", "TRACKING", "OFF"],
            1 => &["CLIENT", "TRACKING", "ON", "REDIRECT", "999999"],
            2 => &["CLIENT", "TRACKING", "ON"],
            3 => &["CLIENT", "ID"],
            4 | 5 => &["CLIENT", "TRACKING", "ON", "REDIRECT", &id],
            _ => &["CLIENT", "TRACKING", "ON", "REDIRECT", &id, "NOLOOP"],
        };
        words.iter().map(|it| it.as_bytes().to_vec()).collect()
    }

    fn rare(&mut self) -> Vec<Vec<u8>> {
        let all: [&[&str]; 25] = [
            &["HELLO"],
            &["HELLO", "2"],
            &["HELLO", "9"],
            &["HELLO", "x"],
            &["AUTH", "x"],
            &["AUTH", "x", "y"],
            &["AUTH", "worker", "secret"],
            &["AUTH", "default", "open"],
            &["CLIENT", "SETNAME", "relatch"],
            &["CLIENT", "SETNAME", "a b"],
            &["CLIENT", "SETINFO", "LIB-NAME", "x"],
            &["CLIENT"],
            &["SELECT", "0"],
            &["SELECT", "1"],
            &["SELECT", "16"],
            &["WAIT", "0", "10"],
            &["WAIT", "x", "-1"],
            &["WAITAOF", "1", "1", "1"],
            &["ASKING"],
            &["CLUSTER", "slots"],
            &["SENTINEL", "master", "x"],
            &["NONSENSE", "a", "b\r\nc"],
            &["EVAL", "ret urn", "0"],
            &["EVAL", "return redis.call('SUBSCRIBE', 'a')", "0"],
            &["EVAL", "return redis.call('PEXPIRE', KEYS[1], ARGV[1])", "1", "list", "600000"],
        ];
        let words = all[self.random.random_range(0..all.len())];
        words.iter().map(|it| it.as_bytes().to_vec()).collect()
    }

    /// What the simulated server does without a command.
    fn prepare(&mut self) {
        self.direct(&["FLUSHALL"]);
        self.redis.flush(now());
        self.direct(&["RPUSH", "list", "x"]);
        self.redis.set(b"list", Entry { value: Value::List(1), expires: None }, now());
        if self.random.random_range(0..3) == 0 {
            self.direct(&["SCRIPT", "FLUSH"]);
            self.redis.script_flush();
        }
        self.replicate();
        self.compare();
    }

    /// Brings both servers into a state in which they refuse something, or back.
    fn disturb(&mut self, how: u64, begins: bool) {
        let yes = if begins { "1" } else { "0" };
        match how {
            1 => {
                self.direct(&["CONFIG", "SET", "maxmemory", yes]);
                self.redis.faults().out_of_memory = begins;
            }
            2 => {
                self.direct(&["CONFIG", "SET", "min-replicas-to-write", yes]);
                self.redis.faults().lacks_replicas = begins;
            }
            3 | 4 => {
                let serves = if begins && how == 4 { "no" } else { "yes" };
                self.direct(&["CONFIG", "SET", "replica-serve-stale-data", serves]);
                self.redis.faults().master_is_down = begins && how == 4;
                if begins {
                    self.direct(&["REPLICAOF", "127.0.0.1", "1"]);
                    self.redis.demote(now());
                } else {
                    self.direct(&["REPLICAOF", "NO", "ONE"]);
                    self.redis.promote(now());
                }
            }
            5 => {
                // Nobody can ask for a number before the login, so the last ones have to be known.
                self.connect_anew();
                self.direct(&["CONFIG", "SET", "requirepass", if begins { "open" } else { "" }]);
                self.redis.settings().password = begins.then(|| "open".to_owned());
                self.connect_anew();
            }
            _ => {}
        }
    }

    /// A command to the real server alone.
    fn direct(&self, words: &[&str]) {
        self.server.command(words).unwrap();
    }

    fn sequence(&mut self, seed: u64) {
        self.random = StdRng::seed_from_u64(seed);
        self.tolerance = 2000;
        self.told = vec![format!("seed {seed}")];
        let listener = (self.connections[0].simulated % super::RUN).to_string();
        for at in 1..self.connections.len() {
            let words: &[&[u8]] =
                &[b"CLIENT", b"TRACKING", b"ON", b"REDIRECT", listener.as_bytes(), b"NOLOOP"];
            let off: &[&[u8]] = &[b"PING"];
            let tracking = [off, &words[..5], words][at % 3];
            self.step(at, &[command(tracking), command(&[b"SELECT", b"0"])].concat());
        }
        self.step(0, &command(&[b"SUBSCRIBE", b"__redis__:invalidate"]));
        self.prepare();
        let disturbance = if seed.is_multiple_of(3) { seed / 3 % 6 } else { 0 };
        self.disturb(disturbance, true);
        for _ in 0..self.random.random_range(4..20) {
            let began = Instant::now();
            let at = self.random.random_range(0..self.connections.len());
            // Most commands do not go to the connection that listens.
            let at = if at == 0 { self.random.random_range(0..self.connections.len()) } else { at };
            if disturbance != 5 && self.random.random_range(0..30) == 0 {
                self.kill(at);
            }
            let mut bytes = Vec::new();
            for _ in 0..self.any(&[&1, &1, &1, &3]).to_owned() {
                let words = self.words();
                let shown: Vec<_> = words.iter().map(|it| show(&it[it.len().saturating_sub(70)..])).collect();
                self.told.push(format!("{at}: {}", shown.join(" ")));
                let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
                bytes.extend(command(&words));
            }
            self.step(at, &bytes);
            if began.elapsed() > LONGEST_STEP {
                break;
            }
        }
        self.settle();
        self.disturb(disturbance, false);
    }
}

/// Sequences in which time passes.
impl Comparison {
    fn send(&mut self, at: usize, words: &[&str]) {
        self.told.push(format!("{at}: {words:?}"));
        let words: Vec<&[u8]> = words.iter().map(|it| it.as_bytes()).collect();
        self.step(at, &command(&words));
    }

    fn begin(&mut self, what: &str) {
        self.connect_anew();
        self.prepare();
        self.told = vec![what.to_owned()];
        let listener = (self.connections[0].simulated % super::RUN).to_string();
        self.send(0, &["SUBSCRIBE", "__redis__:invalidate"]);
        self.send(1, &["CLIENT", "TRACKING", "ON", "REDIRECT", &listener]);
        self.send(2, &["CLIENT", "TRACKING", "ON", "REDIRECT", &listener, "NOLOOP"]);
    }

    /// A connection ends at both servers, and another one takes its place.
    fn kill(&mut self, at: usize) {
        let simulated = self.connections[at].simulated;
        self.told.push(format!("{at}: ends"));
        self.direct(&["CLIENT", "KILL", "ID", &(simulated % super::RUN).to_string()]);
        self.redis.close(simulated, now());
        self.connections[at] = self.connect();
    }

    /// Time passes for both.
    fn pass(&mut self, millis: u64) {
        std::thread::sleep(Duration::from_millis(millis));
        self.redis.advance(now());
        self.compare();
    }

    /// True if no server has said anything to this connection yet.
    fn is_silent(&mut self, at: usize) -> bool {
        let both = &self.connections[at];
        both.real.set_nonblocking(true).unwrap();
        let is_silent = both.real.peek(&mut [0]).is_err();
        both.real.set_nonblocking(false).unwrap();
        is_silent && self.redis.take_output().is_empty()
    }

    /// Keys that are found to have expired by whoever asks, and one that the server finds itself.
    fn expiry(&mut self) {
        self.direct(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        self.redis.settings().expiry_delay = 3_600_000_000_000;
        self.begin("expiry");
        for key in ["a1", "a2", "a3", "b1", "b2", "b3"] {
            self.send(3, &["SET", key, "one", "PX", "300"]);
            self.send(1, &["GET", key]);
            self.send(2, &["GET", key]);
        }
        self.pass(320);
        for (by, a, b) in [(1, "a1", "b1"), (2, "a2", "b2"), (3, "a3", "b3")] {
            self.send(by, &["PTTL", a]);
            self.send(by, &["EVAL", SCRIPTS[1], "1", b, "two", "60000"]);
            self.send(by, &["EVAL", SCRIPTS[5], "1", b]);
        }
        self.settle();
        self.send(3, &["SET", "c", "one", "PX", "200"]);
        self.send(1, &["GET", "c"]);
        self.send(2, &["GET", "c"]);
        self.direct(&["DEBUG", "SET-ACTIVE-EXPIRE", "1"]);
        self.redis.settings().expiry_delay = 0;
        self.pass(220);
        self.settle();
    }

    fn pauses(&mut self) {
        for mode in ["WRITE", "ALL"] {
            self.begin(mode);
            self.send(3, &["SET", "gone", "one", "PX", "50"]);
            self.direct(&["CLIENT", "PAUSE", "400", mode]);
            self.redis.pause_until(now() + 400_000_000, mode == "WRITE");
            self.pass(70);
            self.send(3, &["GET", "gone"]);
            for words in [&["SET", "a", "one"][..], &["EVAL", "return 1", "0"], &["DEL", "a"]] {
                self.send(2, words);
            }
            assert!(self.is_silent(2), "{mode}");
            self.pass(400);
            self.settle();
        }
    }

    /// Waits until the real server answers with this error.
    fn until(&self, code: &str) {
        eventually(Duration::from_secs(20), code, || {
            self.server.command(&["PING"]).is_err_and(|error| error.code() == Some(code))
        });
    }

    fn a_long_script(&mut self) {
        self.begin("a long script");
        self.direct(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
        self.connections[3].real.write_all(&command(&[b"EVAL", b"while true do end", b"0"])).unwrap();
        self.until("BUSY");
        self.redis.faults().stuck_until = u64::MAX;
        for words in [&["GET", "a"][..], &["PING"], &["SET", "a"], &["AUTH", "x"], &["CLIENT", "ID"]] {
            self.send(2, words);
        }
        self.direct(&["SCRIPT", "KILL"]);
        self.connections[3].frame().unwrap();
        self.redis.faults().stuck_until = 0;
        self.send(2, &["GET", "a"]);
    }

    fn loading(&mut self) {
        self.begin("loading");
        self.direct(&["DEBUG", "POPULATE", "200", "key", "1100"]);
        self.direct(&[
            "CONFIG",
            "SET",
            "key-load-delay",
            "3000",
            "loading-process-events-interval-bytes",
            "1024",
        ]);
        self.connections[3].real.write_all(&command(&[b"DEBUG", b"RELOAD"])).unwrap();
        self.until("LOADING");
        self.redis.faults().loading_until = u64::MAX;
        for words in [&["GET", "a"][..], &["PING"], &["SELECT", "0"], &["EVAL", "return 1", "0"], &["HELLO"]]
        {
            self.send(2, words);
        }
        self.redis.faults().loading_until = 0;
        self.connections[3].frame().unwrap();
    }
}

/// Replicas.
impl Comparison {
    fn waits(&mut self) {
        self.direct(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        let port = self.server.port().to_string();
        let _replica = Server::with(&["--cluster-enabled", "no", "--replicaof", "127.0.0.1", &port]);
        eventually(Duration::from_secs(20), "a replica is there", || {
            self.direct(&["SET", "x", "y"]);
            self.server.command(&["WAIT", "1", "100"]).unwrap() == redis::Value::Int(1)
        });
        self.has_replica = true;
        self.begin("replicas");
        self.send(3, &["SET", "a", "one", "PX", "60000"]);
        for words in [["WAIT", "1", "1000"], ["WAIT", "2", "300"]] {
            self.send(3, &words);
            if words[1] == "2" {
                assert!(self.is_silent(3));
                // More than one command waits.
                self.send(3, &["PING"]);
                self.pass(450);
            }
        }
        self.send(3, &["SET", "gone", "one", "PX", "15"]);
        self.send(2, &["WAIT", "2", "0"]);
        self.disturb(3, true);
        self.compare();
        self.pass(25);
        for words in [["GET", "gone"], ["PTTL", "gone"]] {
            self.send(3, &words);
        }
        self.disturb(3, false);
    }
}

/// A node of a cluster, which has the lower half of the slots, and its neighbour, which does not
/// exist.
fn node() -> (Server, View, TempDir) {
    let ids = ["1", "2", "3"].map(|digit| digit.repeat(40));
    let state = format!(
        "{} :1@1 myself,slave {} 0 1 0 connected\n\
         {} 127.0.0.1:1@1 master - 0 1 1 connected 0-8191\n\
         {} 127.0.0.1:2@2 master - 0 1 2 connected 8192-16383\n\
         vars currentEpoch 2 lastVoteEpoch 0\n",
        ids[0], ids[1], ids[1], ids[2]
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nodes.conf");
    std::fs::write(&path, state).unwrap();
    let bus = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let server = Server::with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-config-file",
        path.to_str().unwrap(),
        "--cluster-port",
        &bus,
        "--cluster-announce-ip",
        "127.0.0.1",
        "--cluster-require-full-coverage",
        "no",
    ]);
    eventually(Duration::from_secs(20), "the node is a master", || {
        let _ = server.command(&["CLUSTER", "FAILOVER", "TAKEOVER"]);
        let _ = server.command(&["CLUSTER", "FORGET", &ids[1]]);
        let info = server.command(&["CLUSTER", "INFO"]).ok();
        let info = info.and_then(|it| redis::from_redis_value::<String>(it).ok()).unwrap_or_default();
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
    });
    let member =
        |id: &String, port| Member { id: id.clone(), host: "127.0.0.1".to_owned(), port, master: None };
    let nodes = vec![member(&ids[0], server.port()), member(&ids[2], 2)];
    (server, View { nodes, slots: vec![(0, 8191, 0), (8192, 16383, 1)], ..View::default() }, dir)
}

impl Comparison {
    /// Slots stay, go, come, or are nobody's.
    fn cluster(&mut self, seed: u64) {
        self.random = StdRng::seed_from_u64(seed);
        self.told = vec![format!("cluster, seed {seed}")];
        let neighbour = self.redis.view().unwrap().nodes[1].id.clone();
        let [here, there] = ["b", "a"].map(|key| slot(key.as_bytes()));
        let [here_text, there_text] = [here, there].map(|slot| slot.to_string());
        for moving in [&here_text, &there_text] {
            self.direct(&["CLUSTER", "SETSLOT", moving, "STABLE"]);
        }
        let view = self.redis.view().unwrap();
        (view.migrating, view.importing) = Default::default();
        if seed % 2 == 1 {
            view.migrating.insert(here, 1);
            view.importing.insert(there, 1);
            self.direct(&["CLUSTER", "SETSLOT", &here_text, "MIGRATING", &neighbour]);
            self.direct(&["CLUSTER", "SETSLOT", &there_text, "IMPORTING", &neighbour]);
        }
        for _ in 0..self.random.random_range(4..16) {
            let at = self.random.random_range(0..self.connections.len());
            let words = self.words();
            if self.random.random_range(0..3) == 0 {
                self.send(at, &["ASKING"]);
            }
            self.told.push(format!("{at}: {:?}", words.iter().map(|it| show(it)).collect::<Vec<_>>()));
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            self.step(at, &command(&words));
        }
        self.settle();
    }
}

#[test]
fn a_real_server_answers_the_same() {
    if server_version() != (7, 0) {
        return;
    }
    let server = Server::with(&["--cluster-enabled", "no"]);
    let mut comparison = Comparison::new(server, &["a", "a", "b", "a", "fence", "list", "{a}:fence"]);
    comparison.direct(&["ACL", "SETUSER", "worker", "on", ">secret", "~a*", "&*", "+@all", "-pttl"]);
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
    if server_version() != (7, 0) {
        return;
    }
    let (server, view, _dir) = node();
    let keys = &["b", "c", "{b}:2", "a", "{b}:fence", "{a}:fence", "b"];
    let mut comparison = Comparison::new(server, keys);
    comparison.redis.set_view(view);
    comparison.direct(&["ACL", "SETUSER", "worker", "on", ">secret", "~a*", "&*", "+@all", "-pttl"]);
    for seed in 0..SEQUENCES / 4 {
        if seed % 8 == 0 {
            comparison.connect_anew();
        }
        comparison.cluster(seed);
        // A slot of nobody.
        if seed == SEQUENCES / 8 {
            comparison.direct(&["CLUSTER", "DELSLOTS", &slot(b"c").to_string()]);
            let slots = &mut comparison.redis.view().unwrap().slots;
            *slots = vec![(0, slot(b"c") - 1, 0), (slot(b"c") + 1, 8191, 0), (8192, 16383, 1)];
        }
    }
}
