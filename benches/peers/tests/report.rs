//! Runs the program as a person would, but quickly.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const SETTINGS: [&str; 3] = ["free", "on one core", "beside two busy loops"];
const CHARTS: [&str; 5] = [
    "cycle.svg",
    "throughput.svg",
    "waits.svg",
    "hand-off.svg",
    "cpu.svg",
];

/// The two files of a report, one behind the other.
fn both(out: &Path, name: &str) -> String {
    let file = |end: &str| fs::read_to_string(out.join(format!("{name}{end}"))).expect("a report");
    file("-run.csv") + &file(".csv")
}

/// Runs the program with the output folder `out`, and returns the report.
fn report(out: &Path, arguments: &[&str], path: Option<&Path>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_peers"));
    command.args(["--quick", "--out"]).arg(out).args(arguments);
    if let Some(path) = path {
        command.env("PATH", path);
    }
    assert!(command.status().expect("the program starts").success());
    both(out, "results")
}

/// The line of a lock.
fn row<'a>(report: &'a str, scenario: &str, setting: &str, lock: &str) -> Option<&'a str> {
    let begin = [scenario, setting, lock].map(quoted).join(",") + ",";
    report.lines().find(|line| line.starts_with(&begin))
}

fn quoted(cell: &str) -> String {
    if cell.contains(',') {
        format!("\"{cell}\"")
    } else {
        cell.to_owned()
    }
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
            let row = row(&report, scenario, setting, "relatch").unwrap();
            assert!(row.ends_with(",none"), "{scenario}, {setting}: {row}");
        }
    }
    for lock in ["redsync", "Redisson"] {
        let line = left_out(&report, &format!("{lock} ("));
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

/// Measures locks beside slots, which have a report of their own.
fn beside_slots(peers: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_peers"));
    command.args(["--quick", "--settings", "free", "--peers", peers]);
    command.arg("--out").arg(folder.path());
    assert!(command.status().expect("the program starts").success());
    let written = fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(written, 2, "neither results.csv nor charts");
    both(folder.path(), "slots")
}

/// Checks the rows of a lock or of slots.
fn is_measured(report: &str, lock: &str) {
    for scenario in [
        "Lock and unlock, alone",
        "One key, 8 threads of one process",
        "One key, 4 processes of one thread",
    ] {
        let row = row(report, scenario, "free", lock).expect("a row");
        assert!(row.ends_with(",none"), "{scenario}: {row}");
    }
    let alone = row(report, "Lock and unlock, alone", "free", lock).expect("a row");
    assert!(alone.contains(",2.00,"), "two commands: {alone}");
}

#[test]
fn slots_are_measured_beside_locks() {
    let report = beside_slots("relatch,relatch-slots");
    is_measured(&report, "relatch");
    is_measured(&report, "relatch, 3 slots");
}

#[test]
#[ignore = "downloads and builds for minutes: tests/chaos.sh runs it"]
fn permits_are_measured_beside_slots() {
    let report = beside_slots("relatch-slots,redisson-permits");
    is_measured(&report, "relatch, 3 slots");
    if left_out(&report, "Redisson, 3 permits").is_none() {
        is_measured(&report, "Redisson, 3 permits");
    }
}

/// Deletes keys under locks, and returns the report.
fn deletions(peers: &str) -> String {
    // Each run clears the folder of the histories: two at a time would fail.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_peers"));
    command.args(["trust", "--seconds", "4", "--weathers", "deletions"]);
    command.args(["--peers", peers, "--out"]).arg(folder.path());
    assert!(command.status().expect("the program starts").success());
    both(folder.path(), "trust")
}

/// A figure of a lock, over all weathers; `None` if the lock was left out.
fn found(report: &str, lock: &str, column: usize) -> Option<String> {
    let start = format!("All together,{},", quoted(lock));
    let rest = report.lines().find_map(|line| line.strip_prefix(&start))?;
    // Within quotes, a comma separates nothing.
    let mut parts = rest.split('"');
    let mut cells = String::new();
    while let Some(outside) = parts.next() {
        cells += &outside.replace(',', "\n");
        cells += parts.next().unwrap_or_default();
    }
    cells.lines().nth(column).map(str::to_owned)
}

/// A lock that nobody can ask trusts what an operator has deleted; relatch is told.
#[test]
fn what_locks_say_when_keys_are_deleted_is_judged() {
    let report = deletions("by-hand,relatch-asking");
    let trusted = |lock| found(&report, lock, 3).expect("a row");
    assert_ne!(trusted("by hand: r2d2, 100 ms"), "-", "{report}");
    assert_eq!(trusted("relatch, asking Redis"), "-", "{report}");
}

const OTHERS: &str = "redsync,redislock,rueidislock,rueidislock-no-loop,redisson,redisson-fair,redis-py,python-redis-lock";

const TITLES: [&str; 8] = [
    "redsync",
    "bsm/redislock",
    "rueidislock",
    "rueidislock, no loop",
    "Redisson",
    "Redisson, fair lock",
    "redis-py Lock",
    "python-redis-lock",
];

/// Go, Java and Python are optional: if one is missing, the report says so. If they are installed,
/// this test downloads and builds for minutes, so only `tests/chaos.sh` runs it.
#[test]
#[ignore = "downloads and builds for minutes: tests/chaos.sh runs it"]
fn workers_in_other_languages_speak_the_protocol() {
    let folder = tempfile::tempdir().unwrap();
    let peers = ["--settings", "free", "--peers", OTHERS];
    let report = report(folder.path(), &peers, None);
    for lock in TITLES {
        if let Some(line) = left_out(&report, lock) {
            println!("{line}");
            continue;
        }
        for scenario in [
            "One key, 4 processes of one thread",
            "Hand-off between processes",
        ] {
            let row = row(&report, scenario, "free", lock).unwrap();
            assert!(!row.contains("at once"), "{scenario}: {row}");
            // On a busy machine, a thread of rueidislock at times waits for ever for a free lock.
            let may_hang = lock.starts_with("rueidislock") && scenario.starts_with("One key");
            assert!(may_hang || !row.contains("failed"), "{scenario}: {row}");
        }
    }
}

/// If the key of a lock had another name than the program thinks, nobody would delete it, and the
/// lock would be judged too well.
#[test]
#[ignore = "downloads and builds for minutes: tests/chaos.sh runs it"]
fn locks_in_other_languages_lose_what_is_deleted() {
    let report = deletions(OTHERS);
    for lock in TITLES {
        match found(&report, lock, 5) {
            Some(lost) => assert_ne!(lost, "-", "{lock}: {report}"),
            None => println!("{lock} was left out"),
        }
    }
}

fn left_out<'a>(report: &'a str, lock: &str) -> Option<&'a str> {
    let mut lines = report.lines();
    lines.find(|line| line.starts_with("left out,") && line.contains(lock))
}
