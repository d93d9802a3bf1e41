//! What comes out of a run: exit codes, arguments, the environment, and what is said.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{PipeWriter, Read, Write, pipe};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use relatch_rig::{LONG, eventually};

use crate::support::{Place, in_shell, json, spawn, stderr, stdout};

#[test]
fn the_exit_code_is_the_jobs() {
    let place = Place::new();
    for code in [0, 1, 2, 69, 75, 76, 124, 127, 128, 143, 200, 255] {
        let line = format!("exit {code}");
        assert_eq!(place.code(&["run", "-n", "k", "-c", &line]), code);
    }
    assert_eq!(place.keys(), 0, "all are given back");
    // `SIGCHLD` that is ignored by inheritance makes children vanish without a word.
    let inner = "exec env --ignore-signal=CHLD $R run k -c 'exit 3'";
    let output = place.job(&["outer"], inner);
    assert_eq!(output.status.code(), Some(3), "{}", stderr(&output));
}

#[test]
fn a_run_ends_by_the_signal_that_ended_the_job() {
    let place = Place::new();
    // Rare ones are told by the code: STKFLT, PWR, and those for real time.
    let all = [1, 2, 3, 6, 9, 11, 13, 14, 15, 24].map(|it| (it, Some(it)));
    for (number, by_signal) in [&all[..], &[(16, None), (30, None), (34, None)]].concat() {
        let job = format!("ulimit -c 0; kill -{number} $$");
        let line = format!("ulimit -S -c hard; exec $R run -n k -- sh -c '{job}'");
        let ended = spawn(&mut place.bash(&line)).wait().unwrap();
        assert_eq!(ended.signal(), by_signal);
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
    let wrong = format!("redis://nobody:wrong@{}/", place.server.address());
    let unreachable = "redis://127.0.0.1:1/";
    for (code, url, options) in [
        (69, unreachable, &["-xn"][..]),
        // It waits for a lock, not for Redis.
        (69, unreachable, &["-w", "60s"]),
        // It is not tried again, as an outage is.
        (77, &wrong, &["--connect-within", "5m"]),
        (78, "nonsense", &[]),
    ] {
        let run = [&["run", "--redis", url], options, &["k", "true"]].concat();
        assert_eq!(place.code(&run), code, "{url}");
    }
    let code = |code, line: &str| {
        let arguments: Vec<_> = line.split(' ').collect();
        assert_eq!(place.code(&arguments), code, "{line}");
    };
    for line in [
        "run",
        "run k",
        "run --nonsense k true",
        "ls -v",
        "holder",
        "confirm",
        "run  true",
        "run -w 99999999999h k true",
        "run --max-hold 36501d k true",
    ] {
        code(64, line);
    }
    code(0, "run -w 36500d --max-hold 36500d k true");
    code(0, "run --max-hold 0 k sleep 0.1");
    code(78, "run --lease 1ms k true");
    code(78, "run --kill-after 11s k true");
    code(127, "run k no-such-command");
    code(126, "run -n k /dev/null");
    code(124, "run -n --max-hold 200ms k sleep 60");
    let _holder = place.holds(&["k"]);
    code(75, "run -n k true");
    code(75, "run -w 1 k true");
    code(9, "run -n -E 9 k true");
    code(75, "wait -w 1s k");
    code(0, "holder k");
    code(1, "holder other");
    code(0, "wait other");
    for (silent, expected) in [("-xn", 0), ("-qn", 75)] {
        let busy = place.output(&["run", silent, "k", "true"]);
        assert_eq!(busy.status.code(), Some(expected));
        assert_eq!(stderr(&busy), "", "cron must not mail");
    }
}

#[test]
fn the_job_knows_its_lock_and_a_run_inside_is_reentry() {
    let place = Place::new();
    // The fence is that of the outer run, and also of one further out. Another lock has none.
    let script =
        "echo $RELATCH_HELD $RELATCH_KEY $RELATCH_PREFIX; test $RELATCH_FENCE -gt 0 || exit
        same='test $RELATCH_FENCE = '$RELATCH_FENCE
        $R run -n --fence a -c \"$same && echo inner\"
        $R run -n b $R run -n --fence a -c \"$same && echo deep\"
        $R run b -c 'echo fence=$RELATCH_FENCE'
        $R confirm && $R confirm a --for 1s; $R run --no-reentry a true; echo $?";
    let output = place.job(&["--fence", "a"], script);
    let expected = "1 a lock:\ninner\ndeep\nfence=\n75\n";
    assert_eq!(stdout(&output), expected, "{}", stderr(&output));
    // The outer run does not keep its lock for a process that has left its session.
    let line = "setsid -w $R run -n k true; echo $?; $R run -n k echo in";
    assert_eq!(stdout(&place.job(&["k"], line)), "75\nin\n");
}

/// A run inside of a run has all options but those about the lock, which is the outer one's.
#[test]
fn a_run_inside_keeps_to_its_options() {
    let place = Place::new();
    let inside = |inner: &str| place.job(&["-n", "k"], &format!("$R run {inner}"));
    assert_eq!(inside("--fence k true").status.code(), Some(64), "none");
    inside("--report report k sh -c 'exit 3'");
    let report = json(&place.text("report"));
    assert_eq!(report["exit"], 3);
    // The signal, and then the kill.
    let stubborn = "sh -c \"trap 'echo got' USR1; while :; do sleep 0.05; done\"";
    let options = "--max-hold 2s --signal USR1 --kill-after 2s k";
    let output = inside(&format!("{options} {stubborn}"));
    let seen = (output.status.code(), &*stdout(&output));
    assert_eq!(seen, (Some(124), "got\n"));
    let output = inside("--at-least 60s --lease 90s k true");
    let said = stderr(&output);
    assert!(said.contains("--at-least"), "{said}");
    assert_eq!(place.keys(), 0, "the outer run has given it back");
}

/// One machine without the command does not cancel the job of all others. A job that fails keeps
/// its lock, and so does a machine that dies.
#[test]
fn a_lock_is_kept_for_as_long_as_it_was_asked_for_if_the_job_has_run() {
    let place = Place::new();
    let kept = ["run", "-n", "--at-least", "60s", "k"];
    let missing = [&kept[..], &["/no/such/command"]].concat();
    assert_eq!(place.code(&missing), 127);
    assert_eq!(place.code(&[&kept[..], &["false"]].concat()), 1);
    assert_eq!(place.code(&["run", "-xn", "k", "false"]), 0, "not again");
    let shown = stdout(&place.output(&["holder", "k"]));
    assert!(shown.contains(", which is done ("), "{shown}");
    let mut run = place.holds(&["--at-least", "60s", "other"]);
    run.end("KILL");
    let left = place.server.pttl("lock:other");
    assert!(left > 30_000, "{left}");
}

/// Nor does a machine that has no descriptor left for the guard keep a lock.
#[test]
fn a_machine_that_cannot_start_the_job_keeps_nothing() {
    let place = Place::new();
    let mut reasons = String::new();
    for files in 4..40 {
        let run = "exec $R run -n --at-least 60s k -- bash -c 'echo > ran'";
        let mut bash = place.bash(&format!("ulimit -n {files}; {run}"));
        reasons += &stderr(&bash.output().unwrap());
        let ran = place.file("ran").exists();
        assert!(ran || place.keys() == 0, "{files}: {reasons}");
        place.forget(&["ran"]);
        place.server.query::<()>(&["FLUSHALL"]);
    }
    let no_guard = "cannot start the guard process";
    assert!(reasons.contains(no_guard), "{reasons}");
}

/// The job is so short that only the release finds out.
#[test]
fn the_cause_of_a_loss_is_what_redis_says() {
    let place = Place::new();
    let output = place.job(&["k"], "redis-cli -u $REDIS_URL del lock:k");
    assert_eq!(output.status.code(), Some(76));
    let said = stderr(&output);
    let is_right = said.contains("deleted") && !said.contains("ran out");
    assert!(is_right, "{said}");
}

/// A pipe that is full, and that nobody reads.
pub(crate) fn full_pipe() -> (impl Sized, PipeWriter) {
    let (reader, mut writer) = pipe().unwrap();
    writer.write_all(&vec![b'.'; 1 << 16]).unwrap();
    (reader, writer)
}

/// Words that nobody reads change neither the exit code nor the report, and nobody waits
/// for a reader: as below a supervisor whose log stands still, and with a disk that is full.
#[test]
fn nobody_has_to_hear_what_is_said() {
    let place = Place::new();
    let _holder = place.holds(&["busy"]);
    let (_reader, stuck) = full_pipe();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let lose = "redis-cli -u $REDIS_URL del lock:k; sleep 60";
    for stderr in [OwnedFd::from(stuck), full.into()] {
        for (code, outcome, arguments) in [
            (3, "ended", &["-v", "k", "-c", "exit 3"][..]),
            (75, "busy", &["-v", "-w", "1s", "busy", "true"]),
            (76, "lost", &["-v", "k", "-c", lose]),
            (124, "max_hold", &["--max-hold", "1s", "k", "sleep", "60"]),
            (127, "not_started", &["-n", "k", "no-such-command"]),
            (64, "", &["-w", "abc", "k", "true"]),
        ] {
            place.forget(&["report"]);
            let mut run = place.relatch(&["run", "--report", "report"]);
            let run = run.args(arguments).stdout(Stdio::null());
            let run = run.stderr(stderr.try_clone().unwrap());
            assert_eq!(spawn(run).code(), code, "{arguments:?}");
            let report = place.text("report");
            let is_told = report.contains(&format!("\"outcome\":\"{outcome}\""));
            assert!(is_told || outcome.is_empty(), "{report}");
        }
    }
}

#[test]
fn several_keys_are_taken_together() {
    let place = Place::new();
    let output = place.job(&["-k", "b", "a"], "redis-cli -u $REDIS_URL dbsize");
    assert_eq!(stdout(&output).trim(), "2");
    let _holder = place.holds(&["b"]);
    assert_eq!(place.code(&["run", "-n", "-k", "b", "a", "true"]), 75);
    assert_eq!(place.code(&["holder", "a"]), 1, "all, or none");
}

/// Who finds a lock busy reads what to do about it.
#[test]
fn a_busy_lock_is_told_with_a_way_out() {
    let place = Place::new();
    let holder = place.holds(&["k"]);
    let by = format!("-{}-", holder.id());
    for (options, way) in [
        (&["-n"][..], "instead of -n"),
        (&["-w", "1s"], "raise --wait"),
    ] {
        let output = place.output(&[&["run"], options, &["k", "true"]].concat());
        let said = stderr(&output);
        assert!(said.contains(way) && said.contains(&by), "{said}");
    }
    for (option, span) in [("--at-least", "25h"), ("--lease", "24.1h")] {
        let said = stderr(&place.output(&["run", option, span, "k", "true"]));
        assert!(said.contains(&format!("{option} is 1d0")), "{said}");
    }
    let said = stderr(&place.output(&["run", "--json", "k", "true"]));
    assert!(said.contains("--report"), "{said}");
}

/// With `-v` at once, else after 5 s, and with `-q` or `-x` not at all.
#[test]
fn a_wait_says_who_has_the_lock() {
    let place = Place::new();
    let mut holder = place.holds(&["k"]);
    let start = |options: &[&str]| {
        let mut run = place.relatch(&[&["run"], options, &["k", "true"]].concat());
        spawn(run.stderr(Stdio::piped()))
    };
    // They would speak before the other does.
    let silent = ["-q", "-x"].map(|option| start(&[option]));
    eventually(LONG, "both wait", || place.server.listeners().len() > 2);
    let began = Instant::now();
    let mut run = start(&[]);
    let mut text = [0; 22];
    run.stderr.as_mut().unwrap().read_exact(&mut text).unwrap();
    assert_eq!(&text, b"relatch: waiting for l");
    assert!(began.elapsed() > Duration::from_secs(4));
    holder.end("TERM");
    for mut run in silent {
        assert_eq!((run.code(), &*run.said()), (0, ""));
    }
}
