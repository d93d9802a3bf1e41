//! A Redis server of the caller's own.

mod lone_node;
mod program;
mod queries;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis::Connection;
use tempfile::TempDir;

use self::lone_node::{LoneNode, excludes_cluster};
use self::program::spawn;
pub use self::program::{is_server_installed, server_version};
use crate::ports::{free_node_port, free_port};
use crate::{Authority, Identity, LONG, Process, eventually, rights, road};
#[cfg(unix)]
use crate::{Sig, freeze, signal};

/// How long a server may take until it answers.
const START: Duration = LONG;

/// How long one attempt to find out whether a server answers may take.
const PING: Duration = Duration::from_millis(500);

/// How long the reply to a question that a test asks the server directly may take.
const ANSWER: Duration = Duration::from_secs(5);

/// A `redis-server` on 127.0.0.1 with a directory of its own; gone when this is dropped.
///
/// What a test asks through the methods here goes over one private connection, opened when it is
/// first needed. It is not counted by [`connections`](Self::connections), but its commands are
/// counted by [`calls`](Self::calls).
///
/// Nothing is persisted unless the arguments say so: after [`restart`](Self::restart), the server
/// is empty.
pub struct Server {
    port: u16,
    args: Vec<String>,
    env: Vec<(String, String)>,
    process: Mutex<Process>,
    private: Mutex<Option<Connection>>,
    /// Its files and its log; `None` for a server without files.
    dir: Option<TempDir>,
    /// The port for TLS, if there is one.
    tls_port: Option<u16>,
    /// The configuration of a sentinel.
    sentinel: Option<PathBuf>,
    paused: AtomicBool,
    /// What makes it the only node of a cluster, if it is one.
    lone: Option<LoneNode>,
}

impl Server {
    /// Starts a server, and returns when it answers.
    pub fn start() -> Self {
        Self::with(&[])
    }

    /// Starts a server with further arguments, such as `["--maxmemory", "1mb"]`; they win over the
    /// usual ones.
    ///
    /// With `--requirepass`, the private connection uses that password;
    /// [`bare_url`](Self::bare_url) does not contain it.
    pub fn with(args: &[&str]) -> Self {
        Self::in_env(args, &[])
    }

    /// Starts a server with further arguments and environment variables.
    pub fn in_env(args: &[&str], env: &[(&str, &str)]) -> Self {
        let env: Vec<_> = env
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
        loop {
            let dir = TempDir::new().expect("a temporary directory");
            if let Some(server) = Self::try_start(args.clone(), env.clone(), Some(dir)) {
                return server;
            }
        }
    }

    /// Starts a server that also has a port for TLS, where it shows `identity`. It accepts clients
    /// without a certificate unless `args` say otherwise; if they show one, `clients` must have
    /// issued it.
    pub fn with_tls(identity: &Identity, clients: &Authority, args: &[&str]) -> Self {
        loop {
            let dir = TempDir::new().expect("a temporary directory");
            let port = free_port();
            let mut all = tls_args(&dir, port, identity, clients);
            all.extend(args.iter().map(|&arg| arg.to_owned()));
            if let Some(mut server) = Self::try_start(all, Vec::new(), Some(dir)) {
                server.tls_port = Some(port);
                return server;
            }
        }
    }

    /// Starts a node of a cluster, whose state is `nodes`; `None` if one of its ports was taken
    /// meanwhile. `tls` is the port for TLS, and what [`with_tls`](Self::with_tls) wants.
    pub(crate) fn try_node(
        port: u16,
        nodes: &str,
        tls: Option<(u16, &Identity, &Authority)>,
        mut args: Vec<String>,
    ) -> Option<Self> {
        let dir = TempDir::new().expect("a temporary directory");
        fs::write(dir.path().join("nodes.conf"), nodes).expect("a file can be written");
        if let Some((port, identity, clients)) = tls {
            args.extend(tls_args(&dir, port, identity, clients));
        }
        let mut server = Self::try_start_at(port, args, Vec::new(), Some(dir), None)?;
        server.tls_port = tls.map(|(port, ..)| port);
        Some(server)
    }

    /// The port for TLS.
    #[track_caller]
    pub fn tls_port(&self) -> u16 {
        self.tls_port.expect("a server with TLS")
    }

    /// The address for a manager that uses TLS, with the login if there is one (see [`rights`]).
    #[track_caller]
    pub fn tls_url(&self) -> String {
        format!("rediss://{}localhost:{}/", rights::login(), self.tls_port())
    }

    /// Starts a server that creates no file, so that none is left behind if this process is killed.
    pub fn without_files() -> Self {
        let mut attempts = (0..10).map(|_| Self::try_start(Vec::new(), Vec::new(), None));
        attempts
            .find_map(|server| server)
            .expect("the server can be started")
    }

    /// Starts a sentinel with this configuration; `None` if the port was taken meanwhile.
    pub(crate) fn try_sentinel(port: u16, config: &str, args: Vec<String>) -> Option<Self> {
        let dir = TempDir::new().expect("a temporary directory");
        let path = dir.path().join("sentinel.conf");
        fs::write(&path, config).expect("a file can be written");
        Self::try_start_at(port, args, Vec::new(), Some(dir), Some(path))
    }

    /// Starts a server on a random port; `None` if that port was taken meanwhile.
    fn try_start(
        args: Vec<String>,
        env: Vec<(String, String)>,
        dir: Option<TempDir>,
    ) -> Option<Self> {
        // A node of a cluster also needs a port for its bus.
        let port = if road::is_in_cluster() {
            free_node_port()
        } else {
            free_port()
        };
        Self::try_start_at(port, args, env, dir, None)
    }

    fn try_start_at(
        port: u16,
        mut args: Vec<String>,
        env: Vec<(String, String)>,
        dir: Option<TempDir>,
        sentinel: Option<PathBuf>,
    ) -> Option<Self> {
        let lone = road::is_in_cluster() && sentinel.is_none() && !excludes_cluster(&args);
        let lone = dir
            .as_ref()
            .filter(|_| lone)
            .map(|dir| LoneNode::new(dir.path(), port));
        if let Some(lone) = &lone {
            args.extend(lone.begin());
        }
        let process = Mutex::new(start(port, dir.as_ref(), sentinel.as_deref(), &args, &env));
        let (private, paused) = (Mutex::new(None), AtomicBool::new(false));
        let server = Self {
            port,
            args,
            env,
            process,
            private,
            dir,
            tls_port: None,
            sentinel,
            paused,
            lone,
        };
        server.becomes_ready().then_some(server)
    }

    /// The address for a manager, with the login if there is one (see [`rights`]).
    pub fn url(&self) -> String {
        road::url(self.port)
    }

    /// The address without a login, for what the least rights do not cover: other keys, prefixes
    /// and databases, and tests of logins.
    pub fn bare_url(&self) -> String {
        format!("redis://{}/", self.address())
    }

    /// Host and port.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port, the same for as long as this lives.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// A plain connection of the `redis` crate.
    #[track_caller]
    pub fn connect(&self) -> Connection {
        let client = redis::Client::open(self.bare_url()).expect("a valid address");
        client.get_connection().expect("connects")
    }

    /// The process id, another one after [`restart`](Self::restart).
    pub fn pid(&self) -> u32 {
        self.process.lock().pid()
    }

    /// Whether the process exists; a paused one does.
    pub fn is_running(&self) -> bool {
        self.process.lock().is_running()
    }

    /// Whether the process runs and is not paused.
    pub(crate) fn is_awake(&self) -> bool {
        self.is_running() && !self.paused.load(Ordering::SeqCst)
    }

    /// Stops the process: connections stay, connects succeed, nothing is answered. Returns when it
    /// has stopped.
    #[cfg(unix)]
    #[track_caller]
    pub fn pause(&self) {
        freeze(self.pid());
        self.paused.store(true, Ordering::SeqCst);
    }

    /// Continues a paused process.
    #[cfg(unix)]
    #[track_caller]
    pub fn resume(&self) {
        self.paused.store(false, Ordering::SeqCst);
        signal(self.pid(), Sig::Cont);
    }

    /// Kills the process with `SIGKILL`, paused or not, and returns when it is gone.
    pub fn kill(&self) {
        self.process.lock().kill();
        self.paused.store(false, Ordering::SeqCst);
        *self.private.lock() = None;
    }

    /// Starts the process again, killing it first if need be, on the same port with the same
    /// arguments; returns when it answers. While it loads data, the first answers may be `LOADING`
    /// errors.
    pub fn restart(&self) {
        self.kill();
        if let Some(lone) = &self.lone {
            lone.begin();
        }
        let sentinel = self.sentinel.as_deref();
        *self.process.lock() = start(
            self.port,
            self.dir.as_ref(),
            sentinel,
            &self.args,
            &self.env,
        );
        assert!(self.becomes_ready(), "port {} was taken", self.port);
    }

    /// Returns true when the server answers, false when its port was taken; panics if it stalls, or
    /// ends for another reason.
    fn becomes_ready(&self) -> bool {
        let log = || self.log();
        let start = Instant::now();
        eventually(2 * START, "the server answers or ends", || {
            let waited = start.elapsed();
            assert!(
                waited < START,
                "no answer from the server:\n{}",
                log().unwrap_or_default()
            );
            !self.is_running() || answers(self.port)
        });
        if self.is_running() && !self.is_another() {
            if self.lone.is_some() {
                LoneNode::take_over(self);
            }
            return true;
        }
        eventually(START, "the server ends", || !self.is_running());
        // A server without a log does not say why it ended. It got no arguments that could be
        // wrong, so the port was taken.
        let taken = log().is_none_or(|log| log.contains("already in use"));
        assert!(
            taken,
            "the server ended at once:\n{}",
            log().unwrap_or_default()
        );
        false
    }

    /// What it logged since its last start; `None` for a server without files.
    pub fn log(&self) -> Option<String> {
        fs::read_to_string(log_in(self.dir.as_ref()?)).ok()
    }

    /// Whether another server answers at the port, and not the one that was started here.
    fn is_another(&self) -> bool {
        let Ok(info) = self.command(&["INFO", "server"]) else {
            return false;
        };
        let info: String = redis::from_redis_value(info).expect("INFO is a string");
        number_after(&info, "process_id:") != Some(self.pid().into())
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !thread::panicking() && self.is_running() && answers(self.port) {
            rights::note_refused(|| self.refused());
        }
    }
}

fn start(
    port: u16,
    dir: Option<&TempDir>,
    sentinel: Option<&Path>,
    args: &[String],
    env: &[(String, String)],
) -> Process {
    let log = dir.map(|dir| File::create(log_in(dir)).expect("a log file"));
    let anywhere = std::env::temp_dir();
    spawn(
        port,
        dir.map_or(&*anywhere, TempDir::path),
        sentinel,
        log.as_ref(),
        args,
        env,
    )
}

/// The arguments for a port with TLS. Their files are put into `dir`.
fn tls_args(dir: &TempDir, port: u16, identity: &Identity, clients: &Authority) -> Vec<String> {
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("a file can be written");
        path.to_str().expect("a printable path").to_owned()
    };
    let all = [
        ("--tls-port", port.to_string()),
        (
            "--tls-cert-file",
            file("certificate.pem", &identity.certificate),
        ),
        ("--tls-key-file", file("key.pem", &identity.key)),
        ("--tls-ca-cert-file", file("clients.pem", clients.pem())),
        ("--tls-auth-clients", "no".to_owned()),
    ];
    // A node of a cluster then names the port for TLS to clients that use it.
    let cluster = road::is_in_cluster().then(|| ("--tls-cluster", "yes".to_owned()));
    all.into_iter()
        .chain(cluster)
        .flat_map(|(name, value)| [name.to_owned(), value])
        .collect()
}

fn log_in(dir: &TempDir) -> PathBuf {
    dir.path().join("log")
}

/// Whether anything answers PING at `port`, even with an error.
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
