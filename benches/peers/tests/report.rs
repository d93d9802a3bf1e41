//! Runs the program as a person would, but quickly.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const SETTINGS: [&str; 3] = ["free", "on one core", "beside two busy loops"];
const CHARTS: [&str; 5] = [
    "cycle.svg",
    "throughput.svg",
    "waits.svg",
    "hand-off.svg",
    "cpu.svg",
];

/// Runs the program with the output folder `out`, and returns the report.
fn report(out: &Path, arguments: &[&str], path: Option<&Path>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peers"));
    command.args(["--quick", "--out"]).arg(out).args(arguments);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    assert!(command.status().expect("the program starts").success());
    fs::read_to_string(out.join("results.md")).expect("a report")
}

/// The row of a lock in the table under a heading.
fn row<'a>(report: &'a str, heading: &str, lock: &str) -> Option<&'a str> {
    let table = report
        .split_once(&format!("### {heading}\n\n"))?
        .1
        .split("\n\n")
        .next()?;
    table
        .lines()
        .find(|line| line.starts_with(&format!("| {lock} |")))
}

fn program(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").expect("a PATH");
    let places = std::env::split_paths(&folders).map(|folder| folder.join(name));
    places
        .into_iter()
        .find(|place| place.exists())
        .unwrap_or_else(|| panic!("{name} is not installed"))
}

/// Each table appears three times. If a tool is missing, the report has a line about it, and is
/// complete otherwise.
#[test]
fn relatch_is_measured_in_all_settings_on_a_machine_without_go_and_maven() {
    let folder = tempfile::tempdir().unwrap();
    let tools = folder.path().join("tools");
    fs::create_dir(&tools).unwrap();
    for tool in ["redis-server", "timeout"] {
        symlink(program(tool), tools.join(tool)).unwrap();
    }
    let report = report(
        folder.path(),
        &["--peers", "relatch,redsync,redisson"],
        Some(&tools),
    );
    for scenario in [
        "Lock and unlock, alone",
        "One key, 8 threads of one process",
        "Hand-off between processes",
    ] {
        for setting in SETTINGS {
            let row = row(&report, &format!("{scenario}: {setting}"), "**relatch**").unwrap();
            assert!(row.ends_with("| none |"), "{scenario}, {setting}: {row}");
        }
    }
    for lock in ["redsync", "Redisson"] {
        let line = report
            .lines()
            .find(|line| line.starts_with(&format!("| left out | {lock} (")));
        assert!(line.is_some(), "{report}");
    }
    for chart in CHARTS {
        assert!(
            fs::read_to_string(folder.path().join(chart))
                .unwrap()
                .ends_with("</svg>\n"),
            "{chart}"
        );
    }
}

/// A lock that nobody can ask trusts what an operator has deleted; relatch is told.
#[test]
fn what_locks_say_when_keys_are_deleted_is_judged() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_peers"));
    command.args([
        "trust",
        "--seconds",
        "4",
        "--weathers",
        "deletions",
        "--peers",
        "by-hand,relatch-asking",
        "--out",
    ]);
    assert!(
        command
            .arg(folder.path())
            .status()
            .expect("the program starts")
            .success()
    );
    let report = fs::read_to_string(folder.path().join("trust.md")).expect("a report");
    let trusted = |lock: &str| {
        let start = format!("| {lock} |");
        let line = report
            .lines()
            .find(|line| line.starts_with(&start))
            .expect("a row");
        line.split(" | ").nth(4).expect("a column").to_owned()
    };
    assert_ne!(trusted("by hand: r2d2, 100 ms"), "-", "{report}");
    assert_eq!(trusted("relatch, asking Redis"), "-", "{report}");
}

/// Go, Java and Python are optional: if one is missing, the report says so. If they are installed,
/// this test downloads and builds for minutes, so only `tests/chaos.sh` runs it.
#[test]
#[ignore = "downloads and builds for minutes: tests/chaos.sh runs it"]
fn workers_in_other_languages_speak_the_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let peers = [
        "--settings",
        "free",
        "--peers",
        "redsync,redisson,redisson-fair,redis-py,python-redis-lock",
    ];
    let report = report(folder.path(), &peers, None);
    for lock in [
        "redsync",
        "Redisson",
        "Redisson, fair lock",
        "redis-py Lock",
        "python-redis-lock",
    ] {
        if let Some(line) = report
            .lines()
            .find(|line| line.starts_with("| left out |") && line.contains(lock))
        {
            println!("{line}");
            continue;
        }
        for scenario in [
            "One key, 4 processes of one thread",
            "Hand-off between processes",
        ] {
            let row = row(&report, &format!("{scenario}: free"), lock).unwrap();
            assert!(
                !row.contains("failed") && !row.contains("at once"),
                "{scenario}: {row}"
            );
        }
    }
}
