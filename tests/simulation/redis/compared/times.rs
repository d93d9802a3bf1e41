//! Sequences in which time passes, and replicas that acknowledge.

use super::*;

impl Comparison {
    pub(super) fn send(&mut self, at: usize, words: &[&str]) {
        self.told.push(format!("{at}: {words:?}"));
        let words: Vec<&[u8]> = words.iter().map(|it| it.as_bytes()).collect();
        self.step(at, &command(&words));
    }

    pub(super) fn begin(&mut self, what: &str) {
        self.connect_anew();
        self.prepare();
        self.told = vec![what.to_owned()];
        let listener = (self.connections[0].simulated % crate::simulation::redis::RUN).to_string();
        self.send(0, &["SUBSCRIBE", "__redis__:invalidate"]);
        self.send(1, &["CLIENT", "TRACKING", "ON", "REDIRECT", &listener]);
        self.send(
            2,
            &["CLIENT", "TRACKING", "ON", "REDIRECT", &listener, "NOLOOP"],
        );
    }

    /// A connection ends at both servers, and another one takes its place.
    pub(super) fn kill(&mut self, at: usize) {
        let simulated = self.connections[at].simulated;
        self.told.push(format!("{at}: ends"));
        self.direct(&[
            "CLIENT",
            "KILL",
            "ID",
            &(simulated % crate::simulation::redis::RUN).to_string(),
        ]);
        self.redis.close(simulated, now());
        self.connections[at] = self.connect();
    }

    /// Time passes for both.
    pub(super) fn pass(&mut self, millis: u64) {
        std::thread::sleep(Duration::from_millis(millis));
        self.redis.advance(now());
        self.compare();
    }

    /// True if no server has said anything to this connection yet.
    pub(super) fn is_silent(&mut self, at: usize) -> bool {
        let both = &self.connections[at];
        both.real
            .set_nonblocking(true)
            .expect("the real server and this test work");
        let is_silent = both.real.peek(&mut [0]).is_err();
        both.real
            .set_nonblocking(false)
            .expect("the real server and this test work");
        is_silent && self.redis.take_output().is_empty()
    }

    /// Keys that a reader finds expired, and one that the server finds itself.
    pub(super) fn expiry(&mut self) {
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

    pub(super) fn pauses(&mut self) {
        for mode in ["WRITE", "ALL"] {
            self.begin(mode);
            self.send(3, &["SET", "gone", "one", "PX", "50"]);
            self.direct(&["CLIENT", "PAUSE", "400", mode]);
            self.redis.pause_until(now() + 400_000_000, mode == "WRITE");
            self.pass(70);
            self.send(3, &["GET", "gone"]);
            for words in [
                &["SET", "a", "one"][..],
                &["EVAL", "return 1", "0"],
                &["DEL", "a"],
            ] {
                self.send(2, words);
            }
            assert!(self.is_silent(2), "{mode}");
            self.pass(400);
            self.settle();
        }
    }

    /// Waits until the real server answers with this error.
    pub(super) fn until(&self, code: &str) {
        eventually(Duration::from_secs(20), code, || {
            self.server
                .command(&["PING"])
                .is_err_and(|error| error.code() == Some(code))
        });
    }

    pub(super) fn a_long_script(&mut self) {
        self.begin("a long script");
        self.direct(&["CONFIG", "SET", "busy-reply-threshold", "1"]);
        self.connections[3]
            .real
            .write_all(&command(&[b"EVAL", b"while true do end", b"0"]))
            .expect("the real server and this test work");
        self.until("BUSY");
        self.redis.faults().stuck_until = u64::MAX;
        for words in [
            &["GET", "a"][..],
            &["PING"],
            &["SET", "a"],
            &["AUTH", "x"],
            &["CLIENT", "ID"],
        ] {
            self.send(2, words);
        }
        self.direct(&["SCRIPT", "KILL"]);
        self.connections[3]
            .frame()
            .expect("the real server and this test work");
        self.redis.faults().stuck_until = 0;
        self.send(2, &["GET", "a"]);
    }

    pub(super) fn loading(&mut self) {
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
        self.connections[3]
            .real
            .write_all(&command(&[b"DEBUG", b"RELOAD"]))
            .expect("the real server and this test work");
        self.until("LOADING");
        self.redis.faults().loading_until = u64::MAX;
        for words in [
            &["GET", "a"][..],
            &["PING"],
            &["SELECT", "0"],
            &["EVAL", "return 1", "0"],
            &["HELLO"],
        ] {
            self.send(2, words);
        }
        self.redis.faults().loading_until = 0;
        self.connections[3]
            .frame()
            .expect("the real server and this test work");
    }
}

/// Replicas.
impl Comparison {
    pub(super) fn waits(&mut self) {
        self.direct(&["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        let port = self.server.port().to_string();
        let _replica =
            Server::with(&["--cluster-enabled", "no", "--replicaof", "127.0.0.1", &port]);
        eventually(Duration::from_secs(20), "a replica is there", || {
            self.direct(&["SET", "x", "y"]);
            self.server
                .command(&["WAIT", "1", "100"])
                .expect("the real server and this test work")
                == redis::Value::Int(1)
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
