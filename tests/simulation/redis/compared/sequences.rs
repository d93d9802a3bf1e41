//! Random sequences of commands.

use super::*;

impl Comparison {
    pub(super) fn any<'a, T: ?Sized>(&mut self, of: &[&'a T]) -> &'a T {
        of[self.random.random_range(0..of.len())]
    }

    pub(super) fn key(&mut self) -> Vec<u8> {
        self.any(self.keys).as_bytes().to_vec()
    }

    pub(super) fn token(&mut self) -> Vec<u8> {
        self.any(&["one", "two", "three", "kept:one", "7", "1700000000000000"])
            .as_bytes()
            .to_vec()
    }

    /// A time in milliseconds. No two of a sequence are so near to each other that it matters when
    /// a command is executed.
    pub(super) fn lease(&mut self) -> Vec<u8> {
        self.last_lease = (self.last_lease + 17_000) % 500_000;
        (30_000 + self.last_lease).to_string().into_bytes()
    }

    /// A word that may not belong where it stands. (`SET` and `PEXPIRE` of the simulated server
    /// know few options.)
    pub(super) fn odd_word(&mut self) -> Vec<u8> {
        match self.random.random_range(0..3) {
            0 => self.key(),
            1 => self.lease(),
            _ => self.any(&ODD_WORDS).as_bytes().to_vec(),
        }
    }

    pub(super) fn words(&mut self) -> Vec<Vec<u8>> {
        let text = |words: &[&str]| {
            words
                .iter()
                .map(|it| it.as_bytes().to_vec())
                .collect::<Vec<_>>()
        };
        let (key, lease) = (self.key(), self.lease());
        let mut words = match self.random.random_range(0..30) {
            0..9 => return self.script(),
            9..12 => [
                text(&["SET"]),
                vec![key, self.token()],
                text(&["NX", "PX"]),
                vec![lease],
            ]
            .concat(),
            12 => [
                text(&["SET"]),
                vec![key, self.token()],
                text(&["PX"]),
                vec![lease],
            ]
            .concat(),
            13 => [text(&["SET"]), vec![key, self.token(), self.odd_word()]].concat(),
            14 => [
                text(&["SET"]),
                vec![key, self.token(), self.odd_word(), self.odd_word()],
            ]
            .concat(),
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

    pub(super) fn script(&mut self) -> Vec<Vec<u8>> {
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
        words.extend([
            b"86400000".to_vec(),
            self.token(),
            self.any(&["0", "1", "9000000000000000"]).into(),
        ]);
        words
    }

    pub(super) fn tracking(&mut self) -> Vec<Vec<u8>> {
        let listener = self.random.random_range(0..self.connections.len());
        let id = (self.connections[listener].simulated % crate::simulation::redis::RUN).to_string();
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

    pub(super) fn rare(&mut self) -> Vec<Vec<u8>> {
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
            &[
                "EVAL",
                "return redis.call('PEXPIRE', KEYS[1], ARGV[1])",
                "1",
                "list",
                "600000",
            ],
        ];
        let words = all[self.random.random_range(0..all.len())];
        words.iter().map(|it| it.as_bytes().to_vec()).collect()
    }

    /// What the simulated server does without a command.
    pub(super) fn prepare(&mut self) {
        self.direct(&["FLUSHALL"]);
        self.redis.flush(now());
        self.direct(&["RPUSH", "list", "x"]);
        self.redis.set(
            b"list",
            Entry {
                value: Value::List(1),
                expires: None,
            },
            now(),
        );
        if self.random.random_range(0..3) == 0 {
            self.direct(&["SCRIPT", "FLUSH"]);
            self.redis.script_flush();
        }
        self.replicate();
        self.compare();
    }

    /// Brings both servers into a state in which they refuse something, or back.
    pub(super) fn disturb(&mut self, how: u64, begins: bool) {
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
                self.direct(&[
                    "CONFIG",
                    "SET",
                    "requirepass",
                    if begins { "open" } else { "" },
                ]);
                self.redis.settings().password = begins.then(|| "open".to_owned());
                self.connect_anew();
            }
            _ => {}
        }
    }

    /// A command to the real server alone.
    pub(super) fn direct(&self, words: &[&str]) {
        self.server
            .command(words)
            .expect("the real server and this test work");
    }

    /// One command or a few, most of the time in one piece.
    fn batch(&mut self, at: usize) {
        let mut bytes = Vec::new();
        for _ in 0..self.any(&[&1, &1, &1, &3]).to_owned() {
            let words = self.words();
            let shown: Vec<_> = words
                .iter()
                .map(|it| show(&it[it.len().saturating_sub(70)..]))
                .collect();
            self.told.push(format!("{at}: {}", shown.join(" ")));
            // Redis 8.2.3 loses the reply to a login that fails, behind another reply of a batch.
            if words[0] == b"AUTH" && !bytes.is_empty() {
                self.step(at, &std::mem::take(&mut bytes));
            }
            let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
            bytes.extend(command(&words));
        }
        self.step(at, &bytes);
    }

    pub(super) fn sequence(&mut self, seed: u64) {
        self.random = StdRng::seed_from_u64(seed);
        self.tolerance = 2000;
        self.told = vec![format!("seed {seed}")];
        let listener = (self.connections[0].simulated % crate::simulation::redis::RUN).to_string();
        for at in 1..self.connections.len() {
            let words: &[&[u8]] = &[
                b"CLIENT",
                b"TRACKING",
                b"ON",
                b"REDIRECT",
                listener.as_bytes(),
                b"NOLOOP",
            ];
            let off: &[&[u8]] = &[b"PING"];
            let tracking = [off, &words[..5], words][at % 3];
            self.step(
                at,
                &[command(tracking), command(&[b"SELECT", b"0"])].concat(),
            );
        }
        self.step(0, &command(&[b"SUBSCRIBE", b"__redis__:invalidate"]));
        self.prepare();
        let disturbance = if seed.is_multiple_of(3) {
            seed / 3 % 6
        } else {
            0
        };
        self.disturb(disturbance, true);
        for _ in 0..self.random.random_range(4..20) {
            let began = Instant::now();
            let at = self.random.random_range(0..self.connections.len());
            // Most commands do not go to the connection that listens.
            let at = if at == 0 {
                self.random.random_range(0..self.connections.len())
            } else {
                at
            };
            if disturbance != 5 && self.random.random_range(0..30) == 0 {
                self.kill(at);
            }
            self.batch(at);
            if began.elapsed() > LONGEST_STEP {
                break;
            }
        }
        self.settle();
        self.disturb(disturbance, false);
    }
}
