//! Redis or a name server that does not answer: at the start, in the wait, and at the end.

use std::fs;
use std::io::{Read, read_to_string};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use relatch_rig::{Fault, LONG, Proxy, Sig, compile_preload, eventually, signal, throughout};
use serde_json::Value;

use crate::support::{Place, in_shell, json, spawn, stderr};

fn report(place: &Place) -> Value {
    json(&fs::read_to_string(place.file("report")).unwrap())
}

/// It is the signal's end, and not that of an attempt.
#[test]
fn a_signal_ends_a_run_that_connects() {
    let place = Place::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let mut run = place.relatch(&["run", "--report", "report", "k", "true"]);
    let mut run = spawn(run.env("REDIS_URL", url));
    let _silent = listener.accept().unwrap();
    signal(run.id(), Sig::Term);
    assert_eq!(in_shell(run.wait().unwrap()), 143);
    assert_eq!(report(&place)["outcome"], "interrupted");
}

#[test]
fn one_ctrl_c_ends_a_loop_whose_runs_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}/", listener.local_addr().unwrap());
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let line = format!("for i in 1 2 3; do {relatch} run k true; done; exit 0");
    let mut bash = Command::new("bash");
    let bash = bash.args(["-c", &line]).env("REDIS_URL", url);
    let mut bash = spawn(bash.process_group(0));
    let _silent = listener.accept().unwrap();
    let group = format!("-{}", bash.id());
    let sent = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(sent.unwrap().success());
    assert_eq!(in_shell(bash.wait().unwrap()), 130);
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
fn a_signal_ends_a_run_that_waits_for_a_name_server() {
    let place = Place::new();
    let mut run = place.relatch(&["run", "k", "true"]);
    fs::write(silence(&place, &mut run), "").unwrap();
    let mut run = spawn(&mut run);
    let asked = place.file("silent.asked");
    eventually(LONG, "it asks", || asked.exists());
    signal(run.id(), Sig::Term);
    assert_eq!(in_shell(run.wait().unwrap()), 143);
}

#[test]
fn a_run_ends_though_redis_and_the_name_server_are_gone() {
    let place = Place::new();
    let mut run = place.relatch(&[
        "run",
        "k",
        "-c",
        "echo > f; until test -e end; do sleep 0.01; done; exit 3",
    ]);
    let silent = silence(&place, &mut run);
    let mut run = spawn(run.stderr(Stdio::piped()));
    let mut said = run.stderr.take().unwrap();
    eventually(LONG, "the job runs", || place.file("f").exists());
    fs::write(&silent, "").unwrap();
    place.server.kill();
    fs::write(place.file("end"), "").unwrap();
    assert_eq!(in_shell(run.wait().unwrap()), 3);
    let text = read_to_string(&mut said).unwrap();
    assert!(text.contains("lease"), "{text}");
}

#[test]
fn a_signal_ends_a_wait_though_redis_and_the_name_server_are_gone() {
    let place = Place::new();
    let mut holder = place.start(&["k"], "holds", "echo > $1; exec sleep 60");
    let mut run = place.relatch(&["run", "k", "true"]);
    let silent = silence(&place, &mut run);
    let mut run = spawn(&mut run);
    eventually(LONG, "it waits", || place.server.tracked_keys() > 0);
    fs::write(&silent, "").unwrap();
    place.server.kill();
    let asked = place.file("silent.asked");
    eventually(LONG, "it asks", || asked.exists());
    signal(run.id(), Sig::Term);
    assert_eq!(in_shell(run.wait().unwrap()), 143);
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
}

#[test]
fn a_verbose_run_is_as_patient_as_another() {
    let place = Place::new();
    for options in [&[][..], &["-v"]] {
        place
            .server
            .query::<()>(&["CLIENT", "PAUSE", "5000", "WRITE"]);
        let run = [&["run", "-w", "20s"], options, &["k", "true"]].concat();
        let output = place.output(&run);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    }
}

/// The library alone gives up after 10 s.
#[test]
fn a_wait_bridges_a_long_outage() {
    let place = Place::new();
    place
        .server
        .query::<()>(&["SET", "lock:k", "another", "PX", "600000"]);
    let mut run = place.relatch(&["run", "-v", "-w", "5m", "k", "-c", "exit 3"]);
    let mut run = spawn(run.stderr(Stdio::piped()));
    let mut said = [0; 16];
    run.stderr.as_mut().unwrap().read_exact(&mut said).unwrap(); // It waits.
    place.server.kill();
    throughout(Duration::from_secs(12), || {
        assert!(matches!(run.try_wait(), Ok(None)), "it bridges that");
    });
    place.server.restart();
    assert_eq!(in_shell(run.wait().unwrap()), 3);
    let mut rest = String::new();
    run.stderr
        .as_mut()
        .unwrap()
        .read_to_string(&mut rest)
        .unwrap();
    assert!(rest.contains("the wait goes on"), "{rest}");
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
    let mut run = place.relatch(&["run", "-v", "--connect-within", "5m", "k", "-c", line]);
    let mut run = spawn(run.stderr(Stdio::piped()));
    let mut said = [0; 16];
    run.stderr.as_mut().unwrap().read_exact(&mut said).unwrap(); // It has failed once.
    place.server.restart();
    assert_eq!(in_shell(run.wait().unwrap()), 69);
    let ran = fs::read_to_string(place.file("ran")).unwrap();
    assert_eq!(ran, "\n", "69 of a job is its own");
}

/// It is not tried again, as an outage is.
#[test]
fn a_wrong_password_is_told_at_once() {
    let place = Place::new();
    let wrong = format!("redis://nobody:wrong@{}/", place.server.address());
    let mut run = place.relatch(&["run", "--connect-within", "5m", "k", "true"]);
    let mut run = spawn(run.env("REDIS_URL", wrong));
    assert_eq!(in_shell(run.wait().unwrap()), 77);
}

#[test]
fn a_signal_ends_a_run_between_two_attempts() {
    let place = Place::new();
    place.server.kill();
    let mut run = place.relatch(&["run", "-v", "--connect-within", "5m", "k", "true"]);
    let mut run = spawn(run.stderr(Stdio::piped()));
    let mut said = [0; 16];
    run.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
    signal(run.id(), Sig::Term);
    assert_eq!(in_shell(run.wait().unwrap()), 143);
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
    signal(run.id(), Sig::Term);
    throughout(Duration::from_millis(300), || {
        assert!(
            matches!(run.try_wait(), Ok(None)),
            "it hopes for the answer"
        );
    });
    proxy.end_delays();
    assert_eq!(in_shell(run.wait().unwrap()), 143);
    assert!(!place.server.exists("lock:k") && !place.file("f").exists());
}
