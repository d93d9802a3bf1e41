//! `run --report`.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use relatch_rig::LONG;
use serde_json::Value;

use crate::codes::full_pipe;
use crate::deaths::guard_of;
use crate::support::{Place, in_shell, json, send, spawn, stderr};

/// The last line of the file `report`.
fn last_report(place: &Place) -> Value {
    let last = json(place.text("report").lines().last().unwrap());
    assert_eq!(last["v"], 1);
    last
}

/// The disk was full in the middle of a line.
#[test]
fn a_report_begins_a_line_of_its_own() {
    let place = Place::new();
    for before in ["{\"v\":1,\"at", "{}\n"] {
        place.write("report", before);
        assert_eq!(place.code(&["run", "--report", "report", "k", "true"]), 0);
        assert_eq!(last_report(&place)["outcome"], "ended");
        assert_eq!(place.text("report").lines().count(), 2);
    }
}

#[test]
fn a_report_says_what_happened() {
    let place = Place::new();
    let run = |outcome: &str, exit: i32, arguments: &[&str]| {
        let output = place.output(&[&["run", "--report", "report"], arguments].concat());
        assert_eq!(in_shell(output.status), exit, "{}", stderr(&output));
        let report = last_report(&place);
        let seen = (report["outcome"].as_str(), report["exit"].as_i64());
        assert_eq!(seen, (Some(outcome), Some(exit.into())), "{report}");
        let is_given_back = !place.server.exists("lock:k");
        assert_eq!(is_given_back, outcome != "busy", "{report}");
        let cause = report["cause"].as_str().unwrap_or_default().to_owned();
        (report, cause)
    };
    let (ended, cause) = run("ended", 3, &["--fence", "k", "-c", "exit 3"]);
    assert!(ended["keys"][0] == "k" && ended["fence"].as_u64() > Some(1));
    assert!(ended["signal"].is_null() && cause.is_empty());
    let (killed, _) = run("ended", 137, &["k", "-c", "kill -9 $$"]);
    assert_eq!(killed["signal"], 9);
    let (_, cause) = run("not_started", 127, &["k", "no-such-command"]);
    assert!(cause.contains("no-such-command"), "{cause}");
    run("not_started", 78, &["--kill-after", "11s", "k", "true"]);
    let line = "redis-cli -u $REDIS_URL del lock:k; sleep 60";
    let (_, cause) = run("lost", 76, &["k", "-c", line]);
    assert!(cause.contains("deleted"), "{cause}");
    let (long, _) = run(
        "max_hold",
        124,
        &["--max-hold", "100ms", "k", "sleep", "60"],
    );
    assert!(long["held_ms"].as_u64() >= Some(100), "{long}");
    let away = ["--redis", "redis://127.0.0.1:1/", "k", "true"];
    let (_, cause) = run("unavailable", 69, &away);
    assert!(cause.contains("127.0.0.1:1"), "{cause}");
    let wrong = format!("redis://nobody:wrong@{}/", place.server.address());
    run("refused", 77, &["--redis", &wrong, "k", "true"]);
    let _holder = place.holds(&["k"]);
    let (busy, cause) = run("busy", 75, &["-n", "k", "true"]);
    assert_eq!(busy["holder"]["kind"], "held");
    assert_eq!(&busy["host"], &busy["holder"]["host"], "both run here");
    assert!(cause.ends_with("has it"), "no advice for people: {cause}");
    let at = UNIX_EPOCH + Duration::from_millis(busy["at_ms"].as_u64().unwrap());
    assert!(at.elapsed().unwrap() < LONG);
    assert_eq!(place.text("report").lines().count(), 9, "each is appended");
}

/// Who reads reports learns of it, too.
#[test]
fn a_report_says_that_the_guard_was_killed() {
    let place = Place::new();
    let mut run = place.holds(&["--report", "report", "k"]);
    send("KILL", guard_of(run.id()));
    run.code();
    let report = last_report(&place);
    assert!(
        report["cause"].as_str().unwrap().contains("guard"),
        "{report}"
    );
}

/// The time of the wait is none of the hold's, and `--max-hold` does not count it.
#[test]
fn a_report_has_the_times_of_the_wait_and_of_the_hold() {
    let place = Place::new();
    let mut holder = place.holds(&["k"]);
    let mut waiter = place.waits(&["--report", "report", "k", "true"]);
    thread::sleep(Duration::from_millis(500));
    let then = Instant::now();
    holder.end("TERM");
    waiter.code();
    let most = then.elapsed().as_millis();
    let report = last_report(&place);
    assert_eq!(report["outcome"], "ended");
    assert!(report["waited_ms"].as_u64() >= Some(500), "{report}");
    let held = u128::from(report["held_ms"].as_u64().unwrap());
    assert!(held <= most, "{held}, {most}");
}

/// Also to a socket, which cannot be opened anew, as below systemd.
#[test]
fn a_report_may_go_to_a_descriptor() {
    let place = Place::new();
    let line = "exec $R run --report fd:3 k true 3>>report";
    assert!(place.bash(line).status().unwrap().success());
    assert_eq!(last_report(&place)["outcome"], "ended");
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut run = place.relatch(&["run", "--report", "fd:1", "k", "true"]);
    assert_eq!(spawn(run.stdout(OwnedFd::from(theirs))).code(), 0);
    ours.set_nonblocking(true).unwrap(); // It has been written.
    let mut text = [0; 4096];
    let length = ours.read(&mut text).unwrap();
    let report = json(str::from_utf8(&text[..length]).unwrap());
    assert_eq!(report["outcome"], "ended");
    for (to, why) in [
        ("fd:99", "this descriptor is not open"),
        ("fd:x", "not a descriptor number"),
    ] {
        let output = place.output(&["run", "--report", to, "k", "-c", "echo > f"]);
        assert_eq!(output.status.code(), Some(64));
        let said = stderr(&output);
        assert!(said.contains(&format!("--report {to}: {why}")), "{said}");
        assert!(!place.file("f").exists(), "before the job");
    }
}

/// The code is the job's, and what is wrong with the report is said.
#[test]
fn a_report_that_cannot_be_written_is_told_and_changes_nothing() {
    let place = Place::new();
    let made = Command::new("mkfifo").arg(place.file("fifo")).status();
    assert!(made.unwrap().success());
    let (_reader, writer) = full_pipe();
    for (to, why) in [
        ("fifo", "nobody has read it"),
        ("fd:1", "nobody has read it"),
        ("/dev/full", "No space left"),
        ("no/such/folder", "No such file"),
    ] {
        let mut run = place.relatch(&["run", "--report", to, "k", "-c", "exit 3"]);
        run.stdout(writer.try_clone().unwrap());
        let mut run = spawn(run.stderr(Stdio::piped()));
        assert_eq!(run.code(), 3, "{to}");
        let said = run.said();
        let expected = format!("cannot write the report to {to}: {why}");
        assert!(said.contains(&expected), "{said}");
    }
}

/// Below `ulimit -f`, the report is told, and the job gets `SIGXFSZ` as it would without us.
#[test]
fn a_file_that_may_not_grow_ends_the_job_and_not_the_run() {
    let place = Place::new();
    for (job, code) in [("exit 3", 3), ("ulimit -c 0; echo > f", 153)] {
        let run = format!("$R run --report report k -c '{job}'");
        let mut shell = place.bash(&format!("ulimit -f 0; exec {run}"));
        let output = shell.output().unwrap();
        let said = stderr(&output);
        assert_eq!(in_shell(output.status), code, "{said}");
        assert!(said.contains("report: File too large"), "{said}");
    }
}
