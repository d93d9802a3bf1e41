//! What a job inherits, and which signals come to it how often.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use relatch_rig::{LONG, Sig, eventually, signal};

use crate::deaths::{guard_of, is_there};
use crate::support::{Place, Running, json, spawn, stderr, stdout};

fn got(place: &Place) -> String {
    fs::read_to_string(place.file("got")).unwrap_or_default()
}

/// A job that writes each signal that it gets, and waits in one process for its end.
const COUNTS: &str = "for name in TERM INT USR1 WINCH; do trap \"echo $name >> got\" $name; done
exec 3<> <(:); echo $$ > ready; until test -e end || test ! -e ready; do read -t 0.01 -u 3; done; exit 0";

/// How often a signal has come, when the job is over.
fn times(place: &Place, mut run: Running, name: &str) -> usize {
    eventually(LONG, name, || got(place).contains(name));
    thread::sleep(Duration::from_millis(300)); // Too short a time can only make this green.
    fs::write(place.file("end"), "").unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(0));
    got(place).matches(name).count()
}

/// A run inside of a run passes on what it gets.
#[test]
fn a_signal_reaches_the_job_of_nested_runs_once() {
    let relatch = env!("CARGO_BIN_EXE_relatch");
    for (runs, option) in [(1, ""), (2, ""), (3, ""), (4, ""), (2, "--foreground")] {
        for same in [true, false] {
            for name in ["TERM", "INT", "USR1", "WINCH"] {
                let place = Place::new();
                fs::write(place.file("job"), COUNTS).unwrap();
                let mut line = "bash job".to_owned();
                for run in 1..runs {
                    let key = if same { 0 } else { run };
                    line = format!("{relatch} run {option} k{key} {line}");
                }
                let mut arguments = vec!["run", "k0"];
                arguments.extend(line.split_whitespace());
                let run = spawn(&mut place.relatch(&arguments));
                eventually(LONG, "the job runs", || place.file("ready").exists());
                let id = run.id().to_string();
                let sent = Command::new("kill").args(["-s", name, &id]).status();
                assert!(sent.unwrap().success());
                let times = times(&place, run, name);
                assert_eq!(
                    times, 1,
                    "{name}, {runs} runs {option}, the same key: {same}"
                );
            }
        }
    }
}

/// As a service manager does: it has started the run in another session.
#[test]
fn a_signal_to_each_process_of_a_service_reaches_the_job_once() {
    let relatch = env!("CARGO_BIN_EXE_relatch");
    for order in ["rgj", "grj", "jgr", "r"] {
        let place = Place::new();
        let named = place.relatch(&[]);
        let named = named
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?)));
        let mut setsid = Command::new("setsid");
        let setsid = setsid.args([relatch, "run", "k", "bash", "-c", COUNTS]);
        let run = spawn(setsid.envs(named).current_dir(place.file("")));
        let job = || fs::read_to_string(place.file("ready")).unwrap_or_default();
        eventually(LONG, "the job runs", || job().ends_with('\n'));
        let guard = guard_of(run.id());
        for to in order.chars() {
            let to = match to {
                'r' => run.id(),
                'g' => guard,
                _ => job().trim().parse().unwrap(),
            };
            signal(to, Sig::Term);
        }
        assert_eq!(times(&place, run, "TERM"), 1, "{order}");
    }
}

/// As `kill $(pidof relatch)` does. The job is not of that name.
#[test]
fn a_signal_to_the_run_and_its_guard_by_name_reaches_the_job() {
    let place = Place::new();
    let run = spawn(&mut place.relatch(&["run", "k", "bash", "-c", COUNTS]));
    eventually(LONG, "the job runs", || place.file("ready").exists());
    let ids = [guard_of(run.id()), run.id()].map(|id| id.to_string());
    assert!(Command::new("kill").args(ids).status().unwrap().success());
    assert_eq!(times(&place, run, "TERM"), 1);
}

/// A package is upgraded while a run waits.
#[test]
fn a_run_whose_program_was_replaced_starts_its_job() {
    let place = Place::new();
    let mut holder = place.start(&["k"], "holds", "echo > $1; exec sleep 60");
    let program = place.file("relatch");
    // (By another process. A file that this one writes may be open in a child for a moment.)
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_relatch"))
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    let like = place.relatch(&[]);
    let named = like
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let mut run = Command::new(&program);
    let run = run.args(["run", "k", "sh", "-c", "exit 3"]).envs(named);
    let mut run = spawn(run);
    eventually(LONG, "it waits", || place.server.tracked_keys() > 0);
    fs::remove_file(&program).unwrap();
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
    assert_eq!(run.wait().unwrap().code(), Some(3));
}

/// The program's file, as the guard finds it, is the loader's then.
#[test]
fn a_guard_that_cannot_start_the_job_keeps_nothing() {
    let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
    let Some(loader) = loader.iter().find(|file| Path::new(file).exists()) else {
        return;
    };
    let place = Place::new();
    let relatch = place.relatch(&[]);
    let named = relatch
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    let output = Command::new(loader)
        .args([env!("CARGO_BIN_EXE_relatch"), "run", "--at-least", "1h"])
        .args(["--report", "report", "k", "true"])
        .envs(named)
        .current_dir(place.file(""))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(70), "{}", stderr(&output));
    assert!(stderr(&output).contains("its guard process ended with"));
    let report = json(&fs::read_to_string(place.file("report")).unwrap());
    assert_eq!(report["outcome"], "not_started");
    assert_eq!(place.code(&["run", "-n", "k", "true"]), 0);
}

/// As a service of systemd has `SIGPIPE`, and `nohup` has `SIGHUP`.
#[test]
fn the_job_inherits_ignored_signals_and_the_mask() {
    let place = Place::new();
    let show = "grep -E 'SigBlk|SigIgn' /proc/self/status";
    for state in [
        "--ignore-signal=PIPE,HUP,WINCH",
        "--default-signal",
        "--block-signal=USR2,PIPE",
    ] {
        let seen = |around: &[&str]| {
            let mut line = vec![state];
            line.extend(around);
            line.extend(["sh", "-c", show]);
            let relatch = place.relatch(&[]);
            let named = relatch
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?)));
            let output = Command::new("env").args(line).envs(named).output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            // (glibc has the two signals of its own ignored in whoever it starts.)
            stdout(&output).replace("000000018", "000000000")
        };
        let bare = seen(&[]);
        assert_eq!(seen(&[env!("CARGO_BIN_EXE_relatch"), "run", "k"]), bare);
    }
}

/// As `setsid -w` and Python's `start_new_session` do.
#[test]
fn what_the_job_waits_for_in_another_session_is_of_the_job() {
    let place = Place::new();
    let child = "trap 'echo asked >> got' TERM; echo $$ > ready; until test -e end || test ! -e ready; do sleep 0.01; done";
    let mut run =
        spawn(&mut place.relatch(&["run", "k", "sh", "-c", "setsid -w bash -c \"$0\"; :", child]));
    eventually(LONG, "the job runs", || place.file("ready").exists());
    let child = fs::read_to_string(place.file("ready")).unwrap();
    signal(run.id(), Sig::Term);
    eventually(LONG, "it comes", || got(&place) == "asked\n");
    assert_eq!(
        place.code(&["run", "-w", "500ms", "k", "true"]),
        75,
        "it goes on"
    );
    assert!(is_there(&child));
    fs::write(place.file("end"), "").unwrap();
    assert_eq!(run.wait().unwrap().signal(), Some(15));
    assert_eq!(place.code(&["run", "-n", "k", "true"]), 0);
}

/// A window is resized, and the job stopped and continued, while the script that started it lives.
#[test]
fn a_daemon_stays_one_whatever_signals_came_before_its_parent_ended() {
    let place = Place::new();
    let daemon =
        "echo $$ > daemon; exec 3<> <(:); while test -s daemon; do read -t 0.05 -u 3; done";
    let script = format!(
        "setsid bash -c '{daemon}' & until test -s daemon; do sleep 0.05; done; echo > ready
        until test -e end; do sleep 0.05; done"
    );
    let mut run = place.start(&["k"], "ready", &script);
    for name in ["WINCH", "CONT"] {
        let id = run.id().to_string();
        let sent = Command::new("kill").args(["-s", name, &id]).status();
        assert!(sent.unwrap().success());
    }
    thread::sleep(Duration::from_millis(300)); // Too short a time can only make this green.
    fs::write(place.file("end"), "").unwrap();
    run.wait().unwrap();
    let id = fs::read_to_string(place.file("daemon")).unwrap();
    assert!(is_there(id.trim()), "it goes on without the lock");
    // It ends with its folder.
}
