//! What the examples stand on: a Redis to talk to, and more processes of the same example.
#![allow(dead_code, reason = "no example uses all of it")]

use std::env;
use std::error::Error;
use std::io::{self, BufRead, BufReader, ErrorKind, Lines, PipeReader};
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use relatch::LockManager;

/// Set in worker processes only: which part to play.
const ROLE: &str = "RELATCH_EXAMPLE_ROLE";

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(10);

/// The Redis at `REDIS_URL`, or else a private one that is gone when this is dropped.
pub(crate) struct Redis {
    url: String,
    _server: Option<Process>,
}

impl Redis {
    pub(crate) fn start() -> Result<Redis, Box<dyn Error>> {
        if let Ok(url) = env::var("REDIS_URL") {
            return Ok(Redis { url, _server: None });
        }
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
        let url = format!("redis://127.0.0.1:{port}/");
        let mut server = spawn_server(port)?;
        let deadline = Instant::now() + START;
        while let Err(error) = LockManager::connect(&url) {
            if server.0.try_wait()?.is_some() || Instant::now() > deadline {
                return Err(format!("the Redis server that was started here does not answer: {error}").into());
            }
            sleep(Duration::from_millis(10));
        }
        Ok(Redis { url, _server: Some(server) })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }
}

/// Writes nothing to disk, whatever happens: so there is nothing to clean up after a Ctrl-C either.
fn spawn_server(port: u16) -> Result<Process, Box<dyn Error>> {
    for program in ["redis-server", "valkey-server"] {
        let mut command = Command::new(program);
        command.args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        // A locale that is set but not installed keeps the server from starting.
        command.current_dir(env::temp_dir()).env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::null());
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            spawned => return Ok(Process(spawned?)),
        }
    }
    Err("neither redis-server nor valkey-server is installed: `bash examples/run.sh` installs one, \
         or set REDIS_URL to a Redis that runs already"
        .into())
}

/// The part this process plays, or `None` in the process that the user started.
pub(crate) fn role() -> Option<String> {
    env::var(ROLE).ok()
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
            let mut command = Command::new(env::current_exe()?);
            command.args(args).env(ROLE, role).env("REDIS_URL", url);
            command.stdin(Stdio::piped()).stdout(writer.try_clone()?);
            workers.processes.push(Process(command.spawn()?));
        }
        Ok(workers)
    }

    /// Closes their standard input, waits for their end, and says whether all went well.
    pub(crate) fn finish(mut self) -> Result<(), Box<dyn Error>> {
        for worker in &mut self.processes {
            if !worker.0.wait()?.success() {
                return Err("a worker failed".into());
            }
        }
        Ok(())
    }
}

/// A child process that is killed on drop, if it still runs.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
