//! The common parts of the examples: a Redis server, and more processes of the same example.
#![allow(dead_code, reason = "no example uses all of it")]

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, Lines, PipeReader};

use relatch_rig::{Process, Server, is_server_installed, role};

/// The Redis at `REDIS_URL`. If that is not set, a private server that ends when this is dropped.
pub(crate) struct Redis {
    url: String,
    _server: Option<Server>,
}

impl Redis {
    pub(crate) fn start() -> Result<Redis, Box<dyn Error>> {
        if let Ok(url) = env::var("REDIS_URL") {
            return Ok(Redis { url, _server: None });
        }
        check_installed()?;
        // The server writes nothing to disk, so that a Ctrl-C leaves no files behind.
        let server = Server::without_files();
        Ok(Redis {
            url: server.bare_url(),
            _server: Some(server),
        })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

/// Returns an error if there is no server to start.
pub(crate) fn check_installed() -> Result<(), Box<dyn Error>> {
    if is_server_installed() {
        return Ok(());
    }
    Err("neither redis-server nor valkey-server is installed: \
         `bash examples/run.sh` installs one, or set REDIS_URL to a Redis that runs already"
        .into())
}

/// The role of this process. `None` in the process that the user started.
pub(crate) fn role() -> Option<String> {
    role::name()
}

/// This program again, once per role, each in a process of its own.
pub(crate) struct Workers {
    processes: Vec<Process>,
    /// The lines that the processes print, until the last process ends.
    pub(crate) lines: Lines<BufReader<PipeReader>>,
}

impl Workers {
    pub(crate) fn start(url: &str, roles: &[&str], args: &[String]) -> io::Result<Workers> {
        let (reader, writer) = io::pipe()?;
        let mut workers = Workers {
            processes: Vec::new(),
            lines: BufReader::new(reader).lines(),
        };
        for role in roles {
            let mut command = role::command(role, &[]);
            command
                .args(args)
                .env_remove("RELATCH_URL")
                .env("REDIS_URL", url)
                .stdout(writer.try_clone()?);
            workers.processes.push(Process::start(&mut command)?);
        }
        Ok(workers)
    }

    /// Closes the standard input of the processes, waits for their end, and returns an error if one
    /// failed.
    pub(crate) fn finish(mut self) -> Result<(), Box<dyn Error>> {
        for worker in &mut self.processes {
            if !worker.wait()?.success() {
                return Err("a worker failed".into());
            }
        }
        Ok(())
    }
}
