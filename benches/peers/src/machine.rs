//! The machine and the versions of a measurement. The machine's name stays out of the report.

use std::fs;
use std::process::Command;
use std::thread;

/// This build's dependencies, as they were resolved.
const LOCK_FILE: &str = include_str!("../Cargo.lock");

/// Cores, processor, system.
pub(crate) fn describe() -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let model =
        field("/proc/cpuinfo", "model name").unwrap_or_else(|| "processor unknown".to_owned());
    let system =
        field("/etc/os-release", "PRETTY_NAME").unwrap_or_else(|| std::env::consts::OS.to_owned());
    format!(
        "{cores} cores ({model}), {system}, {}",
        std::env::consts::ARCH
    )
}

/// The compiler that cargo uses here.
pub(crate) fn rustc() -> String {
    let version = said_by("rustc", &["--version"]);
    version
        .split_whitespace()
        .nth(1)
        .unwrap_or("unknown")
        .to_owned()
}

/// The current commit, or `unknown`.
pub(crate) fn commit() -> String {
    let commit = said_by(
        "git",
        &[
            "-C",
            env!("CARGO_MANIFEST_DIR"),
            "rev-parse",
            "--short",
            "HEAD",
        ],
    );
    if commit.is_empty() {
        "unknown".to_owned()
    } else {
        commit
    }
}

/// Year, month, day, in UTC.
pub(crate) fn today() -> String {
    said_by("date", &["-u", "+%Y-%m-%d"])
}

/// The version of a crate. If the lock file has several versions, all of them.
pub(crate) fn crate_version(name: &str) -> String {
    let versions = LOCK_FILE.split("[[package]]").filter_map(|package| {
        let field = |field: &str| {
            package
                .lines()
                .find_map(|line| line.strip_prefix(field)?.strip_prefix(" = "))
                .map(unquoted)
        };
        (field("name")? == name).then(|| field("version"))?
    });
    versions.collect::<Vec<_>>().join(" and ")
}

/// The value of a line such as `name : value` or `name="value"`.
fn field(file: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(file).ok()?;
    let value = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(unquoted(value.trim_start_matches([' ', '\t', ':', '='])).to_owned())
}

fn unquoted(value: &str) -> &str {
    value.trim_matches('"')
}

fn said_by(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    output
        .map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_come_from_the_lock_file() {
        assert_eq!(crate_version("rlock"), "0.2.0");
        assert!(
            crate_version("redis").contains(" and 1."),
            "redlock has one of its own"
        );
    }
}
