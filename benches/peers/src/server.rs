//! A redis-server of our own, and what it says about itself.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// A server that ends when its input does: also when this process was killed, and could not end it.
const AS_LONG_AS_WE_LIVE: &str = r#"redis-server "$@" & read -r _; kill $!; wait"#;

/// On a free port of 127.0.0.1, without persistence. Ends with its owner.
pub(crate) struct Server {
    child: Child,
    url: String,
    _folder: tempfile::TempDir,
}

/// A connection that only asks.
pub(crate) struct Info {
    connection: redis::Connection,
}

impl Server {
    pub(crate) fn start() -> Result<Server> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let folder = tempfile::tempdir()?;
        let there = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
        there.context("redis-server is not installed")?;
        let child = Command::new("sh")
            .args(["-c", AS_LONG_AS_WE_LIVE, "sh", "--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()?;
        let server = Server { child, url: format!("redis://127.0.0.1:{port}/"), _folder: folder };
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.info().is_err() {
            ensure!(Instant::now() < deadline, "redis-server did not come up");
            thread::sleep(Duration::from_millis(5));
        }
        Ok(server)
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn info(&self) -> Result<Info> {
        Ok(Info { connection: redis::Client::open(self.url())?.get_connection()? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // `wait` closes its input, and the server ends with that.
        let _ = self.child.wait();
    }
}

impl Info {
    pub(crate) fn version(&mut self) -> Result<String> {
        self.field("server", "redis_version")
    }

    /// Commands that were executed so far, without this one. Those that scripts execute are counted
    /// by Redis as well.
    pub(crate) fn commands(&mut self) -> Result<u64> {
        Ok(self.field("stats", "total_commands_processed")?.parse()?)
    }

    /// Nanoseconds of processor time that the server has used.
    pub(crate) fn cpu(&mut self) -> Result<u64> {
        let user: f64 = self.field("cpu", "used_cpu_user")?.parse()?;
        let system: f64 = self.field("cpu", "used_cpu_sys")?.parse()?;
        Ok(u64::try_from(Duration::try_from_secs_f64(user + system)?.as_nanos())?)
    }

    /// One round trip.
    pub(crate) fn ping(&mut self) -> Result<()> {
        Ok(redis::cmd("PING").exec(&mut self.connection)?)
    }

    fn field(&mut self, section: &str, name: &str) -> Result<String> {
        let text: String = redis::cmd("INFO").arg(section).query(&mut self.connection)?;
        let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value.with_context(|| format!("INFO has no {name}"))?.trim().to_owned())
    }
}
