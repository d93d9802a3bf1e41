//! Random commands, and what is done with them.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::*;
use crate::simulation::plan::weighed;

/// Commands, and how often each comes. What begins with `$` is random.
const COMMANDS: [(u32, &str); 33] = [
    (225, "$script"),
    (75, "SET|$key|$token|NX|PX|$lease"),
    (25, "SET|$key|$token|PX|$lease"),
    (125, "GET|$key"),
    (25, "PTTL|$key"),
    (25, "PEXPIRE|$key|$lease"),
    (50, "DEL|$key|$key"),
    (9, "CLIENT|TRACKING|OFF"),
    (9, "CLIENT|TRACKING|ON|REDIRECT|999999"),
    (9, "CLIENT|TRACKING|ON"),
    (9, "CLIENT|ID"),
    (19, "CLIENT|TRACKING|ON|REDIRECT|$id"),
    (19, "CLIENT|TRACKING|ON|REDIRECT|$id|NOLOOP"),
    (25, "SUBSCRIBE|__redis__:invalidate"),
    (1, "HELLO"),
    (1, "HELLO|2"),
    (1, "HELLO|9"),
    (1, "AUTH|x"),
    (1, "AUTH|x|y"),
    (1, "AUTH|default|open"),
    (1, "CLIENT|SETNAME|relatch"),
    (1, "CLIENT|SETINFO|LIB-NAME|x"),
    (1, "SELECT|0"),
    (1, "SELECT|1"),
    (1, "SELECT|16"),
    (1, "WAIT|0|10"),
    (1, "WAITAOF|1|1|1"),
    (1, "ASKING"),
    (1, "CLUSTER|slots"),
    (1, "SENTINEL|master|x"),
    (1, "NONSENSE|a|b\r\nc"),
    (1, "EVAL|return redis.call('SUBSCRIBE', 'a')|0"),
    (
        1,
        "EVAL|return redis.call('PEXPIRE', KEYS[1], ARGV[1])|1|list|600000",
    ),
];

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

const TOKENS: [&str; 6] = ["one", "two", "three", "kept:one", "7", "1700000000000000"];

impl Comparison {
    fn any<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.random.random_range(0..of.len())]
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.random.random_ratio(1, n)
    }

    /// What a word of a command stands for.
    fn word(&mut self, word: &str) -> String {
        match word {
            "$key" => self.any(self.keys).to_owned(),
            "$token" => self.any(&TOKENS).to_owned(),
            // No two of a sequence are so near to each other that it matters when a command is
            // executed.
            "$lease" => {
                self.last_lease = (self.last_lease + 17_000) % 500_000;
                (30_000 + self.last_lease).to_string()
            }
            "$id" => {
                let listener = self.random.random_range(0..self.connections.len());
                self.id(listener)
            }
            word => word.to_owned(),
        }
    }

    fn words(&mut self) -> Vec<String> {
        let (_, text) = COMMANDS[weighed(&mut self.random, &COMMANDS.map(|it| it.0))];
        if text == "$script" {
            return self.script();
        }
        text.split('|').map(|word| self.word(word)).collect()
    }

    fn script(&mut self) -> Vec<String> {
        let script = self.any(&SCRIPTS);
        let hash = redis::Script::new(script).get_hash().to_owned();
        let (name, text) = if self.one_in(3) {
            ("EVAL", script)
        } else {
            ("EVALSHA", &*hash)
        };
        let mut words = vec![name.to_owned(), text.to_owned()];
        if self.one_in(2) {
            words.extend(["1".to_owned(), self.word("$key")]);
        } else {
            let second = self.any(&self.keys[3..]).to_owned();
            words.extend(["2".to_owned(), self.word("$key"), second]);
        }
        let last = self.any(&["0", "1", "9000000000000000"]);
        let rest = ["$token", "$lease", "86400000", "$token", last];
        words.extend(rest.map(|word| self.word(word)));
        words
    }

    /// One command or a few, most of the time in one piece.
    fn batch(&mut self, at: usize) {
        let mut bytes = Vec::new();
        for _ in 0..if self.one_in(4) { 3 } else { 1 } {
            let words = self.words();
            self.told.push(format!("{at}: {words:?}"));
            // Redis 8.2.3 loses the reply to a login that fails, behind another reply of a batch.
            if words[0] == "AUTH" && !bytes.is_empty() {
                self.step(at, &std::mem::take(&mut bytes));
            }
            bytes.extend(command(&words));
        }
        self.step(at, &bytes);
    }

    pub(super) fn sequence(&mut self, seed: u64) {
        self.random = SmallRng::seed_from_u64(seed);
        self.tolerance = 2000;
        self.begins(&format!("seed {seed}"));
        let disturbance = if seed.is_multiple_of(3) {
            seed / 3 % 6
        } else {
            0
        };
        self.disturb(disturbance, true);
        for _ in 0..self.random.random_range(4..20) {
            let began = Instant::now();
            // Most commands do not go to the connection that listens.
            let most = self.connections.len();
            let at = self
                .random
                .random_range(0..most)
                .max(self.random.random_range(0..2));
            if disturbance != 5 && self.one_in(30) {
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

    /// Slots of a cluster stay, go, come, or are nobody's.
    pub(super) fn cluster(&mut self, seed: u64) {
        self.random = SmallRng::seed_from_u64(seed);
        self.told = vec![format!("cluster, seed {seed}")];
        let [here, there] = ["b", "a"].map(|key| slot(key.as_bytes()));
        let view = self.redis.view().expect(WORKS);
        let neighbour = view.nodes[1].id.clone();
        (view.migrating, view.importing) = Default::default();
        if seed % 2 == 1 {
            view.migrating.insert(here, 1);
            view.importing.insert(there, 1);
        }
        for (slot, state) in [(here, "MIGRATING"), (there, "IMPORTING")] {
            self.direct(&format!("CLUSTER|SETSLOT|{slot}|STABLE"));
            if seed % 2 == 1 {
                self.direct(&format!("CLUSTER|SETSLOT|{slot}|{state}|{neighbour}"));
            }
        }
        for _ in 0..self.random.random_range(4..16) {
            let at = self.random.random_range(0..self.connections.len());
            if self.one_in(3) {
                self.send(at, "ASKING");
            }
            self.batch(at);
        }
        self.settle();
    }
}
