//! What a job inherits, and which signals come to it how often.

use std::os::unix::process::CommandExt;
use std::thread;
use std::time::Duration;

use relatch_rig::{LONG, Sig, eventually, signal};

use crate::deaths::guard_of;
use crate::support::{Place, RELATCH, Running, our_group, send, spawn, stderr, stdout};

/// A job that writes each signal that it gets, and waits in one process for its end.
const COUNTS: &str = "for name in HUP INT QUIT TERM USR1 USR2 WINCH; do trap \"echo $name >> got\" $name; done
exec 3<> <(:); echo $$ > ready; until test -e end || test ! -e ready; do read -t 0.01 -u 3; done; exit 0";

/// What has come, when the job is over.
fn got(place: &Place, mut run: Running, name: &str) -> String {
    eventually(LONG, name, || place.text("got").contains(name));
    thread::sleep(Duration::from_millis(300)); // Too short a time can only make this green.
    place.write("end", "");
    assert_eq!(run.code(), 0);
    place.text("got")
}

/// A run inside of a run passes on what it gets.
#[test]
fn each_signal_reaches_the_job_of_nested_runs_once() {
    let all = &["HUP", "INT", "QUIT", "TERM", "USR1", "USR2", "WINCH"][..];
    for (inner, names) in [
        ("", all),
        ("$R run k1 ", &["TERM", "WINCH"]),
        ("$R run k $R run k2 ", &["INT", "USR1"]),
        ("$R run k1 $R run k2 $R run k3 ", &["TERM"]),
        ("$R run --foreground k ", &["TERM", "INT"]),
    ] {
        for name in names {
            let place = Place::new();
            let line = format!("exec $R run k {inner}bash -c '{COUNTS}'");
            let run = spawn(&mut place.bash(&line));
            place.wait_for("ready");
            send(name, run.id());
            assert_eq!(got(&place, run, name), format!("{name}\n"), "{inner}");
        }
    }
}

/// As a service manager does, which has started the run in another session, and as `kill $(pidof
/// relatch)` does. (The job is not of that name.) On a busy machine, the round may take longer than
/// the 100 ms for which a run waits for it, so one try of five is enough.
#[test]
fn a_signal_to_each_process_of_a_service_reaches_the_job_once() {
    for (around, order) in [("setsid", "rgj"), ("setsid", "jgr"), ("env", "gr")] {
        let is_once = (0..5).any(|_| got_of_round(around, order) == "TERM\n");
        assert!(is_once, "{order}: the job gets it again");
    }
}

/// What the job gets if each process of the service gets a signal, in this order.
fn got_of_round(around: &str, order: &str) -> String {
    let place = Place::new();
    let run = [RELATCH, "run", "k", "bash", "-c", COUNTS];
    // (The leader of a group would start another process for its session.)
    let run = spawn(place.program(around, &run).process_group(our_group()));
    place.wait_for("ready");
    let (job, guard) = (place.text("ready"), guard_of(run.id()));
    for to in order.chars() {
        let to = match to {
            'r' => run.id(),
            'g' => guard,
            _ => job.trim().parse().unwrap(),
        };
        signal(to, Sig::Term); // All come from one sender.
    }
    got(&place, run, "TERM")
}

/// A package is upgraded while a run waits.
#[test]
fn a_run_whose_program_was_replaced_starts_its_job() {
    let place = Place::new();
    let mut holder = place.holds(&["k"]);
    place.copy();
    let run = ["run", "k", "sh", "-c", "exit 3"];
    let mut run = spawn(&mut place.program(place.file("relatch"), &run));
    eventually(LONG, "it waits", || place.server.tracked_keys() > 0);
    place.forget(&["relatch"]);
    holder.end("TERM");
    assert_eq!(run.code(), 3);
}

/// As a service of systemd has `SIGPIPE`, and `nohup` has `SIGHUP`.
#[test]
fn the_job_inherits_ignored_signals_and_the_mask() {
    let place = Place::new();
    let show = ["sh", "-c", "grep -E 'SigBlk|SigIgn' /proc/self/status"];
    for state in [
        "--ignore-signal=PIPE,HUP,WINCH",
        "--default-signal",
        "--block-signal=USR2,PIPE",
    ] {
        let seen = |around: &[&str]| {
            let mut env = place.program("env", &[&[state], around, &show].concat());
            let output = env.output().unwrap();
            assert!(output.status.success(), "{}", stderr(&output));
            // (glibc has the two signals of its own ignored in whoever it starts.)
            stdout(&output).replace("000000018", "000000000")
        };
        assert_eq!(seen(&[RELATCH, "run", "k"]), seen(&[]));
    }
}
