//! A Python of our own, in a temporary folder, with the two locks in it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

/// Python with `requirements.txt` installed. The folder goes with it.
pub(crate) struct Python {
    program: PathBuf,
    versions: BTreeMap<String, String>,
    _folder: tempfile::TempDir,
}

impl Python {
    pub(crate) fn install() -> Result<Python> {
        let folder = tempfile::tempdir()?;
        let program = folder.path().join("bin/python");
        run("python3", &["-m".as_ref(), "venv".as_ref(), folder.path().as_os_str()])?;
        let wanted = beside("requirements.txt");
        let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1", "-r"];
        let mut pip: Vec<&OsStr> = pip.iter().map(OsStr::new).collect();
        pip.push(wanted.as_os_str());
        run(&program, &pip)?;
        let versions = run(&program, &[beside("peers.py").as_os_str(), "versions".as_ref()])?;
        Ok(Python { program, versions: serde_json::from_str(&versions)?, _folder: folder })
    }

    /// A worker, without its arguments.
    pub(crate) fn worker(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(beside("peers.py"));
        command
    }

    pub(crate) fn version(&self, name: &str) -> &str {
        self.versions.get(name).map_or("?", String::as_str)
    }
}

fn beside(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

/// What a program says, once it has ended well.
fn run(program: impl AsRef<OsStr>, arguments: &[&OsStr]) -> Result<String> {
    let name = Path::new(program.as_ref()).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null());
    let output = command.output().with_context(|| format!("{name} is not there"))?;
    let work = arguments.iter().map(|argument| argument.to_string_lossy());
    let work: Vec<_> = work.take_while(|argument| !argument.starts_with('/')).collect();
    ensure!(output.status.success(), "`{name} {}` failed", work.join(" "));
    Ok(String::from_utf8(output.stdout)?)
}
