//! Redis or a name server that does not answer: at the start, in the wait, and at the end.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use relatch_rig::{Fault, LONG, Proxy, compile_preload, eventually, throughout};

use crate::support::{Place, Running, send, spawn, stderr};

/// A run that is before its job, and what is needed for that.
type Early = (Running, Option<(TcpListener, TcpStream)>);

fn reporting(place: &Place, options: &[&str]) -> Command {
    place.relatch(&[&["run", "--report", "report"], options, &["k", "true"]].concat())
}

fn waits_for_the_lock(place: &Place, options: &[&str]) -> Early {
    let run = [options, &["--report", "report", "busy", "true"]].concat();
    (place.waits(&run), None)
}

fn connects(place: &Place, options: &[&str]) -> Early {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let mut run = reporting(place, options);
    let run = spawn(run.env("REDIS_URL", url));
    let (silent, _) = listener.accept().unwrap();
    (run, Some((listener, silent)))
}

fn is_between_two_attempts(place: &Place, options: &[&str]) -> Early {
    let away = ["--redis", "redis://127.0.0.1:1/", "--connect-within", "5m"];
    let run = [&away[..], options, &["--report", "report", "k", "true"]].concat();
    (place.waits(&run), None)
}

fn waits_for_a_name_server(place: &Place, options: &[&str]) -> Early {
    let mut run = reporting(place, options);
    place.forget(&["silent.asked"]);
    std::fs::write(silence(place, &mut run), "").unwrap();
    let run = spawn(&mut run);
    let asked = place.file("silent.asked");
    eventually(LONG, "it asks", || asked.exists());
    (run, None)
}

/// As when the program that is to write it hangs.
fn reads_its_url(place: &Place, options: &[&str]) -> Early {
    place.forget(&["pipe"]);
    let made = Command::new("mkfifo").arg(place.file("pipe")).status();
    assert!(made.unwrap().success());
    let url = [options, &["--redis-file", "pipe"]].concat();
    let run = spawn(&mut reporting(place, &url));
    std::thread::sleep(Duration::from_millis(300)); // So that it reads by then.
    (run, None)
}

/// It is the signal's end, so that one Ctrl-C ends a loop around the run, too.
#[test]
fn a_signal_ends_a_run_before_its_job() {
    let place = Place::new();
    let _holder = place.holds(&["busy"]);
    for (early, signals) in [
        (
            waits_for_the_lock as fn(&Place, &[&str]) -> Early,
            &[("TERM", 15), ("INT", 2), ("HUP", 1), ("QUIT", 3)][..],
        ),
        (connects, &[("TERM", 15), ("INT", 2)]),
        (is_between_two_attempts, &[("TERM", 15)]),
        (waits_for_a_name_server, &[("TERM", 15)]),
        (reads_its_url, &[("TERM", 15)]),
    ] {
        for options in [&[][..], &["--foreground"]] {
            for (name, number) in signals {
                place.forget(&["report"]);
                let (mut run, _listener) = early(&place, options);
                send(name, run.id());
                assert_eq!(run.wait().unwrap().signal(), Some(*number), "{name}");
                // (Without a URL, it has not begun.)
                let report = place.text("report");
                let is_told = report.contains("\"outcome\":\"interrupted\"");
                assert_eq!(is_told, !place.file("pipe").exists(), "{report}");
            }
        }
    }
    assert_eq!(place.keys(), 1, "nothing is left");
}

/// A name server that is silent as long as the file exists.
fn silence(place: &Place, command: &mut Command) -> PathBuf {
    let preload = compile_preload("silent_names", &place.file(""));
    let file = place.file("silent");
    let url = place.server.url().replace("127.0.0.1", "localhost");
    command
        .env("LD_PRELOAD", preload)
        .env("SILENT_NAMES", &file)
        .env("REDIS_URL", url);
    file
}

#[test]
fn a_run_ends_though_redis_and_the_name_server_are_gone() {
    let place = Place::new();
    let job = "echo > f; until test -e end; do sleep 0.01; done; exit 3";
    let mut run = place.relatch(&["run", "k", "-c", job]);
    let mut wait = place.relatch(&["run", "k", "true"]);
    let silent = silence(&place, &mut run);
    silence(&place, &mut wait);
    let mut run = spawn(run.stderr(Stdio::piped()));
    place.wait_for("f");
    let mut wait = spawn(&mut wait);
    eventually(LONG, "it waits", || place.server.tracked_keys() > 0);
    std::fs::write(&silent, "").unwrap();
    place.server.kill();
    let asked = place.file("silent.asked");
    eventually(LONG, "they ask", || asked.exists());
    assert_eq!(wait.end("TERM"), 143);
    place.write("end", "");
    assert_eq!(run.code(), 3);
    let said = run.said();
    assert!(said.contains("lease"), "{said}");
}

#[test]
fn a_verbose_run_is_as_patient_as_another() {
    let place = Place::new();
    for option in ["-q", "-v"] {
        let pause = ["CLIENT", "PAUSE", "5000", "WRITE"];
        place.server.query::<()>(&pause);
        let output = place.output(&["run", "-w", "60s", option, "k", "true"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

/// The library alone gives up after 10 s.
#[test]
fn a_wait_bridges_a_long_outage() {
    let place = Place::new();
    place.set("lock:k", "another");
    let mut run = place.waits(&["-w", "5m", "k", "-c", "exit 3"]);
    place.server.kill();
    throughout(Duration::from_secs(12), || {
        assert!(matches!(run.try_wait(), Ok(None)), "it bridges that");
    });
    place.server.restart();
    assert_eq!(run.code(), 3);
    let said = run.said();
    assert!(said.contains("the wait continues"), "{said}");
}

#[test]
fn a_run_waits_for_a_redis_that_is_away_at_its_start() {
    let place = Place::new();
    place.server.kill();
    let away = ["run", "--connect-within", "1500ms", "k", "true"];
    let began = Instant::now();
    assert_eq!(place.code(&away), 69);
    assert!(began.elapsed() >= Duration::from_millis(1500));
    let line = "echo >> ran; exit 69";
    let mut run = place.waits(&["--connect-within", "5m", "k", "-c", line]);
    place.server.restart();
    assert_eq!(run.code(), 69);
    assert_eq!(place.text("ran"), "\n", "69 of a job is its own");
}

#[test]
fn a_lock_that_comes_just_after_the_signal_is_given_back() {
    let place = Place::new();
    let proxy = Proxy::start(place.server.port());
    proxy.on("SET lock:k", Fault::DelayReply(LONG));
    let mut run = place.relatch(&["run", "k", "-c", "echo > f"]);
    let mut run = spawn(run.env("REDIS_URL", proxy.url()));
    proxy.wait_fired(1, LONG);
    eventually(LONG, "Redis has it", || place.server.exists("lock:k"));
    send("TERM", run.id());
    // (For a second.)
    throughout(Duration::from_millis(100), || {
        let is_there = matches!(run.try_wait(), Ok(None));
        assert!(is_there, "it hopes for the answer");
    });
    proxy.end_delays();
    assert_eq!(run.code(), 143);
    assert!(!place.server.exists("lock:k") && !place.file("f").exists());
}
