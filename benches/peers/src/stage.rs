//! The server, and the workers that are sent to it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use crate::peer::Peer;
use crate::python::Python;
use crate::server::{Info, Server};

/// What all scenarios share.
pub(crate) struct Stage {
    server: Server,
    pub(crate) info: Info,
    /// Its version.
    pub(crate) redis: String,
    /// Or why there is none.
    pub(crate) python: Result<Python>,
    /// No key is used twice: what one worker left behind is not in the way of the next.
    keys: u32,
}

impl Stage {
    pub(crate) fn set(python: bool) -> Result<Stage> {
        let server = Server::start()?;
        let python = if python {
            eprintln!("installing the Python locks into a temporary folder");
            Python::install()
        } else {
            Err(anyhow!("--no-python was given"))
        };
        if let Err(why) = &python {
            eprintln!("LEFT OUT: redis-py and python-redis-lock ({why:#})");
        }
        let mut info = server.info()?;
        Ok(Stage { redis: info.version()?, info, server, python, keys: 0 })
    }

    pub(crate) fn has(&self, peer: Peer) -> bool {
        !peer.is_python() || self.python.is_ok()
    }

    pub(crate) fn key(&mut self) -> String {
        self.keys += 1;
        format!("peers:{}", self.keys)
    }

    /// Starts a process that does `work` with a peer, and waits until it is ready.
    pub(crate) fn worker(&self, work: &str, peer: Peer, key: &str, more: &[String]) -> Result<Worker> {
        let mut command = match &self.python {
            Ok(python) if peer.is_python() => python.worker(),
            Err(why) if peer.is_python() => bail!("{why:#}"),
            _ => Command::new(std::env::current_exe()?),
        };
        let argument = peer.argument();
        command.args([work, "--url", self.server.url(), "--peer", &argument, "--key", key]).args(more);
        let mut worker = Worker::start(command)?;
        worker.hear("ready", Duration::from_secs(20))?;
        Ok(worker)
    }
}

/// A process that is told what to do, line by line. Ended when dropped.
pub(crate) struct Worker {
    child: Child,
    told: ChildStdin,
    lines: Receiver<String>,
}

impl Worker {
    fn start(mut command: Command) -> Result<Worker> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let told = child.stdin.take().context("a pipe")?;
        let said = BufReader::new(child.stdout.take().context("a pipe")?);
        let (lines, heard) = channel();
        thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| lines.send(line)));
        Ok(Worker { child, told, lines: heard })
    }

    pub(crate) fn tell(&mut self, line: &str) -> Result<()> {
        Ok(writeln!(self.told, "{line}")?)
    }

    /// The next line, which begins with `word`; what comes after it.
    pub(crate) fn hear(&mut self, word: &str, limit: Duration) -> Result<String> {
        let line = self.lines.recv_timeout(limit).with_context(|| format!("no `{word}` from a worker"))?;
        let rest = line.strip_prefix(word).with_context(|| format!("a worker said: {line}"))?;
        Ok(rest.trim_start().to_owned())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
