//! A Redis server of a test's own.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::{Client, Connection, FromRedisValue, IntoConnectionInfo, RedisResult, Value};
use tempfile::TempDir;

use super::{Sig, eventually, freeze, listen, rights, signal};

/// The variable that says which server the tests run against: the path of its program.
const PROGRAM: &str = "RELATCH_TEST_SERVER";

/// What there is to try, in this order, where that variable is not set.
const PROGRAMS: [&str; 2] = ["redis-server", "valkey-server"];

/// How long a server may take until it answers.
const START: Duration = Duration::from_secs(20);

/// How long one attempt at finding out whether it answers may take.
const PING: Duration = Duration::from_millis(500);

/// How long a question that a test asks the server directly may take.
const ANSWER: Duration = Duration::from_secs(5);

/// A `redis-server` on 127.0.0.1 with its own directory, gone when this is dropped.
///
/// What a test asks it through the methods here goes over one private connection, opened when first needed. It is not
/// counted by [`connections`](Self::connections), but its commands are counted by [`calls`](Self::calls).
///
/// Nothing is persisted unless the arguments say so: after [`restart`](Self::restart) it is empty.
pub(crate) struct Server {
    port: u16,
    args: Vec<String>,
    env: Vec<(String, String)>,
    process: Mutex<Child>,
    private: Mutex<Option<Connection>>,
    dir: TempDir,
}

impl Server {
    /// Starts a server, and returns when it answers.
    pub(crate) fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments, such as `["--maxmemory", "1mb"]`; they win over the usual ones.
    ///
    /// Given `--requirepass`, the private connection uses that password; [`bare_url`](Self::bare_url) does not contain it.
    pub(crate) fn with(args: &[&str]) -> Self {
        Self::in_env(args, &[])
    }

    /// The same, with further environment variables.
    pub(crate) fn in_env(args: &[&str], env: &[(&str, &str)]) -> Self {
        let env: Vec<_> = env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        loop {
            let dir = TempDir::new().expect("a temporary directory");
            let port = listen().local_addr().expect("a bound listener").port();
            let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
            let server = Self {
                port,
                process: Mutex::new(spawn(port, dir.path(), &args, &env)),
                private: Mutex::new(None),
                args,
                env: env.clone(),
                dir,
            };
            if server.becomes_ready() {
                return server;
            }
        }
    }

    /// The address for a manager, as whom it is to log in included: usually nobody in particular.
    pub(crate) fn url(&self) -> String {
        format!("redis://{}127.0.0.1:{}/", rights::login(), self.port)
    }

    /// The address alone, for what the least rights do not cover: other keys, prefixes and databases, and tests of logins.
    pub(crate) fn bare_url(&self) -> String {
        format!("redis://127.0.0.1:{}/", self.port)
    }

    /// The port, the same for as long as this lives.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The process id, another one after [`restart`](Self::restart).
    pub(crate) fn pid(&self) -> u32 {
        self.process.lock().id()
    }

    /// Whether the process exists; a paused one does.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.process.lock().try_wait(), Ok(None))
    }

    /// Sends a command and returns the reply.
    ///
    /// When the connection turns out to be broken it is opened again and the command sent once more; when there is no
    /// reply for 5 s it is not.
    pub(crate) fn command(&self, words: &[&str]) -> RedisResult<Value> {
        let mut private = self.private.lock();
        let reused = private.is_some();
        let result = self.attempt(&mut private, words);
        match result {
            Err(error) if reused && error.is_connection_dropped() => self.attempt(&mut private, words),
            result => result,
        }
    }

    /// Sends a command and returns the reply as a `T`; panics if that fails.
    #[track_caller]
    pub(crate) fn query<T: FromRedisValue>(&self, words: &[&str]) -> T {
        let result = self.command(words);
        let value = result.unwrap_or_else(|error| panic!("{words:?}: {error}"));
        redis::from_redis_value(value).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// The string at `key`.
    #[track_caller]
    pub(crate) fn get(&self, key: &str) -> Option<String> {
        self.query(&["GET", key])
    }

    /// Milliseconds until `key` expires: -1 if never, -2 if there is no such key.
    #[track_caller]
    pub(crate) fn pttl(&self, key: &str) -> i64 {
        self.query(&["PTTL", key])
    }

    /// Whether there is a `key`.
    #[track_caller]
    pub(crate) fn exists(&self, key: &str) -> bool {
        self.query(&["EXISTS", key])
    }

    /// How often `command` was called since the start or [`reset_stats`](Self::reset_stats), by anybody, scripts and
    /// this helper included. A subcommand is written `client|id`; a command with subcommands has no count
    /// of its own. (Before Redis 7 it is the other way round: a subcommand has none. See [`is_heard`](Self::is_heard).)
    #[track_caller]
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let info: String = self.query(&["INFO", "commandstats"]);
        let start = format!("cmdstat_{}:calls=", command.to_lowercase());
        number_after(&info, &start).unwrap_or(0)
    }

    /// The sum of [`calls`](Self::calls) over `commands`.
    #[track_caller]
    pub(crate) fn total_calls(&self, commands: &[&str]) -> u64 {
        commands.iter().map(|command| self.calls(command)).sum()
    }

    /// How many commands were executed since then by anybody, scripts included: all but `INFO`, which tells.
    #[track_caller]
    pub(crate) fn all_calls(&self) -> u64 {
        let info: String = self.query(&["INFO", "commandstats"]);
        let others = info.lines().filter(|line| !line.starts_with("cmdstat_info:"));
        others.filter_map(|line| number_after(line, ":calls=")).sum()
    }

    /// How many keys there are whose next change Redis will tell somebody.
    #[track_caller]
    pub(crate) fn tracked_keys(&self) -> u64 {
        let info: String = self.query(&["INFO", "stats"]);
        number_after(&info, "tracking_total_keys:").expect("tracking_total_keys in INFO")
    }

    /// The numbers of the connections that subscribed to something: those that are told.
    #[track_caller]
    pub(crate) fn listeners(&self) -> Vec<u64> {
        let clients: String = self.query(&["CLIENT", "LIST", "TYPE", "PUBSUB"]);
        clients.lines().map(|line| number_after(line, "id=").expect("an id in CLIENT LIST")).collect()
    }

    /// The numbers of the connections of which `CLIENT LIST` says this, such as `cmd=evalsha`.
    #[track_caller]
    pub(crate) fn clients_with(&self, word: &str) -> Vec<u64> {
        let clients: String = self.query(&["CLIENT", "LIST"]);
        let found = clients.lines().filter(|line| line.split(' ').any(|it| it == word));
        found.map(|line| number_after(line, "id=").expect("an id in CLIENT LIST")).collect()
    }

    /// Whether somebody has asked for word to be sent to a connection that is there to hear it.
    #[track_caller]
    pub(crate) fn is_heard(&self) -> bool {
        let clients: String = self.query(&["CLIENT", "LIST"]);
        let listeners = self.listeners();
        let mut told = clients.lines().filter_map(|line| number_after(line, " redir="));
        told.any(|number| listeners.contains(&number))
    }

    /// Sets all counts to 0.
    #[track_caller]
    pub(crate) fn reset_stats(&self) {
        self.query::<()>(&["CONFIG", "RESETSTAT"]);
    }

    /// How many clients are connected, besides the one this asks with.
    #[track_caller]
    pub(crate) fn connections(&self) -> u64 {
        let info: String = self.query(&["INFO", "clients"]);
        number_after(&info, "connected_clients:").expect("connected_clients in INFO") - 1
    }

    /// As whom each client has logged in, besides the one this asks with.
    #[track_caller]
    pub(crate) fn users(&self) -> Vec<String> {
        let this = format!("id={} ", self.query::<u64>(&["CLIENT", "ID"]));
        let clients: String = self.query(&["CLIENT", "LIST"]);
        let others = clients.lines().filter(|line| !line.starts_with(&this));
        let user =
            |line: &str| line.split(' ').find_map(|word| word.strip_prefix("user=").map(str::to_owned));
        others.filter_map(user).collect()
    }

    /// What the server refused for want of a right, the last first (and no more than 128): the user, and the command, key or
    /// channel.
    #[track_caller]
    pub(crate) fn refused(&self) -> Vec<(String, String)> {
        let log: Vec<HashMap<String, Value>> = self.query(&["ACL", "LOG", "128"]);
        let word = |value: &Value| redis::from_redis_value(value.clone()).expect("a string");
        log.iter().map(|entry| (word(&entry["username"]), word(&entry["object"]))).collect()
    }

    /// Stops the process: connections stay, connects succeed, nothing is answered. Returns when it has stopped.
    #[track_caller]
    pub(crate) fn pause(&self) {
        freeze(self.pid());
    }

    /// Lets a paused process go on.
    #[track_caller]
    pub(crate) fn resume(&self) {
        signal(self.pid(), Sig::Cont);
    }

    /// Kills the process with `SIGKILL`, paused or not, and returns when it is gone.
    pub(crate) fn kill(&self) {
        let mut process = self.process.lock();
        process.kill().expect("the server can be killed");
        process.wait().expect("the server can be waited for");
        *self.private.lock() = None;
    }

    /// Starts the process again, killing it first if need be, on the same port with the same arguments; returns when
    /// it answers. With data to load, the first answers may be `LOADING` errors.
    pub(crate) fn restart(&self) {
        self.kill();
        *self.process.lock() = spawn(self.port, self.dir.path(), &self.args, &self.env);
        assert!(self.becomes_ready(), "port {} was taken", self.port);
    }

    fn attempt(&self, private: &mut Option<Connection>, words: &[&str]) -> RedisResult<Value> {
        let mut connection = match private.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let result = redis::cmd(words[0]).arg(&words[1..]).query(&mut connection);
        if !matches!(&result, Err(error) if error.is_io_error()) {
            *private = Some(connection);
        }
        result
    }

    fn connect(&self) -> RedisResult<Connection> {
        let info = self.bare_url().into_connection_info()?;
        let mut login = info.redis_settings().clone().set_skip_set_lib_name();
        if let Some(at) = self.args.iter().position(|arg| arg == "--requirepass") {
            login = login.set_password(&self.args[at + 1]);
        }
        let client = Client::open(info.set_redis_settings(login))?;
        let connection = client.get_connection_with_timeout(ANSWER)?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.set_write_timeout(Some(ANSWER))?;
        Ok(connection)
    }

    /// Returns true when the server answers, false when its port was taken; panics if it stalls or ends otherwise.
    fn becomes_ready(&self) -> bool {
        let log = || fs::read_to_string(self.dir.path().join("log")).unwrap_or_default();
        let start = Instant::now();
        eventually(2 * START, "the server answers or ends", || {
            let waited = start.elapsed();
            assert!(waited < START, "no answer from the server:\n{}", log());
            !self.is_running() || answers(self.port)
        });
        if self.is_running() && !self.is_somebody_else() {
            return true;
        }
        eventually(START, "the server ends", || !self.is_running());
        let taken = log().contains("already in use");
        assert!(taken, "the server ended at once:\n{}", log());
        false
    }

    /// Whether the one that answers is not the one that was started, as far as it says who it is.
    fn is_somebody_else(&self) -> bool {
        let Ok(info) = self.command(&["INFO", "server"]) else {
            return false;
        };
        let info: String = redis::from_redis_value(info).expect("INFO is a string");
        number_after(&info, "process_id:") != Some(self.pid().into())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking() && self.is_running() && answers(self.port) {
            rights::note_refused(|| self.refused());
        }
        // Neither can fail in a way that matters here, and a panic in a drop would hide the one that led to it.
        let process = self.process.get_mut();
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn spawn(port: u16, dir: &Path, args: &[String], env: &[(String, String)]) -> Child {
    let (program, version) = program();
    // Servers before 7 do not know the option, and have the command without it.
    let debug = if *version >= (7, 0) { &["--enable-debug-command", "yes"][..] } else { &[] };
    let log = File::create(dir.join("log")).expect("a log file");
    let spawned = Command::new(program)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
        .args(["--save", "", "--appendonly", "no"])
        .args(debug)
        .arg("--dir")
        .arg(dir)
        .args(rights::server_args())
        .args(args)
        .envs(env.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(log.try_clone().expect("a second handle of the log"))
        .stderr(log)
        .spawn();
    spawned.unwrap_or_else(|error| panic!("cannot start {program}: {error}"))
}

/// The server's version, major and minor: for tests of what differs between servers.
pub(crate) fn server_version() -> (u32, u32) {
    program().1
}

/// The server's program and its version.
fn program() -> &'static (String, (u32, u32)) {
    static FOUND: OnceLock<(String, (u32, u32))> = OnceLock::new();
    FOUND.get_or_init(|| {
        let named = std::env::var(PROGRAM);
        let programs = named.map_or_else(|_| PROGRAMS.map(str::to_owned).to_vec(), |named| vec![named]);
        for program in programs {
            match Command::new(&program).arg("--version").output() {
                Ok(output) => {
                    let said = String::from_utf8_lossy(&output.stdout).into_owned();
                    let version = version_in(&said);
                    return (program, version.unwrap_or_else(|| panic!("no version in {said:?}")));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => panic!("cannot start {program}: {error}"),
            }
        }
        panic!(
            "there is no server: neither in {PROGRAM}, nor one of {PROGRAMS:?} in PATH. The integration tests need \
             a real one. Install Redis 6.2 or newer (apt-get install redis-server, brew install redis) or Valkey"
        );
    })
}

/// Reads `Redis server v=6.2.14 sha=...`.
fn version_in(said: &str) -> Option<(u32, u32)> {
    let major = number_after(said, " v=")?;
    let minor = number_after(said, &format!(" v={major}."))?;
    Some((major.try_into().ok()?, minor.try_into().ok()?))
}

/// Whether anything answers PING at `port`, be it with an error.
fn answers(port: u16) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let ask = || -> io::Result<bool> {
        let mut stream = TcpStream::connect_timeout(&address, PING)?;
        stream.set_read_timeout(Some(PING))?;
        stream.write_all(b"PING\r\n")?;
        let mut first = [0];
        stream.read_exact(&mut first)?;
        Ok(matches!(&first, b"+" | b"-"))
    };
    ask().unwrap_or(false)
}

/// Returns the number that follows `start` in `text`.
fn number_after(text: &str, start: &str) -> Option<u64> {
    let rest = &text[text.find(start)? + start.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit());
    rest[..end.unwrap_or(rest.len())].parse().ok()
}
