//! The server's program: which one it is, and how it is started.

use std::fs::File;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use super::number_after;
use crate::{Process, rights};

/// The environment variable with the path of the server program that the tests use.
const PROGRAM: &str = "RELATCH_TEST_SERVER";

/// The programs that are tried, in this order, if that variable is not set.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// The version of the server, major and minor, for tests of what differs between servers.
pub fn server_version() -> (u32, u32) {
    program().1
}

/// Whether there is a program to run: without one, [`Server::start`](super::Server::start) panics.
pub fn is_server_installed() -> bool {
    find().is_some()
}

/// Starts a server on `port` that logs to `log` and keeps its files, if it has any, in `dir`. With
/// a file `sentinel`, it is a sentinel, which rewrites that file.
pub(super) fn spawn(
    port: u16,
    dir: &Path,
    sentinel: Option<&Path>,
    log: Option<&File>,
    args: &[String],
    env: &[(String, String)],
) -> Process {
    let (program, version) = program();
    // Servers before 7 do not know the option, and always have the `DEBUG` command.
    let debug = if *version >= (7, 0) {
        &["--enable-debug-command", "yes"][..]
    } else {
        &[]
    };
    let output = || {
        let log = log.map(|log| log.try_clone().expect("a second handle of the log"));
        log.map_or_else(Stdio::null, Stdio::from)
    };
    let mut command = Command::new(program);
    match sentinel {
        Some(config) => command.arg(config).arg("--sentinel"),
        None => command.args(rights::server_args()),
    };
    command
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(debug)
        .arg("--dir")
        .arg(dir)
        .args(args)
        // A locale that is set but not installed keeps the server from starting.
        .env("LC_ALL", "C")
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(output())
        .stderr(output());
    Process::start(&mut command).unwrap_or_else(|error| panic!("cannot start {program}: {error}"))
}

/// The server's program and its version.
fn program() -> &'static (String, (u32, u32)) {
    find().unwrap_or_else(|| {
        panic!(
            "there is no server: neither in {PROGRAM}, nor one of {PROGRAMS:?} in PATH. \
             The tests need a real one. Install Redis 6.2 or newer (apt-get install redis-server, \
             brew install redis) or Valkey"
        )
    })
}

fn find() -> Option<&'static (String, (u32, u32))> {
    static FOUND: OnceLock<Option<(String, (u32, u32))>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let named = std::env::var(PROGRAM);
        let programs = named.map_or_else(|_| PROGRAMS.map(str::to_owned).to_vec(), |it| vec![it]);
        for program in programs {
            match Command::new(&program).arg("--version").output() {
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stdout).into_owned();
                    let version = version_in(&said);
                    let version = version.unwrap_or_else(|| panic!("no version in {said:?}"));
                    return Some((program, version));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => panic!("cannot start {program}: {error}"),
            }
        }
        None
    });
    found.as_ref()
}

/// Reads `Redis server v=6.2.14 sha=...`.
fn version_in(said: &str) -> Option<(u32, u32)> {
    let major = number_after(said, " v=")?;
    let minor = number_after(said, &format!(" v={major}."))?;
    Some((major.try_into().ok()?, minor.try_into().ok()?))
}
