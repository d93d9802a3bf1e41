//! `run --report`.

use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use relatch_rig::{LONG, Sig, signal};
use serde_json::Value;

use crate::deaths::guard_of;
use crate::support::{Place, in_shell, json, spawn};

/// The last line of the file `report`.
fn last_report(place: &Place) -> Value {
    let text = fs::read_to_string(place.file("report")).unwrap();
    let last: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    assert_eq!((&last["v"], &last["keys"][0]), (&1.into(), &"k".into()));
    last
}

/// The disk was full in the middle of a line.
#[test]
fn a_report_begins_a_line_of_its_own() {
    let place = Place::new();
    for before in ["{\"v\":1,\"at", "{}\n"] {
        fs::write(place.file("report"), before).unwrap();
        let run = place.output(&["run", "--report", "report", "k", "true"]);
        assert_eq!(in_shell(run.status), 0);
        assert_eq!(last_report(&place)["outcome"], "ended");
        let lines = fs::read_to_string(place.file("report")).unwrap();
        assert_eq!(lines.lines().count(), 2, "{lines}");
    }
}

#[test]
fn a_report_says_what_happened() {
    let place = Place::new();
    let run_at = |url: &str, arguments: &[&str]| {
        let mut run = place.relatch(&["run", "--report", "report"]);
        let run = run.args(arguments).env("REDIS_URL", url);
        let output = run.output().unwrap();
        let report = last_report(&place);
        let exit = in_shell(output.status);
        assert_eq!(report["exit"], exit, "{report}");
        let is_given_back = !place.server.exists("lock:k");
        assert_eq!(is_given_back, report["outcome"] != "busy", "{report}");
        (report["outcome"].as_str().unwrap().to_owned(), exit, report)
    };
    let url = place.server.url();
    let run = |arguments: &[&str]| run_at(&url, arguments);
    let (outcome, exit, ended) = run(&["--fence", "k", "-c", "exit 3"]);
    assert_eq!((&*outcome, exit), ("ended", 3));
    assert!(ended["fence"].as_u64() > Some(1));
    assert!(ended["signal"].is_null() && ended["cause"].is_null());
    let (outcome, exit, killed) = run(&["k", "-c", "kill -9 $$"]);
    assert_eq!((&*outcome, exit), ("ended", 137));
    assert_eq!(killed["signal"], 9);
    let (outcome, exit, missing) = run(&["k", "no-such-command"]);
    assert_eq!((&*outcome, exit), ("not_started", 127));
    assert!(
        missing["cause"]
            .as_str()
            .unwrap()
            .contains("no-such-command")
    );
    let line = "redis-cli -u $REDIS_URL del lock:k; sleep 60";
    let (outcome, exit, lost) = run(&["k", "-c", line]);
    assert_eq!((&*outcome, exit), ("lost", 76));
    assert!(
        lost["cause"].as_str().unwrap().contains("deleted"),
        "{lost}"
    );
    let (outcome, exit, long) = run(&["--max-hold", "100ms", "k", "sleep", "60"]);
    assert_eq!((&*outcome, exit), ("max_hold", 124));
    assert!(long["held_ms"].as_u64() >= Some(100), "{long}");
    let (outcome, exit, away) = run_at("redis://127.0.0.1:1/", &["k", "true"]);
    assert_eq!((&*outcome, exit), ("unavailable", 69));
    assert!(
        away["cause"].as_str().unwrap().contains("127.0.0.1:1"),
        "{away}"
    );
    let wrong = format!("redis://nobody:wrong@{}/", place.server.address());
    let (outcome, exit, _) = run_at(&wrong, &["k", "true"]);
    assert_eq!((&*outcome, exit), ("refused", 77));
    let mut holder = place.start(&["k"], "f", "echo > $1; sleep 60");
    let (outcome, exit, busy) = run(&["-n", "k", "true"]);
    assert_eq!((&*outcome, exit), ("busy", 75));
    assert_eq!(busy["holder"]["kind"], "held");
    let host = &busy["holder"]["host"];
    assert_eq!(&busy["host"], host, "both run here");
    let cause = busy["cause"].as_str().unwrap();
    assert!(cause.ends_with("has it"), "no advice for people: {cause}");
    let at = UNIX_EPOCH + Duration::from_millis(busy["at_ms"].as_u64().unwrap());
    assert!(at.elapsed().unwrap() < LONG);
    signal(holder.id(), Sig::Kill);
    assert_eq!(holder.wait().unwrap().signal(), Some(9));
}

#[test]
fn each_run_appends_its_report() {
    let place = Place::new();
    let report = ["run", "--report", "report", "k", "true"];
    assert_eq!(place.code(&report), 0);
    let impossible = [&report[..3], &["--kill-after", "11s", "k", "true"]].concat();
    assert_eq!(place.code(&impossible), 78);
    let text = fs::read_to_string(place.file("report")).unwrap();
    let lines = text.lines().map(json);
    let seen: Vec<_> = lines
        .map(|it| (it["outcome"].clone(), it["exit"].clone()))
        .collect();
    let expected = [("ended", 0), ("not_started", 78)];
    assert_eq!(
        seen,
        expected.map(|(outcome, exit)| (outcome.into(), exit.into()))
    );
}

/// Who reads reports learns of it, too.
#[test]
fn a_report_says_that_the_guard_was_killed() {
    let place = Place::new();
    let mut run = place.start(&["--report", "report", "k"], "f", "echo > $1; sleep 60");
    signal(guard_of(run.id()), Sig::Kill);
    run.wait().unwrap();
    let report = last_report(&place);
    assert!(
        report["cause"].as_str().unwrap().contains("guard"),
        "{report}"
    );
}

/// The file is that of a descriptor which the shell has opened.
#[test]
fn a_report_may_go_to_a_descriptor() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let line = format!("exec {relatch} run --report fd:3 k true 3>>report");
    let mut shell = Command::new("sh");
    let shell = shell.args(["-c", &line]).current_dir(place.file(""));
    let shell = shell.env("REDIS_URL", place.server.url());
    assert!(shell.status().unwrap().success());
    assert_eq!(last_report(&place)["outcome"], "ended");
}

/// The time of the wait is none of the hold's, and `--max-hold` does not count it.
#[test]
fn a_report_has_the_times_of_the_wait_and_of_the_hold() {
    let place = Place::new();
    let run = ["run", "-v", "--report", "report", "k", "true"];
    for is_ended in [false, true] {
        let mut holder = place.start(&["k"], "f", "echo > $1; sleep 60");
        let mut waiter = place.relatch(&run);
        let mut waiter = spawn(waiter.stderr(Stdio::piped()));
        let mut said = [0; 16];
        let stderr = waiter.stderr.as_mut().unwrap();
        stderr.read_exact(&mut said).unwrap(); // It waits.
        thread::sleep(Duration::from_millis(500));
        let then = Instant::now();
        signal(if is_ended { waiter.id() } else { holder.id() }, Sig::Term);
        waiter.wait().unwrap();
        let most = then.elapsed().as_millis();
        let report = last_report(&place);
        assert_eq!(
            report["outcome"],
            if is_ended { "interrupted" } else { "ended" }
        );
        assert!(report["waited_ms"].as_u64() >= Some(500), "{report}");
        let held = u128::from(report["held_ms"].as_u64().unwrap());
        assert!(held <= most, "{held}, {most}");
        if is_ended {
            signal(holder.id(), Sig::Term);
        }
        holder.wait().unwrap();
        fs::remove_file(place.file("f")).unwrap();
    }
}
