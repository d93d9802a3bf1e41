//! The server, and the workers that take locks on it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use relatch_rig::Server;

use crate::languages::Program;
use crate::peer::{Language, Peer};
use crate::watch::Watch;

/// How long to wait for a worker's answer: a little longer than a lease, since a worker may have to
/// wait for a lease to end.
const PATIENCE: Duration = Duration::from_secs(40);

/// How long to wait until a worker is ready: several Java virtual machines on one busy core start
/// slowly.
pub(crate) const START: Duration = Duration::from_secs(120);

/// The lease: the same for all peers, and relatch's default.
const LEASE_MS: u32 = 30_000;

/// What all scenarios of a setting share.
pub(crate) struct Stage<'a> {
    programs: &'a BTreeMap<Language, Program>,
    server: Server,
    /// How many keys were used. No key is used twice, so that a key left behind does not disturb
    /// the next worker.
    keys: u32,
}

impl Stage<'_> {
    /// Starts a server.
    pub(crate) fn set(programs: &BTreeMap<Language, Program>) -> Stage<'_> {
        Stage {
            programs,
            server: Server::without_files(),
            keys: 0,
        }
    }

    /// The version of the server.
    pub(crate) fn version(&self) -> Result<String> {
        self.info("server", "redis_version")
    }

    /// The commands that the server has executed so far, without this one. Redis also counts
    /// commands inside scripts.
    pub(crate) fn commands(&self) -> Result<u64> {
        Ok(self.info("stats", "total_commands_processed")?.parse()?)
    }

    /// Begins to count the commands that clients send.
    pub(crate) fn watch(&self) -> Result<Watch> {
        Watch::start(&self.server.address())
    }

    /// The commands that clients have sent since the watch began.
    pub(crate) fn end(&self, watch: Watch) -> Result<u64> {
        self.server.command(&["ECHO", Watch::END])?;
        watch.count()
    }

    /// Nanoseconds of processor time that the server has used.
    pub(crate) fn cpu(&self) -> Result<u64> {
        let user: f64 = self.info("cpu", "used_cpu_user")?.parse()?;
        let system: f64 = self.info("cpu", "used_cpu_sys")?.parse()?;
        Ok(u64::try_from(
            Duration::try_from_secs_f64(user + system)?.as_nanos(),
        )?)
    }

    /// One round trip.
    pub(crate) fn ping(&self) -> Result<()> {
        Ok(self.server.command(&["PING"]).map(drop)?)
    }

    fn info(&self, section: &str, name: &str) -> Result<String> {
        let text: String = self.server.query(&["INFO", section]);
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value
            .with_context(|| format!("INFO has no {name}"))?
            .trim()
            .to_owned())
    }

    pub(crate) fn key(&mut self) -> String {
        self.keys += 1;
        format!("peers:{}", self.keys)
    }

    /// Starts processes that work for a peer, and waits until all are ready.
    pub(crate) fn workers(&self, peer: Peer, count: usize) -> Result<Vec<Worker>> {
        let program = self
            .programs
            .get(&peer.language())
            .context("there is no program for it")?;
        let start = |_| Worker::start(program.worker(&self.server.bare_url(), peer, LEASE_MS));
        let mut workers = (0..count).map(start).collect::<Result<Vec<_>>>()?;
        workers
            .iter_mut()
            .try_for_each(|worker| worker.hear_within("ready", START).map(drop))?;
        Ok(workers)
    }
}

/// A process that gets its commands line by line. Dropping this ends the process.
pub(crate) struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    pub(crate) fn start(mut command: Command) -> Result<Worker> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("a pipe")?;
        let said = BufReader::new(child.stdout.take().context("a pipe")?);
        let (lines, heard) = channel();
        thread::spawn(move || {
            said.lines()
                .map_while(Result::ok)
                .try_for_each(|line| lines.send(line))
        });
        Ok(Worker {
            child,
            input,
            lines: heard,
        })
    }

    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// Waits for the next line, which has to begin with `word`. Returns the rest of the line.
    pub(crate) fn hear(&mut self, word: &str) -> Result<String> {
        self.hear_within(word, PATIENCE)
    }

    pub(crate) fn hear_within(&mut self, word: &str, limit: Duration) -> Result<String> {
        let line = self
            .lines
            .recv_timeout(limit)
            .with_context(|| format!("no `{word}` from a worker"))?;
        let rest = line
            .strip_prefix(word)
            .with_context(|| format!("a worker said: {line}"))?;
        Ok(rest.trim_start().to_owned())
    }

    /// The next line, if there is one within the limit.
    pub(crate) fn line(&self, limit: Duration) -> Result<String, RecvTimeoutError> {
        self.lines.recv_timeout(limit)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A number that the worker says after `word`.
    pub(crate) fn hear_number(&mut self, word: &str) -> Result<u64> {
        Ok(self.hear(word)?.parse()?)
    }

    /// The processor time that the worker has used so far, in nanoseconds.
    pub(crate) fn cpu(&mut self) -> Result<u64> {
        self.tell("cpu")?;
        self.hear_number("cpu")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
