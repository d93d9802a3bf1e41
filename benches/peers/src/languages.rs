//! The worker programs: this program for Rust, and programs that are built here with Go, Maven and
//! pip.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::peer::{Language, Peer};

/// A program that works for the peers of a language.
pub(crate) struct Program {
    /// The program, and the arguments that come first.
    command: Vec<PathBuf>,
    /// The versions of the language and of the libraries, as text.
    pub(crate) versions: String,
}

impl Program {
    /// Builds the program of a language, below `benches/peers/target`.
    pub(crate) fn build(language: Language) -> Result<Program> {
        let command = match language {
            Language::Rust => {
                return Ok(Program {
                    command: own()?,
                    versions: String::new(),
                });
            }
            Language::Go => go()?,
            Language::Java => java()?,
            Language::Python => python()?,
        };
        let program = Program {
            command,
            versions: String::new(),
        };
        let versions = run(&mut program.with("versions"))?.trim().to_owned();
        Ok(Program {
            versions,
            ..program
        })
    }

    /// A worker, which is ready to be started.
    pub(crate) fn worker(&self, url: &str, peer: Peer, lease: u32) -> Command {
        let mut command = self.with(url);
        command.arg(peer.argument()).arg(lease.to_string());
        command
    }

    fn with(&self, argument: &str) -> Command {
        let mut words = self.command.iter();
        let mut command = Command::new(words.next().map_or(Path::new(""), PathBuf::as_path));
        command.args(words).arg(argument);
        command
    }
}

fn own() -> Result<Vec<PathBuf>> {
    Ok(vec![std::env::current_exe()?, "worker".into()])
}

fn go() -> Result<Vec<PathBuf>> {
    let program = here("target/go/peers");
    let mut build = limited("go");
    build
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .current_dir(here("go"));
    run(&mut build)?;
    Ok(vec![program])
}

/// Porcupine's verdicts on the histories in a folder: a line for each file.
pub(crate) fn porcupine(histories: &Path) -> Result<String> {
    let program = here("target/go/porcupine");
    let mut build = limited("go");
    build
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg("./porcupine")
        .current_dir(here("go"));
    run(&mut build)?;
    run(limited(&program).arg(histories))
}

fn java() -> Result<Vec<PathBuf>> {
    let maven = |more: &[&str]| {
        run(limited("mvn")
            .args(["--quiet", "--batch-mode", "package"])
            .args(more)
            .current_dir(here("java")))
    };
    // After the first build, no network is needed.
    maven(&["--offline"]).or_else(|_| maven(&[]))?;
    let path = [
        here("target/java/classes"),
        here("target/java/dependency/*"),
    ];
    let path = std::env::join_paths(path)?;
    Ok(vec![
        "java".into(),
        "-cp".into(),
        path.into(),
        "Peers".into(),
    ])
}

fn python() -> Result<Vec<PathBuf>> {
    let folder = here("target/python");
    run(limited("python3").args(["-m", "venv"]).arg(&folder))?;
    let program = folder.join("bin/python");
    let pip = [
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--retries",
        "1",
        "-r",
    ];
    run(limited(&program).args(pip).arg(here("requirements.txt")))?;
    Ok(vec![program, here("peers.py")])
}

fn here(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// A command that runs under coreutils' `timeout`, which ends it and its children after five
/// minutes.
fn limited(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.arg("300").arg(program);
    command
}

/// Runs a program to its end, and returns its output. If it fails, the error is the first line that
/// it printed.
fn run(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .context("cannot start it")?;
    if !output.status.success() {
        let words =
            [&output.stderr, &output.stdout].map(|said| String::from_utf8_lossy(said).into_owned());
        let why = words
            .iter()
            .flat_map(|said| said.lines())
            .find(|line| !line.trim().is_empty());
        bail!("{}", why.unwrap_or("it failed").trim());
    }
    Ok(String::from_utf8(output.stdout)?)
}
