//! What the tests share.

use std::fs;
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use relatch_rig::{LONG, Server, eventually, within};
use serde_json::Value;
use tempfile::TempDir;

/// A Redis, and a folder for what jobs write.
pub(crate) struct Place {
    pub(crate) server: Server,
    folder: TempDir,
}

impl Place {
    pub(crate) fn new() -> Place {
        Place {
            server: Server::start(),
            folder: TempDir::new().unwrap(),
        }
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `relatch` with these arguments, in the folder. In a group of its own, as below a shell: if
    /// the tests run at a terminal, what it sends to its foreground is not for this process. (In
    /// one that no process outside of it could continue, as where the tests have a session of their
    /// own, the kernel passes over `TSTP`.)
    pub(crate) fn relatch(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_relatch"));
        command
            .args(arguments)
            .env("REDIS_URL", self.server.url())
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::null())
            .process_group(0)
            .current_dir(self.folder.path());
        for name in [
            "RELATCH_URL",
            "RELATCH_PREFIX",
            "RELATCH_HELD",
            "RELATCH_KEYS",
            "RELATCH_REDIS_FILE",
            "RELATCH_CACERT",
            "RELATCH_CERT",
            "RELATCH_CERT_KEY",
            "RELATCH_SNI",
            "RELATCH_SENTINEL_LOGIN",
        ] {
            command.env_remove(name);
        }
        command
    }

    /// Sooner than a lease is over: nobody finds a lock free that is only waited out.
    #[track_caller]
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        let command = || self.relatch(arguments).output().unwrap();
        within(LONG, &arguments.join(" "), command)
    }

    /// The exit code as a shell has it, as soon. Does not wait for what the job has left behind, as
    /// a reader of its output does.
    #[track_caller]
    pub(crate) fn code(&self, arguments: &[&str]) -> i32 {
        let mut command = self.relatch(arguments);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        in_shell(spawn(command).wait().unwrap())
    }

    /// Starts a run, and waits until its job says in the file `name` that it runs.
    pub(crate) fn start(&self, options: &[&str], name: &str, script: &str) -> Running {
        let mut arguments = vec!["run"];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script, "job", name]);
        let mut command = self.relatch(&arguments);
        let child = spawn(command.stderr(Stdio::piped()));
        eventually(LONG, "the job runs", || {
            fs::read(self.file(name)).is_ok_and(|text| !text.is_empty())
        });
        child
    }
}

/// What a shell makes of the end of a process.
pub(crate) fn in_shell(ended: ExitStatus) -> i32 {
    let of_signal = || 128 + ended.signal().unwrap();
    ended.code().unwrap_or_else(of_signal)
}

/// `ls` and `doctor` need more rights than locks do.
pub(crate) fn as_operator(place: &Place, arguments: &[&str]) -> Output {
    let mut command = place.relatch(arguments);
    command.env("REDIS_URL", place.server.bare_url());
    command.output().unwrap()
}

pub(crate) fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// A process that is killed with the test that started it. (If it is a run, its guard ends its
/// job.)
pub(crate) struct Running(Child);

pub(crate) fn spawn(command: &mut Command) -> Running {
    Running(command.spawn().unwrap())
}

impl Running {
    /// Waits as [`Child::wait`] does, but not for ever: who is stuck is named.
    #[track_caller]
    pub(crate) fn wait(&mut self) -> io::Result<ExitStatus> {
        eventually(LONG, "the process ends", || {
            !matches!(self.0.try_wait(), Ok(None))
        });
        self.0.wait()
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
