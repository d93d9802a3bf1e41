//! Sequences in which time passes, servers refuse, and replicas acknowledge.

use super::*;

/// What is done next.
#[derive(Clone, Copy)]
enum Step {
    /// A command over a connection to both.
    Both(usize, &'static str),
    /// A command to the real server alone, over another connection.
    Direct(&'static str),
    /// A command over a connection to the real server alone, which has no answer at once.
    Real(usize, &'static str),
    /// The real server answers with this error from some time on.
    Until(&'static str),
    /// The answer to the real server's command comes.
    Answer(usize),
    /// The simulated server is changed.
    Simulated(fn(&mut Redis)),
    /// Time passes for both, in milliseconds.
    Pass(u64),
    /// No server has said anything to this connection yet.
    Silent(usize),
    Settle,
}

use Step::{Answer, Both, Direct, Pass, Real, Settle, Silent, Simulated, Until};

/// What each sequence does, behind its name.
const SEQUENCES: [(&str, &[Step]); 5] = [
    (
        "keys that a reader finds expired, and one that the server finds itself",
        &[
            Direct("DEBUG|SET-ACTIVE-EXPIRE|0"),
            Simulated(|redis| redis.settings().expiry_delay = 3_600_000_000_000),
            Both(3, "SET|a1|one|PX|300"),
            Both(1, "GET|a1"),
            Both(2, "GET|a1"),
            Both(3, "SET|a2|one|PX|300"),
            Both(1, "GET|a2"),
            Both(2, "GET|a2"),
            Both(3, "SET|b1|one|PX|300"),
            Both(1, "GET|b1"),
            Both(2, "GET|b1"),
            Pass(320),
            Both(1, "PTTL|a1"),
            Both(2, "PTTL|a2"),
            Both(
                1,
                "EVAL|return {redis.call('PTTL', KEYS[1]), redis.call('GET', KEYS[1])}|1|b1",
            ),
            Settle,
            Both(3, "SET|c|one|PX|200"),
            Both(1, "GET|c"),
            Both(2, "GET|c"),
            Direct("DEBUG|SET-ACTIVE-EXPIRE|1"),
            Simulated(|redis| redis.settings().expiry_delay = 0),
            Pass(220),
            Settle,
        ],
    ),
    (
        "a pause of writes",
        &[
            Both(3, "SET|gone|one|PX|50"),
            Direct("CLIENT|PAUSE|400|WRITE"),
            Simulated(|redis| redis.pause_until(now() + 400_000_000, true)),
            Pass(70),
            Both(3, "GET|gone"),
            Both(2, "SET|a|one"),
            Both(2, "EVAL|return 1|0"),
            Both(2, "DEL|a"),
            Silent(2),
            Pass(400),
            Settle,
        ],
    ),
    (
        "a pause of everything",
        &[
            Direct("CLIENT|PAUSE|400|ALL"),
            Simulated(|redis| redis.pause_until(now() + 400_000_000, false)),
            Both(2, "GET|a"),
            Silent(2),
            Pass(420),
            Settle,
        ],
    ),
    (
        "a long script",
        &[
            Direct("CONFIG|SET|busy-reply-threshold|1"),
            Real(3, "EVAL|while true do end|0"),
            Until("BUSY"),
            Simulated(|redis| redis.faults().stuck_until = u64::MAX),
            Both(2, "GET|a"),
            Both(2, "PING"),
            Both(2, "SET|a"),
            Both(2, "AUTH|x"),
            Both(2, "CLIENT|ID"),
            Direct("SCRIPT|KILL"),
            Answer(3),
            Simulated(|redis| redis.faults().stuck_until = 0),
            Both(2, "GET|a"),
        ],
    ),
    (
        "loading",
        &[
            Direct("DEBUG|POPULATE|200|key|1100"),
            Direct("CONFIG|SET|key-load-delay|3000|loading-process-events-interval-bytes|1024"),
            Real(3, "DEBUG|RELOAD"),
            Until("LOADING"),
            Simulated(|redis| redis.faults().loading_until = u64::MAX),
            Both(2, "GET|a"),
            Both(2, "PING"),
            Both(2, "SELECT|0"),
            Both(2, "EVAL|return 1|0"),
            Both(2, "HELLO"),
            Simulated(|redis| redis.faults().loading_until = 0),
            Answer(3),
        ],
    ),
];

/// With a replica, which is there.
const REPLICAS: &[Step] = &[
    Both(3, "SET|a|one|PX|60000"),
    Both(3, "WAIT|1|1000"),
    Both(3, "WAIT|2|300"),
    Silent(3),
    // More than one command waits.
    Both(3, "PING"),
    Pass(450),
    Both(3, "SET|gone|one|PX|15"),
    Both(2, "WAIT|2|0"),
    Direct("REPLICAOF|127.0.0.1|1"),
    Simulated(|redis| redis.demote(now())),
    Pass(25),
    Both(3, "GET|gone"),
    Both(3, "PTTL|gone"),
    Direct("REPLICAOF|NO|ONE"),
    Simulated(|redis| redis.promote(now())),
];

impl Comparison {
    fn does(&mut self, step: Step) {
        match step {
            Both(at, text) => self.send(at, text),
            Direct(text) => self.direct(text),
            Real(at, text) => {
                let bytes = command(&words(text));
                self.connections[at].real.write_all(&bytes).expect(WORKS);
            }
            Until(code) => eventually(Duration::from_secs(20), code, || {
                let answer = self.server.command(&["PING"]);
                answer.is_err_and(|error| error.code() == Some(code))
            }),
            Answer(at) => _ = self.connections[at].frame().expect(WORKS),
            Simulated(change) => {
                change(&mut self.redis);
                self.compare();
            }
            Pass(millis) => {
                std::thread::sleep(Duration::from_millis(millis));
                self.redis.advance(now());
                self.compare();
            }
            Silent(at) => {
                let real = &self.connections[at].real;
                real.set_nonblocking(true).expect(WORKS);
                let is_silent = real.peek(&mut [0]).is_err();
                real.set_nonblocking(false).expect(WORKS);
                assert!(is_silent && self.redis.take_output().is_empty());
            }
            Settle => self.settle(),
        }
    }

    pub(super) fn all_steps(&mut self) {
        for (name, steps) in SEQUENCES {
            self.begins(name);
            for step in steps {
                self.does(*step);
            }
        }
        self.direct("CONFIG|SET|repl-diskless-sync-delay|0");
        let port = self.server.port().to_string();
        let _replica =
            Server::with(&["--cluster-enabled", "no", "--replicaof", "127.0.0.1", &port]);
        eventually(Duration::from_secs(20), "a replica is there", || {
            self.direct("SET|x|y");
            let answer = self.server.command(&["WAIT", "1", "100"]);
            answer.expect(WORKS) == redis::Value::Int(1)
        });
        self.has_replica = true;
        self.begins("replicas");
        for step in REPLICAS {
            self.does(*step);
        }
    }
}
