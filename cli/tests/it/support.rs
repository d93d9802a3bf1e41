//! What the tests share.

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs;
use std::io::{self, Read};
use std::ops::{Deref, DerefMut};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};

use relatch_rig::{LONG, Server, eventually, within};
use serde_json::Value;
use tempfile::TempDir;

/// The command. In scripts, it is `$R`.
pub(crate) const RELATCH: &str = env!("CARGO_BIN_EXE_relatch");

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

    /// What is in a file; nothing if it is not there.
    pub(crate) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.file(name)).unwrap_or_default()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.file(name), text).unwrap();
    }

    /// Removes these files, those that are there.
    pub(crate) fn forget(&self, names: &[&str]) {
        for name in names {
            let _ = fs::remove_file(self.file(name));
        }
    }

    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str) {
        eventually(LONG, name, || self.text(name).ends_with('\n'));
    }

    /// A program with these arguments, in the folder. In a group of its own, as below a shell: if
    /// the tests run at a terminal, what it sends to its foreground is not for this process. (In
    /// one that no process outside of it could continue, as where the tests have a session of their
    /// own, the kernel passes over `TSTP`.)
    pub(crate) fn program(&self, program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
        let mut command = Command::new(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("RELATCH_") {
                command.env_remove(name);
            }
        }
        command
            .args(arguments)
            .env("REDIS_URL", self.server.url())
            .env("SHELL", "/bin/sh")
            .env("R", RELATCH)
            .stdin(Stdio::null())
            .process_group(0)
            .current_dir(self.folder.path());
        command
    }

    pub(crate) fn relatch(&self, arguments: &[&str]) -> Command {
        self.program(RELATCH, arguments)
    }

    pub(crate) fn bash(&self, line: &str) -> Command {
        self.program("bash", &["-c", line])
    }

    /// Sooner than a lease is over: nobody finds a lock free that is only waited out.
    #[track_caller]
    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        let command = || self.relatch(arguments).output().unwrap();
        within(LONG, &arguments.join(" "), command)
    }

    /// `ls` and `doctor` need more rights than locks do.
    pub(crate) fn as_operator(&self, arguments: &[&str]) -> Output {
        let mut command = self.relatch(arguments);
        let command = command.env("REDIS_URL", self.server.bare_url());
        command.output().unwrap()
    }

    /// Runs a line of shell as a job.
    pub(crate) fn job(&self, options: &[&str], line: &str) -> Output {
        self.output(&[&["run"], options, &["-c", line]].concat())
    }

    /// The exit code as a shell has it, as soon. Does not wait for what the job has left behind, as
    /// a reader of its output does.
    #[track_caller]
    pub(crate) fn code(&self, arguments: &[&str]) -> i32 {
        let mut command = self.relatch(arguments);
        let command = command.stdout(Stdio::null()).stderr(Stdio::null());
        spawn(command).code()
    }

    /// Starts a run, and waits until its job says in the file `name` that it runs.
    pub(crate) fn start(&self, options: &[&str], name: &str, script: &str) -> Running {
        self.forget(&[name]);
        let job = ["--", "bash", "-c", script, "job", name];
        let mut command = self.relatch(&[&["run"], options, &job].concat());
        let child = spawn(command.stderr(Stdio::piped()));
        self.wait_for(name);
        child
    }

    /// A run whose job goes on until it is ended.
    pub(crate) fn holds(&self, options: &[&str]) -> Running {
        self.start(options, "holds", "echo > $1; exec sleep 60")
    }

    /// Starts a run, and waits until it says that it waits.
    pub(crate) fn waits(&self, arguments: &[&str]) -> Running {
        let mut run = self.relatch(&[&["run", "-v"], arguments].concat());
        let mut run = spawn(run.stderr(Stdio::piped()));
        let mut said = [0; 16];
        run.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
        run
    }

    /// A lock of somebody, for a minute.
    pub(crate) fn set(&self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) {
        let mut command = redis::cmd("SET");
        let command = command.arg(key.as_ref()).arg(value.as_ref());
        let command = command.arg("PX").arg(60_000);
        command.exec(&mut self.server.connect()).unwrap();
    }

    /// Copies the command into the folder. (Another process does: a file that this one writes may
    /// be open in a child of another test for a moment, and then nobody can run it.)
    pub(crate) fn copy(&self) {
        let copied = self.program("cp", &[RELATCH, "relatch"]).status();
        assert!(copied.unwrap().success());
    }

    /// How many keys are left.
    pub(crate) fn keys(&self) -> u64 {
        self.server.query(&["DBSIZE"])
    }
}

/// A page of the repository.
pub(crate) fn page(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    fs::read_to_string(root.join(name)).unwrap()
}

/// The process group of the tests, for a program that is not to lead one.
pub(crate) fn our_group() -> i32 {
    rustix::process::getpgrp().as_raw_nonzero().get()
}

/// What a shell makes of the end of a process.
pub(crate) fn in_shell(ended: ExitStatus) -> i32 {
    let of_signal = || 128 + ended.signal().unwrap();
    ended.code().unwrap_or_else(of_signal)
}

/// Sends a signal to a process, or to a group (`-4242`).
#[track_caller]
pub(crate) fn send(name: &str, to: impl Display) {
    let to = to.to_string();
    let sent = Command::new("kill")
        .args(["-s", name, "--", to.trim()])
        .status();
    assert!(sent.unwrap().success(), "{name} {to}");
}

/// The state of a process, as a letter. `None` if it is gone, or a zombie.
fn state(id: impl Display) -> Option<char> {
    let id = id.to_string();
    let stat = fs::read_to_string(format!("/proc/{}/stat", id.trim())).ok()?;
    let state = stat.rsplit_once(") ")?.1.chars().next();
    state.filter(|it| *it != 'Z')
}

pub(crate) fn is_stopped(id: impl Display) -> bool {
    state(id) == Some('T')
}

pub(crate) fn is_there(id: impl Display) -> bool {
    state(id).is_some()
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

    /// How it ends, as a shell sees it.
    #[track_caller]
    pub(crate) fn code(&mut self) -> i32 {
        in_shell(self.wait().unwrap())
    }

    /// Ends it by a signal, and returns how it ended.
    #[track_caller]
    pub(crate) fn end(&mut self, name: &str) -> i32 {
        send(name, self.id());
        self.code()
    }

    /// What it has said until its end.
    pub(crate) fn said(&mut self) -> String {
        io::read_to_string(self.stderr.as_mut().unwrap()).unwrap()
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
