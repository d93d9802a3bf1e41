//! What the examples stand on: a Redis to talk to, and more processes of the same example.
#![allow(dead_code, reason = "no example uses all of it")]

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Lines, PipeReader};

use relatch_rig::{Process, Server, is_server_installed, role};

/// The Redis at `REDIS_URL`, or else a private one that ends when this is dropped.
pub(crate) struct Redis {
    url: String,
    _server: Option<Server>,
}

impl Redis {
    pub(crate) fn start() -> Result<Redis, Box<dyn Error>> {
        if let Ok(url) = env::var("REDIS_URL") {
            return Ok(Redis { url, _server: None });
        }
        if !is_server_installed() {
            return Err("neither redis-server nor valkey-server is installed: \
                 `bash examples/run.sh` installs one, or set REDIS_URL to a Redis that runs already"
                .into());
        }
        // It writes nothing to disk, so that nothing is left behind after a Ctrl-C.
        let server = Server::without_files();
        Ok(Redis { url: server.bare_url(), _server: Some(server) })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

/// The part this process plays, or `None` in the process that the user started.
pub(crate) fn role() -> Option<String> {
    role::name()
}

/// This program again, once per role, each in a process of its own.
pub(crate) struct Workers {
    processes: Vec<Process>,
    /// What they print, line by line, until the last of them ends.
    pub(crate) lines: Lines<BufReader<PipeReader>>,
}

impl Workers {
    pub(crate) fn start(url: &str, roles: &[&str], args: &[String]) -> io::Result<Workers> {
        let (reader, writer) = io::pipe()?;
        let mut workers = Workers { processes: Vec::new(), lines: BufReader::new(reader).lines() };
        for role in roles {
            let mut command = role::command(role, &[]);
            command.args(args).env("REDIS_URL", url).stdout(writer.try_clone()?);
            workers.processes.push(Process::start(&mut command)?);
        }
        Ok(workers)
    }

    /// Closes their standard input, waits for their end, and says whether all went well.
    pub(crate) fn finish(mut self) -> Result<(), Box<dyn Error>> {
        for worker in &mut self.processes {
            if !worker.wait()?.success() {
                return Err("a worker failed".into());
            }
        }
        Ok(())
    }
}
