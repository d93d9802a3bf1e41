//! What comes out of a run: exit codes, arguments, the environment, and what is said.

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;

use relatch_rig::{Sig, signal};

use crate::belonging::instead_of_bash;
use crate::support::{Place, in_shell, spawn, stderr, stdout};

#[test]
fn every_exit_code_passes() {
    let place = &Place::new();
    thread::scope(|scope| {
        for first in 0..4 {
            scope.spawn(move || {
                for code in (first..256).step_by(4) {
                    let line = format!("exit {code}");
                    let key = format!("k{first}");
                    assert_eq!(place.code(&["run", "-n", &key, "-c", &line]), code);
                }
            });
        }
    });
    assert_eq!(
        place.server.query::<u64>(&["DBSIZE"]),
        0,
        "all are given back"
    );
}

#[test]
fn a_run_ends_by_the_signal_that_ended_the_job() {
    let place = Place::new();
    // 17 to 23 and 28 stop a process or do nothing to it; the C library keeps 32 and 33.
    let all = (1..=64).filter(|number| !matches!(number, 17..=23 | 28 | 32 | 33));
    let relatch = env!("CARGO_BIN_EXE_relatch");
    for number in all {
        let job = format!("ulimit -c 0; kill -{number} $$");
        let line = format!("ulimit -S -c hard; exec {relatch} run -n k -- sh -c '{job}'");
        let ended = spawn(&mut instead_of_bash(&place, &line)).wait().unwrap();
        // Rare ones are told by the code: STKFLT, IO, PWR, and those for real time.
        let is_rare = number > 31 || [16, 29, 30].contains(&number);
        assert_eq!(ended.signal(), (!is_rare).then_some(number));
        assert_eq!(in_shell(ended), 128 + number);
        assert!(!ended.core_dumped());
    }
}

#[test]
fn arguments_and_input_arrive_as_they_are() {
    let place = Place::new();
    let odd: [&[u8]; 6] = [b"two words", b"a\nb", b"\xff\xfe", b"", b"--", b"-n"];
    let mut child = place
        .relatch(&["run", "k", "sh", "-c", "printf '%s|' \"$@\"; cat", "job"])
        .args(odd.map(OsStr::from_bytes))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"in\0put").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"two words|a\nb|\xff\xfe||--|-n|in\0put");
}

#[test]
fn the_table_of_exit_codes_is_kept() {
    let place = Place::new();
    let at = |url: &str, arguments: &[&str]| {
        let output = place
            .relatch(arguments)
            .env("REDIS_URL", url)
            .output()
            .unwrap();
        output.status.code().unwrap()
    };
    let unreachable = "redis://127.0.0.1:1/";
    assert_eq!(at(unreachable, &["run", "-n", "k", "true"]), 69);
    assert_eq!(
        at(unreachable, &["run", "-xn", "k", "true"]),
        69,
        "not busy"
    );
    assert_eq!(at(unreachable, &["run", "-w", "200ms", "k", "true"]), 69);
    assert_eq!(
        at(unreachable, &["run", "k", "true"]),
        69,
        "it waits for a lock, not for Redis"
    );
    let wrong = format!("redis://nobody:wrong@{}/", place.server.address());
    assert_eq!(at(&wrong, &["run", "-n", "k", "true"]), 77);
    assert_eq!(at("nonsense", &["run", "k", "true"]), 78);
    for (code, arguments) in [
        (64, &["run"][..]),
        (64, &["run", "k"]),
        (64, &["run", "--nonsense", "k", "true"]),
        (64, &["run", "--json", "k", "true"]),
        (64, &["ls", "-v"]),
        (64, &["holder"]),
        (64, &["confirm"]),
        (64, &["run", "", "true"]),
        (64, &["run", "-w", "99999999999h", "k", "true"]),
        (64, &["run", "--max-hold", "36501d", "k", "true"]),
        (64, &["wait", "-w", "36501d", "k"]),
        (
            0,
            &["run", "-w", "36500d", "--max-hold", "36500d", "k", "true"],
        ),
        (0, &["--help"]),
        (0, &["--version"]),
        (78, &["run", "--lease", "1ms", "k", "true"]),
        (0, &["run", "--max-hold", "0", "k", "sleep", "0.1"]),
        (78, &["run", "--kill-after", "11s", "k", "true"]),
        (127, &["run", "k", "no-such-command"]),
        (126, &["run", "-n", "k", "/dev/null"]),
        (
            124,
            &["run", "-n", "--max-hold", "200ms", "k", "sleep", "60"],
        ),
        (0, &["run", "-n", "k", "true"]),
    ] {
        assert_eq!(place.code(arguments), code, "{arguments:?}");
    }
    let mut holder = place.start(&["k"], "f", "echo > $1; sleep 60");
    for (code, arguments) in [
        (75, &["run", "-n", "k", "true"][..]),
        (75, &["run", "-w", "1", "k", "true"]),
        (9, &["run", "-n", "-E", "9", "k", "true"]),
        (0, &["run", "-xn", "k", "true"]),
        (75, &["wait", "-w", "50ms", "k"]),
        (0, &["holder", "k"]),
        (1, &["holder", "other"]),
        (0, &["wait", "other"]),
    ] {
        assert_eq!(place.code(arguments), code, "{arguments:?}");
    }
    for silent in ["-xn", "-qn"] {
        let busy = place.output(&["run", silent, "k", "true"]);
        assert_eq!(stderr(&busy), "", "cron must not mail");
    }
    signal(holder.id(), Sig::Term);
    assert_eq!(holder.wait().unwrap().signal(), Some(15));
}

#[test]
fn a_signal_during_the_wait_ends_it_and_leaves_nothing() {
    let place = Place::new();
    let mut holder = place.start(&["k"], "f", "echo > $1; sleep 60");
    for (name, number) in [("-TERM", 15), ("-INT", 2), ("-HUP", 1), ("-QUIT", 3)] {
        for options in [&["-v", "k"][..], &["-v", "--foreground", "k"]] {
            let mut run = vec!["run"];
            run.extend(options);
            run.push("true");
            let mut waiter = place.relatch(&run).stderr(Stdio::piped()).spawn().unwrap();
            // It says that it waits, so its handlers are there.
            let mut said = [0; 16];
            waiter
                .stderr
                .as_mut()
                .unwrap()
                .read_exact(&mut said)
                .unwrap();
            let id = waiter.id().to_string();
            assert!(
                Command::new("kill")
                    .args([name, &id])
                    .status()
                    .unwrap()
                    .success()
            );
            assert_eq!(waiter.wait().unwrap().signal(), Some(number));
        }
    }
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
    assert_eq!(place.server.query::<u64>(&["DBSIZE"]), 0);
}

#[test]
fn the_job_knows_its_lock_and_a_run_inside_is_reentry() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let script = format!(
        "set -e; echo $RELATCH_HELD $RELATCH_KEY $RELATCH_PREFIX; test -n \"$RELATCH_FENCE\"
         {relatch} run -n a echo inner; {relatch} run -n b {relatch} run -n a echo deep
         {relatch} confirm; {relatch} confirm a --for 1s; {relatch} run --no-reentry a true || echo $?"
    );
    let output = place.output(&["run", "--fence", "a", "-c", &script]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "1 a lock:\ninner\ndeep\n75\n");
    let script = format!("{relatch} run b -c 'echo fence=$RELATCH_FENCE'");
    let output = place.output(&["run", "--fence", "a", "-c", &script]);
    assert_eq!(stdout(&output), "fence=\n", "it is that of another lock");
    let lost = "redis-cli -u $REDIS_URL del lock:c >/dev/null; trap '' TERM";
    let script = format!("{lost}; {relatch} confirm; echo $?");
    let output = place.output(&["run", "--on-lost", "warn", "c", "-c", &script]);
    assert_eq!(
        (output.status.code(), &*stdout(&output)),
        (Some(76), "76\n")
    );
}

/// The outer run does not keep its lock for a process that has left its session. So that one takes
/// the lock itself, and waits for it.
#[test]
fn a_run_in_another_session_is_not_inside() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let line = format!("setsid -w {relatch} run -n k true; echo $?; {relatch} run -n k echo in");
    let output = place.output(&["run", "k", "-c", &line]);
    assert_eq!(stdout(&output), "75\nin\n", "{}", stderr(&output));
}

/// One machine without the command does not cancel the job of all others. A job that fails keeps
/// its lock.
#[test]
fn a_job_that_never_ran_keeps_nothing() {
    let place = Place::new();
    let kept = ["run", "-n", "--at-least", "60s", "k"];
    assert_eq!(
        place.code(&[&kept[..], &["/no/such/command"]].concat()),
        127
    );
    assert_eq!(place.code(&[&kept[..], &["false"]].concat()), 1);
    assert_eq!(place.code(&["run", "-n", "k", "true"]), 75);
}

/// Nor does a machine that has no descriptor left for the guard.
#[test]
fn a_machine_that_cannot_start_the_job_keeps_nothing() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let mut reasons = String::new();
    for files in 4..40 {
        let run = format!("exec {relatch} run -n --at-least 60s k -- bash -c 'echo > ran'");
        let mut bash = instead_of_bash(&place, &format!("ulimit -n {files}; {run}"));
        reasons += &stderr(&bash.stderr(Stdio::piped()).output().unwrap());
        let ran = fs::remove_file(place.file("ran")).is_ok();
        let keys = place.server.query::<usize>(&["EXISTS", "lock:k"]);
        assert!(ran || keys == 0, "{files}: {reasons}");
        place.server.query::<()>(&["FLUSHALL"]);
    }
    let no_guard = "the guard process cannot be started";
    assert!(reasons.contains(no_guard), "{reasons}");
}

/// The job is so short that only the release finds out.
#[test]
fn the_cause_of_a_loss_is_what_redis_says() {
    let place = Place::new();
    let output = place.output(&["run", "k", "-c", "redis-cli -u $REDIS_URL del lock:k"]);
    assert_eq!(output.status.code(), Some(76));
    let said = stderr(&output);
    assert!(
        said.contains("deleted") && !said.contains("ran out"),
        "{said}"
    );
}

/// What cannot be said to anybody changes neither the exit code nor the report.
#[test]
fn nobody_has_to_hear_what_is_said() {
    let place = Place::new();
    let mut holder = place.start(&["busy"], "f", "echo > $1; sleep 60");
    let lose = "redis-cli -u $REDIS_URL del lock:k; sleep 60";
    for (code, outcome, arguments) in [
        (75, "busy", &["-vn", "busy", "true"][..]),
        (76, "lost", &["-v", "k", "-c", lose]),
        (
            124,
            "max_hold",
            &["-n", "--max-hold", "100ms", "k", "sleep", "60"],
        ),
        (127, "not_started", &["-n", "k", "no-such-command"]),
    ] {
        let mut run = place.relatch(&["run", "--report", "report"]);
        let full = fs::OpenOptions::new().write(true).open("/dev/full");
        let run = run.args(arguments).stdout(Stdio::null());
        let status = run.stderr(full.unwrap()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
        let report = fs::read_to_string(place.file("report")).unwrap();
        let last = report.lines().last().unwrap();
        assert!(
            last.contains(&format!("\"outcome\":\"{outcome}\"")),
            "{last}"
        );
    }
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
}

/// A run inside of a run has all options but those about the lock, which is the outer one's.
#[test]
fn a_run_inside_keeps_to_its_options() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let inside = |outer: &[&str], inner: &str| {
        let line = format!("{relatch} run {inner}");
        let mut run = vec!["run", "-n"];
        run.extend(outer);
        run.extend(["k", "-c", &line]);
        place.output(&run)
    };
    let code = |outer: &[&str], inner: &str| inside(outer, inner).status.code();
    assert_eq!(code(&[], "--max-hold 200ms k sleep 60"), Some(124));
    assert_eq!(code(&[], "--report report k sh -c 'exit 3'"), Some(3));
    let report = fs::read_to_string(place.file("report")).unwrap();
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(
        (&report["outcome"], &report["exit"]),
        (&"ended".into(), &3.into())
    );
    // The signal, and then the kill.
    let stubborn = "sh -c \"trap 'echo got' USR1; while :; do sleep 0.05; done\"";
    let options = "--max-hold 300ms --signal USR1 --kill-after 200ms k";
    let output = inside(&[], &format!("{options} {stubborn}"));
    assert_eq!(
        (output.status.code(), &*stdout(&output)),
        (Some(124), "got\n")
    );
    // The fence is that of the outer run, and also of one further out.
    let fence = "sh -c 'echo $RELATCH_FENCE'";
    let line = format!(
        "echo $RELATCH_FENCE; {relatch} run --fence k {fence}; {relatch} run b {relatch} run --fence k {fence}"
    );
    let output = place.output(&["run", "--fence", "k", "-c", &line]);
    let fences: Vec<_> = stdout(&output).lines().map(str::to_owned).collect();
    assert!(
        fences.len() == 3 && fences[0].parse::<u64>().is_ok(),
        "{fences:?}"
    );
    assert!(fences.iter().all(|fence| *fence == fences[0]), "{fences:?}");
    assert_eq!(
        code(&[], &format!("--fence k {fence}")),
        Some(64),
        "there is none"
    );
    let output = inside(&[], "--at-least 60s --lease 90s k true");
    assert!(output.status.success());
    assert!(
        stderr(&output).contains("--at-least"),
        "{}",
        stderr(&output)
    );
    assert!(
        !place.server.exists("lock:k"),
        "the outer run has given it back"
    );
}

/// The standard input comes to the job by way of its guard, and nothing else does.
#[test]
fn a_job_has_the_descriptors_that_it_has_without_us() {
    let place = Place::new();
    let list = ["sh", "-c", "ls /proc/$$/fd"];
    let below = place.output(&[&["run", "k"], &list[..]].concat());
    let mut plain = Command::new(list[0]);
    let plain = plain.args(&list[1..]).stdin(Stdio::null()).output();
    assert_eq!(stdout(&below), stdout(&plain.unwrap()));
}

#[test]
fn what_is_ignored_is_ignored_by_the_job_too() {
    let place = Place::new();
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let line = format!("trap '' HUP; {relatch} run k sh -c 'kill -HUP $$; echo alive'");
    let script = ["run", "outer", "-c", &line];
    assert_eq!(stdout(&place.output(&script)), "alive\n");
}

#[test]
fn the_address_may_be_in_a_file() {
    let place = Place::new();
    fs::write(place.file("url"), place.server.url() + "\n").unwrap();
    let run = |arguments: &[&str]| {
        let mut command = place.relatch(arguments);
        command.env("REDIS_URL", "redis://127.0.0.1:1/");
        command
    };
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let confirm = format!("{relatch} confirm");
    let by_option = run(&["run", "--redis-file", "url", "k", "-c", &confirm]).status();
    assert!(by_option.unwrap().success());
    let mut by_variable = run(&["run", "k", "-c", &confirm]);
    assert!(
        by_variable
            .env("RELATCH_REDIS_FILE", "url")
            .status()
            .unwrap()
            .success()
    );
    let moved = format!("cd /; {confirm}");
    let moved = run(&["run", "--redis-file", "url", "k", "-c", &moved]).status();
    assert!(moved.unwrap().success());
    // The command line counts more.
    let url = place.server.url();
    let mut both = run(&["run", "--redis", &url, "k", "-c", &confirm]);
    assert!(
        both.env("RELATCH_REDIS_FILE", "missing")
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn several_keys_are_taken_together() {
    let place = Place::new();
    let output = place.output(&[
        "run",
        "-k",
        "b",
        "a",
        "-c",
        "redis-cli -u $REDIS_URL dbsize",
    ]);
    assert_eq!(stdout(&output).trim(), "2");
    let mut holder = place.start(&["b"], "f", "echo > $1; sleep 60");
    assert_eq!(place.code(&["run", "-n", "-k", "b", "a", "true"]), 75);
    assert_eq!(place.code(&["holder", "a"]), 1, "all, or none");
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
}

/// Who finds a lock busy reads what to do about it.
#[test]
fn a_busy_lock_is_told_with_a_way_out() {
    let place = Place::new();
    let mut holder = place.start(&["k"], "f", "echo > $1; sleep 60");
    let by = format!("-{}-", holder.id());
    for (options, way) in [
        (&["-n"][..], "in place of -n"),
        (&["-w", "50ms"], "longer --wait"),
    ] {
        let output = place.output(&[&["run"], options, &["k", "true"]].concat());
        let said = stderr(&output);
        assert!(said.contains(way) && said.contains(&by), "{said}");
    }
    signal(holder.id(), Sig::Term);
    holder.wait().unwrap();
    for (option, span) in [("--at-least", "25h"), ("--lease", "24.1h")] {
        let output = place.output(&["run", option, span, "k", "true"]);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(78), "{said}");
        assert!(said.contains(&format!("{option} is 1d0")), "{said}");
    }
    let said = stderr(&place.output(&["run", "--json", "k", "true"]));
    assert!(said.contains("--report"), "{said}");
    // Inside of a job.
    let relatch = env!("CARGO_BIN_EXE_relatch");
    let del = "redis-cli -u $REDIS_URL del lock:k >/dev/null";
    let script = format!("{relatch} confirm --for 1h; {del}; {relatch} confirm");
    let said = stderr(&place.output(&["run", "--on-lost", "warn", "k", "-c", &script]));
    assert!(said.contains("not for 1h00m: ask again"), "{said}");
    assert!(said.contains("nobody has it: do not go on"), "{said}");
}

#[test]
fn a_lock_is_kept_for_as_long_as_it_was_asked_for() {
    let place = Place::new();
    assert_eq!(
        place.code(&["run", "-xn", "k", "--at-least", "60s", "--", "true"]),
        0
    );
    assert_eq!(
        place.code(&["run", "-xn", "k", "false"]),
        0,
        "another machine does not run it"
    );
    let shown = stdout(&place.output(&["holder", "k"]));
    assert!(shown.contains(", which is done ("), "{shown}");
    // Also if the machine dies, which gives nothing back.
    let job = "echo > $1; sleep 60";
    let mut run = place.start(&["--at-least", "60s", "other"], "f", job);
    signal(run.id(), Sig::Kill);
    run.wait().unwrap();
    let left = place.server.query::<u64>(&["PTTL", "lock:other"]);
    assert!(left > 30_000, "{left}");
}
